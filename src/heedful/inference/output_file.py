"""Output file of predictions: its format by file name, and a partial file from which a stopped call can continue.

A table (CSV, TSV, Parquet) is written as JSON lines and converted at the end: a cell may contain line ends, the columns
of a table are known only with its last row, and a Parquet file cannot be continued.

Nothing here imports torch, so that the checks come before slow work.
"""

from __future__ import annotations

import io
import json
import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from heedful.data.prediction_inputs import CONLL
from heedful.data.records import parquet_file, rows_per_batch
from heedful.data.text_files import require_library
from heedful.errors import HeedfulError
from heedful.util.files import WINDOWS, atomic_file, move, read_json, write
from heedful.util.locks import lock_file
from heedful.util.values import to_json

JSON_LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
TABLES = (".csv", ".tsv", ".tab", PARQUET)
UNSUPPORTED = (".json", ".xlsx", *CONLL, ".gz", ".xz", ".zst", ".zip", ".html", ".part")
TABLE_ROWS = 4096  # that are converted at a time


def is_json(out: str | None, as_json: bool = False) -> bool:
    """Returns True if predictions are written with their score and, of a table, with the columns of their row.

    They always are as JSON lines (``.jsonl``, ``.ndjson``) and in tables (``.csv``, ``.tsv``, ``.tab``, ``.parquet``),
    and never in other files; without a file, ``as_json`` decides. Raises ``HeedfulError`` for a file name of an
    unsupported format.
    """
    if out is None:
        return as_json
    suffix = Path(out).suffix.lower()
    if suffix in UNSUPPORTED:
        raise HeedfulError(
            f"{out}: predictions cannot be written as {suffix}; name the file .jsonl (objects), .csv, .tsv, .parquet "
            "(tables) or .txt (text)"
        )
    if suffix == PARQUET:
        require_library("pyarrow", out, "writing")
    return suffix in (*JSON_LINES, *TABLES)


def check_output(source: str, out: str | None, overwrite: bool) -> None:
    """Raises ``HeedfulError`` if predictions for the inputs ``source`` cannot be written to the file ``out``.

    This covers what can be known before writing. ``overwrite`` allows an existing file.
    """
    if out is None:
        if overwrite:
            raise HeedfulError("--overwrite has no effect without --out; add --out FILE, or leave --overwrite out")
        return
    is_json(out)
    path, folder = Path(out), Path(out).absolute().parent
    if path.is_dir():
        raise HeedfulError(f"--out {out} is a folder; name a file in it, such as predictions.csv")
    if path.exists() and os.path.exists(source) and path.samefile(source):
        raise HeedfulError(f"--out {out} is the file of inputs; name another file")
    if path.exists() and not overwrite and not path.with_name(path.name + ".part").exists():
        raise HeedfulError(f"{out} exists; --overwrite replaces it")
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise HeedfulError(f"--out {out}: cannot write in {folder}; choose another folder")


def one_line(output: Any) -> str:
    r"""Returns an output on one line: a text with its line ends as ``\n`` and ``\r``, everything else as JSON.

    >>> print(one_line("two\nlines"), one_line(["a", "b"]))
    two\nlines ["a", "b"]
    """
    if not isinstance(output, str):
        return to_json(output)
    return output.replace("\n", r"\n").replace("\r", r"\r")


def write_table(lines: Path, path: Path, source: str = "") -> None:
    r"""Converts JSON lines, an object a row, to CSV, TSV or Parquet, by the suffix of ``path``.

    The columns are the keys of all rows, in the order in which they occur. In CSV and TSV a list or an object is
    written as JSON, None as an empty cell; TSV has ``\t`` and ``\n`` for tabs and line ends in a cell, and no quotes.
    Predictions for a Parquet file ``source`` are written beside its own columns, which keep their types.
    """
    with atomic_file(path) as file:
        if path.suffix.lower() == PARQUET:
            try:
                _write_parquet(lines, file, source if source.lower().endswith(PARQUET) else None)
            except _parquet_errors(str(path)) as error:
                reason = f"{str(error).splitlines()[0]}; a Parquet file holds one type in a column"
                raise HeedfulError(f"{path}: {reason}; the predictions are in {lines}, as JSON lines") from error
            return
        names = list(dict.fromkeys(name for row in _rows(lines) for name in row))
        text = io.TextIOWrapper(file, "utf-8", errors="backslashreplace", newline="", write_through=True)
        rows = chain([names], ([_cell(row.get(name)) for name in names] for row in _rows(lines)))
        if path.suffix.lower() == ".csv":
            text.writelines(",".join(map(_quoted, row)) + "\n" for row in rows)
        else:
            text.writelines("\t".join(one_line(cell).replace("\t", r"\t") for cell in row) + "\n" for row in rows)
        text.detach()


def _rows(lines: Path) -> Iterator[dict[str, Any]]:
    with lines.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else to_json(value)


def _quoted(cell: str) -> str:
    """Returns a cell of CSV, quoted where RFC 4180 asks for it; csv.writer leaves a lone carriage return bare."""
    return '"' + cell.replace('"', '""') + '"' if any(mark in cell for mark in ',"\r\n') else cell


def _write_parquet(lines: Path, file: IO[bytes], source: str | None) -> None:
    """Writes the rows as Parquet; with ``source`` its own columns and, of the rows, the columns that it lacks.

    Raises ``ValueError`` for values that no column of Parquet can hold together.
    """
    arrow, parquet = require_library("pyarrow", str(lines)), require_library("pyarrow.parquet", str(lines))

    def tables() -> Iterator[Any]:
        rows = _rows(lines)
        if source is None:
            while some := list(islice(rows, TABLE_ROWS)):
                yield arrow.Table.from_pylist(_same_keys(some))
            return
        with parquet_file(source, source) as original:
            own = {*original.schema_arrow.names}
            for batch in original.iter_batches(rows_per_batch(original.metadata)):
                added = [{name: row[name] for name in row if name not in own} for row in islice(rows, len(batch))]
                table, beside = arrow.Table.from_batches([batch]), arrow.Table.from_pylist(_same_keys(added))
                for name in beside.column_names:
                    table = table.append_column(name, beside[name])
                yield table

    # The first rows may not show the type of a column, such as one that begins with missing values.
    schema = arrow.unify_schemas([table.schema for table in tables()], promote_options="permissive")
    with parquet.ParquetWriter(file, schema) as writer:
        for table in tables():
            missing = [name for name in schema.names if name not in table.column_names]
            for name in missing:
                table = table.append_column(name, arrow.nulls(len(table)))
            writer.write_table(table.select(schema.names).cast(schema))


def _parquet_errors(path: str) -> tuple[type[Exception], ...]:
    """Returns what pyarrow raises for values that no column of Parquet can hold together."""
    return ValueError, TypeError, OverflowError, require_library("pyarrow", path, "writing").ArrowException


class ParquetColumns:
    """Check that a Parquet file can hold the columns of a table of inputs, before the first prediction, and those of
    the predictions, as they come.

    The types of columns are found as ``write_table`` finds them, from as many rows at a time. Only numbers that lose
    digits in the type of all rows are left to it: a whole number above 2^53 in a column that has fractions elsewhere.

    Args:
        out: the Parquet file, for messages.
        source: the table, for messages.
    """

    def __init__(self, out: str, source: str) -> None:
        self._arrow, self._parquet = require_library("pyarrow", out), require_library("pyarrow.parquet", out)
        self._out, self._source, self._errors = out, source, _parquet_errors(out)
        self._rows: list[dict[str, Any]] = []
        self._locations: list[str] = []
        self._types: dict[str, Any] = {}
        self._forms: set[tuple[str, Any]] = set()  # names of columns with the forms of their values

    def add(self, row: Mapping[str, Any], location: str) -> None:
        """Adds a row; raises ``HeedfulError`` that names column and row for a value of another type."""
        self._rows.append(json.loads(to_json(row)))
        self._locations.append(location)
        if len(self._rows) == TABLE_ROWS:
            self._check_rows()

    def end(self) -> None:
        """Checks the last rows; raises ``HeedfulError`` for a type that Parquet lacks too."""
        self._check_rows()
        for name, kind in self._types.items():
            try:
                self._parquet.ParquetWriter(io.BytesIO(), self._arrow.schema([(name, kind)])).close()
            except self._errors as error:
                raise self._refusal(self._source, name, error) from error

    def problem_of(self, prediction: Mapping[str, Any], location: str) -> str | None:
        """Adds the columns of a prediction; returns what Parquet cannot hold, with column and input, or None.

        Only the first value of each form is converted: of a list the form of its first item counts.
        """
        for name, value in prediction.items():
            key = (name, _form(value))
            if key in self._forms:
                continue
            self._forms.add(key)
            if error := self._add_type(name, [json.loads(to_json(value))]):
                return self._problem(location, name, error)
        return None

    def _check_rows(self) -> None:
        rows = _same_keys(self._rows)
        for name in rows[0] if rows else ():
            values = [row[name] for row in rows]
            if error := self._add_type(name, values):
                counts = range(1, len(values))
                first = bisect_left(counts, True, key=lambda count: self._add_type(name, values[:count]) is not None)
                raise self._refusal(self._locations[first], name, error) from error
        self._rows.clear()
        self._locations.clear()

    def _add_type(self, name: str, values: list[Any]) -> Exception | None:
        """Extends a column's type to hold ``values`` too; returns the error if no type does."""
        try:
            kind = self._arrow.array(values).type
            schemas = [self._arrow.schema([(name, each)]) for each in (self._types.get(name, kind), kind)]
            self._types[name] = self._arrow.unify_schemas(schemas, promote_options="permissive").field(0).type
        except self._errors as error:
            return error
        return None

    def _refusal(self, place: str, name: str, error: Exception) -> HeedfulError:
        problem = self._problem(place, name, error)
        return HeedfulError(f"{problem}; correct the value, or name the output .jsonl or .csv")

    def _problem(self, place: str, name: str, error: Exception) -> str:
        reason = str(error).splitlines()[0]
        return f"{place}: {self._out} cannot hold column {name!r}: {reason}; a Parquet file holds one type in a column"


def _form(value: Any) -> Any:
    """Returns the types of a value and of what it holds, of a list those of its first item.

    >>> _form([{"label": "a", "score": 0.5}]) == _form([{"label": "b", "score": 1.0}]) != _form([["a"]])
    True
    """
    if isinstance(value, Mapping):
        return tuple((name, _form(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return list, _form(value[0]) if value else None
    return type(value)


def _same_keys(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows with the keys of all of them: pyarrow takes the columns from the first row."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


class PartialFile:
    """Output file that is written line by line and can be continued if a call is stopped, even within a line.

    Until it is complete there are two files: ``PATH.part``, to which whole lines are appended, and ``PATH.part.json``,
    which records the facts. A later call with the same facts continues after the last whole line. ``finish`` renames
    the file to ``PATH``.

    Args:
        path: path of the complete file.
        facts: the model, options and inputs that determine the lines, by names for messages.
        initial: values that the first call chooses and later calls reuse, such as a random seed.
        overwrite: start again, even if a file exists.

    Attributes:
        done: number of whole lines that earlier calls wrote.
        values: the first call's ``initial``.

    Raises:
        HeedfulError: the file exists, the partial file has other facts, or another call is writing the file.
    """

    def __init__(
        self, path: str | Path, facts: Mapping[str, Any], initial: Mapping[str, Any], *, overwrite: bool = False
    ) -> None:
        self.path = Path(path)
        self.part = self.path.with_name(self.path.name + ".part")
        self.record = self.path.with_name(self.path.name + ".part.json")
        recorded = self._recorded()
        continues = not overwrite and recorded is not None and recorded["facts"] == facts
        continues &= self.part.exists() or not self.path.exists()  # else a call was killed after its last line
        if not continues and not overwrite:
            self._check_free(facts, recorded)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = open(os.open(self.part, os.O_RDWR | os.O_CREAT, 0o666), "r+b")  # noqa: SIM115
        try:
            lock_file(self._file.fileno())
        except BlockingIOError:
            self._file.close()
            raise HeedfulError(f"{path} is being written by another call; wait for it, or name another file") from None
        except OSError:  # a file system without locks
            pass
        if continues and recorded is not None:
            self.done, self.values = self._whole_lines(), recorded["kept"]
        else:
            self._file.truncate(0)
            self.done, self.values = 0, dict(initial)
            write(self.record, json.dumps({"facts": dict(facts), "kept": self.values}))

    def _recorded(self) -> dict[str, Any] | None:
        """Returns the content of ``PATH.part.json``: facts and initial values; None without a valid file."""
        try:
            recorded = read_json(self.record, "start again with --overwrite")
        except HeedfulError:
            return None
        return recorded if isinstance(recorded, dict) and {"facts", "kept"} <= recorded.keys() else None

    def _check_free(self, facts: Mapping[str, Any], recorded: dict[str, Any] | None) -> None:
        if self.path.exists():
            raise HeedfulError(f"{self.path} exists; --overwrite replaces it")
        if self.part.exists() and self.part.stat().st_size:
            changed = [name for name, fact in facts.items() if recorded is None or recorded["facts"].get(name) != fact]
            origin = (
                f"was begun with different {' and '.join(changed)}" if recorded else "has no valid record (.part.json)"
            )
            raise HeedfulError(f"{self.part} {origin}; add --overwrite to start again")

    def _whole_lines(self) -> int:
        """Counts the whole lines and truncates the file after the last."""
        lines = end = position = 0
        self._file.seek(0)
        while chunk := self._file.read(1 << 20):
            if (last := chunk.rfind(b"\n")) >= 0:
                lines, end = lines + chunk.count(b"\n"), position + last + 1
            position += len(chunk)
        self._file.truncate(end)
        self._file.seek(end)
        return lines

    def add(self, lines: Sequence[str]) -> None:
        """Appends lines and syncs them to disk. Half of a surrogate pair is written as an escape, as in JSON."""
        self._file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))
        self._file.flush()
        os.fsync(self._file.fileno())

    def continue_as(self, path: Path) -> bool:
        """Closes the file and renames it, so that a call that writes ``path`` continues it.

        Returns False, and renames nothing, if ``path`` exists or was begun.
        """
        part, record = (path.with_name(path.name + suffix) for suffix in (".part", ".part.json"))
        if any(file.exists() for file in (path, part, record)):
            return False
        self._file.close()
        move(self.record, record)
        move(self.part, part)
        self.path, self.part, self.record = path, part, record
        return True

    def finish(self, source: str = "") -> None:
        """Renames the complete file to ``path``; converts the lines of a table (``write_table``)."""
        if self.path.suffix.lower() in TABLES:
            write_table(self.part, self.path, source)
            if WINDOWS:  # which deletes no open file; elsewhere the lock is held until it is gone
                self._file.close()
            self.part.unlink()
            self.record.unlink(missing_ok=True)
            return
        if WINDOWS:  # where an open file keeps its name; elsewhere the lock is held until it has the new one
            self._file.close()
        move(self.part, self.path)
        self.record.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        refused = isinstance(error, HeedfulError) and not self.part.stat().st_size
        self._file.close()
        if refused:  # before the first line: nothing to continue
            self.part.unlink(missing_ok=True)
            self.record.unlink(missing_ok=True)
