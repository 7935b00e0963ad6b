"""Whether PyTorch has a fused kernel for an attention on the CPU: it is asked itself, with tensors of the same kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

MATH = 0  # what PyTorch calls the way without a fused kernel


@dataclass(frozen=True)
class _Kind:
    """What PyTorch's choice may depend on; sizes of batch and lengths only by whether they are 1 and equal."""

    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    mask: tuple[int, ...] | None
    dtype: torch.dtype
    mask_dtype: torch.dtype | None
    learned: bool  # whether the mask asks for a gradient
    gradient: bool
    dropout: float
    causal: bool
    grouped: bool


@cache
def _choice(kind: _Kind) -> bool:
    """Whether the kernel that PyTorch takes is a fused one."""

    def real(shape: tuple[int, ...], dtype: torch.dtype | None, gradient: bool) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="cpu", requires_grad=gradient)

    mask = None if kind.mask is None else real(kind.mask, kind.mask_dtype, kind.learned)
    q, k, v = (real(shape, kind.dtype, kind.gradient) for shape in (kind.query, kind.key, kind.value))
    choice = torch._fused_sdp_choice(q, k, v, mask, kind.dropout, kind.causal, scale=1.0, enable_gqa=kind.grouped)
    return bool(choice != MATH)


def _kind(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, grouped: bool) -> _Kind:
    queries, keys = q.size(-2), k.size(-2)
    small: Mapping[int, int] = {1: 1, queries: min(queries, 2), keys: min(keys, 2 if keys == queries else 3)}

    def like(tensor: Tensor) -> tuple[int, ...]:
        *batch, heads, length, size = tensor.shape
        return (*(min(n, 2) for n in batch), heads, small[length], size)

    shape = None
    if mask is not None:
        *before, rows, columns = mask.shape
        heads = before[-1:]
        shape = (*(min(n, 2) for n in before[:-1]), *heads, small[rows], small[columns])
    grad = torch.is_grad_enabled()
    return _Kind(
        query=like(q),
        key=like(k),
        value=like(v),
        mask=shape,
        dtype=q.dtype,
        mask_dtype=None if mask is None else mask.dtype,
        learned=grad and mask is not None and mask.requires_grad,
        gradient=grad and q.requires_grad,
        dropout=dropout,
        causal=causal,
        grouped=grouped,
    )


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, *, grouped: bool) -> bool:
    """Whether PyTorch computes this attention by a fused kernel on the CPU; the tensors may lie anywhere."""
    return q.dim() == 4 and _choice(_kind(q, k, v, mask, dropout, causal, grouped))


def reason(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, *, grouped: bool) -> str:
    """Why it does not: the fewest properties without which it would."""
    if q.dim() != 4:
        return f"queries of {q.dim()} dimensions"
    kind = _kind(q, k, v, mask, dropout, causal, grouped)
    changes: dict[str, dict[str, Any]] = {}
    if kind.dropout:
        changes[f"dropout {kind.dropout:g} on the weights"] = {"dropout": 0.0}
    if kind.learned:
        changes["a learned bias"] = {"learned": False}
    if kind.grouped:
        changes["grouped key-value heads"] = {"key": kind.query, "value": kind.query, "grouped": False}
    if kind.mask is not None:
        changes["a mask"] = {"mask": None}
    for number in range(1, len(changes) + 1):
        for names in combinations(changes, number):
            without: dict[str, Any] = {}
            for name in names:
                without |= changes[name]
            if _choice(replace(kind, **without)):
                return " and ".join(names)
    return f"{str(kind.dtype).removeprefix('torch.')} with heads of {q.size(-1)}"
