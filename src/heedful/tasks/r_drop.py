"""R-Drop: two forward passes with different dropout, and a loss that makes their predictions similar.

.. math:: L = \\tfrac{1}{2} (CE_1 + CE_2 + \\tfrac{α}{2} (KL(p_1 ‖ p_2) + KL(p_2 ‖ p_1)))

This is half of the loss of Liang, Wu et al. 2021 ("R-Drop: Regularized Dropout for Neural Networks", section 2), so
that losses with and without R-Drop have the same scale. A step takes twice as long.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.settings import RunSettings


def agreement_of(model: nn.Module, settings: RunSettings) -> float:
    """Returns α, the value of ``--model.r-drop``; 0 if it is not set.

    Raises ``HeedfulError`` if the model has no dropout, since both passes would then be equal.
    """
    agreement = settings.model.r_drop or 0.0
    rates = [getattr(part, name, None) for part in model.modules() for name in ("p", "dropout")]
    drops = settings.model.drop_path or settings.lora.dropout or any(isinstance(rate, float) and rate for rate in rates)
    if agreement and not drops:
        remedy = "--model.drop-path" if settings.start_from or settings.resume else "--model.dropout"
        raise HeedfulError(
            f"--model.r-drop is {agreement:g}, but this model has no dropout; give {remedy}, or leave --model.r-drop "
            "out"
        )
    return agreement


def repeat_batch(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a batch with all rows repeated: first all rows, then all rows again.

    >>> repeat_batch({"ids": torch.tensor([[5], [7]])})["ids"].flatten().tolist()
    [5, 7, 5, 7]
    """
    return {name: torch.cat((tensor, tensor)) for name, tensor in batch.items()}


def interleave_passes(hidden: Tensor) -> Tensor:
    """Reorders rows (2N, ...), the first pass and then the second, so that the two passes of a row are neighbours.

    >>> interleave_passes(torch.tensor([1, 2, 10, 20])).tolist()
    [1, 10, 2, 20]
    """
    return hidden.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1)


def divergence(logits: Tensor, p: Tensor) -> Tensor:
    """Returns ½ (KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)) = ½ Σ (p₁ − p₂)(l₁ − l₂) for each row, as the terms (N, C) of the sum.

    The logits l and the probabilities ``p`` (2N, C) have the rows of the first pass, then those of the second; ``p`` is
    a softmax or a sigmoid of the logits.

    >>> logits = torch.tensor([[0.0, 1.0], [0.0, 3.0]])
    >>> round(float(divergence(logits, logits.softmax(1)).sum()), 4)
    0.2215
    """
    (first, second), (p1, p2) = logits.chunk(2), p.chunk(2)
    return 0.5 * (p1 - p2) * (first - second)
