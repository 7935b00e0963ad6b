"""What several tasks do alike: a preset with a person's changes, rows of ids as a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from heedful.config import Dropout, StackConfig
from heedful.settings import ModelSettings

IGNORED = -100  # the label of padding


def changed(stack: StackConfig, model: ModelSettings, depth: int | None) -> StackConfig:
    """The stack with the settings' changes; a new width keeps the ratio of the feed-forward's."""
    given = {name: value for name, value in model.given().items() if name in ("heads", "kv_heads", "activation")}
    dim = model.dim or stack.dim
    dropout = stack.dropout
    if model.dropout is not None:
        dropout = Dropout(embedding=model.dropout, residual=model.dropout)
    return replace(
        stack,
        dim=dim,
        depth=depth or model.depth or stack.depth,
        ff_dim=model.ff_dim or (stack.ff_dim or 4 * stack.dim) * dim // stack.dim,
        dropout=dropout,
        **given,
    )


def padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Rows of unequal length as one (B, longest) int64 tensor, ``value`` after their ends."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows], dtype=torch.long)
