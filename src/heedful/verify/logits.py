"""Logits, or whatever the head gives, against ``transformers``: on random ids, unpadded and padded."""

from __future__ import annotations

import torch

from heedful.verify import inputs
from heedful.verify import reference as theirs
from heedful.verify.inputs import Call, draw, pack, real_rows
from heedful.verify.report import Outcome
from heedful.verify.verified_folder import Subject

ALLOWED = {torch.float64: 1e-10, torch.float32: 1e-5}  # of the largest value
EVEN, RAGGED = (1.0, 1.0, 1.0), (1.0, 0.6, 0.3, 0.1)  # lengths of rows, of the longest


def against_transformers(subject: Subject, dtype: torch.dtype) -> Outcome:
    """The largest difference in a type, over all the paddings that both can take."""
    theirs.need_their_layout(subject)
    config = subject.config
    pad = config.special.pad if hasattr(config, "special") else None
    with theirs.quiet() as transformers:
        ours, other = subject.model(dtype), theirs.reference(transformers, subject, dtype)
        sides, left_out = theirs.sides(other, config)
        worst = 0.0
        for side in sides:
            call = pack(draw(config, EVEN if side == "none" else RAGGED), side, pad)
            found, wanted = inputs.output(ours, call), theirs.output(other, call, config)
            worst = max(worst, inputs.distance(real_rows(found, call, config), real_rows(wanted, call, config)))
    return Outcome(difference=worst, allowed=ALLOWED[dtype], reason=left_out)


def of_the_saved(subject: Subject) -> Outcome:
    """How far what ``transformers`` answers from the folder is from what it answers from the folder saved again."""
    theirs.need_their_layout(subject)
    config = subject.config
    call: Call = pack(draw(config, EVEN), "none", None)
    with theirs.quiet() as transformers:
        other = theirs.reference(transformers, subject, torch.float32)
        again = theirs.opened(transformers, subject.saved, torch.float32)
        wanted, found = (theirs.output(model, call, config) for model in (other, again))
    return Outcome(difference=inputs.distance(list(found), list(wanted)), allowed=0.0)
