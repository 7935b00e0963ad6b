"""The table of checks: what is proved of a folder, in this order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from heedful.verify import answers, caching, greedy, logits, padding, round_trip, tokens
from heedful.verify.report import Outcome
from heedful.verify.verified_folder import Subject


class Check(NamedTuple):
    """A name, what it shows when it holds, and how it is made."""

    name: str
    what: str
    make: Callable[[Subject], Outcome]


CHECKS = (
    Check("round trip", "opened, saved, opened: the same tensors and configuration", round_trip.reopened),
    Check("stored tensors", "saved again, the files' tensors are the same bits", round_trip.stored_again),
    Check("logits, float64", "as transformers gives them", partial(logits.against_transformers, dtype=torch.float64)),
    Check("logits, float32", "as transformers gives them", partial(logits.against_transformers, dtype=torch.float32)),
    Check("saved logits", "transformers opens what is saved: the same logits", logits.of_the_saved),
    Check("greedy text", "as transformers generates it, token by token", greedy.against_transformers),
    Check("token ids", "as AutoTokenizer gives them", tokens.against_transformers),
    Check("padded left", "a row answers as it does alone", partial(padding.padded, side="left")),
    Check("padded right", "a row answers as it does alone", partial(padding.padded, side="right")),
    Check("mixed batch", "a row answers as it does alone", partial(padding.padded, side="mixed")),
    Check("batched text", "greedy text is the same as alone", padding.generated),
    Check("cached", "token by token as all at once", caching.cached),
    Check("answers", "the task answers a batch as it does each alone", answers.together),
)
