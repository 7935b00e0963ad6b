"""Input files for prediction and evaluation, streamed: a file may be larger than memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from heedful.data import builtin, hub_datasets, image_folder, image_reader, mixtures
from heedful.data.conll import read_sentences, without_prefix
from heedful.data.file_formats import EXTENSIONS, Format, detect_format
from heedful.data.lazy_image import LazyImage
from heedful.data.python_data import records
from heedful.data.read_source import read
from heedful.data.records import BLANK, ParquetRecords, nested_value, read_json_lines
from heedful.data.rows import Kind, required_columns, resolve_columns
from heedful.data.squad import read_questions
from heedful.data.tables import Table, WholeRow
from heedful.data.text_files import STDIN, display_name, extension, read_lines
from heedful.errors import HeedfulError

CONLL = (".conll", ".conllu", ".conll-u", ".bio", ".iob", ".iob2")  # a word a line, not an input a line
FRAME = "the DataFrame"  # in messages
MISSING_TYPES = ("NAType", "NaTType")  # pandas' missing values
SQUAD_COLUMNS = {"question", "context"}  # columns for which SQuAD's JSON is read
RECORDS = (".jsonl", ".ndjson", ".parquet")
TAB = ".tab"  # a table too; other unknown extensions are plain text
# Columns whose values may be lists in records, and their other names there.
LIST_COLUMNS: dict[str, tuple[str, ...]] = {"words": ("words", "tokens", "text"), "document": ("prompt", "messages")}


class Input(NamedTuple):
    """One input of a file, with its location for messages, and the row of the table that has it."""

    input: Any  # a value, or a mapping of several columns
    location: str  # file and line, for messages
    blank: bool = False  # a blank line, or a row with blank values only
    row: Mapping[str, Any] | None = None  # all columns, of a table of which whole rows are read


def read_inputs(
    source: str,
    columns: Mapping[str, Kind],
    names: Sequence[str] | None = None,
    *,
    remembered: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
    strip_prefix: str | None = None,
    whole: bool = False,
) -> Iterator[Input]:
    """Yields each input of ``source``, in order, including blank inputs.

    - A table: ``.tsv``, ``.tab``, ``.csv``, ``.jsonl``, ``.ndjson``, ``.parquet``, a JSON array of objects (``.json``)
      or, with ``names``, any other that ``heedful.data.read`` detects. Its ``columns`` are found as in
      ``heedful.data.read``: by their own names, by ``names`` or numbers, as ``remembered``, or inferred; ``say``
      receives notes on the choice. With ``whole``, an input has the values of all columns as its ``row``. Images are
      paths, relative to the table's folder, or bytes in Parquet. For words, records may have a list ``words`` or
      ``tokens``, or a ``text``; for documents, ``prompt`` or ``messages``.
    - A folder, for images: all images below it, in the order of their paths. Of IDX files in a folder, and of an
      ``.npz`` file, the test split if there is one; the arrays are those of ``names`` or, in ``.npz``, ``remembered``.
    - For words, CoNLL (``.conll``, ``.conllu``, ``.bio``, ``.iob``, ``.iob2``): one sentence an input; other columns
      are ignored. For questions with contexts, SQuAD's ``.json``.
    - ``builtin:NAME``: the test split of a built-in set; ``hub:ORG/NAME``: the same of a data set of the Hub, or its
      first split.
    - A mixture (``heedful.data.mixtures``, ``.toml``): the rows of its test files under each template; an input with
      choices is a mapping of the first column and ``choices``.
    - Any other file, and ``-``, standard input: text, one line an input.

    Every file may be compressed (``.gz``, ``.xz``, ``.zst``). ``strip_prefix`` is removed from the words of lists.
    Raises ``HeedfulError`` with file and line for any other form, when that line is reached.
    """
    columns, names = resolve_columns(columns, names)
    if names is not None and len(names) not in (len(columns), len(required_columns(columns))):
        raise HeedfulError(
            f"{len(names)} names ({','.join(names)}) for the columns {', '.join(columns)}; give --columns one name "
            "for each, in that order"
        )
    reading = _Reading(columns, names, remembered or {}, say or _ignore_note, whole)
    inputs = _with_columns_option(_read_source(source, reading))
    return inputs if not strip_prefix else (_strip(item, strip_prefix) for item in inputs)


def read_frame(
    frame: Any,
    columns: Mapping[str, Kind],
    *,
    remembered: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
    strip_prefix: str | None = None,
) -> Iterator[Input]:
    """Yields each row of a pandas or polars DataFrame as an input; its columns are found as in ``read_inputs``.

    A missing value is an empty text, as in a file. Raises ``HeedfulError`` for two columns of the same name.
    """
    available = [str(name) for name in frame.columns]
    if repeated := next((name for name in available if available.count(name) > 1), None):
        raise HeedfulError(f"two columns of {FRAME} are called {repeated!r}; rename one")
    columns, _ = resolve_columns(columns, None)
    (column, kind), *others = columns.items()
    known = () if others else LIST_COLUMNS.get(kind, ())
    names = next(([name] for name in (column, *known) if name in available), None) if known else None
    reading = _Reading(columns, names, remembered or {}, say or _ignore_note)
    inputs = _table(partial(_Frame, frame=frame), FRAME, reading)
    return inputs if not strip_prefix else (_strip(item, strip_prefix) for item in inputs)


def _strip(item: Input, prefix: str) -> Input:
    words = item.input
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        return item
    return item._replace(input=list(without_prefix(words, prefix)))


def _ignore_note(note: str) -> None:
    pass


def _with_columns_option(inputs: Iterator[Input]) -> Iterator[Input]:
    with name_columns_option():
        yield from inputs


@contextmanager
def name_columns_option() -> Iterator[None]:
    """Replaces ``--data.columns``, the option of training, in errors by ``--columns``, that of other commands."""
    try:
        yield
    except HeedfulError as error:
        raise HeedfulError(str(error).replace("--data.columns", "--columns")) from error


class _Reading(NamedTuple):
    """Columns of the inputs, and how they are found: the arguments of ``read_inputs``."""

    columns: Mapping[str, Kind]
    names: Sequence[str] | None
    remembered: Mapping[str, str]
    say: Callable[[str], None]
    whole: bool = False


def _read_source(source: str, reading: _Reading) -> Iterator[Input]:
    columns, names = reading.columns, reading.names
    if source.startswith(builtin.PREFIX):
        return _rows(source, columns, names)
    if source.startswith(hub_datasets.PREFIX):
        splits = hub_datasets.hub_splits(source)
        files = hub_datasets.files(source, "test" if "test" in splits else next(iter(splits), None))
        return chain.from_iterable(_read_source(file, reading) for file in files)
    if mixtures.is_mixture([source]):
        return _prompts(source, next(iter(columns)), names)
    is_table = source != STDIN and extension(source) in (*EXTENSIONS, TAB)
    if "image" in columns.values():
        return _images(source, reading, is_table)
    if is_table or _is_detected_table(source, columns, names):
        return _table(_InputTable, source, reading)
    if extension(source) in CONLL and "words" in columns.values():
        return _sentences(source, names)
    if names is not None:
        form = "one JSON document" if extension(source) == ".json" else "plain text"
        raise HeedfulError(f"{display_name(source)} is {form} and has no columns; leave --columns out")
    if os.path.isdir(source):
        raise HeedfulError(f"{source} is a folder, but a file is expected; give a file in it")
    if extension(source) == ".json" and columns.keys() >= SQUAD_COLUMNS:
        return _questions(source, reading.whole)
    if extension(source) == ".json":
        raise HeedfulError(f"{source} is one JSON document; write one object in each line, and name it .jsonl")
    if extension(source) in CONLL:
        raise HeedfulError(f"{source} has one word in each line; give text with one input in each line, or .jsonl")
    return _lines(source)


def _is_detected_table(source: str, columns: Mapping[str, Kind], names: Sequence[str] | None) -> bool:
    """Returns True if a file of another extension is a table: columns are named, or it is a JSON array of objects."""
    if source == STDIN or extension(source) in CONLL or os.path.isdir(source):
        return False
    if extension(source) == ".json":
        return not columns.keys() >= SQUAD_COLUMNS and detect_format(source).kind == "json"
    return names is not None and detect_format(source, labelled=True).is_table


class _InputTable(Table):
    """Table of inputs; lists of words or messages are unchanged.

    Without a header the input columns come first, and other columns may follow. ``whole``: all columns are read.
    """

    allows_extra: ClassVar[bool] = True

    def __init__(self, *arguments: Any, whole: bool = False, **more: Any) -> None:
        self.whole = whole
        super().__init__(*arguments, **more)

    def _columns_to_read(self) -> list[str]:
        return [] if self.whole else super()._columns_to_read()

    def _cell_value(self, record: dict[str, Any], column: str, name: str, line: int, reader: Any) -> Any:
        value = nested_value(record, name)
        if self.columns[column] in LIST_COLUMNS and isinstance(value, list):
            return value
        return super()._cell_value(record, column, name, line, reader)

    def named_row(self, row: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
        """Returns the values of a whole row by the names of their columns, for JSON; bytes are left out.

        Without a header, columns that are read have the task's names, others are "column_1" and on. A name that occurs
        again gets the number of its column: "x", "x_3".
        """
        if isinstance(row, Mapping):
            return {name: _json_value(value) for name, value in row.items() if not isinstance(value, bytes)}
        known = {} if self.header else dict(zip(self.file_columns, self.chosen_columns, strict=True))
        found: dict[str, Any] = {}
        for number, value in enumerate(row, 1):
            name = self.header[number - 1] if self.header else known.get(str(number), f"column_{number}")
            while name in found:  # two columns of the same name are both kept
                name = f"{name or 'column'}_{number}"
            found[name] = value
        return found


class _Frame(_InputTable):
    """DataFrame as a table of inputs."""

    def __init__(self, *arguments: Any, frame: Any, **more: Any) -> None:
        self.frame = frame
        super().__init__(*arguments, **more)

    def _detected_format(self) -> Format:
        return Format("jsonl")

    def whole_rows(self) -> Iterator[WholeRow]:
        rows = ({str(name): _frame_value(value) for name, value in row.items()} for row in records(self.frame))
        return self._records(enumerate(rows, 1), {})


def _frame_value(value: Any) -> Any:
    """Returns a cell of a DataFrame as a file has it: a missing value as an empty text, an array of texts as a list."""
    if value is None or (isinstance(value, float) and math.isnan(value)) or type(value).__name__ in MISSING_TYPES:
        return ""
    return value.tolist() if getattr(value, "ndim", 0) == 1 and hasattr(value, "tolist") else value


def _json_value(value: Any) -> Any:
    """Returns a value of a Parquet file as JSON has it: dates by ISO 8601, an image by its path."""
    if isinstance(value, Mapping):
        return {name: _json_value(item) for name, item in value.items() if not isinstance(item, bytes)}
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _table(kind: Callable[..., _InputTable], path: str, reading: _Reading) -> Iterator[Input]:
    columns, named = reading.columns, dict(reading.columns)
    names = reading.names or _other_name(path, columns)
    if names is not None:
        named = {name: kind for name, kind in columns.items() if len(names) == len(columns) or kind[-1] != "?"}
    table = kind(path, named, names, remembered=reading.remembered, whole=reading.whole)
    for line, cells, row in table.whole_rows():
        while cells and table.notes:
            reading.say(table.notes.pop(0).replace("--data.columns", "--columns"))
        values = (
            dict(zip(table.chosen_columns, cells, strict=True)) if cells else dict.fromkeys(required_columns(named), "")
        )
        item = _input_of(values, f"{display_name(path)}:{line}")
        yield item._replace(row=table.named_row(row)) if reading.whole else item


def _other_name(path: str, columns: Mapping[str, Kind]) -> list[str] | None:
    """Returns the first record's name for the only column, if the column has several possible names."""
    (column, kind), *others = columns.items()
    if others or kind not in LIST_COLUMNS or extension(path) not in RECORDS:
        return None
    records = ParquetRecords(path, []) if extension(path) == ".parquet" else read_json_lines(path)
    first = next((record for _, record in records if record is not BLANK), {})
    return next(([name] for name in (column, *LIST_COLUMNS[kind]) if name in first), None)


def _input_of(values: dict[str, Any], location: str) -> Input:
    blank = not any(map(_is_filled, values.values()))
    return Input(values if len(values) > 1 else next(iter(values.values())), location, blank)


def _is_filled(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    return bool(value) if isinstance(value, list | tuple | dict) else value is not None  # an array has no truth value


def _prompts(path: str, column: str, names: Sequence[str] | None) -> Iterator[Input]:
    if names is not None:
        raise HeedfulError(f"--columns has no effect on a mixture; set columns in {path}, or leave the option out")
    for text, choices, location in mixtures.read_prompts(path, read):
        yield Input(text if choices is None else {column: text, "choices": list(choices)}, location)


def _lines(path: str) -> Iterator[Input]:
    for line, text in read_lines(path):
        yield Input(text, f"{display_name(path)}:{line}", not text.strip())


def _sentences(path: str, names: Sequence[str] | None) -> Iterator[Input]:
    for sentence in read_sentences(path, names):
        yield Input(list(sentence.words), f"{display_name(path)}:{sentence.line}")


def _questions(path: str, whole: bool) -> Iterator[Input]:
    for line, values in read_questions(path):
        row = dict(values)
        values.pop("id", None)
        yield _input_of(values, f"{display_name(path)}:{line}")._replace(row=row if whole else None)


def _rows(source: str, columns: Mapping[str, Kind], names: Sequence[str] | None) -> Iterator[Input]:
    for row in read(source, columns, names=names, split="test"):
        yield _input_of({name: row.values[name] for name in columns if name in row.values}, f"{row.file}:{row.line}")


def _images(source: str, reading: _Reading, is_table: bool) -> Iterator[Input]:
    (column,), names = reading.columns, reading.names
    if os.path.isdir(source) and names is None and not image_reader.is_idx_folder(source):
        for path in image_folder.all_images(source)[0]:
            yield Input(LazyImage.of(path), path)
    elif not is_table:
        split = "test" if "test" in image_reader.image_splits([source]) else None
        for row in image_reader.read_images([source], reading.columns, names, split, remembered=reading.remembered):
            yield Input(row.values[column], f"{row.file}:{row.line}")
    else:
        for item in _table(_InputTable, source, reading._replace(say=_ignore_note)):
            if item.blank:
                yield item
                continue
            line = int(item.location.rpartition(":")[2])
            yield item._replace(input=image_reader.cell_image(item.input, source, line))


def input_identity(item: Input) -> str:
    """Returns a text that identifies an input and its row, for digests; an image by its name or its bytes."""
    source = getattr(item.input, "source", None)
    return repr((item.row, item.input, source if isinstance(source, bytes) else None))
