"""Resolved settings of a run, in which None has a meaning of its own instead of *auto*."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_type_hints

from heedful.errors import HeedfulError
from heedful.settings.base import Settings, key
from heedful.settings.sections import AveragingSettings, RunSettings, TrainingSettings, TuningSettings
from heedful.util.values import fits


@dataclass(frozen=True, kw_only=True)
class Resolved(Settings):
    """Base of resolved settings, in which None has a meaning of its own; each class says which.

    Unset options with a fixed default (``defaults``) have it here. ``unset`` names them, and ``run.toml`` and
    ``heedful.json`` have no value for them.
    """

    defaults: ClassVar[Mapping[str, Any]] = {}
    unset: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings, **sections: Settings) -> Self:
        """Returns the resolved form of ``settings``, with the resolved ``sections``.

        Raises:
            HeedfulError: a required option has no value.
        """
        values = {**vars(settings), **sections}
        unset = tuple(name for name in cls.defaults if values[name] is None)
        values |= {name: cls.defaults[name] for name in unset}
        hints = get_type_hints(cls)
        for name, value in values.items():
            if value is None and not fits(None, hints[name]):
                raise HeedfulError(
                    f"--{key(cls, name).replace('_', '-')} is not set, and this task has no default for it; give it"
                )
        return cls(**values, unset=unset)

    def given(self) -> dict[str, Any]:
        """Returns the options that ``run.toml`` holds, by name."""
        return {name: value for name, value in super().given().items() if name not in ("unset", *self.unset)}

    def to_dict(self) -> dict[str, Any]:
        """Returns nested dictionaries, lists and scalars, as ``heedful.json`` holds them; None for unset options."""
        values = super().to_dict()
        del values["unset"]
        return values | dict.fromkeys(self.unset)


@dataclass(frozen=True, kw_only=True)
class ResolvedTraining(Resolved, TrainingSettings):
    """Resolved training settings of a run.

    None means: ``min_lr_ratio``, ``decay_ratio``: the schedule's own value; ``batch_tokens`` or ``batch_size``: no such
    limit (one of them is set); ``evaluate_every``: at the end of each epoch; ``evaluate_examples``: all;
    ``planned_steps``: none planned; ``replanned``: they stay; ``save_every``: after evaluations and epochs;
    ``keep_checkpoints``: 1, or 0 where patience ends the run.
    """

    defaults: ClassVar[Mapping[str, Any]] = {
        "skip_spikes": 0.0,
        "tf32": False,
        "kernels": "auto",
        "compile": False,
        "gradient_checkpointing": False,
        "shard": False,
        "report": (),
        "profile": False,
        "record_attention": (),
    }

    optimiser: str
    lr: float
    schedule: str
    warmup: int
    accumulate: int
    label_smoothing: float
    clip: float
    skip_spikes: float
    weight_decay: float
    betas: tuple[float, float]
    eps: float
    precision: Literal["fp32", "bf16"]
    tf32: bool
    kernels: Literal["auto", "plain"]
    compile: bool
    gradient_checkpointing: bool
    shard: bool
    patience: int
    log_every: int
    threads: int
    report: tuple[str, ...]
    profile: bool
    record_attention: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_tokens is None and self.batch_size is None:
            raise HeedfulError("no batch size is set; give --training.batch-tokens or --training.batch-size")

    def token_budget(self, longest: int) -> int:
        """Returns the maximum tokens of a batch whose longest example has ``longest`` tokens."""
        return self.batch_tokens if self.batch_tokens is not None else (self.batch_size or 1) * longest


@dataclass(frozen=True, kw_only=True)
class ResolvedAveraging(Resolved, AveragingSettings):
    """Resolved averaging of a run: at most one option is not 0."""

    defaults: ClassVar[Mapping[str, Any]] = {"polynomial": 0.0, "ema": 0.0, "last": 0}

    polynomial: float
    ema: float
    last: int


@dataclass(frozen=True, kw_only=True)
class ResolvedTuning(Resolved, TuningSettings):
    """Resolved fine-tuning settings of a run."""

    defaults: ClassVar[Mapping[str, Any]] = {"layer_decay": 1.0}

    layer_decay: float


@dataclass(frozen=True, kw_only=True)
class ResolvedSettings(Resolved, RunSettings):
    """Resolved settings of a run: as given, else from its recipe, else from the data, else from the machine.

    None means: ``valid``: a part of ``train``; ``recipe``, ``preset``, ``start_from``: none; ``max_steps``,
    ``max_epochs``, ``max_minutes``: no such limit; ``device``: the best there is. In the sections of the data and the
    model None means the default of the task, the preset or the model folder; ``lora.rank``: no adapter.
    """

    defaults: ClassVar[Mapping[str, Any]] = {"seed": 0, "deterministic": False}

    seed: int
    deterministic: bool
    training: ResolvedTraining
    averaging: ResolvedAveraging
    tuning: ResolvedTuning

    @classmethod
    def of(cls, settings: RunSettings) -> Self:  # type: ignore[override]  # the sections are those of the settings
        """Returns the resolved form of ``settings`` and of its sections."""
        return super().of(
            settings,
            training=ResolvedTraining.of(settings.training),
            averaging=ResolvedAveraging.of(settings.averaging),
            tuning=ResolvedTuning.of(settings.tuning),
        )
