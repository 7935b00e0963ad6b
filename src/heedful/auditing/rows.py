"""What rows tell before any tokenizer reads them: what comes twice, what leaks, how labels are spread."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from heedful.auditing.finding import Finding, many, place
from heedful.data import Picture, Row
from heedful.data.rows import Kind

ANSWERS = ("label", "tags", "answers", "number?")  # kinds of columns that are to be said, not read
TARGETS = {"target", "summary", "completion", "text_pair", "negative", "score"}
FEW = 5  # of a label, so few examples hardly teach it
SKEWED = 0.9  # the share from which one label drowns the others


def asked_by(columns: Mapping[str, Kind]) -> list[str]:
    """The columns that a model is asked with: all but those that hold what it is to say."""
    names = [name for name, kind in columns.items() if kind not in ANSWERS and name not in TARGETS]
    return names or list(columns)


def key(row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    """What makes two rows equal: letters in whichever case, runs of blanks as one; of images the pixels."""
    return tuple(_plain(row.values.get(name)) for name in names)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.split()).casefold()
    if isinstance(value, Picture):
        return value.digest_bytes()
    return repr(value) if isinstance(value, tuple) else value  # words, spans, messages: some of these have no hash


def repeated(rows: Sequence[Row], columns: Mapping[str, Kind]) -> Iterator[Finding]:
    """Examples that stand more than once, and those that are asked the same and answered otherwise.

    >>> rows = [Row({"text": t, "label": l}, "a.tsv", i) for i, (t, l) in enumerate(["ax", "Ax", "ay"], 1)]
    >>> [(one.name, one.count, one.places) for one in repeated(rows, {"text": "text", "label": "label"})]
    [('duplicates', 1, ['a.tsv:2']), ('contradict', 1, ['a.tsv:3'])]
    """
    names, asks = list(columns), asked_by(columns)
    whole: set[Any] = set()
    answers: dict[Any, set[Any]] = defaultdict(set)
    again, against = [], []
    for row in rows:
        mine, question = key(row, names), key(row, asks)
        if mine in whole:
            again.append(place(row))
        elif answers[question]:
            against.append(place(row))
        whole.add(mine)
        answers[question].add(mine)
    if again:
        share = 100 * len(again) / len(rows)
        text = f"{many(len(again))} ({share:.1f} %) said again; learned once more each time"
        yield Finding("duplicates", "warning" if share > 1 else "fact", len(again), text, again)
    if against and asks != names:
        graded = any(kind in ("label", "tags") for kind in columns.values())
        text = f"{many(len(against))} asked as another is, and answered otherwise"
        text += "; correct their labels" if graded else ""
        yield Finding("contradict", "warning" if graded else "fact", len(against), text, against)


def leaked(train: Sequence[Row], held: Sequence[Row], columns: Mapping[str, Kind]) -> Iterator[Finding]:
    """Validation examples that are asked as one of training is."""
    asks = asked_by(columns)
    first: dict[Any, str] = {}
    for row in train:
        first.setdefault(key(row, asks), place(row))
    found = [f"{place(row)} = {first[mine]}" for row in held if (mine := key(row, asks)) in first]
    if found:
        text = f"{len(found):,} of {len(held):,} validation examples stand in training too; take them out of one"
        yield Finding("leakage", "warning", len(found), text, found)


def balance(rows: Sequence[Row], columns: Mapping[str, Kind]) -> Iterator[Finding]:
    """How often each label stands, and which hardly does."""
    names = [name for name, kind in columns.items() if kind in ("label", "tags")]
    for name in names:
        counts: Counter[str] = Counter()
        where: dict[str, list[str]] = defaultdict(list)
        for row in rows:
            value = row.values[name]
            for label in (value,) if isinstance(value, str) else value:
                counts[label] += 1
                if counts[label] <= FEW:
                    where[label].append(place(row))
        total = sum(counts.values())
        shown = ", ".join(f"{label} {100 * n / total:.1f} %" for label, n in counts.most_common(8))
        more = f" and {len(counts) - 8} more" if len(counts) > 8 else ""
        yield Finding("labels", "fact", len(counts), f"{many(len(counts), 'label')}: {shown}{more}")
        rare = [label for label, n in counts.items() if n < FEW]
        if rare:
            text = f"{', '.join(map(repr, sorted(rare)[:5]))} stand fewer than {FEW} times; a typing error, or too few"
            yield Finding("rare", "warning", len(rare), text, [at for label in sorted(rare) for at in where[label]])
        alike = _alike(counts)
        if alike:
            text = f"{' and '.join(map(repr, alike[0]))} differ in case or blanks alone; write them alike"
            yield Finding("spelling", "warning", len(alike), text, where[alike[0][1]])
        top, most = counts.most_common(1)[0]
        if "tags" not in columns.values() and len(counts) > 1 and most > SKEWED * total:
            text = f"{100 * most / total:.1f} % are {top!r}: look at macro F1 and Matthews, accuracy says little"
            yield Finding("skewed", "warning", most, text)


def _alike(counts: Mapping[str, int]) -> list[tuple[str, ...]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for label in counts:
        groups["".join(label.split()).casefold()].append(label)
    return [tuple(sorted(group, key=lambda one: -counts[one])) for group in groups.values() if len(group) > 1]
