"""Masks are values: ``None``, ``"causal"``, or a boolean tensor in which *True means may attend*.

Numbers that are added to the scores are a bias, an argument of its own (``heedful.layers.position``).

Shapes: B sequences, T queries, S keys. All broadcast to (B, heads, T, S). The masks given to a model are:

- (B, T) boolean: False for padding, on either side.
- (B, T) integers: segment numbers of a packed batch, 0 for padding and 1, 2, ... for the texts of a row, which do not
  attend to each other.
- (B, T, T) boolean: True where the first may attend to the second. It is the whole mask: a decoder is then neither
  causal nor has it a window, unless the mask says so. A token to which no token may attend is padding.

``padding_mask`` and ``heedful.cache.TokenPositions`` turn a model's mask into attention masks. Without a (B, T, T) mask
a stack uses the mask that it chose in its constructor (``heedful.stack.Stack``): causal if ``config.causal``, which the
configurations of decoders require, else bidirectional.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.errors import HeedfulError

Mask = Tensor | Literal["causal"] | None


def causal_mask(queries: int, keys: int | None = None, device: torch.device | str | None = None) -> Tensor:
    """Causal mask (T, S), aligned bottom-right: query i may attend to keys j ≤ S − T + i, the last query to all.

    >>> causal_mask(2, 3)
    tensor([[ True,  True, False],
            [ True,  True,  True]])
    """
    keys = queries if keys is None else keys
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def padding_mask(real: Tensor) -> Tensor:
    """Padding mask: every query may attend to the keys that are not padding, (B, S) → (B, 1, 1, S).

    >>> padding_mask(torch.tensor([[True, True, False]])).shape
    torch.Size([1, 1, 1, 3])
    """
    return real[:, None, None, :].bool()


def prefix_mask(lengths: Tensor, tokens: int, real: Tensor | None = None) -> Tensor:
    """Mask of a prefix language model (B, T, T): all tokens attend to the prefix, later tokens also causally.

    Raffel et al. 2020, section 3.2.1. A decoder takes it as its mask.

    Args:
        lengths: (B,) number of tokens of each prefix.
        tokens: T, the number of columns.
        real: (B, T), False for padding, on either side, which is not counted; None: no padding.

    >>> prefix_mask(torch.tensor([2]), 4).int()
    tensor([[[1, 1, 0, 0],
             [1, 1, 0, 0],
             [1, 1, 1, 0],
             [1, 1, 1, 1]]], dtype=torch.int32)
    """
    real = lengths.new_ones(len(lengths), tokens, dtype=torch.bool) if real is None else real.bool()
    prefix = real.cumsum(1) <= lengths[:, None]  # (B, T)
    return (causal_mask(tokens, device=lengths.device) | prefix[:, None, :]) & real[:, None, :]


def attended_tokens(mask: Tensor) -> Tensor:
    """Returns the mask (B, T) of the tokens that some token may attend to, of a whole mask (B, T, T); others unchanged.

    >>> attended_tokens(torch.tensor([[[True, False], [True, False]]]))
    tensor([[ True, False]])
    """
    return mask.any(1) if mask.ndim == 3 else mask


def text_starts(texts: Tensor) -> Tensor:
    """Returns the offsets (M + 1,) int32 at which the texts of a packed batch begin in its flattened rows, then B · T.

    These are cumulative sequence lengths (``cu_seqlens``). ``texts`` (B, T) are the segment numbers; padding counts as
    a text. Compute them on the CPU: M depends on the data, so a GPU would make the host wait.

    >>> text_starts(torch.tensor([[1, 1, 2], [1, 0, 0]]))
    tensor([0, 2, 3, 4, 6], dtype=torch.int32)
    """
    begins = texts != texts.roll(1, 1)
    begins[:, 0] = True
    return F.pad(begins.flatten().nonzero()[:, 0], (0, 1), value=texts.numel()).int()


def window_mask(queries: Tensor, keys: Tensor, window: int) -> Tensor:
    """Window mask (B, 1, T, S): a query at position p may attend to keys at positions > p − window.

    >>> window_mask(torch.tensor([[3]]), torch.tensor([[0, 1, 2, 3]]), window=2)[0, 0]
    tensor([[False, False,  True,  True]])
    """
    return keys[:, None, None, :] > queries[:, None, :, None] - window


def combine(*masks: Mask) -> Mask:
    """Returns the intersection of masks; ``None`` allows all attention.

    ``"causal"`` takes T and S from the tensors; if these have one row for all queries, T = S.

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
    intersection = tensors[0]
    for mask in tensors[1:]:
        intersection = intersection & mask
    return intersection


def tensor_mask(mask: Mask, queries: int, keys: int, device: torch.device) -> Tensor | None:
    """Returns the mask as a tensor (T, S) for "causal"; other masks unchanged. Raises as ``check_boolean``."""
    check_boolean(mask)
    return causal_mask(queries, keys, device) if isinstance(mask, str) else mask


def add_bias(mask: Mask, bias: Tensor, queries: int, keys: int) -> Tensor:
    """Returns ``bias``, which broadcasts to (B, H, T, S), with −∞ where the mask forbids attention."""
    tensor = tensor_mask(mask, queries, keys, bias.device)
    return bias if tensor is None else torch.where(tensor, bias, float("-inf"))


def check_boolean(mask: Mask) -> None:
    """Raises ``HeedfulError`` for a mask tensor that is not boolean."""
    if isinstance(mask, Tensor) and mask.dtype is not torch.bool:
        raise HeedfulError(
            f"an attention mask is {mask.dtype}; give a boolean tensor, True where a query may attend to a key, and "
            "numbers to add to the scores as position=PositionBias(bias)"
        )


def mask_rows(
    mask: Mask,
    queries: slice | Tensor,
    length: int,
    keys: int,
    heads: Tensor | None = None,
    device: torch.device | None = None,
) -> Tensor | None:
    """Returns the rows ``queries`` of a mask of ``length`` queries, for these ``heads``: (B or 1, H or 1, T or 1, S).

    A tensor may also be a bias. Causal rows are bottom-right aligned, (T, S), and on ``device``, by default that of
    ``queries``.

    >>> mask_rows("causal", torch.tensor([0]), length=2, keys=3)
    tensor([[ True,  True, False]])
    """
    if isinstance(mask, str):
        numbers = torch.arange(length, device=device)[queries] if isinstance(queries, slice) else queries
        return torch.arange(keys, device=numbers.device) <= (keys - length + numbers)[:, None]
    if mask is None:
        return None
    mask = mask.reshape(*(1,) * (4 - mask.dim()), *mask.shape)
    mask = mask if mask.size(2) == 1 else mask[:, :, queries]  # first: a bias of all heads and queries is large
    return mask if heads is None or mask.size(1) == 1 else mask[:, heads]
