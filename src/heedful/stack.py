"""Residual, block and stack, shared by all families.

Shapes: B sequences, T tokens of this call, S tokens so far, or of the memory; D model width. A plan
(``heedful.kernels.plan``) may replace the attributes ``Residual.add``, ``Block.run`` and ``Stack.layout`` by faster
functions of the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.cache import NoCache
from heedful.config import StackConfig
from heedful.errors import HeedfulError
from heedful.layers.attention import NO_ATTENTION_CACHE, Attention, AttentionCache
from heedful.layers.attention_kernels import BATCH, RowLayout
from heedful.layers.dropout import Dropout, DropPath
from heedful.layers.feedforward import FEED_FORWARDS, FeedForward
from heedful.layers.mask import Mask, TokenPositions, attended_tokens, causal_mask, own_positions, window_mask
from heedful.layers.norm import NORMS, Identity
from heedful.layers.position import PositionEncoding, RelativeEncoding, position_of
from heedful.layers.relative import Segments

NO_CACHE = NoCache()
ALL_TOKENS = slice(None)


def norm_of(config: StackConfig) -> nn.Module:
    """Returns a norm of the kind that the stack's configuration names."""
    return NORMS[config.norm](config.dim, eps=config.norm_eps)


def feed_forward_of(config: StackConfig) -> nn.Module:
    """Returns the feed-forward network of a stack's blocks: a registered one, or ``FeedForward``."""
    if config.feed_forward in FEED_FORWARDS:
        return FEED_FORWARDS[config.feed_forward](config)
    return FeedForward(
        config.dim,
        config.ff_dim,
        activation=config.activation,
        gated=config.gated,
        bias=config.ff_bias,
        dropout=config.dropout.hidden,
    )


class AttentionContext(TypedDict, total=False):
    """Keyword arguments of ``Attention.forward``."""

    source: Tensor | None
    mask: Mask
    position: PositionEncoding | None
    cache: AttentionCache
    rows: RowLayout


Sublayer = Callable[..., Tensor]  # attention or feed-forward
Add = Callable[["Residual", Tensor, Tensor | None, Sublayer, Mapping[str, Any]], Tensor]


def every_slot(residual: Residual, x: Tensor, real: Tensor | None, f: Sublayer, context: Mapping[str, Any]) -> Tensor:
    """Computes after(x + drop_path(dropout(out(f(before(x)))))) by calling every slot, empty slots too."""
    y = residual.out(f(residual.before(x, real), **context), real)
    return residual.after(x + residual.drop_path(residual.dropout(y)), real)


class Residual(nn.Module):
    """after(x + drop_path(dropout(out(f(before(x)))))): pre-, post- and sandwich-norm only fill different slots.

    Post-norm: Vaswani et al. 2017; pre-norm: Xiong et al. 2020; sandwich: Ding et al. 2021. An absent norm is an
    identity, and ``drop_path`` drops nothing until ``set_drop_path`` gives it a rate.
    """

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.before = norm_of(config) if config.placement in ("pre", "sandwich") else Identity()
        self.out = norm_of(config) if config.placement == "sandwich" else Identity()
        self.after = norm_of(config) if config.placement == "post" else Identity()
        self.dropout = Dropout(config.dropout.residual)
        self.drop_path = DropPath()
        self.add: Add = every_slot  # a plan may replace it

    def forward(self, x: Tensor, real: Tensor | None, f: Sublayer, **context: Any) -> Tensor:
        """Adds the output of ``f``, called with ``context``, to ``x`` (B, T, D).

        Only batch norm uses ``real`` (B, T), False for padding.
        """
        return self.add(self, x, real, f, context)

    def extra_repr(self) -> str:
        """Returns the kernel, if it is not the default."""
        return "" if self.add is every_slot else f"add={getattr(self.add, '__name__', self.add)}"


class Skip(nn.Module):
    """Residual of an absent sublayer: the identity."""

    def forward(self, x: Tensor, real: Tensor | None, f: Sublayer, **context: Any) -> Tensor:
        """Returns ``x`` unchanged."""
        return x


AttentionMask = Callable[[TokenPositions, int | None], Mask]  # a function of the tokens and of a block's window
BlockCall = Callable[..., Tensor]  # runs a block: its sublayers and their arguments → their output


def run_sublayers(sublayers: Callable[..., Tensor], *context: Any) -> Tensor:
    """Calls the sublayers of a block. A plan may recompute their activations in the backward pass, or compile them."""
    return sublayers(*context)


class Block(nn.Module):
    """Transformer block: self-attention, cross-attention if ``config.cross``, and feed-forward, each in a residual.

    >>> import torch
    >>> from heedful.config import StackConfig
    >>> Block(StackConfig(dim=16, depth=1, heads=4))(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.attention = Attention.of(config)
        self.attention_residual = Residual(config)
        self.cross_attention = Attention.of(config, cross=True) if config.cross else Identity()
        self.cross_residual = Residual(config) if config.cross else Skip()
        self.feed_forward = feed_forward_of(config)
        self.feed_forward_residual = Residual(config)
        self.own_mask: AttentionMask = causal if config.causal else bidirectional
        self.has_window = config.window is not None
        self.run: BlockCall = run_sublayers  # a plan may replace it

    def forward(
        self,
        x: Tensor,
        real: Tensor | None = None,
        *,
        mask: Mask = None,
        position: PositionEncoding | None = None,
        memory: Tensor | None = None,
        memory_mask: Mask = None,
        cache: tuple[AttentionCache, AttentionCache] = (NO_ATTENTION_CACHE, NO_ATTENTION_CACHE),
        rows: RowLayout = BATCH,
        memory_rows: RowLayout = BATCH,
    ) -> Tensor:
        """Maps ``x`` (B, T, D) to (B, T, D), under ``mask``, with ``memory`` (B, S, D) for cross-attention.

        Without a mask, a block attends as its stack would without one, to the tokens that are ``real`` (B, T).
        Positions that attention takes are required: ``position`` is what the stack's ``encoding`` returns. ``rows`` and
        ``memory_rows`` are those of a plan's layout, as in ``Attention.forward``. Raises ``HeedfulError`` for what is
        missing, such as the mask of a stack with windows.
        """
        if mask is None and real is not None and rows is BATCH and not (position and position.has_mask):
            if cache[0] is not NO_ATTENTION_CACHE or self.has_window:
                raise HeedfulError(
                    "the block's mask is known to its stack, which has a cache or windows; give mask, or call the stack"
                )
            tokens = own_positions(x, real)
            mask = self.own_mask(tokens, None) if tokens.whole_mask is None else tokens.whole_mask[:, None]
        of_layout = () if rows is BATCH and memory_rows is BATCH else (rows, memory_rows)
        return self.run(self.sublayers, x, real, mask, position, memory, memory_mask, cache, *of_layout)

    def sublayers(
        self,
        x: Tensor,
        real: Tensor | None,
        mask: Mask,
        position: PositionEncoding | None,
        memory: Tensor | None,
        memory_mask: Mask,
        cache: tuple[AttentionCache, AttentionCache],
        rows: RowLayout = BATCH,
        memory_rows: RowLayout = BATCH,
    ) -> Tensor:
        """Computes self-attention, cross-attention and feed-forward in turn."""
        own: AttentionContext = {"mask": mask, "position": position, "cache": cache[0], "rows": rows}
        cross: AttentionContext = {"source": memory, "mask": memory_mask, "cache": cache[1], "rows": memory_rows}
        x = self.attention_residual(x, real, self.attention, **own)
        x = self.cross_residual(x, real, self.cross_attention, **cross)
        return self.feed_forward_residual(x, real, self.feed_forward)

    def extra_repr(self) -> str:
        """Returns the kernel, if it is not the default."""
        return "" if self.run is run_sublayers else f"run={getattr(self.run, '__name__', self.run)}"


BlockFactory = Callable[[StackConfig], nn.Module]
BLOCKS: dict[str, BlockFactory] = {}  # registered blocks


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


class StackInput(NamedTuple):
    """Arguments of ``Stack.forward``."""

    x: Tensor
    mask: Tensor | None = None
    memory: Tensor | None = None
    memory_mask: Tensor | None = None
    cache: NoCache | None = None
    tokens_read: slice = ALL_TOKENS
    text_starts: Tensor | None = None
    segments: Tensor | None = None


class Layout(Protocol):
    """Runs a stack over a batch: with its padding, or without (``heedful.kernels.unpadded``)."""

    def __call__(self, stack: Stack, batch: StackInput) -> Tensor:
        """Returns the final hidden states (B, T, D)."""


def padded(
    stack: Stack, batch: StackInput, rows: Mapping[int | None, RowLayout] | None = None, memory_rows: RowLayout = BATCH
) -> Tensor:
    """Reference layout: computes every token of the batch, padding too.

    ``rows``, by the window of a block, and ``memory_rows`` compute self-attention and cross-attention in place of the
    batch's masks.
    """
    cache = batch.cache or NO_CACHE
    x, real, contexts = block_input(stack, batch, cache, rows, memory_rows)
    layers = cache.layers(len(stack.block))
    for block, context, block_cache in zip(stack.block, contexts, layers, strict=True):
        x = block(x, real, memory=batch.memory, cache=block_cache, **context)
    return stack.norm(x, real)


class BlockContext(TypedDict, total=False):
    """Keyword arguments of a block that its stack prepares; ``rows`` and ``memory_rows`` only if a layout has them."""

    mask: Mask
    position: PositionEncoding
    memory_mask: Mask
    rows: RowLayout
    memory_rows: RowLayout


def block_input(
    stack: Stack,
    batch: StackInput,
    cache: NoCache,
    rows: Mapping[int | None, RowLayout] | None = None,
    memory_rows: RowLayout = BATCH,
) -> tuple[Tensor, Tensor | None, list[BlockContext]]:
    """Prepares the input of the blocks, and adds the tokens to the positions of ``cache``.

    Returns the embeddings (B, T, D) with positions, a mask (B, T) of non-padding tokens, and the context of each block.
    """
    tokens = cache.extend(batch.x, batch.mask)
    real = None if batch.mask is None else attended_tokens(batch.mask)[:, -batch.x.size(1) :]  # (B, T)
    x = stack.position.embed(batch.x, tokens.queries, tokens.end)  # (B, T, D)
    x = stack.dropout(stack.embedding_norm(x, real))
    cross_mask: Mask = None
    if memory_rows is BATCH and (memory_mask := batch.memory_mask) is not None:
        cross_mask = memory_mask[:, None] if memory_mask.ndim == 3 else tokens.mask(memory_mask)
    contexts: dict[int | None, BlockContext] = {}
    encoding = stack.encoding(tokens.queries, tokens.keys, batch.segments)
    for window in stack.attention_masks:
        own = tokens.of(window)
        position = encoding if own.keys is tokens.keys else stack.encoding(own.queries, own.keys, batch.segments)
        if rows is None:
            mask, position = stack.under_mask(position, own, window)
            contexts[window] = {"mask": mask, "position": position, "memory_mask": cross_mask}
        else:
            contexts[window] = {"mask": None, "position": position, "memory_mask": cross_mask, "rows": rows[window]}
        if memory_rows is not BATCH:
            contexts[window]["memory_rows"] = memory_rows
    return x, real, [contexts[window] for window in stack.windows]


class Stack(nn.Module):
    """Stack of ``depth`` blocks, after positions, embedding norm and dropout, and before a final norm.

    There is a final norm unless the blocks are post-norm. ``first`` makes the first block, by default as all others.

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
        self.embedding_norm = norm_of(config) if config.embedding_norm else Identity()
        self.dropout = Dropout(config.dropout.embedding)
        if config.convolution is not None and first is None:
            raise HeedfulError(
                "the stack's configuration has a convolution beside its first block; give "
                "first=heedful.models.deberta.ConvolutionBlock, or create a model"
            )
        block = BLOCKS.get(config.block, Block)
        self.block = nn.ModuleList((block if number else first or block)(config) for number in range(config.depth))
        self.norm = Identity() if config.placement == "post" else norm_of(config)
        dense = causal if config.causal else bidirectional
        self.windows = config.windows  # of each block; only causal configurations have some
        self.attention_masks: dict[int | None, AttentionMask] = {
            window: dense if window is None else sliding_window for window in self.windows
        }
        self.layout: Layout = padded  # a plan may replace it

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: NoCache | None = None,
        tokens_read: slice = ALL_TOKENS,
        text_starts: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Maps embeddings ``x`` (B, T, D) to the final hidden states (B, T, D).

        Args:
            x: embeddings of the tokens, without positions.
            mask: (B, T), True for non-padding tokens, padding on either side; None: no padding. Or segment numbers of a
                packed batch, 1, 2, ..., 0 for padding: a token attends to its own text, whose positions begin at 0.
                Or (B, T, T), boolean, True where the first token may attend to the second: the whole mask, in place of
                causality and window. A token to which no token may attend is padding; positions count the others. With
                a cache (B, T, S), over all S tokens so far.
            memory: (B, S, D), the stream that cross-attention attends to.
            memory_mask: (B, S), as ``mask``; or (B, T, S), True where a token may attend to one of the memory.
            cache: keys and values of earlier calls.
            tokens_read: tokens of each sequence, without padding, that the caller reads; a layout may give zeros
                elsewhere.
            text_starts: of a packed batch, the same as ``mask`` says (``heedful.layers.mask.text_starts``): without
                them a layout on a GPU would have to wait for the number of texts.
            segments: (B, T) segments of the tokens, for positions with relative segments; None: all are of one.
        """
        return self.layout(self, StackInput(x, mask, memory, memory_mask, cache, tokens_read, text_starts, segments))

    def self_mask(self, tokens: TokenPositions, window: int | None) -> Mask:
        """Returns the mask of self-attention in the blocks with this window: the caller's if it gave a whole one."""
        if tokens.whole_mask is not None:
            return tokens.whole_mask[:, None]
        return self.attention_masks[window](tokens, window)

    def under_mask(
        self, position: PositionEncoding, tokens: TokenPositions, window: int | None
    ) -> tuple[Mask, PositionEncoding]:
        """Returns the mask and the positions of self-attention in the blocks with this window.

        A bias tensor holds the mask, so that the blocks do not join them again; a registered block gets both.
        """
        mask = self.self_mask(tokens, window)
        if self.config.block != "standard":
            return mask, position
        return position.with_mask(mask, tokens.queries.size(1), tokens.keys.size(1))

    def encoding(self, queries: Tensor, keys: Tensor, segments: Tensor | None = None) -> PositionEncoding:
        """Returns the position encoding of queries at (B or 1, T) and keys at (B or 1, S), for the attention of all
        blocks. Raises ``HeedfulError`` if the position scheme returned something else.

        ``segments`` (B, T) are those of the queries, which are the last of the keys; earlier keys are of segment 0.
        """
        encoding = self.position.prepare(queries, keys)
        if not isinstance(encoding, PositionEncoding):
            name = getattr(self.config.position, "scheme", type(self.position).__name__)
            raise HeedfulError(
                f"position {name!r} returned {type(encoding).__name__} from prepare; return a PositionEncoding, such "
                "as PositionBias(bias)"
            )
        if segments is not None and isinstance(encoding, RelativeEncoding):
            earlier = keys.size(1) - segments.size(1)
            of_keys = F.pad(segments, (earlier, 0)) if earlier else segments
            return RelativeEncoding(encoding.bias.distances, encoding.bias.shared, Segments(segments, of_keys))
        return encoding

    def extra_repr(self) -> str:
        """Returns the layout, if it is not the default."""
        return "" if self.layout is padded else f"layout={getattr(self.layout, '__name__', self.layout)}"


def set_drop_path(model: nn.Module, rate: float) -> None:
    """Sets the rates of stochastic depth in every stack: 0 in the first block, rising linearly to ``rate`` in the last.

    Touvron et al. 2021, table 9. Each sublayer draws its own numbers. Weights, their names and the configuration do
    not change: a saved model does not contain the rates.

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
