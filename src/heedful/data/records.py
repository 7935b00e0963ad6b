"""JSON lines, JSON arrays and Parquet as (line, record); a record is a dictionary of the file's own types."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from heedful.data.cell_values import brief
from heedful.data.text_files import COMPRESSED, open_file, read_lines, read_text, require_library
from heedful.errors import HeedfulError

MISSING = object()
BLANK: dict[str, Any] = {}
BUFFER = 1 << 20  # bytes of a Parquet column that are read at a time
BATCH_BYTES, BATCH_ROWS = 1 << 24, 4096  # of a Parquet file, decoded at a time (approximate)


def read_json_lines(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number, object) for each line of a JSON Lines file; a blank line yields the empty object ``BLANK``.

    Raises ``HeedfulError``, naming file and line, for broken JSON and for a value that is not an object.
    """
    for line, text in read_lines(path):
        if not text.strip():
            yield line, BLANK
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise HeedfulError(
                f"broken JSON ({error}), in {path}:{line}; write one complete object in each line"
            ) from error
        if not isinstance(record, dict):
            raise HeedfulError(
                f"{brief(text)} is not a JSON object, in {path}:{line}; write one object in each line, such as "
                '{"source": "...", "target": "..."}'
            )
        yield line, record


def read_json_array(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number, object) for each object of a file that is one JSON array.

    Raises ``HeedfulError``, naming file and line, for broken JSON and for an element that is not an object.
    """
    text = read_text(path)
    decode, blank = json.JSONDecoder().raw_decode, re.compile(r"[\s,]*")
    position = text.index("[") + 1
    line, line_position = 1, 0
    error_at = partial(_array_error, path)
    while True:
        match = blank.match(text, position)
        position = match.end() if match else position
        line, line_position = line + text.count("\n", line_position, position), position
        if text[position : position + 1] == "]":
            if rest := text[position + 1 :].strip():
                raise error_at(line, f"text after the end: {brief(rest)}")
            return
        try:
            record, position = decode(text, position)
        except (ValueError, RecursionError) as error:
            raise error_at(line, str(error).partition(":")[0]) from error
        if not isinstance(record, dict):
            raise error_at(line, f"{brief(json.dumps(record, ensure_ascii=False))} is not an object")
        yield line, record or BLANK


def _array_error(path: str, line: int, reason: str) -> HeedfulError:
    return HeedfulError(
        f"broken JSON array ({reason}), in {path}:{line}; write [{{...}}, {{...}}], or one object in each line"
    )


class ParquetRecords:
    """Rows of a Parquet file: iterating yields (number from 1, row as a dictionary).

    Only the requested `columns` are read; if the file lacks one of them, all are. `features` has the Hugging Face Hub's
    descriptions of the columns; {} if the file has none. Only some rows are in memory at a time, unless the file is
    compressed.
    """

    def __init__(self, path: str, columns: Sequence[str] = ()) -> None:
        self.path = path
        self.features: Mapping[str, Any] = {}
        self._source: str | io.BytesIO = path
        with open_file(path) as stream:  # raises for a missing file, with a similar name
            is_in_memory = Path(path).suffix.lower() in COMPRESSED or not os.path.isfile(path)
            content = stream.read() if is_in_memory else stream.read(1)
        if is_in_memory:
            self._source = io.BytesIO(content)
        self._empty = not content
        if self._empty:
            return
        with parquet_file(self.path, self._source) as file:
            self.features = _features(file.schema_arrow.metadata or {})
            present = set(file.schema_arrow.names)
            requested = {name if name in present else name.partition(".")[0] for name in columns}
            self._columns = sorted(requested) if columns and requested <= present else None
            names = file.schema_arrow.names
            if self._columns is None and (again := next((name for name in names if names.count(name) > 1), None)):
                raise HeedfulError(f"two columns are called {again!r}, in {path}; rename one")

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        if self._empty:
            return
        with parquet_file(self.path, self._source) as file:
            batches = file.iter_batches(rows_per_batch(file.metadata), columns=self._columns)
            yield from enumerate((record for batch in batches for record in batch.to_pylist()), 1)


@contextmanager
def parquet_file(path: str, source: str | io.BytesIO) -> Iterator[Any]:
    """Opens a Parquet file as ``pyarrow.parquet.ParquetFile``, which reads only the rows and columns it is asked for.

    Raises ``HeedfulError`` for a broken file, also if this is found while the file is read.
    """
    arrow_error = require_library("pyarrow", path).ArrowException
    try:
        with require_library("pyarrow.parquet", path).ParquetFile(source, pre_buffer=False, buffer_size=BUFFER) as file:
            yield file
    except (arrow_error, OSError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise HeedfulError(f"{path} is not a complete Parquet file ({reason}); copy or download it again") from error


def rows_per_batch(metadata: Any) -> int:
    """Returns the number of rows to decode at a time, from the metadata of a Parquet file."""
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return int(min(BATCH_ROWS, max(1, BATCH_BYTES * metadata.num_rows // max(1, size))))


def _features(metadata: Mapping[bytes, bytes]) -> Mapping[str, Any]:
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def record_classes(features: Mapping[str, Any], name: str) -> list[str] | None:
    """Returns the names of the classes 0, 1, ... of a column, from the Hub's ``features``; None if it has none.

    If the column holds lists, they are the names of the elements' classes.
    """
    feature = nested_value(features, name)
    while isinstance(feature, list) and feature:  # a list of labels, written [feature], or {"feature": feature}
        feature = feature[0]
    if isinstance(feature, dict) and isinstance(feature.get("feature"), dict):
        feature = feature["feature"]
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def nested_value(record: Mapping[str, Any], name: str) -> Any:
    """Returns the value of a key, or of nested keys joined by dots; `MISSING` if there is none."""
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return MISSING
        value = value[part]
    return value


def nested_keys(record: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yields the dotted keys of all values of a record that are not records themselves, such as "translation.en"."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from nested_keys(value, f"{prefix}{key}.")
        else:
            yield prefix + key
