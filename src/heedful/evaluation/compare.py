"""``heedful compare``: two models on the same examples, with intervals and the examples that differ."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from heedful.data import Rows, read
from heedful.data.builtin import SPLITS
from heedful.data.conll import stripped
from heedful.data.input_files import by_columns
from heedful.errors import HeedfulError, many, nearest
from heedful.evaluation.trained_on import Overlap, others_of, overlap_line
from heedful.inference.pipeline import Pipeline, pipeline
from heedful.metrics.example_scores import each
from heedful.metrics.intervals import doubts
from heedful.metrics.paired import Difference, differences, verdict
from heedful.tasks.sources import columns_of, prefix_of
from heedful.tasks.task import Encoded, Measured, short
from heedful.tasks.translation import Translation

ANY_TOKENS = "bits_per_byte"  # tells models apart whose tokens differ; a loss a token does not
MOST = 300  # characters of an input that are shown


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
    """Let two models answer every example of ``data``, and tell which of them is better, if that can be told.

    Args:
        models: the folders of model A and model B.
        data: a file, parallel files, a folder, or a built-in set; of a set with several parts, ``split`` is taken.
        columns: the columns' names in the file.
        decoding: how both search for answers, by ``generate``'s names.
        device: where to compute.
        dtype: of the weights, as ``heedful.pipeline`` takes it.
        split: "train", "valid" or "test".
        examples: show at most so many examples that the models answer differently.
        say: takes a line about what goes on.

    Returns:
        ``{"task", "models", "data", "examples", "decides", "verdict", "metrics", "differ", "seconds", "decoding"}``:
        ``metrics`` holds for each metric the fields of ``Difference`` (a single example, as a text is one, has no
        interval and no p), ``decides`` is the metric that the ``verdict`` is about, and ``differ`` the examples that
        most tell the models apart. Where a folder tells what its model was trained on, also ``"trained_on"``, how many
        of the examples ``"a"`` and ``"b"`` were, and ``"metrics_others"``, the fields of those that neither was. Of
        ``differ`` each is ``{"place", "file", "line", "input", "expected", "a", "b", "score_a", "score_b"}``.

    Raises:
        HeedfulError: models of different tasks, or asked with different columns; and as ``evaluate``.
    """
    if split is not None and split not in SPLITS:
        raise HeedfulError(f"unknown split {split!r}; {nearest(split, SPLITS)}")
    pipes = [pipeline(None, model, device=device, dtype=dtype) for model in models]
    _check_alike(models, pipes)
    task = pipes[0].task
    options = pipes[0].checked(decoding or {})
    separator = pipes[0].card.get("settings", {}).get("data", {}).get("label_separator")
    with by_columns():
        rows = read(
            list(data),
            task.columns,
            names=columns,
            split=split,
            separator=separator,
            remembered=columns_of(pipes[0].card) or columns_of(pipes[1].card),
        )
    rows = stripped(rows, prefix_of(pipes[0].card))
    for note in rows.notes:
        say(note.replace("--data.columns", "--columns"))
    encoded = _encoded(pipes, rows, say)
    _in_one_case(pipes, say)
    began = time.monotonic()
    measured = []
    for pipe, made in zip(pipes, encoded, strict=True):
        pipe.model.eval()
        measured.append(pipe.task.measure(pipe.model, made.examples, made.rows, **options))
    seconds = round(time.monotonic() - began, 3)
    a, b = (one.each for one in measured)
    if a is None or b is None or len(a) < 2:
        found = _beside(measured)
    else:
        found = differences(a, b)
        for line in doubts(a, {}):
            say(line)
    decides = next((name for name in (ANY_TOKENS, task.decides, *found) if name in found), None)
    if decides is None:
        raise HeedfulError(f"no score of {' or '.join(map(str, models))} is a finite number on {', '.join(data)}")
    overlaps = [Overlap.of(model, pipe.task, encoded[0].rows) for model, pipe in zip(models, pipes, strict=True)]
    return {
        "task": task.name,
        "models": [str(model) for model in models],
        "data": list(data),
        "examples": len(encoded[0].rows),
        "decides": decides,
        "verdict": verdict(decides, found[decides]),
        "metrics": {name: asdict(one) for name, one in found.items()},
        **_trained_on(overlaps, measured, encoded[0].rows, decides, say),
        "differ": _differ(pipes[0], encoded[0].rows, measured, decides, examples),
        "seconds": seconds,
        "decoding": options,
    }


def _trained_on(
    overlaps: Sequence[Overlap | None],
    measured: Sequence[Measured],
    rows: Rows,
    decides: str,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """How many examples either model was trained on, for people and for JSON, and how the two differ on the others."""
    told: dict[str, Any] = {}
    known = [overlap for overlap in overlaps if overlap is not None]
    if not known:
        return told
    told["trained_on"] = {name: one and one.trained for name, one in zip("ab", overlaps, strict=True)}
    if not any(overlap.trained for overlap in known):
        return told
    others = np.logical_and.reduce([overlap.others for overlap in known])
    parts = [others_of(one, rows, others) for one in measured]
    a, b = parts
    if a is not None and b is not None and len(a) > 1:
        told["metrics_others"] = {name: asdict(one) for name, one in differences(a, b).items()}
    for letter, overlap, one, part in zip("AB", overlaps, measured, parts, strict=True):
        if overlap is not None and overlap.trained:
            say(f"{letter}: {overlap_line(overlap, decides, one.metrics, part)}")
    return told


def _beside(measured: Sequence[Measured]) -> dict[str, Difference]:
    """The metrics of both, where there are no several examples to tell chance by."""
    a, b = ({name: x for name, x in one.metrics.items() if isinstance(x, float) and np.isfinite(x)} for one in measured)
    return {name: Difference(a[name], b[name], b[name] - a[name]) for name in a if name in b}


def _check_alike(models: Sequence[str], pipes: Sequence[Pipeline]) -> None:
    """Raise where the two models do not do the same thing."""
    a, b = (pipe.task for pipe in pipes)
    if a.name != b.name:
        raise HeedfulError(
            f"{models[0]} is for {a.name}, {models[1]} for {b.name}; only models of one task can be compared"
        )
    if list(a.columns) != list(b.columns):
        asked = [", ".join(task.columns) for task in (a, b)]
        raise HeedfulError(
            f"{models[0]} is asked with {asked[0]}, {models[1]} with {asked[1]}; only models of the same columns can "
            "be compared"
        )
    if a.decides != b.decides:
        raise HeedfulError(
            f"{models[0]} is judged by {a.decides}, {models[1]} by {b.decides}; only models that answer alike can be "
            "compared"
        )


def _in_one_case(pipes: Sequence[Pipeline], say: Callable[[str], None]) -> None:
    """Score both in lower case where one of them writes nothing else."""
    translators = [pipe.task for pipe in pipes if isinstance(pipe.task, Translation)]
    if len({task.folds for task in translators}) == 2:
        say("both are scored in lower case: one of them writes no capitals")
        for task in translators:
            task.lowercase = True


def _encoded(pipes: Sequence[Pipeline], rows: Rows, say: Callable[[str], None]) -> list[Encoded]:
    """What each model makes of the rows that both can take."""
    made = [pipe.task.encode(rows) for pipe in pipes]
    taken = [{id(row) for row in one.rows} for one in made]
    both = Rows((row for row in rows if all(id(row) in ids for ids in taken)), rows.skipped, rows.columns)
    say(f"{many(len(both))}{f', {rows.skipped:,} blank or unreadable ones left out' if rows.skipped else ''}")
    for letter, one in zip("AB", made, strict=True):
        if one.note:
            say(f"{letter}: {one.note}")
    if len(both) == len(made[0].rows) == len(made[1].rows):
        return made
    if not both:
        raise HeedfulError("no example is taken by both models; give shorter ones")
    say(f"{many(len(rows) - len(both))} that one of the models cannot take left out for both")
    return [pipe.task.encode(both) for pipe in pipes]


def _differ(pipe: Pipeline, rows: Rows, measured: Sequence[Measured], decides: str, most: int) -> list[dict[str, Any]]:
    """The examples that tell the models apart most by the metric that decides, then by their loss; of models that give
    answers only those that are answered differently, of others only those that are scored differently.
    """
    a, b = measured
    if a.each is None or b.each is None or len(rows) != len(a.each):
        return []
    answered = len(a.outputs) == len(b.outputs) == len(rows)
    places = [i for i in range(len(rows)) if not answered or _bare(a.outputs[i]) != _bare(b.outputs[i])]
    alone = np.array(places, dtype=np.int64).reshape(-1, 1)
    ones, others = each(a.each, alone), each(b.each, alone)

    def apart(at: int) -> tuple[float, ...]:
        return tuple(abs(others[at].get(name, 0.0) - ones[at].get(name, 0.0)) for name in (decides, "loss"))

    found = []
    told_apart = [at for at in range(len(places)) if answered or any(apart(at))]
    for at in sorted(told_apart, key=apart, reverse=True)[:most]:
        row = rows[places[at]]
        asked, expected = pipe.task.posed(row)
        told = {"place": places[at], "file": row.file, "line": row.line, "input": _brief(asked), "expected": expected}
        if answered:
            told |= {"a": a.outputs[places[at]], "b": b.outputs[places[at]]}
        found.append(told | {"score_a": ones[at].get(decides), "score_b": others[at].get(decides)})
    return found


def _bare(output: Any) -> Any:
    """An answer without how sure the model is of its parts."""
    if isinstance(output, Mapping):
        return {name: value for name, value in output.items() if name != "score"}
    return [_bare(one) for one in output] if isinstance(output, list) else output


def _brief(value: Any) -> Any:
    """What a model is asked with, its texts cut to a line."""
    if isinstance(value, list):
        return list(map(_brief, value))
    return short(value, MOST) if isinstance(value, str) else value
