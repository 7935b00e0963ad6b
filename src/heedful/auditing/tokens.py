"""What the model would be given of the data: lengths, cuts, unknown tokens, rows in which nothing is learned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from heedful.auditing.finding import Finding, place
from heedful.errors import many
from heedful.tasks.seen import seen
from heedful.tasks.task import Encoded, Task

READ = 5_000  # examples whose tokens are looked at


def lengths(task: Task, encoded: Encoded) -> Iterator[Finding]:
    """How long the examples are, and what the task said it cut, split or left out."""
    sides = task.lengths(encoded.examples)
    told = []
    for side in sides.T:
        low, middle, high = np.percentile(side, (5, 50, 95))
        told.append(
            f"{many(round(middle), 'token')} in the middle, most between {low:.0f} and {high:.0f}, {side.max()} at most"
        )
    yield Finding("lengths", "fact", len(sides), "; ".join(told))
    if encoded.note:
        yield Finding("read", "warning" if encoded.lost else "fact", encoded.lost, encoded.note)


def looked_at(task: Task, encoded: Encoded, most: int = READ) -> Iterator[Finding]:
    """Unknown tokens, and examples in which nothing would be learned; of more than ``most``, so many spread evenly."""
    examples = encoded.examples
    step = max(1, -(-len(examples) // most))
    chosen = range(0, len(examples), step)
    unknown, total, lost = Counter[str](), 0, []
    for i in chosen:
        batch = task.collate([examples[i]])
        sides = seen(task, batch)
        if not sides:
            return  # of images there are no tokens
        for side in sides:
            total += len(side.ids)
            missing = side.tokenizer.unknown
            unknown[side.name] += 0 if missing is None else side.ids.count(missing)
        if task.count(batch) == 0:
            lost.append(_place(encoded, i))
    of = f" of {len(chosen):,} examples looked at" if step > 1 else ""
    missed = sum(unknown.values())
    if missed:
        share = 100 * missed / total
        text = f"{many(missed, 'token')}{of} ({share:.2f} %) unknown to the tokenizer"
        text += "; begin anew with --tokenizer.kind bpe, which spells anything" if share > 1 else ""
        yield Finding("unknown", "warning" if share > 1 else "fact", missed, text)
    if lost:
        text = f"{many(len(lost))}{of} with nothing to learn: every label is masked; look at what is cut"
        yield Finding("masked", "warning", len(lost), text, lost)


def _place(encoded: Encoded, number: int) -> str:
    """Where an example stands, if examples are rows."""
    return place(encoded.rows[number]) if len(encoded.rows) == len(encoded.examples) else f"example {number + 1}"


def shown(task: Task, encoded: Encoded) -> list[str]:
    """Exactly what the model is given of the first example and of the longest, and what is learned of it."""
    examples, lines = encoded.examples, list[str]()
    longest = int(task.lengths(examples).sum(axis=1).argmax())
    for title, number in {"the first example": 0, "the longest": longest}.items():
        sides = seen(task, task.collate([examples[number]]))
        if not sides or (lines and number == 0):
            continue
        lines.append(f"{title}, as the model is given it" + ("" if lines else " (learned: ‹next token›, token→label)"))
        for side in sides:
            lines.append(f"  {side.name:<10}{side.line()}")
            if side.learned:
                lines.append(f"  {'':<10}{side.learned:,} of {len(side.ids):,} places are learned from")
        if len(encoded.rows) == len(examples):
            said = (encoded.rows[number].values[name] for name, kind in task.columns.items() if kind == "label")
            lines += [f"  {'label':<10}{each if isinstance(each, str) else ', '.join(each)}" for each in said]
    return lines
