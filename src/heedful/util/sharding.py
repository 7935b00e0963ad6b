"""Shards work over ranks and gathers the results on all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from heedful.errors import HeedfulError

T = TypeVar("T")
R = TypeVar("R")


class Peers(Protocol):
    """Protocol of the ranks over which work is sharded, such as :class:`heedful.util.ranks.Ranks`."""

    @property
    def rank(self) -> int:
        """This process's rank, from 0."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, by rank."""


class _Alone:
    rank, size = 0, 1

    def gather(self, value: Any) -> list[Any]:
        return [value]


ALONE = _Alone()
_peers: ContextVar[Peers] = ContextVar("peers", default=ALONE)
_follower: ContextVar[Callable[[int, int], None] | None] = ContextVar("follower", default=None)


@contextmanager
def among(peers: Peers) -> Iterator[None]:
    """Context manager in which every :func:`each` shards its items over the ranks ``peers``.

    All ranks must pass the same items to :func:`each`, and have equal models.
    """
    before = _peers.set(peers)
    try:
        yield
    finally:
        _peers.reset(before)


@contextmanager
def followed(report: Callable[[int, int], None]) -> Iterator[None]:
    """Context manager in which every :func:`each` calls ``report(done, total)`` after each item or round of items."""
    before = _follower.set(report)
    try:
        yield
    finally:
        _follower.reset(before)


def each(items: Sequence[T], compute: Callable[[T], R]) -> Iterator[tuple[T, R]]:
    """Yields each item with ``compute(item)``, in order.

    With n ranks (:func:`among`), each computes every n-th item. Results are pickled and should be on the CPU. A
    ``HeedfulError`` on one rank is raised on all.

    >>> list(each([1, 2, 3], lambda item: item * item))
    [(1, 1), (2, 4), (3, 9)]
    """
    peers = _peers.get()
    for first in range(0, len(items), peers.size):
        batch = items[first : first + peers.size]
        results = peers.gather(_computed(compute, batch[peers.rank]) if peers.rank < len(batch) else None)
        for result in results:
            if isinstance(result, HeedfulError):
                raise result
        if (report := _follower.get()) is not None:
            report(first + len(batch), len(items))
        yield from zip(batch, results, strict=False)


def _computed(compute: Callable[[T], R], item: T) -> R | HeedfulError:
    try:
        return compute(item)
    except HeedfulError as error:
        return error
