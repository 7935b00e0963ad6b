"""Duplicates: equal and nearly equal examples, contradictions, copies, and leakage into validation."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from heedful.audit.characters import texts_of
from heedful.audit.findings import Finding, place
from heedful.data import Row, Rows
from heedful.data.rows import Kind
from heedful.data.split import Key, asked_of, blanks_as_one
from heedful.errors import many

# The prefix filter below finds every pair of J ≥ 4/5 within these limits. MinHash with locality-sensitive hashing (as
# in ``datasketch``) finds each pair with a probability below 1 only, and would need the exact check all the same.
PIECE = 5  # letters of an n-gram
CUT = 500  # characters of a text that are compared
MOST = 100_000  # maximum number of compared examples
ROOM = 6_000_000  # maximum number of compared characters in all
TOGETHER = 3  # of their rarest pieces two texts share so many, or they are not alike
MEETINGS = 6_000_000  # of two texts at one piece that are looked at
PAIRS = 200_000  # of texts that are compared in full
AT_ONCE = 2_000_000  # pieces looked up together
WARNED = 0.01  # the share of validation from which nearness to training is more than a fact
OWNER, RANK = np.uint64(20), np.uint64(32)  # bits of a text's number, and of a piece's
BASE, MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)  # odd, and without a pattern

Numbers = np.ndarray[Any, np.dtype[Any]]
Texts = tuple[str, ...]  # of one example, by column
T = TypeVar("T")


def near(
    train: Sequence[Row], held: Sequence[Row], columns: Mapping[str, Kind], asks: Collection[str]
) -> Iterator[Finding]:
    """Reports near-duplicates in training, and validation examples that are near-duplicates of training examples.

    Two are where case, blanks, signs and digits alone tell their texts apart, or where J(A, B) = |A ∩ B| / |A ∪ B| is
    4/5 or more, A and B being the texts' pieces of five letters, signs and blanks left out (Broder 1997; found by their
    rarest pieces, Bayardo et al. 2007). Where several texts are asked (a question on a text) that holds of each. Digits
    count where they are most of a text. What is said again word for word is told elsewhere, and left out. Of a text the
    first 500 characters are compared, of more than 100,000 examples or 6 million characters as many as that is, evenly
    chosen. Where very many are alike some are passed over.

    >>> texts = ["On 3 May", "on 4 May.", "on 3  may", "at noon"]
    >>> rows = [Row({"text": text}, "a.txt", line) for line, text in enumerate(texts, start=1)]
    >>> print(*[one.line() for one in near(rows, [], {"text": "text"}, ["text"])])
      similar     1 example (25.0 %) nearly as another, but for case, signs or digits (a.txt:2 ~ a.txt:1)
    """
    asked = _texts(_evenly(held, MOST // 5), columns, asks)
    taught = _texts(_evenly(train, MOST - len(asked)), columns, asks)
    share = min(1.0, ROOM / max(1, sum(min(len(one), CUT) for texts, _ in (*taught, *asked) for one in texts)))
    taught, asked = (list(_evenly(part, int(share * len(part)))) for part in (taught, asked))
    once: dict[Texts, Row] = {}
    others: dict[Texts, Row] = {}
    for texts, row in taught:
        once.setdefault(texts, row)
    for texts, row in asked:
        if texts not in once:
            others.setdefault(texts, row)
    rows = [*once.values(), *others.values()]
    found = _nearest([tuple(folded(one[:CUT]) for one in texts) for texts in (*once, *others)], len(once))
    for name, numbers, looked, every in (
        ("similar", range(len(once)), len(taught), len(train)),
        ("overlap", range(len(once), len(rows)), len(asked), len(held)),
    ):
        pairs = [(rows[number], rows[found.other[number]]) for number in numbers if number in found.other]
        where = [f"{place(one)} ~ {place(other)}" for one, other in pairs]
        if not where:
            continue
        same = sum(number in found.same for number in numbers)
        part = f"{100 * len(where) / looked:.1f} %" + (f" of {looked:,} looked at" if looked < every else "")
        said = "" if found.whole else "at least "
        if name == "similar":
            text = f"{said}{many(len(where))} ({part}) nearly as another, {_how(same, len(where))}"
            yield Finding(name, "fact", len(where), text, where)
        else:
            grave = len(where) > WARNED * looked
            text = f"{said}{many(len(where), 'validation example')} ({part}) nearly as one of training, "
            text += _how(same, len(where)) + ("; figures flatter, keep what is alike on one side" if grave else "")
            yield Finding(name, "warning" if grave else "fact", len(where), text, where)


def _how(same: int, count: int) -> str:
    told = "but for case, signs or digits", "in four fifths of their pieces"
    if same in (0, count):
        return told[not same]
    return f"{same:,} {told[0]} and {count - same:,} {told[1]}"


def _evenly(rows: Sequence[T], most: int) -> Sequence[T]:
    """Returns at most ``most`` rows, evenly spaced."""
    return rows if len(rows) <= most else [rows[i * len(rows) // most] for i in range(most)]


def _texts(rows: Sequence[Row], columns: Mapping[str, Kind], asks: Collection[str]) -> list[tuple[Texts, Row]]:
    """What each row asks (``asked_of``), an empty text for a column that it has not: letters in lower case, blanks as
    one. What a system is told is left out: it is the same everywhere. Rows without text are left out.
    """
    found = []
    for row in rows:
        asked = asked_of(row, asks)
        if "messages" in asked:
            asked["messages"] = [message for message in asked["messages"] if message["role"] != "system"]
        only = Row(asked, row.file, row.line)
        texts = tuple(
            blanks_as_one(" ".join(texts_of(only, {name: kind}))).casefold() for name, kind in columns.items()
        )
        if any(texts):
            found.append((texts, row))
    return found


# ---------------------------------------------------------------------------------------------------------- letters


class _ComparedLetters(dict[int, str | None]):
    """Character table for comparison: drops signs, blanks and invisible characters; digits become 0, or stay."""

    def __init__(self, digits: bool) -> None:
        super().__init__()
        self.digits = digits

    def __missing__(self, code: int) -> str | None:
        letter = chr(code)
        kind = unicodedata.category(letter)
        kept = None if kind[0] in "PSZC" else "0" if kind == "Nd" and not self.digits else letter
        self[code] = kept
        return kept


WITHOUT, WITH = _ComparedLetters(digits=False), _ComparedLetters(digits=True)


def folded(text: str) -> str:
    """Letters alone, and 0 for each digit; with the digits themselves where they are most of the text.

    >>> folded("on 3 May, 5 o'clock"), folded("12 + 7 =")
    ('on0May0oclock', '127')
    """
    found = text.translate(WITHOUT)
    return text.translate(WITH) if 2 * found.count("0") >= len(found) else found


# ---------------------------------------------------------------------------------------------------------- nearness


class _Found(NamedTuple):
    other: dict[int, int]  # of texts that are nearly as one of training, an earlier one, which that is
    same: set[int]  # of them, those that are equal to it when folded
    whole: bool  # whether these are all


def _nearest(texts: Sequence[Texts], size: int) -> _Found:
    """Returns the near-duplicates among folded texts; the first ``size`` are of training."""
    number: dict[Texts, int] = {}
    groups = [number.setdefault(text, len(number)) for text in texts]  # of equal ones
    first = [len(texts)] * len(number)  # of training, in each group
    for i in reversed(range(size)):
        first[groups[i]] = i
    alike, whole = _alike(list(number))
    nearest = [len(texts)] * len(number)  # of training, in groups that are like it
    for a, b in alike:
        nearest[a], nearest[b] = min(nearest[a], first[b]), min(nearest[b], first[a])
    other, same = {}, set()
    for i, group in enumerate(groups):
        if any(texts[i]) and first[group] < i:
            other[i] = first[group]
            same.add(i)
        elif nearest[group] < min(i, size):
            other[i] = nearest[group]
    return _Found(other, same, whole)


def _alike(texts: Sequence[Texts]) -> tuple[list[tuple[int, int]], bool]:
    """The pairs that are alike in every column, found by that of most different texts; and whether these are all."""
    columns = list(zip(*texts, strict=True))
    if not columns:
        return [], True
    telling = max(range(len(columns)), key=lambda column: len(set(columns[column])))
    pairs, whole = similar(columns[telling])
    others = columns[:telling] + columns[telling + 1 :]
    return [(a, b) for a, b in pairs if all(_like(one[a], one[b]) for one in others)], whole


def _like(one: str, other: str) -> bool:
    """Returns True if two texts are equal, or share four fifths of their n-grams."""
    a, b = ({text[i : i + PIECE] for i in range(len(text) - PIECE + 1)} for text in (one, other))
    return one == other or bool(a and 5 * len(a & b) >= 4 * len(a | b))


class _Pieces(NamedTuple):
    """The pieces of each text, each once, the rarest first."""

    entries: Numbers  # sorted: the text's number in the high bits, the piece's in the low ones, rare ones low
    owners: Numbers  # of each entry
    sizes: Numbers  # pieces of each text
    starts: Numbers  # where its entries begin
    common: Numbers  # in how many texts each piece is, by its number


def similar(texts: Sequence[str]) -> tuple[list[tuple[int, int]], bool]:
    """Returns the pairs of texts that share four fifths of their n-grams, and whether these are all.

    Texts A and B with J(A, B) ≥ t share k pieces among the first |A| − ⌈t |A|⌉ + k of A and as many of B, in any common
    order of pieces, here from the rarest on (Wang et al. 2012): pairs that do, with k = 3, are compared in full.

    >>> similar(["once upon a time there was", "a horse", "once upon a time there were"])
    ([(0, 2)], True)
    """
    order = np.random.default_rng(0).permutation(len(texts))  # neighbours are any texts, should there be too many
    pieces = _pieces([texts[i] for i in order])
    pairs, whole = _candidates(pieces)
    chosen = pairs[_shared(pieces, pairs)] if len(pairs) else pairs
    a, b = order[_low(chosen, OWNER)], order[(chosen >> OWNER).astype(np.int64)]
    found = np.stack([np.minimum(a, b), np.maximum(a, b)], 1)
    return sorted(map(tuple, found.tolist())), whole


def _low(packed: Numbers, bits: np.uint64) -> Numbers:
    return (packed & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)


def _pieces(texts: Sequence[str]) -> _Pieces:
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint64)
    count = max(0, len(codes) - PIECE + 1)
    hashes = np.zeros(count, dtype=np.uint64)
    for letter in range(PIECE):
        hashes = (hashes + codes[letter : letter + count]) * BASE
        hashes ^= hashes >> np.uint64(29)
    hashes = hashes * MIX
    owners = np.repeat(np.arange(len(texts), dtype=np.uint64), lengths)
    inside = owners[:count] == owners[len(owners) - count :]  # not from the end of one to the beginning of the next
    packed, _ = _counted(np.sort(owners[:count][inside] << (np.uint64(64) - OWNER) | hashes[inside] >> OWNER))
    owners, hashes = packed >> (np.uint64(64) - OWNER), packed << OWNER
    _, numbers, common = np.unique(hashes, return_inverse=True, return_counts=True)
    ranks = np.empty(len(common), dtype=np.uint64)
    ranks[np.argsort(common, kind="stable")] = np.arange(len(common), dtype=np.uint64)
    entries = np.sort(owners << RANK | ranks[numbers])
    sizes = np.bincount(owners.astype(np.int64), minlength=len(texts))
    return _Pieces(entries, owners.astype(np.int64), sizes, np.cumsum(sizes) - sizes, np.sort(common))


def _counted(ordered: Numbers) -> tuple[Numbers, Numbers]:
    """Each number once, and how often it stands there. (``np.unique`` takes ten times as long.)"""
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(ordered) else np.zeros(0, np.int64)
    return ordered[begins], np.diff(np.append(begins, len(ordered)))


def _candidates(pieces: _Pieces) -> tuple[Numbers, bool]:
    """Pairs that may be alike, packed and sorted, the larger number in the high bits; and whether these are all."""
    entries, owners, sizes, starts, common = pieces
    least = -(-4 * sizes // 5)  # pieces that one alike has, too
    needed = np.minimum(least, TOGETHER)
    ranks = _low(entries, RANK)
    leading = np.arange(len(entries)) - starts[owners] < (sizes - least + needed)[owners]
    chosen = leading & (common[ranks] > 1)
    packed = np.sort(ranks[chosen].astype(np.uint64) << OWNER | owners[chosen].astype(np.uint64))
    tokens, who = packed >> OWNER, _low(packed, OWNER)
    here, met, apart = np.arange(len(tokens)), 0, 0
    found = [np.zeros(0, dtype=np.uint64)]
    while True:
        apart += 1
        here = here[here + apart < len(tokens)]
        here = here[tokens[here + apart] == tokens[here]]
        met += len(here)
        if not len(here) or met > MEETINGS:
            break
        a, b = who[here], who[here + apart]  # a < b
        fits = 5 * np.minimum(sizes[a], sizes[b]) >= 4 * np.maximum(sizes[a], sizes[b])
        found.append(b[fits].astype(np.uint64) << OWNER | a[fits].astype(np.uint64))
    pairs, times = _counted(np.sort(np.concatenate(found)))
    enough = times >= np.minimum(needed[_low(pairs, OWNER)], needed[(pairs >> OWNER).astype(np.int64)])
    whole = not len(here)
    pairs, times = pairs[enough | (not whole)], times[enough | (not whole)]  # who has met less may have met more
    if len(pairs) > PAIRS:
        pairs, whole = np.sort(pairs[np.argsort(-times, kind="stable")[:PAIRS]]), False
    return pairs, whole


def _shared(pieces: _Pieces, pairs: Numbers) -> Numbers:
    """Which pairs share four fifths of their pieces: |A ∩ B| ≥ 4/9 (|A| + |B|), which is J ≥ 4/5."""
    entries, _, sizes, starts, _ = pieces
    alike = np.zeros(len(pairs), dtype=bool)
    a, b = _low(pairs, OWNER), (pairs >> OWNER).astype(np.int64)
    blocks = np.cumsum(sizes[a]) // AT_ONCE
    for block in range(int(blocks[-1]) + 1):
        low, high = np.searchsorted(blocks, [block, block + 1])
        if low == high:
            continue
        count = sizes[a[low:high]]
        begins = np.cumsum(count) - count
        places = np.arange(count.sum()) + np.repeat(starts[a[low:high]] - begins, count)
        wanted = np.repeat(b[low:high].astype(np.uint64), count) << RANK | _low(entries[places], RANK).astype(np.uint64)
        at = np.minimum(np.searchsorted(entries, wanted), len(entries) - 1)
        both = np.add.reduceat((entries[at] == wanted).astype(np.int64), begins)
        alike[low:high] = 9 * both >= 4 * (count + sizes[b[low:high]])
    return alike


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
