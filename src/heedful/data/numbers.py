"""Numbers: what a cell of a table or a value of JSON or Parquet says where a number is wanted."""

from __future__ import annotations

import json
import math
from typing import Any

from heedful.data.labels import brief
from heedful.errors import HeedfulError


class Numbers:
    """Reads the numbers of one column: JSON's and Parquet's own, or texts such as "3", "-0.5", "1e-3".

    >>> Numbers().read("3.5", "score", "a.tsv:1"), Numbers().read(4, "score", "a.jsonl:1")
    (3.5, 4.0)
    """

    def read(self, value: Any, column: str, place: str) -> float | str:
        """The number as a float; a blank text as it is, so that its row counts as blank. Raises `HeedfulError`, naming
        `place`, for anything else: other words, a decimal comma, true, null, infinity and what is not a number.
        """
        if isinstance(value, str) and not value.strip():
            return value
        try:
            number = float(value) if not isinstance(value, bool) else math.nan
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            shown = brief(json.dumps(value, default=str, ensure_ascii=False))
            raise HeedfulError(
                f"{column!r} is {shown} and a number is wanted, in {place}; write it with digits and a point: 3.5"
            )
        return number
