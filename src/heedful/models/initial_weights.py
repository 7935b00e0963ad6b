"""First weights of a model: drawn by the ``init`` of its stacks."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from heedful.config import StackConfig
from heedful.layers.attention import Attention
from heedful.layers.embedding import PatchEmbedding, TokenEmbedding
from heedful.layers.feedforward import FeedForward
from heedful.stack import Stack


def _normal(weight: Tensor, std: float) -> None:
    nn.init.normal_(weight, std=std)


def _truncated(weight: Tensor, std: float) -> None:
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def _xavier(weight: Tensor, std: float) -> None:
    nn.init.xavier_uniform_(weight.view(len(weight), -1))


DRAWS: dict[str, Callable[[Tensor, float], None]] = {
    "normal": _normal,  # N(0, σ²): BERT
    "scaled": _normal,  # the same, but σ/√(2L) for the last map of each sublayer: GPT-2
    "truncated": _truncated,  # N(0, σ²) within ±2σ: ViT, DeiT
    "xavier": _xavier,  # uniform in ±√(6 / (in + out)): the paper's implementation
}


def initialise(model: nn.Module, config: StackConfig) -> None:
    """Initialises the weights of a model: each stack by its own ``init``, the rest by the ``init`` of ``config``.

    Linear maps are initialised by ``DRAWS``, biases are 0; norms keep their ones and zeros. Embeddings are N(0, σ²), or
    N(0, 1/D) if they are multiplied by √D, so that embeddings do not outweigh the positions.
    """
    stacks = [part for part in model.modules() if isinstance(part, Stack)]
    configs = {id(part): stack.config for stack in stacks for part in stack.modules()}

    def draw_part(part: nn.Module) -> None:
        stack = configs.get(id(part), config)
        draw, std = DRAWS[stack.init], stack.init_std
        out_std = std / math.sqrt(2 * stack.depth) if stack.init == "scaled" else std
        if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d):
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
        model.apply(draw_part)  # parts come before their owners, which may draw one of them anew
        for part in model.modules():  # last, since a tied head has drawn the same weights
            if isinstance(part, TokenEmbedding):
                std = config.init_std if part.factor == 1.0 else 1 / part.factor
                nn.init.normal_(part.token.weight, std=std)
                if part.query is not None:
                    nn.init.normal_(part.query, std=std)
