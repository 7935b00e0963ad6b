"""Averages of the weights that the optimiser passes through."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError


class Average(ABC):
    """An average of a model's trainable weights over training; what it averages, its subclasses say.

    It is held in float32 at least. Buffers (a batch norm's statistics) are not averaged: they stay the model's.
    """

    kind: ClassVar[str]

    def __init__(self, model: nn.Module) -> None:
        self.updates = 0
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}

    @property
    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """The average, by the names of the parameters."""

    @abstractmethod
    def update(self) -> None:
        """Take note of the model's weights as they are now; called once a step."""

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
    def _put(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(weights[name])

    def _now(self) -> dict[str, Tensor]:
        return {
            name: p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            for name, p in self._parameters.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for :meth:`load_state_dict`."""
        return {"kind": self.kind, "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``; a :class:`HeedfulError` if it is of another kind or of other parameters.

        How the average is made (its share, decay or number) stays as given now.
        """
        if state["kind"] != self.kind:
            raise HeedfulError(
                f"the saved average is another ({state['kind']}, not {self.kind}); resume with the average the run "
                "started with"
            )
        self.updates = state["updates"]

    def _check(self, weights: Mapping[str, Tensor]) -> None:
        shapes = {name: tuple(p.shape) for name, p in self._parameters.items()}
        if shapes != {name: tuple(mean.shape) for name, mean in weights.items()}:
            raise HeedfulError("the saved average is of another model; resume with the model that the run started with")


class _Running(Average):
    """ā_t = ā_{t−1} + w_t (θ_t − ā_{t−1}) after update t, counted from 1."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._weights = self._now()

    @property
    def weights(self) -> dict[str, Tensor]:
        """ā, by the names of the parameters."""
        return self._weights

    @abstractmethod
    def pull(self) -> float:
        """w_t."""

    @torch.no_grad()
    def update(self) -> None:
        """Take in the model's weights as they are now; called once a step."""
        self.updates += 1
        means = list(self._weights.values())
        now = [p.to(mean.dtype) for p, mean in zip(self._parameters.values(), means, strict=True)]
        torch._foreach_lerp_(means, now, self.pull())

    def state_dict(self) -> dict[str, Any]:
        """The average and the number of updates in it."""
        return {**super().state_dict(), "weights": self._weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``: see :meth:`Average.load_state_dict`."""
        super().load_state_dict(state)
        self._check(state["weights"])
        for name, mean in self._weights.items():
            mean.copy_(state["weights"][name])


class Polynomial(_Running):
    """A running average over the later part of training, whatever its length.

    After update t, the average is Σ_s c_s θ_s / Σ_s c_s over s = 1..t with c_s growing as s^γ, kept by
    w_t = (γ + 1) / (γ + t): polynomial-decay averaging (Shamir and Zhang, 2013, section 3). The mean age of what is
    averaged is the share 1 / (γ + 2) of the steps so far, so unlike an exponential average nothing has to be fitted to
    the length of the run.

    Args:
        model: the model to follow.
        share: the mean age, as a share of the steps so far, above 0 and below ½. The default 0.1 is about the mean age
            in the customary average of the last tenth to fifth of a run's checkpoints.
    """

    kind = "polynomial"

    def __init__(self, model: nn.Module, *, share: float = 0.1) -> None:
        if not 0 < share < 0.5:
            raise HeedfulError(f"the average's share is {share}; give a number above 0 and below 0.5")
        super().__init__(model)
        self.gamma = 1 / share - 2

    def pull(self) -> float:
        """(γ + 1) / (γ + t): 1 at the first update."""
        return (self.gamma + 1) / (self.gamma + self.updates)


class Exponential(_Running):
    """An exponential moving average (Polyak and Juditsky, 1992, made to forget): w_t = 1 − min(d, (1 + t) / (10 + t)).

    Its mean age is about 1 / (1 − d) steps. The second term is the customary warm-up of the decay, 8,990 steps for
    d = 0.999: until it is over, the mean age is about a tenth of the steps so far, as :class:`Polynomial`'s is.

    Args:
        model: the model to follow.
        decay: d, above 0 and below 1.
    """

    kind = "exponential"

    def __init__(self, model: nn.Module, *, decay: float = 0.999) -> None:
        if not 0 < decay < 1:
            raise HeedfulError(f"the average's decay is {decay}; give a number above 0 and below 1")
        super().__init__(model)
        self.decay = decay

    def pull(self) -> float:
        """1 − min(d, (1 + t) / (10 + t))."""
        return 1 - min(self.decay, (1 + self.updates) / (10 + self.updates))


class Last(Average):
    """The mean of the weights at the last ``most`` evaluations (Vaswani et al., 2017, section 6.1: the last 5 or 20).

    The weights are taken where they are first swapped after a step, which is at each evaluation. Up to ``most`` copies
    of them are held beside the model, and in its checkpoint.

    Args:
        model: the model to follow.
        most: evaluations to average, at least 2.
    """

    kind = "last"

    def __init__(self, model: nn.Module, *, most: int = 5) -> None:
        if most < 2:
            raise HeedfulError(f"the average of the last {most} evaluations is none; give a whole number above 1")
        super().__init__(model)
        self.most = most
        self._taken = 0  # the update after which the last one was taken
        self._kept: list[dict[str, Tensor]] = []

    def update(self) -> None:
        """Count the step."""
        self.updates += 1

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """While it lasts, the model has the averaged weights, those of now among them; afterwards its own again."""
        if not self._kept or self._taken != self.updates:
            self._kept = [*self._kept, self._now()][-self.most :]
            self._taken = self.updates
        with super().swapped():
            yield

    @property
    def weights(self) -> dict[str, Tensor]:
        """The mean of what was taken, by the names of the parameters."""
        first, *others = (list(one.values()) for one in self._kept)
        means = torch._foreach_div(first, len(self._kept))
        for other in others:
            torch._foreach_add_(means, other, alpha=1 / len(self._kept))
        return dict(zip(self._parameters, means, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """The weights of the last evaluations."""
        return {**super().state_dict(), "taken": self._taken, "kept": self._kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``: see :meth:`Average.load_state_dict`."""
        super().load_state_dict(state)
        for one in state["kept"]:
            self._check(one)
        self._taken = state["taken"]
        self._kept = [{name: mean.copy_(one[name]) for name, mean in self._now().items()} for one in state["kept"]]


def average_of(model: nn.Module, *, polynomial: float = 0.0, ema: float = 0.0, last: int = 0) -> Average | None:
    """Returns the average of one of the settings that is not 0, or None: ``polynomial`` is the mean age, ``ema`` the
    decay, ``last`` the number of evaluations.
    """
    if ema:
        return Exponential(model, decay=ema)
    if last:
        return Last(model, most=last)
    return Polynomial(model, share=polynomial) if polynomial else None
