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
from heedful.data.records import BLANK, MISSING, ParquetRecords, class_names, nested_keys, nested_value, read_json_lines
from heedful.data.rows import Kind, Row, Rows
from heedful.data.text_files import display_name, extension, read_lines
from heedful.errors import HeedfulError

LISTS = (".jsonl", ".ndjson", ".parquet")
KEYS = {"words": ("words", "tokens"), "tags": ("tags", "ner_tags")}  # what files of lists call them, the Hub's last
DOCUMENT = "-DOCSTART-"  # parts documents in CoNLL-2003
NO_WORD = re.compile(r"\d+[-.]\d+")  # how CoNLL-U numbers a line that is no word: words written as one, and empty ones
OBJECT = '{"words": ["the", "word"], "tags": ["O", "O"]}'
CONLLU = (".conllu", ".conll-u")
UNIVERSAL = ("2", "4")  # in CoNLL-U: the form, and the universal part of speech
# how a first line may call its columns, where it is a header; as words with such tags they stand nowhere
HEADER = {"word", "words", "token", "tokens", "form"}, {"tag", "tags", "label", "labels", "ner_tag", "ner_tags", "ner"}
HOW = "write a word, a tab and its tag a line, and a blank line between sentences"


class Sentence(NamedTuple):
    """Words, as many tags, and the line of the first word."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    line: int


def read_rows(
    sources: Sequence[str],
    kinds: Mapping[str, Kind],
    names: Sequence[str] | None = None,
    split: str | None = None,
    limit: int | None = None,
) -> Rows:
    """The sentences of files, a row each: its words and, as many, its tags.

    - ``.jsonl``, ``.ndjson`` and ``.parquet`` hold a list of words and one of tags a row, called ``words`` or
      ``tokens``, and ``tags`` or ``ner_tags``, or as ``names`` says. Numbers are called by the names that the file
      gives them (the Hub's ClassLabel), or else are written out.
    - Every other file is CoNLL: a word a line, its columns parted by a tab or by blanks, the word the first and the tag
      the last one (in ``.conllu`` the second and the fourth), or those numbered by ``names``, which are names where the
      first line holds them. A first line that calls them ``word`` and ``tag``, or alike, is a header. Lines without
      anything but blanks part sentences, and so does ``-DOCSTART-``.

    Passed over are lines that begin with ``#`` at the head of a sentence and do not have the columns of the others
    (comments), and in ``.conllu`` lines numbered ``3-4`` and ``3.1``. Several files are read one after another.
    ``split`` has no effect: files have no parts. Rows without words are counted in ``Rows.skipped``.

    Raises ``HeedfulError``, naming file and line, for a word without a tag, lists of different lengths, another number
    of columns than in the line before, and for no sentence at all.
    """
    words, tags = kinds
    rows = Rows()
    for source in sources:
        if source.startswith(builtin.PREFIX):
            raise HeedfulError(f"{source!r} cannot be one of several files; give it alone")
        if extension(source) == ".csv":
            raise HeedfulError(f"{source} is a table of cells, and words with tags are wanted; {HOW}")
        if extension(source) == ".json":
            raise HeedfulError(
                f"{source} is one JSON document, and words with tags are wanted; write an object a line, "
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
        rows.columns = file.found
        if len(rows) == limit:
            return rows
    if not rows:
        how = f"write an object a line: {OBJECT}" if extension(sources[-1]) in LISTS else HOW
        raise HeedfulError(f"no sentences in {display_name(', '.join(sources))}; {how}")
    return rows


def without_prefix(words: Sequence[str], prefix: str) -> tuple[str, ...]:
    """The words, without the prefix where they begin with it; a word that is nothing else stays.

    >>> without_prefix(["en:In", "en:Paris", "en:", "now"], "en:")
    ('In', 'Paris', 'en:', 'now')
    """
    return tuple(word.removeprefix(prefix) or word for word in words)


def with_stripped_words(rows: Rows, prefix: str | None) -> Rows:
    """The rows with `without_prefix` of their words; the same ones where there is no prefix, or a row has no words."""
    if not prefix:
        return rows
    found = Rows(
        [
            replace(row, values={**row.values, "words": without_prefix(row.values["words"], prefix)})
            if "words" in row.values
            else row
            for row in rows
        ],
        rows.skipped,
        rows.columns,
    )
    found.blank = rows.blank
    found.inherit_from(rows)
    return found


def line_of_word(row: Row, place: int) -> int:
    """The line of a sentence's word: in columns each has its own; in lists and CoNLL-U the sentence's is known.

    >>> line_of_word(Row({"words": ("in", "Paris"), "tags": ("O", "B-LOC")}, "places.conll", 7), 1)
    8
    """
    together = row.file.startswith(builtin.PREFIX) or extension(row.file) in (*LISTS, *CONLLU)
    return row.line if together else row.line + place


def read_sentences(path: str, names: Sequence[str] | None = None) -> Iterator[Sentence]:
    """The sentences of a CoNLL file as `read_rows` reads them, but of words alone: other columns do not matter, and
    there need be none. ``names`` has the name or the number of the word's.
    """
    return iter(_ColumnFile(path, names, tagged=False))


class _ColumnFile:
    """A CoNLL file; ``found`` says which columns are taken, as the person or the header calls them: the word's and,
    where ``tagged``, the tag's.
    """

    def __init__(self, path: str, names: Sequence[str] | None, tagged: bool = True) -> None:
        self.path = path
        universal = extension(path) in CONLLU
        self._tagged, self._numbered = tagged, universal  # whether the first column may say that a line is no word
        self._names = tuple(names) if names is not None else UNIVERSAL[: 1 + tagged] if universal else None
        self.found: tuple[str, ...] = tuple(names or KEYS)

    def __iter__(self) -> Iterator[Sentence]:
        words: list[str] = []
        tags: list[str] = []
        line = 0
        for number, cells in chain(self._lines(), [(0, [])]):
            if cells:
                word, tag = self._taken(cells, number)
                line = line or number
                words.append(word)
                tags.append(tag)
            elif words:
                yield Sentence(tuple(words), tuple(tags), line)
                words, tags, line = [], [], 0

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        """The cells of each line that is a word, [] where a sentence ends."""
        lines = ((number, _cells(text)) for number, text in read_lines(self.path))
        waiting = []  # lines that may be comments, until one shows how many columns there are
        for number, cells in lines:
            waiting.append((number, cells))
            if cells and cells[0] != DOCUMENT and not cells[0].startswith("#"):
                break
        began, cells = waiting[-1] if waiting else (0, [])
        width = 2 if cells and cells[0].startswith("#") else len(cells)
        inside = chosen = False
        for number, cells in chain(waiting, lines):
            comment = bool(cells) and not inside and cells[0].startswith("#") and len(cells) != width
            if comment or (self._numbered and cells and NO_WORD.fullmatch(cells[0])):
                continue
            if cells and cells[0] == DOCUMENT:
                cells = []
            if cells and not chosen:
                chosen = True
                if self._choose(cells, number):
                    continue
            if cells and len(cells) != width:
                raise HeedfulError(
                    f"{_count(len(cells))} where line {began} has {width}, in {display_name(self.path)}:{number}; "
                    f"{'a word without its tag? ' if len(cells) < width else ''}{HOW}"
                )
            inside = bool(cells)
            yield number, cells

    def _choose(self, first: list[str], line: int) -> bool:
        """Settle which columns are taken; whether the first line is a header, which says so."""
        where = f"{display_name(self.path)}:{line}"
        if self._names is None:
            if len(first) < 2 and self._tagged:
                raise HeedfulError(f"the word {brief(first[0])!r} has no tag, in {where}; {HOW}")
            self._places = (0, -1)[: 1 + self._tagged]
            header = len(first) > 1 and all(
                cell.lower() in names for cell, names in zip((first[0], first[-1]), HEADER, strict=True)
            )
            if header:
                self.found = (first[0], first[-1])
            return header
        if all(name in first for name in self._names):
            self._places = tuple(map(first.index, self._names))
            return True
        wrong = next((name for name in self._names if not name.isdecimal()), None)
        if wrong is not None:
            raise HeedfulError(
                f"no column {wrong!r} among {', '.join(map(repr, first))}, in {where}; number the "
                + (
                    "columns of the word and of the tag: --data.columns 1,2"
                    if self._tagged
                    else "word's: --data.columns 1"
                )
            )
        outside = next((name for name in self._names if not 1 <= int(name) <= len(first)), None)
        if outside is not None:
            raise HeedfulError(
                f"{_count(len(first))}, and column {outside} is wanted, in {where}; choose others: --data.columns 1"
                + (f",{len(first)}" if self._tagged else "")
            )
        self._places = tuple(int(name) - 1 for name in self._names)
        return False

    def _taken(self, cells: list[str], line: int) -> tuple[str, str]:
        word, tag = cells[self._places[0]], cells[self._places[-1]]
        if not word or not tag:
            lacking = f"the word {brief(word)!r} has no tag" if word else f"the tag {brief(tag)!r} has no word"
            raise HeedfulError(f"{lacking}, in {display_name(self.path)}:{line}; {HOW}")
        return word, tag


def _cells(text: str) -> list[str]:
    """The columns of a line: between tabs, where it has any, else between blanks; of a blank line none."""
    if not text.strip():
        return []
    text = text.rstrip(" \t")
    cells = text.split("\t") if "\t" in text else filter(None, text.split(" "))
    return [cell.strip(" ") for cell in cells]


class _ListFile:
    """A file with a list of words and a list of tags a row; ``found`` says under which keys."""

    def __init__(self, path: str, names: Sequence[str] | None) -> None:
        self.path, self._names = path, names
        self.found: tuple[str, ...] = tuple(names or ())

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
            where = f"{display_name(self.path)}:{line}"
            if not self.found:
                self.found = tuple(_known(record, column, where) for column in KEYS)
            words, tags = (self._list(record, name, where) for name in self.found)
            if len(words) != len(tags):
                raise HeedfulError(
                    f"{_count(len(words), 'word')} and {_count(len(tags), 'tag')}, in {where}; give each word one tag"
                )
            called = class_names(features, self.found[1])
            yield Sentence(
                tuple(_word(word, self.found[0], where) for word in words),
                tuple(_tag(tag, self.found[1], where, called) for tag in tags),
                line,
            )

    def _list(self, record: Mapping[str, Any], name: str, where: str) -> list[Any]:
        value = nested_value(record, name)
        if value is MISSING:
            raise _not_found(record, name, where)
        if not isinstance(value, list):
            raise HeedfulError(
                f"{name!r} is {brief(json.dumps(value, default=str))} and a list is wanted, in {where}; write "
                f"{OBJECT}, or choose other columns: --data.columns"
            )
        return value


def _known(record: Mapping[str, Any], column: str, where: str) -> str:
    found = [name for name in KEYS[column] if name in record]
    if not found:
        raise _not_found(record, column, where)
    return found[0]


def _not_found(record: Mapping[str, Any], name: str, where: str) -> HeedfulError:
    there = ", ".join(repr(brief(key)) for key in list(nested_keys(record))[:12]) or "nothing"
    lists = [key for key, value in record.items() if isinstance(value, list)]
    words = next((key for key in (*KEYS["words"], *lists) if key in lists), None)
    tags = next((key for key in (*KEYS["tags"], *lists) if key in lists and key != words), None)
    remedy = (
        f"say which to use: --data.columns {words},{tags}" if words and tags else f"write an object a line: {OBJECT}"
    )
    return HeedfulError(f"no column {name!r} among {there}, in {where}; {remedy}")


def _word(value: Any, column: str, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise HeedfulError(
            f"{column!r} holds {brief(json.dumps(value, default=str))} where a word is wanted, in {where}; write every "
            "word as a string with something in it"
        )
    return checked_text(value, column, where)


def _tag(value: Any, column: str, where: str, called: Sequence[str] | None) -> str:
    if isinstance(value, str) and value.strip():
        return checked_text(value, column, where).strip()
    if isinstance(value, bool) or not isinstance(value, int):
        raise HeedfulError(
            f"{column!r} holds {brief(json.dumps(value, default=str))} where a tag is wanted, in {where}; write every "
            "tag as text or as a whole number"
        )
    if called is None:
        return str(value)
    if not 0 <= value < len(called):
        raise HeedfulError(
            f"{column!r} holds {value}, and the file names the tags 0 to {len(called) - 1} "
            f"({brief(', '.join(called))}), in {where}; give sentences with tags"
        )
    return called[value]


def _count(number: int, what: str = "column") -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
