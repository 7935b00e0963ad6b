"""Static step: decodes one token of every row with fixed shapes (``cache_implementation="static"``).

Shapes: B prompts, R rows (prompts × beams or samples), V vocabulary.
"""

from __future__ import annotations

from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation.decoder_state import DecoderState, learned_positions
from heedful.kernels.decode_attention import store_for
from heedful.kernels.fixed_cache import StaticCache


class StaticStep:
    """Reads one token of every row: a call maps ``tokens`` (R,) to the logits (R, V) of the next tokens.

    It stands in for the ``DecoderState`` in a method, which calls ``make_cache``, ``prefill``, ``select`` and ``step``.

    A call is the same work whenever it is made. Fixed are: the number of rows, the columns of the cache, and the
    addresses of keys, values, positions and (for an encoder-decoder) the source's keys, values and mask. A row's
    position is a number on the device. The host reads nothing back, and nothing is copied from or to it. Rows that have
    ended stay; they stop advancing at their last position.

    ``heedful.optimize(model)`` captures it on a GPU. For a ``torch.cuda.graph`` of your own you
    need a fixed tensor of ``tokens``, into which you copy; a call or two before the capture, with ``cache.positions``
    set back in place after each; and a new capture after ``select`` or ``reorder`` has changed the number of rows.
    ``reorder`` with as many rows, and ``reread``, write into the same buffers. ``torch.compile(step,
    fullgraph=True)`` makes one graph for all steps. Call it in the inference mode in which ``prefill`` was called.

    Args:
        state: before ``prefill``.
        limits: (B,) number of new tokens of each prompt.
        context: maximum number of tokens that a decoder reads before ``reread``; None is unlimited.

    Attributes:
        cache: made by the first ``step``.

    >>> import heedful, torch
    >>> from heedful.generation.decoder_state import create_state
    >>> model = heedful.create("gpt-micro", seed=0).eval()
    >>> with torch.inference_mode():
    ...     step = StaticStep(create_state(model, torch.tensor([[1, 2, 3]]), None), torch.tensor([5]))
    ...     step.make_cache(None)
    ...     first = step.prefill().argmax(1)
    ...     step.step(first).shape, step.cache.capacity
    (torch.Size([1, 65]), 7)
    """

    def __init__(self, state: DecoderState, limits: Tensor, context: int | None = None) -> None:
        if state.observers:
            raise HeedfulError(
                "record() and intervene() do not work with cache_implementation='static', whose keys stand in fixed "
                "buffers; generate without it"
            )
        self.state, self.prompt = state, state.prompt
        self.prompt_lengths = self.lengths = state.prompt_lengths
        self.last = self.lengths + limits - 2  # the last token of a row is never read
        if context is not None:
            self.last = self.last.clamp(max=context - 1)
        needed = int(self.last.max()) + 1
        positions = learned_positions(state.stack)
        self.end = needed if positions is None else min(needed, positions)
        self.windows = state.stack.windows
        self.cache: StaticCache | None = None

    def __call__(self, tokens: Tensor) -> Tensor:
        """Returns the logits (R, V) after ``tokens`` (R,); ``step`` has been called before."""
        return self.state.last_logits(self.state.read(tokens[:, None]))

    def make_cache(self, steps: int | None) -> None:
        """Creates the cache that reads the prompt; the static cache is made by the first step."""
        self.state.make_cache(None)

    def prefill(self) -> Tensor:
        """Returns the logits (B, V) after the prompt."""
        return self.state.prefill()

    def reread(self, history: Tensor, starts: Tensor) -> Tensor:
        """Returns the logits (R, V) after ``history`` (R, N), each row from its column ``starts`` (R,)."""
        logits = self.state.reread(history, starts)
        self.lengths = history.size(1) - starts
        if self.cache is not None:
            self.cache.fill(self.cache.rows, self.state.cache, self.lengths, self.last)
            self._put(self.cache)
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        """Returns the logits (R, V) after ``tokens`` (R,)."""
        if self.cache is None:
            self._put(self.new_cache())
        return self(tokens)

    def select(self, rows: Tensor, prompts: Tensor | None = None) -> None:
        """Keeps the rows with the indices ``rows``, in this order, in new buffers: see ``DecoderState.select``."""
        self.state.select(rows, prompts)
        self._reordered(rows)

    def reorder(self, rows: Tensor) -> None:
        """Keeps the rows with the indices ``rows``, in this order, in the same buffers if the number stays: see
        ``DecoderState.reorder``.
        """
        self.state.reorder(rows)
        self._reordered(rows)

    def new_cache(self) -> StaticCache:
        """Returns a static copy of the state's cache."""
        store = store_for(self.lengths.device)
        fixed = {"end": self.end, "windows": self.windows, "store": store}
        return StaticCache(self.state.cache, self.lengths, self.last, **fixed)

    def _put(self, cache: StaticCache) -> None:
        self.cache = cache
        self.state.cache = cache  # type: ignore[assignment]  # it has all that a step uses

    def _reordered(self, rows: Tensor) -> None:
        self.lengths, self.last = self.lengths[rows], self.last[rows]
