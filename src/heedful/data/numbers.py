"""Numbers: what a cell of a table or a value of JSON or Parquet says where a number is wanted."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from heedful.data.labels import brief
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
