"""nanoGPT's model.py, from a folder. It keeps no cache; with GPT-2's weights, its ``top_k`` of 1 is greedy."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from benchmarks.speed.programs import Absent, Call, Ready, Setting
from benchmarks.speed.steps import BETAS, DECAY, RATE, bare, tensors
from benchmarks.speed.works import Work

STORED_ACROSS = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


def opened(at: Setting) -> nn.Module:
    """The model, with GPT-2's weights put into it."""
    if at.nanogpt is None:
        raise Absent("give its folder with --nanogpt (github.com/karpathy/nanoGPT)")
    sys.path.insert(0, at.nanogpt)
    theirs = importlib.import_module("model")
    sys.path.remove(at.nanogpt)
    told = json.loads((at.model / "config.json").read_text())
    sizes = {name: told[name] for name in ("n_layer", "n_head", "n_embd", "vocab_size")}
    stored = {}
    for name, tensor in load_file(at.model / "model.safetensors").items():
        full = name if name.startswith("transformer.") else f"transformer.{name}"
        stored[full] = tensor.t() if name.endswith(STORED_ACROSS) else tensor
    with contextlib.redirect_stdout(io.StringIO()):
        model = theirs.GPT(
            theirs.GPTConfig(**sizes, block_size=told["n_positions"], dropout=told["resid_pdrop"], bias=True)
        )
    missing, unexpected = model.load_state_dict({**stored, "lm_head.weight": stored["transformer.wte.weight"]}, False)
    assert not unexpected, unexpected
    assert all(name.endswith("attn.bias") for name in missing), missing
    return model.to(at.device)


def generation(at: Setting) -> Ready:
    """Greedy tokens."""
    model: Any = opened(at).eval()

    def ready(work: Work) -> Call:
        ids = torch.from_numpy(work.ids()).to(at.device)
        return lambda: model.generate(ids, work.new, top_k=1)[:, -work.new :]

    return ready


def training(at: Setting) -> Ready:
    """The losses of the first steps, with the optimiser that it chooses."""
    model: Any = opened(at).train()
    with contextlib.redirect_stdout(io.StringIO()):
        optimiser = model.configure_optimizers(DECAY, RATE, BETAS, at.device.partition(":")[0])

    def ready(work: Work) -> Call:
        batch = tensors(work, at.device)

        def loss() -> Tensor:
            return model(batch["ids"], batch["labels"])[1]

        return bare(model, optimiser, loss, at.precision, at.device, work.steps)

    return ready
