"""Validation split of rows or of a text, and the keys by which rows count as equal."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from heedful.data.lazy_image import LazyImage
from heedful.data.rows import Row
from heedful.errors import HeedfulError, plural
from heedful.util.values import check

FRACTION, MAX_ROWS = 0.05, 2000  # default share of the rows, and its maximum number
LARGEST, ENOUGH = 0.2, 100  # the default of few rows: about 100 of them, at most a fifth
SMALL = round(ENOUGH / FRACTION)  # rows up to which that is so, and a class has its share of the validation rows
BLANK = re.compile(r"\s")
CHUNK = 1 << 18  # characters of a text that are split into words at a time
Same = Callable[[Any], bytes]  # returns a key that equal values share


def split(
    rows: Sequence[Row],
    valid: float | int | None = None,
    seed: int = 0,
    by: str = "source",
    same: Same | None = None,
    label: str | None = None,
) -> tuple[list[Row], list[Row]]:
    """Splits rows into (train, valid). Rows with equal values in column ``by``, or of one group, stay on one side.

    Groups of equal values are drawn in the order of a hash of (seed, value). A group that would exceed ``valid`` is
    skipped. The draw does not depend on the order of the file; both sides keep that order.

    Of at most 2,000 rows with one class each, both sides get the classes in the same proportions: a group of m rows,
    before which r of the n rows of its class stand in the order of the hash, is drawn at (r + m / 2) / n. For single
    rows this is the method of Sainte-Laguë, which rounds each class's share to the nearest whole number.

    Args:
        rows: the rows.
        valid: number of validation rows (an int, from 1) or their fraction (a float between 0 and 1); None: of n rows
            min(20 %, max(5 %, 100 / n)), at least 1 row and at most 2,000.
        seed: determines the draw.
        by: name of the column that is compared; its values are texts, ``LazyImage`` objects, or tuples of texts or
            messages.
        same: returns the key of a value; values with equal keys are equal. Default: ``content_digest``. The rules of
            earlier versions (``earlier_digest``, ``exact_bytes``) bring their split: 5 % by default, without classes.
        label: name of the column of classes; None, or values that are no strings (several labels, numbers): the classes
            do not matter.

    Raises ``HeedfulError`` if ``valid`` is out of range or the rows have fewer than two different values.
    """
    is_earlier = same in (earlier_digest, exact_bytes)
    size = _validation_size(valid, len(rows), FRACTION if is_earlier else LARGEST)
    values = [row.group or row.values[by] for row in rows]
    keys = list(map(same or content_digest, values))
    groups: dict[bytes, int] = defaultdict(int)
    smallest: dict[bytes, bytes] = {}  # key -> the smallest of its values
    for key, value in zip(keys, values, strict=True):
        groups[key] += 1
        exact = exact_bytes(value)
        smallest[key] = min(exact, smallest.get(key, exact))
    if len(groups) < 2:
        where = f"{rows[0].file}: " if rows else ""
        raise HeedfulError(
            f"{where}{plural(len(rows), 'row')} with {plural(len(groups), 'different value')} of {by!r} are too few "
            "for a validation split; give more rows, or a validation file: --valid FILE"
        )
    drawn: Sequence[bytes] = sorted(
        groups, key=lambda key: blake2b(b"%d\0" % seed + smallest[key], digest_size=16).digest()
    )
    if label is not None and len(rows) <= SMALL and not is_earlier:
        drawn = _by_class(drawn, groups, keys, [row.values.get(label) for row in rows])
    validation = _fitting(drawn, groups, size)
    sides: tuple[list[Row], list[Row]] = [], []
    for row, key in zip(rows, keys, strict=True):
        sides[key in validation].append(row)
    return sides


def _fitting(drawn: Sequence[bytes], groups: Mapping[bytes, int], size: int) -> set[bytes]:
    """Returns the groups that fit into ``size`` rows, in the order ``drawn``; the smallest if none does."""
    validation: set[bytes] = set()
    count = 0
    for key in drawn:
        if count + groups[key] <= size:
            validation.add(key)
            count += groups[key]
    return validation or {min(drawn, key=groups.__getitem__)}


def _by_class(
    drawn: Sequence[bytes], groups: Mapping[bytes, int], keys: Sequence[bytes], labels: Sequence[Any]
) -> Sequence[bytes]:
    """Returns the groups ``drawn`` in an order whose beginnings have the classes in their proportions; as they are if
    ``labels``, of the rows, are not all strings.
    """
    if not all(isinstance(label, str) for label in labels):
        return drawn
    class_of: dict[bytes, str] = {}
    for key, label in zip(keys, labels, strict=True):
        class_of[key] = min(label, class_of.get(key, label))  # equal values may have different labels
    sizes: dict[str, int] = defaultdict(int)
    for key in drawn:
        sizes[class_of[key]] += groups[key]
    before: dict[str, int] = defaultdict(int)
    position = {}
    for key in drawn:
        name = class_of[key]
        position[key] = (before[name] + groups[key] / 2) / sizes[name]
        before[name] += groups[key]
    return sorted(drawn, key=position.__getitem__)  # stable: equal positions keep the order of the hash


def split_text(text: str, fraction: float) -> tuple[str, str]:
    r"""Splits one text into (head, tail) after a line end, the tail as near as possible to ``fraction`` of it.

    >>> split_text("one\ntwo\nthree\nfour", 0.2)
    ('one\ntwo\nthree\n', 'four')

    Raises ``HeedfulError`` if ``fraction`` is not between 0 and 1, or no line end has text on both sides.
    """
    check("the validation fraction of a text", fraction, float, above=0, below=1)
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    target = min(max(round((1 - fraction) * len(text)), first), last)
    before, after = text.rfind("\n", first, target), text.find("\n", target, last)
    ends = [end + 1 for end in (before, after) if end >= 0]
    if not ends:
        raise HeedfulError(
            f"a text of one line ({len(text):,} characters) cannot be split at a line end; give more text, or "
            "a validation file: --valid FILE"
        )
    boundary = min(ends, key=lambda end: abs(end - target))
    return text[:boundary], text[boundary:]


def content_digest(value: Any) -> bytes:
    """Returns a digest that is the same for equal values.

    Texts, words and messages are equal if they differ only in case and white space; images are equal if their stored
    bytes are. The digest defines the validation split, and the duplicates and leaks that the audit reports.

    >>> content_digest("Then Ann  came") == content_digest("then ann came ")
    True
    >>> content_digest(("In", "Rome")) == content_digest(("in", "Rome"))
    True
    """
    plain = (
        value.digest_bytes() if isinstance(value, LazyImage) else _normalized(value).encode("utf-8", "surrogatepass")
    )
    return blake2b(plain, digest_size=16).digest()


def earlier_digest(value: Any) -> bytes:
    """Returns ``content_digest``; as the rule of a split it stands for the split of earlier versions of Heedful."""
    return content_digest(value)


def _normalized(value: Any) -> str:
    if isinstance(value, str):
        return collapse_blanks(value).casefold()
    if isinstance(value, tuple) and value and all(isinstance(item, str) for item in value):
        return repr([_normalized(item) for item in value])
    if isinstance(value, tuple) and value and isinstance(value[0], Mapping):
        return repr([sorted((name, _normalized(item)) for name, item in message.items()) for message in value])
    return repr(value)


def collapse_blanks(text: str) -> str:
    r"""Returns a text with each run of white space as one space, and none at its start and end.

    >>> collapse_blanks("  one\ttwo\n\nthree ")
    'one two three'
    """
    if len(text) <= CHUNK:
        return " ".join(text.split())
    parts, start = list[str](), 0
    while start < len(text):
        blank = BLANK.search(text, start + CHUNK)
        end = blank.start() if blank else len(text)
        parts.append(" ".join(text[start:end].split()))
        start = end
    return " ".join(filter(None, parts))


def exact_bytes(value: Any) -> bytes:
    """Returns the exact bytes of a value; for an image, a digest.

    Earlier versions of Heedful used them instead of ``content_digest`` to split rows.
    """
    if isinstance(value, LazyImage):
        return blake2b(value.digest_bytes(), digest_size=32).digest()
    if not isinstance(value, str):
        value = "\0".join(item if isinstance(item, str) else json.dumps(item) for item in value)
    return str(value).encode("utf-8", "surrogatepass")


def _validation_size(valid: float | int | None, rows: int, largest: float) -> int:
    if valid is None:
        share = min(largest, max(FRACTION, ENOUGH / max(1, rows)))
        return min(MAX_ROWS, max(1, round(share * rows)))
    size = max(1, round(valid * rows)) if isinstance(valid, float) and 0 < valid < 1 else valid
    if not isinstance(size, int) or not 1 <= size < rows:
        raise HeedfulError(
            f"cannot use {valid} of {rows} rows for validation; give a fraction between 0 and 1, or a number of rows "
            f"from 1 to {max(1, rows - 1)}"
        )
    return size


class Key(NamedTuple):
    """Two digests of a row; rows with equal contents have equal digests (:func:`content_digest`)."""

    row: bytes  # digest of all columns
    model_input: bytes  # digest of the columns that a model reads


def row_keys(rows: Sequence[Row], columns: Iterable[str], input_columns: Collection[str]) -> list[Key]:
    """Returns the key of each row: a digest of its ``columns``, and one of what a model reads (``input_columns``)."""
    columns = list(columns)
    keys = []
    for row in rows:
        digests = {name: content_digest(row.values[name]) for name in columns if name in row.values}
        input_digests = {
            name: digests[name] if value is row.values[name] else content_digest(value)
            for name, value in input_values(row, input_columns).items()
        }
        keys.append(Key(_combine(digests), _combine(input_digests or digests)))
    return keys


def input_values(row: Row, input_columns: Collection[str]) -> dict[str, Any]:
    """Returns the values of a row that a model reads as its input: those of the ``input_columns``.

    Of an instruction this is the prompt, and of a conversation the messages before the last reply.

    >>> talk = [{"role": role, "content": role} for role in ("user", "assistant", "user", "assistant")]
    >>> [len(input_values(Row({"messages": talk}, "talks.jsonl", 1), ["text"])["messages"])]
    [3]
    """
    values = {name: row.values[name] for name in input_columns if name in row.values}
    if values:
        return values
    if "messages" not in row.values:
        return {"prompt": row.values["prompt"]} if "prompt" in row.values else {}
    messages = row.values["messages"]
    last = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=0)
    return {"messages": messages[:last]} if last else {}


def _combine(digests: Mapping[str, bytes]) -> bytes:
    joined = b"".join(name.encode() + b"\0" + digest for name, digest in digests.items())
    return blake2b(joined, digest_size=16).digest()
