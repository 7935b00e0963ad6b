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
COLUMNS: dict[str, Kind] = {"text": "text?", "messages": "messages?", "prompt": "text?", "completion": "text?"}
FORM = '[{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'


def read_rows(sources: Sequence[str], names: Sequence[str] | None = None, limit: int | None = None) -> Rows | None:
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
    rows = Rows(columns=names or columns)
    for source in sources:
        for line, values in Table(source, {column: KINDS[column] for column in columns}, names):
            row = dict(zip(columns, values, strict=False))
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
            f"only blank rows ({rows.skipped}) in {display_name(', '.join(sources))}; fill in prompts and completions"
        )
    return rows


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
    for number, message in enumerate(value, 1):
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise HeedfulError(f'message {number} needs the texts "role" and "content", in {location}; write {FORM}')
    if not any(message["role"] == "assistant" and message["content"].strip() for message in value):
        raise HeedfulError(
            f'no message has the role "assistant", in {location}, so there is nothing to learn; add the '
            "assistant's reply"
        )
    return tuple({key: content for key, content in message.items() if content is not None} for message in value)
