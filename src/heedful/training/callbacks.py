"""Callbacks of a run: what the loop calls, and the run as callbacks and Python users see it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.errors import HeedfulError, nearest
from heedful.util.files import parse_json

if TYPE_CHECKING:
    from typing import Unpack

    from heedful.inference.pipeline import Pipeline
    from heedful.models import Model
    from heedful.settings.typed_dicts import PredictionOptions
    from heedful.training.loop import Loop

EVENTS = ("on_begin", "on_step", "on_evaluation", "on_save", "on_end")
SHOWN_METRICS = 12  # rows of the table in a notebook


class TrainingRun:
    """Training run: callbacks get it and can stop it, and ``heedful.train`` returns it.

    Attributes:
        folder: the run's folder.
        task: name of the task.
        metrics: metrics of the best evaluation; during training, of the last evaluation, and ``{}`` before the first.
        result: what ``heedful train --json`` prints, with the ``"verdict"``; ``{}`` during training.

    >>> import heedful
    >>> run = heedful.train("text-classification", "reviews.csv", out="runs/reviews")  # doctest: +SKIP
    >>> run.metrics["accuracy"], run.pipeline("A fine film.")["output"]  # doctest: +SKIP
    (87.5, 'positive')
    """

    def __init__(self, folder: str | Path, task: str) -> None:
        self.folder, self.task = Path(folder), task
        self.metrics: dict[str, float] = {}
        self.result: dict[str, Any] = {}
        self._loop: Loop | None = None
        self._last_loss: float | None = None
        self._stop_reason = ""

    @property
    def step(self) -> int:
        """Number of steps done."""
        return int(self.result.get("steps", 0)) if self._loop is None else self._loop.step

    @property
    def epoch(self) -> float:
        """Number of epochs done, with a fraction."""
        return float(self.result.get("epochs", 0.0)) if self._loop is None else self._loop.epochs

    @property
    def loss(self) -> float | None:
        """Training loss per prediction in the last step; None before the first step. Waits for the device."""
        if self._loop is not None:
            return self._loop.last_loss()
        if self._last_loss is None and self.result:  # without callbacks: the mean of the last logged steps
            return next((line["loss"] for line in reversed(self.history) if line.get("loss") is not None), None)
        return self._last_loss

    @property
    def history(self) -> list[dict[str, Any]]:
        """Lines of the log so far, with ``"step"``, ``"loss"``, ``"lr"`` and, after an evaluation, ``"valid_..."``."""
        log = self.folder / "metrics.jsonl"
        if not log.is_file():
            return []
        texts = log.read_text(encoding="utf-8").splitlines()
        return [line for text in texts if isinstance(line := parse_json(text, log, "remove the line"), dict)]

    @property
    def model(self) -> Model:
        """The model, in training with its current weights, afterwards with the best ones."""
        return self._best_model if self._loop is None else self._loop.model  # type: ignore[return-value]

    @cached_property
    def _best_model(self) -> Model:
        from heedful.pretrained import load

        return load(self.folder)

    @property
    def verdict(self) -> str:
        """Verdict on a run that has ended, whether its model is better than a simple method. "" before the end."""
        return str(self.result.get("verdict", {}).get("text", ""))

    def pipeline(self, inputs: Any, **options: Unpack[PredictionOptions]) -> Any:
        """Predicts with the best weights, like ``heedful.pipeline(None, run.folder)(inputs, **options)``.

        ``inputs`` may also be a column of a DataFrame, or an array of texts or of images. The first call loads the
        model.
        """
        if hasattr(inputs, "to_dict") and getattr(inputs, "ndim", 0) == 2:
            columns = list(self._pipeline.task.input_columns)
            if len(columns) == 1:
                name = columns[0] if columns[0] in inputs else next(iter(inputs))
                raise HeedfulError(
                    f"inputs is a table, but the model takes one {columns[0]}; give a column, such as {name!r}"
                )
            inputs = inputs.to_dict("records")
        if hasattr(inputs, "tolist") and getattr(inputs, "ndim", 0) == 1:
            inputs = inputs.tolist()
        elif hasattr(inputs, "__array__") and getattr(inputs, "ndim", 0) == 4:
            inputs = list(inputs)
        return self._pipeline(inputs, **options)

    @cached_property
    def _pipeline(self) -> Pipeline:
        from heedful.inference.pipeline import pipeline

        if self._loop is not None:
            raise HeedfulError("run.pipeline needs a run that has ended; call run.model in a callback")
        return pipeline(None, self.folder)

    def stop(self, reason: str = "a callback stopped it") -> None:
        """Ends the run after the current step, which is evaluated and saved; the run can be resumed."""
        self._stop_reason = reason or "a callback stopped it"

    @property
    def stop_reason(self) -> str:
        """The reason given to :meth:`stop`; "" before :meth:`stop` is called."""
        return self._stop_reason

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        return f"<run of {self.task} in {self.folder}: step {self.step:,}{', ' + numbers if numbers else ''}>"

    def _repr_html_(self) -> str:
        """Returns the curve, the metrics and the verdict, as a notebook shows them."""
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th><td>{value:.4g}</td></tr>"
            for name, value in list(self.metrics.items())[:SHOWN_METRICS]
        )
        curve = self.folder / "curve.svg"
        figure = curve.read_text(encoding="utf-8") if curve.is_file() else ""
        return (
            f"<div><p><b>{escape(self.task)}</b> in <code>{escape(str(self.folder))}</code>, step {self.step:,}</p>"
            f"<div style='max-width:44rem'>{figure}</div><table>{rows}</table><p>{escape(self.verdict)}</p></div>"
        )

    def finish(self, result: Mapping[str, Any]) -> None:
        """Sets ``result`` and ``metrics``, once the run has ended."""
        self._last_loss = None if self._loop is None else self._loop.last_loss()
        self._loop = None
        self.result = json.loads(json.dumps(result))
        self.metrics = {name: value for name, value in result["metrics"].items() if isinstance(value, int | float)}


class Callbacks:
    """Callbacks of a run, which are called in their order, on rank 0 only.

    Args:
        callbacks: objects with any of the methods ``on_begin``, ``on_step``, ``on_evaluation``, ``on_save`` and
            ``on_end``; each takes the :class:`TrainingRun`. A function takes the place of ``on_step``.
        run: the run.

    Raises ``HeedfulError`` for an object without any of these methods, and for an unknown ``on_...`` method.
    """

    def __init__(self, callbacks: Sequence[Any], run: TrainingRun) -> None:
        self.run = run
        self._functions: dict[str, list[Callable[[TrainingRun], object]]] = {event: [] for event in EVENTS}
        for callback in callbacks:
            self._add(callback)

    def _add(self, callback: Any) -> None:
        if isinstance(callback, type):
            raise HeedfulError(f"the callback {callback.__name__} is a class; pass an object: {callback.__name__}()")
        names = [name for name in dir(callback) if name.startswith("on_") and callable(getattr(callback, name))]
        unknown = next((name for name in names if name not in EVENTS), None)
        if unknown is not None:
            raise HeedfulError(f"the callback {callback!r} has an unknown method {unknown}; {nearest(unknown, EVENTS)}")
        if not names and not callable(callback):
            raise HeedfulError(f"the callback {callback!r} has none of the methods {', '.join(EVENTS)}; add one")
        for name in names:
            self._functions[name].append(_taking_the_run(getattr(callback, name), name))
        if not names:
            self._functions["on_step"].append(_taking_the_run(callback, "a callback"))

    def _call(self, event: str) -> None:
        for function in self._functions[event]:
            function(self.run)

    def begin(self, loop: Loop) -> None:
        """Calls ``on_begin``, before the first step and after the checkpoint of a resumed run was read."""
        self.run._loop = loop
        self._call("on_begin")

    def step(self) -> None:
        """Calls ``on_step`` and the functions, after each step."""
        self._call("on_step")

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """Calls ``on_evaluation``, after each evaluation."""
        self.run.metrics = dict(metrics)
        self._call("on_evaluation")

    def saved(self) -> None:
        """Calls ``on_save``, after a checkpoint was taken; its file is written in the background."""
        self._call("on_save")

    def end(self, result: Mapping[str, Any]) -> None:
        """Calls ``on_end``, after the run's last files are written."""
        self.run.finish(result)
        self._call("on_end")

    @property
    def wants_stop(self) -> bool:
        """True if a callback has called :meth:`TrainingRun.stop`."""
        return bool(self.run.stop_reason)


def _taking_the_run(function: Callable[..., object], name: str) -> Callable[[TrainingRun], object]:
    """Returns the function; raises ``HeedfulError`` if it cannot be called with one argument, the run."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function in C
        return function
    try:
        signature.bind(None)
    except TypeError:
        raise HeedfulError(
            f"{name} is called with one argument, the run, but it takes {signature}; let it take one argument"
        ) from None
    return function
