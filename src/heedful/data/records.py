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
DECODED, MOST = 1 << 24, 4096  # bytes and rows of a Parquet file that are decoded at a time, about


def read_json_lines(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The object of each line; a blank line is `BLANK`."""
    for line, text in read_lines(path):
        if not text.strip():
            yield line, BLANK
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise HeedfulError(f"broken JSON ({error}), in {path}:{line}; write one whole object a line") from error
        if not isinstance(record, dict):
            raise HeedfulError(
                f"{brief(text)} is no JSON object, in {path}:{line}; write one object a line, such as "
                '{"source": "...", "target": "..."}'
            )
        yield line, record


def read_json_array(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line, object) of a JSON array."""
    text = read_text(path)
    decode, blank = json.JSONDecoder().raw_decode, re.compile(r"[\s,]*")
    place = text.index("[") + 1
    line, counted = 1, 0
    fail = partial(_broken, path)
    while True:
        match = blank.match(text, place)
        place = match.end() if match else place
        line, counted = line + text.count("\n", counted, place), place
        if text[place : place + 1] == "]":
            if rest := text[place + 1 :].strip():
                raise fail(line, f"{brief(rest)} after the array")
            return
        try:
            record, place = decode(text, place)
        except (ValueError, RecursionError) as error:
            raise fail(line, str(error).partition(":")[0]) from error
        if not isinstance(record, dict):
            raise fail(line, f"{brief(json.dumps(record, ensure_ascii=False))} is no object")
        yield line, record or BLANK


def _broken(path: str, line: int, what: str) -> HeedfulError:
    return HeedfulError(f"broken JSON array ({what}), in {path}:{line}; write [{{...}}, {{...}}], or an object a line")


class ParquetRecords:
    """A Parquet file's rows, numbered from 1; only the columns of `wanted` where the file has them all.

    `features` are the types by which the Hugging Face Hub describes the columns; {} where the file has none. Only some
    rows are in memory at a time, unless the file is packed.
    """

    def __init__(self, path: str, wanted: Sequence[str] = ()) -> None:
        self.path = path
        self.features: Mapping[str, Any] = {}
        self._source: str | io.BytesIO = path
        with open_file(path) as stream:  # which says what is missing, and what has a like name
            packed = Path(path).suffix.lower() in COMPRESSED or not os.path.isfile(path)
            content = stream.read() if packed else stream.read(1)
        if packed:
            self._source = io.BytesIO(content)
        self._empty = not content
        if self._empty:
            return
        with parquet_file(self.path, self._source) as file:
            self.features = _features(file.schema_arrow.metadata or {})
            there = set(file.schema_arrow.names)
            columns = {name if name in there else name.partition(".")[0] for name in wanted}
            self._columns = sorted(columns) if wanted and columns <= there else None

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        if self._empty:
            return
        with parquet_file(self.path, self._source) as file:
            batches = file.iter_batches(rows_per_batch(file.metadata), columns=self._columns)
            yield from enumerate((record for batch in batches for record in batch.to_pylist()), 1)


@contextmanager
def parquet_file(path: str, source: str | io.BytesIO) -> Iterator[Any]:
    """A Parquet file, open (``pyarrow.parquet.ParquetFile``), no more of which is read than is asked for; what breaks
    while it is read is said in one line.
    """
    broken = require_library("pyarrow", path).ArrowException
    try:
        with require_library("pyarrow.parquet", path).ParquetFile(source, pre_buffer=False, buffer_size=BUFFER) as file:
            yield file
    except (broken, OSError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise HeedfulError(f"{path} is no whole Parquet file ({reason}); copy or download it again") from error


def rows_per_batch(metadata: Any) -> int:
    """Returns the number of rows of a Parquet file to decode at a time."""
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return int(min(MOST, max(1, DECODED * metadata.num_rows // max(1, size))))


def _features(metadata: Mapping[bytes, bytes]) -> Mapping[str, Any]:
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def class_names(features: Mapping[str, Any], name: str) -> list[str] | None:
    """The names of the classes 0, 1, ... of a column, or of the lists in it; None where the file has none."""
    feature = nested_value(features, name)
    while isinstance(feature, list) and feature:  # a list of labels, written [feature], or {"feature": feature}
        feature = feature[0]
    if isinstance(feature, dict) and isinstance(feature.get("feature"), dict):
        feature = feature["feature"]
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    return names if isinstance(names, list) and all(isinstance(one, str) for one in names) else None


def nested_value(record: Mapping[str, Any], name: str) -> Any:
    """The value of a key, or of keys one inside the other joined by dots; `MISSING` where there is none."""
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return MISSING
        value = value[part]
    return value


def nested_keys(record: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The names by which `nested_value` finds something that is no record itself."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from nested_keys(value, f"{prefix}{key}.")
        else:
            yield prefix + key
