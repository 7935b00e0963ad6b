"""``heedful.train`` and ``heedful.evaluate``: training and evaluation from Python, with files or Python objects.

Python data is written once to tables in the run's folder (``heedful.data.python_data``), so that a run from a DataFrame
has everything that a run from files has: the same split after a resume, a fingerprint, ``heedful evaluate`` and
``heedful audit`` on its data. With ``torchrun`` rank 0 writes them.
"""

from __future__ import annotations

import filecmp
import inspect
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from heedful.config import ModelConfig
from heedful.data import python_data
from heedful.errors import HeedfulError, nearest
from heedful.export.target import copy_beside
from heedful.pretrained.folder import find
from heedful.settings import RunSettings, Settings, read_toml
from heedful.settings.base import FOREIGN_NAMES
from heedful.training.run_folder import (
    DATA,
    RUN_MARKERS,
    SETTINGS,
    UNFINISHED_SETTINGS,
    check_overwrite,
    is_unused,
    remove,
)
from heedful.util import files
from heedful.util.locks import contents
from heedful.util.terminal import say_to

if TYPE_CHECKING:
    from typing import Unpack

    from torch import Tensor, nn

    from heedful.models import Model
    from heedful.optimize_model import DtypeName
    from heedful.settings.typed_dicts import PredictionOptions, Sections, TrainingDict
    from heedful.tasks import TaskName
    from heedful.training.callbacks import TrainingRun
    from heedful.training.loop_parts import Optimiser
    from heedful.training.schedule import Schedule

SECTIONS = {"model_settings": "model", "data_settings": "data"}  # arguments whose section has another argument's name
FOREIGN_ARGUMENTS = {  # names of other libraries for arguments of ``train``
    **dict.fromkeys(("validation_data", "eval_dataset", "eval_data"), "valid"),
    **dict.fromkeys(("train_dataset", "dataset"), "data"),
}
SETTING = {"optimizer": "optimiser", "schedule": "schedule"}  # settings that name a built-in part
Metric = Callable[[Sequence[Any], Sequence[Any]], float]


def train(
    task: TaskName | str,
    data: Any = None,
    *,
    valid: Any = None,
    unlabelled: Any = None,
    teacher: str | PathLike[str] | None = None,
    out: str | PathLike[str],
    preset: str | PathLike[str] | ModelConfig | None = None,
    recipe: str | None = None,
    model: str | PathLike[str] | Model | None = None,
    callbacks: Any = (),
    optimizer: Callable[[Model], Optimiser] | None = None,
    schedule: Schedule | None = None,
    objective: Callable[[nn.Module, Mapping[str, Tensor]], Tensor] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    seed: int | None = None,
    max_steps: int | None = None,
    max_epochs: int | None = None,
    max_minutes: float | None = None,
    device: str | None = None,
    deterministic: bool | None = None,
    push: str | None = None,
    quiet: bool = False,
    training: TrainingDict = {},  # noqa: B006 (it is never changed)
    **sections: Unpack[Sections],
) -> TrainingRun:
    """Trains a model for ``task`` on ``data`` and writes its folder, as ``heedful train`` does.

    Args:
        task: name of the task; ``heedful tasks`` lists them. Names of transformers, such as "ner", are understood.
        data: training data: a path or paths, as for ``--train``; or rows: a list of dicts, a pandas or polars
            DataFrame, a ``Dataset``, ``IterableDataset`` or ``DatasetDict`` of the datasets package, a dict of columns,
            or any iterable of mappings. Images are paths, PIL images, arrays (H, W, C) or encoded bytes. Columns have
            the task's names, or are guessed; ``data_settings={"columns": [...]}`` names them. Paths of images are
            relative to the current folder. Rows are written to ``<out>/data`` once. None: the data of the resumed run.
        valid: validation data of the same kinds; None: the validation split of ``data``, or a part of its rows.
        unlabelled: texts without labels, from which ``text-classification`` learns beside a few labelled ones: paths,
            or rows with a ``text``.
        teacher: text classifier whose probabilities the model learns: a folder, a name on the Hub, or an earlier run.
        out: the run's folder.
        preset: size of a new model: a name (``heedful presets`` lists them), a configuration, or a ``.json`` file with
            one. The task changes what depends on the data, such as the number of labels.
        recipe: published training settings; ``heedful recipes`` lists them.
        model: model to fine-tune: a folder, a name on the Hub, an earlier run, or a model loaded from a folder.
        callbacks: an object, or a list of objects, with any of the methods ``on_begin``, ``on_step``,
            ``on_evaluation``, ``on_save`` and ``on_end``, or functions, which are called after each step. Each takes
            the :class:`heedful.training.TrainingRun`, whose ``stop`` ends the run. Only rank 0 calls them.
        optimizer: given the model, returns a PyTorch optimiser; its learning rates are the peaks.
        schedule: ``(step, progress) -> factor`` of the learning rates: ``step`` counts from 1, ``progress`` is the
            share of the run that is done, from 0 to 1.
        objective: ``(model, batch) -> loss``, summed over the predictions of the batch, which the task counts; the
            loop divides by their number in the whole step. The default is the task's.
        metrics: ``{name: function}``: given the outputs and the expected outputs of the validation rows, each function
            returns a number, which is logged as ``valid_<name>``. They do not choose the best weights.
        resume: continue the run in ``out``, or start it there.
        overwrite: replace the run in ``out``.
        seed: seed of the weights, the order of the data and dropout; 0 by default.
        max_steps: maximum number of steps.
        max_epochs: maximum number of epochs.
        max_minutes: maximum duration in minutes.
        device: "cpu", "cuda", "cuda:1", "mps"; the best one by default.
        deterministic: make runs on a GPU repeatable to the bit, too; slower.
        push: upload the model at the end, to this name on the Hub: "org/name".
        quiet: print nothing, and show no progress.
        training: settings of the section ``training``: ``{"lr": 1e-3, "batch_size": 32}``.
        **sections: further sections by name: ``tokenizer={"size": 4000}``, ``model_settings={"dim": 128}`` for the
            section ``model``, ``data_settings={"limit": 1000}`` for the section ``data``, ``lora``, ``averaging``, ...

    Returns:
        The run, with its ``metrics``, ``model``, ``folder``, ``history`` and ``pipeline``. A notebook shows its curve.

    Raises:
        HeedfulError: the data or settings are wrong, or the folder holds a run and neither ``resume`` nor ``overwrite``
            is given. Also where the upload fails: the run in ``out`` is complete then, and the message says how to
            upload it.
        KeyboardInterrupt: after Ctrl-C or a notebook's stop button, once the step is saved; ``resume=True`` continues.

    >>> import heedful
    >>> rows = [{"text": f"film {n} is {word}", "label": word} for n in range(50) for word in ("good", "bad")]
    >>> run = heedful.train("text-classification", rows, out="runs/films", max_epochs=20)  # doctest: +SKIP
    >>> run.pipeline("a good day")["output"]  # doctest: +SKIP
    'good'
    """
    from heedful import tasks
    from heedful.audit.audit import start_warnings
    from heedful.pretrained.upload import push_run
    from heedful.training.callbacks import Callbacks, TrainingRun
    from heedful.training.loop_parts import CustomParts
    from heedful.training.run import train as train_model
    from heedful.util.ranks import current_rank
    from heedful.views.run_figures import draw_report, draw_run
    from heedful.views.watch_html import draw_watch

    with _python_words(out):
        task = tasks.named(task)
        _check_arguments(out, optimizer, schedule, objective, metrics, training, sections)
        run = TrainingRun(Path(out), task)
        is_first = current_rank() == 0
        listed = _listed(callbacks)
        called = Callbacks(listed, run)  # checks them
        if not is_first:
            called = Callbacks((), run)  # the ranks agree on whether a callback stops the run
        given = {
            "task": task,
            "out": os.fspath(out),
            "preset": os.fspath(preset) if isinstance(preset, str | PathLike) else None,
            "recipe": recipe,
            "deterministic": deterministic,
            "push": push,
            "seed": _plain(seed),
            "max_steps": _plain(max_steps),
            "max_epochs": _plain(max_epochs),
            "max_minutes": _plain(max_minutes),
            "device": device,
            "resume": resume,
            "overwrite": overwrite,
            **_sections({"training": training, **sections}),
        }
        RunSettings.from_dict(
            {**given, "train": ("-",), "start_from": None if model is None else "-"}
        )  # checks them before data is written
        images = "image" in tasks.get(task).columns.values()
        tables = _Tables(Path(out), resume=resume, overwrite=overwrite, writes=is_first, images=images)
        custom = CustomParts(
            optimizer=optimizer,
            schedule=None if schedule is None else _checked_schedule(schedule),
            objective=None if objective is None else _checked_objective(objective),
            metrics=dict(metrics or {}),
            callbacks=called if listed else None,
        )
        with tables.removed_on_error():
            given |= tables.sources(data, valid, unlabelled)
            given["start_from"] = tables.model_folder(model)
            given["preset"] = tables.preset_name(preset)
            given["teacher"] = None if teacher is None else os.fspath(getattr(teacher, "folder", teacher))
            settings = RunSettings.from_dict(given)
            result = train_model(
                settings,
                say=_silent if quiet else say_to(False),
                quiet=quiet,
                draw=draw_report,
                draw_attention=draw_watch,
                audit=start_warnings,
                custom=custom,
            )
    if is_first:
        draw_run(settings.out)
    run.finish(result)
    if is_first and (name := result["settings"]["push"]):
        url = push_run(settings.out, name)
        (_silent if quiet else say_to(False))(f"hub: {url}")
    return run


def evaluate(
    model: Any,
    data: Any,
    *,
    columns: Sequence[str] | None = None,
    device: str | None = None,
    dtype: DtypeName | str | None = None,
    compiled_decoding: bool = True,
    split: str | None = "test",
    baseline: bool = False,
    quiet: bool = False,
    **decoding: Unpack[PredictionOptions],
) -> dict[str, Any]:
    """Evaluates a model on ``data`` with the metrics of its task.

    Args:
        model: a model folder, or the run that ``heedful.train`` returned.
        data: examples with their expected outputs, in one of the forms that :func:`train` takes.
        columns: names of the columns in the data.
        device: device of the model.
        dtype: dtype of the weights, as in ``heedful.pipeline``.
        compiled_decoding: decode with compiled code on a CPU, with CUDA graphs on an NVIDIA GPU, as in
            ``heedful.pipeline``.
        split: "train", "valid" or "test": the part to evaluate, if the data has splits.
        baseline: also score a simple method on the same rows.
        quiet: print nothing.
        **decoding: options of decoding, such as ``num_beams=4``.

    Returns:
        The metrics by name; ``"intervals"``, the 95 % confidence interval [low, high] of each; ``"examples"``, their
        number; ``"task"``; and the other entries of :func:`heedful.evaluation.evaluate.evaluate`.

    >>> import heedful
    >>> heedful.evaluate("runs/films", [{"text": "a good day", "label": "good"}])["accuracy"]  # doctest: +SKIP
    100.0
    """
    from heedful.evaluation.evaluate import evaluate as evaluate_files
    from heedful.training.callbacks import TrainingRun

    if not isinstance(model, TrainingRun | str | PathLike):
        raise HeedfulError(f"model is of type {type(model).__name__}; give a model folder, or a run of heedful.train")
    folder = os.fspath(model.folder if isinstance(model, TrainingRun) else model)
    with tempfile.TemporaryDirectory() as temporary, _python_words(temporary):
        if python_data.is_path(data):
            sources = python_data.as_paths(data)
        else:
            table = Path(temporary) / "data" / "rows.jsonl"
            rows = data.get(split, data) if python_data.is_splits(data) else data
            python_data.write_table(rows, table, image_paths=True)
            sources = (str(table),)
        result = evaluate_files(
            folder,
            sources,
            columns=columns,
            decoding=decoding,
            device=device,
            dtype=dtype,
            compiled_decoding=compiled_decoding,
            split=split,
            baseline=baseline,
            say=_silent if quiet else say_to(False),
        )
    if not python_data.is_path(data):
        result["data"] = [type(data).__name__]
    return {**result.pop("metrics"), **result}


@contextmanager
def _python_words(out: Any) -> Iterator[None]:
    """Rewords errors for Python: options as arguments, and rows of a table of Python data as rows of the data."""
    try:
        yield
    except HeedfulError as error:
        text = in_python(str(error), out)
        if text == str(error):
            raise
        raise HeedfulError(text) from error


def in_python(text: str, out: Any = None) -> str:
    """Rewrites a message with command-line options as one with the arguments of :func:`train`.

    >>> in_python("too few rows; name the columns: --data.columns TEXT,LABEL")
    'too few rows; name the columns: data_settings={"columns": ["TEXT", "LABEL"]}'
    >>> in_python("name the columns: --data.columns TEXT,TEXT_PAIR")
    'name the columns: data_settings={"columns": ["TEXT", "TEXT_PAIR"]}'
    >>> in_python("name the columns: --data.columns 'ticket id,team'")
    'name the columns: data_settings={"columns": ["ticket id", "team"]}'
    >>> in_python("--max-steps must be a whole number; give a validation file: --valid FILE")
    'max_steps must be a whole number; give a validation file: valid=...'
    >>> in_python("'text' is null, in runs/a/data/train.jsonl:8", "runs/a")
    "'text' is null, in row 8 of the data"
    >>> in_python("a task is registered by --import FILE, or in Python by heedful.register")
    'a task is registered by heedful.register'
    """
    if out is not None:
        table = rf"{re.escape(os.fspath(out))}[/\\]data[/\\]\w+\.jsonl"
        text = re.sub(rf"{table}:(\d+)", r"row \1 of the data", text)
        text = re.sub(table, "the data", text)
    for option, argument in (
        ("--valid FILE", "valid=..."),
        ("--train FILE", "data"),
        ("--from", "model"),
        ("by --import FILE, or in Python by", "by"),
        ("--import", "import"),
    ):
        text = re.sub(rf"{option}(?![\w-])", argument, text)

    def section(match: re.Match[str]) -> str:
        argument = next((a for a, name in SECTIONS.items() if name == match[1]), match[1])
        value = (match[3] or "").strip().strip("'") or "..."
        shown = json.dumps(value.split(",")) if "," in value else value
        return f'{argument}={{"{match[2].replace("-", "_")}": {shown}}}'

    text = re.sub(
        r"--([a-z]+)\.([a-z-]+)((?: |=)(?:'[^']*'|(?:[\w.]+,)+[\w.]+\b|(?:[A-Z][A-Z_]*|\d[\d.]*|true|false)\b))?",
        section,
        text,
    )
    return re.sub(r"--([a-z][a-z-]*)", lambda match: match[1].replace("-", "_"), text)


def _plain(value: Any) -> Any:
    """Returns a number of NumPy as Python's."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def _listed(callbacks: Any) -> list[Any]:
    """Returns the callbacks as a list."""
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]


def _check_arguments(
    out: Any,
    optimizer: Any,
    schedule: Any,
    objective: Any,
    metrics: Any,
    training: Mapping[str, Any] | None,
    sections: Mapping[str, Any],
) -> None:
    """Raises ``HeedfulError`` for arguments of another type, and for settings that a custom part makes useless."""
    if not isinstance(out, str | PathLike):
        raise HeedfulError(f"out is of type {type(out).__name__}; give the path of the run's folder")
    for name, part in (("optimizer", optimizer), ("schedule", schedule), ("objective", objective)):
        if part is not None and not callable(part):
            hint = f"; the built-in ones are settings: training={{{SETTING[name]!r}: ...}}" if name in SETTING else ""
            raise HeedfulError(f"{name} is of type {type(part).__name__}; give a function{hint}")
    if metrics is not None and not isinstance(metrics, Mapping):
        raise HeedfulError(f"metrics is of type {type(metrics).__name__}; give {{name: function}}")
    for name, metric in (metrics or {}).items():
        if not callable(metric):
            raise HeedfulError(f"the metric {name!r} is of type {type(metric).__name__}; give a function")
    given = {name.replace("-", "_") for name in training or {}} if isinstance(training, Mapping) else set()
    tuning = sections.get("tuning") or {}
    without_effect = {
        "optimizer": given & {"optimiser", "lr", "weight_decay", "betas", "eps"} | {*tuning} & {"layer_decay"},
        "schedule": given & {"schedule", "warmup", "min_lr_ratio", "decay_ratio"},
    }
    for name, part in (("optimizer", optimizer), ("schedule", schedule)):
        if part is not None and without_effect[name]:
            listed = ", ".join(sorted(without_effect[name]))
            raise HeedfulError(f"{listed} has no effect beside your own {name}; set it there instead")


def _checked_schedule(schedule: Schedule) -> Schedule:
    """Returns the schedule, which raises ``HeedfulError`` where it returns no number."""

    @wraps(schedule)
    def factor(step: int, progress: float | None) -> float:
        value = schedule(step, progress)
        if not isinstance(value, int | float):
            raise HeedfulError(f"schedule returned {type(value).__name__} for step {step}; return a number")
        return value

    return factor


def _checked_objective(objective: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns the objective, which raises ``HeedfulError`` where it returns no scalar that depends on the model."""

    @wraps(objective)
    def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        value = objective(model, batch)
        if not hasattr(value, "backward") or value.ndim or not value.requires_grad:
            shape = f"a tensor of shape {tuple(value.shape)}" if hasattr(value, "shape") else type(value).__name__
            raise HeedfulError(f"objective returned {shape}; return the sum of the losses, a tensor without dimensions")
        return value

    return loss


def _silent(line: str) -> None:
    """Prints nothing."""


def _sections(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sections of settings by their names in ``RunSettings``; raises ``HeedfulError`` for unknown ones."""
    hints = get_type_hints(RunSettings)
    known = {
        f.name for f in fields(RunSettings) if isinstance(hints[f.name], type) and issubclass(hints[f.name], Settings)
    }
    result = {}
    for argument, values in given.items():
        section = SECTIONS.get(argument, argument)
        if section not in known:
            raise HeedfulError(f"heedful.train has no argument {argument!r}; {_hint(argument, known, hints)}")
        if values is None:
            continue
        if not isinstance(values, Mapping):
            raise HeedfulError(f"{argument} is of type {type(values).__name__}; give a dict of settings by name")
        result[section] = {
            name.replace("-", "_"): tuple(v) if isinstance(v, list) else _plain(v) for name, v in values.items()
        }
    return result


def _hint(argument: str, known: set[str], hints: Mapping[str, Any]) -> str:
    """Returns what was meant by an unknown argument: a setting of a section, or another argument of ``train``."""
    meant = FOREIGN_ARGUMENTS.get(argument, FOREIGN_NAMES.get(argument, argument))
    if meant != argument and meant in inspect.signature(train).parameters:
        return f"write {meant}=..."
    for section in sorted(known, key=lambda section: (section != "training", section)):
        if meant in {f.name for f in fields(hints[section])}:
            name = next((name for name, other in SECTIONS.items() if other == section), section)
            return f"write {name}={{{meant!r}: ...}}"
    arguments = {*known, *SECTIONS, *inspect.signature(train).parameters} - {*SECTIONS.values(), "sections"}
    return nearest(argument, sorted(arguments | {"data", "model"}))


class _Tables:
    """The tables of Python data in a run folder, and the folder of a model that is passed as an object.

    Args:
        out: the run's folder.
        resume: tables that are there are read again; rows that are passed must be as many.
        overwrite: tables that are there are replaced.
        writes: False on ranks above 0, which only name the files.
        images: texts may be paths of images.
    """

    def __init__(self, out: Path, *, resume: bool, overwrite: bool, writes: bool, images: bool) -> None:
        self.folder, self.resume, self.writes, self.images = out / DATA, resume, writes, images
        self.owns_folder = False
        if not writes:
            return
        if out.exists() and not out.is_dir():
            raise HeedfulError(f"out={str(out)!r} is a file; choose another folder")
        self.owns_folder = is_unused(out)  # nothing of anybody else is in it
        if not (resume or overwrite) and not self.owns_folder:
            raise HeedfulError(
                f"the folder out={str(out)!r} is not empty; "
                + (
                    "resume=True continues the run in it, overwrite=True replaces it"
                    if any((out / name).is_file() for name in RUN_MARKERS)
                    else "choose another one, since it holds no run"
                )
            )
        if overwrite:
            check_overwrite(RunSettings(task="", train=("-",), out=os.fspath(out), overwrite=True))

    @contextmanager
    def removed_on_error(self) -> Iterator[None]:
        """Context manager that removes a new run after an error before its first checkpoint; an interrupt keeps it."""
        out = self.folder.parent
        existed = out.exists()
        try:
            yield
        except Exception:
            if self.writes and not self.resume and self.owns_folder and not any(out.rglob("checkpoint*.pt")):
                for path in contents(out):
                    remove(path)
                if not existed and out.is_dir() and not contents(out):
                    out.rmdir()
            raise

    def sources(self, data: Any, valid: Any, unlabelled: Any) -> dict[str, tuple[str, ...] | None]:
        """Returns the settings ``train``, ``valid`` and ``unlabelled``: paths as given, and the paths of the files
        with given rows.
        """
        if data is None:
            return self._sources_of_run(valid, unlabelled)
        held = python_data.mapped_split(data, "valid") if valid is None else valid
        return {
            "train": self._paths(python_data.mapped_split(data, "train"), "train"),
            "valid": None if held is None else self._paths(held, "valid"),
            "unlabelled": None if unlabelled is None else self._paths(unlabelled, "unlabelled"),
        }

    def _sources_of_run(self, valid: Any, unlabelled: Any) -> dict[str, tuple[str, ...] | None]:
        folder = self.folder.parent
        run = next((folder / name for name in (SETTINGS, UNFINISHED_SETTINGS) if (folder / name).is_file()), None)
        if self.resume and run is None:
            raise HeedfulError(f"{self.folder.parent} holds no run to resume; give data to start one")
        if run is None or not self.resume:
            raise HeedfulError(f"data is missing; give {python_data.ACCEPTED}")
        first = read_toml(run)
        train, held = (
            None if paths is None else tuple(map(self._found, paths)) for paths in (first.train, first.valid)
        )
        return {
            "train": train,
            "valid": held if valid is None else self._paths(valid, "valid"),
            "unlabelled": None if unlabelled is None else self._paths(unlabelled, "unlabelled"),
        }

    def _found(self, path: str) -> str:
        """Returns the path of a table of the run, which may have been moved since."""
        moved = self.folder / Path(path).name
        return os.fspath(moved) if not Path(path).exists() and moved.is_file() else path

    def _paths(self, data: Any, split: str) -> tuple[str, ...]:
        """Returns the paths of ``data``, after writing it to a table if it is no path."""
        if python_data.is_path(data):
            return python_data.as_paths(data)
        path = self.folder / f"{split}.jsonl"
        if self.writes:
            if self.resume and path.is_file():
                self._check_rows(data, path, split)
            else:
                python_data.write_table(data, path, image_paths=self.images)
        return (os.fspath(path),)

    def _check_rows(self, data: Any, path: Path, split: str) -> None:
        """Raises ``HeedfulError`` where the rows are not those of the table; rows of an iterator are not read again."""
        if not isinstance(data, Mapping) and not hasattr(data, "__len__"):
            return
        with tempfile.TemporaryDirectory() as temporary:
            again = Path(temporary) / path.name
            python_data.write_table(data, again, image_paths=self.images)
            same = filecmp.cmp(path, again, shallow=False)
        if not same:
            raise HeedfulError(
                f"the rows of {split} data are not those that the run in {self.folder.parent} began with; leave data "
                "out to continue with its rows, or train into another folder"
            )

    def preset_name(self, preset: Any) -> str | None:
        """Returns the name of a preset or the path of its file; a configuration is written into the run's folder."""
        if preset is None or isinstance(preset, str | PathLike):
            return None if preset is None else os.fspath(preset)
        if not isinstance(preset, ModelConfig):
            raise HeedfulError(
                f"preset is of type {type(preset).__name__}; give the name of a preset, or a configuration"
            )
        path, content = self.folder / "preset.json", json.dumps(preset.to_dict(), indent=2) + "\n"
        if self.resume and path.is_file():
            if path.read_text(encoding="utf-8") != content:
                raise HeedfulError(
                    f"preset is not the configuration that the run in {self.folder.parent} began with; leave it out, "
                    "or train into another folder"
                )
        elif self.writes:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write(path, content)
        return os.fspath(path)

    def model_folder(self, model: Any) -> str | None:
        """Returns the folder of the model to fine-tune; a model object is first saved into the run's folder."""
        if model is None or isinstance(model, str | PathLike):
            return None if model is None else os.fspath(model)
        if hasattr(model, "folder") and hasattr(model, "pipeline"):  # a run
            return os.fspath(model.folder)
        if not hasattr(model, "save_pretrained"):
            raise HeedfulError(f"model is of type {type(model).__name__}; give a folder, a name on the Hub or a model")
        folder = self.folder / "model"
        if self.writes and not (self.resume and folder.is_dir()):
            if not model.folder.source:
                raise HeedfulError(
                    "model was not loaded from a folder, so it has no tokenizer; train a new model of its sizes: "
                    "preset=model.config"
                )
            model.save_pretrained(folder)
            copy_beside(find(model.folder.source), folder)
        return os.fspath(folder)
