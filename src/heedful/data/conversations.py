"""Readers of instructions and conversations: a prompt and its completion, or messages, in each row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from heedful.data.file_formats import EXTENSIONS
from heedful.data.rows import Kind, Rows
from heedful.data.tables import Table, converted_rows
from heedful.data.text_files import STDIN, display_name, extension
from heedful.errors import HeedfulError

PAIR = ("prompt", "completion")
KINDS: dict[str, Kind] = {"messages": "messages", "prompt": "text", "completion": "text"}
COLUMNS: dict[str, Kind] = {"text": "text?", "messages": "messages?", "prompt": "text?", "completion": "text?"}
FORM = '[{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'


def read_conversations(
    sources: Sequence[str], names: Sequence[str] | None = None, limit: int | None = None
) -> Rows | None:
    """Returns the rows of tables with instructions or conversations; None for other sources (documents).

    A table has instructions or conversations if it has no column ``text`` but a column ``messages``, or the columns
    ``prompt`` and ``completion``, or if ``names`` gives the prompt's and the completion's column. The values of a row
    are ``{"prompt", "completion"}``, two texts, or ``{"messages"}``, a tuple of mappings with a ``role`` and a
    ``content``. Rows with a blank text are left out and counted in ``Rows.skipped``.

    Raises ``HeedfulError``, naming file and line, for messages in another form, and for a conversation without a
    message from the assistant.
    """
    if any(source == STDIN or extension(source) not in EXTENSIONS for source in sources):
        return None
    if names is None:
        columns = _instruction_columns(sources[0])
    else:
        columns = PAIR if len(names) == 2 else ()
    if not columns:
        return None
    tables = (Table(source, {column: KINDS[column] for column in columns}, names) for source in sources)
    rows = converted_rows(tables, _values, limit, "prompts and completions")
    rows.columns = tuple(names or columns)
    return rows


def _values(cells: Mapping[str, Any], location: str) -> Mapping[str, Any] | None:
    """Returns the values of a row; None if a prompt or a completion is blank."""
    if "messages" in cells:
        return {"messages": _messages(cells["messages"], location)}
    return cells if all(text.strip() for text in cells.values()) else None


def _instruction_columns(source: str) -> tuple[str, ...]:
    """Returns the columns of a table that hold instructions or conversations; () if it has none."""
    table = Table(source, COLUMNS)
    line = next((line for line, values in table if values), None)  # sets the chosen columns
    present = set(table.chosen_columns)
    if len(present) == 1 and present.issubset(PAIR):
        (column,) = present
        (missing,) = set(PAIR) - present
        raise HeedfulError(
            f"there is a column {column!r} but no {missing!r}, in {display_name(source)}:{line}; rename the other "
            f"column, or name both: --data.columns PROMPT,COMPLETION; for plain text name one: --data.columns {column}"
        )
    if "text" in present:
        return ()
    return ("messages",) if "messages" in present else PAIR if present.issuperset(PAIR) else ()


def _messages(value: Any, location: str) -> tuple[Mapping[str, Any], ...]:
    """Returns the messages of a row. Raises `HeedfulError` for another form."""
    if isinstance(value, str):  # a cell of a text table
        try:
            value = json.loads(value)
        except ValueError:
            raise HeedfulError(f"the messages are not a JSON list, in {location}; write {FORM}") from None
    if not isinstance(value, list | tuple) or not value:
        raise HeedfulError(f"the messages are not a list, or the list is empty, in {location}; write {FORM}")
    messages = checked_messages(value, "messages", location, FORM)
    if not any(message["role"] == "assistant" and message["content"].strip() for message in messages):
        raise HeedfulError(
            f'no message has the role "assistant", in {location}, so there is nothing to learn; add the '
            "assistant's reply"
        )
    return messages


def checked_messages(messages: Sequence[Any], column: str, location: str, form: str) -> tuple[Mapping[str, Any], ...]:
    """Returns the messages of a cell without values that are null.

    Raises ``HeedfulError``, naming ``column`` and ``location``, for one without the texts "role" and "content".
    """
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise HeedfulError(
                f'message {number} of {column!r} needs the texts "role" and "content", in {location}; write {form}'
            )
    return tuple({key: value for key, value in message.items() if value is not None} for message in messages)
