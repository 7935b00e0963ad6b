"""Input files for prediction and evaluation, streamed: a file may be larger than memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

from heedful.data import builtin, image_folder, image_reader
from heedful.data.cell_values import checked_text
from heedful.data.conll import read_sentences, without_prefix
from heedful.data.file_formats import EXTENSIONS, detect_format
from heedful.data.lazy_image import LazyImage
from heedful.data.read_source import read
from heedful.data.records import BLANK, MISSING, ParquetRecords, nested_value, read_json_lines
from heedful.data.rows import Kind, required_columns, resolve_columns
from heedful.data.squad import read_questions
from heedful.data.tables import Table
from heedful.data.text_files import STDIN, display_name, extension, read_lines
from heedful.errors import HeedfulError

ID = "id"  # what a row may be called by; it is handed on to the answer
TAGGED = (".conll", ".conllu", ".conll-u", ".bio", ".iob", ".iob2")  # a word a line, not an input a line
ASKED = {"question", "context"}  # the columns that SQuAD's JSON is read for
RECORDS = (".jsonl", ".ndjson", ".parquet")
TABBED = ".tab"  # read as a table as it says, where other unknown extensions are plain text
# columns whose values may be lists in records, and what else they may be called there
LISTED: dict[str, tuple[str, ...]] = {"words": ("words", "tokens", "text"), "document": ("prompt", "messages")}


class Input(NamedTuple):
    """One input as a file holds it."""

    input: Any  # a value, or where there are several columns a mapping by their names
    where: str  # the file and the line, for messages
    id: Any = None  # what the file calls it, where it does
    blank: bool = False  # a blank line, or a row without anything in the columns that are wanted


def read_inputs(
    source: str,
    columns: Mapping[str, Kind],
    names: Sequence[str] | None = None,
    *,
    remembered: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
    strip_prefix: str | None = None,
) -> Iterator[Input]:
    """Each input of ``source``, in order, blank ones too.

    - A table: ``.tsv``, ``.tab``, ``.csv``, ``.jsonl``, ``.ndjson``, ``.parquet``, a JSON array of objects (``.json``),
      or where ``names`` are given any other that ``heedful.data.read`` recognises, with ``columns``, called so or by
      ``names`` or numbers, or as was ``remembered``, or guessed (as ``heedful.data.read`` does); what it notes is given
      to ``say``. Other columns do not matter but for ``id``, which is kept. Of
      images a table has the paths, seen from its own folder, or Parquet the bytes. Where words are wanted records may
      have a list of them as ``words`` or ``tokens``, or a ``text``; where documents are, a ``prompt`` or ``messages``.
    - A folder, where images are wanted: all images below it, in the order of their paths.
    - Where words are wanted, CoNLL (``.conll``, ``.conllu``, ``.bio``, ``.iob``, ``.iob2``): a sentence an input,
      whatever stands beside its words. Where questions and contexts are, SQuAD's ``.json``.
    - ``builtin:NAME``: the test part of a built-in set.
    - Any other file, and ``-``, standard input: text, a line an input.

    Every file may be compressed (``.gz``, ``.xz``, ``.zst``). Lists of words lose ``strip_prefix`` where they begin
    with it. Raises ``HeedfulError`` with file and line for a file that is not as described, when it comes to it.
    """
    columns, names = resolve_columns(columns, names)
    if names is not None and len(names) not in (len(columns), len(required_columns(columns))):
        raise HeedfulError(
            f"{len(names)} names ({','.join(names)}) for what is asked with {', '.join(columns)}; --columns takes one "
            "for each, in that order"
        )
    made = _flagged(_chosen(source, columns, names, remembered or {}, say or _unheard))
    return made if not strip_prefix else (_stripped(one, strip_prefix) for one in made)


def _stripped(given: Input, prefix: str) -> Input:
    words = given.input
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        return given
    return given._replace(input=list(without_prefix(words, prefix)))


def _unheard(note: str) -> None:
    """Where nobody is to know how a file is read."""


def _flagged(made: Iterator[Input]) -> Iterator[Input]:
    with name_columns_option():
        yield from made


@contextmanager
def name_columns_option() -> Iterator[None]:
    """Errors name the flag by which columns are named where no run is made."""
    try:
        yield
    except HeedfulError as error:
        raise HeedfulError(str(error).replace("--data.columns", "--columns")) from error


def _chosen(
    source: str,
    columns: Mapping[str, Kind],
    names: Sequence[str] | None,
    remembered: Mapping[str, str],
    say: Callable[[str], None],
) -> Iterator[Input]:
    if source.startswith(builtin.PREFIX):
        return _rows(source, columns, names)
    table = source != STDIN and extension(source) in (*EXTENSIONS, TABBED)
    if "image" in columns.values():
        return _images(source, columns, names, table, remembered)
    if table or _is_recognised(source, columns, names):
        return _table(source, columns, names, remembered, say)
    if extension(source) in TAGGED and "words" in columns.values():
        return _sentences(source, names)
    if names is not None:
        what = "is one JSON document" if extension(source) == ".json" else "is plain text"
        raise HeedfulError(f"columns are named for {display_name(source)}, which {what}; leave --columns out")
    if os.path.isdir(source):
        raise HeedfulError(f"{source} is a folder and a file is wanted; give a file in it")
    if extension(source) == ".json" and columns.keys() >= ASKED:
        return _questions(source)
    if extension(source) == ".json":
        raise HeedfulError(f"{source} is one JSON document; give an object a line, and name it .jsonl")
    if extension(source) in TAGGED:
        raise HeedfulError(f"{source} has a word a line; give text with an input a line, or .jsonl with lists of words")
    return _lines(source)


def _is_recognised(source: str, columns: Mapping[str, Kind], names: Sequence[str] | None) -> bool:
    """Returns True if a file of another extension is a table: columns are given, or it is a JSON array of objects."""
    if source == STDIN or extension(source) in TAGGED or os.path.isdir(source):
        return False
    if extension(source) == ".json":
        return not columns.keys() >= ASKED and detect_format(source).kind == "json"
    return names is not None and detect_format(source, labelled=True).is_table


class _InputTable(Table):
    """A table of inputs: its ``id`` is taken where it is there, and a list of words or messages as it is. Without a
    header the inputs come first, and what is known of them may follow.
    """

    allows_extra: ClassVar[bool] = True

    def _columns_to_read(self) -> list[str]:
        return [*super()._columns_to_read(), ID]

    def _choose_columns(self, there: Container[str]) -> None:
        super()._choose_columns(there)
        if self.names is not None and ID in there:
            self.chosen_columns, self.file_columns = (*self.chosen_columns, ID), (*self.file_columns, ID)

    def _cell_value(self, record: dict[str, Any], column: str, name: str, line: int, label: Any) -> Any:
        value = nested_value(record, name)
        if column == ID and value is not MISSING:
            return value if isinstance(value, str | int | float | None) else str(value)
        if self.columns[column] in LISTED and isinstance(value, list):
            return value
        return super()._cell_value(record, column, name, line, label)


def _table(
    path: str,
    columns: Mapping[str, Kind],
    names: Sequence[str] | None,
    remembered: Mapping[str, str],
    say: Callable[[str], None],
) -> Iterator[Input]:
    wanted = dict(columns)
    names = names or _also(path, columns)
    if names is not None:
        wanted = {name: kind for name, kind in columns.items() if len(names) == len(columns) or kind[-1] != "?"}
    kinds: dict[str, Kind] = {**wanted, ID: "text?"}
    table = _InputTable(path, kinds, names, remembered=remembered)
    for line, cells in table:
        while cells and table.notes:
            say(table.notes.pop(0).replace("--data.columns", "--columns"))
        values = (
            dict(zip(table.chosen_columns, cells, strict=True))
            if cells
            else dict.fromkeys(required_columns(wanted), "")
        )
        yield _given(values, f"{display_name(path)}:{line}")


def _also(path: str, columns: Mapping[str, Kind]) -> list[str] | None:
    """Returns the name that the first record uses for the only column, where that may have several names."""
    (column, kind), *more = columns.items()
    if more or kind not in LISTED or extension(path) not in RECORDS:
        return None
    records = ParquetRecords(path, []) if extension(path) == ".parquet" else read_json_lines(path)
    first = next((record for _, record in records if record is not BLANK), {})
    return next(([name] for name in (column, *LISTED[kind]) if name in first), None)


def _given(values: dict[str, Any], where: str) -> Input:
    number = values.pop(ID, None)
    if isinstance(number, str):
        checked_text(number, ID, where)
    blank = not any(value.strip() if isinstance(value, str) else value for value in values.values())
    return Input(values if len(values) > 1 else next(iter(values.values())), where, number, blank)


def _lines(path: str) -> Iterator[Input]:
    for line, text in read_lines(path):
        yield Input(text, f"{display_name(path)}:{line}", None, not text.strip())


def _sentences(path: str, names: Sequence[str] | None) -> Iterator[Input]:
    for sentence in read_sentences(path, names):
        yield Input(list(sentence.words), f"{display_name(path)}:{sentence.line}")


def _questions(path: str) -> Iterator[Input]:
    for line, values in read_questions(path):
        yield _given(values, f"{display_name(path)}:{line}")


def _rows(source: str, columns: Mapping[str, Kind], names: Sequence[str] | None) -> Iterator[Input]:
    for row in read(source, columns, names=names, split="test"):
        yield _given({name: row.values[name] for name in columns if name in row.values}, f"{row.file}:{row.line}")


def _images(
    source: str, columns: Mapping[str, Kind], names: Sequence[str] | None, table: bool, remembered: Mapping[str, str]
) -> Iterator[Input]:
    (column,) = columns
    if os.path.isdir(source) and names is None:
        for path in image_folder.all_images(source)[0]:
            yield Input(LazyImage.of(path), path)
    elif not table:
        for row in image_reader.read_rows([source], columns, names):
            yield Input(row.values[column], f"{row.file}:{row.line}")
    else:
        for given in _table(source, columns, names, remembered, _unheard):
            if given.blank:
                yield given
                continue
            line = int(given.where.rpartition(":")[2])
            yield given._replace(input=image_reader.cell_image(given.input, source, line))


def input_identity(given: Input) -> str:
    """An input and its id as a text that no other has, for digests; of an image its name, or its bytes."""
    source = getattr(given.input, "source", None)
    return repr((given.id, given.input, source if isinstance(source, bytes) else None))
