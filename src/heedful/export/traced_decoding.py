"""Models for a tracer that runs them once: masks and positions come from tensors, and a cache is inputs and outputs.

A traced graph repeats the operations of the example, so nothing here may depend on a size as a number of Python.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.cache import StackCache
from heedful.config import StackConfig
from heedful.export.traceable import Traceable
from heedful.kernels.plan import Plan
from heedful.layers.attention import NO_ATTENTION_CACHE, AttentionCache, KeysValues, Project
from heedful.layers.mask import Mask, TokenPositions, add_bias, token_positions
from heedful.models import Decoder, EncoderDecoder, Model
from heedful.stack import Stack, StackInput, padded


def tensor_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float, dropout: float = 0.0
) -> Tensor:
    """Attention as one operation, with a tensor as mask and with keys repeated for the query heads that share them."""
    assert not isinstance(mask, str)  # the layout below makes tensors
    group = q.size(1) // k.size(1)
    if group > 1:
        k, v = (x[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2) for x in (k, v))
    tensor = mask if bias is None else add_bias(mask, bias, q.size(2), k.size(2))
    return F.scaled_dot_product_attention(q, k, v, tensor, scale=scale)


class Past(AttentionCache):
    """Keys and values of earlier tokens, (B, K, P, E) each, to which one call appends its own."""

    def __init__(self, past: KeysValues) -> None:
        self.pair = past

    def update(self, project: Project) -> KeysValues:
        """Returns the keys and values of all tokens."""
        (old_k, old_v), (k, v) = self.pair, project()
        self.pair = torch.cat((old_k, k), 2), torch.cat((old_v, v), 2)
        return self.pair


class TracedCache(StackCache):
    """Positions and masks from ``real`` (B, S), True for the non-padding ones of all tokens so far.

    Args:
        real: mask of all tokens, or None: the tokens of the call, none of which is padding.
        past: keys and values of earlier tokens, of each block; None: the call's tokens are all tokens.
        config: configuration of the stack.
    """

    def __init__(self, config: StackConfig, real: Tensor | None, past: Sequence[KeysValues] | None = None) -> None:
        self.config, self.real = config, real
        self.past = None if past is None else [Past(pair) for pair in past]

    def layers(self, depth: int) -> Sequence[tuple[AttentionCache, AttentionCache]]:
        """Returns a pair of caches, of self-attention and of cross-attention, for each block."""
        caches: Sequence[AttentionCache] = self.past or [NO_ATTENTION_CACHE] * depth
        return [(cache, NO_ATTENTION_CACHE) for cache in caches]

    def extend(self, x: Tensor, real: Tensor | None) -> TokenPositions:
        """Returns the positions of the tokens ``x`` (B, T, D), the last of all tokens."""
        new, mine = x.size(1), self.real
        if mine is None and not self.config.causal:
            positions = torch.arange(new, device=x.device)[None]
            return TokenPositions(positions, positions, None, end=1)
        mine = torch.ones_like(x[..., 0], dtype=torch.bool) if mine is None else mine
        positions = token_positions(mine)
        tokens = TokenPositions(positions[:, -new:], positions, mine, end=1)
        if not self.config.causal:
            return tokens
        by_window = {
            window: tokens._replace(whole_mask=self._causal_mask(mine, positions, new, window))
            for window in dict.fromkeys(self.config.windows)
        }
        return TokenPositions.joined(by_window)

    def _causal_mask(self, real: Tensor, positions: Tensor, new: int, window: int | None) -> Tensor:
        """Returns the mask (B, T, S) of the last ``new`` tokens; each attends to itself, also if it is padding.

        Padding that attends to nothing would be NaN, which other tokens would read with weight 0.
        """
        columns = torch.arange(real.size(1), device=real.device)
        queries = columns[-new:, None]
        allowed = (columns <= queries) & real[:, None, :]
        if window is not None:
            allowed = allowed & (positions[:, None, :] > positions[:, -new:, None] - window)
        return allowed | (columns == queries)


def traced_layout(stack: Stack, batch: StackInput) -> Tensor:
    """Runs a stack with a ``TracedCache``, which it makes if the caller gives none."""
    cache = batch.cache or TracedCache(stack.config, None if batch.mask is None else batch.mask.bool())
    return padded(stack, batch._replace(cache=cache))


TRACED = Plan("traced", attend=tensor_attention, layout=traced_layout)


class Traced(Traceable):
    """Part of a model under the plan ``TRACED``."""

    def __init__(self, model: Model) -> None:
        super().__init__(model, TRACED)


class TracedSource(Traced):
    """Encoder of an encoder-decoder."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Returns the final hidden states of the source, (B, S, D)."""
        assert isinstance(self.model, EncoderDecoder)
        return self.model.encode(input_ids, attention_mask.bool())


class TracedDecoder(Traced):
    """Decoder with its cache: logits of the new tokens, then keys and values of all tokens, block by block.

    ``beam_idx`` (B,) are the rows of the cache to continue: beams in a new order, or 0, 1, 2, ...
    """

    def forward(self, input_ids: Tensor, attention_mask: Tensor, beam_idx: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        """Returns logits (B, T, V) and the cache, (B, K, S, E) each; ``attention_mask`` (B, S) is of all tokens."""
        model = self.model
        assert isinstance(model, Decoder)
        cache = TracedCache(model.config.decoder, attention_mask.bool(), pairs(past, beam_idx))
        return model.output(model.hidden(input_ids, cache=cache)), *cache_tensors(cache)


class TracedTarget(Traced):
    """Decoder of an encoder-decoder with its cache: as ``TracedDecoder``, with the source's hidden states.

    Keys and values of the source are computed in each call.
    """

    def forward(
        self, input_ids: Tensor, memory: Tensor, memory_mask: Tensor, beam_idx: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        """Returns the output of the head for ids (B, T), and the cache."""
        model = self.model
        assert isinstance(model, EncoderDecoder)
        rows = pairs(past, beam_idx)
        old, new = rows[0][0][:, 0, :, 0], input_ids
        real = torch.cat([torch.ones_like(tokens, dtype=torch.bool) for tokens in (old, new)], 1)  # (B, S): no padding
        cache = TracedCache(model.config.decoder, real, rows)
        hidden = model.decode(input_ids, memory, memory_mask=memory_mask.bool(), cache=cache)
        return model.output(hidden), *cache_tensors(cache)


def pairs(past: Sequence[Tensor], rows: Tensor) -> list[KeysValues]:
    """Returns the cache's ``rows`` as keys and values of each block."""
    chosen = [tensor[rows] for tensor in past]
    return list(zip(chosen[::2], chosen[1::2], strict=True))


def cache_tensors(cache: TracedCache) -> list[Tensor]:
    """Returns the keys and values of a cache, block by block."""
    return [tensor for layer in cache.past or () for tensor in layer.pair]


def cache_names(config: StackConfig, word: str) -> list[str]:
    """Returns the names of the cache's tensors, as Optimum names them.

    >>> cache_names(StackConfig(dim=8, depth=1, heads=2, causal=True), "past_key_values")
    ['past_key_values.0.key', 'past_key_values.0.value']
    """
    return [f"{word}.{block}.{kind}" for block in range(config.depth) for kind in ("key", "value")]


def empty_shape(config: StackConfig) -> tuple[int, int]:
    """Returns the key-value heads K and the head size E of a cache."""
    return config.kv_heads or config.heads, config.head_dim or config.dim // config.heads
