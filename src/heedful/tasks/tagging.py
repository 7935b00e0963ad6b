"""Tags as a model's labels: which there are, by which scheme they tell entities, and what cannot be right of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from heedful.data import Row, Rows
from heedful.data.conll import line_of_word
from heedful.data.split import Same, content_digest
from heedful.errors import HeedfulError, nearest, plural
from heedful.metrics.entities import OUTSIDE, PARTS, Scheme, entities, parted

ORDER = {part: place for place, part in enumerate("BIES")}


def scheme_of(labels: Sequence[str]) -> Scheme:
    """How the tags of a model are read: "BIO" where all but ``O`` say B, I, E or S, "IO" where there is an ``O``, else
    "plain".

    >>> scheme_of(["O", "B-PER", "I-PER"]), scheme_of(["O", "PER"]), scheme_of(["DET", "NOUN"])
    ('BIO', 'IO', 'plain')
    """
    others = [label for label in labels if label != OUTSIDE]
    if others and all(parted(label)[0] for label in others):
        return "BIO"
    return "IO" if OUTSIDE in labels else "plain"


def labels_of(rows: Sequence[Row]) -> list[str]:
    """The tags of training as a model's labels: ``O`` first, then by kind; of entities every kind with all the parts
    that any has, so that what stood in no training sentence (``I-`` of a rare kind) can be said all the same.

    Raises ``HeedfulError`` for a single tag, and for one without a part among others that have one: a slip of the pen.
    """
    first: dict[str, tuple[Row, int]] = {}
    for row in rows:
        for place, tag in enumerate(row.values["tags"]):
            first.setdefault(tag, (row, place))
    if len(first) < 2:
        raise HeedfulError(
            f"{rows[0].file}: the one tag {next(iter(first))!r} in {plural(len(rows), 'sentence')}; there must be "
            "two to "
            "tell apart"
        )
    others = [tag for tag in first if tag != OUTSIDE]
    bare = [tag for tag in others if not parted(tag)[0]]
    if 0 < len(bare) <= len(others) - len(bare):
        tag = next(one for one in first if one in bare)
        row, place = first[tag]
        word = row.values["words"][place]
        header = f", or if this line is a header, name its columns: --data.columns {word},{tag}"
        raise HeedfulError(
            f"{row.file}:{line_of_word(row, place)}: the tag {tag!r} of {word!r} says neither B- nor I- as others do; "
            f"{nearest(tag, [one for one in others if one not in bare])}"
            f"{header if line_of_word(row, place) == 1 else ''}"
        )
    if scheme_of([*first]) != "BIO":
        return sorted(first, key=lambda tag: (tag != OUTSIDE, tag))
    parts = {tag.partition("-")[0] for tag in others}
    kinds = {tag.partition("-")[2] for tag in others}
    made = [f"{part}-{kind}" if kind else part for kind in kinds for part in parts]
    made.sort(key=lambda tag: (parted(tag)[1], ORDER[parted(tag)[0]], tag))
    return [*([OUTSIDE] if OUTSIDE in first else []), *made]


def numbers_of(row: Row, labels: Sequence[str]) -> list[int]:
    """The places of a row's tags among ``labels``; one that is not there is an error."""
    known = {label: place for place, label in enumerate(labels)}
    for place, (word, tag) in enumerate(zip(row.values["words"], row.values["tags"], strict=True)):
        if tag not in known:
            raise HeedfulError(
                f"{row.file}:{line_of_word(row, place)}: the tag {tag!r} of {word!r} is none that the model learned; "
                f"{nearest(tag, labels)}"
            )
    return [known[tag] for tag in row.values["tags"]]


def told(rows: Sequence[Row], labels: Sequence[str]) -> str:
    """The scheme that the tags of rows keep, for people: ``IOB2 tags of 6 kinds, 1,975 entities``."""
    scheme = scheme_of(labels)
    if scheme == "plain":
        return plural(len(labels), "tag")
    found = Counter(entity.kind for row in rows for entity in entities(row.values["tags"], scheme))
    kinds = {parted(label)[1] for label in labels} - {""}
    name = "IO" if scheme == "IO" else _kept(rows)
    return f"{name} tags of {plural(len(kinds), 'kind')}, {plural(found.total(), 'entity', 'entities')}"


def _kept(rows: Sequence[Row]) -> str:
    """The narrowest of the schemes with B and I that all rows keep."""
    letters = {tag.partition("-")[0] for row in rows for tag in row.values["tags"]} & {*PARTS}
    if letters - {"B", "I"}:
        return "BILOU" if letters & {"L", "U"} else "BMES" if "M" in letters else "BIOES"
    if "B" not in letters:
        return "IO"
    stray = needless = 0  # I that goes on with nothing, B that parts nothing
    for row in rows:
        before = ""
        for tag in row.values["tags"]:
            part, kind = parted(tag)
            stray += part == "I" and kind != before
            needless += part == "B" and kind != before
            before = kind
    if not stray:
        return "IOB2"
    return "IOB1" if not needless else f"BIO ({stray:,} begin with I-)"


def teachable(train: Rows, held: Rows, same: Same = content_digest) -> tuple[Rows, Rows]:
    """The two parts, but what has a kind of tag that no training row would have goes to training, with all rows of the
    same words: held out, it could teach nothing and score nothing.
    """
    known = {kind for row in train for kind in _kinds(row)}
    keys = [same(row.values["words"]) for row in held]
    lone = {key for row, key in zip(held, keys, strict=True) if not known.issuperset(_kinds(row))}
    moved = [row for row, key in zip(held, keys, strict=True) if key in lone]
    if len(moved) == len(held):
        where = f"{moved[0].file}: " if moved else ""
        raise HeedfulError(
            f"{where}every kind of tag has too few sentences to hold some back; give validation data: --valid"
        )
    kept = (row for row, key in zip(held, keys, strict=True) if key not in lone)
    return Rows([*train, *moved], train.skipped, train.columns), Rows(kept, 0, held.columns)


def _kinds(row: Row) -> set[str]:
    return {parted(tag)[1] for tag in row.values["tags"]}


class MostFrequent:
    """Each word's most frequent tag in training; of words that were not there the most frequent tag of all.

    >>> row = Row({"words": ("a", "can", "a"), "tags": ("DET", "NOUN", "DET")}, "a.conll", 1)
    >>> MostFrequent([row]).tags(["can", "tin"])
    ['NOUN', 'DET']
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        counts: dict[str, Counter[str]] = {}
        every: Counter[str] = Counter()
        for row in rows:
            for word, tag in zip(row.values["words"], row.values["tags"], strict=True):
                counts.setdefault(word, Counter())[tag] += 1
                every[tag] += 1
        self._best = {word: own.most_common(1)[0][0] for word, own in counts.items()}
        self._else = every.most_common(1)[0][0]

    def tags(self, words: Sequence[Any]) -> list[str]:
        """A tag for each word."""
        return [self._best.get(word, self._else) for word in words]
