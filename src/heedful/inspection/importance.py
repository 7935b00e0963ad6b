"""Head importance by the gradient of a loss: one backward pass for all heads.

Shapes: B sequences of one call, T tokens, H heads, E head size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.inspection.eval_mode import evaluating
from heedful.inspection.intervene import intervene
from heedful.inspection.tensor_paths import chosen_places
from heedful.models import Model


def head_importance(
    model: Model, loss: Callable[[], Tensor], *, signed: bool = False, normalise: bool = False
) -> dict[str, Tensor]:
    """Importance of each head by one backward pass: I_h = mean_x |∂L(x)/∂ξ_h|, ξ a gate on the head's output, at 1.

    Michel, Levy and Neubig 2019, section 4.1. Each sequence x of each call has gates of its own, so no gradient of one
    cancels another's. The parameters' own gradients stay as they are; the model is evaluated, and left as it was.

    Args:
        model: of any family.
        loss: runs the model, once or several times, and returns a tensor with gradients: the *sum* of its sequences'
            losses (a mean makes every number smaller by the same factor).
        signed: the sum −Σ_x ∂L(x)/∂ξ_h instead: to first order, what the loss gains when the head is silenced.
        normalise: divide by the root of the sum of squares over an attention's heads, as the paper does.

    Returns:
        Path of each attention → (H,), float64.

    Raises:
        HeedfulError: for a loss without gradients.

    >>> import heedful
    >>> model, ids = heedful.create("gpt-micro", seed=0), torch.tensor([[1, 2, 3, 4]])
    >>> found = head_importance(model, lambda: torch.nn.functional.cross_entropy(model(ids)[0, :-1], ids[0, 1:]))
    >>> len(found), found["decoder.block.3.attention"].shape
    (4, torch.Size([4]))
    """
    places = chosen_places(model, "mixed")
    heads = {place.path: place.heads for place in places}
    gates: dict[str, list[Tensor]] = {path: [] for path in heads}

    def gated(path: str, mixed: Tensor) -> Tensor:
        gates[path].append(mixed.new_ones(*mixed.shape[:2], 1, 1, requires_grad=True))  # (B, H, 1, 1)
        return mixed * gates[path][-1]

    with evaluating(model), torch.inference_mode(False), torch.enable_grad(), ExitStack() as stack:
        for place in places:
            stack.enter_context(intervene(model, place.path, partial(gated, place.path)))
        total = loss()
        flat = [(path, gate) for path, own in gates.items() for gate in own]
        if not isinstance(total, Tensor) or total.numel() != 1 or not total.requires_grad:
            raise HeedfulError("importance is a gradient: the loss must return one tensor that carries gradients")
        listed = [gate for _, gate in flat]  # before the backward pass, where checkpointed parts run again
        slopes = torch.autograd.grad(total, listed, allow_unused=True, materialize_grads=True)
    importance = {}
    for path in gates:
        rows = [slope.double().flatten(1) for (own, _), slope in zip(flat, slopes, strict=True) if own == path]
        nothing = torch.zeros(1, heads[path], dtype=torch.float64)  # what never ran is worth nothing
        each = torch.cat(rows or [nothing])  # (sequences of all calls, H)
        value = -each.sum(0) if signed else each.abs().mean(0)
        length = torch.linalg.vector_norm(value) if normalise else value.new_ones(())
        importance[path.removesuffix(".mixed")] = value / length.where(length > 0, 1.0)
    return importance


def weakest(importance: Mapping[str, Tensor], count: int, *, together: int = 1) -> dict[str, list[int]]:
    """The ``count`` least important heads of each attention, as ``heedful.inspection.pruning.prune`` takes them.

    Args:
        importance: path → (H,), as of ``head_importance``, or the change of a loss as of ``ablate``.
        count: how many of each.
        together: query heads that share a key-value head: their importance is summed, and they go together.

    >>> importance = {"decoder.block.0.attention": torch.tensor([3.0, 1.0, 2.0, 0.0])}
    >>> weakest(importance, 2)
    {'decoder.block.0.attention': [1, 3]}
    >>> weakest(importance, 2, together=2)
    {'decoder.block.0.attention': [2, 3]}
    """
    chosen_heads = {}
    for path, values in importance.items():
        if not 0 <= count < len(values) or count % together or len(values) % together:
            raise HeedfulError(
                f"{count} heads of {path} cannot go: it has {len(values)}, in groups of {together}; some must stay"
            )
        order = values.unflatten(0, (-1, together)).sum(1).argsort(stable=True)[: count // together]
        chosen_heads[path] = sorted(int(g) * together + i for g in order for i in range(together))
    return chosen_heads
