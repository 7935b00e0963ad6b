"""Captured step: a static step that a GPU replays as one CUDA graph (``compiled_decoding`` of ``heedful.optimize``).

Shapes: R rows, B prompts, S tokens of a source, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from threading import Lock

import torch
from torch import Tensor

from heedful.cache import Cache, Cross
from heedful.generation.decoder_state import DecoderState, learned_positions
from heedful.generation.options import Options
from heedful.generation.static import StaticStep
from heedful.kernels import captured
from heedful.kernels.fixed_cache import StaticCache
from heedful.kernels.unpadded import is_observed


def rounded_length(tokens: int) -> int:
    """Rounds a length up, so that calls share graphs: to a multiple of 64, above 512 by at most an eighth.

    >>> [rounded_length(tokens) for tokens in (1, 64, 65, 513, 1024, 1025)]
    [64, 64, 128, 576, 1024, 1152]
    """
    unit = max(64, 2 ** (tokens.bit_length() - 4))
    return -(-tokens // unit) * unit


class StepGraph:
    """A captured step of R rows and the memory that it uses: tokens, keys, values, positions and source masks.

    Args:
        state: decoder state after ``prefill``.
        cache: static copy of the state's cache; its sources are replaced by longer buffers.
        source_length: room for source tokens; 0 for a decoder.

    Attributes:
        busy: locked while a call uses the memory.
        cache: keys, values and positions, updated in place.
    """

    def __init__(self, state: DecoderState, cache: StaticCache, source_length: int) -> None:
        self.busy, self.cache, self.source_mask = Lock(), cache, None
        self._tokens = torch.zeros_like(cache.positions)
        own = copy(state)  # a call's state is freed when the call ends
        own.cache = cache  # type: ignore[assignment]  # it has all that a step uses
        if source_length:
            cache.pairs = [(own_cache, _longer(cross, source_length)) for own_cache, cross in cache.pairs]
            rows = len(cache.pairs[0][1].pair[0])
            own.real = self.source_mask = self._tokens.new_zeros(rows, source_length, dtype=torch.bool)
        device = self._tokens.device
        self._replay = captured.capture(lambda: own.last_logits(own.read(self._tokens[:, None])), device)
        self._tables = list(own.model.buffers())  # a longer text replaces a table of positions that the graph reads

    def fill(self, prefix: Cache, lengths: Tensor, last: Tensor, source_mask: Tensor | None) -> None:
        """Replaces all rows by those of ``prefix``: see ``StaticCache.fill``; ``source_mask`` (B, S), or None."""
        self.cache.fill(self.cache.rows, prefix, lengths, last)
        if self.source_mask is None:
            return
        for (_, cross), (_, source) in zip(self.cache.pairs, prefix.pairs, strict=True):
            for buffer, stored in zip(cross.pair, source.pair, strict=True):
                buffer[:, :, : stored.size(2)].copy_(stored)
        self.source_mask.zero_()
        mask = self.source_mask[:, : source_length_of(prefix)]
        mask.fill_(True) if source_mask is None else mask.copy_(source_mask)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Returns the logits (R, V) after ``tokens`` (R,), which the next call overwrites."""
        self._tokens.copy_(tokens)
        return self._replay()


def source_length_of(cache: Cache) -> int:
    """Returns the number of tokens of the sources in a cache; 0 for a decoder."""
    pair = cache.pairs[0][1].pair
    return pair[0].size(2) if pair else 0


def _longer(cross: Cross, length: int) -> Cross:
    """Returns a cache of zeros for sources of ``length`` tokens, with the rows and heads of ``cross``."""
    longer = Cross()
    longer.pair = tuple(x.new_zeros(*x.shape[:2], length, x.size(3)) for x in cross.pair)
    return longer


class CapturedStep(StaticStep):
    """Static step that replays a CUDA graph; the first call claims the graph, or captures it, and fills its buffers.

    Numbers of tokens are rounded up, so that calls share graphs. It runs uncaptured if another call uses the graph,
    and after the number of rows has changed within a call, as only a search does whose beams outnumber the vocabulary.
    ``close`` lets other calls use the graph.
    """

    def __init__(self, state: DecoderState, limits: Tensor, context: int | None = None) -> None:
        super().__init__(state, limits, context)
        self.end = min(rounded_length(self.end), learned_positions(state.stack) or rounded_length(self.end))
        self.graph: StepGraph | None = None

    def step(self, tokens: Tensor) -> Tensor:
        """Returns the logits (R, V) after ``tokens`` (R,); the next step overwrites them."""
        if self.cache is None:
            self._begin()
        return super().step(tokens) if self.graph is None else self.graph(tokens)

    def select(self, rows: Tensor, prompts: Tensor | None = None) -> None:
        """Keeps the rows with the indices ``rows``, in this order, in new buffers: see ``DecoderState.select``."""
        self._detach()
        super().select(rows, prompts)

    def reorder(self, rows: Tensor) -> None:
        """Keeps the rows with the indices ``rows``, in this order: see ``StaticStep.reorder``."""
        if len(rows) != len(self.lengths):
            self._detach()
        super().reorder(rows)

    def close(self) -> None:
        """Lets other calls use the graph."""
        if self.graph is not None:
            self.graph.busy.release()
        self.graph = None

    def _begin(self) -> None:
        """Claims a graph for the rows that the state has read, and fills it."""
        state, prefix = self.state, self.state.cache
        self.source_length = source_length_of(prefix)
        source_length = rounded_length(self.source_length) if self.source_length else 0
        sources = len(prefix.pairs[0][1].pair[0]) if source_length else 0
        model = state.model
        key = (len(self.lengths), self.end, sources, source_length, model.kernels, captured.stream_of(model.device))

        def make() -> StepGraph:
            return StepGraph(state, self.new_cache(), source_length)

        self.graph = model.captured.claim(model, key, make)
        if self.graph is not None:
            self.graph.fill(prefix, self.lengths, self.last, state.real)
            self._put(self.graph.cache)

    def _detach(self) -> None:
        """Releases the graph; continues uncaptured with a copy of its cache."""
        if self.graph is None:
            return
        cache = deepcopy(self.graph.cache)
        for _, cross in cache.pairs:
            cross.pair = tuple(x[:, :, : self.source_length] for x in cross.pair)
        self._put(cache)
        self.close()


@contextmanager
def fixed_step(
    state: DecoderState, options: Options, limits: Tensor, context: int | None
) -> Iterator[StaticStep | None]:
    """Yields the static step of a generation, captured if the model asks for it; None if shapes may vary."""
    if is_captured(state, options):
        step = CapturedStep(state, limits, context)
        try:
            yield step
        finally:
            step.close()
    else:
        yield StaticStep(state, limits, context) if options.cache_implementation == "static" else None


def is_captured(state: DecoderState, options: Options) -> bool:
    """Returns True if a generation replays captured steps: the model asks for it, the method reads one token of each
    row at a step, and nothing observes or changes a part of the model, or its dtype.
    """
    model = state.model
    if model.captured is None or model.captured.refused or not captured.can_capture(model.device):
        return False
    is_autocast = torch.is_autocast_enabled(model.device.type)
    return options.variant.is_static and not state.observers and not is_observed(model) and not is_autocast
