"""Tables: TSV, CSV, JSON lines and Parquet as (line, values) with the wanted columns found."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import chain
from typing import Any, ClassVar

from heedful.data.files import STDIN, extension, raw_lines, shown, text_stream
from heedful.data.labels import Labels, brief, whole
from heedful.data.numbers import Numbers
from heedful.data.records import BLANK, MISSING, Parquet, classes, from_json, keys, look_up
from heedful.data.rows import Kind, required
from heedful.errors import HeedfulError

EXTENSIONS = (".tsv", ".csv", ".jsonl", ".ndjson", ".parquet")
Reader = Labels | Numbers
NEAR = 0.8  # from which likeness on (difflib's ratio) a cell is a wanted name with a slip: "sorce" 0.91, "test" 0.75
CALLED = {  # what columns are called by, here and elsewhere
    *("id", "text", "text_pair", "label", "labels", "class", "category", "score", "source", "target", "src", "tgt"),
    *("language", "summary", "document", "article", "highlights", "question", "context", "answer", "answers"),
    *("prompt", "completion", "sentence", "sentence1", "sentence2", "premise", "hypothesis", "negative"),
    *("input", "output", "image", "file", "path", "sentiment", "emotion", "intent", "topic", "rating", "stars"),
    *("content", "title", "body", "headline", "review", "comment", "tweet", "message", "utterance"),
}
LANGUAGES = (  # by which the columns of parallel texts are called
    {"english", "french", "german", "spanish", "italian", "portuguese", "dutch", "russian", "chinese", "japanese"},
    {"en", "fr", "de", "es", "it", "pt", "nl", "ru", "zh", "ja"},
)
FIELD = 2**31 - 1  # characters of a CSV field, the most that every platform can be told


class NoColumn(HeedfulError):
    """A wanted column is not in the table."""


@dataclass
class Table:
    """One table file, and where in it the wanted columns are looked for.

    `columns` are the task's names with what they hold ("image": whatever the file has), `names` the person's own (None:
    nothing was said), `separator` what stands between several labels of one cell. After the first row has been read,
    `taken` holds those of `columns` whose values the rows have, and `found` what the file calls them.
    """

    path: str
    columns: Mapping[str, Kind]
    names: Sequence[str] | None = None
    separator: str | None = None
    spare: ClassVar[bool] = False  # whether a table without a header may have more columns than are wanted
    taken: tuple[str, ...] = field(default=(), init=False)
    found: tuple[str, ...] = field(default=(), init=False)

    def __iter__(self) -> Iterator[tuple[int, list[Any]]]:
        """(line, the values of the columns in `taken`); a blank line is (line, [])."""
        match extension_of(self.path):
            case ".csv":
                return self._delimited(_csv_rows(self.path), headless=False)
            case ".jsonl" | ".ndjson":
                return self._records(from_json(self.path), {})
            case ".parquet":
                parquet = Parquet(self.path, self._wanted())
                return self._records(parquet, parquet.features)
            case _:
                rows = ((line, text.split("\t") if text.strip() else []) for line, text in text_stream(self.path))
                return self._delimited(rows, headless=True)

    def _wanted(self) -> list[str]:
        """What is read of a file that has its columns apart."""
        return [*(self.names or self.columns)]

    def _choose(self, there: Container[str]) -> None:
        """Settle which columns are taken, and under which names; an optional one is where it is named, or `there`."""
        chosen = list(self.columns)
        if self.names is None:
            needed = required(self.columns)
            chosen = [column for column in chosen if column in needed or column in there]
        elif len(self.names) < len(chosen):
            chosen = required(self.columns)
        self.taken, self.found = tuple(chosen), tuple(self.names or chosen)

    def _left_out(self) -> list[str]:
        return [] if self.names else [column for column in self.columns if column not in self.taken]

    def _labels(self, features: Mapping[str, Any]) -> list[Reader | None]:
        """For each column that is taken what reads its labels or numbers, if it is one of these."""
        made: dict[str, Callable[[str], Reader]] = {
            "label": lambda name: Labels(self.separator, classes(features, name)),
            "number": lambda name: Numbers(),
        }
        kinds = [self.columns[column].rstrip("?") for column in self.taken]
        return [made[kind](name) if kind in made else None for kind, name in zip(kinds, self.found, strict=True)]

    # ------------------------------------------------------------------------------------------------------------ cells

    def _delimited(self, rows: Iterable[tuple[int, list[str]]], headless: bool) -> Iterator[tuple[int, list[Any]]]:
        """Rows of cells. `headless`: without a header and without names, the first columns are the wanted ones."""
        rows = iter(rows)
        blank = []
        for line, first in rows:
            if first:
                break
            blank.append((line, first))
        else:
            yield from blank
            return
        header, places = self._places(first, line, headless)
        labels = self._labels({})
        yield from blank
        for number, cells in rows if header else chain([(line, first)], rows):
            if cells and len(cells) != len(first):
                raise HeedfulError(
                    f"{_count(len(cells))} where line {line} has {len(first)}, in {shown(self.path)}:{number}; "
                    "mend that row (a tab or a comma too few or too many?)"
                )
            where = f"{shown(self.path)}:{number}"
            values = [
                label.read(cells[place], name, where) if label else cells[place]
                for name, place, label in zip(self.found, places, labels, strict=True)
                if cells
            ]
            yield number, values

    def _places(self, first: list[str], line: int, headless: bool) -> tuple[bool, list[int]]:
        """Whether the first row is a header, and the place of each column that is taken."""
        cells = [cell.strip() for cell in first]
        self._choose({*first, *cells})
        header = next((row for row in (first, cells) if all(name in row for name in self.found)), None)
        if header:
            self._check_once(cells, line)
            return True, [header.index(name) for name in self.found]
        # A name among the cells shows that this is a header, which calls another column otherwise.
        known = any(name in cells for name in self.found) or heads(cells, self.found)
        if self.names is None and headless and not known:
            if 1 < len(self.taken) < len(first) and not self.spare:
                raise self._surplus(first, line)
            self.found = tuple(str(place) for place in range(1, len(self.taken) + 1))
        elif not all(name.isdecimal() for name in self.found):
            raise self._not_found(cells, line)
        outside = next((name for name in self.found if not 1 <= int(name) <= len(first)), None)
        if outside is not None:
            separator = "commas" if extension_of(self.path) == ".csv" else "tabs"
            raise HeedfulError(
                f"{_count(len(first))}, and column {outside} is wanted for {self.taken[self.found.index(outside)]!r}, "
                f"in {shown(self.path)}:{line}; separate the columns by {separator}, or choose others: "
                "--data.columns 1,2"
            )
        return False, [int(name) - 1 for name in self.found]

    def _check_once(self, header: list[str], line: int) -> None:
        """Raise where two cells of a header have a name that is wanted."""
        twice = next((name for name in self.found if header.count(name) > 1 and not name.isdecimal()), None)
        if twice is not None:
            raise HeedfulError(
                f"{header.count(twice)} columns are called {twice!r}, in {shown(self.path)}:{line}; give each a "
                "name of its own"
            )

    def _surplus(self, first: list[str], line: int) -> HeedfulError:
        wanted = len(self.taken)
        chosen = ",".join(str(place) for place in range(1, wanted + 1))
        optional = next((name for name in self._left_out() if self.columns[name].endswith("?")), None)
        also = f", or with a third: --data.columns {chosen},{optional}={wanted + 1}" if optional and wanted == 2 else ""
        return HeedfulError(
            f"{_count(len(first))} without a header, and {wanted} are wanted ({', '.join(self.taken)}), in "
            f"{shown(self.path)}:{line}; say which, by number: --data.columns {chosen}{also}"
        )

    # ---------------------------------------------------------------------------------------------------------- records

    def _records(
        self, records: Iterable[tuple[int, dict[str, Any]]], features: Mapping[str, Any]
    ) -> Iterator[tuple[int, list[Any]]]:
        began, labels = 0, list[Reader | None]()
        for line, record in records:
            if record is BLANK:
                yield line, []
                continue
            if not began:
                self._choose({column for column in self.columns if look_up(record, column) is not MISSING})
                began, labels = line, self._labels(features)
            late = next((name for name in self._left_out() if look_up(record, name) is not MISSING), None)
            if late is not None:
                raise HeedfulError(
                    f"{late!r} is here and not in line {began}, in {self.path}:{line}; write it in every row or in none"
                )
            values = [
                self._value(record, column, name, line, label)
                for column, name, label in zip(self.taken, self.found, labels, strict=True)
            ]
            yield line, values

    def _value(self, record: dict[str, Any], column: str, name: str, line: int, label: Reader | None) -> Any:
        value, where = look_up(record, name), f"{shown(self.path)}:{line}"
        if value is MISSING:
            raise self._not_found(list(keys(record)), line)
        if label:
            return label.read(value, name, where)
        if self.columns[column].rstrip("?") in ("image", "words", "tags", "answers", "messages"):
            return value
        if not isinstance(value, str):
            raise HeedfulError(
                f"{name!r} is {brief(json.dumps(value, default=str))} and text is wanted, in {where}; write it as a "
                "string, or choose another column: --data.columns"
            )
        return whole(value, name, where)

    def _not_found(self, found: list[str], line: int) -> NoColumn:
        missing = next(name for name in self.found if name not in found)
        close = get_close_matches(missing, found, n=1, cutoff=NEAR)
        hint = f"did you mean {close[0]!r}? " if close else ""
        keyed = extension_of(self.path) in (".jsonl", ".ndjson", ".parquet")
        if extension_of(self.path) == ".csv" and len(found) == 1 and ";" in found[0]:
            return NoColumn(
                f"no column {missing!r} in {shown(self.path)}:{line}, whose cells stand between semicolons; write "
                "commas, or tabs and name it .tsv"
            )
        numbers = "" if keyed else ", or by number where there is no header: --data.columns 1,2"
        example = ",".join(found[: len(self.taken)]) if len(found) >= len(self.taken) else "a,b"
        return NoColumn(
            f"no column {missing!r} among {', '.join(repr(brief(name)) for name in found[:12])}, in "
            f"{shown(self.path)}:{line}; {hint}say which to use: --data.columns {brief(example)}{numbers}"
        )


def heads(first: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether a first row of cells is likely a header, though without any name that is wanted: all of several cells are
    such as columns are called by, each another; or each is one word without a digit, one of them nearly a name that is
    wanted.

    >>> heads(["source", "target"], ["text", "label"]), heads(["txt", "kind"], ["text", "label"])
    (True, True)
    >>> heads(["a cow", "un texte"], ["source", "target"]), heads(["test", "label"], ["text"])
    (False, False)
    >>> heads(["a fine text", "labels"], ["text", "label"]), heads(["good", "label1"], ["text", "label"])
    (False, False)
    >>> heads(["english", "french"], ["source", "target"]), heads(["image", "image"], ["source", "target"])
    (True, False)
    """
    cells = [cell.strip().lower() for cell in first]
    words = all(cell.replace("_", "").isalpha() for cell in cells)
    near = words and any(get_close_matches(cell, wanted, n=1, cutoff=NEAR) for cell in cells)
    several = len(set(cells)) == len(cells) > 1
    return near or (several and any(set(cells) <= names for names in (CALLED, *LANGUAGES)))


def extension_of(path: str) -> str:
    """The extension, standard input being TSV."""
    return ".tsv" if path == STDIN else extension(path)


def _csv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Rows by RFC 4180, each with the line it begins at: a quoted field may run over several."""
    # This is a setting of the whole process: other readers may be at work, so it is raised and never put back.
    csv.field_size_limit(max(FIELD, csv.field_size_limit()))
    reader = csv.reader((line for _, line in raw_lines(path)), strict=True)
    line = 1
    try:
        for cells in reader:
            yield line, cells if any(cell.strip() for cell in cells) else []
            line = reader.line_num + 1
    except csv.Error as error:
        raise HeedfulError(
            f'broken CSV ({error}), in {path}:{line}; a field with a quote in it is written "a ""word"""'
        ) from error


def _count(number: int) -> str:
    return f"{number} column" if number == 1 else f"{number} columns"
