"""Layers: building blocks that all families share, each usable alone. A change here changes every model.

norm · feedforward · experts · position · mask · attention · embedding · linear · dropout · block
"""

from heedful.layers.attention import Attention
from heedful.layers.attention_kernels import (
    SoftCappedAttention,
    attention_weights,
    explicit_attention,
    fused_attention,
)
from heedful.layers.embedding import PatchEmbedding, TokenEmbedding
from heedful.layers.experts import Experts
from heedful.layers.feedforward import FeedForward
from heedful.layers.mask import causal_mask, combine, padding_mask, prefix_mask, text_starts, window_mask
from heedful.layers.norm import BatchNorm, LayerNorm, RMSNorm
from heedful.layers.position import (
    Alibi,
    Learned,
    PositionBias,
    PositionEncoding,
    PositionScheme,
    Relative,
    RelativeEncoding,
    Rotary,
    Sinusoidal,
)
from heedful.layers.relative import Distances, RelativeLayer, Terms

__all__ = [
    "Alibi",
    "Attention",
    "BatchNorm",
    "Distances",
    "Experts",
    "FeedForward",
    "LayerNorm",
    "Learned",
    "PatchEmbedding",
    "PositionBias",
    "PositionEncoding",
    "PositionScheme",
    "RMSNorm",
    "Relative",
    "RelativeEncoding",
    "RelativeLayer",
    "Rotary",
    "Sinusoidal",
    "SoftCappedAttention",
    "Terms",
    "TokenEmbedding",
    "attention_weights",
    "causal_mask",
    "combine",
    "explicit_attention",
    "fused_attention",
    "padding_mask",
    "prefix_mask",
    "text_starts",
    "window_mask",
]
