"""``heedful evaluate``: scores a model folder on a file of examples with the metrics of its task."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heedful.data import Rows, hub_datasets
from heedful.data.builtin import PREFIX, SPLITS
from heedful.data.conll import with_stripped_words
from heedful.data.prediction_inputs import name_columns_option
from heedful.data.text_files import STDIN
from heedful.errors import HeedfulError, nearest, plural
from heedful.evaluation.trained_on import Overlap, others_of, overlap_line
from heedful.inference.pipeline import Pipeline, pipeline
from heedful.metrics.example_scores import overall
from heedful.metrics.intervals import caveats, intervals
from heedful.settings import RunSettings, with_present_keys
from heedful.tasks.run_data import columns_in_card, equality_rule, stripped_prefix, train_and_validation_rows
from heedful.tasks.task import Measured
from heedful.util.busy_machine import sleep_while_waiting
from heedful.util.ranks import join_ranks, own_device
from heedful.util.sharding import among


def evaluate(
    model: str,
    data: Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    decoding: Mapping[str, Any] | None = None,
    device: str | None = None,
    dtype: str | None = None,
    compiled_decoding: bool = True,
    split: str | None = "test",
    baseline: bool = False,
    baseline_train: Sequence[str] | None = None,
    say: Callable[[str], None] = print,
    draw: Callable[[Measured, Rows], Sequence[Path]] | None = None,
) -> dict[str, Any]:
    """Evaluates the model in a folder on the examples in ``data``.

    With ``torchrun`` the ranks shard the examples; rank 0 alone prints and draws, and all ranks return the same result.

    Args:
        model: a model folder.
        data: a file, parallel files, a folder, or a built-in set; if it has several splits, ``split`` is read.
        columns: column names in the file.
        decoding: decoding options, named as in ``generate``.
        device: device of the model.
        dtype: dtype of the weights: "float32", "bfloat16", "float16", "int8" or "int4"; None keeps the stored dtype.
        compiled_decoding: decode with compiled code on a CPU, with CUDA graphs on an NVIDIA GPU (``heedful.optimize``);
            False: with PyTorch's kernels, one call each.
        split: "train", "valid" or "test".
        baseline: also scores a simple method on the same examples; if the method learns, it is trained on the model's
            training data.
        baseline_train: files on which the simple method is trained, instead of the model's training data.
        say: called with each line of progress.
        draw: called with the result of the evaluation and its rows, to draw a figure; returns the files it wrote.

    Returns:
        ``{"task", "model", "data", "examples", "metrics", "intervals", "seconds", "decoding", "kernels"}``, and the
        details of the task, such as ``"by_class"``, ``"confusion"`` and ``"mistakes"`` of a classifier (``"place"`` is
        the index of the row among the evaluated ones, from 0; ``"input"`` is cut to 200 characters), or ``"by_format"``
        of a translation whose rows have a ``format``. The rows of a mixture have ``"by_set"`` and ``"by_template"``,
        with the metrics of each.

        ``kernels`` is the plan of the kernels that ran (``heedful.kernels.plan``).
        ``intervals`` has [low, high] of the metrics (``heedful.metrics.intervals``). With ``baseline`` there is also
        ``"baseline"``, with its ``"name"`` and ``"metrics"``. If the folder has the hashes of its training rows, there
        is ``"trained_on"``, the number of examples on which the model was trained, and, if there are other examples,
        ``"metrics_others"``, their metrics (``heedful.evaluation.trained_on``).
    """
    check_split(split)
    with join_ranks() as ranks, among(ranks), sleep_while_waiting():
        if ranks.size > 1 and STDIN in data:
            raise HeedfulError("torchrun passes standard input to one process only; name a file, or leave torchrun out")
        if not ranks.is_first:
            say, draw = _silent, None
        pipe = pipeline(None, model, device=own_device(device), dtype=dtype, compiled_decoding=compiled_decoding)
        options = pipe.check_options(decoding or {})
        pipe = pipe.for_options(options)
        rows = read_rows([pipe], data, columns, split)
        encoded = pipe.task.encode(rows)
        for line in _reading_lines(rows, encoded.note):
            say(line)
        extra: dict[str, Any] = {}
        if baseline or baseline_train is not None:  # before the model, so that an error costs no evaluation
            extra["baseline"] = ranks.run_on_first(lambda: _baseline(pipe, encoded.rows, columns, baseline_train))
        began = time.monotonic()
        pipe.model.eval()
        measured = pipe.task.measure(pipe.model, encoded.examples, encoded.rows, **options)
        seconds = round(time.monotonic() - began, 3)
    extra |= _trained_on(pipe, model, encoded.rows, measured, say)
    bounds = {} if measured.example_scores is None else intervals(measured.example_scores)
    warnings = [] if measured.example_scores is None else caveats(measured.example_scores, bounds)
    for line in (*measured.details.get("warnings", ()), *warnings):
        say(line)
    if draw is not None:
        _say_drawn(pipe.task.name, measured, draw(measured, encoded.rows), say)
    return {
        "task": pipe.task.name,
        "model": str(model),
        "data": list(data),
        "examples": len(encoded.rows),
        "metrics": measured.metrics,
        "intervals": {name: list(bound) for name, bound in bounds.items() if name in measured.metrics},
        **extra,
        **measured.details,
        **_by_template(measured, encoded.rows),
        "seconds": seconds,
        "decoding": options,
        "kernels": pipe.model.kernels,
    }


def check_split(split: str | None) -> None:
    """Raises ``HeedfulError`` for a split other than "train", "valid" and "test"; None is accepted."""
    if split is not None and split not in SPLITS:
        raise HeedfulError(f"unknown split {split!r}; {nearest(split, SPLITS)}")


def read_rows(pipes: Sequence[Pipeline], data: Sequence[str], columns: Sequence[str] | None, split: str | None) -> Rows:
    """Reads the rows of ``data`` for one or more models of one task.

    Column names, label separator and word prefix are those of the training data, if the folders have them; ``columns``
    takes precedence.
    """
    card = pipes[0].card
    remembered = next(filter(None, (columns_in_card(pipe.card) for pipe in pipes)), {})
    separator = card.get("settings", {}).get("data", {}).get("label_separator")
    with name_columns_option():
        task = pipes[0].task
        rows = task.read_rows(
            list(data), task.columns, names=columns, split=split, separator=separator, remembered=remembered
        )
    return with_stripped_words(rows, stripped_prefix(card))


def _trained_on(
    pipe: Pipeline, folder: str, rows: Rows, measured: Measured, say: Callable[[str], None]
) -> dict[str, Any]:
    """Returns and prints how many of the rows the model was trained on, and the metrics of the other rows."""
    overlap = Overlap.of(folder, pipe.task, rows)
    if overlap is None:
        return {}
    result: dict[str, Any] = {"trained_on": overlap.trained}
    if overlap.trained:
        others = others_of(measured, rows, overlap.others)
        say(overlap_line(overlap, pipe.task.main_metric, measured.metrics, others))
        if others is not None:
            metrics = overall(others).items()
            result["metrics_others"] = {name: value for name, value in metrics if name in measured.metrics}
    return result


def _by_template(measured: Measured, rows: Rows) -> dict[str, Any]:
    """Returns the metrics of each set and each template of a mixture; {} for other rows."""
    scores, result = measured.example_scores, dict[str, Any]()
    if scores is None or len(scores) != len(rows) or not all("template" in row.values for row in rows):
        return result
    for column in ("set", "template"):
        places: dict[str, list[int]] = {}
        for index, row in enumerate(rows):
            places.setdefault(row.values[column], []).append(index)
        result[f"by_{column}"] = {
            name: {**scores.metrics_of(np.array(own)), "examples": len(own)} for name, own in places.items()
        }
    return result


def _say_drawn(task: str, measured: Measured, drawn: Sequence[Path], say: Callable[[str], None]) -> None:
    """Prints the drawn files and how many of the mistakes they have, or that the task has no figure."""
    wrong = measured.details.get("mistakes_total")
    if not drawn:
        say(f"no figure was drawn: there is none for {task}, so --out was not written")
        return
    shown = f"; the {len(measured.details['mistakes']):,} most confident of {plural(wrong, 'mistake')}" if wrong else ""
    say(f"written: {', '.join(map(str, drawn))}{shown}")


def _silent(line: str) -> None:
    """Prints nothing; replaces ``say`` on ranks above 0."""


def _reading_lines(rows: Rows, note: str) -> list[str]:
    skipped = f", {rows.skipped:,} blank or unreadable ones left out" if rows.skipped else ""
    return [f"{plural(len(rows))}{skipped}", *map(_by_columns, rows.notes), *([note] if note else [])]


def _by_columns(note: str) -> str:
    """Returns a note with ``--columns``, the name of ``--data.columns`` in this command."""
    return note.replace("--data.columns", "--columns")


def _baseline(pipe: Pipeline, rows: Rows, columns: Sequence[str] | None, files: Sequence[str] | None) -> dict[str, Any]:
    """Returns the scores of the task's simple method on ``rows``."""
    calls, given = [], None if files is None else training_rows(pipe, columns, files)

    def read_training_rows() -> Rows:
        calls.append(True)
        return training_rows(pipe) if given is None else given

    baseline = pipe.task.baseline(rows, read_training_rows)
    if files is not None and not calls:
        raise HeedfulError(
            f"--baseline-train has no effect: the baseline ({baseline.name}) is not trained; leave the option out"
        )
    return baseline.as_dict()


def training_rows(pipe: Pipeline, columns: Sequence[str] | None = None, files: Sequence[str] | None = None) -> Rows:
    """Returns the rows on which a model was trained.

    They are read again from the training data that the model's folder names, and split again to leave out the
    validation rows. With ``files``, returns all rows of these files instead. They are read with the columns of training
    or, if the folder has none, with ``columns``. Raises ``HeedfulError`` if the data is unknown or cannot be found.
    """
    saved = pipe.card.get("settings")
    settings = None if saved is None else RunSettings.from_dict(with_present_keys(saved))
    if files is not None:
        data = None if settings is None else settings.data
        names, separator = (columns, None) if data is None else (data.columns or columns, data.label_separator)
        remembered = columns_in_card(pipe.card)
        rows = pipe.task.read_rows(
            list(files), pipe.task.columns, names=names, split="train", separator=separator, remembered=remembered
        )
        return with_stripped_words(rows, stripped_prefix(pipe.card))
    remedy = "name the files that the baseline learns from: --baseline-train FILE"
    if settings is None:
        raise HeedfulError(f"the model's folder does not say what it was trained on; {remedy}")
    for file in settings.train:
        if not file.startswith((PREFIX, hub_datasets.PREFIX)) and not Path(file).exists():
            raise HeedfulError(f"the model was trained on {file}, which cannot be found; {remedy}")
    return train_and_validation_rows(type(pipe.task), settings, settled=True, same=equality_rule(pipe.card))[0]
