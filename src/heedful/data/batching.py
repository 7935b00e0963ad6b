"""Batches of examples of similar length under a token budget.

A plan is a list of index arrays. It is a pure function of the lengths, the budget, the seed and the epoch, so a run can
be taken up again in the middle of an epoch without having stored it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np

from heedful.errors import HeedfulError


class Batches(Sequence[np.ndarray]):
    """Batches as parts of one array of indices, each cut out when it is asked for: of 25 million windows of a text two
    million arrays would take longer to make than the first thousand steps.

    Args:
        order: (N,) indices, those of a batch together.
        bounds: (batches + 1,) where in ``order`` each begins, and N.
        turns: (batches,) which comes when; None: as they lie.
    """

    def __init__(self, order: np.ndarray, bounds: np.ndarray, turns: np.ndarray | None = None) -> None:
        self._order, self._bounds = order, bounds
        self._turns = np.arange(len(bounds) - 1) if turns is None else turns

    def __len__(self) -> int:
        return len(self._turns)

    @overload
    def __getitem__(self, place: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, place: slice) -> Batches: ...

    def __getitem__(self, place: int | slice) -> np.ndarray | Batches:
        turns = self._turns[place]
        if isinstance(turns, np.ndarray):
            return Batches(self._order, self._bounds, turns)
        return self._order[self._bounds[turns] : self._bounds[turns + 1]]


Lengths = np.ndarray | Sequence[int] | Sequence[tuple[int, int]]


def plan(lengths: Lengths, tokens: int, *, seed: int, epoch: int, max_rows: int | None = None) -> Batches:
    """The batches of one epoch in the order in which they are learned from; every example is in exactly one.

    The examples are shuffled, sorted by length (pairs by target, then source; stably, so that equals stay shuffled),
    cut into batches, and the batches are shuffled. Sorting both sides, rather than the longer one, leaves less padding:
    on the 29,000 pairs of Multi30k, English to French by words, 2.9 % instead of 6.8 % at 2,048 tokens (unsorted 49 %).

    Args:
        lengths: (N,) whole numbers, or (N, 2) for pairs (source, target).
        tokens: what a batch may cost. The cost is rows × the longest length in the batch, for pairs the longest of
            either side: at most so many tokens a side, padding counted. A single example over the budget is a batch
            alone.
        seed: with ``epoch``, decides the order.
        epoch: counted from 0.
        max_rows: at most so many examples in a batch; ``None``: as many as the budget holds.

    Returns:
        Arrays of int64 indices into ``lengths``.

    Raises:
        HeedfulError: no example, or a budget below one token.
    """
    sides = as_lengths(lengths)
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(sides))
    if (sides != sides[0]).any():
        order = order[np.lexsort(sides[order].T)]  # the last key, the target, decides first
    bounds = _cut(order, sides.max(axis=1), tokens, max_rows)
    return Batches(order, bounds, random.permutation(len(bounds) - 1))


def ordered(lengths: Lengths, tokens: int, *, max_rows: int | None = None, pairs: int | None = None) -> Batches:
    """The batches for evaluation and prediction: longest first, nothing random; budget and errors as in :func:`plan`.

    The longest come first so that a batch too large for the memory shows at once. Attention compares every token with
    every other: with ``pairs`` a batch also keeps rows × longest² within so many, and what is far longer than the rest
    stands alone. The arrays say where results belong:

    >>> answers = [""] * 3
    >>> for batch in ordered([2, 9, 4], tokens=10):
    ...     for index in batch:
    ...         answers[index] = f"example {index}"
    >>> answers
    ['example 0', 'example 1', 'example 2']
    """
    sides = as_lengths(lengths)
    order, longest = np.lexsort(-sides.T), sides.max(axis=1)
    if pairs is not None:
        if pairs < 1:
            raise HeedfulError(f"a batch of {pairs} pairs of tokens holds nothing; give a budget of at least 1 pair")
        longest = np.maximum(longest, -(-(longest**2) * tokens // pairs))  # rounded up: the budget is kept
    return Batches(order, _cut(order, longest, tokens, max_rows))


def as_lengths(lengths: Lengths) -> np.ndarray:
    """``lengths`` as an (N, sides) int64 array, one or two sides; an empty set is refused."""
    sides = np.asarray(lengths, dtype=np.int64)
    if sides.size == 0:
        raise HeedfulError("there is no example to make a batch of; check that the data is not empty")
    return sides.reshape(len(sides), -1)


def _cut(order: np.ndarray, longest: np.ndarray, tokens: int, max_rows: int | None) -> np.ndarray:
    """Where ``order`` is cut, from its beginning, into the longest runs of a cost within ``tokens``; and its end."""
    if tokens < 1:
        raise HeedfulError(f"a batch of {tokens} tokens holds nothing; give a budget of at least 1 token")
    if max_rows is not None and max_rows < 1:
        raise HeedfulError(f"a batch of {max_rows} rows holds nothing; give at least 1 row")
    count, most = len(order), len(order) if max_rows is None else max_rows
    if longest.min() == longest.max():
        rows = max(1, min(most, tokens // max(1, int(longest[0]))))
        return np.append(np.arange(0, count, rows), count)
    sizes = np.maximum(longest[order], 1)
    bounds = [0]
    while (start := bounds[-1]) < count:
        # No batch that holds this example has more rows than its length alone allows.
        window = sizes[start : start + min(most, max(1, tokens // int(sizes[start])))]
        costs = np.maximum.accumulate(window) * np.arange(1, len(window) + 1)  # never falls
        bounds.append(start + max(1, int(np.searchsorted(costs, tokens, side="right"))))
    return np.array(bounds)
