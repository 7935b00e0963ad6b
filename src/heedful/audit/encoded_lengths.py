"""Checks of encoded examples: lengths, truncation, unknown tokens, examples without a target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from heedful.audit.findings import Finding, place
from heedful.data import Row
from heedful.errors import many
from heedful.tasks.seen import seen
from heedful.tasks.task import Encoded, Task
from heedful.util.escaping import named

READ = 5_000  # examples whose tokens are looked at


def lengths(task: Task, encoded: Encoded) -> Iterator[Finding]:
    """How long the examples are; of several texts by their names."""
    sides = task.lengths(encoded.examples)
    names = [side.name for side in seen(task, task.collate(encoded.examples[:1]))]
    told = []
    for name, side in zip(names, sides.T, strict=False):  # of images there are none
        low, middle, high = np.percentile(side, (5, 50, 95))
        told.append(
            (f"{name} " if len(names) > 1 else "")
            + f"{many(round(middle), 'token')} in the middle, most between {low:.0f} and {high:.0f}, "
            + f"{side.max()} at most"
        )
    if told:
        yield Finding("lengths", "fact", len(sides), "; ".join(told))


def unread(encoded: Encoded) -> Iterator[Finding]:
    """What the task said it cut, split or left out."""
    if encoded.note:
        level: Literal["fact", "warning"] = "warning" if encoded.lost else "fact"
        yield Finding("read", level, encoded.lost, encoded.note, list(map(place, encoded.unread)))


def looked_at(task: Task, encoded: Encoded, most: int = READ) -> Iterator[Finding]:
    """Unknown tokens, and examples in which nothing would be learned; of more than ``most``, so many spread evenly, and
    that they are no more is a finding.
    """
    examples = encoded.examples
    step = max(1, -(-len(examples) // most))
    chosen = range(0, len(examples), step)
    missed, total, lost = 0, 0, []
    strange: dict[str, None] = {}  # where tokens are unknown, each place once
    for i in chosen:
        batch = task.collate([examples[i]])
        sides = seen(task, batch)
        if not sides:
            return  # of images there are no tokens
        for side in sides:
            total += len(side.ids)
            missing = side.tokenizer.unknown
            if missing is not None and missing in side.ids:
                missed += side.ids.count(missing)
                strange[_place(encoded, i)] = None
        if task.count(batch) == 0:
            lost.append(_place(encoded, i))
    of = f" of {len(chosen):,} examples looked at" if step > 1 else ""
    if missed:
        share = 100 * missed / total
        text = f"{many(missed, 'token')}{of} ({share:.2f} %) unknown to the tokenizer"
        text += "; begin anew with --tokenizer.kind bpe, which spells anything" if share > 1 else ""
        yield Finding("unknown", "warning" if share > 1 else "fact", missed, text, list(strange))
    if lost:
        text = f"{many(len(lost))}{of} with nothing to learn: every label is masked; look at what is cut"
        yield Finding("masked", "warning", len(lost), text, lost)
    if step > 1:
        text = f"the tokens of {len(chosen):,} of {len(examples):,} examples were looked at, evenly spread"
        yield Finding("sampled", "fact", len(chosen), text)


def _place(encoded: Encoded, number: int) -> str:
    """Where an example stands, if it is a row or tells which row it is a window of."""
    own = getattr(encoded.examples[number], "row", None)
    if isinstance(own, int):
        return place(encoded.rows[own])
    return place(encoded.rows[number]) if len(encoded.rows) == len(encoded.examples) else f"example {number + 1}"


def shown(task: Task, encoded: Encoded) -> list[str]:
    """Exactly what the model is given of the first example and of the longest, and what is learned of it. Where tokens
    are hidden, that is one draw of many.
    """
    examples, lines = encoded.examples, list[str]()
    longest = int(task.lengths(examples).sum(axis=1).argmax())
    for title, number in {"the first example": 0, "the longest": longest}.items():
        random = np.random.default_rng(0) if "masking" in task.uses else None
        sides = seen(task, task.collate([examples[number]], random))
        if not sides or (lines and number == 0):
            continue
        lines.append(f"{title}, as the model is given it" + ("" if lines else " (learned: ‹next token›, token→label)"))
        for side in sides:
            lines.append(f"  {side.name:<10}{side.line()}")
            if side.learned:
                lines.append(f"  {'':<10}{side.learned:,} of {len(side.ids):,} places are learned from")
        if len(encoded.rows) == len(examples):
            lines += told(task, encoded.rows[number])
    return lines


def told(task: Task, row: Row) -> Iterator[str]:
    """What an example says of its texts: a label, several, or a number."""
    for name, kind in task.columns.items():
        value = row.values.get(name)
        if kind == "label" and value is not None:
            yield f"  {name:<10}{', '.join(map(named, (value,) if isinstance(value, str) else value))}"
        elif isinstance(value, float):
            yield f"  {name:<10}{value:g}"
