"""The folder of a run: begun so that it is there whole or counts for nothing, and taken up whatever a kill left in it.

What a run stands on is written in this order: its settings as ``run.toml.part``, the model, the tokenizer and whatever
else it begins with, and at last ``run.toml``. While the first is there nothing else in the folder counts.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from heedful.errors import HeedfulError
from heedful.models import Model
from heedful.pretrained import load, read_card, save
from heedful.pretrained.fill_model import make_contiguous
from heedful.pretrained.folder import finish_writing
from heedful.settings import RunSettings, read_toml, resolve, to_toml
from heedful.tasks.task import Task
from heedful.training.resolve import changed, check_same
from heedful.util.files import TEMPORARY, temporary_path, write
from heedful.util.locks import contents

BEGUN, BEGINNING = "run.toml", "run.toml.part"
OWN = (BEGUN, BEGINNING, "heedful.json")  # either tells a folder that a run wrote
MODELS = (".", "last", "average")  # the folders of a run that hold a model
SHARDS = "shards"  # how a folder of shares is called, of the checkpoint of weights that no process holds whole
ANEW = "overwrite = true\n"  # at the head of run.toml.part: whatever else is in the folder goes


def taken_up(settings: RunSettings, say: Callable[[str], None], *, tidy: bool = True) -> RunSettings:
    """Returns the settings for ``--resume``: those given, then those that the run in ``--out`` began with.

    A run that was cut off before it had begun starts from the beginning, with its own settings and seed, and so does
    one of which nothing is there at all: then ``resume`` is off in what is returned, and ``say`` is told. With
    ``tidy``, what was left half written is removed; no other process may be writing in the folder then.

    Raises:
        HeedfulError: for a folder that holds something else, and for settings that the run cannot hear any more.
    """
    out = Path(settings.out)
    for folder in (out / part for part in MODELS if (out / part).is_dir()):
        finish_writing(folder)
        for path in left(folder) if tidy else ():
            remove(path)
    if not contents(out):
        settings = replace(settings, resume=False)
        say(f"{out} holds no run yet; it begins here")
        return settings
    half = (out / BEGINNING).is_file()
    begun = read_toml(out / (BEGINNING if half else BEGUN))
    check_same(settings, begun)
    said = changed(settings, begun)
    settings = resolve(settings, begun)
    if half:
        say(f"the run in {out} was cut off before its first step; it begins anew, with seed {settings.seed}")
        return replace(settings, resume=False, overwrite=begun.overwrite)
    for line in said:
        say(line)
    return _more_time(settings, begun, say)


def _more_time(settings: RunSettings, begun: RunSettings, say: Callable[[str], None]) -> RunSettings:
    """With other minutes than the run was begun with, as many more planned steps."""
    steps, minutes = begun.training.planned_steps, begun.max_minutes
    told = settings.max_minutes
    if not steps or not minutes or not told or told == minutes or settings.training.planned_steps != steps:
        return settings
    steps = max(1, round(steps * told / minutes))
    say(f"{steps:,} steps are planned for {told:g} minutes (--training.planned-steps)")
    return replace(settings, training=replace(settings.training, planned_steps=steps))


def check_overwrite(settings: RunSettings) -> None:
    """Refuse to empty a folder that no run wrote."""
    out = Path(settings.out)
    if settings.overwrite and contents(out) and not any((out / own).is_file() for own in OWN):
        raise HeedfulError(f"--overwrite: {out} holds no run of heedful; empty it yourself, or choose another --out")


def check_unused(settings: RunSettings) -> None:
    """Raises ``HeedfulError`` for a folder with another run, which is neither to be resumed nor overwritten."""
    if not (settings.resume or settings.overwrite) and any(Path(settings.out, own).is_file() for own in OWN):
        raise HeedfulError(f"--out {settings.out} is not empty; --resume continues that run, --overwrite replaces it")


def begin(out: Path, settings: RunSettings) -> None:
    """Make the folder, with ``overwrite`` anew; what the run begins with is written next, and then ``begun`` called."""
    write(out / BEGINNING, (ANEW if settings.overwrite else "") + to_toml(settings))
    if settings.overwrite:
        for path in contents(out):
            if path.name != BEGINNING:
                remove(path)


def begun(out: Path, settings: RunSettings) -> None:
    """From now on the run is resumed with what is in its folder."""
    write(out / BEGUN, to_toml(settings))
    (out / BEGINNING).unlink()


def told_anew(out: Path, settings: RunSettings) -> bool:
    """From now on the run is resumed with these settings, which a run that goes on was told; whether they are those
    that it had.
    """
    before, now = to_toml(replace(read_toml(out / BEGUN), out=settings.out)), to_toml(settings)
    write(out / BEGUN, now)
    return before == now


def check_checkpoint(out: Path) -> None:
    """Raise for a run that has ended, and of which no checkpoint is left."""
    steps = read_card(out / "last").get("steps")
    if steps and not any(out.glob("checkpoint*.pt")):
        raise HeedfulError(
            f"{out}: the run ended after step {steps:,} and its checkpoint was removed; fine-tune its weights with "
            f"--from {out / 'last'} and another --out, or train again with --overwrite --training.keep 1"
        )


def save_task_and_model(model: Model | None, task: Task, folder: Path, card: Mapping[str, Any]) -> None:
    """Writes a model folder, ``card`` as its ``heedful.json``; nothing where the model is None, on other ranks."""
    if model is not None:
        save(model, folder, extra=card)
        task.save(folder)


def stored_weights(folder: Path, device: torch.device) -> Mapping[str, torch.Tensor]:
    """Returns the weights in a folder of the run, by the names that they have in training."""
    model = load(folder, dtype="float32").to(device)
    make_contiguous(model)
    return model.state_dict()


def link_equal_weights(out: Path) -> None:
    """Store weights that two of a run's folders have alike once, as hard links; where links are not possible, twice.

    Nothing of heedful changes such a file in place: it writes another one and renames it.
    """
    seen: list[Path] = []
    for path in (path for part in MODELS for path in sorted((out / part).glob("*.safetensors"))):
        twin = next((other for other in seen if _equal(path, other)), None)
        if twin is None:
            seen.append(path)
        elif not path.samefile(twin):
            temporary = temporary_path(path)
            with suppress(OSError):
                os.link(twin, temporary)
                os.replace(temporary, path)
            temporary.unlink(missing_ok=True)


def _equal(one: Path, other: Path) -> bool:
    return one.stat().st_size == other.stat().st_size and (one.samefile(other) or filecmp.cmp(one, other, False))


def left(folder: Path) -> list[Path]:
    """Returns the files in ``folder`` that were being written when a run was killed."""
    return sorted(path for path in folder.iterdir() if TEMPORARY.fullmatch(path.name))


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
