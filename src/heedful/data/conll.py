"""Readers of tagged words: CoNLL files with a word a line, JSON lines and Parquet with lists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from heedful.data import builtin
from heedful.data.cell_values import brief, checked_text
from heedful.data.column_inference import columns_option
from heedful.data.records import (
    BLANK,
    MISSING,
    ParquetRecords,
    nested_keys,
    nested_value,
    read_json_lines,
    record_classes,
)
from heedful.data.rows import Kind, Row, Rows
from heedful.data.text_files import display_name, extension, read_lines
from heedful.errors import HeedfulError, plural

LISTS = (".jsonl", ".ndjson", ".parquet")
KEYS = {"words": ("words", "tokens"), "tags": ("tags", "ner_tags")}  # of files with lists; the Hub's names come last
DOCUMENT = "-DOCSTART-"  # separates documents in CoNLL-2003
NOT_A_WORD = re.compile(r"\d+[-.]\d+")  # number of a CoNLL-U line that is not a word: several words, or an empty one
OBJECT = '{"words": ["the", "word"], "tags": ["O", "O"]}'
CONLLU = (".conllu", ".conll-u")
UNIVERSAL = ("2", "4")  # in CoNLL-U: the form, and the universal part of speech
# Cells of a header. As words with such tags they occur nowhere.
HEADER = {"word", "words", "token", "tokens", "form"}, {"tag", "tags", "label", "labels", "ner_tag", "ner_tags", "ner"}
HOW = "write one word, a tab and its tag in each line, and a blank line between sentences"


class Sentence(NamedTuple):
    """Sentence: its words, a tag for each word, and the line of the first word."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    line: int


def read_tagged_words(
    sources: Sequence[str],
    kinds: Mapping[str, Kind],
    names: Sequence[str] | None = None,
    split: str | None = None,
    limit: int | None = None,
) -> Rows:
    """Reads the sentences of files, one a row: its words and their tags.

    - ``.jsonl``, ``.ndjson`` and ``.parquet`` have a list of words and a list of tags a row. They are called ``words``
      or ``tokens``, and ``tags`` or ``ner_tags``, or as in ``names``. Tags that are numbers are replaced by the file's
      names for them (the Hub's ClassLabel), or written out.
    - Every other file is CoNLL: a word a line, columns separated by a tab or blanks. The word is the first column and
      the tag the last (in ``.conllu`` the second and the fourth), or those in ``names``: numbers, or names if the first
      line has them. A first line such as ``word tag`` is a header. Blank lines and ``-DOCSTART-`` separate sentences.

    Comments are ignored: lines that begin with ``#`` before a sentence and have another number of columns, and in
    ``.conllu`` lines numbered ``3-4`` and ``3.1``. Several files are read one after another. ``split`` has no effect:
    files have no splits. Rows without words are counted in ``Rows.skipped``.

    Raises ``HeedfulError``, naming file and line, for a word without a tag, lists of different lengths, a line with
    another number of columns, and for files without sentences; also if ``kinds`` has other columns than words and tags.
    """
    if len(kinds) != 2:
        raise HeedfulError(
            f"words and their tags are read alone, but the task has the columns {', '.join(kinds)}; "
            "give them the kind 'texts', or override the task's read_rows"
        )
    words, tags = kinds
    rows = Rows()
    for source in sources:
        if source.startswith(builtin.PREFIX):
            raise HeedfulError(f"{source!r} cannot be combined with other files; give it alone")
        if extension(source) == ".csv":
            raise HeedfulError(f"{source} is a table of cells, but words with tags are expected; {HOW}")
        if extension(source) == ".json":
            raise HeedfulError(
                f"{source} is one JSON document, but words with tags are expected; write one object in each line, "
                f"{OBJECT}, and name it .jsonl"
            )
        file: _ListFile | _ColumnFile = (_ListFile if extension(source) in LISTS else _ColumnFile)(source, names)
        for sentence in file:
            if not sentence.words:
                rows.skip(source, sentence.line)
                continue
            rows.append(Row({words: sentence.words, tags: sentence.tags}, source, sentence.line))
            if len(rows) == limit:
                break
        rows.columns = file.file_columns
        if len(rows) == limit:
            return rows
    if not rows:
        how = f"write one object in each line: {OBJECT}" if extension(sources[-1]) in LISTS else HOW
        raise HeedfulError(f"no sentences in {display_name(', '.join(sources))}; {how}")
    return rows


def without_prefix(words: Sequence[str], prefix: str) -> tuple[str, ...]:
    """Returns words without a prefix. A word that consists of the prefix alone is unchanged.

    >>> without_prefix(["en:In", "en:Paris", "en:", "now"], "en:")
    ('In', 'Paris', 'en:', 'now')
    """
    return tuple(word.removeprefix(prefix) or word for word in words)


def with_stripped_words(rows: Rows, prefix: str | None) -> Rows:
    """Returns rows with the prefix removed from each of their words; a word that is only the prefix is unchanged."""
    if not prefix:
        return rows
    stripped = Rows(
        [
            replace(row, values={**row.values, "words": without_prefix(row.values["words"], prefix)})
            if "words" in row.values
            else row
            for row in rows
        ],
        rows.skipped,
        rows.columns,
    )
    stripped.blank = rows.blank
    stripped.inherit_from(rows)
    return stripped


def line_of_word(row: Row, index: int) -> int:
    """Returns the line number of a word of a sentence.

    In a file with a word a line it is the word's own line; in lists and CoNLL-U it is the line of the sentence.

    >>> line_of_word(Row({"words": ("in", "Paris"), "tags": ("O", "B-LOC")}, "places.conll", 7), 1)
    8
    """
    has_sentence_lines = extension(row.file) in (*LISTS, *CONLLU)
    return row.line if has_sentence_lines else row.line + index


def read_sentences(path: str, names: Sequence[str] | None = None) -> Iterator[Sentence]:
    """Yields the sentences of a CoNLL file with their words, without tags; other columns are ignored.

    ``names`` has the name or the number of the words' column.
    """
    return iter(_ColumnFile(path, names, has_tags=False))


class _ColumnFile:
    """CoNLL file. ``file_columns`` are the names of the columns of words and, with ``has_tags``, tags."""

    def __init__(self, path: str, names: Sequence[str] | None, has_tags: bool = True) -> None:
        self.path = path
        self._has_tags, self._is_conllu = has_tags, extension(path) in CONLLU
        self._names = tuple(names) if names is not None else UNIVERSAL[: 1 + has_tags] if self._is_conllu else None
        self.file_columns: tuple[str, ...] = tuple(names or KEYS)

    def __iter__(self) -> Iterator[Sentence]:
        words: list[str] = []
        tags: list[str] = []
        line = 0
        for number, cells in chain(self._lines(), [(0, [])]):
            if cells:
                word, tag = self._word_and_tag(cells, number)
                line = line or number
                words.append(word)
                tags.append(tag)
            elif words:
                yield Sentence(tuple(words), tuple(tags), line)
                words, tags, line = [], [], 0

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        """Yields (line, cells) for each word, and (line, []) at the end of a sentence."""
        lines = ((number, _cells(text)) for number, text in read_lines(self.path))
        buffered = []  # possible comments, until a line shows the number of columns
        for number, cells in lines:
            buffered.append((number, cells))
            if cells and cells[0] != DOCUMENT and not cells[0].startswith("#"):
                break
        first_line, cells = buffered[-1] if buffered else (0, [])
        width = 2 if cells and cells[0].startswith("#") else len(cells)
        in_sentence = has_columns = False
        for number, cells in chain(buffered, lines):
            is_comment = bool(cells) and not in_sentence and cells[0].startswith("#") and len(cells) != width
            if is_comment or (self._is_conllu and cells and NOT_A_WORD.fullmatch(cells[0])):
                continue
            if cells and cells[0] == DOCUMENT:
                cells = []
            if cells and not has_columns:
                has_columns = True
                if self._choose_columns(cells, number):
                    continue
            if cells and len(cells) != width:
                raise HeedfulError(
                    f"{plural(len(cells), 'column')}, but line {first_line} has {width}, in "
                    f"{display_name(self.path)}:{number}; "
                    f"{'is the tag missing? ' if len(cells) < width else ''}{HOW}"
                )
            in_sentence = bool(cells)
            yield number, cells

    def _choose_columns(self, first: list[str], line: int) -> bool:
        """Chooses the columns. Returns True if the first line is a header."""
        location = f"{display_name(self.path)}:{line}"
        if self._names is None:
            if len(first) < 2 and self._has_tags:
                raise HeedfulError(f"the word {brief(first[0])!r} has no tag, in {location}; {HOW}")
            self._positions = (0, -1)[: 1 + self._has_tags]
            is_header = len(first) > 1 and all(
                cell.lower() in names for cell, names in zip((first[0], first[-1]), HEADER, strict=True)
            )
            if is_header:
                self.file_columns = (first[0], first[-1])
            return is_header
        if all(name in first for name in self._names):
            self._positions = tuple(map(first.index, self._names))
            return True
        wrong = next((name for name in self._names if not name.isdecimal()), None)
        if wrong is not None:
            raise HeedfulError(
                f"no column {wrong!r} among {', '.join(map(repr, first))}, in {location}; give the number of "
                + (
                    "the word's and the tag's column: --data.columns 1,2"
                    if self._has_tags
                    else "the word's column: --data.columns 1"
                )
            )
        outside = next((name for name in self._names if not 1 <= int(name) <= len(first)), None)
        if outside is not None:
            raise HeedfulError(
                f"{plural(len(first), 'column')}, but column {outside} is needed, in {location}; choose other columns: "
                "--data.columns 1" + (f",{len(first)}" if self._has_tags else "")
            )
        self._positions = tuple(int(name) - 1 for name in self._names)
        return False

    def _word_and_tag(self, cells: list[str], line: int) -> tuple[str, str]:
        word, tag = cells[self._positions[0]], cells[self._positions[-1]]
        if not word or not tag:
            problem = f"the word {brief(word)!r} has no tag" if word else f"the tag {brief(tag)!r} has no word"
            raise HeedfulError(f"{problem}, in {display_name(self.path)}:{line}; {HOW}")
        return word, tag


def _cells(text: str) -> list[str]:
    """Splits a line at its tabs, or at blanks if it has no tab; [] for a blank line."""
    if not text.strip():
        return []
    text = text.rstrip(" \t")
    cells = text.split("\t") if "\t" in text else filter(None, text.split(" "))
    return [cell.strip(" ") for cell in cells]


class _ListFile:
    """File with a list of words and a list of tags a row. ``file_columns`` are their keys."""

    def __init__(self, path: str, names: Sequence[str] | None) -> None:
        self.path, self._names = path, names
        self.file_columns: tuple[str, ...] = tuple(names or ())

    def __iter__(self) -> Iterator[Sentence]:
        features: Mapping[str, Any] = {}
        if extension(self.path) == ".parquet":
            parquet = ParquetRecords(self.path, self._names or [*KEYS])
            records, features = iter(parquet), parquet.features
        else:
            records = read_json_lines(self.path)
        for line, record in records:
            if record is BLANK:
                yield Sentence((), (), line)
                continue
            location = f"{display_name(self.path)}:{line}"
            if not self.file_columns:
                self.file_columns = tuple(_key(record, column, location) for column in KEYS)
            words_key, tags_key = self.file_columns
            words, tags = (self._list(record, name, location) for name in self.file_columns)
            if len(words) != len(tags):
                raise HeedfulError(
                    f"{plural(len(words), 'word')}, but {plural(len(tags), 'tag')}, in {location}; "
                    "write exactly one tag for each word"
                )
            classes = record_classes(features, tags_key)
            yield Sentence(
                tuple(_word(word, words_key, location) for word in words),
                tuple(_tag(tag, tags_key, location, classes) for tag in tags),
                line,
            )

    def _list(self, record: Mapping[str, Any], name: str, location: str) -> list[Any]:
        value = nested_value(record, name)
        if value is MISSING:
            raise _missing_error(record, name, location)
        if not isinstance(value, list):
            raise HeedfulError(
                f"{name!r} is {brief(json.dumps(value, default=str))}, but a list is expected, in {location}; write "
                f"{OBJECT}, or choose other columns with --data.columns"
            )
        return value


def _key(record: Mapping[str, Any], column: str, location: str) -> str:
    key = next((name for name in KEYS[column] if name in record), None)
    if key is None:
        raise _missing_error(record, column, location)
    return key


def _missing_error(record: Mapping[str, Any], name: str, location: str) -> HeedfulError:
    present = ", ".join(repr(brief(key)) for key in list(nested_keys(record))[:12]) or "nothing"
    lists = [key for key, value in record.items() if isinstance(value, list)]
    words = next((key for key in (*KEYS["words"], *lists) if key in lists), None)
    tags = next((key for key in (*KEYS["tags"], *lists) if key in lists and key != words), None)
    remedy = (
        f"name the columns: {columns_option([words, tags])}"
        if words and tags
        else f"write one object in each line: {OBJECT}"
    )
    return HeedfulError(f"no column {name!r} among {present}, in {location}; {remedy}")


def _word(value: Any, column: str, location: str) -> str:
    if not isinstance(value, str) or not value:
        raise HeedfulError(
            f"{column!r} holds {brief(json.dumps(value, default=str))}, but a word is expected, in {location}; write "
            "every word as a string, not empty"
        )
    return checked_text(value, column, location)


def _tag(value: Any, column: str, location: str, classes: Sequence[str] | None) -> str:
    if isinstance(value, str) and value.strip():
        return checked_text(value, column, location).strip()
    if isinstance(value, bool) or not isinstance(value, int):
        raise HeedfulError(
            f"{column!r} holds {brief(json.dumps(value, default=str))}, but a tag is expected, in {location}; write "
            "every tag as text or as a whole number"
        )
    if classes is None:
        return str(value)
    if not 0 <= value < len(classes):
        raise HeedfulError(
            f"{column!r} holds {value}, but the file has names only for the tags 0 to {len(classes) - 1} "
            f"({brief(', '.join(classes))}), in {location}; correct the tag or remove the sentence"
        )
    return classes[value]
