"""Readers of instructions and conversations: a prompt and its completion, or messages, in each row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from heedful.data.file_formats import EXTENSIONS
from heedful.data.rows import Kind, Row, Rows
from heedful.data.tables import Table
from heedful.data.text_files import STDIN, display_name, extension
from heedful.errors import HeedfulError

PAIR = ("prompt", "completion")
KINDS: dict[str, Kind] = {"messages": "messages", "prompt": "text", "completion": "text"}
LOOKED_FOR: dict[str, Kind] = {"text": "text?", "messages": "messages?", "prompt": "text?", "completion": "text?"}
FORM = '[{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'


def read_rows(sources: Sequence[str], names: Sequence[str] | None = None, limit: int | None = None) -> Rows | None:
    """The rows of tables that hold instructions; None where they hold something else (documents).

    A table that has no ``text`` but ``messages``, or ``prompt`` and ``completion``, is one of these; so is one of which
    ``names`` tells two columns, the prompt's and the completion's. A row is ``{"prompt", "completion"}``, two texts, or
    ``{"messages"}``, a tuple of mappings with their ``role`` and ``content``. Rows with a blank text are left out and
    counted in ``Rows.skipped``.

    Raises ``HeedfulError``, naming file and line, for messages that are none, or none of which is the assistant's.
    """
    if any(source == STDIN or extension(source) not in EXTENSIONS for source in sources):
        return None
    if names is None:
        found = _instruction_columns(sources[0])
    else:
        found = PAIR if len(names) == 2 else ()
    if not found:
        return None
    rows = Rows(columns=names or found)
    for source in sources:
        for line, values in Table(source, {column: KINDS[column] for column in found}, names):
            row = dict(zip(found, values, strict=False))
            if "messages" in row:
                row["messages"] = _messages(row["messages"], f"{display_name(source)}:{line}")
            elif not row or not all(text.strip() for text in row.values()):
                rows.skip(source, line)
                continue
            rows.append(Row(row, source, line))
            if len(rows) == limit:
                return rows
    if not rows:
        raise HeedfulError(
            f"only blank rows ({rows.skipped}) in {display_name(', '.join(sources))}; write prompts and completions"
        )
    return rows


def _instruction_columns(source: str) -> tuple[str, ...]:
    """Which columns of a table make it one of instructions; () where none do."""
    table = Table(source, LOOKED_FOR)
    line = next((line for line, values in table if values), None)  # a table knows its columns from its first row on
    there = set(table.chosen_columns)
    if len(there) == 1 and there.issubset(PAIR):
        (one,) = there
        (other,) = set(PAIR) - there
        raise HeedfulError(
            f"{one!r} and no {other!r}, in {display_name(source)}:{line}; call the other column so, or name both: "
            f"--data.columns PROMPT,COMPLETION; plain text is learned from one: --data.columns {one}"
        )
    if "text" in there:
        return ()
    return ("messages",) if "messages" in there else PAIR if there.issuperset(PAIR) else ()


def _messages(value: Any, where: str) -> tuple[Mapping[str, Any], ...]:
    """The messages of a row, checked."""
    if isinstance(value, str):  # a cell
        try:
            value = json.loads(value)
        except ValueError:
            raise HeedfulError(f"messages are no JSON list, in {where}; write {FORM}") from None
    if not isinstance(value, list | tuple) or not value:
        raise HeedfulError(f"messages are no list of them, in {where}; write {FORM}")
    for number, message in enumerate(value, 1):
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise HeedfulError(f'message {number} has no "role" and "content" of text, in {where}; write {FORM}')
    if not any(message["role"] == "assistant" and message["content"].strip() for message in value):
        raise HeedfulError(
            f"no message is the assistant's, in {where}, so that there is nothing to learn; its role is written "
            '"assistant"'
        )
    return tuple({key: content for key, content in message.items() if content is not None} for message in value)
