"""Arguments of the training loop, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.training.ceiling import Ceiling
from heedful.training.checkpoint import Checkpoints, LoadWeights
from heedful.training.gradient import Batch, as_it_is
from heedful.training.log import Log

if TYPE_CHECKING:
    from heedful.models import Model
    from heedful.training.callbacks import Callbacks
    from heedful.training.loop import Loop
    from heedful.training.schedule import Schedule


class Steps(Protocol):
    """Protocol of a loader, such as :class:`heedful.training.loader.Loader`: yields the batches of each step."""

    @property
    def epochs(self) -> float:
        """Number of epochs yielded so far; it is whole exactly at the end of an epoch."""

    def __next__(self) -> Sequence[Batch]:
        """Returns the micro-batches of the next step, of all ranks; each is created on access."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the data."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a position in the data from :meth:`state_dict`."""


class Optimiser(Protocol):
    """Protocol of an optimiser, such as those of ``torch.optim``."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups, each with its learning rate."""

    def zero_grad(self) -> None:
        """Clears the gradients."""

    def step(self) -> Any:
        """Updates the parameters."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the optimiser's state."""

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Restores a state from :meth:`state_dict`."""


@dataclass(frozen=True)
class Outcome:
    """Result of a training run: its length, its best evaluation, and why it ended."""

    steps: int
    epochs: float
    tokens: int  # or predictions that the loss was summed over, in the whole run
    seconds: float  # of training and evaluating, over all sessions of the run
    best: dict[str, Any] | None  # {"step", "value", "metrics"} of the evaluation whose weights were saved
    highest: int | None  # step of the best value of the metric; it may differ from ``best`` by chance
    met: str  # the limit that ended the run: "max_steps", "max_epochs", "max_minutes" or "patience"
    stopped_because: str  # that, or "already done"


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Loss of a batch, and the number of predictions over which the loss is summed.

    Attributes:
        loss: given model and batch, returns the loss *summed* over the batch's predictions (``Task.objective``).
        count: returns the number of predictions in a batch; called before the batch is moved to the device.
        unit: the unit of ``count``, for the log: "tokens", "examples".
        complete: returns a batch, or a part of it, with what the loss needs besides, before it is moved to the device.
        divisible: False if the loss is no sum over examples: then a batch that does not fit the memory is not split.
    """

    loss: Callable[[nn.Module, Batch], Tensor]
    count: Callable[[Batch], int]
    complete: Callable[[Batch], Batch] = as_it_is
    unit: str = "tokens"
    divisible: bool = True


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Evaluations during a run, and the choice of the best weights.

    Attributes:
        measure: given the number of steps done and a share (0 to 1) of the examples, returns the model's metrics.
        every: steps between evaluations; None: at the end of each epoch. The last step is always evaluated.
        metric: name of the metric that decides which weights are best.
        margin: returns the standard error of that metric in the last evaluation; 0: not known.
        scored: returns the number of examples that this metric is of in the last evaluation; 0: not known.
        patience: the run stops after this number of evaluations without a better metric or a lower loss; None: never.
        latest: every evaluation is better than those before it.
        on_better: called with the metrics while the model has the best weights.
        samples: returns some outputs of the last evaluation, for the log.
    """

    measure: Callable[[int, float], Mapping[str, float] | None]
    every: int | None = None
    metric: str = "loss"
    margin: Callable[[], float] = float
    scored: Callable[[], int] = int
    patience: int | None = None
    latest: bool = False
    on_better: Callable[[Mapping[str, float]], None] = lambda metrics: None
    samples: Callable[[], Sequence[Mapping[str, str]]] = list


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Checkpoints of a run, and how often they are saved.

    Attributes:
        checkpoints: the checkpoints on disk; the run resumes from the newest, if there is one.
        every: steps between checkpoints; None: after each evaluation, and after an epoch if the last checkpoint is a
            minute old. The last step is always saved.
        stored: returns the weights in the folder "last" or "average" of the run.
        on_resume: called with the loop before the first step of a resumed run.
    """

    checkpoints: Checkpoints
    every: int | None = None
    stored: LoadWeights | None = None
    on_resume: Callable[[Loop], None] = lambda loop: None


@dataclass(frozen=True, kw_only=True)
class Logging:
    """Log of a run, and how often it gets a line.

    Attributes:
        log: writes and shows the lines.
        every: steps between lines.
        ceiling: measures the share of the machine's peak; None: not shown.
    """

    log: Log = field(default_factory=partial(Log, quiet=True))
    every: int = 50
    ceiling: Ceiling | None = None


@dataclass(frozen=True, kw_only=True)
class CustomParts:
    """Custom parts of a run, passed from Python in place of the parts that the settings name.

    Attributes:
        optimizer: given the model, returns the optimiser, whose learning rates are the peaks.
        schedule: given the next step (from 1) and the share of the run that is done (None: no limit), returns the
            factor of the learning rates.
        objective: given model and batch, returns the loss summed over the batch's predictions.
        metrics: functions by name: given the outputs and the expected outputs of the validation rows, each returns a
            number.
        callbacks: calls the run's callbacks.
    """

    optimizer: Callable[[Model], Optimiser] | None = None
    schedule: Schedule | None = None
    objective: Callable[[nn.Module, Batch], Tensor] | None = None
    metrics: Mapping[str, Callable[[Sequence[Any], Sequence[Any]], float]] = field(default_factory=dict)
    callbacks: Callbacks | None = None

    def names(self) -> dict[str, str]:
        """Returns the name of each part, for ``heedful.json``: "module.function", or the names of the metrics."""
        parts = {"optimizer": self.optimizer, "schedule": self.schedule, "objective": self.objective}
        names = {name: _name_of(part) for name, part in parts.items() if part is not None}
        return names | ({"metrics": ", ".join(sorted(self.metrics))} if self.metrics else {})

    def create_optimizer(self, model: Model) -> Optimiser:
        """Returns the custom optimiser of the model; raises ``HeedfulError`` if ``optimizer`` does not return one."""
        assert self.optimizer is not None
        example = "optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1)"
        try:
            optimiser = self.optimizer(model)
        except TypeError as error:
            raise HeedfulError(f"optimizer is called with the model ({error}); write {example}") from error
        if not hasattr(optimiser, "param_groups"):
            raise HeedfulError(f"optimizer returned {type(optimiser).__name__}, which is no optimiser; write {example}")
        return optimiser

    def check_resumed(self, folder: str, stored: Mapping[str, str]) -> None:
        """Raises ``HeedfulError`` unless a resumed run has the same custom parts as at its beginning.

        ``stored`` has the names of the parts at the beginning, from ``heedful.json`` in the run's ``folder``.
        """
        given = self.names()
        if missing := sorted(stored.keys() - given.keys()):
            parts = ", ".join(f"{name} ({stored[name]})" for name in missing)
            arguments = ", ".join(f"{name}=..." for name in missing)
            raise HeedfulError(
                f"the run in {folder} has parts that were passed from Python: {parts}; resume it there: "
                f"heedful.train(..., out={folder!r}, resume=True, {arguments})"
            )
        for name in sorted({*stored, *given}):
            if name not in stored:
                raise HeedfulError(
                    f"the run in {folder} began without a custom {name}; resume it without {name}, or train into "
                    "another folder"
                )
            if not _is_same(stored[name], given[name]):
                raise HeedfulError(
                    f"the run in {folder} began with the {name} {stored[name]}, not {given[name]}; pass the same, or "
                    "train into another folder"
                )


def _is_same(first: str, second: str) -> bool:
    """Returns True if two names are of one function, which may have moved from a script or notebook into a module."""
    script = "__main__"
    pairs = ((first, second), (second, first))
    return first == second or any(a.startswith(f"{script}.") and b.endswith(a.removeprefix(script)) for a, b in pairs)


def _name_of(part: object) -> str:
    function = part.func if isinstance(part, partial) else part
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', type(function).__module__)}.{name}"
