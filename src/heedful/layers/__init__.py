"""Layers: building blocks that all families share, each usable alone. A change here changes every model.

norm · feedforward · position · mask · attention · embedding · linear · dropout · block
"""

from heedful.layers.attention import Attention
from heedful.layers.attention_kernels import attention_weights, explicit_attention, fused_attention
from heedful.layers.embedding import PatchEmbedding, TokenEmbedding
from heedful.layers.feedforward import FeedForward
from heedful.layers.mask import causal_mask, combine, padding_mask, prefix_mask, text_starts, window_mask
from heedful.layers.norm import BatchNorm, LayerNorm, RMSNorm
from heedful.layers.position import Alibi, Learned, Relative, Rotary, Sinusoidal

__all__ = [
    "Alibi",
    "Attention",
    "BatchNorm",
    "FeedForward",
    "LayerNorm",
    "Learned",
    "PatchEmbedding",
    "RMSNorm",
    "Relative",
    "Rotary",
    "Sinusoidal",
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
