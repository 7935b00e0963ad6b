"""Measures of attention maps: rollout, entropy, distance, head similarity, class-token overlay.

Pure functions of recorded patterns. Shapes: L layers, B sequences, H heads, T queries, S keys. A query that may attend
to nothing (padding under a causal mask) has a row of zeros and is left out of means.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from heedful.errors import HeedfulError


def rollout(patterns: Iterable[Tensor], *, residual: float = 0.5) -> Tensor:
    """Returns the attention rollout from input to output tokens: R = Ã_L … Ã_1, Ã = (1 − r) mean_h A_h + r I.

    Abnar and Zuidema 2020, section 3: heads are averaged, ``residual`` stands for the residual connection, and rows are
    normalised to sum to 1. Values, norms and feed-forward layers are ignored, so it shows where information may flow,
    not how much information flows.

    Args:
        patterns: self-attention of successive layers, from input to output, each (B, H, T, T): ``recorded.values()``.
        residual: the share r of the residual connection, at least 0 and below 1; 0.5 in the paper.

    Returns:
        (B, T, T). Row t holds the shares of the input tokens in output token t; rows sum to 1. The row of a padding
        token is 1 at its own position.

    Raises:
        HeedfulError: for no pattern, patterns that are not square or of different sizes, or a share out of range.

    >>> first, second = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]]), torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]])
    >>> rollout([first, second])
    tensor([[[1.0000, 0.0000],
             [0.6250, 0.3750]]])
    """
    if not 0 <= residual < 1:
        raise HeedfulError(f"residual is {residual}; give a share, at least 0 and below 1")
    total = None
    for pattern in patterns:
        mean = precise(pattern).mean(1)
        if mean.dim() != 3 or mean.size(-2) != mean.size(-1) or (total is not None and total.shape != mean.shape):
            raise HeedfulError(
                f"a pattern of shape {tuple(pattern.shape)} cannot be rolled out; give the self-attention "
                "patterns of one stack, each (B, H, T, T)"
            )
        identity = torch.eye(mean.size(-1), dtype=mean.dtype, device=mean.device)
        empty = mean.eq(0).all(-1, keepdim=True)
        mixed = torch.where(empty, identity, (1 - residual) * mean + residual * identity)
        mixed = mixed / mixed.sum(-1, keepdim=True)
        total = mixed if total is None else mixed @ total
    if total is None:
        raise HeedfulError("there is no pattern to roll out; record some layers of a model first")
    return total


def entropy(pattern: Tensor) -> Tensor:
    """Returns the entropy of each query's weights: −Σ_s a_ts ln a_ts, in nats. (..., T, S) → (..., T).

    It is 0 for a single key and ln S for equal weights on S keys; its exponential is the effective number of keys. A
    row of zeros has entropy 0.

    >>> entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor([0.0000, 0.6931])
    """
    return torch.special.entr(precise(pattern)).sum(-1)


def distance(pattern: Tensor, grid: tuple[int, int], patch: int = 1) -> Tensor:
    """Returns each head's mean attention distance in an image, in pixels.

    It is the mean over queries of Σ_s a_ts d_ts / Σ_s a_ts, where d is the Euclidean distance between the centres of
    two patches. The tokens before the patches (class, distillation) have no position and are left out as queries and
    as keys. Dosovitskiy et al. 2021, figure 7 and appendix D.7.

    Args:
        pattern: (B, H, N, N), prefix tokens first.
        grid: rows and columns of patches.
        patch: a patch's side in pixels; with 1 the distance is in patches.

    Returns:
        (B, H). The mean over images (``.mean(0)``) is what the paper's figure shows.

    >>> uniform = torch.full((1, 1, 5, 5), 0.2)  # a class token and 2 × 2 patches
    >>> round(float(distance(uniform, (2, 2), patch=16)), 4)  # 16 (0 + 1 + 1 + √2) / 4
    13.6569
    """
    prefix = _prefix(pattern, grid)
    weights = precise(pattern)[..., prefix:, prefix:]
    rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    centres = torch.stack((rows, columns), -1).flatten(0, 1).to(weights) * patch  # (patches, 2)
    distances = torch.linalg.vector_norm(centres[:, None] - centres, dim=-1)
    on_patches = weights.sum(-1)
    counted = on_patches > 0  # a query with weight on prefix tokens alone has no distance
    per_query = (weights * distances).sum(-1) / on_patches.where(counted, 1.0)
    return per_query.sum(-1) / counted.sum(-1).clamp(min=1)


def head_similarity(patterns: Iterable[Tensor], real: Tensor | None = None) -> Tensor:
    """Returns the similarity of each pair of heads: 1 − JS / ln 2, averaged over queries.

    JS is the Jensen-Shannon divergence of two rows: JS(p, q) = H((p + q) / 2) − (H(p) + H(q)) / 2, from 0 (equal rows)
    to ln 2 (no key in common); Clark et al. 2019, section 6, use it to cluster heads, which this function does not
    do. Heads are numbered pattern by pattern.

    Args:
        patterns: of one kind of attention, each (B, H, T, S), all over the same T queries and S keys.
        real: (B, T), True for the queries to compare; by default all. Rows of zeros are left out.

    Returns:
        (L · H, L · H), symmetric, 1 on the diagonal.

    Raises:
        HeedfulError: for no pattern, different shapes, or no query to compare.

    >>> left, right = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[0.0, 1.0]]]])
    >>> head_similarity([left, right, left])
    tensor([[1., 0., 1.],
            [0., 1., 0.],
            [1., 0., 1.]])
    """
    layers = [precise(pattern) for pattern in patterns]
    if not layers or len({(len(pattern), *pattern.shape[2:]) for pattern in layers}) > 1:
        shapes = ", ".join(str(tuple(pattern.shape)) for pattern in layers) or "none"
        raise HeedfulError(
            f"patterns of different shapes cannot be compared: {shapes}; give patterns over the same tokens"
        )
    heads = torch.cat(layers, dim=1).transpose(0, 1)  # (N, B, T, S)
    compared = heads.ne(0).any(-1).all(0)  # (B, T): a mask is the same for all heads
    compared = compared if real is None else compared & real.bool()
    if not compared.any():
        raise HeedfulError(
            "there is no query to compare: every row is padding, or attends to no key; give other inputs"
        )
    rows = heads[:, compared]  # (N, queries, S)
    entropies = torch.special.entr(rows).sum((-2, -1))
    result = torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
    for head in range(1, len(rows)):
        of_mean = torch.special.entr((rows[:head] + rows[head]) / 2).sum((-2, -1))
        divergence = (of_mean - (entropies[:head] + entropies[head]) / 2) / (rows.size(1) * math.log(2))
        result[head, :head] = result[:head, head] = (1 - divergence).clamp(0, 1)
    return result


def class_token_overlay(attention: Tensor, grid: tuple[int, int], token: int = 0) -> Tensor:
    """Returns the class token's attention to each patch, as a map of the image: (..., N, N) → (..., rows, columns).

    ``attention`` is a pattern (B, H, N, N), for one map per head, or a ``rollout`` (B, N, N), as in Dosovitskiy et
    al. 2021, figure 6 and appendix D.7. The map is not normalised: its sum is less than 1 by the weight on the tokens
    before the patches.

    Args:
        attention: the N tokens are the tokens before the patches, then the patches row by row.
        grid: rows and columns of patches.
        token: number of the query: 0 is the class token (in a model without class token, the first patch), 1 is DeiT's
            distillation token, larger numbers are patches.

    >>> class_token_overlay(torch.tensor([[0.2, 0.3, 0.5], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), grid=(1, 2))
    tensor([[0.3000, 0.5000]])
    """
    prefix = _prefix(attention, grid)
    if not 0 <= token < attention.size(-2):
        raise HeedfulError(f"there is no token {token}; the {attention.size(-2)} tokens are numbered from 0")
    return attention[..., token, prefix:].unflatten(-1, grid)


def precise(x: Tensor) -> Tensor:
    """Returns ``x`` in float32 at least: sums of many numbers lose precision in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _prefix(attention: Tensor, grid: tuple[int, int]) -> int:
    """Returns the number of tokens before the patches of ``grid``."""
    rows, columns = grid
    tokens = attention.size(-1)
    if attention.size(-2) != tokens or not 0 <= tokens - rows * columns <= 2:
        raise HeedfulError(
            f"attention of shape {tuple(attention.shape)} does not fit {rows} × {columns} patches and up to two tokens "
            "before them; give the grid of the model"
        )
    return tokens - rows * columns
