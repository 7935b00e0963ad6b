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
from heedful.errors import HeedfulError

log = logging.getLogger("heedful")

SHAPE = '{"data": [{"paragraphs": [{"context": "...", "qas": [{"id": "...", "question": "...", "answers": [...]}]}]}]}'
FLAT = '{"question": "...", "context": "...", "answers": {"text": ["..."], "answer_start": [0]}}'
KEYS = ("question", "answers", "context", "qas", "paragraphs")  # an object with one of them is placed by it
IMPOSSIBLE = "is_impossible"
MORE: dict[str, Kind] = {"answer": "answers", "answer_start": "answers", "title": "answers"}  # of a table


def read_rows(
    sources: Sequence[str],
    kinds: Mapping[str, Kind],
    names: Sequence[str] | None = None,
    split: str | None = None,
    limit: int | None = None,
    remembered: Mapping[str, str] | None = None,
) -> Rows:
    """A row for each question of `sources`, in their order: ``question``, ``context``, ``answers`` (a tuple of `Span`,
    () where the text has no answer), and ``title`` where the file has it.

    - ``.json``: as SQuAD 1.1 and 2.0 have it (Rajpurkar et al. 2016, 2018), or a list of flat records. What
      ``is_impossible`` has no answer; ``plausible_answers`` are ignored.
    - ``.jsonl``, ``.parquet``: a record a question, its ``answers`` as the Hub's ``squad`` has them,
      ``{"text": [...], "answer_start": [...]}``, or a list of ``{"text", "answer_start"}``, or texts alone.
    - ``.tsv`` (``-``: standard input), ``.csv``: ``question``, ``context`` and ``answer``, a text; an empty one is no
      answer. An ``answer_start`` beside it says where it stands.

    Every file may be compressed. ``answer`` or ``answers``, one name is as good as the other. A text without its place
    is looked for in the context; where it stands there several times the first counts, and a warning says how often
    that was so. Blanks around an answer do not belong to it. Rows with a blank question are left out and counted.

    Raises `HeedfulError` with file, line and remedy for an answer that does not stand where it should, for an empty
    context, and for whatever else is not as described. `split` has no effect: files have no parts.
    """
    rows, reader = Rows(columns=names or kinds), _Reader()
    for source in sources:
        for line, values in _records(source, kinds, names, remembered, rows):
            if len(rows) == limit:
                break
            row = reader.row(values, source, line)
            if row is None:
                rows.skip(source, line)
            else:
                rows.append(row)
    if reader.several:
        log.warning(
            f"{reader.several:,} {'answer stands' if reader.several == 1 else 'answers stand'} several times in their "
            "text: the first place counts; "
            "give answer_start to choose another"
        )
    if not rows:
        found = f"only blank rows ({rows.skipped})" if rows.skipped else "no questions"
        raise HeedfulError(
            f"{found} in {display_name(', '.join(sources))}; give a file with question, context and answers"
        )
    return rows


def _records(
    source: str,
    kinds: Mapping[str, Kind],
    names: Sequence[str] | None,
    remembered: Mapping[str, str] | None,
    rows: Rows,
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(line, values) of each question in a file; of a blank line no values. `rows` are told how it is read."""
    if extension(source) == ".json":
        if names is not None:
            raise HeedfulError(f"columns are named for {source}, whose keys are SQuAD's; leave --data.columns out")
        yield from _read_json(source)
    elif (table := _Questions(source, {**kinds, **MORE}, names, remembered=remembered or {})).format.is_table:
        for line, values in table:
            if values:
                table.annotate(rows)
            yield line, dict(zip(table.chosen_columns, values, strict=True)) if values else {}
    else:
        kind = extension(source)
        found = f"unknown extension {kind!r}" if kind else "no extension"
        raise HeedfulError(f"{found}, in {source}; give SQuAD's .json, or a table ({', '.join(EXTENSIONS)})")


def text_value(values: Mapping[str, Any], column: str, where: str) -> str:
    """A text of a record; anything else is an error."""
    text = values[column]
    if not isinstance(text, str):
        raise HeedfulError(
            f"{column!r} is {brief(json.dumps(text, default=str))} and text is wanted, in {where}; write it as a string"
        )
    return checked_text(text, column, where)


# ------------------------------------------------------------------------------------------------------------- answers


class _Reader:
    """Makes rows of what files hold, and counts the answers that stand in several places."""

    def __init__(self) -> None:
        self.several = 0

    def row(self, values: Mapping[str, Any], file: str, line: int) -> Row | None:
        """A row, or None where there is no question."""
        where = f"{display_name(file)}:{line}"
        if not values:
            return None
        name = f" (question {brief(str(values['id']))!r})" if "id" in values else ""
        question, context = (text_value(values, column, where) for column in ("question", "context"))
        if not question.strip():
            return None
        if not context.strip():
            raise HeedfulError(
                f"an empty context, in {where}{name}; give the text that is to answer, or take the question out"
            )
        given = () if values.get(IMPOSSIBLE) is True else self._given(values, where)
        spans = tuple(self._placed(context, text, start, where + name) for text, start in given)
        title = {"title": values["title"]} if isinstance(values.get("title"), str) else {}
        own = brief(str(values.get("id", "")))
        return Row({"question": question, "context": context, "answers": spans} | title, file, line, own)

    def _given(self, values: Mapping[str, Any], where: str) -> list[tuple[str, int | None]]:
        """The text of each answer, and the place that the file gives it; blank texts are none."""
        answers: Any = values["answers"]
        starts: Any = values.get("answer_start")
        if isinstance(answers, Mapping):
            answers, starts = answers.get("text"), answers.get("answer_start")
        if isinstance(answers, list) and answers and all(isinstance(one, Mapping) for one in answers):
            answers, starts = [one.get("text") for one in answers], [one.get("answer_start") for one in answers]
        texts = [] if answers is None else answers if isinstance(answers, list) else [answers]
        places = starts if isinstance(starts, list) else [None if starts in (None, "") else starts] * len(texts)
        if len(places) != len(texts) or not all(isinstance(text, str) for text in texts):
            raise HeedfulError(
                f"answers are {brief(json.dumps(values['answers'], default=str))}, in {where}; write "
                '{"text": ["..."], "answer_start": [0]}, as many of one as of the other, or the texts alone'
            )
        return [(text, self._place(start, where)) for text, start in zip(texts, places, strict=True) if text.strip()]

    def _place(self, start: Any, where: str) -> int | None:
        if isinstance(start, str) and start.strip().isdecimal():
            start = int(start)
        if start is not None and (not isinstance(start, int) or isinstance(start, bool) or start < 0):
            raise HeedfulError(
                f"answer_start is {brief(json.dumps(start, default=str))}, in {where}; it is the number of characters "
                "before the answer, 0 or more"
            )
        return start

    def _placed(self, context: str, text: str, start: int | None, where: str) -> Span:
        checked_text(text, "answers", where)
        if start is None:
            start = context.find(text.strip())
            self.several += start >= 0 and context.find(text.strip(), start + 1) >= 0
            if start < 0:
                raise HeedfulError(
                    f"the answer {brief(text)!r} does not stand in the context, in {where}; {_remedy(context, text)}"
                )
        elif context[start : start + len(text)] != text:
            there = context[start : start + len(text)]
            found = f"the context has {brief(there)!r} there" if there else f"the context ends at {len(context)}"
            raise HeedfulError(
                f"the answer {brief(text)!r} does not stand at {start} ({found}), in {where}; {_remedy(context, text)}"
            )
        else:
            start += len(text) - len(text.lstrip())
        return Span(text.strip(), start)


def _remedy(context: str, text: str) -> str:
    """Where the answer does stand, in whatever case."""
    text = text.strip()
    places = [match.start() for match in re.finditer(re.escape(text), context)]
    if places:
        more = f" (and at {', '.join(map(str, places[1:4]))})" if len(places) > 1 else ""
        return f"it stands at {places[0]}{more}"
    loose = re.search(r"\s+".join(map(re.escape, text.split())), context, re.IGNORECASE)
    if loose:
        return f"write it as the context has it, {brief(loose[0])!r}, at {loose.start()}"
    return "the answer must be a piece of the context, letter by letter: correct one of them, or leave it empty"


# -------------------------------------------------------------------------------------------------------------- tables


class _Questions(Table):
    """A table whose column of answers may be called ``answers`` or ``answer``."""

    def _required(self) -> list[str]:
        return ["question", "context", "answers"]

    def _optional(self) -> list[str]:
        return ["answer_start", "title"]

    def _choose_columns(self, there: Container[str]) -> None:
        asked = self._required()
        if self.names is not None:
            self.chosen_columns, self.file_columns = tuple(asked), tuple(self.names)
            return
        self.chosen_columns = (*asked, *(name for name in self._optional() if name in there))
        self.file_columns = tuple(self._file_column(column, there) for column in self.chosen_columns)

    def _file_column(self, column: str, there: Container[str]) -> str:
        name = super()._file_column(column, there)
        return "answer" if name == "answers" and "answer" in there and "answers" not in there else name

    def _absent(self) -> list[str]:
        return []

    def _missing_error(self, found: list[str], line: int) -> Any:
        error, keyed = super()._missing_error(found, line), self.format.is_keyed
        what, where, _ = str(error).partition(f"{display_name(self.path)}:{line}")
        if keyed and "data" in found:
            return type(error)(f"{what}{where}; SQuAD's own JSON ends in .json: rename it")
        parts = {name.partition(".")[0] for name in found} if keyed else found
        if self.names is None and 1 < len(parts) < len(self.file_columns):  # no choice of columns would do
            how = FLAT if keyed else "question, context and answer (empty where there is none)"
            return type(error)(f"{what}{where}; write {how}")
        return error


# --------------------------------------------------------------------------------------------------------- SQuAD's JSON


class _LocatedObject(dict[str, Any]):
    """An object of a JSON file, and the line that it begins at (None where it has no telling key)."""

    line: int | None = None


def read_questions(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, values) of each question of a JSON file, as `read_rows` takes it: ``question``, ``context`` and, where the
    file has one, ``id``. Answers do not matter, and there need be none.
    """
    for line, values in _read_json(path, answered=False):
        where = f"{display_name(path)}:{line}"
        told = {column: text_value(values, column, where) for column in ("question", "context")}
        yield line, told | {name: values[name] for name in ("id",) if name in values}


def _read_json(path: str, answered: bool = True) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(line, values) of each question, ``title`` and ``id`` among them; where it is ``answered`` it must say how."""
    document = _parsed(path)
    articles = document.get("data") if isinstance(document, dict) else document
    if not isinstance(articles, list):
        found = "no object" if not isinstance(document, dict) else "no list 'data'"
        among = f" among {', '.join(map(repr, document))}" if document and found != "no object" else ""
        raise HeedfulError(f"{found}{among}, in {path}:1; SQuAD's JSON is {SHAPE}")
    last = 1
    for article in articles:
        if not isinstance(article, _LocatedObject):
            raise HeedfulError(f"an article is {brief(json.dumps(article))}, in {path}:{last}; SQuAD's JSON is {SHAPE}")
        if "paragraphs" not in article:
            last = article.line or last
            flat = article if "answer" not in article else _LocatedObject({"answers": article["answer"], **article})
            wanted = ("question", "context", *["answers"][:answered])
            yield last, _with(flat, *wanted, path=path, line=last, shape=FLAT)
            continue
        title = {"title": article["title"]} if isinstance(article.get("title"), str) else {}
        for paragraph in _list(article, "paragraphs", path, last):
            last = paragraph.line or last
            context = _with(paragraph, "context", "qas", path=path, line=last, shape=SHAPE)["context"]
            for asked in _list(paragraph, "qas", path, last):
                last = asked.line or last
                needed = ("question", *["answers"][: answered and asked.get(IMPOSSIBLE) is not True])
                values = _with(asked, *needed, path=path, line=last, shape=SHAPE)
                yield last, {**title, **values, "context": context}


def _list(parent: _LocatedObject, key: str, path: str, last: int) -> list[_LocatedObject]:
    inner = parent[key]
    if not isinstance(inner, list) or not all(isinstance(one, _LocatedObject) for one in inner):
        line = parent.line or last
        raise HeedfulError(f"{key!r} is {brief(json.dumps(inner))}, in {path}:{line}; SQuAD's JSON is {SHAPE}")
    return inner


def _with(found: _LocatedObject, *keys: str, path: str, line: int, shape: str) -> _LocatedObject:
    for key in keys:
        if key not in found:
            name = f" (question {found['id']!r})" if "id" in found else ""
            there = ", ".join(map(repr, found)) or "nothing"
            raise HeedfulError(f"no {key!r} among {there}, in {path}:{line}{name}; write {shape}")
    return found


def _parsed(path: str) -> Any:
    """Returns the content of a JSON file with its objects as `_LocatedObject`.

    The line of an object is that of the first of its `KEYS`.
    """
    text = read_text(path)
    ends = [match.start() for match in re.finditer("\n", text)]
    # In a string a quote is escaped: what looks like such a key is one. They come in the order of their objects' ends,
    # since none lies in an object that has the same key.
    lines = {key: (bisect(ends, m.start()) + 1 for m in re.finditer(rf'"{key}"\s*:', text)) for key in KEYS}

    def placed(pairs: list[tuple[str, Any]]) -> _LocatedObject:
        found = _LocatedObject(pairs)
        found.line = min((next(lines[key], 1) for key, _ in pairs if key in lines), default=None)
        return found

    try:
        return json.loads(text, object_pairs_hook=placed)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise HeedfulError(f"nothing in {display_name(path)}; give SQuAD's JSON: {SHAPE}") from error
        several = "; an object a line is called .jsonl" if error.msg == "Extra data" else ""
        raise HeedfulError(
            f"broken JSON ({error.msg}, at character {error.colno}), in {path}:{error.lineno}; mend it there, or "
            f"download it again{several}"
        ) from error
    except RecursionError as error:
        raise HeedfulError(f"too many lists one in the other, in {path}; SQuAD's JSON is {SHAPE}") from error
