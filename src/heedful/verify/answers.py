"""The folder's task: the same answers to inputs given alone and given together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from heedful.errors import HeedfulError
from heedful.inference.pipeline import pipeline
from heedful.pretrained import read_card
from heedful.verify.report import Outcome, Skipped
from heedful.verify.verified_folder import TEXTS, Subject

ALLOWED = 1e-4  # of scores, which are probabilities


def together(subject: Subject) -> Outcome:
    """The largest difference of a score; infinite where an output itself is another."""
    told = subject.task or read_card(subject.folder).get("task")
    try:
        pipe = pipeline(told, subject.folder, device="cpu", dtype="float32")
    except HeedfulError as error:
        if told is not None:
            raise
        raise Skipped(f"no task answers with it ({str(error).partition(';')[0]})") from None
    images = "image" in pipe.task.columns.values()
    inputs = _noise() if images else pipe.task.trial(subject.texts or TEXTS)
    options = {"do_sample": False, "max_new_tokens": 12}
    given = {name: value for name, value in options.items() if name in pipe.task.options}
    alone = [pipe(one, **given) for one in inputs]
    batch = pipe(inputs, **given)
    apart = 0.0
    for one, other in zip(alone, batch, strict=True):
        output = difference(one["output"], other["output"])
        if output > ALLOWED:
            return Outcome(difference=output, allowed=ALLOWED, reason=f"{one['input']!r} gets another answer")
        apart = max(apart, output, difference(one["score"], other["score"]))
    return Outcome(difference=apart, allowed=ALLOWED)


def difference(one: Any, other: Any) -> float:
    """The largest difference of two numbers at the same place in two answers; infinite where anything else differs.

    >>> difference([{"label": "x", "score": 0.5}], [{"label": "x", "score": 0.25}]), difference("a", "b")
    (0.25, inf)
    """
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return max((difference(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        return max((difference(one[name], other[name]) for name in one), default=0.0)
    return 0.0 if one == other else float("inf")


def _noise() -> list[Any]:
    """Pictures of noise in sizes of their own."""
    sizes = ((28, 28), (40, 30), (64, 64))
    random = torch.Generator().manual_seed(0)
    return [torch.randint(256, (*size, 3), generator=random, dtype=torch.uint8).numpy() for size in sizes]
