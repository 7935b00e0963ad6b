"""Layouts that leave padding out: a stack reads the non-padding tokens of a batch as one row.

Norms, linear maps and the feed-forward compute each token separately, so they can read one row of N tokens. For
attention the sequences are restored, which costs little compared with the products: in training as a padded batch with
its mask; in inference grouped by length, so that sequences of one length need no mask.

Shapes: B sequences, T tokens of the longest with its padding, N non-padding tokens in all, D model width, H heads, E
head size.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from heedful.cache import TokenPositions, token_positions
from heedful.kernels.allocator import rounded_rows
from heedful.kernels.blocked_attention import biased_attention, blocked_attention
from heedful.kernels.onednn_linear import kernels_depend_on_rows
from heedful.layers.attention import BIASED, Attend, Attention, attend_by, fused_attention
from heedful.layers.dropout import DropPath
from heedful.layers.mask import padding_mask
from heedful.layers.position import PositionEncoding
from heedful.layers.relative import RelativeMask, Segments
from heedful.stack import ALL_TOKENS, NO_CACHE, Block, Residual, Stack, StackInput, padded


def is_observed(part: nn.Module) -> bool:
    """Returns True if a hook or a probe observes or changes what a module, or one inside it, computes.

    Observers expect (B, T) tokens. The hooks by which PyTorch shards weights over ranks do not count.
    """
    state = vars(part)  # torch's attribute look-up would take most of the time here
    hooks = (*state["_forward_hooks"].values(), *state["_forward_pre_hooks"].values())
    hooked = any(not str(getattr(hook, "__module__", "")).startswith("torch.distributed") for hook in hooks)
    return hooked or state.get("probe") is not None or any(is_observed(child) for child in part.children())


def is_standard(block: nn.Module) -> TypeGuard[Block]:
    """Returns True for a ``Block`` that computes as the class does: no subclass and no instance replaces a method."""
    if not isinstance(block, Block) or vars(block).keys() & {"forward", "sublayers"}:
        return False
    residuals = (type(block.attention_residual), type(block.feed_forward_residual))
    methods = (type(block).forward, type(block).sublayers, *(residual.forward for residual in residuals))
    return methods == (Block.forward, Block.sublayers, Residual.forward, Residual.forward)


def attends_with(stack: Stack, attend: Attend) -> bool:
    """Returns True if each block of a stack is a standard ``Block`` whose attentions hold the kernel ``attend``."""
    for block in stack.block:
        if not is_standard(block) or block.attention.attend is not attend:
            return False
        if isinstance(block.cross_attention, Attention) and block.cross_attention.attend is not attend:
            return False
    return True


# ------------------------------------------------------------------------------------------------------------ training


class TokenRow:
    """Tokens of a batch, without padding, in one row: one sequence after another.

    Args:
        real: (B, T), False for padding.
        fill: adds copies of the first token, up to ``rounded_rows``; they have no gradient.

    >>> row = TokenRow(torch.tensor([[True, True, True], [False, True, True]]))
    >>> row.indices.tolist(), row.positions.tolist()
    ([0, 1, 2, 4, 5], [[0, 1, 2, 0, 1]])
    """

    def __init__(self, real: Tensor, fill: bool = False) -> None:
        self.shape = real.shape
        self.indices = real.flatten().nonzero()[:, 0]  # (N,) of tokens in the batch, counted along its rows
        copies = rounded_rows(len(self.indices)) - len(self.indices) if fill else 0
        self.gathered = torch.cat((self.indices, self.indices[:1].expand(copies)))
        self.positions = token_positions(real).flatten()[self.gathered][None]  # (1, N)

    def gather(self, x: Tensor) -> Tensor:
        """Gathers non-padding tokens: (B, T, D) → (1, N, D)."""
        return x.flatten(0, 1)[self.gathered][None]

    def scatter(self, y: Tensor) -> Tensor:
        """Scatters tokens: (1, N, ...) → (B, T, ...), with zeros at padding."""
        zeros = y.new_zeros(self.shape.numel(), *y.shape[2:])
        return zeros.index_copy(0, self.indices, y[0, : len(self.indices)]).unflatten(0, self.shape)

    def scatter_heads(self, q: Tensor) -> Tensor:
        """Scatters tokens of heads: (1, H, N, E) → (B, H, T, E)."""
        return self.scatter(q.transpose(1, 2)).transpose(1, 2)


class RowMask(NamedTuple):
    """Attention mask between two token rows: ``mask`` is the mask of the padded batches."""

    queries: TokenRow
    keys: TokenRow
    mask: Any

    def bind(self, *arguments: Any) -> RowMask:
        """Returns the mask with the terms of a layer (``heedful.layers.relative``)."""
        return self._replace(mask=self.mask.bind(*arguments))


def blocked_row_attention(q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: float, dropout: float = 0.0) -> Tensor:
    """Computes ``blocked_attention``; also takes a ``RowMask``: then q is (1, H, N, E), k and v are (1, H, M, E)."""
    if not isinstance(mask, RowMask):
        return blocked_attention(q, k, v, mask, scale, dropout)
    q, k, v = mask.queries.scatter_heads(q), mask.keys.scatter_heads(k), mask.keys.scatter_heads(v)
    y = attend_by(blocked_attention, q, k, v, mask.mask, scale, dropout)  # (B, H, T, E)
    return mask.queries.gather(y.transpose(1, 2)).transpose(1, 2)  # (1, H, N, E)


BIASED.update({blocked_attention: biased_attention, blocked_row_attention: biased_attention})


def unpadded_training(stack: Stack, batch: StackInput) -> Tensor:
    """Leaves padding out in training: the output of ``padded`` at non-padding tokens, zeros at padding.

    Falls back to ``padded`` outside training, for batches without padding, with a cache, for packed batches and masks
    (B, T, T), with stochastic depth (drawn once per sequence), while a part is observed, and if an attention has a
    custom kernel.

    >>> from heedful.config import StackConfig
    >>> from heedful.kernels.plan import apply_plan
    >>> stack, x = Stack(StackConfig(dim=16, depth=2, heads=4)), torch.randn(2, 3, 16)
    >>> real = torch.tensor([[True, True, True], [True, False, False]])
    >>> output = stack(x, real)[real]
    >>> torch.allclose(apply_plan(stack, "cpu-training")(x, real)[real], output, atol=1e-5)
    True
    """
    if not has_training_padding(stack, batch):
        return padded(stack, batch)
    x, memory = batch.x, batch.memory
    tokens = NO_CACHE.extend(x, batch.mask)
    bias = stack.encoding(tokens.queries, tokens.keys, batch.segments)
    masks = {window: bias.join(stack.self_mask(tokens, window)) for window in stack.attention_masks}
    fill = kernels_depend_on_rows() and stack.config.norm != "batch"  # copies would change a batch's statistics
    row = TokenRow(real_tokens(x, batch.mask), fill)
    position = stack.encoding(row.positions, row.positions[:, :0])  # rotates; a bias is part of ``mask``
    x = stack.position.embed(row.gather(x), row.positions, tokens.end)
    x = stack.dropout(stack.embedding_norm(x))
    memory_mask: RowMask | None = None
    if memory is not None:
        memory_row = TokenRow(real_tokens(memory, batch.memory_mask), fill)
        allowed = None if batch.memory_mask is None else padding_mask(batch.memory_mask)
        memory_mask = RowMask(row, memory_row, allowed)
        memory = memory_row.gather(memory)
    for block, window in zip(stack.block, stack.windows, strict=True):
        mask = RowMask(row, row, masks[window])
        x = block(x, mask=mask, position=position, memory=memory, memory_mask=memory_mask)
    return row.scatter(stack.norm(x))


def has_training_padding(stack: Stack, batch: StackInput) -> bool:
    """Returns True if the batch has padding that ``unpadded_training`` can leave out."""
    if not (stack.training and torch.is_grad_enabled()) or batch.cache is not None:
        return False
    masks = [mask for mask in (batch.mask, batch.memory_mask) if mask is not None]
    if any(mask.dtype is not torch.bool or mask.ndim == 3 for mask in masks) or all(bool(mask.all()) for mask in masks):
        return False
    drops_paths = any(isinstance(part, DropPath) and part.rate > 0 for part in stack.block[-1].modules())
    return not drops_paths and not is_observed(stack) and attends_with(stack, blocked_row_attention)


def real_tokens(x: Tensor, mask: Tensor | None) -> Tensor:
    """Returns the mask (B, T) of ``x`` (B, T, D); None becomes all True."""
    return x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask


# ----------------------------------------------------------------------------------------------------------- inference


class SequenceGroup(NamedTuple):
    """``sequences`` of ``length`` tokens, one after another from ``start`` of a row."""

    start: int
    sequences: int
    length: int

    def view(self, x: Tensor) -> Tensor:
        """Views the group: (N, ...) → (sequences, length, ...), without a copy."""
        return x[self.start : self.start + self.sequences * self.length].unflatten(0, (self.sequences, self.length))


class SortedTokenRow:
    """Tokens of a batch, without padding, in one row, shortest sequence first: sequences of one length are a view.

    Args:
        real: (B, T), False for padding.

    >>> row = SortedTokenRow(torch.tensor([[True, True, True], [False, False, False], [False, True, True]]))
    >>> row.indices.tolist(), row.positions.tolist()
    ([7, 8, 0, 1, 2], [[0, 1, 0, 1, 2]])
    >>> row.groups
    [SequenceGroup(start=0, sequences=1, length=2), SequenceGroup(start=2, sequences=1, length=3)]
    """

    def __init__(self, real: Tensor) -> None:
        lengths = real.sum(1)
        order = lengths.argsort(stable=True)
        real_sorted = real[order]
        grid = torch.arange(real.numel(), device=real.device).view(real.shape)
        self.shape = real.shape
        self.indices = grid[order][real_sorted]  # (N,) of tokens in the batch, counted along its rows
        self.positions = token_positions(real_sorted)[real_sorted][None]  # (1, N)
        self.groups, start = [], 0
        for length, count in sorted(Counter(lengths.tolist()).items()):
            if length:
                self.groups.append(SequenceGroup(start, count, length))
                start += count * length

    def gather(self, x: Tensor) -> Tensor:
        """Gathers non-padding tokens: (B, T, D) → (1, N, D)."""
        return x.flatten(0, 1)[self.indices][None]

    def scatter(self, y: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Scatters (1, N, D), or (1, M, D) at ``tokens`` (M,) of the row, to (B, T, D), with zeros elsewhere."""
        output = y.new_zeros(self.shape.numel(), y.size(-1))
        output[self.indices if tokens is None else self.indices[tokens]] = y[0]
        return output.view(*self.shape, -1)

    def select(self, tokens: slice) -> Tensor:
        """Returns the indices (M,) in the row of these tokens of each sequence, sequence by sequence."""
        indices = torch.arange(len(self.indices), device=self.indices.device)
        return torch.cat([group.view(indices)[:, tokens].flatten() for group in self.groups])


class GroupMask(NamedTuple):
    """Mask within the sequences of a row: ``mask`` fits the longest sequence; ``queries`` are the query tokens."""

    groups: list[SequenceGroup]
    mask: Any
    queries: slice = ALL_TOKENS
    segments: Tensor | None = None  # (N,) of the tokens of the row

    def bind(self, *arguments: Any) -> GroupMask:
        """Returns the mask with the terms of a layer (``heedful.layers.relative``)."""
        return self._replace(mask=self.mask.bind(*arguments))

    def attend(self, attend: Attend, q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float) -> Tensor:
        """Computes attention of q, k, v (1, H, N, E): (1, H, M, E), for the M of N tokens that are ``queries``."""
        outputs = []
        for group in self.groups:
            group_q, group_k, group_v = (group.view(x[0].transpose(0, 1)).transpose(1, 2) for x in (q, k, v))
            mask = self.crop(group)
            y = attend_by(attend, group_q[:, :, self.queries], group_k, group_v, mask, scale, dropout)
            outputs.append(y.transpose(1, 2).flatten(0, 1))  # (sequences, H, tokens, E) → (sequences · tokens, H, E)
        return torch.cat(outputs)[None].transpose(1, 2)

    def crop(self, group: SequenceGroup) -> Any:
        """Returns the mask of the sequences of a group."""
        length = group.length
        if isinstance(self.mask, RelativeMask):
            mask = self.mask.crop(length, self.queries)
            if self.segments is None:
                return mask
            segments = group.view(self.segments)
            return replace(mask, segments=Segments(segments[:, self.queries], segments))
        if not isinstance(self.mask, Tensor):
            return self.mask
        return self.mask[..., :length, :length][..., self.queries, :]


def fused_row_attention(q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: float, dropout: float = 0.0) -> Tensor:
    """Computes ``fused_attention``; also takes a ``GroupMask``."""
    if isinstance(mask, GroupMask):
        return mask.attend(fused_attention, q, k, v, scale, dropout)
    return fused_attention(q, k, v, mask, scale, dropout)


def unpadded_inference(stack: Stack, batch: StackInput) -> Tensor:
    """Leaves out padding, and in the last block tokens that are not read: zeros there, else the output of ``padded``.

    If the caller reads one token of a sequence (the class token of BERT and ViT, the last token of GPT-2), the last
    block needs only the keys and values of the others: of its 12 D² multiplications per token, 9 are left out.

    Falls back to ``padded`` if there is nothing to leave out, with a cache or a memory, with a packed batch or a mask
    (B, T, T), while a part is observed (``heedful.record``, an intervention, any hook), and if an attention has a
    custom kernel.

    >>> import heedful
    >>> from heedful.kernels.plan import apply_plan
    >>> model, ids = heedful.create("bert-tiny", seed=0).eval(), torch.tensor([[5, 7, 9], [5, 0, 0]])
    >>> output = model(ids, ids > 0)
    >>> unpadded = apply_plan(model, "cpu-inference")(ids, ids > 0)
    >>> torch.allclose(unpadded[0], output[0], atol=1e-5), unpadded[1, 1:].count_nonzero().item()
    (True, 0)
    """
    x, mask = batch.x, batch.mask
    if mask is not None and mask.ndim == 3:
        return padded(stack, batch)
    tokens = tokens_needed(stack, batch)
    has_padding = mask is not None and not bool((mask == 1).all())
    if not has_padding and tokens == ALL_TOKENS:
        return padded(stack, batch)
    if batch.memory is not None or batch.cache is not None or (mask is not None and bool((mask > 1).any())):
        return padded(stack, batch)
    if is_observed(stack) or not attends_with(stack, fused_row_attention):
        return padded(stack, batch)
    row = SortedTokenRow(real_tokens(x, mask).bool())
    if not row.groups:
        return torch.zeros_like(x)
    longest = row.groups[-1].length
    positions = torch.arange(longest, device=x.device)[None]
    bias = stack.encoding(positions, positions)
    longest_tokens = TokenPositions(positions, positions, None, longest)
    longest_masks = {window: bias.join(stack.self_mask(longest_tokens, window)) for window in stack.attention_masks}
    segments = None if batch.segments is None else batch.segments.flatten()[row.indices]
    masks = [GroupMask(row.groups, longest_masks[window], segments=segments) for window in stack.windows]
    position = stack.encoding(row.positions, row.positions[:, :0])  # rotates; the bias is in the mask
    x = stack.position.embed(row.gather(x), row.positions, longest)
    x = stack.dropout(stack.embedding_norm(x))
    *blocks, last = stack.block
    for block, group_mask in zip(blocks, masks[:-1], strict=True):
        x = block(x, mask=group_mask, position=position)
    if tokens == ALL_TOKENS:
        return row.scatter(stack.norm(last(x, mask=masks[-1], position=position)))
    selected = row.select(tokens)
    x = last_block(last, x, selected, masks[-1]._replace(queries=tokens), position)
    return row.scatter(stack.norm(x), selected)


def tokens_needed(stack: Stack, batch: StackInput) -> slice:
    """Returns the tokens whose output must be computed: those that are read, or all in training."""
    aligned = (
        batch.tokens_read.stop is None or not stack.config.causal
    )  # under "causal" a single query attends to every key
    return batch.tokens_read if aligned and not stack.training else ALL_TOKENS


def last_block(block: nn.Module, x: Tensor, selected: Tensor, mask: GroupMask, position: PositionEncoding) -> Tensor:
    """Returns the output (1, M, D) of a block at ``selected`` (M,) tokens of ``x`` (1, N, D), which attend to all."""
    assert isinstance(block, Block)  # ``attends_with``
    residual = block.attention_residual

    def attention(_: Tensor, **context: Any) -> Tensor:
        return block.attention(residual.before(x, None), **context)  # keys and values of every token

    y = residual(x[:, selected], None, attention, mask=mask, position=position)
    return block.feed_forward_residual(y, None, block.feed_forward)
