"""Stack of blocks, shared by all families.

Shapes: B sequences, T tokens of a call, S tokens so far, M tokens of the memory; D model width. The attribute
``Stack.layout`` holds the reference function ``padded``. A plan (``heedful.kernels.plan``), the set of kernels that is
chosen for a model, may put a faster function of the same result in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol, TypedDict

import torch
from torch import Tensor, nn

from heedful.cache import StackCache
from heedful.config import StackConfig
from heedful.errors import HeedfulError
from heedful.layers.block import BLOCKS, Block, BlockFactory, Residual, norm_of
from heedful.layers.dropout import Dropout
from heedful.layers.linear import Linear
from heedful.layers.mask import (
    Mask,
    MaskFunction,
    TokenPositions,
    attended_tokens,
    bidirectional,
    causal,
    sliding_window,
    stack_mask,
    two_sided_window,
)
from heedful.layers.norm import Identity
from heedful.layers.position import PositionEncoding, position_of
from heedful.layers.row_layout import BATCH, RowLayout

NO_CACHE = StackCache()  # stores and counts nothing
ALL_TOKENS = slice(None)


class StackInput(NamedTuple):
    """Arguments of ``Stack.forward``."""

    x: Tensor
    mask: Tensor | None = None
    memory: Tensor | None = None
    memory_mask: Tensor | None = None
    cache: StackCache | None = None
    tokens_read: slice = ALL_TOKENS
    text_starts: Tensor | None = None
    segments: Tensor | None = None


class Layout(Protocol):
    """Runs the blocks of a stack over a batch: over all tokens, or without padding (``heedful.kernels.unpadded``)."""

    def __call__(self, stack: Stack, batch: StackInput) -> Tensor:
        """Returns the final hidden states (B, T, D)."""


class Stack(nn.Module):
    """Stack of ``depth`` blocks, after positions, embedding norm, dropout and projection, and before a final norm.

    There is a final norm unless the blocks are post-norm. ``first`` makes the first block, where it differs from the
    others.

    >>> import torch
    >>> from heedful.config import StackConfig
    >>> stack = Stack(StackConfig(dim=16, depth=2, heads=4, causal=True))
    >>> stack(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, config: StackConfig, first: BlockFactory | None = None) -> None:
        super().__init__()
        self.config = config
        self.position = position_of(config)
        self.embedding_norm = norm_of(config, config.width) if config.embedding_norm else Identity()
        self.dropout = Dropout(config.dropout.embedding)
        self.projection = Linear(config.width, config.dim) if config.embedding_dim else Identity()
        if config.convolution is not None and first is None:
            raise HeedfulError(
                "the stack's configuration has a convolution beside its first block; give "
                "first=heedful.models.deberta.ConvolutionBlock, or create a model"
            )
        block = BLOCKS.get(config.block, Block)
        makers = [first or block, *[block] * (config.depth - 1)]
        without, experts = replace(config, experts=None), config.experts
        configs = [config if experts and experts.in_block(i) else without for i in range(config.depth)]
        self.block = nn.ModuleList(make(own) for make, own in zip(makers, configs, strict=True))
        for index, part in enumerate(self.block):
            share_parameters(self.block[index - index % config.shared_blocks], part)
        self.norm = Identity() if config.placement == "post" else norm_of(config)
        self.windows = config.windows  # of each block; None: no window
        for number, part in enumerate(self.block):
            if isinstance(part, Block) and self.windows[number] is None:  # it needs no mask that the stack alone makes
                part.without_window()
            if isinstance(part, Block) and number == 0 and not config.first_norm:
                part.attention_residual.before = Identity()
        dense, banded = (causal, sliding_window) if config.causal else (bidirectional, two_sided_window)
        self.mask_functions: dict[int | None, MaskFunction] = {
            window: dense if window is None else banded for window in self.windows
        }
        self.layout: Layout = padded  # a plan may replace it

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: StackCache | None = None,
        tokens_read: slice = ALL_TOKENS,
        text_starts: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Maps embeddings ``x`` (B, T, D) to the final hidden states (B, T, D).

        Args:
            x: embeddings of the tokens, without positions; with ``embedding_dim`` of that width.
            mask: one of the model's masks (``heedful.layers.mask``): (B, T), boolean, False at padding on either side;
                (B, T), integers, the numbers of the texts of a packed batch, each with positions from 0; (B, T, T),
                boolean, the whole mask in place of causality and window. With a cache (B, S) or (B, T, S), over all S
                tokens so far. None: no padding.
            memory: (B, M, D), the stream that cross-attention attends to.
            memory_mask: (B, M), boolean or the numbers of texts as in ``mask``; or (B, T, M), boolean, True where a
                token may attend to one of the memory.
            cache: keys and values of earlier calls, to which those of this call are added.
            tokens_read: tokens that the caller reads, as a slice of each sequence's non-padding tokens, such as
                ``slice(0, 1)`` for the first. A layout may give zeros elsewhere.
            text_starts: offsets of the texts of a packed batch (``heedful.layers.mask.text_starts``). They repeat what
                ``mask`` says, so that a layout on a GPU need not wait for the number of texts.
            segments: (B, T), for positions with relative segments: the part of the input, such as 0 and 1 for a pair
                of texts. None: all tokens are of one.
        """
        return self.layout(self, StackInput(x, mask, memory, memory_mask, cache, tokens_read, text_starts, segments))

    def embedded(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Returns the input of the first block, W dropout(norm(x)) + b, of embeddings with positions ``x``."""
        return self.projection(self.dropout(self.embedding_norm(x, real)))

    def under_mask(
        self, position: PositionEncoding, tokens: TokenPositions, window: int | None
    ) -> tuple[Mask, PositionEncoding]:
        """Returns the mask and the positions that the blocks with this window are called with.

        If ``position`` has a bias tensor, −∞ is written into it where the mask forbids attention, once for all blocks,
        and the mask that is returned is None. Registered blocks get the mask and the bias apart.
        """
        position = position.of(window)
        mask = stack_mask(self.mask_functions[window], tokens, window)
        if self.config.block != "standard":
            return mask, position
        return position.with_mask(mask, tokens.queries.size(1), tokens.keys.size(1))

    def encoding(self, queries: Tensor, keys: Tensor, segments: Tensor | None = None) -> PositionEncoding:
        """Returns the encoding of queries at positions (B or 1, T) and keys at positions (B or 1, S), for all blocks.

        ``segments`` (B, T) are as in ``forward``: those of the queries, which are the last of the keys. Raises
        ``HeedfulError`` if the position scheme did not return a ``PositionEncoding``.
        """
        encoding = self.position.prepare(queries, keys)
        if not isinstance(encoding, PositionEncoding):
            name = getattr(self.config.position, "scheme", type(self.position).__name__)
            raise HeedfulError(
                f"position {name!r} returned {type(encoding).__name__} from prepare; return a PositionEncoding, such "
                "as PositionBias(bias)"
            )
        return encoding if segments is None else encoding.with_segments(segments, keys.size(1))

    def extra_repr(self) -> str:
        """Returns the layout, if it is not the default."""
        return "" if self.layout is padded else f"layout={getattr(self.layout, '__name__', self.layout)}"


def share_parameters(source: nn.Module, part: nn.Module) -> None:
    """Gives a module the parameters of another of the same structure; buffers and kernels stay its own."""
    for name, parameter in source.named_parameters(remove_duplicate=False) if part is not source else ():
        path, _, last = name.rpartition(".")
        setattr(part.get_submodule(path), last, parameter)


def padded(
    stack: Stack, batch: StackInput, rows: Mapping[int | None, RowLayout] | None = None, memory_rows: RowLayout = BATCH
) -> Tensor:
    """Reference layout: runs the blocks over every token of the batch, padding too.

    Another layout may call it with ``rows``, by the window of a block, or ``memory_rows``: self-attention or
    cross-attention then leaves padding out by itself, and knows causality and windows, so that the blocks get no mask.
    """
    cache = NO_CACHE if batch.cache is None else batch.cache
    check_one_text_a_row(stack, batch.mask)
    tokens = cache.extend(batch.x, batch.mask)  # a cache counts them
    x, real = stack_embedding(stack, batch, tokens)
    arguments = block_arguments(stack, batch, tokens, rows, memory_rows)
    caches = cache.layers(len(stack.block))
    for block, window, block_cache in zip(stack.block, stack.windows, caches, strict=True):
        x = block(x, real, memory=batch.memory, cache=block_cache, **arguments[window])
    return stack.norm(x, real)


def check_one_text_a_row(stack: Stack, mask: Tensor | None) -> None:
    """Raises ``HeedfulError`` for a packed batch if the experts have a capacity, which counts the tokens of a text."""
    counts = stack.config.experts is not None and stack.config.experts.capacity > 0
    if counts and mask is not None and mask.ndim == 2 and mask.dtype != torch.bool and bool((mask > 1).any()):
        raise HeedfulError(
            "experts.capacity counts the tokens of a row, but a row of a packed batch has several texts; set capacity "
            "to 0, or do not pack"
        )


def stack_embedding(stack: Stack, batch: StackInput, tokens: TokenPositions) -> tuple[Tensor, Tensor | None]:
    """Returns the input of the first block (B, T, D), and the mask (B, T) of its non-padding tokens."""
    real = None if batch.mask is None else attended_tokens(batch.mask)[:, -batch.x.size(1) :]
    x = stack.position.embed(batch.x, tokens.queries, tokens.end)
    return stack.embedded(x, real), real


class BlockArguments(TypedDict, total=False):
    """Keyword arguments of a block that its stack prepares; ``rows`` and ``memory_rows`` only if a layout has them."""

    mask: Mask
    position: PositionEncoding
    memory_mask: Mask
    rows: RowLayout
    memory_rows: RowLayout


def block_arguments(
    stack: Stack,
    batch: StackInput,
    tokens: TokenPositions,
    rows: Mapping[int | None, RowLayout] | None = None,
    memory_rows: RowLayout = BATCH,
) -> dict[int | None, BlockArguments]:
    """Returns masks and positions for the blocks with each window; ``rows``, ``memory_rows`` are as in ``padded``."""
    to_memory: BlockArguments = {"memory_mask": None}
    if memory_rows is not BATCH:
        to_memory["memory_rows"] = memory_rows
    elif (mask := batch.memory_mask) is not None:
        to_memory["memory_mask"] = mask[:, None] if mask.ndim == 3 else tokens.mask(mask)
    arguments: dict[int | None, BlockArguments] = {}
    encoding = stack.encoding(tokens.queries, tokens.keys, batch.segments)
    for window in stack.mask_functions:  # each window once
        own = tokens.of(window)  # a block with a window may have fewer keys in its cache
        position = encoding if own.keys is tokens.keys else stack.encoding(own.queries, own.keys, batch.segments)
        if rows is None:
            mask_of_window, position = stack.under_mask(position, own, window)
            arguments[window] = {"mask": mask_of_window, "position": position, **to_memory}
        else:
            arguments[window] = {"mask": None, "position": position.of(window), "rows": rows[window], **to_memory}
    return arguments


def set_drop_path(model: nn.Module, rate: float) -> None:
    """Sets the rates of stochastic depth in every stack: 0 in the first block, rising linearly to ``rate`` in the last.

    A stack of one block gets ``rate``. Touvron et al. 2021, table 9. Each sublayer draws its own numbers. Weights,
    their names and the configuration do not change: a saved model does not contain the rates.

    >>> stack = Stack(StackConfig(dim=16, depth=3, heads=4))
    >>> set_drop_path(stack, 0.25)
    >>> [block.feed_forward_residual.drop_path.rate for block in stack.block]
    [0.0, 0.125, 0.25]
    """
    for stack in (part for part in model.modules() if isinstance(part, Stack)):
        depth = len(stack.block)
        rates = torch.linspace(0, rate, depth).tolist() if depth > 1 else [rate]
        for block, block_rate in zip(stack.block, rates, strict=True):
            for residual in block.children():
                if isinstance(residual, Residual):
                    residual.drop_path.rate = block_rate
