"""Losses of the routers of a mixture of experts, which a training loss adds to the loss of the task.

.. math:: L = α E \\sum_e f_e P_e + β \\frac{1}{N} \\sum_n (\\log \\sum_e \\exp l_{ne})^2

f_e is the number of tokens that chose expert e, divided by the number of tokens N, and P_e the mean of its probability,
without padding. The first term makes the experts' shares equal (Fedus et al. 2021, equation 4), the second keeps the
router's logits l small (Zoph et al. 2022, equation 5). The losses of all blocks are added. The tokens of all blocks
together, as transformers counts them, may be spread evenly where those of each block are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from heedful.config import ExpertsConfig
from heedful.layers.experts import Router, RouterLoad

Batch = Mapping[str, Tensor]


def has_experts(model: nn.Module) -> bool:
    """Returns True if a model has a mixture of experts."""
    return bool(_routers(model))


@contextmanager
def recording_routers(model: nn.Module) -> Iterator[Callable[[], Tensor]]:
    """Context manager in which the routers of a model keep what its losses need; yields a function that returns them.

    >>> import heedful
    >>> from dataclasses import replace
    >>> from heedful.config import ExpertsConfig
    >>> config = heedful.presets.get("gpt-micro")
    >>> stack = replace(config.decoder, experts=ExpertsConfig(number=4, per_token=1, balance=1.0))
    >>> model = heedful.create(replace(config, decoder=stack), seed=0)
    >>> with recording_routers(model) as router_loss:
    ...     logits = model(torch.tensor([[5, 7, 9]]))
    >>> bool(router_loss() > 3.9)  # at least 1 for each of four blocks
    True
    """
    loads: list[tuple[ExpertsConfig, list[RouterLoad]]] = []  # of each router
    for router in _routers(model):
        router.loads = []
        loads.append((router.config, router.loads))
    try:
        yield lambda: sum((_loss(config, own) for config, own in loads if own), torch.zeros(()))
    finally:
        for router in _routers(model):
            router.loads = None


def _routers(model: nn.Module) -> list[Router]:
    return [part for part in model.modules() if isinstance(part, Router)]


def _loss(config: ExpertsConfig, loads: list[RouterLoad]) -> Tensor:
    """Returns the losses of a router for the loads of all its calls."""
    load = RouterLoad(*(torch.stack(parts).sum(0) for parts in zip(*loads, strict=True)))
    tokens = load.tokens.clamp(min=1)
    balance = config.number * (load.chosen / tokens * (load.probability / tokens)).sum()
    return config.balance * balance + config.z_loss * load.squared_log_z / tokens


def with_router_loss(
    loss: Callable[[Any, Batch], Tensor], count: Callable[[Batch], int]
) -> Callable[[Any, Batch], Tensor]:
    """Returns a loss that adds the routers' losses to ``loss``, which is summed over ``count`` predictions.

    The routers' losses are means over the tokens of a micro-batch. They are multiplied by its number of predictions, so
    that those of a step are averaged over its micro-batches, on all ranks, by their numbers of predictions.
    """

    def total(model: Any, batch: Batch) -> Tensor:
        with recording_routers(model) as router_loss:
            value = loss(model, batch)
        return value + router_loss().to(value.device) * count(batch)

    return total
