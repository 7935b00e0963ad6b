"""Checks of rows: duplicates, contradictions, copies, and leakage into validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from heedful.audit.findings import Finding, place
from heedful.data import Row, Rows
from heedful.data.rows import Kind
from heedful.data.split import Key
from heedful.errors import many

# shares from which duplicates (of unlabelled and of labelled rows) and copies are a warning; texts often recur rightly
DUPLICATES, DUPLICATES_LABELLED, COPIED = 1 / 3, 0.01, 0.01
# two columns: the remedy where both hold the same text
COPIES = {
    ("source", "target"): "take them out unless that is to be learned",
    ("text", "summary"): "take them out unless that is to be learned",
    ("text", "text_pair"): "a text is near itself anyway, take them out",
    ("text_pair", "negative"): "nothing can be both near and far, correct them",
    ("text", "negative"): "nothing can be far from itself, correct them",
}


def skipped(rows: Rows) -> Iterator[Finding]:
    """Reports blank rows, and files that could not be read."""
    if rows.skipped:
        text = f"{many(rows.skipped, 'blank or unreadable row')} left out"
        yield Finding("skipped", "warning", rows.skipped, text, rows.blank)


def repeated(rows: Sequence[Row], keys: Sequence[Key], columns: Mapping[str, Kind]) -> Iterator[Finding]:
    """Reports duplicate examples, and examples with equal inputs but different outputs.

    >>> from heedful.data.split import keys_of
    >>> rows = [Row({"text": t, "label": l}, "a.tsv", i) for i, (t, l) in enumerate(["ax", "Ax", "ay"], 1)]
    >>> columns = {"text": "text", "label": "label"}
    >>> [(one.name, one.count, one.places) for one in repeated(rows, keys_of(rows, columns, ["text"]), columns)]
    [('duplicates', 1, ['a.tsv:2']), ('contradict', 1, ['a.tsv:3'])]
    """
    known_rows, known_inputs = set[bytes](), set[bytes]()
    duplicates, contradictions = [], []
    for row, key in zip(rows, keys, strict=True):
        if key.whole in known_rows:
            duplicates.append(place(row))
        elif key.asked in known_inputs:
            contradictions.append(place(row))
        known_rows.add(key.whole)
        known_inputs.add(key.asked)
    labelled = any(kind in ("label", "tags") for kind in columns.values())
    if duplicates:
        share = len(duplicates) / len(rows)
        is_warning = share > (DUPLICATES_LABELLED if labelled else DUPLICATES)
        text = f"{many(len(duplicates))} ({100 * share:.1f} %) said again; learned once more each time"
        text += ", leave them out unless that is meant" if is_warning and not labelled else ""
        yield Finding("duplicates", "warning" if is_warning else "fact", len(duplicates), text, duplicates)
    if contradictions:
        text = f"{many(len(contradictions))} asked as another is, and answered otherwise"
        text += "; correct their labels" if labelled else ""
        yield Finding("contradict", "warning" if labelled else "fact", len(contradictions), text, contradictions)


def copied(rows: Sequence[Row], columns: Mapping[str, Kind]) -> Iterator[Finding]:
    """Reports examples in which two texts that must differ are equal.

    >>> rows = [Row({"source": "ja", "target": "ja"}, "a.tsv", 1), Row({"source": "ja", "target": "yes"}, "a.tsv", 2)]
    >>> [(one.level, one.places) for one in copied(rows, {"source": "text", "target": "text"})]
    [('warning', ['a.tsv:1'])]
    """
    for (first, second), remedy in COPIES.items():
        if first not in columns or second not in columns or "label" in columns:  # a label tells what is alike
            continue
        places = [place(row) for row in rows if _same(row, first, second)]
        if places:
            share = len(places) / len(rows)
            text = f"{many(len(places))} ({100 * share:.1f} %) whose {second} is the {first}; {remedy}"
            is_warning = share > COPIED or "text_pair" in columns
            yield Finding("copies", "warning" if is_warning else "fact", len(places), text, places)


def _same(row: Row, first: str, second: str) -> bool:
    """True if two texts of a row are equal but for blanks. A pair with a score may be."""
    a, b = row.values.get(first), row.values.get(second)
    return a is not None and b is not None and "score" not in row.values and a.split() == b.split()


def leaked(train: Sequence[Row], keys: Sequence[Key], held: Sequence[Row], others: Sequence[Key]) -> Iterator[Finding]:
    """Reports validation examples (with keys ``others``) whose input is also a training input."""
    first: dict[bytes, Row] = {}
    for row, key in zip(train, keys, strict=True):
        first.setdefault(key.asked, row)
    places = [
        f"{place(row)} = {place(first[key.asked])}" for row, key in zip(held, others, strict=True) if key.asked in first
    ]
    if places:
        text = f"{len(places):,} of {len(held):,} validation examples stand in training too; take them out of one"
        yield Finding("leakage", "warning", len(places), text, places)
