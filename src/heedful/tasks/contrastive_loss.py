"""Contrastive losses of text vectors: in-batch negatives, and similarities as given scores.

Shapes: B pairs of texts, C candidates, D width of a vector.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from heedful.models import Model


def embedded(model: Model, ids: Tensor, mask: Tensor, chunk: int | None = None) -> Tensor:
    """The vectors (B, D) of texts, ``chunk`` of them at a time where gradients are wanted.

    A chunk's activations are forgotten once its vectors are there, and made anew, with the same dropout, when its
    gradients are: the loss of the whole batch, and its gradients, at the memory of a chunk and the time of another
    forward pass (Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited setup").
    """
    if chunk is None or chunk >= len(ids) or not torch.is_grad_enabled():
        return model(ids, mask)
    parts = zip(ids.split(chunk), mask.split(chunk), strict=True)
    return torch.cat([checkpoint(model, *part, use_reentrant=False) for part in parts])


def wrong(texts: Tensor, pairs: Tensor, candidates: Tensor) -> Tensor:
    """Which candidates a text must not be near: (B, C), True for all but those that equal it or one of its pairs.

    Args:
        texts: (B,) numbers, equal for equal texts.
        pairs: (B,) those of their pairs; a text that comes several times has several.
        candidates: (C,) those of the candidates.
    """
    mine = (texts[:, None] == texts).float() @ (pairs[:, None] == candidates).float()
    return (mine == 0) & (texts[:, None] != candidates)


def contrastive(
    texts: Tensor, candidates: Tensor, others: Tensor, temperature: float, smoothing: float = 0.0
) -> Tensor:
    """Σ_i −log( exp(cos(x_i, y_i) / τ) / Σ_j exp(cos(x_i, y_j) / τ) ), j over y_i and the wrong candidates of text i.

    InfoNCE (van den Oord et al. 2018, equation 4) with the batch's other pairs as negatives (Henderson et al. 2017,
    section 4.4). Smoothed, the target is (1 − ε) of the pair and ε spread over all of the sum.

    Args:
        texts: (B, D) x.
        candidates: (C, D) y, C ≥ B: the pairs in the order of the texts, and whatever else they are to be told from.
        others: (B, C) which of them are wrong.
        temperature: τ.
        smoothing: ε.
    """
    with torch.autocast(texts.device.type, enabled=False):  # similarities of 16 bits would be alike too often
        logits = F.normalize(_wide(texts), dim=1) @ F.normalize(_wide(candidates), dim=1).T / temperature
    counts = others | torch.eye(*others.shape, dtype=torch.bool, device=others.device)
    log_p = logits.masked_fill(~counts, float("-inf")).log_softmax(1)
    loss = -(1 - smoothing) * log_p.diagonal().sum()
    if smoothing:
        loss = loss - smoothing * (log_p.masked_fill(~counts, 0).sum(1) / counts.sum(1)).sum()
    return loss


def cosent(texts: Tensor, pairs: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """B · log(1 + Σ_{i,j: score_i > score_j} exp((cos_j − cos_i) / τ)): pairs of a higher score are to be nearer.

    The scores' order counts and not their scale (Su 2022, "CoSENT"; Li and Li 2024, "AoE", section 3.2).

    Args:
        texts: (B, D).
        pairs: (B, D).
        scores: (B,).
        temperature: τ.
    """
    near = F.cosine_similarity(_wide(texts), _wide(pairs), dim=1) / temperature
    gaps = (near - near[:, None])[scores[:, None] > scores]
    return len(scores) * torch.cat([gaps.new_zeros(1), gaps]).logsumexp(0)


def _wide(vectors: Tensor) -> Tensor:
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))
