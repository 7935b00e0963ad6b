"""AdamW over a model's parameters, grouped by weight decay and learning rate; optionally lower rates near the input."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from heedful.layers.embedding import PatchEmbedding, TokenEmbedding
from heedful.models import Ensemble, Model
from heedful.stack import Stack

FUSED = {"cpu", "cuda", "mps", "xpu"}  # devices with a fused AdamW in torch 2.11 and later


class EagerOptimiser(torch.optim.Optimizer):
    """PyTorch's optimiser without the wrappers that keep ``torch.compile`` out of its methods.

    At their first call these import the compiler, which takes longer than to import PyTorch. No compiled graph here
    calls an optimiser.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)


class AdamW(EagerOptimiser, torch.optim.AdamW):
    """PyTorch's AdamW, whose first step does not import the compiler either."""

    _step = inspect.unwrap(torch.optim.AdamW.step)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # its overloads
        """Updates the parameters that have a gradient."""
        return self._step(closure)


def adamw(
    model: nn.Module,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-9,
    weight_decay: float = 0.01,
    without: Collection[int] = (),
    rates: Mapping[int, float] = MappingProxyType({}),
) -> AdamW:
    """Returns AdamW (Loshchilov and Hutter, 2019) over the trainable parameters of ``model``, tied parameters once.

    Matrices decay: θ ← θ − lr · weight_decay · θ. Embeddings (an image's class token included) and parameters with one
    dimension (biases, norms) do not: the embedding of a token that a batch lacks has no gradient to balance the decay,
    and neither an embedding nor a norm's weight is a linear map.

    Args:
        model: the model; its parameters with ``requires_grad`` are trained.
        lr: the peak learning rate; a schedule multiplies it.
        betas: decay of the two moments. The defaults of ``betas`` and ``eps`` are those of Vaswani et al. (2017),
            section 5.3.
        eps: number added to the root of the second moment.
        weight_decay: weight decay of the matrices.
        without: parameters that another optimiser trains, by their ``id``.
        rates: factor of ``lr`` for a parameter, by its ``id``; 1 for all others.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    embeddings |= {id(module.prefix) for module in model.modules() if isinstance(module, PatchEmbedding)}
    trainable = [p for p in model.parameters() if p.requires_grad and id(p) not in without]
    decaying = [p for p in trainable if p.ndim >= 2 and id(p) not in embeddings]
    ids = {id(p) for p in decaying}
    others = [p for p in trainable if id(p) not in ids]
    return AdamW(
        [
            *groups_by_rate(decaying, lr, rates, weight_decay=weight_decay),
            *groups_by_rate(others, lr, rates, weight_decay=0.0),
        ],
        lr=lr,
        betas=betas,
        eps=eps,
        fused=all(parameter.device.type in FUSED for parameter in trainable),
    )


def groups_by_rate(
    parameters: Iterable[nn.Parameter], lr: float, rates: Mapping[int, float], **options: float
) -> list[dict[str, Any]]:
    """Returns parameter groups for an optimiser, one for each learning rate, the highest rate first.

    ``rates`` has the factor of ``lr`` for a parameter, by its ``id``, 1 for all others. All groups get ``options``.
    """
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(rates.get(id(parameter), 1.0), []).append(parameter)
    return [{"params": groups[rate], "lr": lr * rate, **options} for rate in sorted(groups, reverse=True)]


OPTIMISERS: dict[str, Callable[..., Any]] = {}  # registered: (model, lr=, weight_decay=) → optimiser


def layer_rates(model: Model, decay: float) -> dict[int, float]:
    """Returns the factor of each parameter's learning rate by the parameter's ``id``, smaller nearer the input.

    A parameter that the result does not contain has the factor 1.

    In a stack of n blocks, block i = 1..n has ``decay`` ^ (n + 1 − i); its embeddings, positions and embedding norm
    have ``decay`` ^ (n + 1), head and final norm 1, as in BEiT's fine-tuning (Bao et al. 2022). ELECTRA's code also
    multiplies by ``decay`` between head and last block (Clark et al. 2020), which this does not. The idea is Howard and
    Ruder's (2018, section 3.2). Encoder and decoder count their own blocks. An embedding tied to the output layer
    counts as an embedding; one that both sides share counts as the encoder's.
    """
    if isinstance(model, Ensemble):
        return {key: factor for member in model.members for key, factor in layer_rates(member, decay).items()}  # type: ignore[arg-type]  # a Model
    factors: list[tuple[nn.Module, float]] = []
    embeddings: list[nn.Module] = []
    for part in model.children():
        if isinstance(part, TokenEmbedding | PatchEmbedding):
            embeddings.append(part)
        elif isinstance(part, Stack):
            count = len(part.block)
            below = (*embeddings, part.position, part.embedding_norm, part.projection)
            factors += [(module, decay ** (count + 1)) for module in below]
            factors += [(block, decay ** (count - index)) for index, block in enumerate(part.block)]
            embeddings = []
    return {id(p): factor for module, factor in factors for p in module.parameters()}
