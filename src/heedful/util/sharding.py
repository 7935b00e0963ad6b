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
    """The processes; :class:`heedful.util.ranks.Ranks` are such."""

    @property
    def rank(self) -> int:
        """This one's number, from 0."""

    @property
    def size(self) -> int:
        """How many there are."""

    def all(self, value: Any) -> list[Any]:
        """What each of them gives, by number, for all."""


class _Alone:
    rank, size = 0, 1

    def all(self, value: Any) -> list[Any]:
        return [value]


ALONE = _Alone()
_peers: ContextVar[Peers] = ContextVar("peers", default=ALONE)
_follower: ContextVar[Callable[[int, int], None] | None] = ContextVar("follower", default=None)


@contextmanager
def among(peers: Peers) -> Iterator[None]:
    """While it lasts :func:`each` shares its items out. All of the processes must ask for the same ones, with equal
    models.
    """
    before = _peers.set(peers)
    try:
        yield
    finally:
        _peers.reset(before)


@contextmanager
def followed(report: Callable[[int, int], None]) -> Iterator[None]:
    """While it lasts, :func:`each` calls ``report(done, total)`` after the items that were computed together."""
    before = _follower.set(report)
    try:
        yield
    finally:
        _follower.reset(before)


def each(items: Sequence[T], compute: Callable[[T], R]) -> Iterator[tuple[T, R]]:
    """Every item and what is computed of it, in order, one at a time. Of several processes (:func:`among`) each
    computes every n-th; what comes of it is pickled, and should lie on the CPU. An error of one is an error of all.

    >>> list(each([1, 2, 3], lambda item: item * item))
    [(1, 1), (2, 4), (3, 9)]
    """
    peers = _peers.get()
    for first in range(0, len(items), peers.size):
        together = items[first : first + peers.size]
        made = peers.all(_computed(compute, together[peers.rank]) if peers.rank < len(together) else None)
        for one in made:
            if isinstance(one, HeedfulError):
                raise one
        if (report := _follower.get()) is not None:
            report(first + len(together), len(items))
        yield from zip(together, made, strict=False)


def _computed(compute: Callable[[T], R], item: T) -> R | HeedfulError:
    try:
        return compute(item)
    except HeedfulError as error:
        return error
