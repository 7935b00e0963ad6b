"""Preferences: what the tasks that learn from a chosen and a rejected answer have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from heedful.data import Row, Rows
from heedful.data.preferences import ANSWERS, turn_texts
from heedful.errors import HeedfulError
from heedful.metrics.example_scores import overall
from heedful.metrics.preference import preference_scores
from heedful.models import Model
from heedful.settings import RunSettings
from heedful.tasks.baselines import linear_rewards
from heedful.tasks.task import Baseline, Batch, Task, short

BETA = 0.1  # of Rafailov et al. 2023, appendix B


def are_preferences(rows: Sequence[Row]) -> bool:
    """Returns True for rows with a chosen and a rejected answer, which no file has beside other rows."""
    return bool(rows) and "chosen" in rows[0].values


def preference_loss(margins: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Returns Σ −(1 − ε) log σ(m) − ε log σ(−m) over the reward margins m = r_w − r_l of pairs.

    The loss of Bradley and Terry's model (Ouyang et al. 2022, equation 1; Rafailov et al. 2023, equation 7). The label
    smoothing ε is the probability that the two answers of a pair were exchanged.

    >>> import torch
    >>> preference_loss(torch.zeros(2)).item()  # 2 ln 2
    1.3862943649291992
    """
    loss = -(1 - label_smoothing) * F.logsigmoid(margins)
    if label_smoothing:
        loss = loss - label_smoothing * F.logsigmoid(-margins)
    return loss.sum()


def check_smoothing(given: RunSettings) -> None:
    """Raises ``HeedfulError`` for a label smoothing from ½ on, which prefers the rejected answers."""
    smoothing = given.training.label_smoothing
    if smoothing is not None and smoothing >= 0.5:
        raise HeedfulError(
            f"--training.label-smoothing {smoothing:g} would teach the rejected answers: it is the share of pairs "
            "whose answers are exchanged; give less than 0.5"
        )


def of_pairs(
    task: Task,
    model: Model,
    examples: Sequence[Any],
    compute: Callable[[Model, Batch], Tensor],
    batch_tokens: int | None = None,
) -> np.ndarray:
    """Returns what ``compute`` returns for the answers of a batch of pairs, (B, 2), for all ``examples``: (N, 2)."""
    values = np.zeros((len(examples), 2))

    def computed(batch: Batch) -> np.ndarray:
        return compute(model, batch).double().cpu().numpy()

    for indices, of_batch in task.map_batches(model, examples, computed, batch_tokens):
        values[indices] = of_batch
    return values


def linear_baseline(rows: Rows, learned: Rows) -> Baseline:
    """Scores a baseline: a linear reward that is fitted to the training rows ``learned`` (``linear_rewards``)."""
    pairs, new_pairs = ([_pair(row) for row in part] for part in (learned, rows))
    scores = preference_scores(linear_rewards(pairs, new_pairs))
    return Baseline("a linear reward of words, character n-grams and length", overall(scores), scores)


def chance_baseline(rows: Rows) -> Baseline:
    """Scores a baseline that has the same reward for all answers, which is right for half of the pairs."""
    scores = preference_scores(np.zeros((len(rows), 2)))
    return Baseline("the same reward for both answers", overall(scores), scores)


def _pair(row: Row) -> tuple[str, str, str]:
    """Returns prompt, chosen and rejected answer of a row, messages as one text."""
    prompt, chosen, rejected = ("\n".join(turn_texts(row.values[name])) for name in ("prompt", *ANSWERS))
    return prompt, chosen, rejected


def preference_line(row: Row) -> str:
    """Returns a row as one short line for people: ``prompt → chosen, not rejected``."""
    prompt, chosen, rejected = (short(turn_texts(row.values[name])[-1]) for name in ("prompt", *ANSWERS))
    return f"{prompt} → {chosen}, not {rejected}"
