"""Tables of images: Parquet that holds them, and any table that holds their paths."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from heedful.data.pictures import Picture
from heedful.data.rows import Kind, Row, Rows
from heedful.data.tables import Table
from heedful.data.text_files import STDIN, shown
from heedful.errors import HeedfulError


def read_rows(
    path: str,
    columns: Mapping[str, Kind],
    names: Sequence[str] | None,
    limit: int | None,
    remembered: Mapping[str, str] | None = None,
) -> Rows:
    """At most `limit` rows of a table; those with a blank cell are left out and counted.

    Raises `HeedfulError` as `heedful.data.read` does, and for a cell that is neither an image nor the path of a file.
    """
    table = Table(path, columns, names, remembered=remembered or {})
    rows = Rows()
    for line, cells in table:
        if not cells or any(isinstance(cell, str) and not cell.strip() for cell in cells):
            rows.skip(path, line)
            continue
        values = {
            column: picture(cell, path, line) if columns[column] == "image" else cell
            for column, cell in zip(table.taken, cells, strict=True)
        }
        rows.append(Row(values, path, line))
        if len(rows) == limit:
            break
    table.tell(rows)
    return rows


def picture(cell: Any, path: str, line: int) -> Picture:
    """What a cell holds in this line of the table ``path``: an image, or the path of one from the table's folder."""
    place = f"{shown(path)}:{line}"
    if isinstance(cell, dict):  # as the Hub stores them: {"bytes", "path"}, one of which may be null
        cell = cell.get("bytes") or cell.get("path")
    if isinstance(cell, bytes):
        return Picture.of(cell, place)
    if not isinstance(cell, str):
        found = "null" if cell is None else type(cell).__name__
        raise HeedfulError(
            f"{found} where an image is wanted, in {place}; store the bytes of an image file, or its path"
        )
    found = os.path.join("" if path == STDIN else os.path.dirname(path), cell)
    if not os.path.isfile(found):
        raise HeedfulError(f"no image {found}, in {place}; write paths as seen from the table's folder")
    return Picture.of(found)
