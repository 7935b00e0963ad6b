"""`Row` and `Rows`: values with the file and line that they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from heedful.errors import HeedfulError

# Kind of a column, and so the type of a row's value:
#   "text" a str, never blank; "text?" the same, absent where the file has no such column;
#   "tag?" as "text?", a short one that many rows share: the name of a language;
#   "label" the name of a class (str), or where rows have several or none, a tuple of them;
#   "document" a whole text (str), line ends and all; "image" a `LazyImage`;
#   "words" a tuple of words, never empty, "tags" a tuple of labels, one a word;
#   "answers" a tuple of `Span`, pieces of another column's text, () where that text has no answer;
#   "number" a float; "number?" the same, absent where the file has no such column;
#   "messages" a conversation: a tuple of mappings, each with its "role" and "content"; "messages?" as the others with a
#   question mark.
Kind = Literal[
    "text",
    "text?",
    "tag?",
    "label",
    "document",
    "image",
    "words",
    "tags",
    "answers",
    "number",
    "number?",
    "messages",
    "messages?",
]


PLACES = 1000  # recorded places of skipped rows


class Span(NamedTuple):
    """Span of a text: the piece, and the character (from 0) it starts at."""

    text: str
    start: int


def required_columns(columns: Mapping[str, Kind]) -> list[str]:
    """Returns the columns that every source must have, in order."""
    return [column for column, kind in columns.items() if not kind.endswith("?")]


def resolve_columns(
    columns: Mapping[str, Kind], names: Sequence[str] | None
) -> tuple[dict[str, Kind], Sequence[str] | None]:
    """Returns the columns that are read and their names in the file, for ``names`` with ``column=name`` entries; else
    both unchanged. Plain names are those of the other required columns, in order; without any these keep their own.

    >>> columns = {"text": "text", "text_pair": "text", "negative": "text?", "score": "number?"}
    >>> resolve_columns(columns, ["score=similarity"])
    ({'text': 'text', 'text_pair': 'text', 'score': 'number?'}, ['text', 'text_pair', 'similarity'])
    >>> resolve_columns(columns, ["1", "2", "score=5"])[1]
    ['1', '2', '5']

    Raises `HeedfulError` for a column that is named twice, and for names that are not as many as these columns.
    """
    split = [(name, *name.partition("=")) for name in names or ()]
    pairs = [(column, theirs) for _, column, equals, theirs in split if equals and column in columns]
    if not pairs:
        return dict(columns), names
    given, listed = dict(pairs), ", ".join(name for name, *_ in split)
    if len(given) < len(pairs):
        raise HeedfulError(f"a column is named twice ({listed}); name each once")
    needed = [column for column in required_columns(columns) if column not in given]
    optional = [column for column in columns if column in given and columns[column].endswith("?")]
    if "messages?" in columns.values() and optional:  # in the place of documents
        if optional != ["prompt", "completion"]:
            raise HeedfulError(f"{listed} names {optional[0]!r} alone; name both, prompt=... and completion=...")
        needed = []
    plain = [name for name, column, *_ in split if column not in given]
    if plain and len(plain) != len(needed):
        raise HeedfulError(
            f"{len(plain)} names ({','.join(plain)}) beside {','.join(map('='.join, pairs))}; name each of "
            f"{', '.join(needed) or 'the columns once'}, in that order, or none of them"
        )
    given |= dict(zip(needed, plain or needed, strict=True))
    return {column: kind for column, kind in columns.items() if column in given}, [
        given[column] for column in columns if column in given
    ]


@dataclass(frozen=True, slots=True)
class Row:
    """One example: `values` by the task's column names, the `file` and `line` (from 1) it starts at, and its `name` if
    the file has one.
    """

    values: Mapping[str, Any]
    file: str
    line: int
    name: str = field(default="", compare=False)


class Rows(list[Row]):
    """List of rows, with how they were read.

    Attributes:
        skipped: number of rows with a blank value, and of a folder's unreadable files.
        blank: places of the first 1,000 of these.
        columns: names, keys or numbers of the columns in the file (file names for parallel files).
        mapping: of a table, the file's column of each of the task's.
        notes: lines for people: the recognised format, the guessed columns.
    """

    def __init__(self, rows: Iterable[Row] = (), skipped: int = 0, columns: Iterable[str] = ()) -> None:
        super().__init__(rows)
        self.skipped = skipped
        self.columns = tuple(columns)
        self.blank: list[str] = []
        self.mapping: dict[str, str] = {}
        self.notes: list[str] = []

    def read_as(self, other: Rows) -> None:
        """Takes over `mapping` and `notes` of `other`, of which these rows are a part."""
        self.mapping, self.notes = other.mapping, other.notes

    def skip(self, file: str, line: int | None = None) -> None:
        """Counts a skipped row of a file, or a whole file."""
        self.skipped += 1
        if len(self.blank) < PLACES:
            self.blank.append(file if line is None else f"{file}:{line}")
