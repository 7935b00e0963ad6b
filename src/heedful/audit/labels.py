"""Checks of labels and tagged words: distribution, misspellings, labels that only validation has, shared prefixes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean, pstdev

from heedful.audit.findings import Finding, location
from heedful.data import Row, Rows
from heedful.data.cell_values import parse_number
from heedful.data.conll import line_of_word
from heedful.data.rows import Kind
from heedful.errors import plural
from heedful.util.escaping import named

RARE = 5  # examples below which a label is hardly learned
MAX_CLASSES = 20  # distinct numbers above which labels are quantities, not class names
SKEWED = 0.9  # share of one label from which accuracy says little


def check_labels(rows: Sequence[Row], columns: Mapping[str, Kind]) -> Iterator[Finding]:
    """Yields findings on the distribution of labels: rare labels, several spellings, a label that dominates."""
    yield from (_number_range(rows, name) for name, kind in columns.items() if kind == "number" and rows)
    for name in _label_columns(columns):
        counts: Counter[str] = Counter()
        locations: dict[str, list[str]] = defaultdict(list)
        for row in rows:
            value = row.values[name]
            for label in (value,) if isinstance(value, str) else value:
                counts[label] += 1
                if counts[label] <= RARE:
                    locations[label].append(location(row))
        yield Finding("labels", "fact", len(counts), _distribution(counts))
        if columns[name] == "label" and _are_numbers(counts):
            text = (
                f"the labels are {len(counts):,} different numbers, and each is learned as a separate class; "
                "to learn them as numbers, set --data.label-kind number"
            )
            yield Finding("numeric labels", "warning", len(counts), text, list(chain.from_iterable(locations.values())))
            continue  # a number in few rows is no typing error
        rare = sorted(label for label, count in counts.items() if count < RARE)
        if rare:
            verb = "occurs" if len(rare) == 1 else "occur"
            listed = ", ".join(map(_quoted, rare[:5]))
            text = f"{listed} {verb} fewer than {RARE} times; correct typing errors or add examples"
            places = [place for label in rare for place in locations[label]]
            yield Finding("rare", "warning", len(rare), text, places)
        misspelled = _misspelled(counts)
        if misspelled:
            text = (
                f"{' and '.join(map(_quoted, misspelled[0]))} differ only in case or spaces; write them in the same way"
            )
            yield Finding("spelling", "warning", len(misspelled), text, locations[misspelled[0][1]])
        label, count = counts.most_common(1)[0]
        if "tags" not in columns.values() and len(counts) > 1 and count > SKEWED * counts.total():
            share = 100 * count / counts.total()
            text = (
                f"{share:.1f} % of the labels are {_quoted(label)}, so accuracy says little; "
                "judge by macro F1 and the Matthews correlation"
            )
            yield Finding("skewed", "warning", count, text)


def _distribution(counts: Counter[str]) -> str:
    total = counts.total()
    common = ", ".join(f"{named(label)} {100 * count / total:.1f} %" for label, count in counts.most_common(8))
    more = f" and {len(counts) - 8} more" if len(counts) > 8 else ""
    return f"{plural(len(counts), 'label')}: {common}{more}"


def _are_numbers(labels: Collection[str]) -> bool:
    return len(labels) > MAX_CLASSES and all(parse_number(label) is not None for label in labels)


def _number_range(rows: Sequence[Row], name: str) -> Finding:
    """Returns a finding on labels that are numbers: their range, mean and standard deviation."""
    values = [row.values[name] for row in rows]
    text = f"numbers from {min(values):g} to {max(values):g}, {fmean(values):.4g} on average (standard deviation "
    return Finding("labels", "fact", len(values), f"{text}{pstdev(values):.4g})")


def check_unknown_labels(
    validation: Rows, labels: Collection[str], columns: Mapping[str, Kind]
) -> tuple[list[Finding], Rows]:
    """Returns a finding on validation labels that are not in the model's ``labels``, and the rows without such labels.

    >>> rows = Rows(Row({"text": text, "label": text}, "new.tsv", line) for line, text in enumerate("abc", 1))
    >>> findings, known_rows = check_unknown_labels(rows, ["a", "c"], {"text": "text", "label": "label"})
    >>> print(findings[0].line())
    ! unseen labels  validation: 1 label that is not in training ('b'); correct it, or add training examples (new.tsv:2)
    >>> [row.line for row in known_rows]
    [1, 3]
    """
    locations: dict[str, list[str]] = defaultdict(list)
    known_rows = Rows([], validation.skipped, validation.columns)
    for row in validation:
        pairs = [pair for name in _label_columns(columns) for pair in _label_locations(row, name)]
        unknown = [(label, place) for label, place in pairs if label not in labels]
        for label, place in unknown:
            locations[label].append(place)
        if not unknown:
            known_rows.append(row)
    if not locations:
        return [], validation
    first = ", ".join(map(_quoted, sorted(locations)[:5])) + (", ..." if len(locations) > 5 else "")
    verb, them = ("is", "it") if len(locations) == 1 else ("are", "them")
    text = f"{plural(len(locations), 'label')} that {verb} not in training ({first}); "
    text += f"correct {them}, or add training examples"
    places = [place for label in sorted(locations) for place in locations[label]]
    return [Finding("unseen labels", "warning", len(locations), text, places, "valid")], known_rows


def _label_columns(columns: Mapping[str, Kind]) -> list[str]:
    return [name for name, kind in columns.items() if kind in ("label", "tags")]


def _label_locations(row: Row, name: str) -> Iterator[tuple[str, str]]:
    """Yields (label, location) of a row's labels, or (tag, location) of its words."""
    value = row.values[name]
    for number, label in enumerate((value,) if isinstance(value, str) else value):
        yield label, location(row, line_of_word(row, number)) if name == "tags" else location(row)


def _quoted(label: str) -> str:
    return f"'{named(label)}'"


def _misspelled(counts: Mapping[str, int]) -> list[tuple[str, ...]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for label in counts:
        groups["".join(label.split()).casefold()].append(label)
    return [tuple(sorted(group, key=lambda label: -counts[label])) for group in groups.values() if len(group) > 1]


PREFIX_START = re.compile(r"\w{0,12}[^\w\s]")  # few letters, then a sign
SHARED = 0.95  # share of words from which a common beginning counts as a prefix
MIN_WORDS = 20  # words below which no prefix is reported
MIN_COUNT = 5  # occurrences of a label below which a single word is no finding
ENTITY_TAG = re.compile("[BIESLU]-.")  # a part of speech may have one word


def check_word_prefix(rows: Sequence[Row], columns: Mapping[str, Kind]) -> Iterator[Finding]:
    """Yields findings on a prefix that nearly all words share.

    >>> rows = [Row({"words": ("en:The", "en:river", "en:.", *["en:far"] * 6)}, "a", 10 * i + 1) for i in range(3)]
    >>> print(*[finding.line() for finding in check_word_prefix(rows, {"words": "words"})])
    ! prefix      27 of 27 words begin with 'en:'; to remove it, set --data.strip-prefix en: (a:1, a:11, a:21)
    """
    if "words" not in columns.values():
        return
    name = next(name for name, kind in columns.items() if kind == "words")
    words = [word for row in rows for word in row.values[name]]
    prefix = _common_prefix(words)
    if prefix:
        count = sum(word.startswith(prefix) for word in words)
        text = (
            f"{count:,} of {len(words):,} words begin with {prefix!r}; to remove it, set --data.strip-prefix {prefix}"
        )
        places = [location(row) for row in rows if row.values[name][0].startswith(prefix)]
        yield Finding("prefix", "warning", count, text, places)


def _common_prefix(words: Sequence[str]) -> str:
    """Returns the longest prefix that nearly all words share and that ends in punctuation; "" if there is none."""
    if len(words) < MIN_WORDS or len(set(words)) == 1:
        return ""
    starts = Counter(match[0] for word in words if (match := PREFIX_START.match(word)))
    prefix, count = next(iter(starts.most_common(1)), ("", 0))
    while count >= SHARED * len(words):
        extended = Counter(
            word[: len(prefix) + 1] for word in words if word.startswith(prefix) and len(word) > len(prefix)
        )
        longer, count = next(iter(extended.most_common(1)), ("", 0))
        if count < SHARED * len(words) or longer[-1].isalnum():
            return prefix
        prefix = longer
    return ""


def check_single_word_labels(rows: Sequence[Row], columns: Mapping[str, Kind]) -> Iterator[Finding]:
    """Yields findings on entity labels that occur with a single word only, ignoring case: a model would learn the word.

    >>> rows = [Row({"words": ("in", "Oslo"), "tags": ("O", "B-LOC")}, "a.conll", 3 * i + 1) for i in range(6)]
    >>> print(*[finding.line() for finding in check_single_word_labels(rows, {"words": "words", "tags": "tags"})])
    ! single-word     1 label occurs with only one word: 'B-LOC' with 'oslo' (6 times); add other words (a.conll:2)
    """
    if list(columns.values()) != ["words", "tags"]:
        return
    words_name, tags_name = columns
    first: dict[str, str] = {}  # location of the first word of each tag
    words_of: dict[str, set[str]] = defaultdict(set)
    counts: Counter[str] = Counter()
    for row in rows:
        for number, (word, tag) in enumerate(zip(row.values[words_name], row.values[tags_name], strict=True)):
            if not ENTITY_TAG.match(tag):
                continue
            counts[tag] += 1
            if len(words_of[tag]) < 2:
                words_of[tag].add(word.casefold())
                first.setdefault(tag, location(row, line_of_word(row, number)))
    tags = sorted(tag for tag in words_of if len(words_of[tag]) == 1 and counts[tag] >= MIN_COUNT)
    if tags:
        listed = ", ".join(
            f"'{named(tag)}' with '{named(next(iter(words_of[tag])))}' ({counts[tag]:,} times)" for tag in tags[:3]
        )
        more = ", ..." if len(tags) > 3 else ""
        verb = "occurs" if len(tags) == 1 else "occur"
        text = f"{plural(len(tags), 'label')} {verb} with only one word: {listed}{more}; add other words"
        yield Finding("single-word", "warning", len(tags), text, [first[tag] for tag in tags])
