"""Masking: which tokens are hidden, how many, by which token, and whole words where asked."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from heedful.data.masking import SPANS, STOP, Masking, span_length_probabilities, stop_probability

SPECIAL, MASK, V = 5, 4, 105  # ids 0 to 4 are special; even ordinary ids begin a word, odd ones go on with it
ORDINARY = np.arange(V) >= SPECIAL
GOES_ON = ORDINARY & (np.arange(V) % 2 == 1)
MASKING = Masking(MASK, ORDINARY, GOES_ON, ORDINARY)
UNITS = ("token", "word", "span")


def windows(rows: int, length: int, seed: int = 0, begins: float = 0.5) -> np.ndarray:
    """Framed by 1 and 2, some of them padded with 0, with an end token inside."""
    random = np.random.default_rng(seed)
    half = random.integers(3, V // 2, size=(rows, length))
    ids = 2 * half + (random.random((rows, length)) >= begins)
    ids = np.where(ids < SPECIAL, SPECIAL + 1, ids)
    ids[:, 0], ids[:, -1], ids[:, length // 2] = 1, 2, 2
    for row in range(0, rows, 3):
        ids[row, length - 5 :] = 0
    return ids


def words_of(row: np.ndarray) -> list[list[int]]:
    """By hand: a word begins at an ordinary token that is even or comes after a special one."""
    words: list[list[int]] = []
    for place, token in enumerate(row):
        if token < SPECIAL:
            continue
        if token % 2 == 0 or row[place - 1] < SPECIAL:
            words.append([])
        words[-1].append(place)
    return words


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("share", [0.15, 0.4])
def test_the_share_is_kept_and_no_special_token_is_touched(unit: Any, share: float) -> None:
    ids = windows(1500, 62)
    hidden, chosen = replace(MASKING, unit=unit, share=share)(ids, np.random.default_rng(1))
    ordinary = ids >= SPECIAL
    assert chosen[ordinary].mean() == pytest.approx(share, abs=0.004)
    assert (chosen.sum(axis=1) <= np.ceil(share * ordinary.sum(axis=1))).all()
    assert not chosen[~ordinary].any()
    assert (hidden[~chosen] == ids[~chosen]).all()
    assert set(np.unique(hidden[chosen])) <= {MASK, *range(SPECIAL, V)}


@pytest.mark.parametrize("unit", UNITS)
def test_eight_of_ten_are_masked_one_is_another_one_stays(unit: Any) -> None:
    ids = windows(3000, 62)
    hidden, chosen = replace(MASKING, unit=unit)(ids, np.random.default_rng(2))
    behind, kept = hidden[chosen] == MASK, hidden[chosen] == ids[chosen]
    other = ~behind & ~kept
    tokens = ORDINARY.sum()
    error = 0.02 if unit == "span" else 0.01  # spans draw together: fewer draws
    assert behind.mean() == pytest.approx(0.8, abs=error)
    assert other.mean() == pytest.approx(0.1 * (1 - 1 / tokens), abs=error)  # another token may be the same one
    assert kept.mean() == pytest.approx(0.1 * (1 + 1 / tokens), abs=error)
    counts = np.bincount(hidden[chosen][other], minlength=V)[SPECIAL:]
    assert counts.std() / counts.mean() < 3 / np.sqrt(counts.mean())  # any ordinary token alike


@pytest.mark.parametrize("unit", UNITS)
def test_every_token_is_as_likely_and_draws_differ(unit: Any) -> None:
    ids = np.repeat(windows(1, 62, begins=1.0), 4000, axis=0)  # words of one token
    masking = replace(MASKING, unit=unit)
    _, chosen = masking(ids, np.random.default_rng(3))
    ordinary = ids[0] >= SPECIAL
    inner = ordinary & ~np.isin(np.arange(62), [1, 2, 30, 32])  # spans reach the first of a document less often
    share = chosen.mean(axis=0)
    assert share[inner].std() < (0.03 if unit == "span" else 0.01)
    assert share[ordinary].min() > 0.02
    assert len({row.tobytes() for row in chosen}) > 3500
    again = masking(ids, np.random.default_rng(3))[1]
    assert (again == chosen).all()
    assert (masking(ids, np.random.default_rng(4))[1] != chosen).any()


@pytest.mark.parametrize("unit", ["word", "span"])
def test_words_are_hidden_whole(unit: Any) -> None:
    ids = windows(400, 62, begins=0.4)
    masking = replace(MASKING, unit=unit, share=0.3)
    _, chosen = masking(ids, np.random.default_rng(5))
    for row, flags in zip(ids, chosen, strict=True):
        words = words_of(row)
        assert [word.tolist() for word in masking.words(row)] == words
        assert all(len(set(flags[word])) == 1 for word in words)
    assert any(len(word) > 2 for row in ids for word in words_of(row))


def test_single_tokens_do_not_keep_words_whole() -> None:
    ids = windows(400, 62, begins=0.4)
    _, chosen = MASKING(ids, np.random.default_rng(5))
    words = [(word, flags) for row, flags in zip(ids, chosen, strict=True) for word in words_of(row) if len(word) > 1]
    assert sum(len(set(flags[word])) > 1 for word, flags in words) > 100


def test_spans_are_as_long_as_in_spanbert() -> None:
    """p(n) ∝ 0.2 · 0.8ⁿ⁻¹ up to 10 words, 3.8 on average (Joshi et al. 2020, section 3.1)."""
    assert span_length_probabilities(STOP).sum() == pytest.approx(1)
    assert (SPANS * span_length_probabilities(STOP)).sum() == pytest.approx(3.8, abs=0.01)
    assert span_length_probabilities(STOP)[1:] / span_length_probabilities(STOP)[:-1] == pytest.approx(0.8)
    rows = windows(300, 2000, begins=0.6)
    masking, lengths = replace(MASKING, unit="span", share=0.02), Counter[int]()  # few: they seldom meet
    random = np.random.default_rng(6)
    for row in rows:
        groups, words = masking.groups(row, random), words_of(row)
        last = groups.max()
        for group in range(last):  # the last one is cut by the share
            taken = [i for i, word in enumerate(words) if groups[word[0]] == group]
            if taken:
                assert taken == list(range(taken[0], taken[-1] + 1))
                lengths[len(taken)] += 1
    total = sum(lengths.values())
    assert total > 1200
    assert max(lengths) == 10
    for length, p in zip(SPANS.tolist(), span_length_probabilities(STOP), strict=True):
        assert lengths[length] / total == pytest.approx(p, abs=0.04)


@pytest.mark.parametrize("length", [1, 1.5, 3, 3.797, 5.4])
def test_spans_are_as_long_as_is_asked_on_average(length: float) -> None:
    assert span_length_probabilities(stop_probability(length)) @ SPANS == pytest.approx(length)
    with pytest.raises(ValueError, match=r"length of a span must be below 5\.5, not 5\.5"):
        stop_probability(5.5)


def test_a_span_shares_its_draw_and_ends_at_a_special_token() -> None:
    ids = windows(2000, 62, begins=1.0)
    masking = replace(MASKING, unit="span", share=0.3)
    random = np.random.default_rng(7)
    groups = np.stack([masking.groups(row, random) for row in ids])
    hidden, chosen = masking(ids, np.random.default_rng(8))
    for row, flags, shown in zip(ids[:300], chosen, hidden, strict=False):
        runs = np.split(np.flatnonzero(flags), np.flatnonzero(np.diff(np.flatnonzero(flags)) > 1) + 1)
        for run in runs:
            assert (row[run] >= SPECIAL).all()
        assert not flags[row < SPECIAL].any()
        assert (shown[~flags] == row[~flags]).all()
    for row in groups:
        for group in range(row.max() + 1):
            places = np.flatnonzero(row == group)
            assert len(places) == 0 or places[-1] - places[0] == len(places) - 1  # across no end of a document
    behind = [len(set((shown[run] == MASK).tolist())) for run, shown in _spans(groups, masking, ids)]
    assert set(behind) == {1}


def _spans(groups: np.ndarray, masking: Masking, ids: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The spans of a call and what it shows, by drawing the same numbers again."""
    found = []
    for seed, row in enumerate(ids[:200]):
        shown, _ = masking(row[None], np.random.default_rng(seed))
        again = masking.groups(row, np.random.default_rng(seed))
        found += [
            (np.flatnonzero(again == group), shown[0]) for group in range(again.max() + 1) if (again == group).any()
        ]
    return found


@pytest.mark.parametrize("unit", UNITS)
def test_at_least_one_in_each_window_that_has_one(unit: Any) -> None:
    masking = replace(MASKING, unit=unit, share=0.01)
    rows = [[1, 7, 2], [1, 2, 2], [1, 8, 9, 11, 2]]
    for seed in range(20):
        counts = [int(masking(np.array([row]), np.random.default_rng(seed))[1].sum()) for row in rows]
        assert counts == [1, 0, 1 if unit == "token" else 3]


def test_a_model_is_measured_with_all_of_them_hidden() -> None:
    ids = windows(300, 62)
    hidden, chosen = replace(MASKING, masked=1.0, other=0.0)(ids, np.random.default_rng(0))
    assert (hidden[chosen] == MASK).all()
