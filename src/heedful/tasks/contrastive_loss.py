"""Losses of text vectors: contrastive with in-batch negatives, and CoSENT for pairs with scores.

Shapes: B pairs of texts, C candidates, D width of a vector.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from heedful.models import Model


def text_vectors(model: Model, ids: Tensor, mask: Tensor, chunk: int | None = None) -> Tensor:
    """Returns the vectors (B, D) of texts; gradients are computed for ``chunk`` texts at a time (None: for all at
    once).

    A chunk's activations are freed after its forward pass and recomputed, with the same dropout, for its gradients.
    Loss and gradients equal those of the whole batch, but need the memory of one chunk and the time of one more forward
    pass (Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited setup").
    """
    if chunk is None or chunk >= len(ids) or not torch.is_grad_enabled():
        return model(ids, mask)
    parts = zip(ids.split(chunk), mask.split(chunk), strict=True)
    return torch.cat([checkpoint(model, *part, use_reentrant=False) for part in parts])


def negative_mask(texts: Tensor, pairs: Tensor, candidates: Tensor) -> Tensor:
    """Returns the mask (B, C) of negatives: True where a candidate equals neither the text nor one of the text's pairs.

    Args:
        texts: (B,) numbers of the texts, equal for equal texts.
        pairs: (B,) numbers of their pairs; a repeated text has several pairs.
        candidates: (C,) numbers of the candidates.
    """
    positives = (texts[:, None] == texts).float() @ (pairs[:, None] == candidates).float()
    return (positives == 0) & (texts[:, None] != candidates)


def contrastive(
    texts: Tensor, candidates: Tensor, negatives: Tensor, temperature: float, smoothing: float = 0.0
) -> Tensor:
    """Returns the contrastive loss Σ_i −log( exp(cos(x_i, y_i) / τ) / Σ_j exp(cos(x_i, y_j) / τ) ).

    x are vectors of texts and y those of candidates; y_i is the pair of x_i. j runs over i and the negatives of text i:
    InfoNCE (van den Oord et al. 2018, equation 4) with the batch's other
    pairs as negatives (Henderson et al. 2017, section 4.4). With smoothing the target is (1 − ε) on the pair, and ε is
    spread evenly over all terms of the sum.

    Args:
        texts: (B, D) x.
        candidates: (C, D) y, C ≥ B: the pairs in the order of the texts, then other negatives.
        negatives: (B, C), True for the negatives of each text.
        temperature: τ.
        smoothing: ε.
    """
    with torch.autocast(texts.device.type, enabled=False):  # in 16 bits, similarities would often be equal
        logits = F.normalize(_wide(texts), dim=1) @ F.normalize(_wide(candidates), dim=1).T / temperature
    summed = negatives | torch.eye(*negatives.shape, dtype=torch.bool, device=negatives.device)
    log_p = logits.masked_fill(~summed, float("-inf")).log_softmax(1)
    loss = -(1 - smoothing) * log_p.diagonal().sum()
    if smoothing:
        loss = loss - smoothing * (log_p.masked_fill(~summed, 0).sum(1) / summed.sum(1)).sum()
    return loss


def cosent(texts: Tensor, pairs: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """Returns the CoSENT loss B · log(1 + Σ_{i,j: score_i > score_j} exp((cos_j − cos_i) / τ)).

    cos_i is the cosine of text i and its pair. Pairs with a higher score learn a higher cosine. Only the order of the
    scores counts (Su 2022, "CoSENT"; Li and Li 2024, "AoE", section 3.2).

    Args:
        texts: (B, D) vectors of the texts.
        pairs: (B, D) vectors of their pairs.
        scores: (B,) similarity of each text and its pair.
        temperature: τ.
    """
    cosines = F.cosine_similarity(_wide(texts), _wide(pairs), dim=1) / temperature
    gaps, is_higher = cosines - cosines[:, None], scores[:, None] > scores
    # a boolean index would make the host wait for other devices
    gaps = gaps[is_higher] if gaps.device.type == "cpu" else gaps.masked_fill(~is_higher, float("-inf")).flatten()
    return len(scores) * torch.cat([gaps.new_zeros(1), gaps]).logsumexp(0)


def _wide(vectors: Tensor) -> Tensor:
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))
