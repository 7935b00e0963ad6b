"""Embedding vectors of tokens or sentences: nearest neighbours, cosine similarity, principal components.

Shapes: V rows of a table, N and M vectors, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError, lookup
from heedful.inspection.attention_maps import precise
from heedful.util.exact import as_float64


def embedding_tables(model: nn.Module) -> dict[str, Tensor]:
    """Returns the embedding tables of a model, detached: path → (rows, columns).

    There are tables of tokens, of segments, of learned positions (with the rows before position 0), and of T5's
    relative positions (one row for each bucket, one column for each head). A shared table stands under its first path.

    >>> import heedful
    >>> {path: tuple(table.shape) for path, table in embedding_tables(heedful.create("bert-tiny")).items()}
    {'embedding.token': (30522, 128), 'embedding.segment': (2, 128), 'encoder.position.table': (512, 128)}
    """
    return {path: part.weight.detach() for path, part in model.named_modules() if isinstance(part, nn.Embedding)}


def _unit(vectors: Tensor, name: str = "vectors") -> Tensor:
    """Divides each row by its length, in float32 at least; a row of zeros stays zero: cosine 0 with every row."""
    if vectors.dim() != 2 or not len(vectors):
        raise HeedfulError(f"{name} has shape {tuple(vectors.shape)}; give one row for each vector, (N, D)")
    rows = precise(vectors.detach())
    return rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)


def neighbours(
    table: Tensor, ids: Sequence[int] | Tensor, k: int = 10, *, by: Literal["cosine", "distance"] = "cosine"
) -> tuple[Tensor, Tensor]:
    """Returns the ``k`` nearest other rows of a table for each of N rows, nearest first.

    Args:
        table: (V, D), such as ``embedding_tables(model)["embedding.token"]``.
        ids: numbers of the N rows.
        k: neighbours of each row, fewer than V.
        by: the measure of nearness: "cosine", ``x·y / |x||y|``, or the Euclidean "distance", ``|x − y|``.

    Returns:
        The ids of the nearest rows (N, k), and their cosines or distances (N, k). Of two equally near rows, the lower
        id comes first.

    >>> neighbours(torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 4.0]]), [0], k=2)
    (tensor([[2, 1]]), tensor([[0.6000, 0.0000]]))
    """
    nearness = lookup({"cosine": _cosine, "distance": _distance}, by, "measure")
    rows = torch.as_tensor(ids, device=table.device).long().flatten()
    if table.dim() != 2 or not 1 <= k < len(table):
        raise HeedfulError(f"k is {k} for a table of shape {tuple(table.shape)}; give a table (V, D), and k below V")
    wrong = [row for row in rows.tolist() if not 0 <= row < len(table)]
    if wrong:
        raise HeedfulError(f"there is no row {wrong[0]}; the table has {len(table)} rows, numbered from 0")
    score = nearness(table, rows)  # (N, V), larger is nearer
    score.scatter_(1, rows[:, None], -torch.inf)
    values, order = score.sort(dim=1, descending=True, stable=True)
    return order[:, :k], values[:, :k].abs() if by == "distance" else values[:, :k]


def _cosine(table: Tensor, rows: Tensor) -> Tensor:
    unit = _unit(table, "a table")
    return unit[rows] @ unit.T


def _distance(table: Tensor, rows: Tensor) -> Tensor:
    exact = precise(table.detach())
    mode = "donot_use_mm_for_euclid_dist"  # a matrix product would lose the digits of small distances
    return -torch.cdist(exact[rows], exact, compute_mode=mode)


def cosine_similarity(vectors: Tensor, others: Tensor | None = None) -> Tensor:
    """Returns the cosine of each of N vectors with each of M ``others``, (N, M); by default among the vectors.

    ``vectors`` is (N, D), ``others`` (M, D). Vectors of sentences come from a model with a ``pooled`` head, or
    ``heedful.pipeline("feature-extraction", ...)``.

    >>> cosine_similarity(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    tensor([[1.0000, 0.7071],
            [0.7071, 1.0000]])
    """
    unit = _unit(vectors)
    other = unit if others is None else _unit(others)
    if unit.size(1) != other.size(1):
        raise HeedfulError(
            f"vectors of {unit.size(1)} and of {other.size(1)} numbers cannot be compared; give both the same size"
        )
    return (unit @ other.to(unit).T).clamp(-1, 1)


@dataclass(frozen=True)
class PrincipalComponents:
    """Principal components of vectors.

    Attributes:
        points: (N, dimensions), the coordinates of the centred vectors along the axes.
        explained: (dimensions,), the share of the variance along each axis, largest first; the sum is below 1 if
            the vectors vary in more dimensions.
        axes: (dimensions, D), orthonormal.
        mean: (D,).
    """

    points: Tensor
    explained: Tensor
    axes: Tensor
    mean: Tensor


def principal_components(vectors: Tensor, dimensions: int = 2) -> PrincipalComponents:
    """Returns the axes of greatest variance of the centred vectors (Pearson 1901; Hotelling 1933).

    They are the right singular vectors of X − mean, computed in float64 from the triangular factor of its QR
    decomposition, and returned in the vectors' data type (float32 for half precision). The largest component of each
    axis is positive, so that the result is the same on every machine.

    Args:
        vectors: (N, D), at least two.
        dimensions: number of axes, at most N and D.

    >>> components = principal_components(torch.tensor([[0.0, 0.0], [4.0, 3.0], [8.0, 6.0]]))
    >>> components.points[:, 0].round(decimals=4), components.explained.round(decimals=4)
    (tensor([-5.,  0.,  5.]), tensor([1., 0.]))
    """
    if vectors.dim() != 2 or len(vectors) < 2:
        raise HeedfulError(
            f"vectors of shape {tuple(vectors.shape)} have no components; give at least two vectors, (N, D)"
        )
    if not 1 <= dimensions <= min(vectors.shape):
        raise HeedfulError(
            f"{len(vectors)} vectors of {vectors.size(1)} numbers do not have {dimensions} axes; give fewer dimensions"
        )
    wide = as_float64(vectors.detach())
    if not wide.isfinite().all():
        raise HeedfulError("some vectors hold NaN or infinity; remove these vectors")
    mean = wide.mean(0)
    triangle = torch.linalg.qr(wide - mean, mode="r").R
    _, singular_values, axes = torch.linalg.svd(triangle, full_matrices=False)
    axes = axes[:dimensions]
    axes = axes * axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()
    variance = singular_values.square()
    explained = variance[:dimensions] / variance.sum().clamp(min=torch.finfo(torch.float64).tiny)
    points = (wide - mean) @ axes.T
    dtype = torch.promote_types(vectors.dtype, torch.float32)
    return PrincipalComponents(*(part.to(dtype).to(vectors.device) for part in (points, explained, axes, mean)))
