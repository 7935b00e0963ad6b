"""A toy run that the tests of training share; as a script, one that can be killed: toy_run.py FOLDER KILL_AT_STEP."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from heedful.training import (
    Checkpoints,
    Evaluation,
    GradientLimits,
    Limits,
    Loader,
    Logging,
    Loop,
    Objective,
    Polynomial,
    Saving,
    adamw,
)
from heedful.training.clock import ReservedTime
from heedful.training.schedule import cosine

LENGTHS = np.random.default_rng(5).integers(2, 9, 60)


class Toy(nn.Module):
    """An embedding, dropout, a batch norm (a buffer that changes) and a tied head: predicts each token from itself."""

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.BatchNorm1d(8)
        self.inner = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.dropout(self.embedding(ids))
        return self.head(self.inner(self.norm(hidden.transpose(1, 2)).transpose(1, 2)))


def collate(indices: np.ndarray, random: np.random.Generator | None = None) -> dict[str, torch.Tensor]:
    longest = int(LENGTHS[indices].max())
    ids = torch.zeros(len(indices), longest, dtype=torch.long)
    for row, index in enumerate(indices):
        ids[row, : LENGTHS[index]] = 1 + (torch.arange(int(LENGTHS[index])) + int(index)) % 10
    return {"ids": ids, "target": ids.roll(1, dims=1)}


def objective(model: nn.Module, batch: Any) -> torch.Tensor:
    logits = model(batch["ids"])
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch["target"].flatten(), ignore_index=0, reduction="sum")


def count(batch: Any) -> int:
    return int((batch["target"] != 0).sum())


def assembled(*, objective: Any, count: Any, evaluate: Any = None, evaluate_part: Any = None, **options: Any) -> Loop:
    """A loop of flat options: ``evaluate`` measures all examples, ``evaluate_part`` a share of them."""

    def take(**names: str) -> dict[str, Any]:
        return {name: options.pop(flat) for name, flat in names.items() if flat in options}

    def measure(step: int, share: float) -> Any:
        return evaluate() if evaluate_part is None or share == 1 else evaluate_part(share)

    named = {name: name for name in ("metric", "margin", "scored", "patience", "latest", "on_better", "samples")}
    evaluation, checkpoints = take(every="evaluate_every", **named), options.pop("checkpoints", None)
    saving = take(every="save_every", stored="stored")
    return Loop(
        objective=Objective(loss=objective, count=count),
        evaluation=None if evaluate is None else Evaluation(measure=measure, **evaluation),
        saving=None if checkpoints is None else Saving(checkpoints=checkpoints, **saving),
        logging=Logging(**take(log="log", every="log_every")),
        gradient_limits=GradientLimits(**take(clip="clip", skip_spikes="skip_spikes")),
        reserved=ReservedTime(**take(beginning="beginning", evaluation="evaluation_seconds", ending="ending")),
        **options,
    )


def loop(folder: Path | None = None, *, at: Callable[[int], None] | None = None, **options: Any) -> Loop:
    """A run of 20 steps over two epochs and more, with dropout, accumulation, averaging and evaluations every 4 steps.

    ``at(step)`` is called in each forward pass, with the number of the step in flight.
    """
    torch.manual_seed(0)
    model = Toy()
    average = options.pop("average", Polynomial(model))
    loader = options.pop("loader", Loader(LENGTHS, collate, tokens=24, accumulate=2, seed=1))

    def learn(model: nn.Module, batch: Any) -> torch.Tensor:
        if at is not None:
            at(made.step + 1)
        return objective(model, batch)

    def evaluate() -> dict[str, float]:
        torch.rand(3)  # evaluation may draw at random: training must not feel it
        batch = collate(np.arange(10))
        return {"loss": float(objective(model, batch)) / count(batch)}

    settings: dict[str, Any] = {
        "objective": learn,
        "count": count,
        "schedule": cosine(3),
        "limits": Limits(max_steps=20),
        "evaluate": evaluate,
        "evaluate_every": 4,
        "patience": 50,
        "save_every": 3,
        "log_every": 5,
        "checkpoints": None if folder is None else Checkpoints(folder),
    }
    made = assembled(
        model=model,
        loader=loader,
        optimiser=adamw(model, lr=0.02),
        average=average,
        **{**settings, **options},
    )
    return made


def main() -> None:
    folder, last = Path(sys.argv[1]), int(sys.argv[2])

    def kill(step: int) -> None:
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    loop(folder, at=kill).fit()


if __name__ == "__main__":
    main()
