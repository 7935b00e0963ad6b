"""JSON lines and Parquet as (line, record): a row as a dictionary of whatever types the file has."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from heedful.data.files import needed, opened, text_stream
from heedful.data.labels import brief
from heedful.errors import HeedfulError

MISSING = object()
BLANK: dict[str, Any] = {}


def from_json(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The object of each line; a blank line is `BLANK`."""
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
                f"{brief(text)} is no JSON object, in {path}:{line}; write one object a line, such as "
                '{"source": "...", "target": "..."}'
            )
        yield line, record


class Parquet:
    """A Parquet file's rows, numbered from 1; only the columns of `wanted` where the file has them all.

    `features` are the types by which the Hugging Face Hub describes the columns; {} where the file has none.
    """

    def __init__(self, path: str, wanted: Sequence[str]) -> None:
        self.path = path
        self.features: Mapping[str, Any] = {}
        self._batches: Iterable[Any] = ()
        parquet = needed("pyarrow.parquet", path)
        with opened(path) as stream:
            content = stream.read()
        if not content:
            return
        with self._whole():
            file = parquet.ParquetFile(io.BytesIO(content))
            self.features = _features(file.schema_arrow.metadata or {})
            there = set(file.schema_arrow.names)
            columns = {name if name in there else name.partition(".")[0] for name in wanted}
            self._batches = file.iter_batches(columns=sorted(columns) if columns <= there else None)

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        with self._whole():
            yield from enumerate((record for batch in self._batches for record in batch.to_pylist()), 1)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        try:
            yield
        except (needed("pyarrow", self.path).ArrowException, OSError) as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise HeedfulError(f"{self.path} is no whole Parquet file ({reason}); copy or download it again") from error


def _features(metadata: Mapping[bytes, bytes]) -> Mapping[str, Any]:
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def classes(features: Mapping[str, Any], name: str) -> list[str] | None:
    """The names of the classes 0, 1, ... of a column, or of the lists in it; None where the file has none."""
    feature = look_up(features, name)
    while isinstance(feature, list) and feature:  # a list of labels, written [feature], or {"feature": feature}
        feature = feature[0]
    if isinstance(feature, dict) and isinstance(feature.get("feature"), dict):
        feature = feature["feature"]
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    return names if isinstance(names, list) and all(isinstance(one, str) for one in names) else None


def look_up(record: Mapping[str, Any], name: str) -> Any:
    """The value of a key, or of keys one inside the other joined by dots; `MISSING` where there is none."""
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return MISSING
        value = value[part]
    return value


def keys(record: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The names by which `look_up` finds something that is no record itself."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from keys(value, f"{prefix}{key}.")
        else:
            yield prefix + key
