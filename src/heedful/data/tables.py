"""Tables: TSV, CSV, JSON lines and Parquet as (line, values) with the wanted columns found."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import chain
from typing import Any

from heedful.data.files import STDIN, extension, needed, opened, raw_lines, shown, text_stream
from heedful.errors import HeedfulError

EXTENSIONS = (".tsv", ".csv", ".jsonl", ".ndjson", ".parquet")


@dataclass
class Table:
    """One table file, and where in it the wanted columns are looked for.

    `columns` are the task's names, `names` the person's own (None: she said nothing); after the first row has been
    read, `found` holds the names or numbers that were used.
    """

    path: str
    columns: Sequence[str]
    names: Sequence[str] | None
    found: tuple[str, ...] = field(default=(), init=False)

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        """(line, the wanted values in the order of `columns`); a blank line is (line, [])."""
        match extension_of(self.path):
            case ".csv":
                return self._delimited(_csv_rows(self.path), headless=False)
            case ".jsonl" | ".ndjson":
                return self._records(_json_records(self.path))
            case ".parquet":
                return self._records(_parquet_records(self.path))
            case _:
                rows = ((line, text.split("\t") if text.strip() else []) for line, text in text_stream(self.path))
                return self._delimited(rows, headless=True)

    @property
    def _wanted(self) -> Sequence[str]:
        return self.columns if self.names is None else self.names

    def _delimited(self, rows: Iterable[tuple[int, list[str]]], headless: bool) -> Iterator[tuple[int, list[str]]]:
        """Rows of cells. `headless`: without a header and without names, the first columns are the wanted ones."""
        rows = iter(rows)
        blank = []
        for line, first in rows:
            if first:
                break
            blank.append((line, first))
        else:
            yield from blank
            return
        header, places = self._places(first, line, headless)
        yield from blank
        for number, cells in rows if header else chain([(line, first)], rows):
            if cells and len(cells) != len(first):
                raise HeedfulError(
                    f"{_count(len(cells))} where line {line} has {len(first)}, in {shown(self.path)}:{number}; "
                    "mend that row (a tab or a comma too few or too many?)"
                )
            yield number, [cells[place] for place in places] if cells else []

    def _places(self, first: list[str], line: int, headless: bool) -> tuple[bool, list[int]]:
        """Whether the first row is a header, and the place of each wanted column."""
        wanted = list(self._wanted)
        self.found = tuple(wanted)
        if all(name in first for name in wanted):
            return True, [first.index(name) for name in wanted]
        if self.names is None and headless:
            wanted = [str(place) for place in range(1, len(wanted) + 1)]
            self.found = tuple(wanted)
        elif not all(name.isdecimal() for name in wanted):
            raise self._not_found(first, line)
        outside = next((name for name in wanted if not 1 <= int(name) <= len(first)), None)
        if outside is not None:
            separator = "commas" if extension_of(self.path) == ".csv" else "tabs"
            raise HeedfulError(
                f"{_count(len(first))}, and column {outside} is wanted for {self.columns[wanted.index(outside)]!r}, in "
                f"{shown(self.path)}:{line}; separate the columns by {separator}, or choose others: "
                "--data.columns 1,2"
            )
        return False, [int(name) - 1 for name in wanted]

    def _not_found(self, found: list[str], line: int) -> HeedfulError:
        missing = next(name for name in self._wanted if name not in found)
        close = get_close_matches(missing, found, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        keyed = extension_of(self.path) in (".jsonl", ".ndjson", ".parquet")
        numbers = "" if keyed else ", or by number where there is no header: --data.columns 1,2"
        example = ",".join(found[: len(self.columns)]) if len(found) >= len(self.columns) else "a,b"
        return HeedfulError(
            f"no column {missing!r} among {', '.join(repr(_short(name)) for name in found[:12])}, in "
            f"{shown(self.path)}:{line}; {hint}say which to use: --data.columns {_short(example)}{numbers}"
        )

    def _records(self, records: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[tuple[int, list[str]]]:
        self.found = tuple(self._wanted)
        for line, record in records:
            yield line, [self._value(record, name, line) for name in self._wanted] if record is not BLANK else []

    def _value(self, record: dict[str, Any], name: str, line: int) -> str:
        value = look_up(record, name)
        if value is MISSING:
            raise self._not_found(list(_keys(record)), line)
        if not isinstance(value, str):
            raise HeedfulError(
                f"{name!r} is {_short(json.dumps(value, default=str))} and text is wanted, in {shown(self.path)}:{line}"
                "; write it as a string, or choose another column: --data.columns"
            )
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise HeedfulError(
                f"{name!r} holds half of a surrogate pair, in {shown(self.path)}:{line}; write the file with whole "
                "characters"
            )
        return value


MISSING = object()
BLANK: dict[str, Any] = {}


def extension_of(path: str) -> str:
    """The extension, standard input being TSV."""
    return ".tsv" if path == STDIN else extension(path)


def look_up(record: dict[str, Any], name: str) -> Any:
    """The value of a key, or of keys one inside the other joined by dots; `MISSING` where there is none."""
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return MISSING
        value = value[part]
    return value


def _keys(record: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def _csv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Rows by RFC 4180, each with the line it begins at: a quoted field may run over several."""
    reader = csv.reader((line for _, line in raw_lines(path)), strict=True)
    line = 1
    try:
        for cells in reader:
            yield line, cells if any(cell.strip() for cell in cells) else []
            line = reader.line_num + 1
    except csv.Error as error:
        raise HeedfulError(
            f'broken CSV ({error}), in {path}:{line}; a field with a quote in it is written "a ""word"""'
        ) from error


def _json_records(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, text in text_stream(path):
        if not text.strip():
            yield line, BLANK
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise HeedfulError(f"broken JSON ({error}), in {path}:{line}; write one whole object a line") from error
        if not isinstance(record, dict):
            raise HeedfulError(
                f"{_short(text)} is no JSON object, in {path}:{line}; write one object a line, such as "
                '{"source": "...", "target": "..."}'
            )
        yield line, record


def _parquet_records(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows as dictionaries, numbered from 1."""
    parquet = needed("pyarrow.parquet", path)
    with opened(path) as stream:
        content = stream.read()
    if not content:
        return
    try:
        batches = parquet.ParquetFile(io.BytesIO(content)).iter_batches()
        yield from enumerate((record for batch in batches for record in batch.to_pylist()), 1)
    except (needed("pyarrow", path).ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise HeedfulError(f"{path} is no whole Parquet file ({reason}); copy or download it again") from error


def _count(number: int) -> str:
    return f"{number} column" if number == 1 else f"{number} columns"


def _short(text: str, most: int = 40) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 3] + "..."
