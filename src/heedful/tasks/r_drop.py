"""R-Drop: each example passes twice, with other numbers dropped, and the two answers are drawn towards each other.

.. math:: L = \\tfrac{1}{2} (CE_1 + CE_2 + \\tfrac{α}{2} (KL(p_1 ‖ p_2) + KL(p_2 ‖ p_1)))

Half of the loss of Liang, Wu et al. 2021 ("R-Drop: Regularized Dropout for Neural Networks", section 2), so that losses
with and without it are of one scale. A step takes twice as long.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.settings import RunSettings


def agreement_of(model: nn.Module, settings: RunSettings) -> float:
    """α, 0 where nobody asks for it; ``HeedfulError`` where both passages of an example would be the same."""
    agreement = settings.model.r_drop or 0.0
    rates = [getattr(part, name, None) for part in model.modules() for name in ("p", "dropout")]
    drops = settings.model.drop_path or settings.lora.dropout or any(isinstance(rate, float) and rate for rate in rates)
    if agreement and not drops:
        remedy = "--model.drop-path" if settings.start_from or settings.resume else "--model.dropout"
        raise HeedfulError(
            f"--model.r-drop is {agreement:g}, but this model drops nothing; give {remedy}, or leave it out"
        )
    return agreement


def twice(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All its rows, and all of them again.

    >>> twice({"ids": torch.tensor([[5], [7]])})["ids"].flatten().tolist()
    [5, 7, 5, 7]
    """
    return {name: torch.cat((tensor, tensor)) for name, tensor in batch.items()}


def beside(hidden: Tensor) -> Tensor:
    """Rows (2N, ...) of what passed twice, those of one passage first → the two of each row beside each other.

    >>> beside(torch.tensor([1, 2, 10, 20])).tolist()
    [1, 10, 2, 20]
    """
    return hidden.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1)


def divergence(logits: Tensor, p: Tensor) -> Tensor:
    """The terms (N, C) of ½ (KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)) = ½ Σ (p₁ − p₂)(l₁ − l₂), of the logits and probabilities
    (2N, C) of what passed twice, by softmax over the C or each of them a probability of its own.

    >>> logits = torch.tensor([[0.0, 1.0], [0.0, 3.0]])
    >>> round(float(divergence(logits, logits.softmax(1)).sum()), 4)
    0.2215
    """
    (first, second), (p1, p2) = logits.chunk(2), p.chunk(2)
    return 0.5 * (p1 - p2) * (first - second)
