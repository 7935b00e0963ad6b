"""Metrics of preferences: how often, and by how much, the chosen answer has the higher reward; win rates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heedful.metrics.example_scores import Metrics, Sums
from heedful.metrics.registry import Metric

METRICS = (
    Metric("margin", "reward margin"),
    Metric("chosen_reward", "reward of the chosen answer"),
    Metric("rejected_reward", "reward of the rejected answer"),
    Metric("win_rate", "win rate, %"),
)


def preference_scores(rewards: ArrayLike) -> Sums:
    """Returns the scores of pairs from the rewards (N, 2) of the chosen and the rejected answers, in this order.

    Their metrics are ``loss``, the mean of −log σ(r_w − r_l) in nats; ``accuracy``, the percentage of pairs whose
    chosen answer has the higher reward, a tie counting one half; ``margin``, the mean of r_w − r_l; and the mean
    rewards ``chosen_reward`` and ``rejected_reward``.

    >>> from heedful.metrics.example_scores import overall
    >>> metrics = overall(preference_scores([[1.0, 0.0], [2.0, 3.0], [0.5, 0.5], [1.0, -1.0]]))
    >>> metrics["accuracy"], metrics["margin"], round(metrics["loss"], 4)
    (62.5, 0.5, 0.6116)
    """
    pairs = np.asarray(rewards, dtype=np.float64).reshape(-1, 2)
    margins = pairs[:, 0] - pairs[:, 1]
    statistics = (np.logaddexp(0.0, -margins), _points(margins), margins, *pairs.T, np.ones(len(pairs)))
    return Sums(np.stack(statistics, axis=1), _pair_metrics)


def _pair_metrics(sums: NDArray[Any]) -> Metrics:
    loss, right, margin, chosen, rejected, pairs = (float(value) for value in sums)
    count = pairs or math.nan
    return {
        "loss": loss / count,
        "accuracy": 100 * right / count,
        "margin": margin / count,
        "chosen_reward": chosen / count,
        "rejected_reward": rejected / count,
    }


def win_scores(ours: ArrayLike, hub: ArrayLike) -> Sums:
    """Returns the scores of comparisons of one model's answers with another's; their metric is ``win_rate``.

    It is the percentage of comparisons in which ``ours`` is higher than ``hub``, a tie counting one half. Both are
    (N,) for N prompts, or (N, K) for K answers to each; intervals then draw prompts, not answers.

    >>> from heedful.metrics.example_scores import overall
    >>> overall(win_scores([1, 1, 0, 1], [0, 1, 1, 0]))
    {'win_rate': 62.5}
    """
    points = _points(np.asarray(ours, dtype=np.float64) - np.asarray(hub, dtype=np.float64))
    points = points.reshape(len(points), -1)
    return Sums(np.stack([points.sum(1), np.full(len(points), points.shape[1])], axis=1), _win_rate)


def _win_rate(sums: NDArray[Any]) -> Metrics:
    return {"win_rate": 100 * float(sums[0]) / (float(sums[1]) or math.nan)}


def _points(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns 1 for a positive difference, ½ for none, 0 for a negative one."""
    return (np.sign(differences) + 1) / 2
