"""Recording: tensors of chosen layers while a model runs, by path.

``Attention.forward`` calls its ``probe`` in place of ``attend`` during a recording; ``heedful.inspection.taps`` sets
the probe, computes the attention weights for each observer, and calls ``Recorder.add``, which fills ``recorded[path]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.inspection.record_generation import RecordedGeneration
from heedful.inspection.taps import WeightsObserver, eager, observing, reading
from heedful.inspection.tensor_paths import HookPoint, select_hook_points
from heedful.layers.relative import TERMS
from heedful.models.base import Model


class Recorder:
    """Recorder of tensors: fills ``recorded`` after each call of a model, or at the end of a generation.

    A recorder is also one of ``Model.observers``: a generation calls ``begin``, ``read`` after the encoder, ``step``
    after each call of the decoder, ``select`` when rows move, ``end`` with the returned rows, and ``over`` in any
    case, also after an error.
    """

    def __init__(self, points: Sequence[HookPoint], heads: Sequence[int] | None, queries: Sequence[int] | None) -> None:
        self.points = {point.path: point for point in points}
        self.heads, self.queries = heads, queries
        self.recorded: dict[str, Tensor] = {}
        self.generation: RecordedGeneration | None = None

    def recorded_queries(self, length: int) -> Sequence[int]:
        """Returns which of ``length`` queries are recorded; during a generation only the last, which predicts."""
        if self.generation is not None:
            return range(length) if self.generation.in_encoder else [length - 1]
        return range(length) if self.queries is None else from_start(self.queries, length)

    def add(self, point: HookPoint, tensor: Tensor, is_selected: bool = False) -> None:
        """Stores the tensor of a hook point.

        With ``is_selected`` the tensor has only the recorded heads and queries; otherwise they are selected here.
        """
        axes = point.kind.axes
        if not is_selected and self.heads is not None:
            tensor = tensor[:, list(self.heads)]
        if not is_selected and "T" in axes and (self.queries is not None or self.generation is not None):
            axis = axes.index("T")
            rows = torch.as_tensor(list(self.recorded_queries(tensor.size(axis))), device=tensor.device)
            tensor = tensor.index_select(axis, rows)
        if self.generation is None:
            self.recorded[point.path] = tensor
        else:
            self.generation.add(point.path, tensor)

    # -------------------------------------------------------------------------- called by a generation: Model.observers

    def begin(self, counts: Tensor, width: int, reading: bool) -> None:
        """Begins a generation from prompts of ``counts`` (B,) tokens, right-aligned in ``width`` columns.

        ``reading``: an encoder reads sources first. Raises ``HeedfulError`` during another generation.
        """
        if self.generation is not None:
            raise HeedfulError(
                "another generation is still being recorded; read it to its end, or close its iterator, before you "
                "start a new one"
            )
        self.recorded.clear()
        self.generation = RecordedGeneration(counts, width, reading)

    @property
    def _running(self) -> RecordedGeneration:
        assert self.generation is not None  # between ``begin`` and ``over``
        return self.generation

    def read(self) -> None:
        """Notes that the encoder has read the sources."""
        self._running.end_encoder()

    def step(self, tokens: Tensor) -> None:
        """Notes the end of a call of the decoder, in which ``tokens`` (R,) were the last input tokens of its R rows."""
        self._running.end_call(tokens)

    def select(self, rows: Tensor) -> None:
        """Keeps the rows with the indices ``rows``, in this order."""
        self._running.select(rows)

    def reread(self) -> None:
        """Raises ``HeedfulError``, because a row that is read again in a shorter context cannot be recorded."""
        raise HeedfulError(
            "the text is longer than the context and is read again, which cannot be recorded; give a larger context"
        )

    def end(self, rows: Tensor, copies: int) -> None:
        """Fills ``recorded`` at the end of a generation.

        ``rows`` (N, columns) are the returned ids with their prompts, ``copies`` rows for each prompt.
        """
        generation = self._running
        with torch.inference_mode(False):
            tensors = generation.assembled(rows[:, generation.width :].clone(), copies, self.points)
            for path, tensor in tensors.items():
                axes = self.points[path].kind.axes
                if self.queries is not None and "T" in axes and path not in generation.encoder_tensors:
                    axis = axes.index("T")
                    numbers = from_start(self.queries, tensor.size(axis))
                    tensor = tensor.index_select(axis, torch.as_tensor(numbers, device=tensor.device))
                self.recorded[path] = tensor.clone()

    def over(self) -> None:
        """Notes that the generation is over, finished or not."""
        self.generation = None


def from_start(queries: Sequence[int], length: int) -> list[int]:
    """Returns positions counted from the start; raises ``HeedfulError`` for a position out of range."""
    wrong = [query for query in queries if not -length <= query < length]
    if wrong:
        raise HeedfulError(f"there is no query {wrong[0]} in {length} tokens; count from 0, or from the end with −1")
    return [query % length for query in queries]


@contextmanager
def record(
    model: nn.Module,
    name: str | Sequence[str] = "pattern",
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    queries: Sequence[int] | None = None,
) -> Iterator[dict[str, Tensor]]:
    """Context manager that records chosen tensors of a model while it runs; the output stays the same, bit for bit.

    Works in prediction, in training and in ``generate``, with beam search too. During the recording, code compiled by
    ``torch.compile`` runs uncompiled. Copies of the model are not recorded.

    Args:
        model: any model of heedful, or a part of one.
        name: the end of a path, or several ends. ``heedful.inspection.paths(model)`` lists all paths. Paths of a block
            end in attention's ``query``, ``key``, ``value``, ``scores``, ``pattern``, ``mixed`` (each head's weighted
            sum of values) and ``output``, where positions depend on queries and keys the terms of the scores,
            ``content``, ``c2p``, ``p2c`` and ``c2s``, feed-forward's ``activation`` and ``output``, and ``stream``.
        layers: numbers of blocks; None is all.
        heads: numbers of heads, in this order; None is all. For ``key`` and ``value``, key-value heads.
        queries: positions of queries, in this order; negative ones count from the end; None is all.

    Yields:
        A dictionary that fills as the model runs: full path → a detached copy. Patterns are (B, heads, T, S), before
        dropout and in float32 at least. A later call replaces the tensors of an earlier call. For a generation:
        (returned rows, heads, generated tokens, keys), zero-padded. Row t is the query that predicted token t; keys
        have the columns of the returned ids (of the sources for cross-attention), along the returned beam. ``queries``
        then number the generated tokens; the encoder's tensors are recorded whole. A streamed generation is recorded
        when it ends; until then no other call is recorded.

    Raises:
        HeedfulError: for a name, layer, head or query that the model does not have; when a generation begins before the
            recorded one has ended, or reads a text anew in a shorter context; at the end, if nothing was recorded.

    >>> import heedful, torch
    >>> model = heedful.create("gpt-micro", seed=0)
    >>> with heedful.record(model, "pattern", layers=[0]) as recorded:
    ...     _ = model(torch.tensor([[1, 2, 3]]))
    >>> {path: tuple(tensor.shape) for path, tensor in recorded.items()}
    {'decoder.block.0.attention.pattern': (1, 4, 3, 3)}
    >>> with heedful.record(model, "pattern", layers=[0]) as recorded:
    ...     ids = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=5, num_beams=2)
    >>> ids.shape, recorded["decoder.block.0.attention.pattern"].shape
    (torch.Size([1, 8]), torch.Size([1, 4, 5, 8]))
    """
    recorder = Recorder(select_hook_points(model, name, layers, heads, queries), heads, queries)
    with ExitStack() as stack:
        for point in recorder.points.values():
            stack.enter_context(_recording(recorder, point))
        stack.enter_context(watching_generations(model, recorder))
        stack.enter_context(eager())
        yield recorder.recorded
    if not recorder.recorded and recorder.generation is None:  # a stream may go on after the block
        raise HeedfulError(
            "nothing was recorded, since no call of this model reached the recorded points; record the model that "
            "computes, which is pipe.model of a pipeline: pipe = heedful.pipeline(None, FOLDER)"
        )


@contextmanager
def _recording(recorder: Recorder, point: HookPoint) -> Iterator[None]:
    """Passes one tensor to the recorder: scores and weights by an observer, everything else by a tap."""
    if point.kind.name in ("scores", "pattern", *TERMS):

        def receive(weights: Tensor, first: int) -> None:
            recorder.add(point, weights, is_selected=True)

        observer = WeightsObserver(point.kind.name, recorder.heads, recorder.recorded_queries, None, receive)
        with observing(point, observer):
            yield
        return
    with reading(point, lambda tensor: recorder.add(point, tensor)):
        yield


@contextmanager
def watching_generations(model: nn.Module, observer: object) -> Iterator[None]:
    """Context manager in which ``observer`` observes the generations of ``model`` and of every model inside it."""
    models = [part for part in model.modules() if isinstance(part, Model)]
    try:
        for part in models:
            part.observers = (*part.observers, observer)
        yield
    finally:
        for part in models:
            part.observers = tuple(other for other in part.observers if other is not observer)


@contextmanager
def observe(
    model: nn.Module,
    receive: Callable[[str, Tensor, int], None],
    name: str | Sequence[str] = "pattern",
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    rows: int | None = None,
) -> Iterator[None]:
    """Context manager that passes attention patterns to a function, a few queries at a time.

    No tensor of size T × S is created, so long texts fit into memory.

    Args:
        model: any model of heedful, or a part of one.
        receive: called as ``receive(path, weights, first)`` with the weights (B, heads, t, S) of t queries,
            which begin with query ``first``.
        name: the end of a path, such as "pattern" or "scores"; or several ends.
        layers: numbers of blocks; None is all.
        heads: numbers of heads, in this order; None is all.
        rows: number of queries at a time; 64 by default.

    >>> import heedful, torch
    >>> model, shapes = heedful.create("gpt-micro", seed=0), []
    >>> with observe(model, lambda path, weights, first: shapes.append((first, *weights.shape)), layers=[0], rows=2):
    ...     _ = model(torch.tensor([[1, 2, 3]]))
    >>> shapes
    [(0, 1, 4, 2, 3), (2, 1, 4, 1, 3)]
    """
    points = select_hook_points(model, name, layers, heads)
    wrong = next((point.path for point in points if point.kind.name not in ("scores", "pattern")), None)
    if wrong is not None:
        raise HeedfulError(f"{wrong} is neither a pattern nor scores, so it cannot be observed; use heedful.record")
    with ExitStack() as stack:
        for point in points:
            observer = WeightsObserver(point.kind.name, heads, None, rows or 64, partial(receive, point.path))
            stack.enter_context(observing(point, observer))
        stack.enter_context(eager())
        yield
