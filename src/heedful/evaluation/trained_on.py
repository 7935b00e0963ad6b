"""Hashes of training rows, to count evaluated rows that the model was trained on.

Two rows are equal if their inputs are equal except for case and white space, as in the audit
(:mod:`heedful.audit.duplicates`). Only the first 4,096 characters of documents are compared, since the last part may
have been held out for validation.

The file holds unsigned 64-bit numbers, little-endian: first k, then the sorted hashes. For more than five million rows
it holds only the hashes below 2^(64 − k), a random sample of 2^−k of the rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from heedful.data import Row
from heedful.data.split import row_keys
from heedful.data.texts_on_disk import continues_previous
from heedful.errors import HeedfulError, plural
from heedful.metrics.example_scores import Scored, overall
from heedful.metrics.verdict import select_examples
from heedful.tasks.task import Measured, Task
from heedful.util.files import write

FILE = "trained_on.bin"
LIMIT = 5_000_000  # number of hashes above which rows are sampled
DOCUMENT = 4_096  # characters of a document that are compared
CHUNK = 1_024  # rows hashed at a time
INSIDE = ("last", "average")  # model folders inside a run's folder
Hashes = NDArray[np.uint64]


class TrainedOn(NamedTuple):
    """Hashes of training rows, 64 bits each: all, or only those below 2^(64 − k), a random sample."""

    k: int
    hashes: Hashes  # sorted, each once

    @classmethod
    def of(cls, task: Task, rows: Iterable[Row], limit: int = LIMIT) -> Self:
        """Computes the hashes of ``rows``, in parts, with at most twice ``limit`` hashes in memory.

        Of more than ``limit`` rows, only a random sample of hashes is kept.
        """
        result = cls(0, np.zeros(0, dtype=np.uint64))
        parts, held = [result.hashes], 0
        for part in hashed(task, rows):
            parts.append(part)
            held += len(part)
            if held >= limit:
                result, parts, held = result.joined(np.concatenate(parts), limit), [], 0
        return result.joined(np.concatenate(parts), limit) if parts else result

    @classmethod
    def read(cls, folder: str | Path) -> Self | None:
        """Reads the hashes from a model's folder; returns None if it has none.

        For the folders ``last`` and ``average`` inside a run's folder, they are read from the run's folder. Raises
        ``HeedfulError`` for a damaged file.
        """
        folder = Path(folder)
        folders = [folder, *([folder.resolve().parent] if folder.name in INSIDE else [])]
        path = next((parent / FILE for parent in folders if (parent / FILE).is_file()), None)
        if path is None:
            return None
        data = path.read_bytes()
        numbers = np.frombuffer(data[: len(data) // 8 * 8], dtype="<u8").astype(np.uint64)
        if not len(numbers) or len(data) % 8 or numbers[0] > 63 or (numbers[1:-1] >= numbers[2:]).any():
            raise HeedfulError(
                f"{path} is damaged, so the training rows are unknown; remove the file to evaluate without them"
            )
        return cls(int(numbers[0]), numbers[1:])

    def write(self, folder: Path) -> None:
        """Writes the hashes to a file in ``folder``, which is written as a whole or not at all."""
        write(folder / FILE, np.concatenate([np.array([self.k], np.uint64), self.hashes]).astype("<u8").tobytes())

    def joined(self, others: Hashes, limit: int = LIMIT) -> Self:
        """Returns the union of these hashes and ``others``; if it has more than ``limit`` hashes, a random sample."""
        k, hashes = self.k, np.unique(np.concatenate([self.hashes, others]))
        hashes = hashes[hashes < _bound(k)] if k else hashes
        while len(hashes) > limit:
            k += 1
            hashes = hashes[hashes < _bound(k)]
        return type(self)(k, hashes)

    def sampled(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Returns a boolean for each of ``hashes``: True if it would be stored if its row was a training row.

        It is always True unless only a random sample is stored.
        """
        return hashes < _bound(self.k) if self.k else np.ones(len(hashes), dtype=bool)

    def among(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Returns a boolean for each of ``hashes``: True if it is stored, so the model was trained on its row."""
        return np.isin(hashes, self.hashes)


def _bound(k: int) -> np.uint64:
    return np.uint64(1 << (64 - k)) if k else np.uint64(sys.maxsize * 2 + 1)


def hashed(task: Task, rows: Iterable[Row]) -> Iterator[Hashes]:
    """Yields the hashes of rows, in chunks: uint64 arrays (n,)."""
    columns, asks, given = dict(task.columns), task.model_columns, iter(rows)
    while chunk := [_cut_documents(row, columns) for row in islice(given, CHUNK)]:
        keys = [key.model_input[:8] for key in row_keys(chunk, columns, asks)]
        yield np.frombuffer(b"".join(keys), dtype="<u8").astype(np.uint64)


def _cut_documents(row: Row, columns: dict[str, Any]) -> Row:
    """Returns the row with its documents cut to their first characters."""
    if not any(kind == "document" and name in row.values for name, kind in columns.items()):
        return row
    values = {name: row.values[name] for name in row.values}
    cut = {name: value[:DOCUMENT] for name, value in values.items() if columns.get(name) == "document"}
    return Row({**values, **cut}, row.file, row.line)


class Overlap(NamedTuple):
    """Result of looking up evaluated rows among the training rows of a model."""

    trained: int  # number of evaluated rows that were trained on; estimated from a sample of hashes
    rows: int
    estimated: bool
    others: NDArray[np.bool_]  # (rows,), True for rows known not to be trained on

    @classmethod
    def of(cls, folder: str | Path, task: Task, rows: Sequence[Row]) -> Self | None:
        """Looks up ``rows`` among the training rows of a model's folder; returns None if the folder has no hashes."""
        known = TrainedOn.read(folder) if Path(folder).is_dir() else None
        if known is None or not len(rows):
            return None
        hashes = np.concatenate([*hashed(task, rows)])
        trained, sampled = known.among(hashes), known.sampled(hashes)
        return cls(min(len(rows), int(trained.sum()) << known.k), len(rows), known.k > 0, sampled & ~trained)


def others_of(measured: Measured, rows: Sequence[Row], others: NDArray[np.bool_]) -> Scored | None:
    """Returns the scores of the examples on which the model was not trained, which are True in ``others``.

    Returns None if there are none, or if there are no per-example scores.
    """
    scored, selected = measured.example_scores, others
    if scored is None:
        return None
    if len(scored) != len(rows):  # pieces of documents, which are scored as a whole
        begins = np.flatnonzero([index == 0 or not continues_previous(row) for index, row in enumerate(rows)])
        selected = np.logical_and.reduceat(others, begins)
    if len(scored) != len(selected) or not selected.any():
        return None
    return select_examples(scored, np.flatnonzero(selected))


def overlap_line(overlap: Overlap, metric: str, metrics: Mapping[str, Any], others: Scored | None) -> str:
    """Returns one line for people on how many of the evaluated rows the model was trained on.

    It also has the main metric ``metric`` of all rows and of the others.
    """
    metrics_others = {} if others is None else overall(others)
    about = "about " if overlap.estimated else ""
    line = f"! the model was trained on {about}{overlap.trained:,} of {plural(overlap.rows)}"
    if metric in metrics_others and metric in metrics:
        name = metric.replace("_", " ")
        return f"{line}: {name} is {metrics[metric]:.4g} on all rows, {metrics_others[metric]:.4g} on the other rows"
    return f"{line}, so that the scores do not tell how good the model is; evaluate on a file that was held out"
