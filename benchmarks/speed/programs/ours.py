"""Ours: the model made ready for answering, as ``heedful.pipeline`` makes it; plain, as training leaves it."""

from __future__ import annotations

from typing import Any

import torch

import heedful
from benchmarks.speed.programs import Call, Ready, Setting
from benchmarks.speed.works import Work
from heedful.inference import prepare
from heedful.models import Model


def opened(at: Setting) -> Model:
    """The model, prepared unless it is to be measured plain."""
    if at.way == "plain":
        return heedful.from_pretrained(at.model, dtype=at.precision, device=at.device)
    return prepare(heedful.from_pretrained(at.model, device=at.device), at.precision)


def generation(at: Setting) -> Ready:
    """Greedy tokens."""
    model = opened(at)

    def ready(work: Work) -> Call:
        ids = torch.from_numpy(work.ids()).to(at.device)
        return lambda: model.generate(ids, max_new_tokens=work.new, min_new_tokens=work.new)[:, -work.new :]

    return ready


def beam(at: Setting) -> Ready:
    """The best beam."""
    model = opened(at)

    def ready(work: Work) -> Call:
        ids = torch.from_numpy(work.ids()).to(at.device)
        options: dict[str, Any] = {"max_new_tokens": work.new, "min_new_tokens": work.new, "num_beams": work.beams}
        return lambda: model.generate(ids, **options)[:, -work.new :]

    return ready


def encoder(at: Setting) -> Ready:
    """The last hidden states."""
    model = opened(at)

    def ready(work: Work) -> Call:
        ids, mask = (torch.from_numpy(part).to(at.device) for part in (work.ids(), work.mask()))
        return torch.inference_mode()(lambda: model(ids, mask))

    return ready


def vit(at: Setting) -> Ready:
    """The logits."""
    model = opened(at)
    dtype = torch.bfloat16 if at.precision == "bfloat16" else torch.float32

    def ready(work: Work) -> Call:
        pixels = torch.from_numpy(work.pixels()).to(at.device, dtype)
        return torch.inference_mode()(lambda: model(pixels))

    return ready
