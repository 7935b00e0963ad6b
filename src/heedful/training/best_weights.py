"""Best weights of a run, and patience."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from heedful.errors import HeedfulError, nearest
from heedful.metrics.registry import sign


class BestWeights:
    """Tracker of the evaluation whose weights are the best so far, and of patience.

    Args:
        metric: name of the metric whose best value decides, the highest or the lowest
            (:func:`heedful.metrics.registry.sign`); among equal values the lower loss decides.
        margin: returns the standard error of the metric in the last evaluation. Weights whose metric is within this
            standard error of the best value become the best if their loss is lower.
        scored: returns the number of examples that the metric of the last evaluation is of; 0: not known. Metrics of
            different examples are not compared: if they are more than those of the best value, a lower loss decides.
        latest: True: the weights of every evaluation are the best so far, unless its metric is not finite.
    """

    def __init__(
        self, metric: str, margin: Callable[[], float], scored: Callable[[], int] = int, latest: bool = False
    ) -> None:
        self.metric, self.margin, self.scored, self.latest = metric, margin, scored, latest
        self.forget()

    def forget(self) -> None:
        """Forgets all evaluations, so that the next one has the best weights."""
        self.best: dict[str, Any] | None = None  # {"step", "value", "metrics"} of the best weights
        self.highest: tuple[float, int] | None = None  # sign · metric and its step, of the best value
        self.highest_scored = 0  # examples of that value
        self.lowest = math.inf  # loss
        self.stale = 0  # evaluations since the best, and since the lowest loss

    def update(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Records an evaluation; returns True if its weights are the best so far."""
        if self.metric not in metrics:
            raise HeedfulError(f"the evaluation has no metric {self.metric!r}; {nearest(self.metric, metrics)}")
        loss = metrics.get("loss", math.inf)
        lower = loss < self.lowest
        if lower:
            self.lowest = loss
        better = self._better(step, metrics)
        if better:
            self.best = {"step": step, "value": metrics[self.metric], "metrics": dict(metrics)}
        self.stale = 0 if lower or better else self.stale + 1
        return better

    def _better(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Returns True if the metric is the highest so far, or cannot be told from it and the loss is lower."""
        (value, loss), scored = self._rank(metrics), self.scored()
        if not math.isfinite(value):
            return False
        if self.best is not None and self.highest is not None and value <= self.highest[0] and not self.latest:
            if loss <= self._rank(self.best["metrics"])[1]:
                return False
            if value < self.highest[0] and scored <= self.highest_scored:
                return value >= self.highest[0] - self.margin()
        self.highest, self.highest_scored = (value, step), scored
        return True

    def _rank(self, metrics: Mapping[str, float]) -> tuple[float, float]:
        """Returns the sort key of an evaluation, higher is better: the metric, then the loss."""
        loss = metrics.get("loss", math.inf)
        return sign(self.metric) * metrics[self.metric], -loss if math.isfinite(loss) else -math.inf

    def same(self, metrics: Mapping[str, float]) -> bool:
        """Returns True if the best weights have the same metric and loss as ``metrics``, or if there are none yet."""
        if self.best is None:
            return True
        return self.metric in metrics and self._rank(metrics) == self._rank(self.best["metrics"])

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint stores of this object; :meth:`restore` takes it."""
        return {
            "best": copy.deepcopy(self.best),
            "highest": self.highest,
            "highest_scored": self.highest_scored,
            "lowest": self.lowest,
            "stale": self.stale,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores a ``state`` from a checkpoint; early checkpoints of version 0.1 lack ``highest_scored``."""
        self.best, self.highest = state["best"], state["highest"]
        self.highest_scored = state.get("highest_scored", sys.maxsize)
        self.lowest, self.stale = state["lowest"], state["stale"]
