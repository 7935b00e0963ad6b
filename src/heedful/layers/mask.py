"""Masks are values: ``None``, ``"causal"``, or a boolean tensor in which *True means may attend*.

Shapes: B sequences, T queries, S keys. All broadcast to (B, heads, T, S). A model's own masks are (B, T), True for a
real token; or whole numbers, 0 for padding and 1, 2, ... for the texts that stand one after the other in a row, each of
which is read as if it were alone. ``padding_mask`` makes the first attention's, ``heedful.cache.Packed`` the second.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Mask = Tensor | Literal["causal"] | None


def causal_mask(queries: int, keys: int | None = None, device: torch.device | str | None = None) -> Tensor:
    """Query i may attend to keys j ≤ S − T + i: (T, S), aligned bottom-right, so the last query sees every key.

    >>> causal_mask(2, 3)
    tensor([[ True,  True, False],
            [ True,  True,  True]])
    """
    return _lower(queries, queries if keys is None else keys, device)


def _lower(queries: int, keys: int, device: torch.device | str | None) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def padding_mask(real: Tensor) -> Tensor:
    """Only real tokens may be attended to: (B, S) → (B, 1, 1, S).

    >>> padding_mask(torch.tensor([[True, True, False]])).shape
    torch.Size([1, 1, 1, 3])
    """
    return real[:, None, None, :].bool()


def window_mask(queries: Tensor, keys: Tensor, window: int) -> Tensor:
    """A query at position p may attend to keys at positions > p − window: positions (B, T), (B, S) → (B, 1, T, S).

    >>> window_mask(torch.tensor([[3]]), torch.tensor([[0, 1, 2, 3]]), window=2)[0, 0]
    tensor([[False, False,  True,  True]])
    """
    return keys[:, None, None, :] > queries[:, None, :, None] - window


def combine(*masks: Mask) -> Mask:
    """Intersection of the masks. ``None`` allows everything.

    ``"causal"`` beside tensors takes (T, S) from them; a tensor with one row for all queries is taken as T = S.

    >>> combine("causal", padding_mask(torch.tensor([[True, True, False]])))[0, 0]
    tensor([[ True, False, False],
            [ True,  True, False],
            [ True,  True, False]])
    """
    tensors = [mask for mask in masks if isinstance(mask, Tensor)]
    causal = any(isinstance(mask, str) for mask in masks)
    if not tensors:
        return "causal" if causal else None
    if causal:
        keys = max(mask.size(-1) for mask in tensors)
        rows = max(mask.size(-2) for mask in tensors)
        tensors.append(causal_mask(keys if rows == 1 else rows, keys, tensors[0].device))
    joined = tensors[0]
    for mask in tensors[1:]:
        joined = joined & mask
    return joined


def tensor_mask(mask: Mask, queries: int, keys: int, device: torch.device) -> Tensor | None:
    """The mask with "causal" written out, (T, S); a tensor and None stay themselves."""
    return _lower(queries, keys, device) if isinstance(mask, str) else mask


def add_bias(mask: Mask, bias: Tensor) -> Tensor:
    """Bias (B, H, T, S) where the mask allows, −∞ elsewhere."""
    tensor = tensor_mask(mask, bias.size(-2), bias.size(-1), bias.device)
    return bias if tensor is None else torch.where(tensor, bias, float("-inf"))
