"""Checks of labels and tagged words: distribution, misspellings, labels only validation has, shared prefixes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import fmean, pstdev

from heedful.audit.findings import Finding, place
from heedful.data import Row, Rows
from heedful.data.cell_values import as_number
from heedful.data.conll import line_of
from heedful.data.rows import Kind
from heedful.errors import many
from heedful.util.escaping import named

FEW = 5  # examples below which a label is hardly learned
NUMBERS = 20  # distinct numbers above which labels are quantities, not class names
SKEWED = 0.9  # share of one label from which accuracy says little


def balance(rows: Sequence[Row], columns: Mapping[str, Kind]) -> Iterator[Finding]:
    """Reports the distribution of labels, rare labels, misspelled ones, and one that dominates."""
    yield from (_numbers(rows, name) for name, kind in columns.items() if kind == "number" and rows)
    for name in _labelled(columns):
        counts: Counter[str] = Counter()
        where: dict[str, list[str]] = defaultdict(list)
        for row in rows:
            value = row.values[name]
            for label in (value,) if isinstance(value, str) else value:
                counts[label] += 1
                if counts[label] <= FEW:
                    where[label].append(place(row))
        total = sum(counts.values())
        shown = ", ".join(f"{named(label)} {100 * n / total:.1f} %" for label, n in counts.most_common(8))
        more = f" and {len(counts) - 8} more" if len(counts) > 8 else ""
        yield Finding("labels", "fact", len(counts), f"{many(len(counts), 'label')}: {shown}{more}")
        if columns[name] == "label" and len(counts) > NUMBERS and all(as_number(label) is not None for label in counts):
            text = (
                f"numbers: {len(counts):,} distinct values as labels, and each is learned as a class of its own; "
                "--data.label-kind number learns them as numbers"
            )
            yield Finding("numbers", "warning", len(counts), text, [at for places in where.values() for at in places])
            continue  # that few rows have the same number is no typing error
        rare = [label for label, n in counts.items() if n < FEW]
        if rare:
            text = (
                f"{', '.join(map(_quoted, sorted(rare)[:5]))} stand fewer than {FEW} times; a typing error, or too few"
            )
            yield Finding("rare", "warning", len(rare), text, [at for label in sorted(rare) for at in where[label]])
        alike = _alike(counts)
        if alike:
            text = f"{' and '.join(map(_quoted, alike[0]))} differ in case or blanks alone; write them alike"
            yield Finding("spelling", "warning", len(alike), text, where[alike[0][1]])
        top, most = counts.most_common(1)[0]
        if "tags" not in columns.values() and len(counts) > 1 and most > SKEWED * total:
            text = f"{100 * most / total:.1f} % are {_quoted(top)}: look at macro F1 and Matthews, accuracy says little"
            yield Finding("skewed", "warning", most, text)


def _numbers(rows: Sequence[Row], name: str) -> Finding:
    """Reports the range of labels that are numbers."""
    values = [row.values[name] for row in rows]
    text = f"numbers from {min(values):g} to {max(values):g}, {fmean(values):.4g} on average (deviation "
    return Finding("labels", "fact", len(values), f"{text}{pstdev(values):.4g})")


def unlearned(held: Rows, known: Collection[str], columns: Mapping[str, Kind]) -> tuple[list[Finding], Rows]:
    """Returns findings on validation labels that are not ``known`` to the model, and the rows without them.

    >>> held = Rows(Row({"text": text, "label": text}, "held.tsv", line) for line, text in enumerate("abc", 1))
    >>> found, kept = unlearned(held, ["a", "c"], {"text": "text", "label": "label"})
    >>> print(found[0].line())
    ! unlearned   validation: 1 label that training has not ('b'); mend it, or give examples to learn it (held.tsv:2)
    >>> [row.line for row in kept]
    [1, 3]
    """
    where: dict[str, list[str]] = defaultdict(list)
    known_rows = Rows([], held.skipped, held.columns)
    for row in held:
        unknown = [(label, at) for name in _labelled(columns) for label, at in _labels(row, name) if label not in known]
        for label, at in unknown:
            where[label].append(at)
        if not unknown:
            known_rows.append(row)
    if not where:
        return [], held
    first = ", ".join(map(_quoted, sorted(where)[:5])) + (", ..." if len(where) > 5 else "")
    it = "it" if len(where) == 1 else "them"
    text = f"{many(len(where), 'label')} that training has not ({first}); mend {it}, or give examples to learn {it}"
    places = [at for label in sorted(where) for at in where[label]]
    return [Finding("unlearned", "warning", len(where), text, places, "valid")], known_rows


def _labelled(columns: Mapping[str, Kind]) -> list[str]:
    return [name for name, kind in columns.items() if kind in ("label", "tags")]


def _labels(row: Row, name: str) -> Iterator[tuple[str, str]]:
    """Yields (label, place) of a row's labels, or (tag, place) of its words."""
    value = row.values[name]
    for number, label in enumerate((value,) if isinstance(value, str) else value):
        yield label, place(row, line_of(row, number)) if name == "tags" else place(row)


def _quoted(label: str) -> str:
    return f"'{named(label)}'"


def _alike(counts: Mapping[str, int]) -> list[tuple[str, ...]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for label in counts:
        groups["".join(label.split()).casefold()].append(label)
    return [tuple(sorted(group, key=lambda label: -counts[label])) for group in groups.values() if len(group) > 1]


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
