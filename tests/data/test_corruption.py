"""Span corruption: how much is hidden, in how many spans, that all ways are alike, and that nothing is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from heedful.data.masking import Corruption

V, SPECIAL = 200, 5  # ids 0 to 4 are special
SENTINELS = list(range(V - 1, V - 101, -1))
ORDINARY = (np.arange(V) >= SPECIAL) & (np.arange(V) < V - 100)
HIDE = Corruption(SENTINELS, ORDINARY)


def text(length: int, random: np.random.Generator) -> np.ndarray:
    return random.integers(SPECIAL, V - 100, length)


def back(source: list[int], target: list[int]) -> list[int]:
    """The text, of what is read and what is written: by hand."""
    spans, last = dict[int, list[int]](), -1
    for token in target:
        if token in SENTINELS:
            spans[last := token] = []
        else:
            spans[last].append(token)
    return [inner for token in source for inner in (spans[token] if token in SENTINELS else [token])]


@pytest.mark.parametrize(
    ("tokens", "hidden", "spans"),  # as T5's own code counts: round(0.15 n) from 1 to n - 1, round(hidden / 3) from 1
    [(2, 1, 1), (3, 1, 1), (7, 1, 1), (10, 2, 1), (30, 4, 1), (31, 5, 2), (127, 19, 6), (512, 77, 26), (568, 85, 28)],
)
def test_the_counts_are_the_originals(tokens: int, hidden: int, spans: int) -> None:
    assert HIDE.counts(tokens) == (hidden, spans)
    flags = HIDE.hidden(text(tokens, np.random.default_rng(tokens)), np.random.default_rng(0))
    assert flags.sum() == hidden
    assert (np.diff(flags.astype(int)) == 1).sum() == spans
    assert not flags[0]
    assert flags[-1]


def test_the_share_that_is_hidden() -> None:
    assert replace(HIDE, share=0.5, length=5).counts(100) == (50, 10)
    assert replace(HIDE, share=0.999, length=1).counts(100) == (99, 1)  # between two spans something is shown
    assert replace(HIDE, share=0.6, length=1).counts(10) == (6, 4)
    assert replace(HIDE, share=0.001).counts(10) == (1, 1)
    assert (HIDE.counts(0), HIDE.counts(1)) == ((0, 0), (0, 0))


@pytest.mark.parametrize(("share", "length"), [(0.15, 3), (0.5, 1), (0.9, 4), (0.15, 50)])
def test_source_and_target_give_the_text_back(share: float, length: float) -> None:
    random, hide = np.random.default_rng(1), replace(HIDE, share=share, length=length)
    for size in (1, 2, 3, 9, 40, 150):
        for _ in range(20):
            row = text(size, random)
            row[random.random(size) < 0.05] = 2  # ends of documents
            source, target = hide(row, random)
            assert back(source, target) == row.tolist()
            used = [token for token in target if token in SENTINELS]
            assert used == SENTINELS[: len(used)]
            assert target[-1] == used[-1]
            assert [token for token in source if token in SENTINELS] == used[:-1]


def test_all_ways_of_cutting_are_alike() -> None:
    row, random = np.arange(SPECIAL, SPECIAL + 8), np.random.default_rng(2)
    hide = replace(HIDE, share=0.5, length=2)  # 4 shown and 4 hidden in 2 spans: 3 x 3 ways
    ways = Counter(hide.hidden(row, random).tobytes() for _ in range(9000))
    assert len(ways) == 9
    assert max(abs(count - 1000) for count in ways.values()) < 130  # four deviations


def test_special_tokens_are_never_hidden_and_end_a_span() -> None:
    row = np.array([5, 6, 7, 2, 8, 9, 2, 10])
    hide = replace(HIDE, share=0.9, length=9)
    source, target = hide(row, np.random.default_rng(0))
    assert source == [5, SENTINELS[0], 2, SENTINELS[1], 2, SENTINELS[2]]
    assert target == [SENTINELS[0], 6, 7, SENTINELS[1], 8, 9, SENTINELS[2], 10, SENTINELS[3]]
    few = replace(hide, sentinels=SENTINELS[:3])  # one of them for the end: what is too much is shown
    source, target = few(row, np.random.default_rng(0))
    assert source == [5, SENTINELS[0], 2, SENTINELS[1], 2, 10]
    assert target == [SENTINELS[0], 6, 7, SENTINELS[1], 8, 9, SENTINELS[2]]
    assert hide(np.array([2, 5, 2]), np.random.default_rng(0)) == ([2, 5, 2], SENTINELS[:1])


def test_draws_differ_and_come_again() -> None:
    row = text(60, np.random.default_rng(0))
    first, again, other = (HIDE(row, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert first == again != other
