"""Entities in tags: the cases that `seqeval` publishes, all short sequences against patterns, and where it is wrong."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, precision_recall_fscore_support

from heedful.errors import HeedfulError
from heedful.metrics.entities import Entity, EntityScores, Scheme, entities, parted
from tolerances import assert_close

# seqeval's README and tests/test_metrics.py
MISC = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
SHIFTED = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]


def scored(truth: list[list[str]], said: list[list[str]], scheme: Scheme = "BIO") -> EntityScores:
    scores = EntityScores(scheme)
    for one, other in zip(truth, said, strict=True):
        scores.add(one, other)
    return scores


def spans(text: str, scheme: Scheme = "BIO") -> list[tuple[str, int, int]]:
    """(kind, start, end) of tags written with blanks between."""
    return [tuple(entity) for entity in entities(text.split(), scheme)]  # type: ignore[misc]


# --------------------------------------------------------------------------------------------------- as seqeval's own


def test_the_readme() -> None:
    scores = scored(MISC, SHIFTED)
    metrics = scores.metrics()
    assert (metrics["precision"], metrics["recall"], metrics["f1"], metrics["macro_f1"]) == (50, 50, 50, 50)
    assert metrics["accuracy"] == 80
    assert scores.details()["by_class"] == [
        {"label": "MISC", "precision": 0, "recall": 0, "f1": 0, "support": 1},
        {"label": "PER", "precision": 100, "recall": 100, "f1": 100, "support": 1},
    ]


def test_a_missing_beginning_counts_by_default_and_not_strictly() -> None:
    truth, said = [["B-NP", "I-NP", "O"]], [["I-NP", "I-NP", "O"]]
    assert scored(truth, said).metrics()["f1"] == 100
    assert scored(truth, said, "IOB2").metrics()["f1"] == 0


def test_published_reports() -> None:
    """tests/test_v1.py, and what its author shows in seqeval#25, #56 and #67."""
    report = scored([["B-A", "B-B", "O", "B-A"]], [["O", "B-B", "B-C", "B-A"]], "IOB2")
    told = {one.pop("label"): list(one.values()) for one in report.details()["by_class"]}
    assert told["A"] == pytest.approx([100, 50, 200 / 3, 2])
    assert told["B"] == [100, 100, 100, 1]
    assert told["C"] == [0, 0, 0, 0]
    metrics = report.metrics()
    assert (metrics["precision"], metrics["recall"], metrics["f1"]) == pytest.approx((200 / 3,) * 3)
    assert metrics["macro_f1"] == pytest.approx(55.5555555)
    ended = scored([["B-PER", "E-PER", "S-PER"]], [["B-PER", "I-PER", "S-PER"]], "BIOES").metrics()
    assert (ended["precision"], ended["recall"], ended["f1"]) == pytest.approx((100, 50, 200 / 3))
    truth = [["U-ORG", "B-PER", "I-PER", "L-PER", "O"], ["U-ORG"]]
    said = [["U-ORG", "B-PER", "I-PER", "I-PER", "O"], ["U-ORG"]]
    last = scored(truth, said, "BIOES").metrics()
    assert (last["precision"], last["recall"], last["f1"], last["macro_f1"]) == pytest.approx((100, 200 / 3, 80, 50))
    assert scored([["O", "B", "I", "I", "O"]], [["O", "B", "B", "I", "O"]]).metrics()["f1"] == 0


@pytest.mark.parametrize(
    ("scheme", "tags", "expected"),
    [
        ("BIO", "B-PER I-PER O B-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),
        ("BIO", "O O O B-MISC I-MISC I-MISC O B-PER I-PER", [("MISC", 3, 6), ("PER", 7, 9)]),
        ("BIO", "B I I O B I", [("_", 0, 3), ("_", 4, 6)]),
        ("BIO", "B-ARGM-LOC I-ARGM-LOC I-ARGM-LOC O B-ARGM-TIME", [("ARGM-LOC", 0, 3), ("ARGM-TIME", 4, 5)]),
        ("IOB2", "I-PER", []),
        ("IOB2", "O B-PER", [("PER", 1, 2)]),
        ("IOB2", "I-PER B-ORG", [("ORG", 1, 2)]),
        ("IOB2", "B-PER I-ORG", [("PER", 0, 1)]),
        ("IOB2", "B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("IOB2", "B I", [("_", 0, 2)]),
        ("BIOES", "B-PER", []),
        ("BIOES", "S-PER", [("PER", 0, 1)]),
        ("BIOES", "B-PER E-PER", [("PER", 0, 2)]),
        ("BIOES", "B-PER E-ORG", []),
        ("BIOES", "B-PER S-PER", [("PER", 1, 2)]),
        ("BIOES", "S-PER E-PER", [("PER", 0, 1)]),
        ("BIOES", "E-PER E-PER", []),
        ("BIOES", "B-PER L-PER U-ORG", [("PER", 0, 2), ("ORG", 2, 3)]),
    ],
)
def test_published_entities(scheme: Scheme, tags: str, expected: list[tuple[str, int, int]]) -> None:
    """tests/test_scheme.py, tests/test_metrics.py, and huggingface/datasets#352."""
    assert spans(tags, scheme) == expected


LETTERS = {
    "O": ".",
    **{f"{part}-{kind}": letter for part in "BIES" for kind, letter in (("x", part), ("y", part.lower()))},
}
# what an entity of a kind is, letter by letter
PATTERNS: dict[Scheme, tuple[str, str]] = {
    "BIO": ("BIES", "[BI]I*E?|E|S"),
    "IOB2": ("BI", "BI*"),
    "BIOES": ("BIES", "BI*E|S"),
}


@pytest.mark.parametrize("scheme", PATTERNS)
def test_all_short_sequences(scheme: Scheme) -> None:
    parts, pattern = PATTERNS[scheme]
    either = re.compile(f"{pattern}|{pattern.lower()}")
    tags = ["O", *(f"{part}-{kind}" for part in parts for kind in "xy")]
    count = 0
    for length in range(5 if scheme == "IOB2" else 4):
        for sequence in product(tags, repeat=length):
            text = "".join(LETTERS[tag] for tag in sequence)
            found = [("x" if one[0].isupper() else "y", one.start(), one.end()) for one in either.finditer(text)]
            assert entities(sequence, scheme) == found, sequence
            count += bool(found)
    assert count > 400


# ---------------------------------------------------------------------------------------------- where seqeval is wrong


def test_bilou_is_read_without_being_told() -> None:
    """By default seqeval knows no L and no U: it runs two entities of a kind into one, or loses one (seqeval#71)."""
    assert spans("U-LOC U-LOC") == [("LOC", 0, 1), ("LOC", 1, 2)]
    assert spans("B-PER L-PER B-PER L-PER") == [("PER", 0, 2), ("PER", 2, 4)]
    truth = ["O", "B-LOC", "E-LOC", "S-LOC", "O", "B-LOC", "I-LOC", "E-LOC"]
    said = ["O", "B-LOC", "E-LOC", "O", "S-LOC", "B-LOC", "I-LOC", "E-LOC"]
    other = [[{"E": "L", "S": "U"}.get(tag[0], tag[0]) + tag[1:] for tag in tags] for tags in (truth, said)]
    assert scored([truth], [said]).metrics() == scored([other[0]], [other[1]]).metrics()
    assert spans("B-LOC M-LOC E-LOC S-LOC") == [("LOC", 0, 3), ("LOC", 3, 4)]


def test_tags_without_a_part_keep_their_first_letter() -> None:
    """In seqeval NOUN is an OUN, and two nouns in a row are one (seqeval#75)."""
    truth = [["ADJ", "DET", "VERB", "AUX", "NOUN", "ADJ", "SCONJ"], ["CONJ", "ART", "X"]]
    said = [["ADJ", "CONJ", "VERB", "AUX", "NOUN", "ADJ", "SCONJ"], ["CONJ", "SCONJ", "X"]]
    scores = scored(truth, said, "plain")
    flat = [[tag for tags in side for tag in tags] for side in (truth, said)]
    labels = sorted({*flat[0], *flat[1]})
    assert scores.kinds == labels
    metrics = scores.metrics()
    assert set(metrics) == {"accuracy", "macro_f1"}
    assert metrics["accuracy"] == pytest.approx(100 * accuracy_score(*flat))
    assert metrics["macro_f1"] == pytest.approx(100 * f1_score(*flat, average="macro", zero_division=0))
    table = np.array(precision_recall_fscore_support(*flat, labels=labels, zero_division=0)) * [
        [100],
        [100],
        [100],
        [1],
    ]
    ours = np.array([[one[name] for name in ("precision", "recall", "f1", "support")] for one in told(scores)]).T
    assert_close(ours, table)
    assert entities(["NOUN", "NOUN"], "IO") == [Entity("NOUN", 0, 2)]
    assert entities(["N", "O", "B-x"], "IO") == [Entity("N", 0, 1), Entity("B-x", 2, 3)]


def told(scores: EntityScores) -> list[dict[str, Any]]:
    return scores.details()["by_class"]


def test_a_strict_scheme_names_what_it_does_not_have() -> None:
    for scheme, tag in (("IOB2", "E-PER"), ("IOB2", "NOUN"), ("BIOES", "X-PER")):
        with pytest.raises(HeedfulError, match=f"{scheme} has no tag '{tag}'; use the scheme 'BIO'"):
            entities(["O", tag], scheme)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------- counting


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("B-PER", ("B", "PER")),
        ("M-PER", ("I", "PER")),
        ("L-a-b", ("E", "a-b")),
        ("U", ("S", "_")),
        ("B-", ("B", "_")),
        ("Bx", ("", "Bx")),
        ("I-組織", ("I", "組織")),
        ("O", ("", "")),
        ("", ("", "")),
    ],
)
def test_parts_of_tags(tag: str, expected: tuple[str, str]) -> None:
    assert parted(tag) == expected


def test_nothing_to_find() -> None:
    scores = scored([["O", "O"]], [["O", "O"]])
    assert scores.metrics() == {"f1": 0, "precision": 0, "recall": 0, "macro_f1": 0, "accuracy": 100}
    assert scores.details() == {"by_class": []}
    only = scored([["O"]], [["B-PER"]]).metrics()
    assert (only["f1"], only["accuracy"]) == (0, 0)
    assert EntityScores().metrics()["f1"] == 0
    with pytest.raises(ValueError, match="shorter"):
        EntityScores().add(["O"], [])


def test_any_choice_of_sentences_and_another_models_behind() -> None:
    """The figures of sentences that come several times are those of scoring them so often; the loss is by word."""
    random = np.random.default_rng(0)
    tags = ["O", "B-a", "I-a", "B-b", "I-b", "E-c"]
    sides = [[[tags[i] for i in random.integers(len(tags), size=4)] for _ in range(12)] for _ in range(2)]
    losses = random.random(12).tolist()
    every = EntityScores()
    for truth, said, loss in zip(*sides, losses, strict=True):
        every.add(truth, said, loss)
    places = random.integers(12, size=20)
    again = scored([sides[0][i] for i in places], [sides[1][i] for i in places]).metrics()
    again["loss"] = sum(losses[i] for i in places) / 80
    assert every.metrics_of(places) == pytest.approx(again)
    assert len(every) == 12
    other = EntityScores()
    other.add(["S-new"], ["S-new"], 1.0)
    both = every.joined(other)
    assert len(both) == 13
    assert both.metrics_of(np.array([12]))["f1"] == 100
    assert both.metrics_of(places) == pytest.approx(every.metrics_of(places))
