"""Checks of encoded examples: lengths, truncation, unknown tokens, examples without a target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from heedful.audit.findings import Finding, location
from heedful.data import Row
from heedful.errors import plural
from heedful.tasks.task import Encoded, Task
from heedful.util.escaping import named

MAX_EXAMPLES = 5_000  # examples whose tokens are checked


def check_lengths(task: Task, encoded: Encoded) -> Iterator[Finding]:
    """Yields findings on the lengths of the examples in tokens: for each text if an example has several."""
    sides = task.lengths(encoded.examples)
    names = [side.name for side in task.sides(task.collate(encoded.examples[:1]))]
    descriptions = []
    for name, side in zip(names, sides.T, strict=False):  # images have none
        low, middle, high = np.percentile(side, (5, 50, 95))
        descriptions.append(
            (f"{name} " if len(names) > 1 else "")
            + f"median {plural(round(middle), 'token')}, 90 % between {low:.0f} and {high:.0f}, "
            + f"maximum {side.max()}"
        )
    if descriptions:
        yield Finding("lengths", "fact", len(sides), "; ".join(descriptions))


def check_truncation(encoded: Encoded) -> Iterator[Finding]:
    """Yields findings on how many examples the task truncated, split or left out, else what it says of them."""
    if encoded.note:
        level: Literal["fact", "warning"] = "warning" if encoded.lost else "fact"
        name = "truncation" if encoded.lost else "examples"
        yield Finding(name, level, encoded.lost, encoded.note, list(map(location, encoded.unread)))


def check_tokens(task: Task, encoded: Encoded, max_examples: int = MAX_EXAMPLES) -> Iterator[Finding]:
    """Yields findings on unknown tokens, and examples without a target.

    Checks at most ``max_examples`` examples, evenly spaced; if there are more examples, reports how many were checked.
    """
    examples = encoded.examples
    step = max(1, -(-len(examples) // max_examples))
    chosen = range(0, len(examples), step)
    unknown, total, without_target = 0, 0, []
    places: dict[str, None] = {}  # of unknown tokens, without repetition
    for i in chosen:
        batch = task.collate([examples[i]])
        sides = task.sides(batch)
        if not sides:
            return  # images have no tokens
        for side in sides:
            total += len(side.ids)
            unknown_id = side.tokenizer.unknown
            if unknown_id is not None and unknown_id in side.ids:
                unknown += side.ids.count(unknown_id)
                places[_example_location(encoded, i)] = None
        if task.count(batch) == 0:
            without_target.append(_example_location(encoded, i))
    of = f" of {len(chosen):,} examples checked" if step > 1 else ""
    if unknown:
        share = 100 * unknown / total
        text = f"{plural(unknown, 'token')}{of} ({share:.2f} %) unknown to the tokenizer"
        remedy = task.unknown_remedy if share > 1 else None
        text += f"; {remedy}" if remedy else ""
        yield Finding("unknown", "warning" if remedy else "fact", unknown, text, list(places))
    if without_target:
        text = f"{plural(len(without_target))}{of} without a target: every label is masked; "
        text += "raise --data.max-length, or shorten the inputs"
        yield Finding("no target", "warning", len(without_target), text, without_target)
    if step > 1:
        text = f"the tokens of {len(chosen):,} of {len(examples):,} examples were checked, evenly spaced"
        yield Finding("sampled", "fact", len(chosen), text)


def _example_location(encoded: Encoded, number: int) -> str:
    """Returns the location of an example's row, or its number if its row is unknown."""
    row = getattr(encoded.examples[number], "row", None)
    if isinstance(row, int):
        return location(encoded.rows[row])
    return location(encoded.rows[number]) if len(encoded.rows) == len(encoded.examples) else f"example {number + 1}"


def text_sample(task: Task, encoded: Encoded) -> list[str]:
    """Returns lines that show the model's exact inputs and targets for the first and for the longest example.

    Masked tokens are drawn at random, once.
    """
    examples, lines = encoded.examples, list[str]()
    longest = int(task.lengths(examples).sum(axis=1).argmax())
    for title, number in {"the first example": 0, "the longest": longest}.items():
        random = np.random.default_rng(0) if "masking" in task.used_settings else None
        sides = task.sides(task.collate([examples[number]], random))
        if not sides or (lines and number == 0):
            continue
        lines.append(f"{title}, as the model gets it" + ("" if lines else " (targets: ‹next token›, token→label)"))
        for side in sides:
            lines.append(f"  {side.name:<10}{side.line()}")
            if side.target_count:
                lines.append(f"  {'':<10}{side.target_count:,} of {len(side.ids):,} positions have a target")
        if len(encoded.rows) == len(examples):
            lines += label_lines(task, encoded.rows[number])
    return lines


def label_lines(task: Task, row: Row) -> Iterator[str]:
    """Yields a line for each label or number of an example."""
    for name, kind in task.columns.items():
        value = row.values.get(name)
        if kind == "label" and value is not None:
            yield f"  {name:<10}{', '.join(map(named, (value,) if isinstance(value, str) else value))}"
        elif isinstance(value, float):
            yield f"  {name:<10}{value:g}"
