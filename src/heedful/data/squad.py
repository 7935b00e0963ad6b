"""Readers of question answering: SQuAD's JSON, and tables with a question, a context and answers."""

from __future__ import annotations

import json
import logging
import re
from bisect import bisect
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from heedful.data.cell_values import brief, checked_text
from heedful.data.file_formats import EXTENSIONS
from heedful.data.rows import Kind, Row, Rows, Span
from heedful.data.tables import Table
from heedful.data.text_files import display_name, extension, read_text
from heedful.errors import HeedfulError, plural

log = logging.getLogger("heedful")

SHAPE = '{"data": [{"paragraphs": [{"context": "...", "qas": [{"id": "...", "question": "...", "answers": [...]}]}]}]}'
FLAT = '{"question": "...", "context": "...", "answers": {"text": ["..."], "answer_start": [0]}}'
KEYS = ("question", "answers", "context", "qas", "paragraphs")  # the first of them in an object gives its line
IMPOSSIBLE = "is_impossible"
# "answers" leaves the cells as they are
TABLE_COLUMNS: dict[str, Kind] = {"answer": "answers", "answer_start": "answers", "title": "answers"}


def read_squad(
    sources: Sequence[str],
    kinds: Mapping[str, Kind],
    names: Sequence[str] | None = None,
    split: str | None = None,
    limit: int | None = None,
    remembered: Mapping[str, str] | None = None,
) -> Rows:
    """Returns a row for each question of `sources`, in order.

    A row has ``question``, ``context``, ``answers`` and, if the file has it, ``title``. The answers are a tuple, () if
    the text has no answer: of `Span`, or of texts if the kind of the column is "references".

    - ``.json``: SQuAD 1.1 or 2.0 (Rajpurkar et al. 2016, 2018), or a list of flat records. A question with
      ``is_impossible`` has no answer; ``plausible_answers`` are ignored.
    - ``.jsonl``, ``.parquet``: a record a question; its ``answers`` are as in the Hub's ``squad``,
      ``{"text": [...], "answer_start": [...]}``, or a list of ``{"text", "answer_start"}``, or texts only.
    - ``.tsv`` (``-``: standard input), ``.csv``: ``question``, ``context`` and ``answer``, a text; an empty one is no
      answer. An ``answer_start`` column gives its position.

    Every file may be compressed. The column may be called ``answer`` or ``answers``. A text without a position is
    searched in the context; the first of several occurrences counts, and a warning tells their number. References need
    not be in the context, and their positions are ignored. Blanks around an answer are removed. Rows with a blank
    question are skipped and counted. `split` has no effect: files have no splits.

    Raises `HeedfulError` with file, line and remedy for an answer that is not at its position, an empty context, and
    any other form.
    """
    rows, reader = Rows(columns=names or kinds), _Reader(are_spans="references" not in kinds.values())
    for source in sources:
        for line, values in _records(source, kinds, names, remembered, rows):
            if len(rows) == limit:
                break
            row = reader.row(values, source, line)
            if row is None:
                rows.skip(source, line)
            else:
                rows.append(row)
    if reader.ambiguous:
        log.warning(
            f"{plural(reader.ambiguous, 'answer')} occur{'s' if reader.ambiguous == 1 else ''} several times in the "
            "context: the first occurrence counts; give answer_start to choose another"
        )
    if not rows:
        problem = f"only blank rows ({rows.skipped})" if rows.skipped else "no questions"
        raise HeedfulError(
            f"{problem} in {display_name(', '.join(sources))}; give a file with question, context and answers"
        )
    return rows


def _records(
    source: str,
    kinds: Mapping[str, Kind],
    names: Sequence[str] | None,
    remembered: Mapping[str, str] | None,
    rows: Rows,
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields (line, values) for each question in a file; a blank line has no values. Annotates `rows`."""
    if extension(source) == ".json":
        if names is not None:
            raise HeedfulError(f"{source} is SQuAD's JSON, whose keys are fixed; leave --data.columns out")
        yield from _read_json(source)
    elif (table := _Questions(source, {**kinds, **TABLE_COLUMNS}, names, remembered=remembered or {})).format.is_table:
        for line, values in table:
            if values:
                table.annotate(rows)
            yield line, dict(zip(table.chosen_columns, values, strict=True)) if values else {}
    else:
        kind = extension(source)
        problem = f"unknown extension {kind!r}" if kind else "no extension"
        raise HeedfulError(f"{problem}, in {source}; give SQuAD's .json, or a table ({', '.join(EXTENSIONS)})")


def text_value(values: Mapping[str, Any], column: str, location: str) -> str:
    """Returns the text in a column of a record. Raises `HeedfulError`, naming ``location``, for any other value."""
    text = values[column]
    if not isinstance(text, str):
        raise HeedfulError(
            f"{column!r} is {brief(json.dumps(text, default=str))}, but text is expected, in {location}; write it as a "
            "string"
        )
    return checked_text(text, column, location)


# ------------------------------------------------------------------------------------------------------------- answers


class _Reader:
    """Converts questions to rows, and counts the answers that occur several times in their context."""

    def __init__(self, are_spans: bool) -> None:
        self.are_spans, self.ambiguous = are_spans, 0

    def row(self, values: Mapping[str, Any], file: str, line: int) -> Row | None:
        """Returns a row, or None for a blank question."""
        location = f"{display_name(file)}:{line}"
        if not values:
            return None
        name = f" (question {brief(str(values['id']))!r})" if "id" in values else ""
        question, context = (text_value(values, column, location) for column in ("question", "context"))
        if not question.strip():
            return None
        if not context.strip():
            raise HeedfulError(
                f"the context is empty, in {location}{name}; give the text with the answer, or remove the question"
            )
        found = () if values.get(IMPOSSIBLE) is True else self._answers(values, location)
        answers = tuple(self._value(context, text, start, location + name) for text, start in found)
        title = {"title": values["title"]} if isinstance(values.get("title"), str) else {}
        row_name = brief(str(values.get("id", "")))
        return Row({"question": question, "context": context, "answers": answers} | title, file, line, row_name)

    def _answers(self, values: Mapping[str, Any], location: str) -> list[tuple[str, int | None]]:
        """Returns the text and the given start of each answer, without blank texts."""
        answers: Any = values["answers"]
        starts: Any = values.get("answer_start")
        if isinstance(answers, Mapping):
            answers, starts = answers.get("text"), answers.get("answer_start")
        if isinstance(answers, list) and answers and all(isinstance(answer, Mapping) for answer in answers):
            starts = [answer.get("answer_start") for answer in answers]
            answers = [answer.get("text") for answer in answers]
        texts = [] if answers is None else answers if isinstance(answers, list) else [answers]
        positions = starts if isinstance(starts, list) else [None if starts in (None, "") else starts] * len(texts)
        if len(positions) != len(texts) or not all(isinstance(text, str) for text in texts):
            raise HeedfulError(
                f"the answers are {brief(json.dumps(values['answers'], default=str))}, in {location}; write "
                '{"text": ["..."], "answer_start": [0]}, two lists of equal length, or only the texts'
            )
        pairs = zip(texts, positions, strict=True)
        return [(text, self._position(start, location)) for text, start in pairs if text.strip()]

    def _position(self, start: Any, location: str) -> int | None:
        if isinstance(start, str) and start.strip().isdecimal():
            start = int(start)
        if start is not None and (not isinstance(start, int) or isinstance(start, bool) or start < 0):
            raise HeedfulError(
                f"answer_start is {brief(json.dumps(start, default=str))}, in {location}; give the number of "
                "characters before the answer, 0 or more"
            )
        return start

    def _value(self, context: str, text: str, start: int | None, location: str) -> Span | str:
        """Returns an answer as a span of the context, or as a text of its own."""
        checked_text(text, "answers", location)
        return self._span(context, text, start, location) if self.are_spans else text.strip()

    def _span(self, context: str, text: str, start: int | None, location: str) -> Span:
        if start is None:
            start = context.find(text.strip())
            self.ambiguous += start >= 0 and context.find(text.strip(), start + 1) >= 0
            if start < 0:
                raise HeedfulError(
                    f"the answer {brief(text)!r} is not in the context, in {location}; {_remedy(context, text)}"
                )
        elif context[start : start + len(text)] != text:
            actual = context[start : start + len(text)]
            problem = f"the context has {brief(actual)!r} there" if actual else f"the context ends at {len(context)}"
            raise HeedfulError(
                f"the answer {brief(text)!r} is not at {start} ({problem}), in {location}; {_remedy(context, text)}"
            )
        else:
            start += len(text) - len(text.lstrip())
        return Span(text.strip(), start)


def _remedy(context: str, text: str) -> str:
    """Returns a hint with the answer's position, found without regard to case and blanks."""
    text = text.strip()
    positions = [match.start() for match in re.finditer(re.escape(text), context)]
    if positions:
        more = f" (and at {', '.join(map(str, positions[1:4]))})" if len(positions) > 1 else ""
        return f"it is at {positions[0]}{more}"
    similar = re.search(r"\s+".join(map(re.escape, text.split())), context, re.IGNORECASE)
    if similar:
        return f"write it as in the context, {brief(similar[0])!r}, at {similar.start()}"
    return "write the answer exactly as in the context, or leave it empty"


# -------------------------------------------------------------------------------------------------------------- tables


class _Questions(Table):
    """Table whose column of answers is called ``answers`` or ``answer``."""

    def _required(self) -> list[str]:
        return ["question", "context", "answers"]

    def _optional(self) -> list[str]:
        return ["answer_start", "title"]

    def _choose_columns(self, available: Container[str]) -> None:
        required = self._required()
        if self.names is not None:
            self.chosen_columns, self.file_columns = tuple(required), tuple(self.names)
            return
        self.chosen_columns = (*required, *(name for name in self._optional() if name in available))
        self.file_columns = tuple(self._file_column(column, available) for column in self.chosen_columns)

    def _file_column(self, column: str, available: Container[str]) -> str:
        name = super()._file_column(column, available)
        return "answer" if name == "answers" and "answer" in available and "answers" not in available else name

    def _absent(self) -> list[str]:
        return []

    def _missing_error(self, names: list[str], line: int) -> Any:
        error, is_keyed = super()._missing_error(names, line), self.format.is_keyed
        problem, location, _ = str(error).partition(f"{display_name(self.path)}:{line}")
        if is_keyed and "data" in names:
            return type(error)(f"{problem}{location}; SQuAD's own JSON ends in .json: rename it")
        keys = {name.partition(".")[0] for name in names} if is_keyed else names
        if self.names is None and 1 < len(keys) < len(self.file_columns):  # there are too few columns to choose from
            form = FLAT if is_keyed else "question, context and answer (empty if there is none)"
            return type(error)(f"{problem}{location}; write {form}")
        return error


# --------------------------------------------------------------------------------------------------------- SQuAD's JSON


class _LocatedObject(dict[str, Any]):
    """Object of a JSON file with the line of the first of its `KEYS` (None if it has none)."""

    line: int | None = None


def read_questions(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line, values) for each question of a JSON file: ``question``, ``context`` and, if it has one, ``id``.

    Answers are not needed and not read.
    """
    for line, values in _read_json(path, with_answers=False):
        location = f"{display_name(path)}:{line}"
        texts = {column: text_value(values, column, location) for column in ("question", "context")}
        yield line, texts | {name: values[name] for name in ("id",) if name in values}


def _read_json(path: str, with_answers: bool = True) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields (line, values) for each question, with ``title`` and ``id``; ``with_answers`` requires answers."""
    document = _parse_json(path)
    articles = document.get("data") if isinstance(document, dict) else document
    if not isinstance(articles, list):
        problem = "no object" if not isinstance(document, dict) else "no list 'data'"
        among = f" among {', '.join(map(repr, document))}" if document and problem != "no object" else ""
        raise HeedfulError(f"{problem}{among}, in {path}:1; SQuAD's JSON is {SHAPE}")
    last = 1
    for article in articles:
        if not isinstance(article, _LocatedObject):
            raise HeedfulError(
                f"an article is {brief(json.dumps(article))}, not an object, in {path}:{last}; SQuAD's JSON is {SHAPE}"
            )
        if "paragraphs" not in article:
            last = article.line or last
            flat = article if "answer" not in article else _LocatedObject({"answers": article["answer"], **article})
            keys = ("question", "context", *["answers"][:with_answers])
            yield last, _require_keys(flat, *keys, path=path, line=last, shape=FLAT)
            continue
        title = {"title": article["title"]} if isinstance(article.get("title"), str) else {}
        for paragraph in _list(article, "paragraphs", path, last):
            last = paragraph.line or last
            context = _require_keys(paragraph, "context", "qas", path=path, line=last, shape=SHAPE)["context"]
            for question in _list(paragraph, "qas", path, last):
                last = question.line or last
                keys = ("question", *["answers"][: with_answers and question.get(IMPOSSIBLE) is not True])
                values = _require_keys(question, *keys, path=path, line=last, shape=SHAPE)
                yield last, {**title, **values, "context": context}


def _list(parent: _LocatedObject, key: str, path: str, last: int) -> list[_LocatedObject]:
    items = parent[key]
    if not isinstance(items, list) or not all(isinstance(item, _LocatedObject) for item in items):
        line = parent.line or last
        raise HeedfulError(
            f"{key!r} is {brief(json.dumps(items))}, not a list of objects, in {path}:{line}; SQuAD's JSON is {SHAPE}"
        )
    return items


def _require_keys(values: _LocatedObject, *keys: str, path: str, line: int, shape: str) -> _LocatedObject:
    for key in keys:
        if key not in values:
            name = f" (question {values['id']!r})" if "id" in values else ""
            present = ", ".join(map(repr, values)) or "nothing"
            raise HeedfulError(f"no {key!r} among {present}, in {path}:{line}{name}; write {shape}")
    return values


def _parse_json(path: str) -> Any:
    """Returns the content of a JSON file with its objects as `_LocatedObject`."""
    text = read_text(path)
    ends = [match.start() for match in re.finditer("\n", text)]
    # Quotes in strings are escaped, so a match is a key. Matches have the order in which their objects end, since no
    # object is nested in one with the same key.
    lines = {key: (bisect(ends, m.start()) + 1 for m in re.finditer(rf'"{key}"\s*:', text)) for key in KEYS}

    def located(pairs: list[tuple[str, Any]]) -> _LocatedObject:
        values = _LocatedObject(pairs)
        values.line = min((next(lines[key], 1) for key, _ in pairs if key in lines), default=None)
        return values

    try:
        return json.loads(text, object_pairs_hook=located)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise HeedfulError(f"{display_name(path)} is empty; give SQuAD's JSON: {SHAPE}") from error
        hint = "; if the file has one object in each line, name it .jsonl" if error.msg == "Extra data" else ""
        raise HeedfulError(
            f"broken JSON ({error.msg}, at character {error.colno}), in {path}:{error.lineno}; correct it there, or "
            f"download it again{hint}"
        ) from error
    except RecursionError as error:
        raise HeedfulError(f"lists are nested too deeply, in {path}; SQuAD's JSON is {SHAPE}") from error
