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
from heedful.inspection.tensor_paths import select_hook_points
from heedful.models import Model
from heedful.util.exact import as_float64


def head_importance(
    model: Model, loss: Callable[[], Tensor], *, signed: bool = False, normalise: bool = False
) -> dict[str, Tensor]:
    """Returns the importance of each head: ``I_h = mean_x |∂L(x)/∂ξ_h|``.

    ξ_h = 1 is a factor on the head's output. Michel, Levy and Neubig 2019, section 4.1; one backward pass.

    Each sequence x of each call has factors ξ of its own, so the gradients of two sequences do not cancel. The
    parameters' own gradients stay as they are; the model runs in evaluation mode, and its mode is restored.

    Args:
        model: a model of any family.
        loss: runs the model, once or several times, and returns a tensor with gradients: the *sum* of its sequences'
            losses (with a mean, every importance is smaller by the same factor).
        signed: return −Σ_x ∂L(x)/∂ξ_h instead: to first order, the increase of the loss when the head is removed.
        normalise: divide the importances of an attention's heads by their Euclidean norm, as the paper does.

    Returns:
        Path of each attention → (H,), float64; on the CPU if the model's device has no float64.

    Raises:
        HeedfulError: for a loss without gradients.

    >>> import heedful
    >>> model, ids = heedful.create("gpt-micro", seed=0), torch.tensor([[1, 2, 3, 4]])
    >>> importance = head_importance(model, lambda: torch.nn.functional.cross_entropy(model(ids)[0, :-1], ids[0, 1:]))
    >>> len(importance), importance["decoder.block.3.attention"].shape
    (4, torch.Size([4]))
    """
    heads = {point.path: point.heads for point in select_hook_points(model, "mixed")}
    gates: dict[str, list[Tensor]] = {path: [] for path in heads}

    def gated(path: str, mixed: Tensor) -> Tensor:
        gates[path].append(mixed.new_ones(*mixed.shape[:2], 1, 1, requires_grad=True))  # (B, H, 1, 1)
        return mixed * gates[path][-1]

    with evaluating(model), torch.inference_mode(False), torch.enable_grad(), ExitStack() as stack:
        for path in heads:
            stack.enter_context(intervene(model, path, partial(gated, path)))
        total = loss()
        flat = [(path, gate) for path, path_gates in gates.items() for gate in path_gates]
        if not isinstance(total, Tensor) or total.numel() != 1 or not total.requires_grad:
            raise HeedfulError(
                "head importance is a gradient, but the loss returned no single number with a "
                "gradient; return a tensor of one element, computed by the model"
            )
        # the list is complete before the backward pass, in which checkpointed parts run again and add gates
        all_gates = [gate for _, gate in flat]
        gradients = torch.autograd.grad(total, all_gates, allow_unused=True, materialize_grads=True)
    importance = {}
    for path in gates:
        rows = [as_float64(gradient).flatten(1) for (p, _), gradient in zip(flat, gradients, strict=True) if p == path]
        unused = torch.zeros(1, heads[path], dtype=torch.float64)  # an attention that never ran
        per_sequence = torch.cat(rows or [unused])  # (sequences of all calls, H)
        value = -per_sequence.sum(0) if signed else per_sequence.abs().mean(0)
        norm = torch.linalg.vector_norm(value) if normalise else value.new_ones(())
        importance[path.removesuffix(".mixed")] = value / norm.where(norm > 0, 1.0)
    return importance


def least_important_heads(importance: Mapping[str, Tensor], count: int, *, together: int = 1) -> dict[str, list[int]]:
    """Returns the ``count`` least important heads of each attention, as ``heedful.inspection.prune`` takes them.

    Args:
        importance: path → (H,), from ``head_importance``, or the change of a loss from ``ablate``.
        count: number of heads to return for each attention.
        together: number of query heads that share a key-value head. Such heads are chosen together, by the sum of their
            importance.

    >>> importance = {"decoder.block.0.attention": torch.tensor([3.0, 1.0, 2.0, 0.0])}
    >>> least_important_heads(importance, 2)
    {'decoder.block.0.attention': [1, 3]}
    >>> least_important_heads(importance, 2, together=2)
    {'decoder.block.0.attention': [2, 3]}
    """
    heads = {}
    for path, values in importance.items():
        if not 0 <= count < len(values) or count % together or len(values) % together:
            raise HeedfulError(
                f"{count} heads of {path} cannot be removed: it has {len(values)} heads in groups of {together}; give "
                "fewer heads, in whole groups"
            )
        order = values.unflatten(0, (-1, together)).sum(1).argsort(stable=True)[: count // together]
        heads[path] = sorted(int(g) * together + i for g in order for i in range(together))
    return heads
