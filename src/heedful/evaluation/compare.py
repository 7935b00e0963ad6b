"""``heedful compare``: scores two models on the same examples, with intervals and the examples that differ."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from heedful.data import Rows
from heedful.errors import HeedfulError, plural
from heedful.evaluation.evaluate import check_split, read_rows
from heedful.evaluation.trained_on import Overlap, others_of, overlap_line
from heedful.inference.pipeline import Pipeline, pipeline
from heedful.metrics.example_scores import metrics_of_draws
from heedful.metrics.intervals import caveats
from heedful.metrics.paired import Difference, comparison_line, differences
from heedful.tasks.task import Encoded, Measured, short

ANY_TOKENS = "bits_per_byte"  # compares models with different tokenizers; a loss per token does not
MOST = 300  # characters of an input that are printed


def compare(
    models: Sequence[str],
    data: Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    decoding: Mapping[str, Any] | None = None,
    device: str | None = None,
    dtype: str | None = None,
    split: str | None = "test",
    examples: int = 5,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Compares two models on the same examples: metrics, intervals, p-values, and a verdict.

    Args:
        models: the folders of model A and model B.
        data: a file, parallel files, a folder, or a built-in set; if it has several splits, ``split`` is read.
        columns: column names in the file.
        decoding: decoding options of both models, named as in ``generate``.
        device: device of the models.
        dtype: dtype of the weights: "float32", "bfloat16", "float16", "int8" or "int4"; None keeps the stored dtype.
        split: "train", "valid" or "test".
        examples: maximum number of differing examples to return.
        say: called with each line of progress.

    Returns:
        ``{"task", "models", "data", "examples", "main_metric", "verdict", "metrics", "differing_examples", "seconds",
        "decoding"}``.

        ``metrics`` has for each metric the fields of ``Difference`` (a single example has no interval and no p-value).
        ``main_metric`` is the metric of the ``verdict``. ``differing_examples`` has the examples that differ most, each
        as ``{"place", "file", "line", "input", "expected", "a", "b", "score_a", "score_b"}``.

        If a folder has the hashes of its training rows, there are also ``"trained_on"``, the number of examples on
        which models ``"a"`` and ``"b"`` were trained, and ``"metrics_others"``, which has the fields of ``metrics`` for
        the examples on which neither was trained.

    Raises:
        HeedfulError: the models have different tasks, input columns or main metrics, a model cannot be loaded, or the
            data cannot be read.
    """
    check_split(split)
    pipes = [pipeline(None, model, device=device, dtype=dtype) for model in models]
    options = pipes[0].check_options(decoding or {})
    pipes = [pipe.for_options(options) for pipe in pipes]
    _check_comparable(models, pipes)
    task = pipes[0].task
    rows = read_rows(pipes, data, columns, split)
    for note in rows.notes:
        say(note.replace("--data.columns", "--columns"))
    encoded = _encoded(pipes, rows, say)
    if note := pipes[0].task.align_scoring(pipes[1].task):
        say(note)
    began = time.monotonic()
    measured = [_measure(pipe, part, options) for pipe, part in zip(pipes, encoded, strict=True)]
    seconds = round(time.monotonic() - began, 3)
    metrics = _differences(measured, say)
    main_metric = next((name for name in (ANY_TOKENS, task.main_metric, *metrics) if name in metrics), None)
    if main_metric is None:
        raise HeedfulError(
            f"no metric of {' or '.join(map(str, models))} is a finite number on {', '.join(data)}; check the models, "
            "or give other data"
        )
    overlaps = [Overlap.of(model, pipe.task, encoded[0].rows) for model, pipe in zip(models, pipes, strict=True)]
    return {
        "task": task.name,
        "models": [str(model) for model in models],
        "data": list(data),
        "examples": len(encoded[0].rows),
        "main_metric": main_metric,
        "verdict": comparison_line(main_metric, metrics[main_metric]),
        "metrics": {name: asdict(difference) for name, difference in metrics.items()},
        **_trained_on(overlaps, measured, encoded[0].rows, main_metric, say),
        "differing_examples": _differ(pipes[0], encoded[0].rows, measured, main_metric, examples),
        "seconds": seconds,
        "decoding": options,
    }


def _measure(pipe: Pipeline, encoded: Encoded, options: Mapping[str, Any]) -> Measured:
    pipe.model.eval()
    return pipe.task.measure(pipe.model, encoded.examples, encoded.rows, **options)


def _differences(measured: Sequence[Measured], say: Callable[[str], None]) -> dict[str, Difference]:
    """Returns the difference of each metric, with intervals if there are per-example scores; prints their caveats."""
    a, b = (result.example_scores for result in measured)
    if a is None or b is None or len(a) < 2:
        return _without_intervals(measured)
    for line in caveats(a, {}):
        say(line)
    return differences(a, b)


def _trained_on(
    overlaps: Sequence[Overlap | None],
    measured: Sequence[Measured],
    rows: Rows,
    main_metric: str,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Returns and prints how many of the examples each model was trained on, and the metrics of the other examples."""
    result: dict[str, Any] = {}
    known = [overlap for overlap in overlaps if overlap is not None]
    if not known:
        return result
    result["trained_on"] = {name: overlap and overlap.trained for name, overlap in zip("ab", overlaps, strict=True)}
    if not any(overlap.trained for overlap in known):
        return result
    others = np.logical_and.reduce([overlap.others for overlap in known])
    parts = [others_of(scores, rows, others) for scores in measured]
    a, b = parts
    if a is not None and b is not None and len(a) > 1:
        result["metrics_others"] = {name: asdict(value) for name, value in differences(a, b).items()}
    for letter, overlap, scores, part in zip("AB", overlaps, measured, parts, strict=True):
        if overlap is not None and overlap.trained:
            say(f"{letter}: {overlap_line(overlap, main_metric, scores.metrics, part)}")
    return result


def _without_intervals(measured: Sequence[Measured]) -> dict[str, Difference]:
    """Returns the differences of metrics without intervals, for scores that cannot be resampled, such as
    those of a single example.
    """
    a, b = (
        {name: x for name, x in part.metrics.items() if isinstance(x, float) and np.isfinite(x)} for part in measured
    )
    return {name: Difference(a[name], b[name], b[name] - a[name]) for name in a if name in b}


def _check_comparable(models: Sequence[str], pipes: Sequence[Pipeline]) -> None:
    """Raises ``HeedfulError`` for models of different tasks, columns or metrics."""
    a, b = (pipe.task for pipe in pipes)
    if a.name != b.name:
        raise HeedfulError(
            f"{models[0]} is for {a.name}, {models[1]} for {b.name}; only models of the same task can be compared"
        )
    if list(a.columns) != list(b.columns):
        columns = [", ".join(task.columns) for task in (a, b)]
        raise HeedfulError(
            f"{models[0]} takes {columns[0]}, {models[1]} takes {columns[1]}; only models with the same columns can be "
            "compared"
        )
    if a.main_metric != b.main_metric:
        raise HeedfulError(
            f"the main metric of {models[0]} is {a.main_metric}, that of {models[1]} is {b.main_metric}; only models "
            "with the same main metric can be compared"
        )


def _encoded(pipes: Sequence[Pipeline], rows: Rows, say: Callable[[str], None]) -> list[Encoded]:
    """Returns the examples of each model, encoded from the rows that both models accept."""
    encoded = [pipe.task.encode(rows) for pipe in pipes]
    accepted = [{id(row) for row in part.rows} for part in encoded]
    both = Rows((row for row in rows if all(id(row) in ids for ids in accepted)), rows.skipped, rows.columns)
    say(f"{plural(len(both))}{f', {rows.skipped:,} blank or unreadable ones left out' if rows.skipped else ''}")
    for letter, part in zip("AB", encoded, strict=True):
        if part.note:
            say(f"{letter}: {part.note}")
    if len(both) == len(encoded[0].rows) == len(encoded[1].rows):
        return encoded
    if not both:
        raise HeedfulError("no example is accepted by both models; give shorter examples")
    say(f"{plural(len(rows) - len(both))} left out for both models: not accepted by one of the models")
    return [pipe.task.encode(both) for pipe in pipes]


def _differ(
    pipe: Pipeline, rows: Rows, measured: Sequence[Measured], main_metric: str, most: int
) -> list[dict[str, Any]]:
    """Returns the examples that differ most by the main metric, then by loss. If the models have outputs, these are
    examples with different outputs, otherwise examples with different scores.
    """
    a, b = measured
    if a.example_scores is None or b.example_scores is None or len(rows) != len(a.example_scores):
        return []
    has_outputs = len(a.outputs) == len(b.outputs) == len(rows)
    row_indices = [
        i for i in range(len(rows)) if not has_outputs or _without_scores(a.outputs[i]) != _without_scores(b.outputs[i])
    ]
    alone = np.array(row_indices, dtype=np.int64).reshape(-1, 1)
    scores_a, scores_b = metrics_of_draws(a.example_scores, alone), metrics_of_draws(b.example_scores, alone)

    def distance(at: int) -> tuple[float, ...]:
        return tuple(abs(scores_b[at].get(name, 0.0) - scores_a[at].get(name, 0.0)) for name in (main_metric, "loss"))

    entries = []
    differing = [at for at in range(len(row_indices)) if has_outputs or any(distance(at))]
    for at in sorted(differing, key=distance, reverse=True)[:most]:
        row = rows[row_indices[at]]
        given, expected = pipe.task.input_and_target(row)
        index, brief_input = row_indices[at], _brief(given)
        entry = {"place": index, "file": row.file, "line": row.line, "input": brief_input, "expected": expected}
        if has_outputs:
            entry |= {"a": a.outputs[index], "b": b.outputs[index]}
        entries.append(entry | {"score_a": scores_a[at].get(main_metric), "score_b": scores_b[at].get(main_metric)})
    return entries


def _without_scores(output: Any) -> Any:
    if isinstance(output, Mapping):
        return {name: value for name, value in output.items() if name != "score"}
    return [_without_scores(item) for item in output] if isinstance(output, list) else output


def _brief(value: Any) -> Any:
    """Returns an input with each of its texts shortened to one line."""
    if isinstance(value, list):
        return list(map(_brief, value))
    return short(value, MOST) if isinstance(value, str) else value
