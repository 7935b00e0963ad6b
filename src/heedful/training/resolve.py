"""Resolves the settings of a run: given, from a recipe, suggested by the task, limited by the machine.

Also compares the settings of a resumed run with the settings it started with: refuses changes that its model cannot
take (``check_resumed``), and lists all others (``changed_settings``).
"""

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
from heedful.tasks import defaults, idle_settings, no_effect, uses
from heedful.tasks.task import Task
from heedful.training.schedule import schedule
from heedful.util.ranks import Ranks

# Settings, or prefixes of their names, that the model, tokenizer and optimiser in a run's folder fix: a resumed run
# cannot change them.
FIXED = (
    "model.",
    "tokenizer.",
    "lora.",
    "image.size",
    "image.channels",
    "masking.objective",
    "masking.generator",
    "pooling.kind",
    "pooling.normalise",
    "data.prefix",
    "data.source_language",
    "data.target_language",
    "data.document_mask",
    "training.shard",
    "training.optimiser",
    "tuning.layer_decay",
)

ONLY_FIRST = ("unlabelled", "teacher")  # that a resumed run cannot change either
DEFAULTS = {"model.class_token": True}  # of fixed settings, where it is not False or None
REGULARISATION = {"model.drop_path", "model.r_drop", "tokenizer.dropout"}  # fixed by prefix, but any run may change it
FINE_TUNED = REGULARISATION | {"model.head", "tokenizer.chat_template"}  # that a fine-tuned model may have


def check_resumed(settings: RunSettings, first: RunSettings) -> None:
    """Raises ``HeedfulError`` for a setting that a resumed run cannot change.

    ``first`` are the settings with which the run started.
    """
    if settings.task != first.task:
        raise HeedfulError(
            f"the run in {settings.out} trains for {first.task}, not for {settings.task}; give another --out, or "
            f"resume it with: heedful train {first.task}"
        )
    named: dict[str, Any] = {"recipe": settings.recipe, "preset": settings.preset, "from": settings.start_from}
    named |= {name: value for name in ONLY_FIRST if (value := getattr(settings, name)) is not None}
    given = {name: value for name, value in (named | _given(settings)).items() if value is not None}
    before = {"recipe": first.recipe, "preset": first.preset, "from": first.start_from} | _given(first)
    before |= {name: getattr(first, name) for name in ONLY_FIRST}
    for name, value in given.items():
        is_fixed = name in named or (name.startswith(FIXED) and name not in REGULARISATION)
        old = before.get(name, DEFAULTS.get(name))
        if is_fixed and value != old and (value or old):  # False and None mean the same
            was = "without it" if before.get(name) is None else f"with {before[name]}"
            raise HeedfulError(
                f"{_flag(name)} is {value}, but the run in {settings.out} was started {was}; leave it out, or start a "
                "new run"
            )


def changed_settings(settings: RunSettings, first: RunSettings) -> list[str]:
    """Returns a line for people for each setting that a resumed run changes."""
    before = _given(first)
    return [
        f"{_flag(name)} is {_shown(value)} from now on; it was {_shown(before.get(name))}"
        for name, value in _given(settings).items()
        if value != before.get(name)
    ]


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else "not given" if value is None else str(value)


def with_recipe(kind: type[Task], settings: RunSettings) -> RunSettings:
    """Returns the given settings, completed by those of their recipe.

    Raises ``HeedfulError`` for a setting that has no effect on the task ``kind``, and for a recipe of another task.
    """
    given = _given(settings)
    if idle := idle_settings(kind, given):
        raise no_effect(kind, idle)
    for name in ONLY_FIRST:
        if getattr(settings, name) and not uses(kind.name, name):
            raise HeedfulError(f"--{name} has no effect for {kind.name}; leave it out")
    fixed = [_flag(name) for name in given if name.startswith(("model.", "tokenizer.")) and name not in FINE_TUNED]
    if settings.start_from and fixed:
        raise HeedfulError(f"--from keeps the sizes and the tokenizer of its model; remove {', '.join(fixed)}")
    if settings.recipe is None:
        return settings
    recipe = recipes.get(settings.recipe)
    if recipe.task != kind.name:
        raise HeedfulError(
            f"the recipe {settings.recipe} is for {recipe.task}, not for {kind.name}; choose another recipe"
        )
    of_the_model = ("preset", "model", "tokenizer") if settings.start_from else ()
    values = {name: value for name, value in recipe.settings.items() if name not in of_the_model}
    values |= {"task": settings.task, "train": settings.train, "out": settings.out}
    return resolve(settings, RunSettings.from_dict(values))


def for_ranks(settings: RunSettings, ranks: Ranks, say: Callable[[str], None]) -> RunSettings:
    """Returns the settings for several processes: by default each has one micro-batch a step.

    ``training.accumulate`` counts the micro-batches of a step over all ranks, so their number does not change a run.
    ``say`` is called with a warning if ranks are idle.

    Raises:
        HeedfulError: ``training.shard`` with one process, or with an option that needs whole weights.
    """
    training = settings.training
    if training.shard:
        if ranks.size == 1 and not settings.resume:
            raise HeedfulError(
                "--training.shard shards the weights over several processes, but there is only one; start more: "
                "torchrun --nproc-per-node 2 -m heedful train ..., or leave --training.shard out"
            )
        need_whole_weights = {
            "--training.record-attention": training.record_attention,
            "--averaging.last": settings.averaging.last,
        }
        for flag, value in need_whole_weights.items():
            if value:
                raise HeedfulError(
                    f"{flag} needs all weights in one process, but --training.shard divides them; give only one of the "
                    "two"
                )
    if training.accumulate is None and ranks.size > 1:
        return replace(settings, training=replace(training, accumulate=ranks.size))
    idle = ranks.size - (training.accumulate or ranks.size)
    if idle > 0:
        say(
            f"! --training.accumulate {training.accumulate} leaves {idle} of {ranks.size} processes idle; give at "
            f"least {ranks.size}, or start fewer processes"
        )
    return settings


def suggested(kind: type[Task], rows: Rows, settings: RunSettings) -> RunSettings:
    """Returns the settings that the task suggests for its rows; the learning rate of an adapter is higher.

    A given ``max_steps`` or ``max_minutes`` replaces the suggested number of epochs, and a given average of weights the
    suggested average. Raises ``HeedfulError`` for a setting that has no effect on the variant ``kind``.
    """
    if idle := idle_settings(kind, (name for name, value in _given(settings).items() if value)):
        raise no_effect(kind, idle)
    by_task = kind.suggested_settings(rows, settings)
    if settings.max_steps is not None or settings.max_minutes is not None:
        by_task = replace(by_task, max_epochs=None)
    if settings.averaging.ema or settings.averaging.last:
        by_task = replace(by_task, averaging=replace(by_task.averaging, polynomial=None))
    rank, lr = settings.lora.rank, by_task.training.lr
    if rank is not None:
        by_task = replace(by_task, lora=defaults.lora(settings.lora, rank))
    elif settings.resume or not settings.start_from or not is_adapter(find(settings.start_from)):
        return by_task
    return replace(by_task, training=replace(by_task.training, lr=None if lr is None else defaults.LORA_LR_FACTOR * lr))


def resolved(
    kind: type[Task],
    rows: Rows,
    settings: RunSettings,
    device: torch.device,
    say: Callable[[str], None] = lambda line: None,
) -> ResolvedSettings:
    """Returns all settings of a run: each option as given, else as the task suggests, else as suits the machine.

    Training, planning and ``heedful audit`` all use this function. ``say`` is called with each warning.
    """
    return with_machine(resolve(settings, suggested(kind, rows, settings)), device, say)


def with_machine(
    settings: RunSettings, device: torch.device, say: Callable[[str], None] = lambda line: None
) -> ResolvedSettings:
    """Returns the settings with the machine's precision and number of threads; checks options against each other.

    The default precision is bf16 on a GPU that has instructions for bfloat16, else fp32: on a CPU bf16 is faster only
    for wide models. Float32 products on an NVIDIA GPU are rounded to TF32 by default. ``say`` is called with a warning
    if bf16 is given and the machine has no instructions for it, or TF32 and the device is no NVIDIA GPU.

    Raises:
        HeedfulError: an option that the schedule does not have, several averages, or an option without a value.
    """
    has_bf16 = device.type == "cuda" and not emulates_bfloat16(device)
    machine = TrainingSettings(
        precision="bf16" if has_bf16 else "fp32",
        tf32=device.type == "cuda",
        optimiser="adamw",
        threads=torch.get_num_threads(),
    )
    settings = ResolvedSettings.of(resolve(settings, replace(settings, training=machine)))
    training = settings.training
    _check_one_average(settings)
    schedule(
        training.schedule, training.warmup, training.min_lr_ratio, training.decay_ratio
    )  # raises for options it does not have
    if training.precision == "bf16" and emulates_bfloat16(device):
        say("! --training.precision bf16 is many times slower: this machine has no bfloat16 instructions; take fp32")
    if training.tf32 and device.type != "cuda":
        say(f"! --training.tf32 has no effect on {device.type}: only NVIDIA GPUs have TF32")
    return settings


def _check_one_average(settings: RunSettings) -> None:
    averages = {
        "--averaging.polynomial": settings.averaging.polynomial,
        "--averaging.ema": settings.averaging.ema,
        "--averaging.last": settings.averaging.last,
    }
    given = [flag for flag, value in averages.items() if value]
    if len(given) > 1:
        raise HeedfulError(f"{' and '.join(given)} cannot be combined; give one of them, and 0 for the others")


def _given(settings: RunSettings) -> dict[str, Any]:
    """Returns the settings given in the sections by key ("model.dim"), without values that equal the section's
    default.
    """
    return {
        key(type(section), name): value
        for section in vars(settings).values()
        if isinstance(section, Settings)
        for name, value in section.given().items()
        if value != getattr(type(section)(), name)
    }


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
