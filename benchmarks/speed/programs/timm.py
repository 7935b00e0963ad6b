"""timm's vision transformer; the weights are put into it under its own names."""

from __future__ import annotations

import json
from functools import partial

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from benchmarks.speed.programs import Call, Ready, Setting, need
from benchmarks.speed.steps import adamw, bare, tensors
from benchmarks.speed.works import Work

NAMES = {  # of a block of timm's: of the same in Hugging Face's file
    "norm1": "layernorm_before",
    "attn.proj": "attention.output.dense",
    "norm2": "layernorm_after",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}


def renamed(stored: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
    """Hugging Face's tensors as timm names them; queries, keys and values are one there."""
    made = {
        "cls_token": stored["vit.embeddings.cls_token"],
        "pos_embed": stored["vit.embeddings.position_embeddings"],
    }
    for part in ("weight", "bias"):
        made[f"patch_embed.proj.{part}"] = stored[f"vit.embeddings.patch_embeddings.projection.{part}"]
        made[f"norm.{part}"], made[f"head.{part}"] = stored[f"vit.layernorm.{part}"], stored[f"classifier.{part}"]
        for n in range(depth):
            own, theirs = f"blocks.{n}", f"vit.encoder.layer.{n}"
            three = [stored[f"{theirs}.attention.attention.{name}.{part}"] for name in ("query", "key", "value")]
            made[f"{own}.attn.qkv.{part}"] = torch.cat(three)
            made |= {f"{own}.{a}.{part}": stored[f"{theirs}.{b}.{part}"] for a, b in NAMES.items()}
    return made


def opened(at: Setting) -> nn.Module:
    """The model, with the weights put into it."""
    need("timm")
    from timm.models.vision_transformer import VisionTransformer

    told = json.loads((at.model / "config.json").read_text())
    stored = load_file(at.model / "model.safetensors")
    model = VisionTransformer(
        img_size=told["image_size"],
        patch_size=told["patch_size"],
        num_classes=len(stored["classifier.bias"]),
        embed_dim=told["hidden_size"],
        depth=told["num_hidden_layers"],
        num_heads=told["num_attention_heads"],
        mlp_ratio=told["intermediate_size"] / told["hidden_size"],
        norm_layer=partial(nn.LayerNorm, eps=told["layer_norm_eps"]),
    )
    model.load_state_dict(renamed(stored, told["num_hidden_layers"]))
    return model.to(at.device)


def vit(at: Setting) -> Ready:
    """The logits."""
    model = opened(at).eval().to(getattr(torch, at.precision))

    def ready(work: Work) -> Call:
        pixels = torch.from_numpy(work.pixels()).to(at.device, getattr(torch, at.precision))
        return torch.inference_mode()(lambda: model(pixels))

    return ready


def training(at: Setting) -> Ready:
    """The losses of the first steps in a bare loop."""
    model = opened(at).train()
    optimiser = adamw(model)

    def ready(work: Work) -> Call:
        batch = tensors(work, at.device)

        def loss() -> Tensor:
            return F.cross_entropy(model(batch["pixels"]).float(), batch["labels"])

        return bare(model, optimiser, loss, at.precision, at.device, work.steps)

    return ready
