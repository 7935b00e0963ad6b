"""What rows tell before any tokenizer reads them: what comes twice, what leaks, how labels are spread."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from heedful.auditing.finding import Finding, place
from heedful.data import Picture, Row
from heedful.data.rows import Kind
from heedful.errors import many

FEW = 5  # of a label, so few examples hardly teach it
SKEWED = 0.9  # the share from which one label drowns the others


class Key(NamedTuple):
    """What makes two rows equal, in a few bytes: letters in whichever case, blanks as one; of images the pixels."""

    whole: bytes  # of all columns
    asked: bytes  # of those that a model is asked with


def keys_of(rows: Sequence[Row], columns: Iterable[str], asks: Collection[str]) -> list[Key]:
    """The keys of the rows, each value looked at once; a model is asked with the columns ``asks``."""
    found = []
    for row in rows:
        each = {name: _digest(row.values.get(name)) for name in columns}
        found.append(Key(_joined(each.values()), _joined(one for name, one in each.items() if name in asks)))
    return found


def _digest(value: Any) -> bytes:
    if isinstance(value, Picture):
        content = value.digest_bytes()
    else:  # words, spans and messages by what they show: some of them have no hash
        plain = " ".join(value.split()).casefold() if isinstance(value, str) else repr(value)
        content = plain.encode("utf-8", "surrogatepass")
    return blake2b(content, digest_size=16).digest()


def _joined(parts: Iterable[bytes]) -> bytes:
    return blake2b(b"".join(parts), digest_size=16).digest()


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
    graded = any(kind in ("label", "tags") for kind in columns.values())  # texts are often said again, and rightly so
    if again:
        share = 100 * len(again) / len(rows)
        text = f"{many(len(again))} ({share:.1f} %) said again; learned once more each time"
        yield Finding("duplicates", "warning" if graded and share > 1 else "fact", len(again), text, again)
    if against:
        text = f"{many(len(against))} asked as another is, and answered otherwise"
        text += "; correct their labels" if graded else ""
        yield Finding("contradict", "warning" if graded else "fact", len(against), text, against)


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
