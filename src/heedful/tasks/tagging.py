"""Tags as labels: the label set of training rows, the tagging scheme (BIO, IO, plain), checks, a baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from heedful.data import Row, Rows
from heedful.data.conll import line_of_word
from heedful.data.split import Same, content_digest
from heedful.errors import HeedfulError, nearest, plural
from heedful.metrics.entities import OUTSIDE, PARTS, Scheme, entities, parted

ORDER = {part: index for index, part in enumerate("BIES")}


def scheme_of(labels: Sequence[str]) -> Scheme:
    """Returns the tagging scheme of ``labels``: "BIO", "IO" or "plain".

    It is "BIO" if all tags but ``O`` begin with a part of an entity (B-, I-, ...), else "IO" if there is an ``O``, else
    "plain".

    >>> scheme_of(["O", "B-PER", "I-PER"]), scheme_of(["O", "PER"]), scheme_of(["DET", "NOUN"])
    ('BIO', 'IO', 'plain')
    """
    others = [label for label in labels if label != OUTSIDE]
    if others and all(parted(label)[0] for label in others):
        return "BIO"
    return "IO" if OUTSIDE in labels else "plain"


def tag_labels(rows: Sequence[Row]) -> list[str]:
    """Returns the labels that a model needs for the tags of training rows: ``O`` first, then by kind of entity.

    Every kind of entity gets each part (``B-``, ``I-``, ...) that occurs with any kind. So a model can predict ``I-``
    of a rare kind that no training sentence has.

    Raises ``HeedfulError`` if there is only one tag, or if a few tags have no part while most tags have one, which are
    probably typing errors.
    """
    first: dict[str, tuple[Row, int]] = {}
    for row in rows:
        for index, tag in enumerate(row.values["tags"]):
            first.setdefault(tag, (row, index))
    if len(first) < 2:
        raise HeedfulError(
            f"{rows[0].file}: only the tag {next(iter(first))!r} in {plural(len(rows), 'sentence')}; add "
            "sentences, so that there are two or more different tags"
        )
    others = [tag for tag in first if tag != OUTSIDE]
    bare = [tag for tag in others if not parted(tag)[0]]
    if 0 < len(bare) <= len(others) - len(bare):
        tag = next(tag for tag in first if tag in bare)
        row, index = first[tag]
        word = row.values["words"][index]
        header = f", or if this line is a header, name its columns: --data.columns {word},{tag}"
        raise HeedfulError(
            f"{row.file}:{line_of_word(row, index)}: the tag {tag!r} of {word!r} has no prefix B- or I-, but other "
            f"tags have one; {nearest(tag, [other for other in others if other not in bare])}"
            f"{header if line_of_word(row, index) == 1 else ''}"
        )
    if scheme_of([*first]) != "BIO":
        return sorted(first, key=lambda tag: (tag != OUTSIDE, tag))
    parts = {tag.partition("-")[0] for tag in others}
    kinds = {tag.partition("-")[2] for tag in others}
    labels = [f"{part}-{kind}" if kind else part for kind in kinds for part in parts]
    labels.sort(key=lambda tag: (parted(tag)[1], ORDER[parted(tag)[0]], tag))
    return [*([OUTSIDE] if OUTSIDE in first else []), *labels]


def tag_ids(row: Row, labels: Sequence[str]) -> list[int]:
    """Returns the indices of a row's tags in ``labels``; raises ``HeedfulError`` for an unknown tag."""
    known = {label: index for index, label in enumerate(labels)}
    for index, (word, tag) in enumerate(zip(row.values["words"], row.values["tags"], strict=True)):
        if tag not in known:
            raise HeedfulError(
                f"{row.file}:{line_of_word(row, index)}: the model has no tag {tag!r} (of {word!r}); "
                f"{nearest(tag, labels)}"
            )
    return [known[tag] for tag in row.values["tags"]]


def tag_summary(rows: Sequence[Row], labels: Sequence[str]) -> str:
    """Returns a summary of the tags of rows for people: ``IOB2 tags of 6 kinds, 1,975 entities``."""
    scheme = scheme_of(labels)
    if scheme == "plain":
        return plural(len(labels), "tag")
    counts = Counter(entity.kind for row in rows for entity in entities(row.values["tags"], scheme))
    kinds = {parted(label)[1] for label in labels} - {""}
    name = "IO" if scheme == "IO" else _scheme_name(rows)
    return f"{name} tags of {plural(len(kinds), 'kind')}, {plural(counts.total(), 'entity', 'entities')}"


def _scheme_name(rows: Sequence[Row]) -> str:
    """Returns the name of the strictest scheme with B and I that all rows follow."""
    letters = {tag.partition("-")[0] for row in rows for tag in row.values["tags"]} & {*PARTS}
    if letters - {"B", "I"}:
        return "BILOU" if letters & {"L", "U"} else "BMES" if "M" in letters else "BIOES"
    if "B" not in letters:
        return "IO"
    stray = needless = 0  # I- without an entity before it; B- without one of the same kind before it
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


def with_learnable_tags(train: Rows, held: Rows, same: Same = content_digest) -> tuple[Rows, Rows]:
    """Returns training and validation rows after moving rows with unknown tags from validation to training.

    A tag is unknown if no row of ``train`` has its kind, so a model could never predict it. Rows of the same words move
    together. Raises ``HeedfulError`` if all rows of ``held`` would move.
    """
    known = {kind for row in train for kind in _kinds(row)}
    keys = [same(row.values["words"]) for row in held]
    unknown = {key for row, key in zip(held, keys, strict=True) if not known.issuperset(_kinds(row))}
    moved = [row for row, key in zip(held, keys, strict=True) if key in unknown]
    if len(moved) == len(held):
        where = f"{moved[0].file}: " if moved else ""
        raise HeedfulError(
            f"{where}every kind of tag has too few sentences to hold any out for validation; add sentences, or give "
            "--valid FILE"
        )
    remaining = (row for row, key in zip(held, keys, strict=True) if key not in unknown)
    return Rows([*train, *moved], train.skipped, train.columns), Rows(remaining, 0, held.columns)


def _kinds(row: Row) -> set[str]:
    return {parted(tag)[1] for tag in row.values["tags"]}


class MostFrequentTags:
    """Predicts each word's most frequent training tag; for unknown words the most frequent tag of all.

    >>> row = Row({"words": ("a", "can", "a"), "tags": ("DET", "NOUN", "DET")}, "a.conll", 1)
    >>> MostFrequentTags([row]).tags(["can", "tin"])
    ['NOUN', 'DET']
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        counts: dict[str, Counter[str]] = {}
        totals: Counter[str] = Counter()
        for row in rows:
            for word, tag in zip(row.values["words"], row.values["tags"], strict=True):
                counts.setdefault(word, Counter())[tag] += 1
                totals[tag] += 1
        self._tags = {word: own.most_common(1)[0][0] for word, own in counts.items()}
        self._default = totals.most_common(1)[0][0]

    def tags(self, words: Sequence[Any]) -> list[str]:
        """Returns the predicted tag of each word."""
        return [self._tags.get(word, self._default) for word in words]
