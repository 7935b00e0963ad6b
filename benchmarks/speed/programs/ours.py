"""Ours: as ``heedful.pipeline`` optimises a model; uncompiled, without ``compiled_decoding``; plain, not optimised.

Training is ``heedful train``'s: the task's own objective in our ``Loop``, or in a bare loop.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import heedful
from benchmarks.speed.programs import Call, Ready, Setting
from benchmarks.speed.steps import BETAS, CLIP, DECAY, EPS, RATE, Losses, bare, tensors
from benchmarks.speed.works import Work
from heedful import tasks
from heedful.kernels.plan import apply_training_plan
from heedful.models import Model
from heedful.optimize_model import optimize
from heedful.pretrained.fill_model import align_weights
from heedful.training import Limits, Loader, Loop, adamw
from heedful.training.guard import GradientLimits
from heedful.training.loop_parts import Objective
from heedful.training.schedule import constant

TASKS = {
    "gpt2": "text-generation",
    "llama": "text-generation",
    "pair": "translation",
    "bert": "text-classification",
    "deberta": "text-classification",
    "vit": "image-classification",
}


def opened(at: Setting) -> Model:
    """The model, optimised unless it is to be measured plain."""
    if at.way == "plain":
        return heedful.from_pretrained(at.model, dtype=at.precision, device=at.device)
    model = heedful.from_pretrained(at.model, device=at.device)
    optimize(model, at.precision, compiled_decoding=at.way != "uncompiled")
    if model.compiling is not None:  # the first time on a machine
        model.compiling.thread.join()
        model.begin_call()
    return model


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


def training(at: Setting) -> Ready:
    """The losses of the first steps, in our loop or in a bare one."""
    model = heedful.from_pretrained(at.model, dtype="float32", device=at.device).train()
    align_weights(model)
    apply_training_plan(model)
    task = tasks.get(TASKS[at.model.name.partition("-")[0]]).load(at.model)
    optimiser = adamw(model, lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY)

    def ready(work: Work) -> Call:
        batch = tensors(work, "cpu")
        if at.way == "bare loop":
            whole = {name: part.to(at.device) for name, part in batch.items()}
            count = task.count(whole)
            return bare(
                model, optimiser, lambda: task.objective(model, whole) / count, at.precision, at.device, work.steps
            )
        losses = Losses()

        def collate(places: np.ndarray, random: np.random.Generator) -> dict[str, Tensor]:
            order = torch.from_numpy(places)
            return {name: part[order] for name, part in batch.items()}

        def objective(model: Model, batch: dict[str, Tensor]) -> Tensor:
            loss = task.objective(model, batch)
            losses.keep(loss.item() / task.count(batch))
            return loss

        longest = max(work.longest, 1)
        lengths = work.lengths if work.longest else np.ones(work.batch, dtype=np.int64)
        loop = partial(
            Loop,
            model=model,
            objective=Objective(loss=objective, count=task.count),
            loader=Loader(lengths, collate, tokens=work.batch * longest),
            optimiser=optimiser,
            schedule=constant(),
            gradient_limits=GradientLimits(clip=CLIP),
            precision="bf16" if at.precision == "bfloat16" else "fp32",
        )

        def call() -> Tensor:
            loop(limits=Limits(max_steps=work.steps)).fit()
            return losses.told()

        return call

    return ready
