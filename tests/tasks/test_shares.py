"""Work shared out: each process computes its part alone, all are told everything, in order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from threading import Barrier
from typing import Any

import pytest
from torch import nn

from heedful.errors import HeedfulError
from heedful.training.engine import Replicated
from heedful.util.ranks import Ranks
from heedful.util.sharding import among, each


class Thread(Ranks):
    """A process of several that are threads."""

    def __init__(self, rank: int, told: list[Any], barrier: Barrier) -> None:
        super().__init__(rank, len(told))
        self.told, self.barrier = told, barrier

    def gather(self, value: Any) -> list[Any]:
        self.told[self.rank] = value
        self.barrier.wait(10)
        found = list(self.told)
        self.barrier.wait(10)
        return found


def together(size: int, work: Callable[[Thread], Any]) -> list[Any]:
    told, barrier = [None] * size, Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, [Thread(rank, told, barrier) for rank in range(size)]))


@pytest.mark.parametrize("items", [0, 1, 3, 7, 8])
@pytest.mark.parametrize(
    "shared", [among, lambda ranks: Replicated(ranks).evaluating(nn.Linear(1, 1))], ids=["among", "an evaluation"]
)
def test_each_rank_computes_its_part_and_gets_all(
    shared: Callable[[Ranks], AbstractContextManager[None]], items: int
) -> None:
    def work(ranks: Thread) -> tuple[list[int], list[tuple[int, int]]]:
        computed: list[int] = []

        def square(item: int) -> int:
            computed.append(item)
            return item * item

        with shared(ranks):
            return computed, list(each(range(items), square))

    found = together(3, work)
    assert [computed for computed, _ in found] == [list(range(rank, items, 3)) for rank in range(3)]
    assert [told for _, told in found] == [[(item, item * item) for item in range(items)]] * 3


def test_an_error_of_one_is_an_error_of_all() -> None:
    def work(ranks: Thread) -> str:
        def fail(item: int) -> int:
            if item == 4:
                raise HeedfulError("input 4 is broken")
            return item

        with among(ranks), pytest.raises(HeedfulError) as error:
            list(each(range(8), fail))
        return str(error.value)

    assert together(3, work) == ["input 4 is broken"] * 3
