"""The folder's task: the same answers to inputs given alone and given together."""

from __future__ import annotations

from typing import Any

import torch

from heedful.checkpoints import read_card
from heedful.errors import HeedfulError
from heedful.tasks.pipeline import pipeline
from heedful.verification.report import Outcome, Skipped
from heedful.verification.subject import TEXTS, Subject

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
    inputs = _inputs(next(iter(pipe.task.columns.values())).rstrip("?"), subject)
    options = {"do_sample": False, "max_new_tokens": 12}
    given = {name: value for name, value in options.items() if name in pipe.task.options}
    alone = [pipe(one, **given) for one in inputs]
    batch = pipe(inputs, **given)
    wrong = [one["input"] for one, other in zip(alone, batch, strict=True) if one["output"] != other["output"]]
    if wrong:
        return Outcome(difference=float("inf"), allowed=ALLOWED, reason=f"{wrong[0]!r} gets another answer")
    scores = [(one["score"], other["score"]) for one, other in zip(alone, batch, strict=True)]
    apart = max((abs(a - b) for a, b in scores if a is not None and b is not None), default=0.0)
    return Outcome(difference=apart, allowed=ALLOWED)


def _inputs(kind: str, subject: Subject) -> list[Any]:
    """Texts, or pictures of noise in sizes of their own."""
    if kind != "image":
        return list(subject.texts or TEXTS)
    random = torch.Generator().manual_seed(0)
    sizes = ((28, 28), (40, 30), (64, 64))
    return [torch.randint(256, (*size, 3), generator=random, dtype=torch.uint8).numpy() for size in sizes]
