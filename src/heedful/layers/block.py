"""Residual and block: the parts of a stack, shared by all families.

Shapes: B sequences, T tokens, S tokens of the memory, D model width. Two attributes hold the reference kernel of a
part, ``Residual.add`` and ``Block.run``. A plan (``heedful.kernels.plan``), the set of kernels that is chosen for a
model, may put faster functions of the same result in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypedDict

from torch import Tensor, nn

from heedful.config import StackConfig
from heedful.errors import HeedfulError
from heedful.layers.attention import NO_ATTENTION_CACHE, Attention, AttentionCache
from heedful.layers.dropout import Dropout, DropPath
from heedful.layers.experts import Expert, Experts
from heedful.layers.feedforward import FEED_FORWARDS, FeedForward
from heedful.layers.mask import Mask, MaskFunction, bidirectional, causal, own_positions, stack_mask
from heedful.layers.norm import NORMS, Identity, LayerScale
from heedful.layers.position import PositionEncoding
from heedful.layers.row_layout import BATCH, RowLayout


def norm_of(config: StackConfig, dim: int | None = None) -> nn.Module:
    """Returns a norm of the kind that the stack's configuration names, of the stack's width or another."""
    options = {} if config.norm_bias else {"bias": False}
    return NORMS[config.norm](dim or config.dim, eps=config.norm_eps, **options)


def feed_forward_of(config: StackConfig) -> nn.Module:
    """Returns the feed-forward network of a stack's blocks: a registered one, ``Experts``, or ``FeedForward``."""
    if config.feed_forward in FEED_FORWARDS:
        return FEED_FORWARDS[config.feed_forward](config)
    make = partial(
        FeedForward if config.experts is None else Expert,
        config.dim,
        config.ff_dim,
        activation=config.activation,
        gated=config.gated,
        bias=config.ff_bias,
        dropout=config.dropout.hidden,
    )
    if config.experts is None:
        return make()
    return Experts(config.dim, config.experts, [make() for _ in range(config.experts.number)])


class AttentionArguments(TypedDict, total=False):
    """Keyword arguments of ``Attention.forward``."""

    source: Tensor | None
    mask: Mask
    position: PositionEncoding | None
    cache: AttentionCache
    rows: RowLayout


Sublayer = Callable[..., Tensor]  # attention or feed-forward
Add = Callable[["Residual", Tensor, Tensor, Tensor | None, Sublayer, Mapping[str, Any]], Tensor]


def every_slot(
    residual: Residual, stream: Tensor, x: Tensor, real: Tensor | None, f: Sublayer, context: Mapping[str, Any]
) -> Tensor:
    """Reference kernel of ``Residual``: calls each of its five modules, those that change nothing too."""
    y = residual.out(f(residual.before(x, real), **context), real)
    return residual.after(stream + residual.drop_path(residual.dropout(y)), real)


class Residual(nn.Module):
    """Residual connection around a sublayer f, with norms: after(x + drop_path(dropout(out(f(before(x)))))).

    Of the three norms, post-norm (Vaswani et al. 2017) has ``after``, pre-norm (Xiong et al. 2020) ``before``, sandwich
    norm (Ding et al. 2021) ``before`` and ``out``, and OLMo 2 (2025) ``out``; the others are identities. Layer scale
    (Touvron et al. 2021b) is an ``out``. ``drop_path`` drops nothing until ``heedful.stack.set_drop_path`` gives it a
    rate.
    """

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.before = norm_of(config) if config.placement in ("pre", "sandwich") else Identity()
        self.out: nn.Module = norm_of(config) if config.placement in ("sandwich", "out") else Identity()
        if config.layer_scale is not None:
            self.out = LayerScale(config.dim, config.layer_scale)
        self.after = norm_of(config) if config.placement == "post" else Identity()
        self.dropout = Dropout(config.dropout.residual)
        self.drop_path = DropPath()
        self.add: Add = every_slot  # the whole computation; a plan may put a faster function in its place

    def forward(
        self, x: Tensor, real: Tensor | None, f: Sublayer, *, stream: Tensor | None = None, **context: Any
    ) -> Tensor:
        """Adds the output of ``f``, called with ``context``, to ``x`` (B, T, D), or to ``stream`` in place of ``x``.

        Only norms over the tokens of a batch, such as batch norm, use ``real`` (B, T), False for padding.
        """
        return self.add(self, x if stream is None else stream, x, real, f, context)  # a function, not a method

    def extra_repr(self) -> str:
        """Returns the kernel, if it is not the default."""
        return "" if self.add is every_slot else f"add={getattr(self.add, '__name__', self.add)}"


class Skip(nn.Module):
    """Residual of an absent sublayer: the identity."""

    def forward(self, x: Tensor, real: Tensor | None, f: Sublayer, **context: Any) -> Tensor:
        """Returns ``x`` unchanged."""
        return x


BlockCall = Callable[..., Tensor]  # (sublayers, *their arguments) → their output


def run_sublayers(sublayers: Callable[..., Tensor], *context: Any) -> Tensor:
    """Reference kernel of ``Block``: calls its sublayers. A plan may recompute their activations, or compile them."""
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
        self.is_parallel = config.sublayers != "sequential"
        if config.sublayers == "parallel-shared":
            self.feed_forward_residual.before = self.attention_residual.before
        self.mask_function: MaskFunction = causal if config.causal else bidirectional
        self.has_window = config.window is not None  # of any block, unless its stack says that it has none
        self.has_experts = config.experts is not None  # whose router counts the non-padding tokens
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
        """Maps ``x`` (B, T, D) to (B, T, D).

        Args:
            x: hidden states.
            real: (B, T), True for non-padding tokens, for norms over the tokens of a batch; None: no padding.
            mask: of self-attention, as in ``Attention.forward``. Without one, the block has the mask that a stack would
                make of ``real``, which may then be any mask of ``Stack.forward``.
            position: what the stack's ``encoding`` returned; required for positions that act in attention.
            memory: (B, S, D), the stream that cross-attention attends to.
            memory_mask: of cross-attention, as in ``Attention.forward``.
            cache: of self-attention and of cross-attention.
            rows: how the tokens lie in memory, as in ``Attention.forward``.
            memory_rows: the same for cross-attention.

        Raises:
            HeedfulError: without a mask that only the stack can make (with a cache, or in a stack with windows), and
                without a memory if the block has cross-attention.
        """
        if memory is None and not isinstance(self.cross_attention, Identity):
            raise HeedfulError("the block has cross-attention, which needs memory; give memory=..., (B, S, D)")
        has_mask = mask is not None or (position is not None and position.has_mask) or rows is not BATCH
        if real is not None and not has_mask:  # called alone: a stack gives a mask, positions that hold it, or rows
            mask = self.mask_without_stack(x, real, cache[0])
        of_layout = (
            () if rows is BATCH and memory_rows is BATCH else (rows, memory_rows)
        )  # else ``sublayers`` of a subclass need not take them
        return self.run(self.sublayers, x, real, mask, position, memory, memory_mask, cache, *of_layout)

    def without_window(self) -> None:
        """Notes that the block has no window, in a stack with windows."""
        self.has_window = False
        self.attention.without_stack = self.attention.without_stack._replace(has_window=False)

    def mask_without_stack(self, x: Tensor, real: Tensor, cache: AttentionCache) -> Mask:
        """Returns the mask that a stack would make of ``real`` for the tokens ``x`` alone. Raises as ``forward``."""
        if cache is not NO_ATTENTION_CACHE or self.has_window:
            raise HeedfulError(
                "the block's mask is known to its stack, which has a cache or windows; give mask, or call the stack"
            )
        return stack_mask(self.mask_function, own_positions(x, real), None)

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
        """Computes self-attention, cross-attention, which has no positions, and feed-forward, in turn or parallel."""
        to_self: AttentionArguments = {"mask": mask, "position": position, "cache": cache[0], "rows": rows}
        to_memory: AttentionArguments = {"source": memory, "mask": memory_mask, "cache": cache[1], "rows": memory_rows}
        y = self.attention_residual(x, real, self.attention, **to_self)
        y = self.cross_residual(y, real, self.cross_attention, **to_memory)
        return self.add_feed_forward(x, y, real)

    def add_feed_forward(self, x: Tensor, y: Tensor, real: Tensor | None) -> Tensor:
        """Adds the feed-forward to ``y``, the attention's output; in parallel it reads the block's input ``x``."""
        to_experts = {"counted": real} if self.has_experts else {}
        source = x if self.is_parallel else y
        return self.feed_forward_residual(source, real, self.feed_forward, stream=y, **to_experts)

    def extra_repr(self) -> str:
        """Returns the kernel, if it is not the default."""
        return "" if self.run is run_sublayers else f"run={getattr(self.run, '__name__', self.run)}"


BlockFactory = Callable[[StackConfig], nn.Module]
BLOCKS: dict[str, BlockFactory] = {}  # registered blocks, which are called as ``Block.forward``
