"""Residual, block and stack, shared by all families, and weight initialisation.

Shapes: B sequences, T tokens of this call, S tokens so far, D model width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from heedful.cache import NoCache, Seen
from heedful.config import StackConfig
from heedful.layers import mask as masks
from heedful.layers.attention import NOTHING, Attention, Remembered
from heedful.layers.dropout import Dropout, DropPath
from heedful.layers.embedding import PatchEmbedding, TokenEmbedding
from heedful.layers.feedforward import FeedForward
from heedful.layers.mask import Mask
from heedful.layers.norm import NORMS, Identity
from heedful.layers.position import Place, position_of

NO_CACHE = NoCache()
ALL_TOKENS = slice(None)


def norm_of(config: StackConfig) -> nn.Module:
    """The stack's kind of norm."""
    return NORMS[config.norm](config.dim, eps=config.norm_eps)


Sublayer = Callable[..., Tensor]  # attention or feed-forward
Add = Callable[["Residual", Tensor, Tensor | None, Sublayer, Mapping[str, Any]], Tensor]


def every_slot(residual: Residual, x: Tensor, real: Tensor | None, f: Sublayer, context: Mapping[str, Any]) -> Tensor:
    """after(x + drop_path(dropout(out(f(before(x)))))), with a call of every slot, empty ones too."""
    y = residual.out(f(residual.before(x, real), **context), real)
    return residual.after(x + residual.drop_path(residual.dropout(y)), real)


class Residual(nn.Module):
    """after(x + drop_path(dropout(out(f(before(x)))))): pre-, post- and sandwich-norm only fill different slots.

    Post-norm: Vaswani et al. 2017; pre-norm: Xiong et al. 2020; sandwich: Ding et al. 2021. An absent norm is an
    identity, and ``drop_path`` drops nothing until ``set_drop_path`` gives it a rate.
    """

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        slots = {"pre": ("before",), "post": ("after",), "sandwich": ("before", "out")}[config.placement]
        self.before, self.out, self.after = (
            norm_of(config) if slot in slots else Identity() for slot in ("before", "out", "after")
        )
        self.dropout = Dropout(config.dropout.residual)
        self.drop_path = DropPath()
        self.add: Add = every_slot  # or what a plan chooses: heedful.kernels.plan

    def forward(self, x: Tensor, real: Tensor | None, f: Sublayer, **context: Any) -> Tensor:
        """``x`` (B, T, D) with what ``f`` adds to it; ``real`` (B, T) is for batch norm."""
        return self.add(self, x, real, f, context)

    def extra_repr(self) -> str:
        """Implementation of the sum, where another than the default is set."""
        return "" if self.add is every_slot else f"add={getattr(self.add, '__name__', self.add)}"


class Skip(nn.Module):
    """The residual of a part that is not there."""

    def forward(self, x: Tensor, real: Tensor | None, f: Sublayer, **context: Any) -> Tensor:
        """``x`` as it came."""
        return x


Run = Callable[..., Tensor]  # a block's sublayers and their arguments → what they return


def called(sublayers: Callable[..., Tensor], *context: Any) -> Tensor:
    """Runs the sublayers of a block and keeps their activations for the backward pass."""
    return sublayers(*context)


class Block(nn.Module):
    """Self-attention, cross-attention where the config says ``cross``, feed-forward, each in its residual.

    >>> import torch
    >>> from heedful.config import StackConfig
    >>> Block(StackConfig(dim=16, depth=1, heads=4))(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.attention = Attention.of(config)
        self.attention_residual = Residual(config)
        self.cross_attention = Attention.of(config) if config.cross else Identity()
        self.cross_residual = Residual(config) if config.cross else Skip()
        self.feed_forward = FeedForward(
            config.dim,
            config.ff_dim,
            activation=config.activation,
            gated=config.gated,
            bias=config.ff_bias,
            dropout=config.dropout.hidden,
        )
        self.feed_forward_residual = Residual(config)
        self.run: Run = called  # or what a plan chooses: heedful.kernels.plan

    def forward(
        self,
        x: Tensor,
        real: Tensor | None = None,
        *,
        mask: Mask = None,
        position: Place | None = None,
        memory: Tensor | None = None,
        memory_mask: Mask = None,
        cache: tuple[Remembered, Remembered] = (NOTHING, NOTHING),
    ) -> Tensor:
        """``x`` (B, T, D) → (B, T, D), under attention's ``mask``, with ``memory`` (B, S, D) for cross-attention."""
        return self.run(self.sublayers, x, real, mask, position, memory, memory_mask, cache)

    def sublayers(
        self,
        x: Tensor,
        real: Tensor | None,
        mask: Mask,
        position: Place | None,
        memory: Tensor | None,
        memory_mask: Mask,
        cache: tuple[Remembered, Remembered],
    ) -> Tensor:
        """Each part in its residual, one after the other."""
        own, cross = cache
        x = self.attention_residual(x, real, self.attention, mask=mask, position=position, cache=own)
        x = self.cross_residual(x, real, self.cross_attention, source=memory, mask=memory_mask, cache=cross)
        return self.feed_forward_residual(x, real, self.feed_forward)

    def extra_repr(self) -> str:
        """Implementation of the sublayers, where another than the default is set."""
        return "" if self.run is called else f"run={getattr(self.run, '__name__', self.run)}"


def full_mask(seen: Seen, config: StackConfig) -> Mask:
    """All real tokens."""
    return None if seen.real is None else seen.mask(seen.real)


def causal_mask(seen: Seen, config: StackConfig) -> Mask:
    """Real tokens up to the query's own."""
    if seen.real is None:
        return "causal" if seen.queries.size(1) > 1 else None  # the last token sees every other
    return masks.causal_mask(seen.queries.size(1), seen.keys.size(1), seen.real.device) & seen.mask(seen.real)


def window_mask(seen: Seen, config: StackConfig) -> Mask:
    """Real tokens up to the query's own, no more than ``window`` of them."""
    near = masks.window_mask(seen.queries, seen.keys, config.window or 0)
    near = near & masks.causal_mask(seen.queries.size(1), seen.keys.size(1), near.device)
    return near if seen.real is None else near & seen.mask(seen.real)


class StackInput(NamedTuple):
    """Arguments of a call of a stack, as ``Stack.forward`` describes them."""

    x: Tensor
    mask: Tensor | None = None
    memory: Tensor | None = None
    memory_mask: Tensor | None = None
    cache: NoCache | None = None
    tokens_read: slice = ALL_TOKENS


class Layout(Protocol):
    """Runs a stack over a batch: padded as it came, or with the padding left out (``heedful.kernels``)."""

    def __call__(self, stack: Stack, batch: StackInput) -> Tensor:
        """The hidden stream (B, T, D)."""


def padded(stack: Stack, batch: StackInput) -> Tensor:
    """Computes every token of the batch, padding too: the reference layout."""
    x, mask, memory, memory_mask, cache, _ = batch
    cache = cache or NO_CACHE
    seen = cache.see(x, mask)
    x = stack.position.embed(x, seen.queries, seen.end)
    x = stack.dropout(stack.embedding_norm(x, mask))
    place = stack.position.prepare(seen.queries, seen.keys)
    visible = place.join(stack.visible(seen, stack.config))
    memory_visible = None if memory_mask is None else seen.mask(memory_mask)
    for block, remembered in zip(stack.block, cache.layers(len(stack.block)), strict=True):
        x = block(
            x,
            mask,
            mask=visible,
            position=place,
            memory=memory,
            memory_mask=memory_visible,
            cache=remembered,
        )
    return stack.norm(x, mask)


class Stack(nn.Module):
    """Positions, embedding norm and dropout, ``depth`` blocks, and a final norm exactly where blocks begin with one.

    >>> import torch
    >>> from heedful.config import StackConfig
    >>> stack = Stack(StackConfig(dim=16, depth=2, heads=4, causal=True))
    >>> stack(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.config = config
        self.position = position_of(config)
        self.embedding_norm = norm_of(config) if config.embedding_norm else Identity()
        self.dropout = Dropout(config.dropout.embedding)
        self.block = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = Identity() if config.placement == "post" else norm_of(config)
        self.visible = {(False, False): full_mask, (True, False): causal_mask, (True, True): window_mask}[
            config.causal, config.window is not None
        ]
        self.layout: Layout = padded  # or what a plan chooses: heedful.kernels.plan

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: NoCache | None = None,
        tokens_read: slice = ALL_TOKENS,
    ) -> Tensor:
        """Embeddings ``x`` (B, T, D) → hidden stream (B, T, D).

        ``mask`` (B, T) and ``memory_mask`` (B, S) are True for real tokens, None when all are; either side may be
        padded. Or they number the texts packed in a row, 1, 2, ..., and 0 is padding: a token attends to its own text,
        and positions count from its beginning. ``memory`` (B, S, D) is what cross-attention looks at; ``cache``
        remembers earlier calls. ``tokens_read`` says which real tokens of each sequence the caller reads: a layout may
        give zeros at all others.
        """
        return self.layout(self, StackInput(x, mask, memory, memory_mask, cache, tokens_read))

    def extra_repr(self) -> str:
        """The layout, where it is not the padded one."""
        return "" if self.layout is padded else f"layout={getattr(self.layout, '__name__', self.layout)}"


def set_drop_path(model: nn.Module, rate: float) -> None:
    """Sets the rates of stochastic depth in every stack: 0 in the first block, rising linearly to ``rate`` in the last.

    Touvron et al. 2021, table 9. Each sublayer draws for itself. Weights, their names and the configuration stay as
    they are: a saved model does not mention it.

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


# ------------------------------------------------------------------------------------------------------- first weights


def _normal(weight: Tensor, std: float) -> None:
    nn.init.normal_(weight, std=std)


def _truncated(weight: Tensor, std: float) -> None:
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def _xavier(weight: Tensor, std: float) -> None:
    nn.init.xavier_uniform_(weight.view(len(weight), -1))


DRAWS: dict[str, Callable[[Tensor, float], None]] = {
    "normal": _normal,  # N(0, σ²): BERT
    "scaled": _normal,  # the same, and σ/√(2L) where a sublayer writes to the stream: GPT-2
    "truncated": _truncated,  # N(0, σ²) within ±2σ: ViT, DeiT
    "xavier": _xavier,  # uniform in ±√(6 / (in + out)): the paper's implementation
}


def initialise(model: nn.Module, config: StackConfig) -> None:
    """Fresh weights for a whole model: each stack by the table of its own ``init``, the rest by ``config``'s.

    Linear maps are drawn from the table, biases are 0, norms are (1, 0). Embeddings are N(0, σ²), and N(0, 1/D) where
    they are multiplied by √D, which would otherwise drown the positions.
    """
    own = {id(part): stack.config for stack in model.modules() if isinstance(stack, Stack) for part in stack.modules()}

    def fresh(part: nn.Module) -> None:
        table = own.get(id(part), config)
        draw, std = DRAWS[table.init], table.init_std
        out_std = std / math.sqrt(2 * table.depth) if table.init == "scaled" else std
        if isinstance(part, nn.Linear | nn.Conv2d):
            draw(part.weight, std)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, std=std)
        elif isinstance(part, PatchEmbedding) and part.prefix is not None:
            nn.init.trunc_normal_(part.prefix, std=std)
        elif isinstance(part, Attention):
            draw(part.out.weight, out_std)
        elif isinstance(part, FeedForward):
            draw(part.down.weight, out_std)

    with torch.no_grad():
        model.apply(fresh)  # parts first, so that a whole may draw one of its parts anew
        for part in model.modules():  # last, since a tied head drew the same weights as if they were its own
            if isinstance(part, TokenEmbedding):
                nn.init.normal_(part.token.weight, std=config.init_std if part.factor == 1.0 else 1 / part.factor)
