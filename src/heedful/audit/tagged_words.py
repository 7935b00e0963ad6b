"""Checks of tagged words: a prefix common to all words, labels that occur with one word only."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from heedful.audit.findings import Finding, place
from heedful.data import Row
from heedful.data.conll import line_of
from heedful.data.rows import Kind
from heedful.errors import many
from heedful.util.escaping import named

MARKED = re.compile(r"\w{0,12}[^\w\s]")  # how a prefix begins: few letters, and a sign
SHARED = 0.95  # of the words, from which on their prefix is none of their own
LEAST = 20  # words of which that can be said
TIMES = 5  # that a label stands, from which on its one word is no accident
ENTITY = re.compile("[BIESLU]-.")  # tags that tell entities; a part of speech may well have one word alone


def prefixed(rows: Sequence[Row], columns: Mapping[str, Kind]) -> Iterator[Finding]:
    """The prefix that nearly all words begin with.

    >>> rows = [Row({"words": ("en:The", "en:river", "en:.", *["en:far"] * 6)}, "a", 10 * i + 1) for i in range(3)]
    >>> print(*[one.line() for one in prefixed(rows, {"words": "words"})])
    ! prefix      27 of 27 words begin with 'en:'; --data.strip-prefix en: takes it off (a:1, a:11, a:21)
    """
    if "words" not in columns.values():
        return
    name = next(name for name, kind in columns.items() if kind == "words")
    words = [word for row in rows for word in row.values[name]]
    prefix = _prefix(words)
    if prefix:
        count = sum(word.startswith(prefix) for word in words)
        text = f"{count:,} of {len(words):,} words begin with {prefix!r}; --data.strip-prefix {prefix} takes it off"
        yield Finding(
            "prefix", "warning", count, text, [place(row) for row in rows if row.values[name][0].startswith(prefix)]
        )


def _prefix(words: Sequence[str]) -> str:
    """The longest beginning, signs last, that nearly all words share; "" where there is none."""
    if len(words) < LEAST or len(set(words)) == 1:
        return ""
    begins = Counter(found[0] for word in words if (found := MARKED.match(word)))
    prefix, count = next(iter(begins.most_common(1)), ("", 0))
    while count >= SHARED * len(words):
        after = Counter(
            word[: len(prefix) + 1] for word in words if word.startswith(prefix) and len(word) > len(prefix)
        )
        longer, count = next(iter(after.most_common(1)), ("", 0))
        if count < SHARED * len(words) or longer[-1].isalnum():
            return prefix
        prefix = longer
    return ""


def bound(rows: Sequence[Row], columns: Mapping[str, Kind]) -> Iterator[Finding]:
    """Labels of entities that stand on one word alone, whatever its case: of such a label nothing else is learned.

    >>> rows = [Row({"words": ("in", "Oslo"), "tags": ("O", "B-LOC")}, "a.conll", 3 * i + 1) for i in range(6)]
    >>> print(*[one.line() for one in bound(rows, {"words": "words", "tags": "tags"})])
    ! one word    1 label stands on one word alone: 'B-LOC' on 'oslo' (6 times); give other words (a.conll:2)
    """
    if list(columns.values()) != ["words", "tags"]:
        return
    words_name, tags_name = columns
    where: dict[str, str] = {}
    on: dict[str, set[str]] = defaultdict(set)
    times: Counter[str] = Counter()
    for row in rows:
        for number, (word, tag) in enumerate(zip(row.values[words_name], row.values[tags_name], strict=True)):
            if not ENTITY.match(tag):
                continue
            times[tag] += 1
            if len(on[tag]) < 2:
                on[tag].add(word.casefold())
                where.setdefault(tag, place(row, line_of(row, number)))
    found = sorted(tag for tag in on if len(on[tag]) == 1 and times[tag] >= TIMES)
    if found:
        each = ", ".join(
            f"'{named(tag)}' on '{named(next(iter(on[tag])))}' ({times[tag]:,} times)" for tag in found[:3]
        )
        more = ", ..." if len(found) > 3 else ""
        text = (
            f"{many(len(found), 'label')} {'stands' if len(found) == 1 else 'stand'} on one word alone: {each}{more}; "
        )
        yield Finding("one word", "warning", len(found), f"{text}give other words", [where[tag] for tag in found])
