"""Windows over a stream: every token once in order, or anywhere with equal probability."""

from __future__ import annotations

import numpy as np
import pytest

from heedful.data.token_stream import Stream, StreamWindow, read_windows


def windows(tokens: int, context: int) -> list[StreamWindow]:
    stream = Stream(np.arange(tokens, dtype=np.uint16), context)
    return [StreamWindow(stream, place) for place in range(stream.windows)]


@pytest.mark.parametrize(("tokens", "context"), [(10, 3), (9, 4), (9, 8), (13, 4), (2, 1), (100, 7)])
def test_each_token_but_the_first_is_predicted_once(tokens: int, context: int) -> None:
    shown, there, _ = read_windows(windows(tokens, context))
    assert shown.shape == there.shape == (-(-(tokens - 1) // context), context + 1)
    assert shown[:, 1:][there[:, 1:]].tolist() == list(range(1, tokens))
    assert there[:-1].all()
    for row, real in zip(shown, there, strict=True):
        assert (np.diff(row[real]) == 1).all()


def test_any_windows_in_any_order() -> None:
    made = windows(50, 7)
    whole, there, _ = read_windows(made)
    some, real, _ = read_windows([made[i] for i in (6, 0, 3)])
    assert np.array_equal(some, whole[[6, 0, 3]])
    assert np.array_equal(real, there[[6, 0, 3]])


@pytest.mark.parametrize(("tokens", "context"), [(10, 3), (9, 4), (29, 8)])
def test_every_beginning_is_equally_likely(tokens: int, context: int) -> None:
    """In E epochs each token begins a window about E K / N times: within 5 standard deviations of a binomial."""
    made, random, epochs = windows(tokens, context), np.random.default_rng(0), 4000
    counts = np.zeros(tokens)
    for _ in range(epochs):
        shown, there, _ = read_windows(made, random)
        assert there.all()
        assert ((shown[:, 1:] - shown[:, :-1]) % tokens == 1).all()  # the beginning stands after the end
        np.add.at(counts, shown[:, 0], 1)
    share = len(made) / tokens
    assert np.abs(counts - epochs * share).max() < 5 * np.sqrt(epochs * share * (1 - share))


def test_an_epoch_reads_from_everywhere_and_another_elsewhere() -> None:
    made = windows(1000, 10)
    first, again, second = (read_windows(made, np.random.default_rng(seed))[0][:, 0] for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert (first != second).any()
    for starts in (first, second):  # one in each stretch of N / K
        assert np.array_equal(starts // 10, np.arange(100))


def test_tokens_beyond_16_bits() -> None:
    stream = Stream(np.array([70_000, 5, 80_000], dtype=np.int32), 2)
    shown, _, _ = read_windows([StreamWindow(stream, 0)])
    assert shown.dtype == np.int64
    assert shown.tolist() == [[70_000, 5, 80_000]]
