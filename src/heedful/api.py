"""``heedful.train`` and ``heedful.evaluate``: training and evaluation from Python, with files or Python objects.

Python data is written once to tables in the run's folder (`heedful.data.python_data`), so that a run from a DataFrame
has everything that a run from files has: the same split after a resume, a fingerprint, ``heedful evaluate`` and
``heedful audit`` on its data. With ``torchrun`` rank 0 writes them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from heedful.data import python_data
from heedful.errors import HeedfulError, nearest, plural
from heedful.export.target import copy_beside
from heedful.pretrained.folder import find
from heedful.settings import RunSettings, Settings, read_toml
from heedful.training.run_folder import DATA, SETTINGS, check_overwrite, is_unused
from heedful.util.locks import contents
from heedful.util.terminal import say_to

if TYPE_CHECKING:
    from torch import Tensor, nn

    from heedful.models import Model
    from heedful.training.callbacks import TrainingRun
    from heedful.training.loop_parts import Optimiser
    from heedful.training.schedule import Schedule

SECTIONS = {"model_settings": "model", "data_settings": "data"}  # arguments whose section has another argument's name
Metric = Callable[[Sequence[Any], Sequence[Any]], float]


def train(
    task: str,
    data: Any = None,
    *,
    valid: Any = None,
    out: str | PathLike[str],
    preset: str | None = None,
    model: str | PathLike[str] | Model | None = None,
    callbacks: Sequence[Any] = (),
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
    quiet: bool = False,
    training: Mapping[str, Any] | None = None,
    **sections: Any,
) -> TrainingRun:
    """Trains a model for ``task`` on ``data`` and writes its folder, as ``heedful train`` does.

    Args:
        task: name of the task; ``heedful tasks`` lists them.
        data: training data: a path or paths, as for ``--train``; or rows: a list of dicts, a pandas or polars
            DataFrame, a ``Dataset``, ``IterableDataset`` or ``DatasetDict`` of the datasets package, a dict of columns,
            or any iterable of mappings. Images are paths, PIL images, arrays (H, W, C) or encoded bytes. Columns have
            the task's names, or are chosen as in a file; ``data={"columns": [...]}`` is a *section* (below). Rows are
            written to ``<out>/data`` once. None: those of the resumed run.
        valid: validation data of the same kinds; None: that split of ``data``, or a part of its rows.
        out: the run's folder.
        preset: published size of a new model; ``heedful presets`` lists them.
        model: model to fine-tune: a folder, a name on the Hub, or a loaded model.
        callbacks: objects with any of the methods ``on_begin``, ``on_step``, ``on_evaluation``, ``on_save`` and
            ``on_end``, or functions, which are called after each step. Each takes the
            :class:`heedful.training.callbacks.TrainingRun`, whose ``stop`` ends the run. Only rank 0 calls them.
        optimizer: given the model, returns a PyTorch optimiser; its learning rates are the peaks.
        schedule: ``(step, progress) -> factor`` of the learning rates: ``step`` counts from 1, ``progress`` is the
            share of the run that is done, from 0 to 1.
        objective: ``(model, batch) -> loss``, summed over the predictions of the batch, which the task counts; the
            loop divides by their number in the whole step. The default is the task's.
        metrics: ``{name: function}``: given the outputs and the expected outputs of the validation rows, each function
            returns a number, which is logged as ``valid_<name>``. They do not choose the best weights.
        resume: continue the run in ``out``, or start it there.
        overwrite: replace the run in ``out``.
        seed: of weights, order and dropout; 0 by default.
        max_steps: limit in steps.
        max_epochs: limit in epochs.
        max_minutes: limit in minutes.
        device: "cpu", "cuda", "cuda:1", "mps"; the best one by default.
        quiet: print nothing, and show no progress.
        training: settings of the section ``training``: ``{"lr": 1e-3, "batch_size": 32}``.
        **sections: further sections by name: ``tokenizer={"size": 4000}``, ``model_settings={"dim": 128}`` for the
            section ``model``, ``data_settings={"limit": 1000}`` for the section ``data``, ``lora``, ``averaging``, ...

    Returns:
        The run: its ``metrics``, ``model``, ``folder``, ``history`` and ``pipeline``. A notebook shows its curve.

    Raises:
        HeedfulError: the data or settings are wrong, or the folder holds a run and neither ``resume`` nor ``overwrite``
            is given.
        KeyboardInterrupt: after Ctrl-C or a notebook's stop button, when the step is saved; ``resume=True`` goes on.

    >>> import heedful
    >>> rows = [{"text": "a fine film", "label": "good"}, {"text": "a dull film", "label": "bad"}] * 50
    >>> run = heedful.train("text-classification", rows, out="runs/films", max_epochs=3)  # doctest: +SKIP
    >>> run.pipeline("a fine day")["output"]  # doctest: +SKIP
    'good'
    """
    from heedful import tasks
    from heedful.audit.audit import start_warnings
    from heedful.training.callbacks import Callbacks, TrainingRun
    from heedful.training.loop_parts import CustomParts
    from heedful.training.run import train as train_model
    from heedful.util.ranks import current_rank
    from heedful.views.run_figures import draw_report, draw_run
    from heedful.views.watch_html import draw_watch

    tasks.check(task)
    run = TrainingRun(Path(out), task)
    called = Callbacks(callbacks, run)  # checks them
    is_first = current_rank() == 0
    if not is_first:
        called = Callbacks((), run)  # the ranks agree on whether a callback stops the run
    given = {
        "task": task,
        "out": os.fspath(out),
        "preset": preset,
        "seed": seed,
        "max_steps": max_steps,
        "max_epochs": max_epochs,
        "max_minutes": max_minutes,
        "device": device,
        "resume": resume,
        "overwrite": overwrite,
        **_sections({"training": training, **sections}),
    }
    RunSettings.from_dict({**given, "train": ("-",)})  # checks them before data is written
    tables = _Tables(Path(out), resume=resume, overwrite=overwrite, writes=is_first)
    custom = CustomParts(
        optimizer=optimizer,
        schedule=schedule,
        objective=objective,
        metrics=dict(metrics or {}),
        callbacks=called if callbacks else None,
    )
    with tables.removed_on_error():
        given |= tables.sources(data, valid)
        given["start_from"] = tables.model_folder(model)
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
    return run


def evaluate(
    model: Any,
    data: Any,
    *,
    columns: Sequence[str] | None = None,
    device: str | None = None,
    dtype: str | None = None,
    split: str | None = "test",
    quiet: bool = False,
    **decoding: Any,
) -> dict[str, Any]:
    """Evaluates a model on ``data`` with the metrics of its task.

    Args:
        model: a model folder, or the run that ``heedful.train`` returned.
        data: as in :func:`train`.
        columns: names of the columns in the data.
        device: device of the model.
        dtype: dtype of the weights, as in ``heedful.pipeline``.
        split: "train", "valid" or "test", of data with splits.
        quiet: print nothing.
        **decoding: decoding options, by ``generate``'s names.

    Returns:
        The metrics by name, ``"intervals"`` with the [low, high] of each at 95 %, ``"examples"``, ``"task"`` and the
        other entries of :func:`heedful.evaluation.evaluate.evaluate`.

    >>> import heedful
    >>> heedful.evaluate("runs/films", [{"text": "a fine day", "label": "good"}])["accuracy"]  # doctest: +SKIP
    100.0
    """
    from heedful.evaluation.evaluate import evaluate as evaluate_files
    from heedful.training.callbacks import TrainingRun

    folder = os.fspath(model.folder if isinstance(model, TrainingRun) else model)
    with tempfile.TemporaryDirectory() as temporary:
        if python_data.is_path(data):
            sources = python_data.as_paths(data)
        else:
            table = Path(temporary) / "rows.jsonl"
            python_data.write_table(data.get(split, data) if python_data.is_splits(data) else data, table)
            sources = (str(table),)
        result = evaluate_files(
            folder,
            sources,
            columns=columns,
            decoding=decoding,
            device=device,
            dtype=dtype,
            split=split,
            say=_silent if quiet else say_to(False),
        )
    return {**result.pop("metrics"), **result}


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
            arguments = sorted({*known, *SECTIONS} - {*SECTIONS.values()})
            raise HeedfulError(f"heedful.train has no argument {argument!r}; {nearest(argument, arguments)}")
        if values is None:
            continue
        if not isinstance(values, Mapping):
            raise HeedfulError(f"{argument} is of type {type(values).__name__}; give a dict of settings by name")
        result[section] = {name.replace("-", "_"): tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return result


class _Tables:
    """The tables of Python data in a run folder, and the folder of a model that is passed as an object.

    Args:
        out: the run's folder.
        resume: tables that are there are read again; rows that are passed must be as many.
        overwrite: tables that are there are replaced.
        writes: False on ranks above 0, which only name the files.
    """

    def __init__(self, out: Path, *, resume: bool, overwrite: bool, writes: bool) -> None:
        self.folder, self.resume, self.writes = out / DATA, resume, writes
        if not writes:
            return
        if out.exists() and not out.is_dir():
            raise HeedfulError(f"out={str(out)!r} is a file; choose another folder")
        if not (resume or overwrite) and not is_unused(out):
            raise HeedfulError(
                f"the folder out={str(out)!r} is not empty; resume=True continues the run in it, overwrite=True "
                "replaces it"
            )
        if overwrite:
            check_overwrite(RunSettings(task="", train=("-",), out=os.fspath(out), overwrite=True))

    @contextmanager
    def removed_on_error(self) -> Iterator[None]:
        """Removes what was written if the block raises an error before the run has begun; an interrupt keeps it."""
        out = self.folder.parent
        existed = out.exists()
        try:
            yield
        except Exception:
            if self.writes and not self.resume and is_unused(out) and self.folder.is_dir():
                shutil.rmtree(self.folder)
                if not existed and not contents(out):
                    out.rmdir()
            raise

    def sources(self, data: Any, valid: Any) -> dict[str, tuple[str, ...] | None]:
        """Returns the settings ``train`` and ``valid``: the paths, or those of the tables."""
        if data is None:
            return self._sources_of_run(valid)
        held = python_data.split_of(data, "valid") if valid is None else valid
        return {
            "train": self._paths(python_data.split_of(data, "train"), "train"),
            "valid": None if held is None else self._paths(held, "valid"),
        }

    def _sources_of_run(self, valid: Any) -> dict[str, tuple[str, ...] | None]:
        run = self.folder.parent / SETTINGS
        if not self.resume or not run.is_file():
            raise HeedfulError(f"data is missing; give {python_data.ACCEPTED}")
        first = read_toml(run)
        return {"train": first.train, "valid": first.valid if valid is None else self._paths(valid, "valid")}

    def _paths(self, data: Any, split: str) -> tuple[str, ...]:
        """Returns the paths of ``data``, after writing it to a table if it is no path."""
        if python_data.is_path(data):
            return python_data.as_paths(data)
        path = self.folder / f"{split}.jsonl"
        if self.writes:
            if self.resume and path.is_file():
                self._check_rows(data, path, split)
            else:
                python_data.write_table(data, path)
        return (os.fspath(path),)

    def _check_rows(self, data: Any, path: Path, split: str) -> None:
        """Raises ``HeedfulError`` where the number of rows is not that of the table, if the data has a length."""
        if isinstance(data, Mapping) or not hasattr(data, "__len__"):
            return
        with path.open("rb") as file:
            count = sum(1 for _ in file)
        if count != len(data):
            raise HeedfulError(
                f"the run in {self.folder.parent} has {plural(count, 'row')} of {split} data, but {len(data):,} were "
                "passed; leave the data out (data=None), or train into another folder"
            )

    def model_folder(self, model: Any) -> str | None:
        """Returns the folder to fine-tune from; a model object is saved into the run's folder."""
        if model is None or isinstance(model, str | PathLike):
            return None if model is None else os.fspath(model)
        if not hasattr(model, "save_pretrained"):
            raise HeedfulError(f"model is of type {type(model).__name__}; give a folder, a name on the Hub or a model")
        folder = self.folder / "model"
        if self.writes and not (self.resume and folder.is_dir()):
            model.save_pretrained(folder)
            if model.source:
                copy_beside(find(model.source), folder)
        return os.fspath(folder)
