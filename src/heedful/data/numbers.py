"""Numbers: what a cell of a table or a value of JSON or Parquet says where a number is wanted."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from heedful.data.cells import brief
from heedful.errors import HeedfulError

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def as_number(value: Any) -> float | None:
    """The finite number that a text or a value of JSON or Parquet is; None for anything else. A text has ASCII digits,
    a point, a sign and an exponent at most, and blanks around them: Python's own ``1_0`` and ``٣`` are none.

    >>> as_number(" -0.5e1 "), as_number(3), as_number("1_0"), as_number("٣"), as_number(True), as_number("nan")
    (-5.0, 3.0, None, None, None, None)
    """
    if isinstance(value, bool) or (isinstance(value, str) and not NUMBER.fullmatch(value.strip())):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def are_quantities(labels: Sequence[str], classes: int = 20) -> bool:
    """Whether labels are quantities, not the names of classes: numbers, some with fractions and three different ones
    at least, or whole ones of which more than ``classes`` differ, unless they count classes from 0 or 1 on without a
    gap, each in several rows.

    >>> are_quantities(["0.5", "3", "1.25"]), are_quantities(["1", "2", "3", "4", "5"]), are_quantities(["1", "two"])
    (True, False, False)
    >>> are_quantities([str(year) for year in range(1950, 2000)]), are_quantities([str(i % 50) for i in range(500)])
    (True, False)
    """
    numbers = [as_number(label) for label in labels]
    counts = Counter(number for number in numbers if number is not None)
    if None in numbers or len(counts) < 3:
        return False
    if not all(number.is_integer() for number in counts):
        return True
    lowest, highest = min(counts), max(counts)
    counted = lowest in (0, 1) and highest - lowest + 1 == len(counts) and min(counts.values()) > 1
    return len(counts) > classes and not counted


class Numbers:
    """Reads the numbers of one column: JSON's and Parquet's own, or texts such as "3", "-0.5", "1e-3".

    >>> Numbers().read("3.5", "score", "a.tsv:1"), Numbers().read(4, "score", "a.jsonl:1")
    (3.5, 4.0)
    """

    def read(self, value: Any, column: str, place: str) -> float | str:
        """The number as a float; a blank text as it is, so that its row counts as blank. Raises `HeedfulError`, naming
        `place`, for anything else: other words, a decimal comma, true, null, infinity, ``1_0`` and other digits.
        """
        if isinstance(value, str) and not value.strip():
            return value
        number = as_number(value)
        if number is None:
            shown = brief(json.dumps(value, default=str, ensure_ascii=False))
            raise HeedfulError(
                f"{column!r} is {shown} and a number is wanted, in {place}; write it with digits and a point: 3.5"
            )
        return number
