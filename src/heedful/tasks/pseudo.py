"""Pseudo-log-likelihood: how likely a masked language model finds each token of a text, seeing all the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.models import Encoder


@torch.no_grad()
def pseudo_log_likelihoods(
    model: Encoder, rows: Mapping[int, Tensor], places: Sequence[tuple[int, int]], mask: int, tokens: int
) -> NDArray[np.float64]:
    """log p(w_t | all tokens of its row but w_t), in nats, for each (key of ``rows``, t) of ``places``.

    Salazar et al. 2020, equation 2.

    Each place is a forward pass of its row with that one token behind the mask.

    Args:
        model: an encoder with a masked-language-model head.
        rows: ids (T,) of whole windows, without padding.
        places: what is to be guessed.
        mask: the mask token's id.
        tokens: of a batch, about.
    """
    found = np.empty(len(places))
    order = sorted(range(len(places)), key=lambda i: len(rows[places[i][0]]))
    while order:
        length = len(rows[places[order[0]][0]])
        most = max(1, tokens // length)
        batch = [i for i in order[:most] if len(rows[places[i][0]]) == length]
        del order[: len(batch)]
        ids = torch.stack([rows[places[i][0]] for i in batch]).to(model.device)
        at = torch.tensor([places[i][1] for i in batch], device=model.device)
        each = torch.arange(len(batch), device=model.device)
        truth = ids[each, at]
        ids[each, at] = mask
        hidden = model.hidden(ids)
        found[batch] = model.head(hidden[each, at]).double().log_softmax(-1)[each, truth].cpu().numpy()
    return found
