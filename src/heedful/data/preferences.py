"""Reader of preferences: a prompt, the answer that was chosen and the answer that was rejected, in each row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from heedful.data.cell_values import brief, checked_text
from heedful.data.conversations import checked_messages
from heedful.data.file_formats import EXTENSIONS
from heedful.data.rows import Kind, Rows, required_columns
from heedful.data.tables import Table, converted_rows
from heedful.data.text_files import STDIN, display_name, extension
from heedful.errors import HeedfulError

ANSWERS = ("chosen", "rejected")
COLUMNS = ("prompt", *ANSWERS)
ASSISTANT = "\n\nAssistant:"  # begins an answer in conversations that are one text, as in Anthropic's hh-rlhf
FORM = 'a text, or [{"role": "assistant", "content": "..."}]'
Turns = str | tuple[Mapping[str, Any], ...]  # a text, or messages


def read_preferences(
    sources: Sequence[str],
    kinds: Mapping[str, Kind],
    names: Sequence[str] | None = None,
    limit: int | None = None,
    remembered: Mapping[str, str] | None = None,
) -> Rows | None:
    """Returns the rows of tables with preferences; None for other sources.

    A table has preferences if it has the columns ``chosen`` and ``rejected``, and not all the columns that ``kinds``
    requires besides, or if ``names`` has ``chosen=...`` and ``rejected=...``. Each value is a text or a list of
    messages, in a text table as JSON. The values of a row are ``{"prompt", "chosen", "rejected"}``: three texts, or
    three tuples of messages, the last two of which follow the first. These layouts of the Hub become that:

    - ``prompt``, and the answers to it;
    - the answers as whole conversations, with or without ``prompt``: their common beginning is the prompt;
    - whole conversations as one text, in which ``\\n\\nAssistant:`` begins an answer; without it, the prompt ends with
      the last line, or the last word, that both have in common.

    Rows with a blank answer are left out and counted in ``Rows.skipped``.

    Raises ``HeedfulError``, naming file and line, for a value of another form, and for answers without a prompt.
    """
    if any(source == STDIN or extension(source) not in EXTENSIONS for source in sources):
        return None
    columns = _named(names) if names is not None else _columns_of(sources[0], kinds, remembered or {})
    if not columns:
        return None
    raw: dict[str, Kind] = dict.fromkeys(columns, "messages")  # read as they are
    tables = (Table(source, raw, list(columns.values())) for source in sources)
    rows = converted_rows(tables, _values, limit, "chosen and rejected")
    rows.columns, rows.mapping = tuple(columns.values()), columns
    return rows


def _named(names: Sequence[str]) -> dict[str, str]:
    """Returns the file's columns that ``column=name`` entries name; {} unless they are those of preferences."""
    pairs = dict(name.split("=", 1) for name in names if "=" in name)
    if len(pairs) < len(names) or not pairs.keys() <= {*COLUMNS} or not pairs.keys() >= {*ANSWERS}:
        return {}
    return {column: pairs[column] for column in COLUMNS if column in pairs}


def _columns_of(source: str, kinds: Mapping[str, Kind], remembered: Mapping[str, str]) -> dict[str, str]:
    """Returns the file's name of each column of preferences in a table; {} if it has none."""
    others = {column for column in required_columns(kinds) if column not in COLUMNS}
    wanted: dict[str, Kind] = dict.fromkeys((*COLUMNS, *others), "messages?")  # read as they are
    table = Table(source, wanted, remembered=remembered)
    line = next((line for line, values in table if values), None)  # sets the chosen columns
    present = dict(zip(table.chosen_columns, table.file_columns, strict=True))
    if others and others <= present.keys():
        return {}
    answers = [column for column in ANSWERS if column in present]
    if len(answers) == 1 and "prompt" in present:
        (missing,) = {*ANSWERS} - {*answers}
        raise HeedfulError(
            f"there is a column {answers[0]!r} but no {missing!r}, in {display_name(source)}:{line}; rename the other "
            "column, or name both: --data.columns chosen=NAME,rejected=NAME"
        )
    return {column: present[column] for column in COLUMNS if column in present} if len(answers) == 2 else {}


def _values(cells: Mapping[str, Any], location: str) -> dict[str, Turns] | None:
    """Returns prompt, chosen and rejected answer of a row; None if an answer is blank."""
    prompt, chosen, rejected = (_turns(cells.get(column), column, location) for column in COLUMNS)
    if not all(map(_has_text, (chosen, rejected))):
        return None
    if isinstance(chosen, str) and isinstance(rejected, str) and isinstance(prompt, str):
        if not prompt.strip():
            prompt = _common_text(chosen, rejected, location)
            chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
        return {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    first, second = (_messages(value, "assistant") for value in (chosen, rejected))
    before = _messages(prompt, "user") if _has_text(prompt) else ()
    repeats = [answer[: len(before)] == before for answer in (first, second)]
    if before and repeats[0] != repeats[1]:
        repeating, other = ANSWERS if repeats[0] else ANSWERS[::-1]
        raise HeedfulError(f"{repeating} begins with the prompt, but {other} does not, in {location}; correct one")
    if all(repeats):
        before = _common_messages(first, second)
        first, second = first[len(before) :], second[len(before) :]
    if not before:
        raise HeedfulError(
            f"chosen and rejected have no beginning in common, so the prompt is unknown, in {location}; add a column "
            "prompt"
        )
    for column, messages in zip(ANSWERS, (first, second), strict=True):
        if not any(message["role"] == "assistant" and message["content"].strip() for message in messages):
            raise HeedfulError(
                f'{column} has no message with the role "assistant" after the prompt, in {location}; write {FORM}'
            )
    return {"prompt": before, "chosen": first, "rejected": second}


def _turns(value: Any, column: str, location: str) -> Turns:
    """Returns a text, or a tuple of messages; an absent value is an empty text."""
    if value is None:
        return ""
    if isinstance(value, str) and value.lstrip().startswith("["):  # messages in a cell of a text table
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = None
        if isinstance(parsed, list) and all(isinstance(item, Mapping) and "role" in item for item in parsed):
            value = parsed
    if isinstance(value, str):
        return checked_text(value, column, location)
    if not isinstance(value, list | tuple) or not value:
        raise HeedfulError(f"{column!r} is {brief(repr(value))}, in {location}; write {FORM}")
    return checked_messages(value, column, location, FORM)


def _has_text(turns: Turns) -> bool:
    return any(text.strip() for text in turn_texts(turns))


def turn_texts(turns: Turns) -> list[str]:
    """Returns a text as a list of itself, or the contents of messages.

    >>> turn_texts("Moo."), turn_texts(({"role": "user", "content": "Say moo"},))
    (['Moo.'], ['Say moo'])
    """
    return [turns] if isinstance(turns, str) else [message["content"] for message in turns]


def _messages(turns: Turns, role: str) -> tuple[Mapping[str, Any], ...]:
    return ({"role": role, "content": turns},) if isinstance(turns, str) else turns


def _common_messages(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]
) -> tuple[Mapping[str, Any], ...]:
    """Returns the messages that two conversations have in common at the beginning, without the last of either."""
    common = []
    for a, b in zip(first[:-1], second[:-1], strict=False):
        if a != b:
            break
        common.append(a)
    return tuple(common)


def _common_text(first: str, second: str, location: str) -> str:
    """Returns the prompt of two conversations that are one text each: their common beginning, up to an answer."""
    size = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(map(len, (first, second)))
    )
    common = first[:size]
    at = common.rfind(ASSISTANT)
    end = at + len(ASSISTANT) if at >= 0 else common.rfind("\n") + 1 or common.rfind(" ") + 1
    if not common[:end].strip() or not first[end:].strip() or not second[end:].strip():
        raise HeedfulError(
            f"chosen and rejected have no beginning in common, so the prompt is unknown, in {location}; add a column "
            "prompt"
        )
    return first[:end]
