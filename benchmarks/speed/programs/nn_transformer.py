"""``torch.nn.Transformer`` between embeddings and a tied head, as PyTorch's own tutorial has it; weights are put in."""

from __future__ import annotations

import json

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from benchmarks.speed.programs import Call, Ready, Setting
from benchmarks.speed.steps import adamw, bare, tensors
from benchmarks.speed.works import IGNORED, Work

# of a layer of PyTorch's: of the same in Marian's file
ENCODER = {"norm1": "self_attn_layer_norm", "linear1": "fc1", "linear2": "fc2", "norm2": "final_layer_norm"}
DECODER = {**ENCODER, "norm2": "encoder_attn_layer_norm", "norm3": "final_layer_norm"}
ATTENTION = {"self_attn": "self_attn", "multihead_attn": "encoder_attn"}


class Translator(nn.Module):
    """The paper's model, sines before cosines, with one embedding for source, target and output."""

    def __init__(self, at: Setting) -> None:
        super().__init__()
        told = json.loads((at.model / "config.json").read_text())
        stored = {name.removeprefix("model."): x for name, x in load_file(at.model / "model.safetensors").items()}
        dim, depth, heads = told["d_model"], told["encoder_layers"], told["encoder_attention_heads"]
        sizes = (dim, heads, told["encoder_ffn_dim"], 0.0)
        self.embedding = nn.Embedding.from_pretrained(stored["shared.weight"], freeze=False)
        self.register_buffer("places", sines(told["max_position_embeddings"], dim), persistent=False)
        self.body = nn.Transformer(
            dim,
            heads,
            custom_encoder=nn.TransformerEncoder(
                nn.TransformerEncoderLayer(*sizes, batch_first=True), depth, enable_nested_tensor=False
            ),
            custom_decoder=nn.TransformerDecoder(nn.TransformerDecoderLayer(*sizes, batch_first=True), depth),
            batch_first=True,
        )
        weights = {}
        for side, names in (("encoder", ENCODER), ("decoder", DECODER)):
            for n in range(depth):
                own, theirs = f"body.{side}.layers.{n}", f"{side}.layers.{n}"
                for part in ("weight", "bias"):
                    weights |= {f"{own}.{a}.{part}": stored[f"{theirs}.{b}.{part}"] for a, b in names.items()}
                    for a, b in ATTENTION.items():
                        if f"{theirs}.{b}.q_proj.{part}" in stored:
                            three = [stored[f"{theirs}.{b}.{one}_proj.{part}"] for one in "qkv"]
                            weights[f"{own}.{a}.in_proj_{part}"] = torch.cat(three)
                            weights[f"{own}.{a}.out_proj.{part}"] = stored[f"{theirs}.{b}.out_proj.{part}"]
        self.load_state_dict({"embedding.weight": stored["shared.weight"], **weights})

    def read(self, ids: Tensor) -> Tensor:
        """(B, T) → (B, T, D)."""
        return self.embedding(ids) * self.embedding.embedding_dim**0.5 + self.places[: ids.size(1)]

    def forward(self, source: Tensor, target: Tensor, padding: Tensor) -> Tensor:
        """Logits (B, T, V); ``padding`` (B, S) is True where there is no source."""
        causal = nn.Transformer.generate_square_subsequent_mask(target.size(1), device=target.device, dtype=torch.bool)
        told = {"tgt_mask": causal, "tgt_is_causal": True}
        told |= {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
        return F.linear(self.body(self.read(source), self.read(target), **told), self.embedding.weight)


def sines(length: int, dim: int) -> Tensor:
    """(length, dim): sines of all frequencies, then cosines."""
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, dim, 2)[None] / dim)
    return torch.cat((angles.sin(), angles.cos()), 1)


def training(at: Setting) -> Ready:
    """The losses of the first steps in a bare loop."""
    model = Translator(at).train().to(at.device)
    optimiser = adamw(model)

    def ready(work: Work) -> Call:
        batch = tensors(work, at.device)
        padding = ~batch["source_mask"]

        def loss() -> Tensor:
            logits = model(batch["source"], batch["target"], padding)
            return F.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten(), ignore_index=IGNORED)

        return bare(model, optimiser, loss, at.precision, at.device, work.steps)

    return ready
