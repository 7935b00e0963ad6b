"""Readers that turn the cells of tables, JSON and Parquet into labels or numbers."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from heedful.errors import HeedfulError


class Texts:
    """Reader of a column with one text or several: a cell becomes a tuple of texts, without blank ones.

    >>> Texts().read("a cat", "text", "a.csv:1"), Texts().read(["a cat", " ", "a dog"], "text", "a.jsonl:1")
    (('a cat',), ('a cat', 'a dog'))
    """

    def read(self, value: Any, column: str, location: str) -> tuple[str, ...]:
        """Returns the texts in a cell; raises ``HeedfulError``, naming ``location``, for any other value."""
        texts = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str) for text in texts):
            raise HeedfulError(
                f"{column!r} is {brief(json.dumps(value, default=str))}, but a text or a list of texts is expected, in "
                f"{location}; write it so, or choose another column with --data.columns"
            )
        return tuple(checked_text(text, column, location) for text in texts if text.strip())


class Labels:
    """Reader of one file's label column: a cell becomes a name, or a tuple of names if rows may have several or none.

    A text is a name; white space around it is removed. True, false and numbers are written out ("true", "7", "0.5"), or
    replaced by their names in `classes` (numbered from 0). A list of these, or a text split at `separator`, gives a
    tuple of the distinct names; blank names are left out.

    >>> Labels().read(7, "label", "a.jsonl:1"), Labels(separator=";").read("red; blue;red", "label", "a.tsv:1")
    ('7', ('red', 'blue'))
    """

    def __init__(self, separator: str | None = None, classes: Sequence[str] | None = None) -> None:
        self.separator = separator
        self.classes = classes
        self._are_lists: bool | None = None  # set by the first row

    def read(self, value: Any, column: str, location: str) -> str | tuple[str, ...]:
        """Returns the label in a cell, or the tuple of its labels.

        Raises `HeedfulError`, naming `location`, for a value that is not a label, for a number that has no name in
        `classes`, and for a file with a list in some rows and a single label in others.
        """
        if self.separator is not None and isinstance(value, str):
            value = value.split(self.separator)
        is_list = isinstance(value, list)
        if self._are_lists is None:
            self._are_lists = is_list
        if is_list != self._are_lists:
            raise HeedfulError(
                f"{column!r} is {'a list' if is_list else 'not a list'}, unlike in earlier rows, in {location}; "
                "write a list of labels in every row, or in no row"
            )
        if not is_list:
            return self._name(value, column, location)
        return tuple(dict.fromkeys(name for item in value if (name := self._name(item, column, location))))

    def _name(self, value: Any, column: str, location: str) -> str:
        if isinstance(value, str):
            return checked_text(value, column, location).strip()
        if isinstance(value, bool) and self.classes is None:
            return "true" if value else "false"
        if isinstance(value, float) and math.isfinite(value) and self.classes is None:
            return str(int(value) if value.is_integer() else value)
        if not isinstance(value, int):
            raise HeedfulError(
                f"{column!r} is {brief(json.dumps(value, default=str))}, but a label is expected, in {location}; write "
                "it as text or a whole number, or choose another column with --data.columns"
            )
        if self.classes is None:
            return str(value)
        if not 0 <= value < len(self.classes):
            raise HeedfulError(
                f"{column!r} is {value}, but the file has names only for the labels 0 to {len(self.classes) - 1} "
                f"({brief(', '.join(self.classes))}), in {location}; correct the label or remove the row"
            )
        return self.classes[value]


def checked_text(text: str, column: str, location: str) -> str:
    """Returns `text` unchanged. Raises `HeedfulError` for a lone surrogate, which UTF-8 cannot encode."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise HeedfulError(
            f"{column!r} has half of a UTF-16 surrogate pair, in {location}; write the file with whole characters"
        )
    return text


def brief(text: str, length: int = 40) -> str:
    """Returns `text` on one line, shortened to at most `length` characters."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 3] + "..."


NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def parse_number(value: Any) -> float | None:
    """Returns a text, or a value from JSON or Parquet, as a float; None if it is not a finite number.

    A text may have ASCII digits, a point, a sign, an exponent and white space around it. The other forms that Python's
    ``float`` accepts, such as ``1_0`` or ``٣``, are not numbers here.

    >>> parse_number(" -0.5e1 "), parse_number(3)
    (-5.0, 3.0)
    >>> [parse_number(value) for value in ("1_0", "٣", True, "nan")]
    [None, None, None, None]
    """
    if isinstance(value, bool) or (isinstance(value, str) and not NUMBER.fullmatch(value.strip())):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def are_quantities(labels: Sequence[str], classes: int = 20) -> bool:
    """Returns True if labels are quantities, not class names.

    Quantities are at least three distinct numbers with fractions, or more than ``classes`` distinct whole numbers.
    Whole numbers from 0 or 1 without a gap, each in several rows, are class numbers.

    >>> are_quantities(["0.5", "3", "1.25"]), are_quantities(["1", "2", "3", "4", "5"]), are_quantities(["1", "two"])
    (True, False, False)
    >>> are_quantities([str(year) for year in range(1950, 2000)]), are_quantities([str(i % 50) for i in range(500)])
    (True, False)
    """
    numbers = [parse_number(label) for label in labels]
    counts = Counter(number for number in numbers if number is not None)
    if None in numbers or len(counts) < 3:
        return False
    if not all(number.is_integer() for number in counts):
        return True
    lowest, highest = min(counts), max(counts)
    are_class_numbers = lowest in (0, 1) and highest - lowest + 1 == len(counts) and min(counts.values()) > 1
    return len(counts) > classes and not are_class_numbers


class Numbers:
    """Reader of one file's number column: numbers in JSON and Parquet, or texts such as "3", "-0.5", "1e-3".

    >>> Numbers().read("3.5", "score", "a.tsv:1"), Numbers().read(4, "score", "a.jsonl:1")
    (3.5, 4.0)
    """

    def read(self, value: Any, column: str, location: str) -> float | str:
        """Returns the number in a cell as a float; a blank text is returned unchanged, and its row counts as blank.

        Raises `HeedfulError` with `location` for anything else: words, a decimal comma, true, null, infinity, ``1_0``.
        """
        if isinstance(value, str) and not value.strip():
            return value
        number = parse_number(value)
        if number is None:
            text = brief(json.dumps(value, default=str, ensure_ascii=False))
            raise HeedfulError(
                f"{column!r} is {text}, but a number is expected, in {location}; write it with digits and a point: 3.5"
            )
        return number
