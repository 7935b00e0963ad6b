"""Duplicates: equal and nearly equal examples, contradictions, copies, and leakage into validation."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from heedful.audit.characters import row_texts
from heedful.audit.findings import Finding, location
from heedful.data import Row, Rows
from heedful.data.preferences import turn_texts
from heedful.data.rows import Kind
from heedful.data.split import Key, collapse_blanks, content_digest, input_values
from heedful.errors import plural

# Shares from which duplicates (of unlabelled and of labelled rows) and copies are a warning: real texts recur.
DUPLICATES, DUPLICATES_LABELLED, COPIED = 1 / 3, 0.01, 0.01
# Pairs of columns that must differ, with the remedy.
COPIES = {
    ("source", "target"): "remove them unless the model is to learn copying",
    ("text", "summary"): "remove them unless the model is to learn copying",
    ("text", "text_pair"): "remove these examples, because a text is always similar to itself",
    ("text_pair", "negative"): "correct these examples, because a text cannot be both similar and dissimilar",
    ("text", "negative"): "correct these examples, because a text cannot be dissimilar to itself",
    ("chosen", "rejected"): "remove these examples, because equal answers teach nothing",
}


def check_skipped_rows(rows: Rows) -> Iterator[Finding]:
    """Yields findings on the number of blank rows and of files that could not be read."""
    if rows.skipped:
        text = f"{plural(rows.skipped, 'blank or unreadable row')} left out; fill or remove them"
        yield Finding("skipped", "warning", rows.skipped, text, rows.blank)


def check_duplicates(rows: Sequence[Row], keys: Sequence[Key], columns: Mapping[str, Kind]) -> Iterator[Finding]:
    """Yields findings on duplicate examples, and examples with equal inputs but different outputs.

    ``keys`` are the hashes of each row and of its input, from ``heedful.data.split.row_keys``.

    >>> from heedful.data.split import row_keys
    >>> rows = [Row({"text": t, "label": l}, "a.tsv", i) for i, (t, l) in enumerate(["ax", "Ax", "ay"], 1)]
    >>> columns = {"text": "text", "label": "label"}
    >>> findings = check_duplicates(rows, row_keys(rows, columns, ["text"]), columns)
    >>> [(finding.name, finding.count, finding.places) for finding in findings]
    [('duplicates', 1, ['a.tsv:2']), ('contradictions', 1, ['a.tsv:3'])]
    """
    known_rows, known_inputs = set[bytes](), set[bytes]()
    duplicates, contradictions = [], []
    for row, key in zip(rows, keys, strict=True):
        if key.row in known_rows:
            duplicates.append(location(row))
        elif key.model_input in known_inputs:
            contradictions.append(location(row))
        known_rows.add(key.row)
        known_inputs.add(key.model_input)
    is_labelled = any(kind in ("label", "tags") for kind in columns.values())
    if duplicates:
        share = len(duplicates) / len(rows)
        is_warning = share > (DUPLICATES_LABELLED if is_labelled else DUPLICATES)
        text = (
            f"{plural(len(duplicates))} ({100 * share:.1f} %) repeat an earlier example, so it counts more in training"
        )
        text += "; remove them unless this is intended" if is_warning and not is_labelled else ""
        yield Finding("duplicates", "warning" if is_warning else "fact", len(duplicates), text, duplicates)
    if contradictions:
        text = f"{plural(len(contradictions))} with the same input as an earlier example, but another output"
        text += "; correct their labels" if is_labelled else ""
        yield Finding("contradictions", "warning" if is_labelled else "fact", len(contradictions), text, contradictions)


def check_copies(rows: Sequence[Row], columns: Mapping[str, Kind]) -> Iterator[Finding]:
    """Yields findings on examples in which two texts that must differ are equal.

    >>> rows = [Row({"source": "ja", "target": "ja"}, "a.tsv", 1), Row({"source": "ja", "target": "yes"}, "a.tsv", 2)]
    >>> [(finding.level, finding.places) for finding in check_copies(rows, {"source": "text", "target": "text"})]
    [('warning', ['a.tsv:1'])]
    """
    for (first, second), remedy in COPIES.items():
        if not {first, second} <= columns.keys() or ("label" in columns and first != "chosen"):
            continue  # a label tells which texts are alike
        places = [location(row) for row in rows if _are_equal(row, first, second)]
        if places:
            share = len(places) / len(rows)
            text = f"{plural(len(places))} ({100 * share:.1f} %) whose {second} equals the {first}; {remedy}"
            is_warning = share > COPIED or "text_pair" in columns or first == "chosen"
            yield Finding("copies", "warning" if is_warning else "fact", len(places), text, places)


def _are_equal(row: Row, first: str, second: str) -> bool:
    """Returns True if two texts of a row are equal except for white space. Returns False for a row with a score: scored
    pairs may be equal.
    """
    a, b = row.values.get(first), row.values.get(second)
    if a is None or b is None or "score" in row.values:
        return False
    return (
        a.split() == b.split() if isinstance(a, str) and isinstance(b, str) else content_digest(a) == content_digest(b)
    )


def check_preferences(rows: Sequence[Row]) -> Iterator[Finding]:
    """Yields findings on chosen and rejected answers: pairs in both orders, and which answers are longer.

    If mostly the longer answer is chosen, a model may learn to write at length (Singhal et al. 2024).

    >>> answers = [("x", "yy"), ("yy", "x")]
    >>> rows = [Row({"prompt": "a", "chosen": c, "rejected": r}, "p.tsv", i) for i, (c, r) in enumerate(answers, 1)]
    >>> for finding in check_preferences(rows):
    ...     print(finding.line())
    ! exchanged     1 pair in which an earlier pair's rejected answer is chosen over the other; remove one (p.tsv:2)
      length        the chosen answer is longer in 50 % of the pairs (1.5 characters on average, rejected 1.5)
    """
    pairs = [row for row in rows if "chosen" in row.values]
    if not pairs:
        return
    known, places, lengths = set[tuple[bytes, ...]](), [], []
    for row in pairs:
        prompt, chosen, rejected = (content_digest(row.values[name]) for name in ("prompt", "chosen", "rejected"))
        if (prompt, rejected, chosen) in known and chosen != rejected:
            places.append(location(row))
        known.add((prompt, chosen, rejected))
        lengths.append([sum(map(len, turn_texts(row.values[name]))) for name in ("chosen", "rejected")])
    if places:
        text = f"{plural(len(places), 'pair')} in which an earlier pair's rejected answer is chosen over the other"
        yield Finding("exchanged", "warning", len(places), f"{text}; remove one", places)
    chosen_length, rejected_length = np.mean(lengths, axis=0)
    longer = sum(chosen > rejected for chosen, rejected in lengths)
    text = f"the chosen answer is longer in {100 * longer / len(pairs):.0f} % of the pairs"
    text += f" ({chosen_length:,.1f} characters on average, rejected {rejected_length:,.1f})"
    yield Finding("length", "fact", longer, text)


def check_leakage(
    train: Sequence[Row], train_keys: Sequence[Key], validation: Sequence[Row], validation_keys: Sequence[Key]
) -> Iterator[Finding]:
    """Yields findings on validation examples whose input is also a training input."""
    first: dict[bytes, Row] = {}
    for row, key in zip(train, train_keys, strict=True):
        first.setdefault(key.model_input, row)
    places = [
        f"{location(row)} = {location(first[key.model_input])}"
        for row, key in zip(validation, validation_keys, strict=True)
        if key.model_input in first
    ]
    if places:
        text = f"{len(places):,} of {len(validation):,} validation examples are also in training; remove one copy"
        yield Finding("leakage", "warning", len(places), text, places)


# -------------------------------------------------------------------------------------------------- near-duplicates

# The prefix filter below finds every pair of J ≥ 4/5 within these limits. MinHash with locality-sensitive hashing (as
# in ``datasketch``) finds each pair with a probability below 1 only, and would need the exact check all the same.
NGRAM = 5  # letters of an n-gram
COMPARED_LENGTH = 500  # characters of a text that are compared
MAX_EXAMPLES = 100_000  # maximum number of compared examples
MAX_CHARACTERS = 6_000_000  # maximum number of compared characters in all
PREFIX_MATCHES = 3  # similar texts have at least this many of their rarest n-grams in common
MAX_MEETINGS = 6_000_000  # pairs of texts with a common n-gram that are looked at
MAX_PAIRS = 200_000  # pairs of texts that are compared in full
BLOCK = 2_000_000  # n-grams looked up at a time
OVERLAP_WARNING = 0.01  # share of validation from which similarity to training is a warning
OWNER_BITS, RANK_BITS = np.uint64(20), np.uint64(32)  # bits of a text's number, and of an n-gram's rank
HASH_BASE, HASH_MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)  # odd, without a pattern

Numbers = np.ndarray[Any, np.dtype[Any]]
Texts = tuple[str, ...]  # of one example, by column
T = TypeVar("T")


def check_near_duplicates(
    train: Sequence[Row], validation: Sequence[Row], columns: Mapping[str, Kind], input_columns: Collection[str]
) -> Iterator[Finding]:
    """Yields findings on near-duplicates within the training examples, and between them and validation examples.

    Two inputs are near-duplicates if their texts differ only in case, white space, punctuation and digits, or if
    J(A, B) = |A ∩ B| / |A ∪ B| ≥ 4/5, A and B being the sets of 5-grams of their letters (Broder 1997; found by their
    rarest n-grams, Bayardo et al. 2007). With several input columns, this must hold for each column. Digits count in
    texts that are mostly digits. Exact duplicates are left out: `check_duplicates` reports them. The first 500
    characters of a text are compared. If there are more than 100,000 examples or 6 million characters, an evenly
    spaced part is compared. With very many similar texts, some pairs are missed.

    >>> texts = ["On 3 May", "on 4 May.", "on 3  may", "at noon"]
    >>> rows = [Row({"text": text}, "a.txt", line) for line, text in enumerate(texts, start=1)]
    >>> findings = check_near_duplicates(rows, [], {"text": "text"}, ["text"])
    >>> print(*[finding.line() for finding in findings])
      similar     1 example (25.0 %) nearly equals another: only case, punctuation or digits differ (a.txt:2 ~ a.txt:1)
    """
    validation_inputs = _input_texts(_evenly_spaced(validation, MAX_EXAMPLES // 5), columns, input_columns)
    max_train = MAX_EXAMPLES - len(validation_inputs)
    train_inputs = _input_texts(_evenly_spaced(train, max_train), columns, input_columns)
    lengths = (min(len(text), COMPARED_LENGTH) for texts, _ in (*train_inputs, *validation_inputs) for text in texts)
    share = min(1.0, MAX_CHARACTERS / max(1, sum(lengths)))
    train_inputs, validation_inputs = (
        list(_evenly_spaced(inputs, int(share * len(inputs)))) for inputs in (train_inputs, validation_inputs)
    )
    train_rows: dict[Texts, Row] = {}  # the first row of each distinct input
    validation_rows: dict[Texts, Row] = {}
    for texts, row in train_inputs:
        train_rows.setdefault(texts, row)
    for texts, row in validation_inputs:
        if texts not in train_rows:
            validation_rows.setdefault(texts, row)
    rows = [*train_rows.values(), *validation_rows.values()]
    distinct = (*train_rows, *validation_rows)
    near = _near_duplicates(
        [tuple(folded(text[:COMPARED_LENGTH]) for text in texts) for texts in distinct], len(train_rows)
    )
    for name, numbers, compared, total in (
        ("similar", range(len(train_rows)), len(train_inputs), len(train)),
        ("overlap", range(len(train_rows), len(rows)), len(validation_inputs), len(validation)),
    ):
        pairs = [(rows[number], rows[near.partners[number]]) for number in numbers if number in near.partners]
        places = [f"{location(row)} ~ {location(partner)}" for row, partner in pairs]
        if not places:
            continue
        equal = sum(number in near.equal for number in numbers)
        part = f"{100 * len(places) / compared:.1f} %" + (f" of {compared:,} checked" if compared < total else "")
        equal_verb = "equals" if len(places) == 1 else "equal"
        least = "" if near.is_complete else "at least "
        if name == "similar":
            text = (
                f"{least}{plural(len(places))} ({part}) nearly {equal_verb} another: {_difference(equal, len(places))}"
            )
            yield Finding(name, "fact", len(places), text, places)
        else:
            is_warning = len(places) > OVERLAP_WARNING * compared
            text = (
                f"{least}{plural(len(places), 'validation example')} ({part}) nearly {equal_verb} a training example: "
            )
            text += _difference(equal, len(places))
            text += "; keep similar examples in one split, or scores will be too high" if is_warning else ""
            yield Finding(name, "warning" if is_warning else "fact", len(places), text, places)


def _difference(equal: int, count: int) -> str:
    """Returns in words how near-duplicates differ: ``equal`` of ``count`` are equal after ``folded``."""
    kinds = "only case, punctuation or digits differ", "at least 4/5 of the n-grams are the same"
    if equal in (0, count):
        return kinds[0] if equal else kinds[1]
    return f"for {equal:,} {kinds[0]}, for {count - equal:,} {kinds[1]}"


def _evenly_spaced(rows: Sequence[T], max_rows: int) -> Sequence[T]:
    """Returns at most ``max_rows`` of the rows, evenly spaced."""
    return rows if len(rows) <= max_rows else [rows[i * len(rows) // max_rows] for i in range(max_rows)]


def _input_texts(
    rows: Sequence[Row], columns: Mapping[str, Kind], input_columns: Collection[str]
) -> list[tuple[Texts, Row]]:
    """Returns, for each row that has text, its input texts and the row.

    The texts are in lower case, with each run of white space as one space. An absent column is an empty
    text. System messages are left out, since all conversations share them.
    """
    inputs = []
    for row in rows:
        values = input_values(row, input_columns)
        if "messages" in values:
            values["messages"] = [message for message in values["messages"] if message["role"] != "system"]
        input_row = Row(values, row.file, row.line)
        texts = tuple(
            collapse_blanks(" ".join(row_texts(input_row, {name: kind}))).casefold() for name, kind in columns.items()
        )
        if any(texts):
            inputs.append((texts, row))
    return inputs


# ------------------------------------------------------------------------------------------------------- letters


class _ComparedLetters(dict[int, str | None]):
    """Character table for comparison: drops punctuation, white space and invisible characters. Digits become 0
    unless ``keep_digits``.
    """

    def __init__(self, keep_digits: bool) -> None:
        super().__init__()
        self.keep_digits = keep_digits

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        category = unicodedata.category(character)
        if category[0] in "PSZC":
            self[code] = None
        else:
            self[code] = "0" if category == "Nd" and not self.keep_digits else character
        return self[code]


WITHOUT_DIGITS, WITH_DIGITS = _ComparedLetters(keep_digits=False), _ComparedLetters(keep_digits=True)


def folded(text: str) -> str:
    """Returns the letters of a text, with 0 for each digit; a text that is mostly digits keeps its digits.

    >>> folded("on 3 May, 5 o'clock"), folded("12 + 7 =")
    ('on0May0oclock', '127')
    """
    letters = text.translate(WITHOUT_DIGITS)
    return text.translate(WITH_DIGITS) if 2 * letters.count("0") >= len(letters) else letters


# ---------------------------------------------------------------------------------------------------- similar texts


class _NearDuplicates(NamedTuple):
    partners: dict[int, int]  # number of a text: number of an earlier training text that is nearly equal
    equal: set[int]  # numbers of the texts that equal their partner after ``folded``
    is_complete: bool  # False if near-duplicates may be missing


def _near_duplicates(texts: Sequence[Texts], size: int) -> _NearDuplicates:
    """Returns the near-duplicates among folded texts; the first ``size`` of ``texts`` are training texts."""
    numbers: dict[Texts, int] = {}
    groups = [numbers.setdefault(text, len(numbers)) for text in texts]  # of equal texts
    first = [len(texts)] * len(numbers)  # first training text of each group
    for i in reversed(range(size)):
        first[groups[i]] = i
    similar, is_complete = _similar_in_all_columns(list(numbers))
    nearest = [len(texts)] * len(numbers)  # first training text in the groups that are similar
    for a, b in similar:
        nearest[a], nearest[b] = min(nearest[a], first[b]), min(nearest[b], first[a])
    partners, equal = {}, set()
    for i, group in enumerate(groups):
        if any(texts[i]) and first[group] < i:
            partners[i] = first[group]
            equal.add(i)
        elif nearest[group] < min(i, size):
            partners[i] = nearest[group]
    return _NearDuplicates(partners, equal, is_complete)


def _similar_in_all_columns(texts: Sequence[Texts]) -> tuple[list[tuple[int, int]], bool]:
    """Returns the pairs of texts that are similar in every column, and True if these are all such pairs.

    Candidates are found by the column with the most distinct texts.
    """
    columns = list(zip(*texts, strict=True))
    if not columns:
        return [], True
    indexed = max(range(len(columns)), key=lambda column: len(set(columns[column])))
    pairs, is_complete = similar_pairs(columns[indexed])
    others = columns[:indexed] + columns[indexed + 1 :]
    return [(a, b) for a, b in pairs if all(_are_similar(column[a], column[b]) for column in others)], is_complete


def _are_similar(first: str, second: str) -> bool:
    """Returns True if two texts are equal or have a Jaccard similarity J of n-grams of at least 4/5."""
    a, b = ({text[i : i + NGRAM] for i in range(len(text) - NGRAM + 1)} for text in (first, second))
    return first == second or bool(a and 5 * len(a & b) >= 4 * len(a | b))


class _NgramIndex(NamedTuple):
    """Distinct n-grams of each text, the rarest first."""

    entries: Numbers  # sorted: number of the text in the high bits, rank of the n-gram in the low bits, rare ones low
    owners: Numbers  # text of each entry
    sizes: Numbers  # n-grams of each text
    starts: Numbers  # its first entry
    frequencies: Numbers  # number of texts with an n-gram, by its rank


def similar_pairs(texts: Sequence[str]) -> tuple[list[tuple[int, int]], bool]:
    """Returns the pairs of similar texts, as indices into ``texts``, and True if no similar pair is missing.

    A text counts as the set A of its 5-grams. Two texts are similar if J(A, B) = |A ∩ B| / |A ∪ B| ≥ t = 4/5. Then, in
    any common order of n-grams, the first |A| − ⌈t |A|⌉ + k of A and the first |B| − ⌈t |B|⌉ + k of B have k n-grams in
    common (Wang et al. 2012). Here the rarest n-grams come first, and pairs with k = 3 are compared in full.

    >>> similar_pairs(["once upon a time there was", "a horse", "once upon a time there were"])
    ([(0, 2)], True)
    """
    order = np.random.default_rng(0).permutation(len(texts))  # so that a limit leaves out pairs at random
    index = _ngram_index([texts[i] for i in order])
    candidates, is_complete = _candidate_pairs(index)
    packed = candidates[_is_similar(index, candidates)] if len(candidates) else candidates
    a, b = order[_low_bits(packed, OWNER_BITS)], order[(packed >> OWNER_BITS).astype(np.int64)]
    pairs = np.stack([np.minimum(a, b), np.maximum(a, b)], 1)
    return sorted(map(tuple, pairs.tolist())), is_complete


def _low_bits(packed: Numbers, bits: np.uint64) -> Numbers:
    return (packed & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)


def _ngram_index(texts: Sequence[str]) -> _NgramIndex:
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint64)
    count = max(0, len(codes) - NGRAM + 1)
    hashes = np.zeros(count, dtype=np.uint64)
    for letter in range(NGRAM):
        hashes = (hashes + codes[letter : letter + count]) * HASH_BASE
        hashes ^= hashes >> np.uint64(29)
    hashes = hashes * HASH_MIX
    owners = np.repeat(np.arange(len(texts), dtype=np.uint64), lengths)
    is_inside = owners[:count] == owners[len(owners) - count :]  # not across the border of two texts
    hash_bits = np.uint64(64) - OWNER_BITS
    packed, _ = _value_counts(np.sort(owners[:count][is_inside] << hash_bits | hashes[is_inside] >> OWNER_BITS))
    owners, hashes = packed >> hash_bits, packed << OWNER_BITS
    _, numbers, frequencies = np.unique(hashes, return_inverse=True, return_counts=True)
    ranks = np.empty(len(frequencies), dtype=np.uint64)
    ranks[np.argsort(frequencies, kind="stable")] = np.arange(len(frequencies), dtype=np.uint64)
    entries = np.sort(owners << RANK_BITS | ranks[numbers])
    sizes = np.bincount(owners.astype(np.int64), minlength=len(texts))
    return _NgramIndex(entries, owners.astype(np.int64), sizes, np.cumsum(sizes) - sizes, np.sort(frequencies))


def _value_counts(values: Numbers) -> tuple[Numbers, Numbers]:
    """Returns the distinct values of a sorted array and their counts. (``np.unique`` takes ten times as long.)"""
    begins = np.flatnonzero(np.append(True, values[1:] != values[:-1])) if len(values) else np.zeros(0, np.int64)
    return values[begins], np.diff(np.append(begins, len(values)))


def _candidate_pairs(index: _NgramIndex) -> tuple[Numbers, bool]:
    """Returns the pairs that may be similar, and True if these are all such pairs.

    A pair is packed into one number, with the larger index in the high bits; the pairs are sorted.
    """
    entries, owners, sizes, starts, frequencies = index
    least_shared = -(-4 * sizes // 5)  # ⌈4/5 |A|⌉
    needed = np.minimum(least_shared, PREFIX_MATCHES)
    ranks = _low_bits(entries, RANK_BITS)
    is_prefix = np.arange(len(entries)) - starts[owners] < (sizes - least_shared + needed)[owners]
    chosen = is_prefix & (frequencies[ranks] > 1)
    packed = np.sort(ranks[chosen].astype(np.uint64) << OWNER_BITS | owners[chosen].astype(np.uint64))
    ngrams, texts = packed >> OWNER_BITS, _low_bits(packed, OWNER_BITS)
    current, meetings, distance = np.arange(len(ngrams)), 0, 0
    blocks = [np.zeros(0, dtype=np.uint64)]
    while True:  # pairs of entries with the same n-gram, 1, 2, ... apart
        distance += 1
        current = current[current + distance < len(ngrams)]
        current = current[ngrams[current + distance] == ngrams[current]]
        meetings += len(current)
        if not len(current) or meetings > MAX_MEETINGS:
            break
        a, b = texts[current], texts[current + distance]  # a < b
        fits = 5 * np.minimum(sizes[a], sizes[b]) >= 4 * np.maximum(sizes[a], sizes[b])
        blocks.append(b[fits].astype(np.uint64) << OWNER_BITS | a[fits].astype(np.uint64))
    pairs, matches = _value_counts(np.sort(np.concatenate(blocks)))
    is_complete = not len(current)
    if is_complete:  # else pairs with fewer matches may have more
        a, b = _low_bits(pairs, OWNER_BITS), (pairs >> OWNER_BITS).astype(np.int64)
        enough = matches >= np.minimum(needed[a], needed[b])
        pairs, matches = pairs[enough], matches[enough]
    if len(pairs) > MAX_PAIRS:
        pairs, is_complete = np.sort(pairs[np.argsort(-matches, kind="stable")[:MAX_PAIRS]]), False
    return pairs, is_complete


def _is_similar(index: _NgramIndex, pairs: Numbers) -> Numbers:
    """Returns a boolean array: True for each pair with J ≥ 4/5, that is |A ∩ B| ≥ 4/9 (|A| + |B|)."""
    entries, _, sizes, starts, _ = index
    similar = np.zeros(len(pairs), dtype=bool)
    a, b = _low_bits(pairs, OWNER_BITS), (pairs >> OWNER_BITS).astype(np.int64)
    blocks = np.cumsum(sizes[a]) // BLOCK
    for block in range(int(blocks[-1]) + 1):
        low, high = np.searchsorted(blocks, [block, block + 1])
        if low == high:
            continue
        counts = sizes[a[low:high]]
        begins = np.cumsum(counts) - counts
        positions = np.arange(counts.sum()) + np.repeat(starts[a[low:high]] - begins, counts)
        ranks = _low_bits(entries[positions], RANK_BITS).astype(np.uint64)
        wanted = np.repeat(b[low:high].astype(np.uint64), counts) << RANK_BITS | ranks
        nearest = np.minimum(np.searchsorted(entries, wanted), len(entries) - 1)
        shared = np.add.reduceat((entries[nearest] == wanted).astype(np.int64), begins)
        similar[low:high] = 9 * shared >= 4 * (counts + sizes[b[low:high]])
    return similar
