"""Recording: tensors of chosen layers while a model runs, by path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.inspection.attention_weights import Watched
from heedful.inspection.record_generation import Tape
from heedful.inspection.taps import eager, reading, watching
from heedful.inspection.tensor_paths import Place, chosen_places
from heedful.models.base import Model


class Recorder:
    """Fills ``seen``; while the model generates, a tape, which fills it at the end."""

    def __init__(self, places: Sequence[Place], heads: Sequence[int] | None, queries: Sequence[int] | None) -> None:
        self.places = {place.path: place for place in places}
        self.heads, self.queries = heads, queries
        self.seen: dict[str, Tensor] = {}
        self.tape: Tape | None = None

    def rows(self, length: int) -> Sequence[int]:
        """Selects the queries to record: of a generation's call, the one that chooses a token."""
        if self.tape is not None:
            return range(length) if self.tape.reading else [length - 1]
        return range(length) if self.queries is None else counted(self.queries, length)

    def keep(self, place: Place, tensor: Tensor, whole: bool = True) -> None:
        """A tensor that was shown; ``whole``: heads and queries are still to be chosen."""
        axes = place.point.axes
        if whole and self.heads is not None:
            tensor = tensor[:, list(self.heads)]
        if whole and "T" in axes and (self.queries is not None or self.tape is not None):
            axis = axes.index("T")
            rows = torch.as_tensor(list(self.rows(tensor.size(axis))), device=tensor.device)
            tensor = tensor.index_select(axis, rows)
        if self.tape is None:
            self.seen[place.path] = tensor
        else:
            self.tape.keep(place.path, tensor)

    # -------------------------------------------------------------------------- what a generation tells: Model.watchers

    def begin(self, counts: Tensor, width: int, reading: bool) -> None:
        """A generation begins, of prompts of ``counts`` (B,) tokens, right-aligned in ``width`` columns; ``reading``:
        an encoder reads sources first.
        """
        if self.tape is not None:
            raise HeedfulError("a generation begins while another is recorded; end that first, or drop its stream")
        self.seen.clear()
        self.tape = Tape(counts, width, reading)

    def read(self) -> None:
        """The encoder has read the sources."""
        assert self.tape is not None
        self.tape.read()

    def step(self, tokens: Tensor) -> None:
        """The decoder has been called, each row (R,) with one of ``tokens`` last."""
        assert self.tape is not None
        self.tape.step(tokens)

    def select(self, rows: Tensor) -> None:
        """The rows at work are from now on ``rows`` of those before."""
        assert self.tape is not None
        self.tape.select(rows)

    def reread(self) -> None:
        """Raises ``HeedfulError``: a row that is read again in a shorter context cannot be recorded."""
        raise HeedfulError("a text that is read anew in a shorter context cannot be recorded; raise context")

    def end(self, made: Tensor, copies: int) -> None:
        """The generation has returned ``made`` (N, columns), ``copies`` rows a prompt, what stood before included."""
        assert self.tape is not None
        with torch.inference_mode(False):
            seen = self.tape.assembled(made[:, self.tape.width :].clone(), copies, self.places)
            for path, tensor in seen.items():
                axes = self.places[path].point.axes
                if self.queries is not None and "T" in axes and path not in self.tape.once:
                    axis = axes.index("T")
                    rows = torch.as_tensor(counted(self.queries, tensor.size(axis)), device=tensor.device)
                    tensor = tensor.index_select(axis, rows)
                self.seen[path] = tensor.clone()

    def over(self) -> None:
        """The generation is over, well or not."""
        self.tape = None


def counted(queries: Sequence[int], length: int) -> list[int]:
    """Positions from the end made positions from the start; ``HeedfulError`` for one that is not there."""
    wrong = [query for query in queries if not -length <= query < length]
    if wrong:
        raise HeedfulError(f"query {wrong[0]} of a text with {length} tokens; number them from 0, or the last −1")
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
    """Keep what chosen parts of a model compute while it runs; its output stays the same, bit for bit.

    Works in prediction, in training, and in ``generate`` with beams or without. While it lasts, all compiled code runs
    as it is written. A copy of the model, or one that is pickled, is not recorded.

    Args:
        model: any model of heedful, or a part of one.
        name: what to record: the end of a path, or several. ``heedful.inspection.paths(model)`` lists all paths; those
            of a block end in attention's ``query``, ``key``, ``value``, ``scores``, ``pattern``, ``mixed`` (what each
            head makes of the values) and ``output``, feed-forward's ``activation`` and ``output``, and ``stream``.
        layers: only the blocks of these numbers; None: all.
        heads: only these heads, in this order; None: all. Of ``key`` and ``value``, key-value heads.
        queries: only these positions of the tokens that look, in this order, from the end where negative; None: all.

    Yields:
        A dictionary that fills as the model runs: full path → a detached copy, patterns (B, heads, T, S), before
        dropout and in float32 at least. A later call replaces an earlier one. Of a generation: (returned rows, heads,
        generated tokens, keys), row t being the query that chose token t, keys in the columns of the returned ids (of
        the sources for cross-attention), along the beam that is returned, zero-padded; ``queries`` then number the
        generated tokens, and leave the encoder's tensors whole. A stream is recorded when it has ended; until then no
        other call is.

    Raises:
        HeedfulError: when nothing in the model is called so, or has no such layer, head or query; when a generation
            begins before the one that is recorded has ended, or reads a text anew in a shorter context.

    >>> import heedful, torch
    >>> model = heedful.create("gpt-micro", seed=0)
    >>> with heedful.record(model, "pattern", layers=[0]) as seen:
    ...     _ = model(torch.tensor([[1, 2, 3]]))
    >>> {path: tuple(tensor.shape) for path, tensor in seen.items()}
    {'decoder.block.0.attention.pattern': (1, 4, 3, 3)}
    >>> with heedful.record(model, "pattern", layers=[0]) as seen:
    ...     ids = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=5, num_beams=2)
    >>> ids.shape, seen["decoder.block.0.attention.pattern"].shape
    (torch.Size([1, 8]), torch.Size([1, 4, 5, 8]))
    """
    recorder = Recorder(chosen_places(model, name, layers, heads, queries), heads, queries)
    with ExitStack() as stack:
        for place in recorder.places.values():
            stack.enter_context(_kept(recorder, place))
        stack.enter_context(told(model, recorder))
        stack.enter_context(eager())
        yield recorder.seen


@contextmanager
def _kept(recorder: Recorder, place: Place) -> Iterator[None]:
    if place.point.name in ("scores", "pattern"):
        watched = Watched(
            place.point.name,
            recorder.heads,
            recorder.rows,
            None,
            lambda weights, first: recorder.keep(place, weights, whole=False),
        )
        with watching(place, watched):
            yield
        return
    with reading(place, lambda tensor: recorder.keep(place, tensor)):
        yield


@contextmanager
def told(model: nn.Module, watcher: object) -> Iterator[None]:
    """``watcher`` is told what every model inside ``model`` generates."""
    models = [part for part in model.modules() if isinstance(part, Model)]
    try:
        for part in models:
            part.watchers = (*part.watchers, watcher)
        yield
    finally:
        for part in models:
            part.watchers = tuple(one for one in part.watchers if one is not watcher)


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
    """See attention patterns a few queries at a time, so that nothing of the size T × S is ever held.

    Args:
        model: as of ``record``.
        receive: called as ``receive(path, weights, first)`` with weights (B, heads, t, S) of the t queries from
            ``first`` on.
        name: the end of a path: "pattern", "scores", or longer; or several.
        layers: only the blocks of these numbers; None: all.
        heads: only these heads, in this order; None: all.
        rows: queries at a time; 64 by default.

    >>> import heedful, torch
    >>> model, seen = heedful.create("gpt-micro", seed=0), []
    >>> with observe(model, lambda path, weights, first: seen.append((first, *weights.shape)), layers=[0], rows=2):
    ...     _ = model(torch.tensor([[1, 2, 3]]))
    >>> seen
    [(0, 1, 4, 2, 3), (2, 1, 4, 1, 3)]
    """
    places = chosen_places(model, name, layers, heads)
    wrong = next((place.path for place in places if place.point.name not in ("scores", "pattern")), None)
    if wrong is not None:
        raise HeedfulError(f"{wrong} does not come in blocks of queries; record it, or observe patterns")
    with ExitStack() as stack:
        for place in places:
            take = _taker(receive, place.path)
            stack.enter_context(watching(place, Watched(place.point.name, heads, None, rows or 64, take)))
        stack.enter_context(eager())
        yield


def _taker(receive: Callable[[str, Tensor, int], None], path: str) -> Callable[[Tensor, int], None]:
    return lambda weights, first: receive(path, weights, first)
