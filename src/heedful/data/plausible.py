"""Columns that cannot be what they are taken for: tags and labels that all differ, a header that is read as a row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from heedful.data.cells import as_number, brief
from heedful.data.rows import Kind, Rows, required
from heedful.data.text_files import shown
from heedful.errors import HeedfulError, many

NAME = re.compile(r"[^\W\d]\w*")  # such as columns have
MOST = 20  # different values that a small column of names may have


def no_names(values: Sequence[str]) -> str | None:
    """What a column that should hold names of classes holds instead: "text" or "numbers" where more than half of its
    values differ and are such, "ids" where more than half of them, and more than 20, differ; else None.

    >>> no_names(["fr", "de", "es"]), no_names(["a dog", "the cat", "two cats", "no cat"])
    (None, 'text')
    """
    different = set(values)
    if len(different) <= max(3, len(values) / 2):
        return None
    if sum(" " in value for value in different) > len(different) / 2:
        return "text"
    if all(as_number(value) is not None for value in different):
        return "numbers"
    return "ids" if len(different) > MOST else None


def check_tags(rows: Rows, kinds: Mapping[str, Kind], sources: Sequence[str]) -> None:
    """Raise `HeedfulError` where tags are none, such as those of a third parallel text."""
    for place, column in enumerate(rows[0].values):
        tags = [row.values[column] for row in rows] if kinds[column] == "tag?" else []
        if no_names(tags):
            where = rows.columns[place] if len(sources) > 1 else shown(sources[0])
            raise HeedfulError(
                f"{len(set(tags)):,} different values of {column!r} in {many(len(tags), 'row')}, such as "
                f"{brief(tags[0])!r}, in {where}:{rows[0].line}; give {' and '.join(required(kinds))} alone, or a "
                f"{column} that many rows share, such as fr"
            )


def check_header(rows: Rows, kinds: Mapping[str, Kind]) -> None:
    """Raise `HeedfulError` where the first row of a table that is read by position is likely a header: each of its
    values could be the name of a column, and no other row has its label, while every other label stands in several.
    """
    label = next((column for column in rows[0].values if kinds[column] == "label"), None)
    if label is None or not all(column.isdecimal() for column in rows.columns):
        return
    values = list(rows[0].values.values())
    others = Counter(row.values[label] for row in rows[1:])
    if len(others) < 2 or min(others.values()) < 2 or rows[0].values[label] in others:
        return
    if all(isinstance(value, str) and NAME.fullmatch(value.strip()) for value in values):
        raise HeedfulError(
            f"no other row has the label {rows[0].values[label]!r}, which looks like the name of a column, in "
            f"{shown(rows[0].file)}:{rows[0].line}; if this is a header, name the columns: --data.columns "
            f"{','.join(map(str.strip, values))}, and if it is a row: --data.columns {','.join(rows.columns)}"
        )
