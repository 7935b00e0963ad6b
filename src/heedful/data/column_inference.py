"""Column inference: which columns of a table a task needs, guessed from names and content."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from statistics import fmean
from typing import Any

from heedful.data.cell_values import brief, parse_number
from heedful.data.rows import Kind, Rows, required_columns
from heedful.data.text_files import display_name
from heedful.errors import HeedfulError, plural

SAMPLE = 1000  # rows that are examined
NEAR = 0.8  # minimum similarity (difflib's ratio) of a name with a misspelling: "sorce" 0.91, "test" 0.75
LONGER = 1.5  # minimum ratio of the text column's length to any other's
MAX_LABEL_LENGTH = 40  # mean characters of a label
MAX_CLASSES = 20  # distinct whole numbers that are classes; more are quantities
COMMON_PREFIX = 16  # values that share as many first characters are not text: "https://example.org/"
IMAGE_EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
LABEL_NAMES = {  # usual names of columns of labels
    *("label", "labels", "class", "category", "target", "sentiment", "emotion", "intent", "topic", "tag", "y"),
    *("score", "rating", "stars", "gold_label", "coarse_label", "section", "genre", "airline_sentiment", "polarity"),
}
COLUMN_NAMES = {  # usual names of columns
    *("id", "text", "text_pair", "label", "labels", "class", "category", "score", "source", "target", "src", "tgt"),
    *("language", "summary", "document", "article", "highlights", "question", "context", "answer", "answers"),
    *("prompt", "completion", "sentence", "sentence1", "sentence2", "premise", "hypothesis", "negative"),
    *("input", "output", "image", "file", "path", "sentiment", "emotion", "intent", "topic", "rating", "stars"),
    *("content", "title", "body", "headline", "review", "comment", "tweet", "message", "utterance"),
}
LANGUAGES = (  # names of the columns of parallel texts
    {"english", "french", "german", "spanish", "italian", "portuguese", "dutch", "russian", "chinese", "japanese"},
    {"en", "fr", "de", "es", "it", "pt", "nl", "ru", "zh", "ja"},
)
PAIRS = (  # names of the columns of text pairs
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text_a", "text_b"),
    ("text1", "text2"),
)
CODE = re.compile(r"(?=.*\d)[\w.:/#-]+|[0-9a-fA-F-]{16,}")  # an id, a date, a hash, the name of a numbered file
NAME = re.compile(r"[^\W\d]\w*")  # may be the name of a column


def columns_option(names: Iterable[str]) -> str:
    """Returns ``--data.columns`` with names of columns, quoted as a shell needs it, for messages.

    >>> columns_option(["source", "target"]), columns_option(["ticket id", "team"])
    ('--data.columns source,target', "--data.columns 'ticket id,team'")
    """
    return f"--data.columns {shlex.quote(brief(','.join(names), 80))}"


class UndecidedColumns(Exception):
    """Error: no column of a table, or more than one, fits a column of the task; the message names the candidates."""


@dataclass(frozen=True)
class ColumnProfile:
    """Profile of a column, from a sample of its values.

    Attributes:
        values: the values that are not blank.
        numbers: ``values`` as numbers; () unless all values are numbers.
    """

    values: tuple[Any, ...]
    numbers: tuple[float, ...] = ()

    @classmethod
    def of(cls, values: Iterable[Any]) -> ColumnProfile:
        """Returns the profile of a column with these values: texts, or any values from JSON and Parquet."""
        filled = tuple(value for value in values if value is not None and str(value).strip())
        numbers = tuple(map(parse_number, filled))
        return cls(filled, () if None in numbers else tuple(number for number in numbers if number is not None))

    @property
    def texts(self) -> list[str]:
        """Values that are strings."""
        return [value for value in self.values if isinstance(value, str)]

    @property
    def distinct(self) -> int:
        """Number of distinct values."""
        return len({repr(value) for value in self.values})

    @property
    def length(self) -> float:
        """Mean number of characters of the texts."""
        return fmean(map(len, self.texts or [""]))

    @property
    def is_id(self) -> bool:
        """True if the values are ids: all different, and whole numbers or codes."""
        if self.numbers and all(number.is_integer() for number in self.numbers):
            steps = [after - before for before, after in zip(self.numbers, self.numbers[1:], strict=False)]
            is_count = len(steps) > 1 and sum(step == 1 for step in steps) >= 0.9 * len(steps)
            return is_count or (len(self.values) > MAX_CLASSES and self.distinct == len(self.values))
        codes = sum(CODE.fullmatch(text.strip()) is not None for text in self.texts)
        return not self.numbers and self.distinct > 0.95 * len(self.values) and codes > 0.9 * len(self.values)

    @property
    def is_constant(self) -> bool:
        """True if there is one distinct value, or none."""
        return not self.values or (self.distinct < 2 and len(self.values) > 1)

    @property
    def is_label(self) -> bool:
        """True if the values are few and short, like class names."""
        if self.is_constant or self.is_id:
            return False
        if self.values and all(isinstance(value, list) for value in self.values):
            return all(isinstance(item, str | int) for value in self.values for item in value)
        if any(not isinstance(value, str | int) for value in self.values):
            return False
        if self.numbers:
            return self.distinct <= MAX_CLASSES and all(number.is_integer() for number in self.numbers)
        return self.distinct <= max(2, len(self.values) / 2) and self.length <= MAX_LABEL_LENGTH

    @property
    def is_number(self) -> bool:
        """True if the values are quantities, not class numbers."""
        return bool(self.numbers) and not (self.is_constant or self.is_id or self.is_label)

    @property
    def is_text(self) -> bool:
        """True if most values have several words, or several letters of a script without spaces."""
        texts = self.texts
        if self.is_constant or self.is_id or len(texts) < len(self.values):
            return False
        if len(self.values) > 10 and self.distinct <= len(self.values) / 20:
            return False
        if len(texts) > 2 and len({text[:COMMON_PREFIX] for text in texts}) == 1:
            return False
        return sum(map(_is_prose, texts)) > len(texts) / 2

    @property
    def is_words(self) -> bool:
        """True if the values are words: not numbers, ids, or a single value."""
        texts = self.texts
        return bool(texts) and len(texts) == len(self.values) and not (self.numbers or self.is_constant or self.is_id)

    @property
    def is_image(self) -> bool:
        """True if the values are images, or paths of image files."""
        return bool(self.values) and all(
            isinstance(value, bytes | dict)
            or (isinstance(value, str) and value.strip().lower().endswith(IMAGE_EXTENSIONS))
            for value in self.values
        )


def _is_prose(text: str) -> bool:
    words = [word for word in text.split() if any(letter.isalpha() for letter in word)]
    return len(words) > 1 or sum(letter.isalpha() and not letter.isascii() for letter in text) > 3


# --------------------------------------------------------------------------------------------------------------- choice


def infer_columns(
    columns: Mapping[str, Kind], profiles: Mapping[str, ColumnProfile], fixed: Mapping[str, str]
) -> dict[str, str]:
    """Returns a mapping from each required column of the task to a column of the file.

    Labels are chosen first. A label column has few distinct short values, or numbers if no column has such values; of
    several such columns the one with a usual name for labels is chosen. The text column has the longest texts, 1.5
    times as long as those of any other column. A task with two texts needs a table with exactly two text columns, and
    takes them in order. Of a text and its summary, the longer is the text. Of question, context and answers, the
    context is the longest, and the answers occur in it. Columns of ids (distinct whole numbers, codes) and of a single
    value are never chosen.

    Args:
        columns: the task's columns and their kinds.
        profiles: profiles of the file's columns, by name.
        fixed: columns of the file that are chosen already, by task column; they are returned unchanged.

    Raises:
        UndecidedColumns: no column, or more than one, fits a column of the task.
    """
    chosen = dict(fixed)
    for column, name in _similar_names(columns, profiles, chosen).items():
        chosen[column] = name
    free = {name: profile for name, profile in profiles.items() if name not in chosen.values()}
    for column, kind in columns.items():
        if column in chosen or kind not in ("label", "number", "image"):
            continue
        if kind == "image":
            chosen[column] = _only(column, _profiles_that(free, "is_image"))
        else:
            numbers = {name: profile for name, profile in free.items() if profile.numbers}
            chosen[column] = _label(column, numbers if kind == "number" else free)
        free.pop(chosen[column])
    missing = [column for column in required_columns(columns) if column not in chosen]
    if missing:
        chosen |= _texts(columns, missing, free)
    return {column: chosen[column] for column in columns if column in chosen}


def candidate_columns(
    columns: Mapping[str, Kind], profiles: Mapping[str, ColumnProfile], fixed: Mapping[str, str]
) -> list[str]:
    """Returns a column of the file that is possible for each task column, as an example to show in a message.

    Args:
        columns: the task's columns and their kinds.
        profiles: profiles of the file's columns, by name.
        fixed: columns of the file that are chosen already, by task column.

    Returns:
        A column of the file for each task column, in order; [] if some task column has none.
    """
    free = {name: profile for name, profile in profiles.items() if name not in fixed.values()}
    texts = [*_profiles_that(free, "is_text"), *_profiles_that(free, "is_words")]
    if {"label", "number"} & {*columns.values()}:
        texts.sort(key=lambda name: -free[name].length)
    numbers = _profiles_that(free, "is_number")
    candidates = {
        "label": [*_profiles_that(free, "is_label"), *numbers],
        "number": numbers,
        "image": _profiles_that(free, "is_image"),
    }
    chosen: list[str] = []
    for column, kind in columns.items():
        names = [fixed[column]] if column in fixed else candidates.get(kind, texts)
        others = [name for name in names if name not in chosen]
        if not others:
            return []
        chosen.append(others[0])
    return chosen


def _similar_names(
    columns: Mapping[str, Kind], profiles: Mapping[str, ColumnProfile], fixed: Mapping[str, str]
) -> dict[str, str]:
    """Returns the columns whose names differ from a requested name only by case or a misspelling: "Text", "labl"."""
    free = {name.strip().lower(): name for name in profiles if name not in fixed.values()}
    similar: dict[str, str] = {}
    for column in required_columns(columns):
        if column in fixed:
            continue
        for name in get_close_matches(column, free, n=1, cutoff=NEAR):
            if name not in columns or name == column:
                similar[column] = free.pop(name)
    return similar


def _profiles_that(profiles: Mapping[str, ColumnProfile], predicate: str) -> list[str]:
    return [name for name, profile in profiles.items() if getattr(profile, predicate)]


def _only(column: str, names: Sequence[str]) -> str:
    if not names:
        raise UndecidedColumns(f"no column has content that fits {column!r}")
    if len(names) > 1:
        raise UndecidedColumns(f"{column!r} may be the column {' or '.join(map(repr, names[:6]))}")
    return names[0]


def _label(column: str, free: Mapping[str, ColumnProfile]) -> str:
    classes, numbers = _profiles_that(free, "is_label"), _profiles_that(free, "is_number")
    known = [name for name in (*classes, *numbers) if name.strip().lower() in LABEL_NAMES]
    return known[0] if len(known) == 1 else _only(column, classes or numbers)


def _texts(columns: Mapping[str, Kind], missing: Sequence[str], free: Mapping[str, ColumnProfile]) -> dict[str, str]:
    """Returns the columns of the ``missing`` texts, and of the answers in them."""
    if set(missing) == {"question", "context", "answers"}:
        return _questions(free)
    texts = _profiles_that(free, "is_text")
    if len(texts) < len(missing):
        texts = [name for name in free if free[name].is_text or free[name].is_words]
    if len(missing) == 1:
        lower = {name.strip().lower(): name for name in texts}
        pair = next((pair for pair in PAIRS if lower.keys() >= set(pair)), None)
        if pair and missing == ["text"] and "text_pair" in columns:
            return {"text": lower[pair[0]], "text_pair": lower[pair[1]]}
        return {missing[0]: _longest(missing[0], texts, free)}
    if len(texts) != len(missing):
        requested, candidates = " and ".join(map(repr, missing)), " or ".join(map(repr, texts[:6]))
        raise UndecidedColumns(
            f"{requested} may be the columns {candidates}"
            if len(texts) > len(missing)
            else f"fewer than {len(missing)} columns contain text"
        )
    if "summary" in missing:
        texts.sort(key=lambda name: -free[name].length)
    return dict(zip(missing, texts, strict=True))


def _longest(column: str, names: Sequence[str], free: Mapping[str, ColumnProfile]) -> str:
    ordered = sorted(names, key=lambda name: -free[name].length)
    if len(ordered) > 1 and free[ordered[0]].length < LONGER * free[ordered[1]].length:
        return _only(column, [name for name in ordered if free[ordered[0]].length < LONGER * free[name].length])
    return _only(column, ordered[:1])


def _questions(free: Mapping[str, ColumnProfile]) -> dict[str, str]:
    context = _longest("context", _profiles_that(free, "is_text"), free)
    rest = [name for name, profile in free.items() if name != context and not (profile.is_id or profile.is_constant)]
    answers = _only("answers", [name for name in rest if _are_spans(free[name].values, free[context].values)])
    questions = [name for name in rest if name != answers and free[name].is_text]
    return {"question": _longest("question", questions, free), "context": context, "answers": answers}


def _are_spans(answers: Sequence[Any], contexts: Sequence[Any]) -> bool:
    """Returns True if most answers are spans of their context, or SQuAD's records of spans."""
    records = sum(isinstance(answer, dict) and "text" in answer for answer in answers)
    within = sum(
        isinstance(answer, str) and isinstance(context, str) and answer.strip() in context
        for answer, context in zip(answers, contexts, strict=False)
    )
    return bool(answers) and records + within > 0.8 * len(answers)


# --------------------------------------------------------------------------------------------------------------- header


def resembles_header(first: Sequence[str], names: Sequence[str]) -> bool:
    """Returns True if the first row of a table is likely a header, though it has none of the task's column ``names``.

    It is likely a header if its cells are several distinct usual names of columns, or if each cell is a word without
    digits and one is similar to a name of the task's columns.

    >>> resembles_header(["source", "target"], ["text", "label"]), resembles_header(["txt", "kind"], ["text", "label"])
    (True, True)
    >>> resembles_header(["a cow", "un texte"], ["source", "target"]), resembles_header(["test", "label"], ["text"])
    (False, False)
    >>> [resembles_header(cells, ["text", "label"]) for cells in (["a fine text", "labels"], ["good", "label1"])]
    [False, False]
    >>> [resembles_header(cells, ["source", "target"]) for cells in (["english", "french"], ["image", "image"])]
    [True, False]
    """
    cells = [cell.strip().lower() for cell in first]
    words = all(cell.replace("_", "").isalpha() for cell in cells)
    near = words and any(get_close_matches(cell, names, n=1, cutoff=NEAR) for cell in cells)
    are_distinct = len(set(cells)) == len(cells) > 1
    return near or (are_distinct and any(set(cells) <= usual for usual in (COLUMN_NAMES, *LANGUAGES)))


def stands_out(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Returns True if the first row of a table can only be a header, judged by its cells alone.

    Its cells are distinct words, none is a value of its column in the rows after it, and in some column hardly any
    other cell is a single word (at most 1 in 20).

    >>> rows = [["Who are you ?", "HUM"], ["How far is it ?", "NUM"]]
    >>> stands_out(["question", "kind"], rows), stands_out(["Why ?", "DESC"], rows), stands_out(["Why", "NUM"], rows)
    (True, False, False)
    """
    cells = [cell.strip() for cell in first]
    if not others or len(set(cells)) < len(cells) or not all(map(NAME.fullmatch, cells)):
        return False
    columns = [[row[index].strip() for row in others] for index in range(len(cells))]
    if any(cell in column for cell, column in zip(cells, columns, strict=True)):
        return False
    return any(20 * sum(map(bool, map(NAME.fullmatch, column))) <= len(column) for column in columns)


def is_header(first: Sequence[str], others: Sequence[Sequence[str]], label: int | None, usual: bool) -> bool:
    """Returns True if the first row of a table is a header, judged by comparing it with the rows after it.

    Args:
        first: the cells of the first row.
        others: the cells of the rows after it.
        label: position of the label column, if there is one.
        usual: True for formats that usually have a header, such as CSV.
    """
    cells = [cell.strip() for cell in first]
    filled = [cell for cell in cells if cell]
    if not others:
        return usual
    if len(set(filled)) < len(filled) or len(cells) - len(filled) > 1:
        return False
    if any(parse_number(cell) is not None or len(cell) > MAX_LABEL_LENGTH for cell in filled):
        return False
    if label is not None:
        counts = Counter(row[label].strip() for row in others)
        if cells[label] in counts:
            return False
        if len(counts) > 1 and min(counts.values()) > 1 and all(NAME.fullmatch(cell) for cell in filled):
            return True
    has_numbers = any(
        cell and ColumnProfile.of(row[index] for row in others).numbers for index, cell in enumerate(cells)
    )
    return usual or (len(others) > 1 and has_numbers and all(NAME.fullmatch(cell) for cell in filled))


ORANGE_FLAGS = re.compile(r"(?=\w+#)[cmi]?[DCSTdcst]?#(?P<name>.+)")  # role and type before a name: "mS#author"
ORANGE_TYPES = {"continuous", "c", "numeric", "n", "discrete", "d", "categorical", "string", "s", "text", "time", "t"}
ORANGE_ROLES = {"class", "c", "meta", "m", "ignore", "i", "weight", "w"}


def orange_header(rows: Sequence[Sequence[str]]) -> tuple[list[str], int] | None:
    """Returns the names of the columns in the header of an Orange file, and its number of rows; None for other files.

    Orange writes role and type of a column before its name, or in a second and a third row.

    >>> orange_header([["mS#text", "cD#kind"], ["a fine day", "good"]])
    (['text', 'kind'], 1)
    >>> orange_header([["text", "kind"], ["string", "discrete"], ["meta", "class"], ["a fine day", "good"]])
    (['text', 'kind'], 3)
    """
    cells = [[cell.strip() for cell in row] for row in rows[:3]]
    flagged = [ORANGE_FLAGS.fullmatch(cell) for cell in cells[0]]
    if any(flagged) and all(match or "#" not in cell for match, cell in zip(flagged, cells[0], strict=True)):
        return [match["name"] if match else cell for match, cell in zip(flagged, cells[0], strict=True)], 1
    if len(rows) < 4:
        return None
    types, roles = ({*row} - {""} for row in cells[1:])
    is_orange = bool(types and roles) and types <= ORANGE_TYPES and roles <= ORANGE_ROLES
    return (cells[0], 3) if is_orange else None


MAX_DISTINCT_NAMES = 20  # distinct values of a small column of names


def implausible_classes(values: Sequence[str]) -> str | None:
    """Returns what a label column seems to contain instead of class names; None if its values are plausible.

    The result is "text" or "numbers" if more than half of the values are distinct and of this kind. It is "ids" if more
    than half of the values, and more than 20 of them, are distinct.

    >>> implausible_classes(["fr", "de", "es"]), implausible_classes(["a dog", "the cat", "two cats", "no cat"])
    (None, 'text')
    """
    distinct = set(values)
    if len(distinct) <= max(3, len(values) / 2):
        return None
    if sum(" " in value for value in distinct) > len(distinct) / 2:
        return "text"
    if all(parse_number(value) is not None for value in distinct):
        return "numbers"
    return "ids" if len(distinct) > MAX_DISTINCT_NAMES else None


def check_tags(rows: Rows, kinds: Mapping[str, Kind], sources: Sequence[str]) -> None:
    """Raises `HeedfulError` if a column of tags has mostly distinct values, as a third parallel text would.

    Args:
        rows: the rows that were read.
        kinds: the task's columns and their kinds; "tag?" is a column of tags.
        sources: the files of the rows, for the message.
    """
    for index, column in enumerate(rows[0].values):
        tags = [row.values[column] for row in rows] if kinds[column] == "tag?" else []
        if implausible_classes(tags):
            path = rows.columns[index] if len(sources) > 1 else display_name(sources[0])
            raise HeedfulError(
                f"{len(set(tags)):,} different values of {column!r} in {plural(len(tags), 'row')}, such as "
                f"{brief(tags[0])!r}, in {path}:{rows[0].line}; give {' and '.join(required_columns(kinds))} alone, "
                f"or a {column} that many rows share, such as fr"
            )


def check_header(rows: Rows, kinds: Mapping[str, Kind]) -> None:
    """Raises `HeedfulError` if the first row of a table whose columns are chosen by number is likely a header.

    It is likely a header if all its cells could be column names, and if its label occurs in no other row while every
    other label occurs at least twice.
    """
    label = next((column for column in rows[0].values if kinds[column] == "label"), None)
    if label is None or not all(column.isdecimal() for column in rows.columns):
        return
    values = list(rows[0].values.values())
    others = Counter(row.values[label] for row in rows[1:])
    if len(others) < 2 or min(others.values()) < 2 or rows[0].values[label] in others:
        return
    if all(isinstance(value, str) and NAME.fullmatch(value.strip()) for value in values):
        raise HeedfulError(
            f"no other row has the label {rows[0].values[label]!r}, which looks like the name of a column, in "
            f"{display_name(rows[0].file)}:{rows[0].line}; if this is a header, name the columns: "
            f"{columns_option(map(str.strip, values))}, and if it is a row: {columns_option(rows.columns)}"
        )
