"""x-transformers: its encoder with the sizes of BERT-base and weights of its own, which leaves its answers unjudged."""

from __future__ import annotations

import json

import torch

from benchmarks.speed.programs import Call, Ready, Setting, need
from benchmarks.speed.works import Work


def encoder(at: Setting) -> Ready:
    """The last hidden states, of other weights."""
    need("x_transformers")
    import x_transformers

    told = json.loads((at.model / "config.json").read_text())
    stack = x_transformers.Encoder(
        dim=told["hidden_size"],
        depth=told["num_hidden_layers"],
        heads=told["num_attention_heads"],
        attn_flash=True,
    )
    sizes = {"num_tokens": told["vocab_size"], "max_seq_len": told["max_position_embeddings"]}
    model = x_transformers.TransformerWrapper(**sizes, attn_layers=stack)
    model = model.eval().to(at.device, getattr(torch, at.precision))

    def ready(work: Work) -> Call:
        ids, mask = (torch.from_numpy(part).to(at.device) for part in (work.ids(), work.mask()))
        return torch.inference_mode()(lambda: model(ids, mask=mask, return_embeddings=True))

    return ready
