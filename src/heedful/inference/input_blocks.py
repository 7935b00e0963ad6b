"""Blocks of a stream of inputs: their sizes and options, and their warnings, merged as for a single call."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from typing import Any, TypeVar

from heedful.errors import HeedfulError, InputError, plural
from heedful.tasks.token_batches import seed_of_repeat
from heedful.util.input_warnings import CountWarning, InputWarning

BLOCK = 1024  # inputs of a block: enough that batches of similar lengths hold little padding
FIRST = 64  # inputs of the first block; each block after it is twice as large, so that the first results come soon
MAX_CHARACTERS = 1 << 22  # of a block; ids and tensors take some twenty bytes a character
MAX_WARNINGS = 50  # warnings that are shown; the others are counted
T = TypeVar("T")

log = logging.getLogger("heedful")


def blocks(inputs: Iterable[T], first: int = BLOCK, size: Callable[[T], int] | None = None) -> Iterator[list[T]]:
    """Yields the inputs in lists: at most ``first`` inputs, then twice as many each time, up to ``BLOCK``.

    A list of long texts ends earlier, with the text that fills ``MAX_CHARACTERS``; ``size`` (by default ``input_size``)
    counts the characters. The lists depend on the inputs alone, so a call that starts again makes the same lists.

    >>> list(blocks("abcdefgh", first=1))
    [['a'], ['b', 'c'], ['d', 'e', 'f', 'g'], ['h']]
    """
    block: list[T] = []
    max_inputs, characters, size = first, 0, size or input_size
    for item in inputs:
        block.append(item)
        characters += size(item)
        if len(block) == max_inputs or characters >= MAX_CHARACTERS:
            yield block
            block, characters, max_inputs = [], 0, min(2 * max_inputs, BLOCK)
    if block:
        yield block


def input_size(item: Any) -> int:
    """Returns the size of an input in characters, all its texts together; 20 bytes of an image count as a character.

    >>> input_size("abc"), input_size({"question": "ab", "context": "abc"}), input_size(bytes(40))
    (3, 5, 2)
    """
    if isinstance(item, str):
        return len(item)
    if isinstance(item, Mapping):
        return sum(map(input_size, item.values()))
    if isinstance(item, list | tuple):
        return sum(map(input_size, item))
    source = getattr(item, "source", item)  # of a LazyImage
    return (len(source) if isinstance(source, bytes) else getattr(source, "nbytes", 0)) // 20


class BlockOptions:
    """Options of one call for each block of inputs, with seeds that give the same samples as without blocks.

    Args:
        options: the options, as ``Pipeline.resolve`` returns them. With one seed for all inputs, a repeated input gets
            another seed, computed from the seed and the number of earlier occurrences (``seed_of_repeat``). A list has
            a seed for each input.

    For a single seed, a digest of each distinct input is stored (some hundred bytes).

    >>> from heedful.generation import resolve
    >>> options = BlockOptions({"decoding": resolve({"do_sample": True, "seed": 5})})
    >>> [options.of(block)["decoding"].seed for block in (["a", "b"], ["c"])], options.of(["b"])["decoding"].seed == [5]
    ([[5, 5], [5]], False)
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.seed: Any = options["decoding"].seed if "decoding" in options else None
        self.number = 0  # of inputs so far
        self.occurrences: dict[bytes, int] = {}

    def of(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """Returns the options for the next block of inputs, with a seed for each input.

        Raises ``HeedfulError`` if the list of seeds is too short.
        """
        first, self.number = self.number, self.number + len(inputs)
        if self.seed is None:
            return dict(self.options)
        seeds = list(self.seed[first : self.number] if self._is_list() else [self.seed] * len(inputs))
        if len(seeds) < len(inputs):
            raise HeedfulError(
                f"seed has {len(self.seed)} numbers, but there are more inputs; give one seed for each input"
            )
        own = [seed_of_repeat(seed, self._earlier(seed, item)) for seed, item in zip(seeds, inputs, strict=True)]
        return {**self.options, "decoding": replace(self.options["decoding"], seed=own)}

    def end(self) -> None:
        """Raises ``HeedfulError`` if seeds are left over after the last input."""
        if self._is_list() and len(self.seed) > self.number:
            raise HeedfulError(
                f"seed has {len(self.seed)} numbers, but there are {self.number} inputs; give one seed for each input"
            )

    def _is_list(self) -> bool:
        return isinstance(self.seed, list | tuple)

    def _earlier(self, seed: Any, item: Any) -> int:
        """Returns the number of earlier occurrences of the input with this seed, and counts this one."""
        key = blake2b(repr((seed, item)).encode(), digest_size=8).digest()
        self.occurrences[key] = self.occurrences.get(key, -1) + 1
        return self.occurrences[key]


class BlockWarnings(logging.Filter):
    """Collector of a task's warnings over several blocks, which shows them as for a single call.

    While the context manager is entered, an ``InputWarning`` or ``InputError`` names its input by ``name(position)``.
    The counts of each ``CountWarning`` are added up, and ``end`` logs them. After ``MAX_WARNINGS`` warnings further
    ones are only counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shown, self.hidden = 0, 0
        self.counts: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns True for a log record that is shown now, False for one that is counted or hidden."""
        if threading.get_ident() != self.thread:
            return True
        if isinstance(record.msg, CountWarning):
            self.counts[record.msg.text] += record.msg.count
            return False
        if isinstance(record.msg, InputWarning):
            record.msg = f"{self.input_name(record.msg.position)} {record.msg.text}"
        self.shown += 1
        self.hidden += self.shown > MAX_WARNINGS
        return self.shown <= MAX_WARNINGS

    @contextmanager
    def naming(self, name: Callable[[int], str]) -> Iterator[None]:
        """Makes warnings and errors about a block name its inputs by ``name(position)``."""
        self.input_name, self.thread = name, threading.get_ident()
        log.addFilter(self)
        try:
            yield
        except InputError as error:
            raise error.named(name(error.position)) from error
        finally:
            log.removeFilter(self)

    def end(self, number: int) -> None:
        """Logs the summed warnings after the last block; ``number`` is the number of all inputs."""
        for text, count in self.counts.items():
            log.warning(f"{count:,} of {plural(number, 'input')} {text}")
        if self.hidden:
            log.warning(f"{plural(self.hidden, 'more warning')} like these, not shown")
