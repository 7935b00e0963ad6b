"""Validation split of rows or of a text, without any row on both sides."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from heedful.data.lazy_image import LazyImage
from heedful.data.rows import Row
from heedful.errors import HeedfulError, many
from heedful.util.values import check

FRACTION, MOST = 0.05, 2000  # default share of the rows, and maximum number
BLANK = re.compile(r"\s")
TOGETHER = 1 << 18  # characters of a text that are split into words at a time
Same = Callable[[Any], bytes]  # returns a key that equal values share


def split(
    rows: Sequence[Row], valid: float | int | None = None, seed: int = 0, by: str = "source", same: Same | None = None
) -> tuple[list[Row], list[Row]]:
    """Splits rows into (train, valid). Rows with equal values in column `by` stay on one side.

    Values are equal by `same` (default `content_digest`); a value is a text, a `LazyImage`, or a tuple of texts or
    messages.

    `valid` is a number of rows (an int, from 1) or a fraction of them (a float between 0 and 1); None is 5 %, at least
    1 and at most 2,000. Groups of equal value are drawn in the order of a hash of (seed, value) as long as they fit,
    the value being the least as written: the draw does not depend on the order of the file. Both sides keep that order.

    Raises `HeedfulError` when `valid` is out of range or the rows hold fewer than two different values.
    """
    size = _validation_size(valid, len(rows))
    keys = list(map(same or content_digest, (row.values[by] for row in rows)))
    groups: dict[bytes, int] = defaultdict(int)
    written: dict[bytes, bytes] = {}
    for key, row in zip(keys, rows, strict=True):
        groups[key] += 1
        exact = exact_bytes(row.values[by])
        written[key] = min(exact, written.get(key, exact))
    if len(groups) < 2:
        where = f"{rows[0].file}: " if rows else ""
        raise HeedfulError(
            f"{where}{many(len(rows), 'row')} with {many(len(groups), 'different value')} of {by!r} are too few to "
            "hold some back; give more rows, or a validation file: --valid FILE"
        )
    drawn = sorted(groups, key=lambda key: blake2b(b"%d\0" % seed + written[key], digest_size=16).digest())
    held: set[bytes] = set()
    count = 0
    for key in drawn:
        if count + groups[key] <= size:
            held.add(key)
            count += groups[key]
    if not held:  # every value stands in more rows than are wanted
        held.add(min(drawn, key=groups.__getitem__))
    sides: tuple[list[Row], list[Row]] = [], []
    for row, key in zip(rows, keys, strict=True):
        sides[key in held].append(row)
    return sides


def split_text(text: str, fraction: float) -> tuple[str, str]:
    r"""Splits one text into (head, tail) after a line end, the tail as near as possible to `fraction` of it.

    >>> split_text("one\ntwo\nthree\nfour", 0.2)
    ('one\ntwo\nthree\n', 'four')

    Raises `HeedfulError` when `fraction` is not between 0 and 1, or where no line end has text on both sides.
    """
    check("the validation fraction of a text", fraction, float, above=0, below=1)
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    wanted = min(max(round((1 - fraction) * len(text)), first), last)
    before, after = text.rfind("\n", first, wanted), text.find("\n", wanted, last)
    ends = [end + 1 for end in (before, after) if end >= 0]
    if not ends:
        raise HeedfulError(
            f"one line ({len(text):,} characters) cannot be cut at a line's end to hold some back; give more text, or "
            "a validation file: --valid FILE"
        )
    cut = min(ends, key=lambda end: abs(end - wanted))
    return text[:cut], text[cut:]


def content_digest(value: Any) -> bytes:
    """Returns a digest by which values are equal: texts, words and messages but for case and blanks, pictures by their
    stored bytes. The validation split and the audit's duplicates and leaks are defined by it.

    >>> content_digest("Then Ann  came") == content_digest("then ann came ")
    True
    >>> content_digest(("In", "Rome")) == content_digest(("in", "Rome"))
    True
    """
    plain = (
        value.digest_bytes() if isinstance(value, LazyImage) else _normalized(value).encode("utf-8", "surrogatepass")
    )
    return blake2b(plain, digest_size=16).digest()


def _normalized(value: Any) -> str:
    if isinstance(value, str):
        return collapse_blanks(value).casefold()
    if isinstance(value, tuple) and value and all(isinstance(item, str) for item in value):
        return repr([_normalized(item) for item in value])
    if isinstance(value, tuple) and value and isinstance(value[0], Mapping):
        return repr([sorted((name, _normalized(item)) for name, item in message.items()) for message in value])
    return repr(value)


def collapse_blanks(text: str) -> str:
    r"""Returns a text without blanks at its ends, and with one space in the place of each other run of blanks.

    >>> collapse_blanks("  one\ttwo\n\nthree ")
    'one two three'
    """
    parts, start = list[str](), 0
    while start < len(text):
        found = BLANK.search(text, start + TOGETHER)
        end = found.start() if found else len(text)
        parts.append(" ".join(text[start:end].split()))
        start = end
    return " ".join(filter(None, parts))


def exact_bytes(value: Any) -> bytes:
    """Returns a value as the file has it, digested where long. Earlier versions split validation rows by it."""
    if isinstance(value, LazyImage):
        return blake2b(value.digest_bytes(), digest_size=32).digest()
    if not isinstance(value, str):
        value = "\0".join(item if isinstance(item, str) else json.dumps(item) for item in value)
    return str(value).encode("utf-8", "surrogatepass")


def _validation_size(valid: float | int | None, rows: int) -> int:
    if valid is None:
        return min(MOST, max(1, round(FRACTION * rows)))
    size = max(1, round(valid * rows)) if isinstance(valid, float) and 0 < valid < 1 else valid
    if not isinstance(size, int) or not 1 <= size < rows:
        raise HeedfulError(
            f"{valid} of {rows} rows cannot be held back for validation; give a fraction between 0 and 1, or a number "
            f"of rows from 1 to {max(1, rows - 1)}"
        )
    return size


class Key(NamedTuple):
    """Digest that equal rows share (:func:`content_digest`)."""

    whole: bytes  # of all columns
    asked: bytes  # of those that a model is asked with


def row_keys(rows: Sequence[Row], columns: Iterable[str], asks: Collection[str]) -> list[Key]:
    """Returns the keys of the rows: of all their ``columns``, and of the model's input (``input_values``)."""
    wanted = list(columns)
    found = []
    for row in rows:
        whole = {name: content_digest(row.values[name]) for name in wanted if name in row.values}
        asked = {
            name: whole[name] if value is row.values[name] else content_digest(value)
            for name, value in input_values(row, asks).items()
        }
        found.append(Key(_joined(whole), _joined(asked or whole)))
    return found


def input_values(row: Row, asks: Collection[str]) -> dict[str, Any]:
    """Returns a row's model input: its columns ``asks``; of an instruction the prompt, of a conversation the messages
    before the last reply.

    >>> talk = [{"role": role, "content": role} for role in ("user", "assistant", "user", "assistant")]
    >>> [len(input_values(Row({"messages": talk}, "talks.jsonl", 1), ["text"])["messages"])]
    [3]
    """
    found = {name: row.values[name] for name in asks if name in row.values}
    if found:
        return found
    if "messages" not in row.values:
        return {"prompt": row.values["prompt"]} if "prompt" in row.values else {}
    messages = row.values["messages"]
    last = max((place for place, message in enumerate(messages) if message["role"] == "assistant"), default=0)
    return {"messages": messages[:last]} if last else {}


def _joined(parts: Mapping[str, bytes]) -> bytes:
    return blake2b(b"".join(name.encode() + b"\0" + part for name, part in parts.items()), digest_size=16).digest()
