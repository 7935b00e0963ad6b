"""The optimiser, and the average of the weights it passes through."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from heedful.errors import HeedfulError

FUSED = {"cpu", "cuda", "mps", "xpu"}  # the devices with a one-pass AdamW in torch 2.11 and later


def adamw(
    model: nn.Module,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-9,
    weight_decay: float = 0.01,
    without: Collection[int] = (),
) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter, 2019) over the trainable parameters of ``model``, tied ones once.

    Matrices decay: θ ← θ − lr · weight_decay · θ. Embeddings and whatever has one dimension (biases, norms) do not: a
    row that a batch does not hold has no gradient to balance the decay, and a norm's weight is a scale, not a map.

    Args:
        model: its parameters with ``requires_grad`` are taken.
        lr: the peak learning rate; a schedule multiplies it.
        betas: decay of the two moments; those of Vaswani et al. (2017), section 5.3, as is ``eps``.
        eps: added to the root of the second moment.
        weight_decay: of the decaying group.
        without: ``id`` of parameters that another optimiser takes.
    """
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    trainable = [parameter for parameter in trainable if id(parameter) not in without]
    kept = [parameter for parameter in trainable if parameter.ndim < 2 or id(parameter) in embedded]
    kept_ids = {id(parameter) for parameter in kept}
    decaying = [parameter for parameter in trainable if id(parameter) not in kept_ids]
    groups = [{"params": decaying, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=lr,
        betas=betas,
        eps=eps,
        fused=all(parameter.device.type in FUSED for parameter in trainable),
    )


class Average:
    """A running average of a model's trainable weights over the later part of training.

    After update t, the average is Σ_s c_s θ_s / Σ_s c_s over s = 1..t with c_s growing as s^γ, kept by
    ā_t = ā_{t−1} + w_t (θ_t − ā_{t−1}),  w_t = (γ + 1) / (γ + t): polynomial-decay averaging (Shamir and Zhang, 2013,
    section 3). The mean age of what is averaged is the share 1 / (γ + 2) of the steps so far, whatever their number,
    so unlike an exponential average nothing has to be fitted to the length of the run.

    The average is held in float32 at least. Buffers (a batch norm's statistics) are not averaged: they stay the
    model's.

    Args:
        model: the model to follow.
        share: the mean age, as a share of the steps so far, above 0 and below ½. The default 0.1 is about the mean age
            in the customary average of the last tenth to fifth of a run's checkpoints.
    """

    def __init__(self, model: nn.Module, *, share: float = 0.1) -> None:
        if not 0 < share < 0.5:
            raise HeedfulError(f"the average's share is {share}; give a number above 0 and below 0.5")
        self.gamma = 1 / share - 2
        self.updates = 0
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.weights = {
            name: p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            for name, p in self._parameters.items()
        }

    @torch.no_grad()
    def update(self) -> None:
        """Take in the model's weights as they are now; called once a step."""
        self.updates += 1
        means = list(self.weights.values())
        now = [p.to(mean.dtype) for p, mean in zip(self._parameters.values(), means, strict=True)]
        torch._foreach_lerp_(means, now, (self.gamma + 1) / (self.gamma + self.updates))

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """While it lasts, the model has the averaged weights; afterwards its own again, bit for bit."""
        own = {name: p.detach().clone() for name, p in self._parameters.items()}
        try:
            self._put(self.weights)
            yield
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, weights: Mapping[str, torch.Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(weights[name])

    def state_dict(self) -> dict[str, Any]:
        """The average and the number of updates in it."""
        return {"gamma": self.gamma, "updates": self.updates, "weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``; a :class:`HeedfulError` if it is of other parameters."""
        shapes = {name: tuple(mean.shape) for name, mean in self.weights.items()}
        if shapes != {name: tuple(mean.shape) for name, mean in state["weights"].items()}:
            raise HeedfulError("the saved average is of another model; resume with the model the run was begun with")
        self.gamma, self.updates = state["gamma"], state["updates"]
        for name, mean in self.weights.items():
            mean.copy_(state["weights"][name])
