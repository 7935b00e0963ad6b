"""Resolves the settings of a run: given, from a recipe, suggested by the task, limited by the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from heedful import recipes
from heedful.data import Rows
from heedful.errors import HeedfulError
from heedful.kernels.onednn_linear import emulates_bfloat16
from heedful.pretrained.folder import find
from heedful.pretrained.peft import is_adapter
from heedful.settings import ResolvedSettings, RunSettings, Settings, TrainingSettings, key, resolve
from heedful.tasks import defaults, specific_settings
from heedful.tasks.task import Task
from heedful.training.schedule import schedule
from heedful.util.ranks import Ranks

# settings, or beginnings of their names, that a run's folder holds: a resumed run cannot hear others
MADE = (
    "model.",
    "tokenizer.",
    "lora.",
    "image.size",
    "image.channels",
    "pooling.kind",
    "pooling.normalise",
    "data.prefix",
    "data.document_mask",
    "training.shard",
    "training.optimiser",
    "tuning.layer_decay",
)

GIVEN = {"model.class_token": True}  # of these, what there is without a word
# of these, what training alone hears: any run may be told it
LIVE = {"model.drop_path", "model.r_drop", "tokenizer.dropout"}


def check_same(settings: RunSettings, begun: RunSettings) -> None:
    """Refuse what a run that is resumed cannot hear any more: its model, its tokenizer and its adapter are made."""
    if settings.task != begun.task:
        raise HeedfulError(f"the run in {settings.out} is of {begun.task}, not of {settings.task}; resume it as that")
    named = {"recipe": settings.recipe, "preset": settings.preset, "from": settings.start_from}
    asked = {name: value for name, value in (named | _given(settings)).items() if value is not None}
    its = {"recipe": begun.recipe, "preset": begun.preset, "from": begun.start_from} | _given(begun)
    for name, value in asked.items():
        made = name in named or (name.startswith(MADE) and name not in LIVE)
        own = its.get(name, GIVEN.get(name))
        if made and value != own and (value or own):  # false is what there is without it
            was = "without it" if its.get(name) is None else f"with {its[name]}"
            raise HeedfulError(
                f"{_flag(name)} is {value}, but the run in {settings.out} was begun {was}; leave it out, or start a "
                "new run"
            )


def changed(settings: RunSettings, begun: RunSettings) -> list[str]:
    """Returns the settings in which a resumed run differs from before, a line each."""
    its, told = _given(begun), _given(settings).items()
    return [
        f"{_flag(name)} is {_shown(value)} from now on; it was {_shown(its.get(name))}"
        for name, value in told
        if value != its.get(name)
    ]


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else "not given" if value is None else str(value)


def asked_for(kind: type[Task], settings: RunSettings) -> RunSettings:
    """Merges the given settings with their recipe; refuses settings without effect."""
    given = _given(settings)
    idle = [
        _flag(name) for name in given if {name, name.partition(".")[0]} & (specific_settings() - kind.used_settings)
    ]
    if idle:
        raise HeedfulError(f"{', '.join(idle)} has no effect for {kind.name}; leave it out")
    fixed = [_flag(name) for name in given if name.startswith(("model.", "tokenizer.")) and name not in LIVE]
    if settings.start_from and fixed:
        raise HeedfulError(f"--from goes on with a model as it is; leave out {', '.join(fixed)}")
    if settings.recipe is None:
        return settings
    recipe = recipes.get(settings.recipe)
    if recipe.task != kind.name:
        raise HeedfulError(f"the recipe {settings.recipe} is for {recipe.task}, not for {kind.name}; take another")
    fixed_too = ("preset", "model", "tokenizer") if settings.start_from else ()
    told = {name: value for name, value in recipe.settings.items() if name not in fixed_too}
    told |= {"task": settings.task, "train": settings.train, "out": settings.out}
    return resolve(settings, RunSettings.from_dict(told))


def spread(settings: RunSettings, ranks: Ranks, say: Callable[[str], None]) -> RunSettings:
    """The settings for so many processes: a batch a step for each, where no other number is asked for.

    ``training.accumulate`` counts the batches of a step on all of them together, so that their number changes nothing
    in a run. What cannot be shared out is refused.
    """
    training = settings.training
    if training.shard:
        if ranks.size == 1 and not settings.resume:
            raise HeedfulError(
                "--training.shard shares the weights among processes, and there is one; start more: torchrun "
                "--nproc-per-node 2 -m heedful train ..., or leave it out"
            )
        for flag, asked, because in (
            ("--training.record-attention", training.record_attention, "looks at whole weights"),
            ("--averaging.last", settings.averaging.last, "keeps whole weights"),
        ):
            if asked:
                raise HeedfulError(f"{flag} {because}, and with --training.shard no process has them; leave one out")
    if training.accumulate is None and ranks.size > 1:
        return replace(settings, training=replace(training, accumulate=ranks.size))
    idle = ranks.size - (training.accumulate or ranks.size)
    if idle > 0:
        say(f"! a step of --training.accumulate {training.accumulate} leaves {idle} of {ranks.size} processes idle")
    return settings


def suggested_for(kind: type[Task], rows: Rows, settings: RunSettings) -> RunSettings:
    """What the task suggests; for an adapter a higher learning rate, and the adapter's own defaults. A number of steps
    that is asked for, or that a recipe tells, stands in place of the epochs that are suggested, as an
    average that is asked for does in place of the suggested one.
    """
    suggested = kind.suggested_settings(rows, settings)
    if settings.max_steps is not None:
        suggested = replace(suggested, max_epochs=None)
    if settings.averaging.ema or settings.averaging.last:
        suggested = replace(suggested, averaging=replace(suggested.averaging, polynomial=None))
    rank, lr = settings.lora.rank, suggested.training.lr
    if rank is not None:
        suggested = replace(suggested, lora=defaults.lora(settings.lora, rank))
    elif not settings.start_from or not is_adapter(find(settings.start_from)):
        return suggested
    return replace(
        suggested, training=replace(suggested.training, lr=None if lr is None else defaults.LORA_LR_FACTOR * lr)
    )


def resolved(
    kind: type[Task],
    rows: Rows,
    settings: RunSettings,
    device: torch.device,
    say: Callable[[str], None] = lambda line: None,
) -> ResolvedSettings:
    """Returns the settings of a run: each option as it was set, else as the data suggests, else as the machine does.

    Training, planning and ``heedful audit`` all resolve their settings here. ``say`` takes warnings.
    """
    return settled(resolve(settings, suggested_for(kind, rows, settings)), device, say)


def settled(
    settings: RunSettings, device: torch.device, say: Callable[[str], None] = lambda line: None
) -> ResolvedSettings:
    """Adds what the machine decides: bf16 pays on a GPU, on a CPU only for wide models, and costs where the machine has
    no instructions for it, of which ``say`` is told.

    Raises:
        HeedfulError: an option that the schedule does not have, several averages, or an option without a value.
    """
    has_bf16 = device.type == "cuda" and not emulates_bfloat16(device)
    machine = TrainingSettings(
        precision="bf16" if has_bf16 else "fp32", optimiser="adamw", threads=torch.get_num_threads()
    )
    settings = ResolvedSettings.of(resolve(settings, replace(settings, training=machine)))
    training = settings.training
    _check_one_average(settings)
    schedule(
        training.schedule, training.warmup, training.min_lr_ratio, training.decay_ratio
    )  # raises for options it does not have
    if training.precision == "bf16" and emulates_bfloat16(device):
        say("! --training.precision bf16: this machine has no instructions for it, many times slower; take fp32")
    return settings


def _check_one_average(settings: RunSettings) -> None:
    averages = {
        "--averaging.polynomial": settings.averaging.polynomial,
        "--averaging.ema": settings.averaging.ema,
        "--averaging.last": settings.averaging.last,
    }
    given = [flag for flag, value in averages.items() if value]
    if len(given) > 1:
        raise HeedfulError(f"{' and '.join(given)} are averages of the same weights; give one, or 0 for the rest")


def _given(settings: RunSettings) -> dict[str, Any]:
    """Returns the settings given in the sections, by key: "model.dim", ..."""
    return {
        key(type(section), name): value
        for section in vars(settings).values()
        if isinstance(section, Settings)
        for name, value in section.given().items()
        if value != getattr(type(section)(), name)
    }


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
