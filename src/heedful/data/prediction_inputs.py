"""Input files for prediction and evaluation, streamed: a file may be larger than memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from heedful.data import builtin, hub_datasets, image_folder, image_reader, mixtures
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

ID = "id"  # column of a row's name, which the output repeats
CONLL = (".conll", ".conllu", ".conll-u", ".bio", ".iob", ".iob2")  # a word a line, not an input a line
SQUAD_COLUMNS = {"question", "context"}  # columns for which SQuAD's JSON is read
RECORDS = (".jsonl", ".ndjson", ".parquet")
TAB = ".tab"  # a table too; other unknown extensions are plain text
# Columns whose values may be lists in records, and their other names there.
LIST_COLUMNS: dict[str, tuple[str, ...]] = {"words": ("words", "tokens", "text"), "document": ("prompt", "messages")}


class Input(NamedTuple):
    """One input of a file, with its location for messages and its id."""

    input: Any  # a value, or a mapping of several columns
    location: str  # file and line, for messages
    id: Any = None  # its name in the file, if any
    blank: bool = False  # a blank line, or a row with blank values only


def read_inputs(
    source: str,
    columns: Mapping[str, Kind],
    names: Sequence[str] | None = None,
    *,
    remembered: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
    strip_prefix: str | None = None,
) -> Iterator[Input]:
    """Yields each input of ``source``, in order, including blank inputs.

    - A table: ``.tsv``, ``.tab``, ``.csv``, ``.jsonl``, ``.ndjson``, ``.parquet``, a JSON array of objects (``.json``)
      or, with ``names``, any other that ``heedful.data.read`` detects. Its ``columns`` are found as in
      ``heedful.data.read``: by their own names, by ``names`` or numbers, as ``remembered``, or inferred; ``say``
      receives notes on the choice. ``id`` is read too, other columns are ignored. Images are paths, relative to the
      table's folder, or bytes in Parquet. For words, records may have a list ``words`` or ``tokens``, or a ``text``;
      for documents, ``prompt`` or ``messages``.
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
    inputs = _with_columns_option(_read_source(source, columns, names, remembered or {}, say or _ignore_note))
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


def _read_source(
    source: str,
    columns: Mapping[str, Kind],
    names: Sequence[str] | None,
    remembered: Mapping[str, str],
    say: Callable[[str], None],
) -> Iterator[Input]:
    if source.startswith(builtin.PREFIX):
        return _rows(source, columns, names)
    if source.startswith(hub_datasets.PREFIX):
        splits = hub_datasets.hub_splits(source)
        files = hub_datasets.files(source, "test" if "test" in splits else next(iter(splits), None))
        return chain.from_iterable(_read_source(file, columns, names, remembered, say) for file in files)
    if mixtures.is_mixture([source]):
        return _prompts(source, next(iter(columns)), names)
    is_table = source != STDIN and extension(source) in (*EXTENSIONS, TAB)
    if "image" in columns.values():
        return _images(source, columns, names, is_table, remembered)
    if is_table or _is_detected_table(source, columns, names):
        return _table(source, columns, names, remembered, say)
    if extension(source) in CONLL and "words" in columns.values():
        return _sentences(source, names)
    if names is not None:
        form = "one JSON document" if extension(source) == ".json" else "plain text"
        raise HeedfulError(f"{display_name(source)} is {form} and has no columns; leave --columns out")
    if os.path.isdir(source):
        raise HeedfulError(f"{source} is a folder, but a file is expected; give a file in it")
    if extension(source) == ".json" and columns.keys() >= SQUAD_COLUMNS:
        return _questions(source)
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
    """Table of inputs. ``id`` is read if present; lists of words or messages are unchanged.

    Without a header the input columns come first, and other columns may follow.
    """

    allows_extra: ClassVar[bool] = True

    def _columns_to_read(self) -> list[str]:
        return [*super()._columns_to_read(), ID]

    def _choose_columns(self, available: Container[str]) -> None:
        super()._choose_columns(available)
        if self.names is not None and ID in available:
            self.chosen_columns, self.file_columns = (*self.chosen_columns, ID), (*self.file_columns, ID)

    def _cell_value(self, record: dict[str, Any], column: str, name: str, line: int, reader: Any) -> Any:
        value = nested_value(record, name)
        if column == ID and value is not MISSING:
            return value if isinstance(value, str | int | float | None) else str(value)
        if self.columns[column] in LIST_COLUMNS and isinstance(value, list):
            return value
        return super()._cell_value(record, column, name, line, reader)


def _table(
    path: str,
    columns: Mapping[str, Kind],
    names: Sequence[str] | None,
    remembered: Mapping[str, str],
    say: Callable[[str], None],
) -> Iterator[Input]:
    named = dict(columns)
    names = names or _other_name(path, columns)
    if names is not None:
        named = {name: kind for name, kind in columns.items() if len(names) == len(columns) or kind[-1] != "?"}
    kinds: dict[str, Kind] = {**named, ID: "text?"}
    table = _InputTable(path, kinds, names, remembered=remembered)
    for line, cells in table:
        while cells and table.notes:
            say(table.notes.pop(0).replace("--data.columns", "--columns"))
        values = (
            dict(zip(table.chosen_columns, cells, strict=True)) if cells else dict.fromkeys(required_columns(named), "")
        )
        yield _input_of(values, f"{display_name(path)}:{line}")


def _other_name(path: str, columns: Mapping[str, Kind]) -> list[str] | None:
    """Returns the first record's name for the only column, if the column has several possible names."""
    (column, kind), *others = columns.items()
    if others or kind not in LIST_COLUMNS or extension(path) not in RECORDS:
        return None
    records = ParquetRecords(path, []) if extension(path) == ".parquet" else read_json_lines(path)
    first = next((record for _, record in records if record is not BLANK), {})
    return next(([name] for name in (column, *LIST_COLUMNS[kind]) if name in first), None)


def _input_of(values: dict[str, Any], location: str) -> Input:
    number = values.pop(ID, None)
    if isinstance(number, str):
        checked_text(number, ID, location)
    blank = not any(value.strip() if isinstance(value, str) else value for value in values.values())
    return Input(values if len(values) > 1 else next(iter(values.values())), location, number, blank)


def _prompts(path: str, column: str, names: Sequence[str] | None) -> Iterator[Input]:
    if names is not None:
        raise HeedfulError(f"--columns has no effect on a mixture; set columns in {path}, or leave the option out")
    for text, choices, location in mixtures.read_prompts(path, read):
        yield Input(text if choices is None else {column: text, "choices": list(choices)}, location)


def _lines(path: str) -> Iterator[Input]:
    for line, text in read_lines(path):
        yield Input(text, f"{display_name(path)}:{line}", None, not text.strip())


def _sentences(path: str, names: Sequence[str] | None) -> Iterator[Input]:
    for sentence in read_sentences(path, names):
        yield Input(list(sentence.words), f"{display_name(path)}:{sentence.line}")


def _questions(path: str) -> Iterator[Input]:
    for line, values in read_questions(path):
        yield _input_of(values, f"{display_name(path)}:{line}")


def _rows(source: str, columns: Mapping[str, Kind], names: Sequence[str] | None) -> Iterator[Input]:
    for row in read(source, columns, names=names, split="test"):
        yield _input_of({name: row.values[name] for name in columns if name in row.values}, f"{row.file}:{row.line}")


def _images(
    source: str, columns: Mapping[str, Kind], names: Sequence[str] | None, is_table: bool, remembered: Mapping[str, str]
) -> Iterator[Input]:
    (column,) = columns
    if os.path.isdir(source) and names is None and not image_reader.is_idx_folder(source):
        for path in image_folder.all_images(source)[0]:
            yield Input(LazyImage.of(path), path)
    elif not is_table:
        split = "test" if "test" in image_reader.image_splits([source]) else None
        for row in image_reader.read_images([source], columns, names, split, remembered=remembered):
            yield Input(row.values[column], f"{row.file}:{row.line}")
    else:
        for item in _table(source, columns, names, remembered, _ignore_note):
            if item.blank:
                yield item
                continue
            line = int(item.location.rpartition(":")[2])
            yield item._replace(input=image_reader.cell_image(item.input, source, line))


def input_identity(item: Input) -> str:
    """Returns a text that identifies an input and its id, for digests; an image by its name or its bytes."""
    source = getattr(item.input, "source", None)
    return repr((item.id, item.input, source if isinstance(source, bytes) else None))
