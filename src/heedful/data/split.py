"""Holding rows back for validation without letting a text stand on both sides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b

from heedful.data.rows import Row
from heedful.errors import HeedfulError

FRACTION, MOST = 0.05, 2000  # auto: enough to measure by, never much of a large file


def split(
    rows: Sequence[Row], valid: float | int | None = None, seed: int = 0, by: str = "source"
) -> tuple[list[Row], list[Row]]:
    """(train, valid): rows with the same text in column `by` stay together, so that no validation text is trained on.

    `valid` is a number of rows (an int, from 1) or a fraction of them (a float between 0 and 1); None is 5 %, at least
    1 and at most 2,000. Groups of equal text are drawn in the order of a hash of (seed, text) as long as they fit, so
    the draw does not depend on the order of the file; both sides keep that order.

    Raises `HeedfulError` when `valid` is out of range or the rows hold fewer than two different texts.
    """
    size = _size(valid, len(rows))
    groups: dict[str, int] = defaultdict(int)
    for row in rows:
        groups[row.values[by]] += 1
    if len(groups) < 2:
        raise HeedfulError(
            f"{len(rows)} rows with {len(groups)} different {by} texts are too few to hold some back; give more rows, "
            "or a validation file: --valid FILE"
        )
    drawn = sorted(groups, key=lambda text: blake2b(f"{seed}\0{text}".encode(), digest_size=16).digest())
    held: set[str] = set()
    count = 0
    for text in drawn:
        if count + groups[text] <= size:
            held.add(text)
            count += groups[text]
    if not held:  # every text stands in more rows than are wanted
        held.add(min(drawn, key=groups.__getitem__))
    return [row for row in rows if row.values[by] not in held], [row for row in rows if row.values[by] in held]


def _size(valid: float | int | None, rows: int) -> int:
    if valid is None:
        return min(MOST, max(1, round(FRACTION * rows)))
    size = max(1, round(valid * rows)) if isinstance(valid, float) and 0 < valid < 1 else valid
    if not isinstance(size, int) or not 1 <= size < rows:
        raise HeedfulError(
            f"{valid} of {rows} rows cannot be held back for validation; give a fraction between 0 and 1, or a number "
            f"of rows from 1 to {max(1, rows - 1)}"
        )
    return size
