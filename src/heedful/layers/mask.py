"""Masks are values: ``None``, ``"causal"``, or a boolean tensor in which *True means may attend*.

Numbers that are added to the scores are a bias, an argument of its own (``heedful.layers.position``).

Shapes: B sequences, T queries, S keys. All broadcast to (B, heads, T, S). The masks given to a model are:

- (B, T) boolean: False for padding, on either side.
- (B, T) integers: segment numbers of a packed batch, 0 for padding and 1, 2, ... for the texts of a row, which do not
  attend to each other.
- (B, T, T) boolean: True where the first may attend to the second. It is the whole mask: a decoder is then neither
  causal nor has it a window, unless the mask says so. A token to which no token may attend is padding.

``padding_mask`` and ``TokenPositions`` turn a model's mask into attention masks. Without a (B, T, T) mask
a stack uses the mask that it chose in its constructor (``heedful.stack.Stack``): causal if ``config.causal``, which the
configurations of decoders require, else bidirectional.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

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


# ---------------------------------------------------------------------------------------------------------- positions


class TokenPositions(NamedTuple):
    """Positions (B, T) of the tokens of a call, and (B, S) of all tokens that they may attend to.

    B is 1 if all rows have the same positions.
    """

    queries: Tensor  # (B, T) positions of this call's tokens, counted over real tokens
    keys: Tensor  # (B, S) positions of the tokens to attend to, this call's last
    real: Tensor | None  # (B, S) True for real keys; None: all are
    end: int  # all positions are below it
    whole_mask: Tensor | None = None  # (B, T, S) in place of the mask of the stack
    by_window: Mapping[int | None, TokenPositions] = MappingProxyType({})  # of blocks whose caches hold other keys

    @staticmethod
    def joined(by_window: dict[int | None, TokenPositions]) -> TokenPositions:
        """Returns the positions for the blocks with each window as one value."""
        (_, tokens), *others = by_window.items()
        return tokens._replace(by_window=dict(others)) if others else tokens

    def of(self, window: int | None) -> TokenPositions:
        """Returns the positions for the blocks with this window, whose caches may hold fewer keys than others."""
        return self.by_window.get(window, self)

    def without_first(self, count: int) -> TokenPositions:
        """Returns the positions without the first ``count`` keys."""
        real = None if self.real is None else self.real[:, count:]
        whole_mask = None if self.whole_mask is None else self.whole_mask[..., count:]
        return self._replace(keys=self.keys[:, count:], real=real, whole_mask=whole_mask)

    def mask(self, real: Tensor) -> Tensor:
        """Returns the padding mask (B, 1, 1, S) of keys, which is the same for all queries.

        ``real`` (B, S) is True for non-padding keys.
        """
        return padding_mask(real)


class PackedPositions(TokenPositions):
    """Positions in a packed batch, counted within each text; ``real`` (B, T) holds the number of each token's text.

    >>> numbers, positions = torch.tensor([[1, 1, 2, 0]]), torch.tensor([[0, 1, 0, 0]])
    >>> PackedPositions(positions, positions, numbers, 4).mask(numbers)[0, 0]
    tensor([[ True,  True, False, False],
            [ True,  True, False, False],
            [False, False,  True, False],
            [ True,  True,  True, False]])
    """

    def mask(self, real: Tensor) -> Tensor:
        """Returns the mask (B, 1, T, S), in which a query attends to the keys of its own text, and padding to all keys.

        ``real`` (B, S) numbers the texts of the keys, 0 for padding. If it is boolean, every query attends to all
        keys where it is True.
        """
        assert self.real is not None
        if real.dtype == torch.bool:
            return padding_mask(real)
        text = self.real[:, None, :, None]  # (B, 1, T, 1)
        return padding_mask(real) & ((text == real[:, None, None, :]) | (text == 0))


def check_whole_mask(mask: Tensor, x: Tensor, keys: int) -> None:
    """Raises ``HeedfulError`` unless a mask of tokens ``x`` (B, T, D) is boolean, (B or 1, T, ``keys``)."""
    if mask.dtype != torch.bool or mask.shape[1:] != (x.size(1), keys) or mask.size(0) not in (1, len(x)):
        raise HeedfulError(
            f"a mask of three axes is {mask.dtype} of shape {tuple(mask.shape)}; give a boolean tensor of shape "
            f"{(len(x), x.size(1), keys)}, True where the first token may attend to the second"
        )


def token_positions(real: Tensor) -> Tensor:
    """Returns positions 0, 1, 2, ... over the non-padding tokens of each row, (B, S); left padding has position 0."""
    return (real.bool().cumsum(-1) - 1).clamp(min=0)


def text_positions(texts: Tensor) -> Tensor:
    """Returns the positions (B, S) of a packed batch: 0, 1, 2, ... within each text.

    ``texts`` (B, S) has the number of each token's text, 0 for padding.

    >>> text_positions(torch.tensor([[0, 1, 1, 2, 2, 2]]))
    tensor([[0, 0, 1, 0, 1, 2]])
    """
    in_row, last = token_positions(texts), texts.cummax(-1).values
    return in_row - torch.where(last != last.roll(1, -1), in_row, 0).cummax(-1).values  # less the text's first position


def own_positions(x: Tensor, real: Tensor | None) -> TokenPositions:
    """Returns the positions of tokens ``x`` (B, T, D) that attend to each other alone.

    ``real`` is a model's mask: (B, T), True for non-padding tokens, or the numbers of the texts of a packed batch;
    (B, T, T) is the whole mask; None: no padding.
    """
    if real is not None and real.ndim == 3:
        check_whole_mask(real, x, x.size(1))
        positions = token_positions(attended_tokens(real))
        return TokenPositions(positions, positions, attended_tokens(real), x.size(1), real)
    if real is not None and real.dtype != torch.bool:
        positions = text_positions(real)
        return PackedPositions(positions, positions, real, x.size(1))
    positions = torch.arange(x.size(1), device=x.device)[None] if real is None else token_positions(real)
    return TokenPositions(positions, positions, real, x.size(1))


# --------------------------------------------------------------------------------------- self-attention of a stack

MaskFunction = Callable[[TokenPositions, int | None], Mask]  # of the tokens, and of a block's window


def bidirectional(tokens: TokenPositions, window: int | None) -> Mask:
    """Returns the mask of an encoder: every token attends to all non-padding tokens."""
    return None if tokens.real is None else tokens.mask(tokens.real)


def causal(tokens: TokenPositions, window: int | None) -> Mask:
    """Returns the mask of a decoder: every token attends to the non-padding tokens up to itself."""
    queries, keys = tokens.queries.size(1), tokens.keys.size(1)
    if tokens.real is None:
        return "causal" if queries > 1 else None  # a single query is the last token, which attends to all
    return causal_mask(queries, keys, tokens.real.device) & tokens.mask(tokens.real)


def sliding_window(tokens: TokenPositions, window: int | None) -> Mask:
    """Returns the mask of a decoder's block with a window: tokens attend to the last ``window`` tokens."""
    assert window is not None
    queries, keys = tokens.queries.size(1), tokens.keys.size(1)
    mask = window_mask(tokens.queries, tokens.keys, window)
    mask = mask & causal_mask(queries, keys, mask.device)
    return mask if tokens.real is None else mask & tokens.mask(tokens.real)


def two_sided_window(tokens: TokenPositions, window: int | None) -> Mask:
    """Returns the mask of an encoder's block with a window: tokens attend to those up to ⌊window / 2⌋ positions away.

    Beltagy et al. 2020, section 3.1.
    """
    assert window is not None
    distance = tokens.keys[:, None, None, :] - tokens.queries[:, None, :, None]
    mask = distance.abs() <= window // 2
    return mask if tokens.real is None else mask & tokens.mask(tokens.real)


def stack_mask(function: MaskFunction, tokens: TokenPositions, window: int | None) -> Mask:
    """Returns the mask of self-attention in the blocks with this window: the caller's whole mask, if it gave one."""
    return function(tokens, window) if tokens.whole_mask is None else tokens.whole_mask[:, None]
