"""Positions: their similarity, the rows added to embeddings, the bias added to scores.

Shapes: P positions, D model width, H heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError, nearest
from heedful.inspection.embedding_space import similarity
from heedful.layers.position import Alibi, Learned, Relative, Rotary, Sinusoidal
from heedful.stack import Stack

LENGTH = 64  # positions, where nothing says how many there are


def position_similarity(model: nn.Module, length: int | None = None, stack: str | None = None) -> Tensor:
    """Similarity of a model's positions: (P, P), 1 on the diagonal.

    Learned and sinusoidal positions: the cosine of their rows. Rotary positions have no rows: it is the mean over the
    pairs i of a head of cos((p − q) θ_i), the cosine of a vector turned by p with itself turned by q, if all its pairs
    are of one length. ALiBi and T5's relative positions are no vectors either: see ``position_bias``.

    Args:
        model: with one stack, or several.
        length: how many positions from the first; by default all learned ones, or 64.
        stack: "encoder" or "decoder"; needed where there are both.

    Raises:
        HeedfulError: for positions that have nothing to compare, or fewer of them than asked for.

    >>> import heedful
    >>> position_similarity(heedful.create("gpt-micro", seed=0), 10).shape
    torch.Size([10, 10])
    """
    position = _stack(model, stack).position
    if isinstance(position, Rotary):
        steps = torch.arange(_length(length, None), device=position.frequencies.device).double()
        apart = (steps[:, None] - steps)[..., None] * position.frequencies.double()
        return apart.cos().mean(-1).float()
    return similarity(position_table(model, length, stack))


def position_table(model: nn.Module, length: int | None = None, stack: str | None = None) -> Tensor:
    """The rows that are added to the embeddings, position 0 first: (P, D). Arguments as of ``position_similarity``.

    >>> import heedful
    >>> position_table(heedful.create("transformer-tiny"), 3, "encoder").shape
    torch.Size([3, 128])
    """
    found = _stack(model, stack)
    position = found.position
    if not isinstance(position, Learned | Sinusoidal):
        kind = found.config.position.kind
        raise HeedfulError(f"{kind!r} positions add no rows to the embeddings; only learned and sinusoidal ones do")
    count = _length(length, position.length if isinstance(position, Learned) else None)
    places = torch.arange(count, device=_device(found))[None]
    nothing = torch.zeros(1, count, found.config.dim, dtype=torch.float32, device=places.device)
    return position.embed(nothing, places)[0].detach()


def position_bias(model: nn.Module, length: int = 64, stack: str | None = None) -> Tensor:
    """Position bias added to the scores before the softmax, of ALiBi and T5's table: (H, P, P), rows the queries.

    >>> import heedful
    >>> position_bias(heedful.create(heedful.presets.t5(16, 2, 4, 24), seed=0), 5, "encoder").shape
    torch.Size([4, 5, 5])
    """
    found = _stack(model, stack)
    position = found.position
    if not isinstance(position, Alibi | Relative):
        kind = found.config.position.kind
        raise HeedfulError(f"{kind!r} positions add nothing to the scores; only alibi and relative ones do")
    places = torch.arange(_length(length, None), device=_device(found))[None]
    bias = position.prepare(places, places).join(None)
    assert isinstance(bias, Tensor)
    return bias[0].detach()


def _stack(model: nn.Module, name: str | None) -> Stack:
    """The model's stack, or that of this name."""
    stacks = {path: part for path, part in model.named_modules() if isinstance(part, Stack)}
    if name is None and len(stacks) == 1:
        return next(iter(stacks.values()))
    if name is None:
        said = f"the model has {len(stacks)} stacks; say which one: stack={' or '.join(map(repr, stacks))}"
        raise HeedfulError(said if stacks else "the module has no stack of blocks; give a model of heedful")
    if name not in stacks:
        raise HeedfulError(f"the model has no stack {name!r}; {nearest(name, stacks)}")
    return stacks[name]


def _length(asked: int | None, limit: int | None) -> int:
    """Number of positions: as requested, or all that are learned, or 64."""
    length = (limit or LENGTH) if asked is None else asked
    if length < 1 or (limit is not None and length > limit):
        most = "1 or more" if limit is None else f"from 1 to the {limit} that are learned"
        raise HeedfulError(f"{length} positions are asked for; give {most}")
    return length


def _device(stack: Stack) -> torch.device:
    return next(stack.parameters()).device
