"""Prefetching of the micro-batches of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from heedful.training.gradient import Batch, MicroBatches

if TYPE_CHECKING:
    from heedful.training.loop_parts import Steps


class PrefetchingLoader:
    """Prefetching loader: this rank's micro-batches of each step.

    ``prefetch`` collates the next step early: while a GPU computes, and before all ranks sum its predictions
    (``count_next``). ``state_dict`` is the position after the last step taken. ``take`` raises errors of collating.

    There is no loader thread: the host prefetches before it waits for the GPU, so a thread would gain nothing, and
    would compete with kernel launches for the GIL.

    Args:
        loader: yields the steps.
        collate: returns this rank's share of a step, given the number of steps before it and its micro-batches.
    """

    def __init__(self, loader: Steps, collate: Callable[[int, Sequence[Batch]], MicroBatches]) -> None:
        self._loader, self._collate = loader, collate
        self._next: MicroBatches | Exception | None = None  # the next step, or the error in collating it
        self._position: tuple[dict[str, Any], float] | None = None  # of the loader before it

    @property
    def epochs(self) -> float:
        """Number of epochs taken so far; it is whole exactly when the last step ended an epoch."""
        return self._loader.epochs if self._position is None else self._position[1]

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the data after the last step that was taken."""
        return self._loader.state_dict() if self._position is None else self._position[0]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a position in the data from :meth:`state_dict`."""
        self._next = self._position = None
        self._loader.load_state_dict(state)

    def take(self, step: int) -> MicroBatches:
        """Returns this rank's micro-batches of the next step, which has ``step`` steps before it."""
        if self._next is None:
            return self._collate(step, next(self._loader))
        taken, self._next, self._position = self._next, None, None
        if isinstance(taken, Exception):
            raise taken
        return taken

    def count_next(self, step: int) -> int:
        """Returns the predictions in this rank's share of the next step; 0 if :meth:`take` will raise an error."""
        self.prefetch(step)
        return self._next.total if isinstance(self._next, MicroBatches) else 0

    def prefetch(self, step: int) -> None:
        """Collates the next step, unless it is collated already."""
        if self._next is not None:
            return
        self._position = self._loader.state_dict(), self._loader.epochs
        try:
            self._next = self._collate(step, next(self._loader))
        except Exception as error:
            self._next = error

    def close(self) -> None:
        """Moves the loader back to the feed's position if it is ahead."""
        if self._position is not None:
            self.load_state_dict(self._position[0])
