"""Averages of the weights over training: polynomial, exponential, and of the last evaluations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError


class Average(ABC):
    """Base class of averages of a model's trainable weights over training.

    Averages are in float32 or a wider type. Buffers (a batch norm's statistics) are not averaged.
    """

    kind: ClassVar[str]

    def __init__(self, model: nn.Module) -> None:
        self.updates = 0
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}

    @property
    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """The averaged weights by parameter name."""

    @abstractmethod
    def update(self) -> None:
        """Updates the average with the model's current weights; called once a step."""

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Context manager that puts the averaged weights into the model; its end restores the model's own."""
        own_weights = {name: p.detach().clone() for name, p in self._parameters.items()}
        try:
            self._set_weights(self.weights)
            yield
        finally:
            self._set_weights(own_weights)

    @torch.no_grad()
    def _set_weights(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(weights[name])

    def _copy_of_weights(self) -> dict[str, Tensor]:
        return {
            name: p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            for name, p in self._parameters.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the average, for a checkpoint; :meth:`load_state_dict` restores it."""
        return {"kind": self.kind, "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a ``state`` from :meth:`state_dict`; the options (share, decay or number) stay those of this object.

        Raises:
            HeedfulError: the state comes from another kind of average or from other parameters.
        """
        if state["kind"] != self.kind:
            raise HeedfulError(
                f"the checkpoint holds averages of kind {state['kind']}, not {self.kind}; resume with the --averaging "
                "options that the run started with"
            )
        self.updates = state["updates"]

    def _check(self, weights: Mapping[str, Tensor]) -> None:
        shapes = {name: tuple(p.shape) for name, p in self._parameters.items()}
        if shapes != {name: tuple(mean.shape) for name, mean in weights.items()}:
            raise HeedfulError(
                "the averaged weights in the checkpoint do not fit this model; resume with the model that the run "
                "started with"
            )


class _Running(Average):
    """Running average ā of the weights θ: ā_t = ā_{t−1} + w_t (θ_t − ā_{t−1}) at update t, counted from 1."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._weights = self._copy_of_weights()

    @property
    def weights(self) -> dict[str, Tensor]:
        """The averaged weights ā by parameter name."""
        return self._weights

    @abstractmethod
    def weight_of_update(self) -> float:
        """Returns w_t, the share of the current weights in the average after this update, the t-th."""

    @torch.no_grad()
    def update(self) -> None:
        """Updates ā with the model's current weights; called once a step."""
        self.updates += 1
        means = list(self._weights.values())
        now = [p.to(mean.dtype) for p, mean in zip(self._parameters.values(), means, strict=True)]
        torch._foreach_lerp_(means, now, self.weight_of_update())

    def state_dict(self) -> dict[str, Any]:
        """Returns the averaged weights and the number of updates."""
        return {**super().state_dict(), "weights": self._weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a ``state`` from :meth:`state_dict`; errors are those of :meth:`Average.load_state_dict`."""
        super().load_state_dict(state)
        self._check(state["weights"])
        for name, mean in self._weights.items():
            mean.copy_(state["weights"][name])


class Polynomial(_Running):
    """Running average over the later part of training, whatever the length of the run.

    After update t, the average is Σ_s c_s θ_s / Σ_s c_s over s = 1..t with c_s growing as s^γ, computed with
    w_t = (γ + 1) / (γ + t): polynomial-decay averaging (Shamir and Zhang, 2013, section 3). The mean age of the
    averaged weights is the share 1 / (γ + 2) of the steps so far. Unlike the decay of an exponential average, the
    share need not be adapted to the length of the run.

    Args:
        model: the model whose weights are averaged.
        share: the mean age, as a share of the steps so far, above 0 and below ½. The default 0.1 is about the mean age
            in the customary average of the last tenth to fifth of a run's checkpoints.
    """

    kind = "polynomial"

    def __init__(self, model: nn.Module, *, share: float = 0.1) -> None:
        if not 0 < share < 0.5:
            raise HeedfulError(
                f"the average's share is {share} (--averaging.polynomial); give a number above 0 and below 0.5"
            )
        super().__init__(model)
        self.gamma = 1 / share - 2

    def weight_of_update(self) -> float:
        """Returns (γ + 1) / (γ + t): 1 at the first update."""
        return (self.gamma + 1) / (self.gamma + self.updates)


class Exponential(_Running):
    """Exponential moving average ā of the weights θ (after Polyak and Juditsky, 1992).

    ā_t = ā_{t−1} + w_t (θ_t − ā_{t−1}) with w_t = 1 − min(d, (1 + t) / (10 + t)). The mean age of the averaged weights
    is about 1 / (1 − d) steps. The fraction (1 + t) / (10 + t) is the customary warm-up of the decay. This warm-up
    lasts 8,990 steps for d = 0.999; until then the mean age is about a tenth of the steps so far, as in
    :class:`Polynomial`.

    Args:
        model: the model whose weights are averaged.
        decay: d, above 0 and below 1.
    """

    kind = "exponential"

    def __init__(self, model: nn.Module, *, decay: float = 0.999) -> None:
        if not 0 < decay < 1:
            raise HeedfulError(f"the average's decay is {decay} (--averaging.ema); give a number above 0 and below 1")
        super().__init__(model)
        self.decay = decay

    def weight_of_update(self) -> float:
        """Returns 1 − min(d, (1 + t) / (10 + t))."""
        return 1 - min(self.decay, (1 + self.updates) / (10 + self.updates))


class Last(Average):
    """Mean of the weights at the last ``most`` evaluations (Vaswani et al., 2017, section 6.1: the last 5 or 20).

    Weights are copied when :meth:`swapped` is first entered after a step, that is, at each evaluation. Memory and
    checkpoint hold up to ``most`` copies.

    Args:
        model: the model whose weights are averaged.
        most: number of evaluations to average, at least 2.
    """

    kind = "last"

    def __init__(self, model: nn.Module, *, most: int = 5) -> None:
        if most < 2:
            raise HeedfulError(
                f"the number of evaluations to average is {most} (--averaging.last); give a whole number above 1"
            )
        super().__init__(model)
        self.most = most
        self._copied_after = 0  # number of updates at the last copy
        self._copies: list[dict[str, Tensor]] = []

    def update(self) -> None:
        """Counts a step; the weights are copied at evaluations only."""
        self.updates += 1

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Context manager that adds the current weights to the mean, once a step, and puts the mean into the model."""
        if not self._copies or self._copied_after != self.updates:
            self._copies = [*self._copies, self._copy_of_weights()][-self.most :]
            self._copied_after = self.updates
        with super().swapped():
            yield

    @property
    def weights(self) -> dict[str, Tensor]:
        """The mean of the copies by parameter name."""
        first, *others = (list(copy.values()) for copy in self._copies)
        means = torch._foreach_div(first, len(self._copies))
        for other in others:
            torch._foreach_add_(means, other, alpha=1 / len(self._copies))
        return dict(zip(self._parameters, means, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Returns the copies of the weights and the number of updates."""
        return {**super().state_dict(), "taken": self._copied_after, "kept": self._copies}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a ``state`` from :meth:`state_dict`; errors are those of :meth:`Average.load_state_dict`."""
        super().load_state_dict(state)
        copies = state["kept"]
        for weights in copies:
            self._check(weights)
        self._copied_after = state["taken"]
        self._copies = [
            {name: p.copy_(weights[name]) for name, p in self._copy_of_weights().items()} for weights in copies
        ]


def create_average(model: nn.Module, *, polynomial: float = 0.0, ema: float = 0.0, last: int = 0) -> Average | None:
    """Returns the average of ``model``'s weights that is chosen by the option that is not 0; None if all are 0.

    ``polynomial`` is the mean age as a share of the steps, ``ema`` the decay, ``last`` the number of evaluations.
    """
    if ema:
        return Exponential(model, decay=ema)
    if last:
        return Last(model, most=last)
    return Polynomial(model, share=polynomial) if polynomial else None
