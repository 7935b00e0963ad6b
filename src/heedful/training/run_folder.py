"""The run folder: created atomically, and resumed after a kill at any moment.

A run's first files are written in this order: its settings as ``run.toml.part``, the model, the tokenizer and the rest,
then ``run.toml``. As long as ``run.toml.part`` exists, no other file in the folder counts.
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

import safetensors.torch
import torch

from heedful.errors import HeedfulError
from heedful.models import Model
from heedful.pretrained import read_card
from heedful.pretrained.fill_model import align_weights
from heedful.pretrained.folder import MEMBER_FILES, finish_writing
from heedful.settings import AUTO, RunSettings, read_toml, resolve, to_toml
from heedful.tasks.distillation import TEACHER_FOLDER
from heedful.tasks.known_models import is_known
from heedful.tasks.task import Task
from heedful.training.resolve import changed_settings, check_resumed
from heedful.util.files import TEMPORARY, temporary_path, write
from heedful.util.locks import contents

SETTINGS, UNFINISHED_SETTINGS = "run.toml", "run.toml.part"
RUN_MARKERS = (SETTINGS, UNFINISHED_SETTINGS, "heedful.json")  # a folder with one of these was written by a run
MODEL_FOLDERS = (".", "last", "average", "generator", "last/generator", "average/generator")  # in a run folder
STARTING = "starting.bin"  # what the task computed by the starting weights, in the format of safetensors
DATA = "data"  # folder of a run folder with tables of Python data; written before the run begins
SHARDS = "shards"  # prefix of the folders of a sharded checkpoint
OVERWRITE_LINE = "overwrite = true\n"  # at the head of run.toml.part: all other files in the folder are removed


def resumed_settings(settings: RunSettings, say: Callable[[str], None], *, tidy: bool = True) -> RunSettings:
    """Returns the settings of a resumed run: the given ones, completed by those with which the run started.

    If the folder ``--out`` is empty, or the run was killed before its first step, the returned settings have ``resume``
    off: the run starts from the beginning, with the settings and seed in its folder.

    Args:
        settings: the settings as given with ``--resume``.
        say: is called with lines for people.
        tidy: True removes half-written files; no other process may then be writing in the folder.

    Raises:
        HeedfulError: the folder holds no run, or a setting cannot be changed in a resumed run.
    """
    out = Path(settings.out)
    for folder in (out / name for name in MODEL_FOLDERS if (out / name).is_dir()):
        finish_writing(folder)
        for path in temporary_files(folder) if tidy else ():
            remove(path)
    if is_unused(out):
        settings = replace(settings, resume=False)
        say(f"{out} holds no run yet; the run starts from the beginning")
        return settings
    is_unfinished = (out / UNFINISHED_SETTINGS).is_file()
    first = read_toml(out / (UNFINISHED_SETTINGS if is_unfinished else SETTINGS))
    if settings.start_from == AUTO and is_known(first.start_from):
        settings = replace(settings, start_from=None)  # the choice is made
    check_resumed(settings, first)
    changes = changed_settings(settings, first)
    settings = resolve(settings, first)
    if is_unfinished:
        has_teacher = (out / TEACHER_FOLDER / SETTINGS).is_file()
        when = "while its teacher trained, which goes on" if has_teacher else "before its first step; it starts again"
        say(f"the run in {out} was cut off {when}, with seed {settings.seed}")
        return replace(settings, resume=False, overwrite=first.overwrite)
    for line in changes:
        say(line)
    return _with_more_time(settings, first, say)


def _with_more_time(settings: RunSettings, first: RunSettings, say: Callable[[str], None]) -> RunSettings:
    """Scales the planned steps where ``--max-minutes`` has changed since the run started."""
    steps, old_minutes, minutes = first.training.last_planned_steps, first.max_minutes, settings.max_minutes
    if not steps or not old_minutes or not minutes or minutes == old_minutes:
        return settings
    if settings.training.last_planned_steps != steps:
        return settings
    steps = max(1, round(steps * minutes / old_minutes))
    say(f"{steps:,} steps are planned for {minutes:g} minutes (--training.planned-steps)")
    replanned = None if first.training.replanned is None else ()
    return replace(settings, training=replace(settings.training, planned_steps=steps, replanned=replanned))


def check_overwrite(settings: RunSettings) -> None:
    """Raises ``HeedfulError`` if ``--overwrite`` would empty a folder that is not a run folder."""
    out = Path(settings.out)
    if settings.overwrite and not is_unused(out) and not any((out / name).is_file() for name in RUN_MARKERS):
        raise HeedfulError(
            f"--overwrite: {out} is not the folder of a heedful run; empty it yourself, or choose another --out"
        )


def check_unused(settings: RunSettings) -> None:
    """Raises ``HeedfulError`` if ``--out`` holds a run, and neither ``--resume`` nor ``--overwrite`` is given."""
    if not (settings.resume or settings.overwrite) and any(Path(settings.out, name).is_file() for name in RUN_MARKERS):
        raise HeedfulError(f"--out {settings.out} is not empty; --resume continues that run, --overwrite replaces it")


def is_unused(out: Path) -> bool:
    """Returns True for a folder that does not exist, is empty, or holds only tables of data passed from Python."""
    return {path.name for path in contents(out)} <= {DATA}


def create_run_folder(out: Path, settings: RunSettings) -> None:
    """Creates a run's folder; with ``settings.overwrite`` empties an existing folder.

    Tables of data passed from Python, which the run reads, stay, and a configuration passed as its preset. Write the
    run's first files next, then call ``mark_complete``.
    """
    paths = (*settings.files, settings.preset or "")
    read = any(Path(path).is_relative_to(out / DATA) for path in paths)
    write(out / UNFINISHED_SETTINGS, (OVERWRITE_LINE if settings.overwrite else "") + to_toml(settings))
    if settings.overwrite:
        for path in contents(out):
            if path.name != UNFINISHED_SETTINGS and not (read and path.name == DATA):
                remove(path)


def mark_complete(out: Path, settings: RunSettings) -> None:
    """Writes ``run.toml`` and removes ``run.toml.part``: from now on the run can be resumed."""
    write(out / SETTINGS, to_toml(settings))
    (out / UNFINISHED_SETTINGS).unlink()


def save_settings(out: Path, settings: RunSettings) -> None:
    """Writes ``run.toml`` of a run that goes on: its settings with what it has decided."""
    write(out / SETTINGS, to_toml(settings))


def save_resumed_settings(out: Path, settings: RunSettings) -> bool:
    """Writes the settings of a resumed run to ``run.toml``; returns True if the file already held these settings."""
    before = to_toml(replace(read_toml(out / SETTINGS), out=settings.out))
    save_settings(out, settings)
    return before == to_toml(settings)


def check_checkpoint(out: Path) -> None:
    """Raises ``HeedfulError`` if the run in a folder has ended and its checkpoint was removed."""
    steps = read_card(out / "last").get("steps")
    if steps and not any(out.glob("checkpoint*.pt")):
        raise HeedfulError(
            f"{out}: the run ended after step {steps:,} and its checkpoint was removed; fine-tune its weights with "
            f"--from {out / 'last'} and another --out, or train again with --overwrite --training.keep-checkpoints 1"
        )


def save_task_and_model(model: Model | None, task: Task, folder: Path, card: Mapping[str, Any]) -> None:
    """Writes a task and its model as a folder; does nothing if ``model`` is None.

    ``card`` and the task's entries, as they are now, are its ``heedful.json``.
    """
    if model is not None:
        task.write_model(model, folder, {**card, **task.card_entries()})
        task.save(folder)


def write_starting_tensors(out: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes what the task computed by the starting weights, so that a resumed run has the same numbers."""
    if tensors:
        write(out / STARTING, safetensors.torch.save(dict(tensors)))


def read_starting_tensors(out: Path) -> dict[str, torch.Tensor]:
    """Returns what ``write_starting_tensors`` wrote; {} if the run has none."""
    path = out / STARTING
    if not path.is_file():
        return {}
    try:
        return safetensors.torch.load(path.read_bytes())
    except (OSError, safetensors.SafetensorError) as error:
        raise HeedfulError(f"{path} is damaged ({error}); start a new run with --overwrite") from None


def stored_weights(task: Task, folder: Path, device: torch.device) -> Mapping[str, torch.Tensor]:
    """Returns the weights in a folder of the run, by the names that they have in training."""
    model = task.read_model(folder).to(device)
    align_weights(model)
    return model.state_dict()


def link_equal_weights(out: Path) -> None:
    """Replaces equal weight files in a run's model folders by hard links, if the file system supports hard links.

    Heedful never changes such a file in place: it writes a new file and renames it.
    """
    distinct: list[Path] = []
    patterns = ("*.safetensors", f"{MEMBER_FILES}.safetensors")
    files = (path for folder in MODEL_FOLDERS for name in patterns for path in sorted((out / folder).glob(name)))
    for path in files:
        twin = next((other for other in distinct if _equal(path, other)), None)
        if twin is None:
            distinct.append(path)
        elif not path.samefile(twin):
            temporary = temporary_path(path)
            with suppress(OSError):
                os.link(twin, temporary)
                os.replace(temporary, path)
            temporary.unlink(missing_ok=True)


def _equal(a: Path, b: Path) -> bool:
    return a.stat().st_size == b.stat().st_size and (a.samefile(b) or filecmp.cmp(a, b, False))


def temporary_files(folder: Path) -> list[Path]:
    """Returns the files in ``folder`` that were being written when a run was killed."""
    return sorted(path for path in folder.iterdir() if TEMPORARY.fullmatch(path.name))


def remove(path: Path) -> None:
    """Removes a file, a link, or a folder with its content."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
