"""DeBERTa's convolution beside the first block of an encoder.

Shapes: B sequences, T tokens, D model width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.config import StackConfig
from heedful.layers.block import Block, BlockFactory, norm_of
from heedful.layers.dropout import Dropout
from heedful.layers.feedforward import ACTIVATIONS


def first_block_of(config: StackConfig) -> BlockFactory | None:
    """Returns what makes the first block of a stack, if it differs from the others."""
    return None if config.convolution is None else ConvolutionBlock


class Convolution(nn.Module):
    """Convolution beside a block: norm(y + act(dropout(conv(x)))), for the block's input x and output y.

    Of the larger DeBERTa v2 (He et al. 2021), for the n-grams of sub-words. Each token reads the ``size`` tokens around
    it; padding and the tokens of other texts count as zeros.
    """

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        assert config.convolution is not None  # asked by the caller
        self.conv = nn.Conv1d(config.dim, config.dim, config.convolution.size, padding="same")
        self.activation = ACTIVATIONS[config.convolution.activation]
        self.dropout = Dropout(config.dropout.residual)
        self.norm = norm_of(config)

    def forward(self, x: Tensor, y: Tensor, real: Tensor | None) -> Tensor:
        """Returns (B, T, D) from a block's input ``x`` and output ``y``; ``real`` (B, T) as in ``Residual``."""
        return self.norm(y + self.activation(self.dropout(self.convolve(x, real))), real)

    def convolve(self, x: Tensor, real: Tensor | None) -> Tensor:
        """Returns Σ_o W_o x_{t+o} + b (B, T, D) over the offsets o of the tokens of the same text."""
        if real is None:
            return self.conv(x.transpose(1, 2)).transpose(1, 2)
        if real.dtype == torch.bool:
            return self.conv((x * real[..., None]).transpose(1, 2)).transpose(1, 2)
        radius, tokens = self.conv.kernel_size[0] // 2, x.size(1)
        padded_x, texts = F.pad(x, (0, 0, radius, radius)), F.pad(real, (radius, radius))
        assert self.conv.bias is not None  # as made above
        total = self.conv.bias.expand_as(x)
        for offset, weight in enumerate(self.conv.weight.unbind(-1)):
            is_same = texts[:, offset : offset + tokens] == real
            total = total + F.linear(padded_x[:, offset : offset + tokens] * is_same[..., None], weight)
        return total


class ConvolutionBlock(Block):
    """First block of a stack with ``config.convolution``, and the convolution beside it."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__(config)
        self.convolution = Convolution(config)

    def sublayers(self, x: Tensor, real: Tensor | None, *context: Any) -> Tensor:
        """Computes the block, and adds the convolution of its input."""
        return self.convolution(x, super().sublayers(x, real, *context), real)
