"""Loader, an endless iterator of optimisation steps that can be resumed at any step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from heedful.data.batching import Batches, Lengths, as_lengths, training_batches
from heedful.errors import HeedfulError


class Loader:
    """Endless iterator of optimisation steps, each a list of micro-batches.

    The order of the examples is a function of (seed, epoch, step): see
    :func:`heedful.data.batching.training_batches`. A step never mixes epochs, so the last step of an epoch may hold
    fewer micro-batches than ``accumulate``.

    Args:
        lengths: length of each of N examples, (N,); for pairs of sequences (N, 2).
        collate: returns a batch for an array of indices, given a random generator whose state is a function of
            (seed, epoch, batch).
        tokens: maximum tokens of a micro-batch on each side.
        accumulate: micro-batches in a step.
        seed: seed of the order of the examples.
        max_rows: maximum examples of a micro-batch; None: no limit but ``tokens``.
        digests: digests of the data by name; a state with other digests is refused.
    """

    def __init__(
        self,
        lengths: Lengths,
        collate: Callable[[np.ndarray, np.random.Generator], dict[str, Tensor]],
        *,
        tokens: int,
        accumulate: int = 1,
        seed: int = 0,
        max_rows: int | None = None,
        digests: Mapping[str, str] | None = None,
    ) -> None:
        if accumulate < 1:
            raise HeedfulError(f"accumulate is {accumulate} micro-batches a step; give at least 1")
        self.lengths = as_lengths(lengths)
        self.collate = collate
        self.accumulate = accumulate
        self._order: dict[str, Any] = {"tokens": tokens, "max_rows": max_rows, "seed": seed}
        shape = repr(self.lengths.shape).encode()
        self._digests = {"lengths": hashlib.sha256(shape + self.lengths.tobytes()).hexdigest(), **(digests or {})}
        self._go_to(epoch=0, step=0)

    def _go_to(self, epoch: int, step: int) -> None:
        self.epoch, self.step = epoch, step
        self._plan = training_batches(self.lengths, epoch=epoch, **self._order)

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimisation steps in the current epoch.

        Epochs may differ by a few steps, because each epoch is divided into batches anew.
        """
        return -(-len(self._plan) // self.accumulate)

    @property
    def epochs(self) -> float:
        """Number of epochs yielded so far; it is whole exactly when the last yielded step ended an epoch."""
        return self.epoch + self.step / self.steps_per_epoch

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Sequence[dict[str, Tensor]]:
        if self.step == self.steps_per_epoch:
            self._go_to(self.epoch + 1, 0)
        first = self.step * self.accumulate
        self.step += 1
        return _Step(self, self.epoch, first, self._plan[first : first + self.accumulate])

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the data; a loader that restores it yields the next step."""
        return {"epoch": self.epoch, "step": self.step, "order": self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the position in ``state``; raises :class:`HeedfulError` if data or batch settings have changed."""
        present, saved = self._identity(), state["order"]
        changed = [name for name in present if present[name] != saved.get(name)]
        if changed:
            raise HeedfulError(
                f"the run was started with other examples or another order of them (changed: {', '.join(changed)}); "
                "resume with the data and batch settings it was started with, or start a new run"
            )
        self._go_to(int(state["epoch"]), int(state["step"]))

    def _identity(self) -> dict[str, Any]:
        return {**self._digests, "accumulate": self.accumulate, **self._order}


class _Step(Sequence[dict[str, Tensor]]):
    """The micro-batches of a step; each is collated on access, so a rank collates only its own."""

    def __init__(self, loader: Loader, epoch: int, first: int, plan: Batches) -> None:
        self._loader, self._seed, self._first, self._plan = loader, [loader._order["seed"], epoch], first, plan

    def __len__(self) -> int:
        return len(self._plan)

    def __getitem__(self, number: Any) -> Any:
        indices = self._plan[number]
        return self._loader.collate(indices, np.random.default_rng([*self._seed, self._first + number]))
