"""OpenVINO's forms of the models: converted from PyTorch by OpenVINO, compressed or quantised by NNCF.

    openvino         float32 weights; the precision of the arithmetic is set where the file is read
    openvino-int8    GPT-2: ``nncf.compress_weights`` in its default, INT8_ASYM, a scale and a zero a row. BERT and ViT:
                     ``nncf.quantize`` for transformers, weights and activations, calibrated on random inputs
    openvino-int4    GPT-2: INT4_SYM in groups of 128 weights, the default size, with the embedding and the head: as
                     ours, and fewer bytes than by default, where those two have eight bits

GPT-2 keeps keys and values in the model's state, as the authors' own exporter arranges it: each layer reads a variable,
reorders it by ``beam_idx``, appends to it and assigns it. The CPU plugin fuses this with the attention. The mask has
the batch in its shape: from a broadcast one, the plugin of 2026.4 computes wrong answers in bfloat16.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from benchmarks.speed.programs import need

BATCHES, BATCH = 16, 4  # of random inputs that activations are calibrated on


class Decoder(nn.Module):
    """GPT-2 with its cache as inputs and outputs; weights are those of the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        stored = load_file(folder / "model.safetensors")
        self.weights = {name.removeprefix("transformer."): tensor for name, tensor in stored.items()}
        self.depth, self.heads = config["n_layer"], config["n_head"]
        self.eps, self.head_size = config["layer_norm_epsilon"], config["n_embd"] // config["n_head"]

    def forward(self, ids: Tensor, positions: Tensor, beam_idx: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        """Returns the last token's logits (B, V), and keys and values (B, H, S, E) of each layer with the new ones."""
        weights = self.weights
        x = F.embedding(ids, weights["wte.weight"]) + F.embedding(positions, weights["wpe.weight"])  # (B, T, D)
        caches: list[Tensor] = []
        mask = torch.arange(past[0].size(2) + ids.size(1)) <= positions[:, None, :, None]  # (B, 1, T, S)
        for n in range(self.depth):
            q, k, v = self.linear(self.norm(x, f"h.{n}.ln_1"), f"h.{n}.attn.c_attn").chunk(3, -1)
            q, k, v = (part.unflatten(-1, (self.heads, self.head_size)).transpose(1, 2) for part in (q, k, v))
            k, v = (
                torch.cat((old[beam_idx], new), 2) for old, new in zip(past[2 * n : 2 * n + 2], (k, v), strict=True)
            )
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + self.linear(attended.transpose(1, 2).flatten(2), f"h.{n}.attn.c_proj")
            hidden = F.gelu(self.linear(self.norm(x, f"h.{n}.ln_2"), f"h.{n}.mlp.c_fc"), approximate="tanh")
            x = x + self.linear(hidden, f"h.{n}.mlp.c_proj")
            caches += (k, v)
        return F.linear(self.norm(x[:, -1], "ln_f"), weights["wte.weight"]), *caches

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], self.eps)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"].t(), self.weights[f"{name}.bias"])  # stored (in, out)


def decoder(folder: Path) -> Any:
    """Returns GPT-2 as a stateful OpenVINO model of the inputs ids, positions (B, T) and beam_idx (B,)."""
    import openvino
    from openvino._offline_transformations import apply_make_stateful_transformation

    model = Decoder(folder).eval()
    count = 2 * model.depth
    past, present = ([f"{word}.{n}" for n in range(count)] for word in ("past", "present"))
    cache, ids = torch.zeros(2, model.heads, 1, model.head_size), torch.ones(2, 3, dtype=torch.long)
    given = (ids, torch.arange(1, 4).expand(2, 3), torch.arange(2), *[cache] * count)
    made = openvino.convert_model(model, example_input=given)
    for port, name in zip(made.inputs, ("ids", "positions", "beam_idx", *past), strict=True):
        port.set_names({name})
        if name in past:
            port.get_node().set_partial_shape(openvino.PartialShape([-1, model.heads, -1, model.head_size]))
    for port, name in zip(made.outputs, ("logits", *present), strict=True):
        port.set_names({name})
    made.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(made, dict(zip(past, present, strict=True)))
    _begin_empty(made, model.heads, model.head_size)
    return made


def _begin_empty(made: Any, heads: int, head_size: int) -> None:
    """Lets each cache begin as (B, H, 0, E)."""
    from openvino import opset13 as ops

    batch = ops.shape_of(made.input("beam_idx"), "i64")  # (1,)
    shape = ops.concat([batch, ops.constant(np.array([heads, 0, head_size]))], 0)
    empty = ops.broadcast(ops.constant(np.float32(0)), shape)
    for node in made.get_ops():
        if node.get_type_name() == "ReadValue":
            node.set_arguments([empty.output(0)])
    made.validate_nodes_and_infer_types()


def exported(folder: Path) -> Any:
    """Returns a decoder as ``heedful export`` writes it: stateful, of input_ids, attention_mask and beam_idx."""
    import openvino

    from heedful.export import export

    with TemporaryDirectory() as out:
        export(folder, "openvino", Path(out, "model"))
        return openvino.Core().read_model(Path(out, "model", "openvino_model.xml")).clone()


class Reader(nn.Module):
    """BERT's last hidden states, or ViT's logits, of the model of transformers."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__()
        import transformers

        self.model = getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Returns (B, T, D) or (B, labels)."""
        return self.model(*inputs)[0]


def encoder(folder: Path) -> tuple[Any, list[list[np.ndarray]]]:
    """Returns BERT or ViT as an OpenVINO model, and inputs to calibrate it on."""
    import openvino

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    random = np.random.default_rng(3)
    if config["model_type"] == "bert":
        kind, length = "AutoModel", min(128, config["max_position_embeddings"])
        sizes = [(BATCH, int(random.integers(length // 8, length + 1))) for _ in range(BATCHES)]
        inputs = [
            [random.integers(10, config["vocab_size"] - 1, size), np.ones(size, dtype=np.int64)] for size in sizes
        ]
        shapes = [openvino.PartialShape([-1, -1])] * 2
    else:
        kind, side = "AutoModelForImageClassification", config["image_size"]
        inputs = [[random.standard_normal((BATCH, 3, side, side), dtype=np.float32)] for _ in range(BATCHES)]
        shapes = [openvino.PartialShape([-1, 3, side, side])]
    example = tuple(torch.from_numpy(array) for array in inputs[0])
    return openvino.convert_model(Reader(folder, kind).eval(), example_input=example, input=shapes), inputs


def write(folder: Path, form: str, out: Path) -> None:
    """Writes a form of the model in ``folder`` as ``out``/model.xml and .bin; ``out`` exists."""
    need("openvino", "transformers")
    _, _, bits = form.partition("-")
    if bits:
        need("nncf")
    import openvino

    if folder.name.startswith(("gpt2", "llama")):
        made = decoder(folder) if folder.name.startswith("gpt2") else exported(folder)
        if bits:
            made = _compressed(made, bits)
    else:
        made, inputs = encoder(folder)
        if bits:
            import nncf

            options = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": len(inputs)}
            made = nncf.quantize(made, nncf.Dataset(inputs), **options)
    openvino.save_model(made, out / "model.xml", compress_to_fp16=False)


def _compressed(made: Any, bits: str) -> Any:
    import nncf

    if bits == "int8":
        return nncf.compress_weights(made)
    adjust = nncf.AdvancedCompressionParameters(group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST)
    options = {"mode": nncf.CompressWeightsMode.INT4_SYM, "group_size": 128, "ratio": 1.0, "all_layers": True}
    return nncf.compress_weights(made, **options, advanced_parameters=adjust)  # a narrow model has smaller groups
