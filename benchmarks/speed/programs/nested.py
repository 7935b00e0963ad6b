"""``torch.nn.TransformerEncoder`` on its fast path: nested tensors, no work on padding; the weights are put into it."""

from __future__ import annotations

import json
import warnings

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from benchmarks.speed.programs import Call, Ready, Setting
from benchmarks.speed.works import Work

NAMES = {  # of a layer of PyTorch's: of the same in BERT's file
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
    "norm2": "output.LayerNorm",
}


class Encoder(nn.Module):
    """BERT: embeddings and norm, then PyTorch's own stack."""

    def __init__(self, at: Setting) -> None:
        super().__init__()
        told = json.loads((at.model / "config.json").read_text())
        stored = {name.removeprefix("bert."): x for name, x in load_file(at.model / "model.safetensors").items()}
        dim, eps = told["hidden_size"], told["layer_norm_eps"]
        self.tokens, self.positions, self.segments = (
            nn.Embedding.from_pretrained(stored[f"embeddings.{name}_embeddings.weight"])
            for name in ("word", "position", "token_type")
        )
        self.norm = nn.LayerNorm(dim, eps)
        layer = nn.TransformerEncoderLayer(
            dim, told["num_attention_heads"], told["intermediate_size"], 0.0, "gelu", eps, batch_first=True
        )
        self.stack = nn.TransformerEncoder(layer, told["num_hidden_layers"], enable_nested_tensor=True)
        weights = {f"norm.{part}": stored[f"embeddings.LayerNorm.{part}"] for part in ("weight", "bias")}
        for n in range(told["num_hidden_layers"]):
            own, theirs = f"stack.layers.{n}", f"encoder.layer.{n}"
            for part in ("weight", "bias"):
                three = [stored[f"{theirs}.attention.self.{name}.{part}"] for name in ("query", "key", "value")]
                weights[f"{own}.self_attn.in_proj_{part}"] = torch.cat(three)
                weights |= {f"{own}.{a}.{part}": stored[f"{theirs}.{b}.{part}"] for a, b in NAMES.items()}
        kept = {name: x for name, x in self.state_dict().items() if name.partition(".")[0] not in ("norm", "stack")}
        self.load_state_dict({**kept, **weights})

    def forward(self, ids: Tensor, padding: Tensor | None) -> Tensor:
        """Hidden states (B, T, D) of ids (B, T); ``padding`` (B, T) is True where there is none."""
        x = self.tokens(ids) + self.positions.weight[: ids.size(1)] + self.segments.weight[0]
        return self.stack(self.norm(x), src_key_padding_mask=padding)


def encoder(at: Setting) -> Ready:
    """The last hidden states."""
    warnings.simplefilter("ignore")  # nested tensors are called a prototype
    model = Encoder(at).eval().to(at.device, getattr(torch, at.precision))

    def ready(work: Work) -> Call:
        ids, mask = (torch.from_numpy(part).to(at.device) for part in (work.ids(), work.mask()))
        padding = None if mask.all() else ~mask
        return torch.inference_mode()(lambda: model(ids, padding))

    return ready
