"""The same answer alone, padded on the left, on the right, and in a mixed batch."""

from __future__ import annotations

import torch

from heedful.config import VisionConfig
from heedful.verify.greedy import need_language_head, new_tokens, plain, prompts
from heedful.verify.inputs import Side, distance, draw, output, pack, real_rows
from heedful.verify.report import Outcome, Skipped
from heedful.verify.verified_folder import Subject

ALLOWED = 1e-10  # of the largest value, in float64
SHARES = (1.0, 0.5, 0.8, 0.2)  # lengths of rows, of the longest


def padded(subject: Subject, side: Side) -> Outcome:
    """How far the answers of rows padded together are from those of each row alone."""
    config = subject.config
    images = isinstance(config, VisionConfig)
    if images and side != "mixed":
        raise Skipped("images have no padding")
    model, pad = subject.model(torch.float64), None if isinstance(config, VisionConfig) else config.special.pad
    rows = draw(config, SHARES)
    call = pack(rows, "none" if images else side, pad)
    together = real_rows(output(model, call), call, config)
    alone = [output(model, pack([row], "none", pad))[0] for row in rows]
    return Outcome(difference=distance(together, alone), allowed=ALLOWED)


def generated(subject: Subject) -> Outcome:
    """How many rows get other greedy tokens in a batch, padded on either side, than alone."""
    need_language_head(subject)
    model, count = subject.model(torch.float64), new_tokens(subject)
    rows = prompts(subject)
    alone = [plain(model, row[None], None, count)[0].tolist() for row in rows]
    wrong = set()
    for side in ("left", "right"):
        width = max(map(len, rows))
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros_like(ids, dtype=torch.bool)
        for number, row in enumerate(rows):
            start = width - len(row) if side == "left" else 0
            ids[number, start : start + len(row)], mask[number, start : start + len(row)] = row, True
        made = plain(model, ids, mask, count)
        wrong |= {n for n, ids in enumerate(alone) if made[n, : len(ids)].tolist() != ids}
    reason = f"rows {', '.join(map(str, sorted(wrong)))}" if wrong else ""
    return Outcome(difference=float(len(wrong)), allowed=0.0, reason=reason)
