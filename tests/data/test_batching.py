from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from heedful.data.batching import evaluation_batches, training_batches
from heedful.errors import HeedfulError

RANDOM = np.random.default_rng(0)
SINGLE = RANDOM.integers(1, 40, 500)
PAIRS = RANDOM.integers(1, 40, (500, 2))


@pytest.mark.parametrize("lengths", [SINGLE, PAIRS], ids=["single", "pairs"])
@pytest.mark.parametrize("tokens", [1, 39, 64, 1000, 10**6])
@pytest.mark.parametrize("max_rows", [None, 1, 7])
def test_every_example_is_in_one_batch_and_every_batch_is_within_its_budget(lengths, tokens, max_rows):
    longest = lengths.reshape(len(lengths), -1).max(axis=1)
    for batches in (
        training_batches(lengths, tokens, seed=3, epoch=2, max_rows=max_rows),
        evaluation_batches(lengths, tokens, max_rows=max_rows),
    ):
        assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
        for batch in batches:
            assert len(batch) == 1 or len(batch) * longest[batch].max() <= tokens
            assert max_rows is None or len(batch) <= max_rows


def test_a_batch_is_cut_no_sooner_than_it_must_be():
    longest = PAIRS.max(axis=1)
    batches = evaluation_batches(PAIRS, 200)
    for batch, after in pairwise(batches):
        fuller = [*batch, after[0]]
        assert len(fuller) * longest[fuller].max() > 200


@pytest.mark.parametrize("lengths", [SINGLE, PAIRS], ids=["single", "pairs"])
@pytest.mark.parametrize("pairs", [1, 500, 3000, 10**9])
def test_pairs_of_tokens_are_a_budget_too(lengths, pairs):
    longest = lengths.reshape(len(lengths), -1).max(axis=1)
    batches = evaluation_batches(lengths, 200, pairs=pairs)
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    for batch in batches:
        top = longest[batch].max()
        assert len(batch) == 1 or (len(batch) * top <= 200 and len(batch) * top**2 <= pairs)
    for batch, after in pairwise(batches):  # and cut no sooner than one of the two says
        rows, top = len(batch) + 1, longest[[*batch, after[0]]].max()
        assert rows * top > 200 or rows * top**2 > pairs - 200 * rows  # the square is rounded up to whole tokens
    if pairs == 10**9:
        assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in evaluation_batches(lengths, 200)]


def test_far_longer_examples_have_a_batch_of_their_own():
    lengths = [20] * 50 + [1500] + [20] * 50
    assert len(evaluation_batches(lengths, 4096)[0]) == 2
    first, *others = evaluation_batches(lengths, 4096, pairs=4096 * 512)
    assert first.tolist() == [50]
    assert [len(batch) for batch in others] == [100]
    (alone,) = evaluation_batches([50_000], 4096, pairs=4096 * 512)
    assert alone.tolist() == [0]


def test_the_order_is_a_function_of_seed_and_epoch():
    def order(seed, epoch):
        return [batch.tolist() for batch in training_batches(PAIRS, 300, seed=seed, epoch=epoch)]

    assert order(1, 4) == order(1, 4)
    assert order(1, 4) != order(1, 5)
    assert order(1, 4) != order(2, 4)
    # Not the same batches in another order, either: examples of one length change places.
    assert sorted(map(sorted, order(1, 4))) != sorted(map(sorted, order(1, 5)))


def test_batches_are_not_left_in_order_of_length():
    lengths = [SINGLE[batch].max() for batch in training_batches(SINGLE, 300, seed=0, epoch=0)]
    assert lengths != sorted(lengths)


def test_little_padding_is_left():
    # Lengths as in translated captions: short, and alike on both sides.
    source = 2 + np.random.default_rng(1).poisson(13, 20_000)
    pairs = np.stack([source, np.maximum(2, source + np.random.default_rng(2).integers(-3, 6, 20_000))], axis=1)
    batches = training_batches(pairs, 2048, seed=0, epoch=0)
    padded = sum(len(batch) * pairs[batch].max(axis=0).sum() for batch in batches)
    assert 1 - pairs.sum() / padded < 0.05


def test_evaluation_goes_longest_first_and_comes_back_in_order():
    batches = evaluation_batches(SINGLE, 100)
    lengths = [SINGLE[index] for batch in batches for index in batch]
    assert lengths == sorted(lengths, reverse=True)


def test_examples_without_a_token_are_batched_too():
    assert [batch.tolist() for batch in evaluation_batches([0, 0, 0], 2)] == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("lengths", "tokens", "max_rows", "words"),
    [([], 8, None, "no example"), ([3], 0, None, "budget"), ([3], 8, 0, "rows of a batch must be at least 1")],
)
def test_impossible_batches_are_refused(lengths, tokens, max_rows, words):
    with pytest.raises(HeedfulError, match=words):
        training_batches(lengths, tokens, seed=0, epoch=0, max_rows=max_rows)


def test_a_budget_of_no_pair_is_refused():
    with pytest.raises(HeedfulError, match="pairs must be at least 1, not 0"):
        evaluation_batches([3], 8, pairs=0)


@pytest.mark.parametrize("alike", [False, True], ids=["mixed", "alike"])
def test_each_batch_is_the_longest_run_within_the_budget(alike: bool) -> None:
    draw = np.random.default_rng(0)
    for _ in range(100):
        lengths = np.full(draw.integers(1, 40), draw.integers(0, 9)) if alike else draw.integers(0, 9, 30)
        tokens, most = int(draw.integers(1, 40)), int(draw.integers(1, 12))
        expected: list[list[int]] = []
        for index in np.argsort(-lengths, kind="stable").tolist():
            longest = max(1, max(lengths[i] for i in [*expected[-1], index])) if expected else 0
            if expected and len(expected[-1]) < most and longest * (len(expected[-1]) + 1) <= tokens:
                expected[-1].append(index)
            else:
                expected.append([index])
        batches = evaluation_batches(lengths, tokens, max_rows=most)
        assert [batch.tolist() for batch in batches] == expected
        assert [batch.tolist() for batch in batches[1:4]] == expected[1:4]
        assert batches[-1].tolist() == expected[-1]
