"""Checks that all programs give the same answer: a benchmark of different work is worth nothing.

A process of its own, asked ``{"folder": ..., "work": ..., "files": [...]}``, answers ``{"apart": [a number a file]}``.

The judge is our plain model in float32, as training leaves it, reading each answer once. The number of a program is

- of greedy tokens: how far the logit of a token that it chose ever lies below the best one, given all that stood
  before, in standard deviations of that position's logits. Choosing at random gives about 4;
- of beams: how far the mean log-probability of a token of its best hypothesis lies below that of the middle one of all
  programs', at worst (a search that rounds may by luck find a better one than all that do not);
- of losses in training: the largest difference from those of our plain model in a bare loop in float32, as a share;
- of states and logits: the largest difference from the judge's, in standard deviations of all of them;
- of an answer of another size: infinite.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import heedful
from benchmarks.speed.steps import adamw, bare, mean_loss, tensors
from benchmarks.speed.worker import serve
from benchmarks.speed.works import Work
from heedful.config import EncoderDecoderConfig
from heedful.models import Model


def numbers(folder: Path, work: Work, answers: list[np.ndarray]) -> list[float]:
    """One for each answer, in order."""
    if work.steps:
        return _losses(folder, work, answers)
    with torch.inference_mode():
        return _answers(folder, work, answers)


def _answers(folder: Path, work: Work, answers: list[np.ndarray]) -> list[float]:
    model = heedful.from_pretrained(folder, dtype="float32")
    given = [torch.from_numpy(answer) for answer in answers]
    shape = (work.batch, work.new or work.longest) if work.action != "vit" else (work.batch,)
    fitting = [place for place, one in enumerate(given) if one.shape[: len(shape)] == shape]
    judge = {"generation": _greedy, "beam": _beam, "encoder": _states, "vit": _logits}[work.action]
    found = dict(zip(fitting, judge(model, work, [given[place] for place in fitting]), strict=True))
    return [found.get(place, math.inf) for place in range(len(given))]


def _greedy(model: Model, work: Work, answers: list[Tensor]) -> list[float]:
    found, prompt = [], torch.from_numpy(work.ids())
    for answer in answers:
        logits = model(torch.cat((prompt, answer), 1)[:, :-1])[:, work.longest - 1 :]
        below = (logits.amax(-1) - logits.gather(-1, answer[..., None])[..., 0]) / logits.std(-1)
        found.append(float(below.max()))
    return found


def _beam(model: Model, work: Work, answers: list[Tensor]) -> list[float]:
    source = torch.from_numpy(work.ids())
    assert isinstance(model.config, EncoderDecoderConfig)
    start, scores = model.config.special.start, list[Tensor]()
    for answer in answers:
        target = torch.nn.functional.pad(answer, (1, 0), value=start)[:, :-1]
        log_p = torch.cat([model(*each).log_softmax(-1) for each in zip(source.split(1), target.split(1), strict=True)])
        scores.append(log_p.gather(-1, answer[..., None])[..., 0].mean(1))  # (B,)
    middle = torch.stack(scores).median(0).values if scores else 0.0
    return [max(0.0, float((middle - own).max())) for own in scores]


def _states(model: Model, work: Work, answers: list[Tensor]) -> list[float]:
    mask = torch.from_numpy(work.mask())
    right = model(torch.from_numpy(work.ids()), mask)[mask]
    return [_apart(answer[mask], right) for answer in answers]


def _logits(model: Model, work: Work, answers: list[Tensor]) -> list[float]:
    right = model(torch.from_numpy(work.pixels()))
    return [_apart(answer, right) for answer in answers]


def _losses(folder: Path, work: Work, answers: list[np.ndarray]) -> list[float]:
    most = max(map(len, answers), default=0)
    if not most:
        return [math.inf] * len(answers)
    batch, model = tensors(work, "cpu"), heedful.from_pretrained(folder, dtype="float32").train()
    right = bare(model, adamw(model), lambda: mean_loss(model, batch), "float32", "cpu", most)().numpy()
    return [float(np.abs(losses / right[: len(losses)] - 1).max()) if losses.size else math.inf for losses in answers]


def _apart(answer: Tensor, right: Tensor) -> float:
    return float((answer - right).abs().max() / right.std())


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """See the head of this file."""
    answers = [np.load(file) for file in asked["files"]]
    return {"apart": numbers(Path(asked["folder"]), Work.told(asked["work"]), answers)}


if __name__ == "__main__":
    serve(answer)
