"""Checks of rows: duplicates, contradictions, copies, and leakage into validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from heedful.audit.findings import Finding, place
from heedful.data import Row, Rows
from heedful.data.rows import Kind
from heedful.data.split import Key
from heedful.errors import many

# the shares from which what is said again, or copied, is more than a fact; texts are often said again, and rightly so
AGAIN, AGAIN_LABELLED, COPIED = 1 / 3, 0.01, 0.01


# of two columns, what to do where both hold the same text
COPIES = {
    ("source", "target"): "take them out unless that is to be learned",
    ("text", "summary"): "take them out unless that is to be learned",
    ("text", "text_pair"): "a text is near itself anyway, take them out",
    ("text_pair", "negative"): "nothing can be both near and far, correct them",
    ("text", "negative"): "nothing can be far from itself, correct them",
}


def skipped(rows: Rows) -> Iterator[Finding]:
    """Rows that hold nothing, and files that are nothing wanted."""
    if rows.skipped:
        text = f"{many(rows.skipped, 'blank or unreadable row')} left out"
        yield Finding("skipped", "warning", rows.skipped, text, rows.blank)


def repeated(rows: Sequence[Row], keys: Sequence[Key], columns: Mapping[str, Kind]) -> Iterator[Finding]:
    """Examples that stand more than once, and those that are asked the same and answered otherwise.

    >>> rows = [Row({"text": t, "label": l}, "a.tsv", i) for i, (t, l) in enumerate(["ax", "Ax", "ay"], 1)]
    >>> columns = {"text": "text", "label": "label"}
    >>> [(one.name, one.count, one.places) for one in repeated(rows, keys_of(rows, columns, ["text"]), columns)]
    [('duplicates', 1, ['a.tsv:2']), ('contradict', 1, ['a.tsv:3'])]
    """
    whole, asked = set[bytes](), set[bytes]()
    again, against = [], []
    for row, key in zip(rows, keys, strict=True):
        if key.whole in whole:
            again.append(place(row))
        elif key.asked in asked:
            against.append(place(row))
        whole.add(key.whole)
        asked.add(key.asked)
    graded = any(kind in ("label", "tags") for kind in columns.values())
    if again:
        share = len(again) / len(rows)
        grave = share > (AGAIN_LABELLED if graded else AGAIN)
        text = f"{many(len(again))} ({100 * share:.1f} %) said again; learned once more each time"
        text += ", leave them out unless that is meant" if grave and not graded else ""
        yield Finding("duplicates", "warning" if grave else "fact", len(again), text, again)
    if against:
        text = f"{many(len(against))} asked as another is, and answered otherwise"
        text += "; correct their labels" if graded else ""
        yield Finding("contradict", "warning" if graded else "fact", len(against), text, against)


def copied(rows: Sequence[Row], columns: Mapping[str, Kind]) -> Iterator[Finding]:
    """Examples of which one text is another that it must not be.

    >>> rows = [Row({"source": "ja", "target": "ja"}, "a.tsv", 1), Row({"source": "ja", "target": "yes"}, "a.tsv", 2)]
    >>> [(one.level, one.places) for one in copied(rows, {"source": "text", "target": "text"})]
    [('warning', ['a.tsv:1'])]
    """
    for (first, second), what in COPIES.items():
        if first not in columns or second not in columns or "label" in columns:  # a label tells what is alike
            continue
        found = [place(row) for row in rows if _same(row, first, second)]
        if found:
            share = len(found) / len(rows)
            text = f"{many(len(found))} ({100 * share:.1f} %) whose {second} is the {first}; {what}"
            grave = share > COPIED or "text_pair" in columns
            yield Finding("copies", "warning" if grave else "fact", len(found), text, found)


def _same(row: Row, first: str, second: str) -> bool:
    """Whether two texts of a row are one, but for blanks; a score may say so of a pair, and rightly."""
    one, other = row.values.get(first), row.values.get(second)
    return one is not None and other is not None and "score" not in row.values and one.split() == other.split()


def leaked(train: Sequence[Row], keys: Sequence[Key], held: Sequence[Row], others: Sequence[Key]) -> Iterator[Finding]:
    """Validation examples, of the keys ``others``, that are asked as one of training is."""
    first: dict[bytes, Row] = {}
    for row, key in zip(train, keys, strict=True):
        first.setdefault(key.asked, row)
    found = [
        f"{place(row)} = {place(first[key.asked])}" for row, key in zip(held, others, strict=True) if key.asked in first
    ]
    if found:
        text = f"{len(found):,} of {len(held):,} validation examples stand in training too; take them out of one"
        yield Finding("leakage", "warning", len(found), text, found)
