"""``Row`` and ``Rows``: values with the file and line that they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from heedful.errors import HeedfulError

# Kind of a column, and the type of its values. "?": the column is optional; rows of a file without it have no value.
#   "text": a str, never blank
#   "tag?": a short text that many rows share, such as the name of a language
#   "texts": a text of an image; a list of texts in a table's cell is a row each
#   "label": the name of a class (str), or a tuple of names in a file whose rows have several or none
#   "document": a whole text (str) with its line ends
#   "image": a `LazyImage`
#   "words": a tuple of words, never empty; "tags": a tuple of labels, one a word
#   "answers": a tuple of `Span`, pieces of another column's text, () if that text has no answer
#   "references": a tuple of texts, each a right answer, () if there is none; not necessarily pieces of another text
#   "number": a float
#   "messages": a conversation, a tuple of mappings with "role" and "content"
#   "turns": part of a conversation, a text (str) or a tuple of such mappings
Kind = Literal[
    "text",
    "text?",
    "tag?",
    "texts",
    "label",
    "document",
    "image",
    "words",
    "tags",
    "answers",
    "references",
    "number",
    "number?",
    "messages",
    "messages?",
    "turns",
    "turns?",
]


MAX_LOCATIONS = 1000  # recorded locations of skipped rows


class Span(NamedTuple):
    """Span of a text: its characters, and the index (from 0) of the first."""

    text: str
    start: int


def required_columns(columns: Mapping[str, Kind]) -> list[str]:
    """Returns the columns that every source must have, in order."""
    return [column for column, kind in columns.items() if not kind.endswith("?")]


def resolve_columns(
    columns: Mapping[str, Kind], names: Sequence[str] | None
) -> tuple[dict[str, Kind], Sequence[str] | None]:
    """Returns the columns that are read, and their names in the file.

    Without ``column=name`` entries in ``names``, both arguments are returned unchanged. With such entries, plain names
    are those of the other required columns, in order; without plain names the other required columns keep their own
    names.

    >>> columns = {"text": "text", "text_pair": "text", "negative": "text?", "score": "number?"}
    >>> resolve_columns(columns, ["score=similarity"])
    ({'text': 'text', 'text_pair': 'text', 'score': 'number?'}, ['text', 'text_pair', 'similarity'])
    >>> resolve_columns(columns, ["1", "2", "score=5"])[1]
    ['1', '2', '5']

    Raises ``HeedfulError`` if a column is named twice, or the number of plain names does not fit.
    """
    split = [(name, *name.partition("=")) for name in names or ()]
    pairs = [(column, name) for _, column, equals, name in split if equals and column in columns]
    if not pairs:
        return dict(columns), names
    file_columns, listed = dict(pairs), ", ".join(name for name, *_ in split)
    if len(file_columns) < len(pairs):
        raise HeedfulError(f"a column is named twice ({listed}); name each column once")
    others = [column for column in required_columns(columns) if column not in file_columns]
    optional = [column for column in columns if column in file_columns and columns[column].endswith("?")]
    if "messages?" in columns.values() and optional:  # instead of documents
        if optional != ["prompt", "completion"]:
            raise HeedfulError(
                f"{listed} names only the column {optional[0]!r}; name both, prompt=... and completion=..."
            )
        others = []
    plain = [name for name, column, *_ in split if column not in file_columns]
    if plain and len(plain) != len(others):
        raise HeedfulError(
            f"{len(plain)} names ({','.join(plain)}) beside {','.join(map('='.join, pairs))}; name each of "
            f"{', '.join(others) or 'the columns once'}, in that order, or none of them"
        )
    file_columns |= dict(zip(others, plain or others, strict=True))
    read = {column: kind for column, kind in columns.items() if column in file_columns}
    return read, [file_columns[column] for column in read]


@dataclass(frozen=True, slots=True)
class Row:
    """Row of a data file.

    ``values`` has the task's column names; ``file`` and ``line`` (from 1) are where the row starts; ``name`` is the
    row's name in the file, if it has a name; rows with one ``group``, if they have one, stay on one side of a split.
    """

    values: Mapping[str, Any]
    file: str
    line: int
    name: str = field(default="", compare=False)
    group: str = field(default="", compare=False)


class Rows(list[Row]):
    """List of rows, with a description of how they were read.

    Attributes:
        skipped: number of rows with a blank value, and of unreadable files in a folder.
        blank: locations of the first 1,000 skipped rows.
        columns: names, keys or numbers of the columns in the file (file names for parallel files).
        mapping: a table's column for each of the task's columns.
        notes: lines for people: the detected format, the inferred columns.
        mix: draws the training rows of an epoch from these rows, or some of them, and a seed; None: all, as they are.
        unlabelled: rows without labels, from which a task learns beside these; None: there are none.
    """

    mix: Callable[[Rows, int], Rows] | None = None
    unlabelled: Rows | None = None

    def __init__(self, rows: Iterable[Row] = (), skipped: int = 0, columns: Iterable[str] = ()) -> None:
        super().__init__(rows)
        self.skipped = skipped
        self.columns = tuple(columns)
        self.blank: list[str] = []
        self.mapping: dict[str, str] = {}
        self.notes: list[str] = []

    def inherit_from(self, other: Rows) -> None:
        """Copies ``mapping`` and ``notes`` from ``other``, the rows from which these were selected."""
        self.mapping, self.notes = other.mapping, other.notes

    def skip(self, file: str, line: int | None = None) -> None:
        """Counts a skipped row of a file, or a whole file."""
        self.skipped += 1
        if len(self.blank) < MAX_LOCATIONS:
            self.blank.append(file if line is None else f"{file}:{line}")


def unlabelled_of(rows: Sequence[Row]) -> Sequence[Row]:
    """Returns the rows without labels that belong to ``rows``; () if there are none."""
    return (rows.unlabelled or ()) if isinstance(rows, Rows) else ()
