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

MARKED = re.compile(r"\w{0,12}[^\w\s]")  # beginning of a prefix: few letters, then a sign
SHARED = 0.95  # share of words from which a common beginning counts as a prefix
LEAST = 20  # words below which no prefix is reported
TIMES = 5  # occurrences of a label below which a single word is no finding
ENTITY = re.compile("[BIESLU]-.")  # tags of entities; a part of speech may have one word


def prefixed(rows: Sequence[Row], columns: Mapping[str, Kind]) -> Iterator[Finding]:
    """Reports a prefix that nearly all words share.

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
    """Returns the longest beginning, ending in a sign, that nearly all words share; "" if none."""
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
    """Reports entity labels that occur with one word only, in any case: the model would learn that word.

    >>> rows = [Row({"words": ("in", "Oslo"), "tags": ("O", "B-LOC")}, "a.conll", 3 * i + 1) for i in range(6)]
    >>> print(*[one.line() for one in bound(rows, {"words": "words", "tags": "tags"})])
    ! one word    1 label stands on one word alone: 'B-LOC' on 'oslo' (6 times); give other words (a.conll:2)
    """
    if list(columns.values()) != ["words", "tags"]:
        return
    words_name, tags_name = columns
    where: dict[str, str] = {}
    words_of: dict[str, set[str]] = defaultdict(set)
    times: Counter[str] = Counter()
    for row in rows:
        for number, (word, tag) in enumerate(zip(row.values[words_name], row.values[tags_name], strict=True)):
            if not ENTITY.match(tag):
                continue
            times[tag] += 1
            if len(words_of[tag]) < 2:
                words_of[tag].add(word.casefold())
                where.setdefault(tag, place(row, line_of(row, number)))
    tags = sorted(tag for tag in words_of if len(words_of[tag]) == 1 and times[tag] >= TIMES)
    if tags:
        listed = ", ".join(
            f"'{named(tag)}' on '{named(next(iter(words_of[tag])))}' ({times[tag]:,} times)" for tag in tags[:3]
        )
        more = ", ..." if len(tags) > 3 else ""
        verb = "stands" if len(tags) == 1 else "stand"
        text = f"{many(len(tags), 'label')} {verb} on one word alone: {listed}{more}; give other words"
        yield Finding("one word", "warning", len(tags), text, [where[tag] for tag in tags])
