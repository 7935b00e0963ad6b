"""Positions: their similarity, the rows added to embeddings, the bias added to scores.

Shapes: P positions, D model width, H heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError, nearest
from heedful.inspection.embedding_space import cosine_similarity
from heedful.layers.position import Learned, Rotary, Sinusoidal
from heedful.layers.relative import SharedTerms
from heedful.stack import Stack
from heedful.util.exact import as_float64

LENGTH = 64  # positions by default, of schemes without a fixed number


def position_similarity(model: nn.Module, length: int | None = None, stack: str | None = None) -> Tensor:
    """Returns the similarity of a model's positions: (P, P), 1 on the diagonal.

    Learned and sinusoidal positions: the cosine of their rows. Rotary positions have no rows: the mean over the pairs i
    of a head of cos((p − q) θ_i), which is the cosine of a vector rotated by p with itself rotated by q, if all its
    pairs have the same length. ALiBi and T5's relative positions have no vectors at all: see ``position_bias``.

    Args:
        model: a model with position vectors.
        length: number P of positions, from position 0; by default all learned positions, or 64 of other schemes.
        stack: "encoder" or "decoder"; required for a model with both.

    Raises:
        HeedfulError: for a scheme without vectors, or a ``length`` above the number of learned positions.

    >>> import heedful
    >>> position_similarity(heedful.create("gpt-micro", seed=0), 10).shape
    torch.Size([10, 10])
    """
    position = _stack(model, stack).position
    if isinstance(position, Rotary):
        positions = as_float64(torch.arange(_length(length, None), device=position.frequencies.device))
        angles = (positions[:, None] - positions)[..., None] * as_float64(position.frequencies)
        return angles.cos().mean(-1).float().to(position.frequencies.device)
    return cosine_similarity(position_table(model, length, stack))


def position_table(model: nn.Module, length: int | None = None, stack: str | None = None) -> Tensor:
    """Returns the rows (P, D) that are added to the embeddings, position 0 first.

    The arguments are those of ``position_similarity``.

    >>> import heedful
    >>> position_table(heedful.create("transformer-tiny"), 3, "encoder").shape
    torch.Size([3, 128])
    """
    module = _stack(model, stack)
    position = module.position
    if not isinstance(position, Learned | Sinusoidal):
        kind = module.config.position.kind
        raise HeedfulError(f"{kind!r} positions add no rows to the embeddings; use learned or sinusoidal positions")
    count = _length(length, position.length if isinstance(position, Learned) else None)
    positions = torch.arange(count, device=_device(module))[None]
    zeros = torch.zeros(1, count, module.config.width, dtype=torch.float32, device=positions.device)
    return position.embed(zeros, positions)[0].detach()


def position_bias(model: nn.Module, length: int = 64, stack: str | None = None) -> Tensor:
    """Returns the bias that ALiBi, T5's table or a scheme of one's own adds to the scores before the softmax.

    The bias is (H, P, P), rows the queries. The arguments are those of ``position_similarity``, but ``length`` is 64 by
    default. Raises ``HeedfulError`` for positions without a bias.

    >>> import heedful
    >>> position_bias(heedful.create(heedful.presets.t5(16, 2, 4, 24), seed=0), 5, "encoder").shape
    torch.Size([4, 5, 5])
    """
    module = _stack(model, stack)
    positions = torch.arange(_length(length, None), device=_device(module))[None]
    bias = module.encoding(positions, positions).bias
    kind = module.config.position.kind
    if isinstance(bias, SharedTerms):
        raise HeedfulError(f"{kind!r} positions add to the scores what queries and keys decide; record 'c2p' and 'p2c'")
    if bias is None:
        raise HeedfulError(f"{kind!r} positions add nothing to the scores; use alibi or relative positions")
    return bias[0].detach()


def _stack(model: nn.Module, name: str | None) -> Stack:
    """Returns the model's only stack, or the stack ``name``."""
    stacks = {path: part for path, part in model.named_modules() if isinstance(part, Stack)}
    if name is None and len(stacks) == 1:
        return next(iter(stacks.values()))
    if name is None:
        if not stacks:
            raise HeedfulError("the module has no stack of blocks; give a model of heedful")
        raise HeedfulError(f"the model has {len(stacks)} stacks; give stack={' or '.join(map(repr, stacks))}")
    if name not in stacks:
        raise HeedfulError(f"the model has no stack {name!r}; {nearest(name, stacks)}")
    return stacks[name]


def _length(length: int | None, learned: int | None) -> int:
    """Returns the number of positions: ``length``, or by default all learned positions, or 64."""
    if length is None:
        return learned or LENGTH
    if length < 1 or (learned is not None and length > learned):
        valid = "1 or more" if learned is None else f"from 1 to the {learned} that are learned"
        raise HeedfulError(f"length is {length}; give {valid}")
    return length


def _device(stack: Stack) -> torch.device:
    return next(stack.parameters()).device
