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
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from heedful.kernels.allocator import rounded_rows
from heedful.kernels.blocked_attention import blocked_attention
from heedful.kernels.onednn_linear import kernels_depend_on_rows
from heedful.layers.attention import Attention
from heedful.layers.attention_kernels import Attend, Bias, fused_attention
from heedful.layers.block import Block, Residual
from heedful.layers.dropout import DropPath
from heedful.layers.mask import Mask, TokenPositions, own_positions, padding_mask, token_positions
from heedful.layers.position import RowEncoding
from heedful.layers.relative import ScoreTerms, Segments
from heedful.layers.row_layout import BATCH, RowLayout
from heedful.stack import ALL_TOKENS, BlockArguments, Stack, StackInput, padded


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


def counts_by_sequence(stack: Stack) -> bool:
    """Returns True if experts of a stack have a capacity, which counts the tokens of each sequence."""
    return stack.config.experts is not None and stack.config.experts.capacity > 0


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

    def first(self) -> Tensor:
        """Returns the indices in the row of the first token of each sequence that has one."""
        return (self.positions[0, : len(self.indices)] == 0).nonzero()[:, 0]

    def gather(self, x: Tensor) -> Tensor:
        """Gathers non-padding tokens: (B, T, D) → (1, N, D)."""
        return x.flatten(0, 1)[self.gathered][None]

    def scatter(self, y: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Scatters (1, N, ...), or (1, M, ...) at ``tokens`` (M,) of the row, to (B, T, ...), with zeros elsewhere."""
        indices = self.indices if tokens is None else self.indices[tokens]
        zeros = y.new_zeros(self.shape.numel(), *y.shape[2:])
        return zeros.index_copy(0, indices, y[0, : len(indices)]).unflatten(0, self.shape)

    def scatter_heads(self, q: Tensor) -> Tensor:
        """Scatters tokens of heads: (1, H, N, E) → (B, H, T, E)."""
        return self.scatter(q.transpose(1, 2)).transpose(1, 2)


class TokenRows(NamedTuple):
    """Rows of queries and keys; mask and bias are those of the padded batches."""

    queries: TokenRow
    keys: TokenRow

    def attend(
        self, kernel: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias, scale: float, dropout: float
    ) -> Tensor:
        """Computes attention of q (1, H, N, E) to k and v (1, K, M, E) by a kernel: (1, H, N, E)."""
        q, k, v = self.queries.scatter_heads(q), self.keys.scatter_heads(k), self.keys.scatter_heads(v)
        y = BATCH.attend(kernel, q, k, v, mask, bias, scale, dropout)  # (B, H, T, E)
        return self.queries.gather(y.transpose(1, 2)).transpose(1, 2)  # (1, H, N, E)


class FirstTokens(NamedTuple):
    """Row of which attention is computed for the first token of each sequence alone, ``tokens`` (B,) of the row."""

    row: TokenRow
    tokens: Tensor

    def attend(
        self, kernel: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias, scale: float, dropout: float
    ) -> Tensor:
        """Computes attention of the tokens of q (1, H, N, E) to k and v (1, K, N, E) by a kernel: (1, H, B, E)."""
        k, v = self.row.scatter_heads(k), self.row.scatter_heads(v)
        y = BATCH.attend(kernel, q[0, :, self.tokens].transpose(0, 1)[:, :, None], k, v, mask, bias, scale, dropout)
        return y[:, :, 0].transpose(0, 1)[None]


def unpadded_training(stack: Stack, batch: StackInput) -> Tensor:
    """Leaves padding out in training, and in the last block of an encoder all tokens but the first, where the caller
    reads that alone: the output of ``padded`` at the other tokens, zeros there.

    Falls back to ``padded`` outside training, where nothing can be left out, with a cache, for packed batches and masks
    (B, T, T), with stochastic depth (drawn once per sequence), while a part is observed, and if an attention has a
    custom kernel.

    >>> from heedful.config import StackConfig
    >>> from heedful.kernels import apply_plan
    >>> stack, x = Stack(StackConfig(dim=16, depth=2, heads=4)), torch.randn(2, 3, 16)
    >>> real = torch.tensor([[True, True, True], [True, False, False]])
    >>> output = stack(x, real)[real]
    >>> torch.allclose(apply_plan(stack, "cpu-training")(x, real)[real], output, atol=1e-5)
    True
    """
    if not leaves_tokens_out(stack, batch):
        return padded(stack, batch)
    x, memory = batch.x, batch.memory
    tokens = own_positions(x, batch.mask)
    padded_position = stack.encoding(tokens.queries, tokens.keys, batch.segments)
    under_masks = {window: stack.under_mask(padded_position, tokens, window) for window in stack.mask_functions}
    counts_tokens = stack.config.norm == "batch" or stack.config.experts is not None  # copies would count too
    fill = kernels_depend_on_rows() and not counts_tokens
    row = TokenRow(real_tokens(x, batch.mask), fill)
    rotation = stack.encoding(row.positions, row.positions[:, :0])
    x = stack.position.embed(row.gather(x), row.positions, tokens.end)
    x = stack.embedded(x)
    memory_mask, memory_rows = None, TokenRows(row, row)
    if memory is not None:
        memory_row = TokenRow(real_tokens(memory, batch.memory_mask), fill)
        memory_mask = None if batch.memory_mask is None else padding_mask(batch.memory_mask)
        memory, memory_rows = memory_row.gather(memory), TokenRows(row, memory_row)
    rows: dict[str, RowLayout] = {"rows": TokenRows(row, row), "memory_rows": memory_rows}
    first = row.first()
    *blocks, last = zip(stack.block, stack.windows, strict=True)
    reads_first = reads_first_alone(stack, batch) and padded_position.bias is None and len(first) == len(batch.x)
    for block, window in blocks if reads_first else [*blocks, last]:
        mask, position = under_masks[window]
        position = RowEncoding(rotation.of(window), position)
        x = block(x, mask=mask, position=position, memory=memory, memory_mask=memory_mask, **rows)
    if not reads_first:
        return row.scatter(stack.norm(x))
    block, window = last
    mask, position = under_masks[window]
    own: RowLayout = FirstTokens(row, first)
    x = last_block(block, x, first, {"mask": mask, "position": RowEncoding(rotation.of(window), position), "rows": own})
    return row.scatter(stack.norm(x), first)


def reads_first_alone(stack: Stack, batch: StackInput) -> bool:
    """Returns True if the caller reads the first token of each sequence alone, and the last block may compute no other.

    Under causality and windows a mask depends on the query; batch norm reads all tokens; where ranks share the weights
    of a block, its hooks gather them; and with dropout those ranks, which compute all tokens, would draw other numbers.
    """
    rates = stack.config.dropout
    if rates.attention or rates.hidden or rates.residual:
        return False
    if batch.tokens_read != slice(0, 1) or batch.memory is not None or stack.config.norm == "batch":
        return False
    if stack.config.experts is not None:  # whose balance loss counts all tokens
        return False
    last = vars(stack.block[-1])
    is_hooked = bool(last["_forward_pre_hooks"] or last["_forward_hooks"])
    return not (is_hooked or stack.config.causal or any(window is not None for window in stack.windows))


def leaves_tokens_out(stack: Stack, batch: StackInput) -> bool:
    """Returns True if the batch has padding, or tokens that nobody reads, which ``unpadded_training`` can leave out."""
    if not (stack.training and torch.is_grad_enabled()) or batch.cache is not None or counts_by_sequence(stack):
        return False
    masks = [mask for mask in (batch.mask, batch.memory_mask) if mask is not None]
    if any(mask.dtype is not torch.bool or mask.ndim == 3 for mask in masks):
        return False
    if all(bool(mask.all()) for mask in masks) and not reads_first_alone(stack, batch):
        return False
    drops_paths = any(isinstance(part, DropPath) and part.rate > 0 for part in stack.block[-1].modules())
    return not drops_paths and not is_observed(stack) and attends_with(stack, blocked_attention)


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


class GroupRows(NamedTuple):
    """Sequences of a row in groups of one length; mask and bias fit the longest. ``queries`` are the query tokens."""

    groups: list[SequenceGroup]
    queries: slice = ALL_TOKENS
    segments: Tensor | None = None  # (N,) of the tokens of the row

    def attend(
        self, kernel: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias, scale: float, dropout: float
    ) -> Tensor:
        """Computes attention of q, k, v (1, H, N, E): (1, H, M, E), for the M of N tokens that are ``queries``."""
        outputs = []
        for group in self.groups:
            group_q, group_k, group_v = (group.view(x[0].transpose(0, 1)).transpose(1, 2) for x in (q, k, v))
            own_mask = self.crop(mask, group.length) if isinstance(mask, Tensor) else mask
            own_bias = self.crop_bias(bias, group)
            y = BATCH.attend(kernel, group_q[:, :, self.queries], group_k, group_v, own_mask, own_bias, scale, dropout)
            outputs.append(y.transpose(1, 2).flatten(0, 1))  # (sequences, H, tokens, E) → (sequences · tokens, H, E)
        return torch.cat(outputs)[None].transpose(1, 2)

    def crop(self, tensor: Tensor, length: int) -> Tensor:
        """Returns a mask or bias of the longest sequence for sequences of ``length`` tokens."""
        return tensor[..., :length, :length][..., self.queries, :]

    def crop_bias(self, bias: Bias, group: SequenceGroup) -> Bias:
        """Returns the bias of the sequences of a group."""
        if not isinstance(bias, ScoreTerms):
            return None if bias is None else self.crop(bias, group.length)
        terms = bias.crop(group.length, self.queries)
        if self.segments is None:
            return terms
        segments = group.view(self.segments)
        return replace(terms, segments=Segments(segments[:, self.queries], segments))


def unpadded_inference(stack: Stack, batch: StackInput) -> Tensor:
    """Leaves out padding, and in the last block tokens that are not read: zeros there, else the output of ``padded``.

    If the caller reads one token of a sequence (the class token of BERT and ViT, the last token of GPT-2), the last
    block needs only the keys and values of the others: of its 12 D² multiplications per token, 9 are left out.

    Falls back to ``padded`` if there is nothing to leave out, with a cache or a memory, with a packed batch or a mask
    (B, T, T), while a part is observed (``heedful.record``, an intervention, any hook), and if an attention has a
    custom kernel.

    >>> import heedful
    >>> from heedful.kernels import apply_plan
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
    if is_observed(stack) or not attends_with(stack, fused_attention) or counts_by_sequence(stack):
        return padded(stack, batch)
    row = SortedTokenRow(real_tokens(x, mask).bool())
    if not row.groups:
        return x.new_zeros(*x.shape[:2], stack.config.dim)
    longest = row.groups[-1].length
    positions = torch.arange(longest, device=x.device)[None]
    longest_position = stack.encoding(positions, positions)
    longest_tokens = TokenPositions(positions, positions, None, longest)
    rotation = stack.encoding(row.positions, row.positions[:, :0])
    segments = None if batch.segments is None else batch.segments.flatten()[row.indices]
    rows = GroupRows(row.groups, segments=segments)
    contexts: dict[int | None, BlockArguments] = {}
    for window in stack.mask_functions:
        own_mask, position = stack.under_mask(longest_position, longest_tokens, window)
        contexts[window] = {"mask": own_mask, "position": RowEncoding(rotation.of(window), position), "rows": rows}
    x = stack.position.embed(row.gather(x), row.positions, longest)
    x = stack.embedded(x)
    *blocks, last = stack.block
    *windows, last_window = stack.windows
    for block, window in zip(blocks, windows, strict=True):
        x = block(x, **contexts[window])
    if tokens == ALL_TOKENS:
        return row.scatter(stack.norm(last(x, **contexts[last_window])))
    selected = row.select(tokens)
    x = last_block(last, x, selected, contexts[last_window] | {"rows": rows._replace(queries=tokens)})
    return row.scatter(stack.norm(x), selected)


def tokens_needed(stack: Stack, batch: StackInput) -> slice:
    """Returns the tokens whose output must be computed: those that are read, or all in training."""
    # under "causal" the last query attends to every key, and each before it to one less
    is_tail = batch.tokens_read.stop is None and batch.tokens_read.step in (None, 1)
    aligned = is_tail or not stack.config.causal
    return batch.tokens_read if aligned and not stack.training else ALL_TOKENS


def last_block(block: nn.Module, x: Tensor, selected: Tensor, context: BlockArguments) -> Tensor:
    """Returns the output (1, M, D) of a block at ``selected`` (M,) tokens of ``x`` (1, N, D), which attend to all."""
    assert isinstance(block, Block)  # ``attends_with``
    residual = block.attention_residual

    def attention(_: Tensor) -> Tensor:
        return block.attention(residual.before(x, None), **context)  # keys and values of every token

    x_selected = x[:, selected]
    return block.add_feed_forward(x_selected, residual(x_selected, None, attention), None)
