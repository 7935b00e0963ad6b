"""The optimiser."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from heedful.layers import PatchEmbedding

FUSED = {"cpu", "cuda", "mps", "xpu"}  # the devices with a one-pass AdamW in torch 2.11 and later


def adamw(
    model: nn.Module,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-9,
    weight_decay: float = 0.01,
    without: Collection[int] = (),
    rates: Mapping[int, float] = MappingProxyType({}),
) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter, 2019) over the trainable parameters of ``model``, tied ones once.

    Matrices decay: θ ← θ − lr · weight_decay · θ. Embeddings, an image's class token among them, and whatever has one
    dimension (biases, norms) do not: a row that a batch does not hold has no gradient to balance the decay, and a row
    or a norm's weight is no map.

    Args:
        model: its parameters with ``requires_grad`` are taken.
        lr: the peak learning rate; a schedule multiplies it.
        betas: decay of the two moments; those of Vaswani et al. (2017), section 5.3, as is ``eps``.
        eps: added to the root of the second moment.
        weight_decay: of the decaying group.
        without: ``id`` of parameters that another optimiser takes.
        rates: by ``id`` of a parameter, the share of ``lr`` that it learns at; 1 for the others.
    """
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    embedded |= {id(module.prefix) for module in model.modules() if isinstance(module, PatchEmbedding)}
    trainable = [p for p in model.parameters() if p.requires_grad and id(p) not in without]
    decaying = [p for p in trainable if p.ndim >= 2 and id(p) not in embedded]
    ids = {id(p) for p in decaying}
    kept = [p for p in trainable if id(p) not in ids]
    return torch.optim.AdamW(
        [*at_rates(decaying, lr, rates, weight_decay=weight_decay), *at_rates(kept, lr, rates, weight_decay=0.0)],
        lr=lr,
        betas=betas,
        eps=eps,
        fused=all(parameter.device.type in FUSED for parameter in trainable),
    )


def at_rates(
    parameters: Iterable[nn.Parameter], lr: float, rates: Mapping[int, float], **options: float
) -> list[dict[str, Any]]:
    """Groups of ``parameters`` for an optimiser, one a learning rate, the highest first; ``rates`` as for adamw."""
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(rates.get(id(parameter), 1.0), []).append(parameter)
    return [{"params": groups[rate], "lr": lr * rate, **options} for rate in sorted(groups, reverse=True)]
