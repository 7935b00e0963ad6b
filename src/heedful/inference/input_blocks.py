"""Splits a stream of inputs into blocks, with the seeds that a single call would use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

from heedful.errors import HeedfulError
from heedful.tasks.model_setup import drawn_again

BLOCK = 1024  # inputs answered together: enough that batches of like lengths hold little padding
FIRST = 64  # of those that are waited for; each block after it is twice as large, so that no wait is a long surprise
HELD = 1 << 22  # characters of a block; the ids and tensors made of them take some twenty bytes each
T = TypeVar("T")


def blocks(inputs: Iterable[T], first: int = BLOCK, weigh: Callable[[T], int] | None = None) -> Iterator[list[T]]:
    """The inputs in lists: of ``first`` at most, then each twice as long as the one before, up to ``BLOCK``.

    Where texts are long a list ends with the one that makes it ``HELD`` characters, as ``weigh`` (by default
    ``size_of``) counts them. The cuts are a function of the inputs alone: who begins anew cuts alike.

    >>> list(blocks("abcdefgh", first=1))
    [['a'], ['b', 'c'], ['d', 'e', 'f', 'g'], ['h']]
    """
    block: list[T] = []
    most, held, weigh = first, 0, weigh or size_of
    for one in inputs:
        block.append(one)
        held += weigh(one)
        if len(block) == most or held >= HELD:
            yield block
            block, held, most = [], 0, min(2 * most, BLOCK)
    if block:
        yield block


def size_of(one: Any) -> int:
    """Size of an input in characters: those of all its texts; of an image a twentieth of its bytes.

    >>> size_of("abc"), size_of({"question": "ab", "context": "abc"}), size_of(bytes(40))
    (3, 5, 2)
    """
    if isinstance(one, str):
        return len(one)
    if isinstance(one, Mapping):
        return sum(map(size_of, one.values()))
    if isinstance(one, list | tuple):
        return sum(map(size_of, one))
    source = getattr(one, "source", one)  # of a LazyImage
    return (len(source) if isinstance(source, bytes) else getattr(source, "nbytes", 0)) // 20


class Seeds:
    """The option ``seed`` of one call after another, so that all of them draw as one call would.

    Args:
        given: one seed for all inputs: an input that came before then gets one of its own, made of the seed and its
            turn (``heedful.tasks.model_setup.seeded``); or a list, one an input; None: no seed.

    For one seed a digest of each distinct input is kept, some hundred bytes.

    >>> seeds = Seeds(5)
    >>> seeds.of(["a", "b"]), seeds.of(["b"]) != {"seed": [5]}, Seeds(None).of(["a"])
    ({'seed': [5, 5]}, True, {})
    """

    def __init__(self, given: Any) -> None:
        self.given, self.place = given, 0
        self.met: dict[bytes, int] = {}

    def of(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """The option for the next inputs: a seed for each."""
        first, self.place = self.place, self.place + len(inputs)
        if self.given is None:
            return {}
        seeds = list(self.given[first : self.place] if self._listed() else [self.given] * len(inputs))
        if len(seeds) < len(inputs):
            raise HeedfulError(f"seed has {len(self.given)} numbers, but there are more prompts; give one for each")
        return {"seed": [drawn_again(seed, self._times(seed, one)) for seed, one in zip(seeds, inputs, strict=True)]}

    def end(self) -> None:
        """There are no more inputs: a seed that is left over is an error."""
        if self._listed() and len(self.given) > self.place:
            raise HeedfulError(
                f"seed has {len(self.given)} numbers, but there are {self.place} prompts; give one for each"
            )

    def _listed(self) -> bool:
        return isinstance(self.given, list | tuple)

    def _times(self, seed: Any, one: Any) -> int:
        """Number of earlier occurrences of the input under this seed."""
        key = blake2b(repr((seed, one)).encode(), digest_size=8).digest()
        self.met[key] = self.met.get(key, -1) + 1
        return self.met[key]
