"""Verdict on a trained model: better than a baseline or than guessing, or undecided.

The metric that chose the weights is compared on the validation rows, example by example: the difference to a rival and
its 95 % interval by the paired bootstrap. The model is better or worse if the interval excludes 0. An interval from
fewer than 30 examples is too narrow; then the p-value of approximate randomisation, which the line shows, must be below
5 %, too (:func:`heedful.metrics.paired.differences`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from heedful.metrics.example_scores import Joins, Places, Scored, Sums, metrics_of_draws, overall
from heedful.metrics.intervals import FEW
from heedful.metrics.paired import ROUNDING, Difference, differences
from heedful.metrics.registry import lower_is_better, sign

Kind = Literal["better", "cannot tell", "chance", "one class", "writes nothing", "below"]
USELESS: tuple[Kind, ...] = ("chance", "one class", "writes nothing")
SMALL = 0.1  # share of the way from guessing to a perfect score; significantly less is no better than guessing
LATE, GAIN = 0.75, 0.01  # the loss fell by over 1 % in the last quarter of the steps: the run was still improving
MOST = 5_000  # maximum number of compared examples
MORE = "give more"  # examples, by default


class Rival(NamedTuple):
    """Baseline or guess with which a model is compared, scored on the same examples."""

    name: str  # for people: "TF-IDF and a linear SVM"
    scored: Scored


@dataclass(frozen=True)
class Verdict:
    """Verdict on a trained model, for people (``text``) and for programs."""

    kind: Kind
    text: str  # one line
    metric: str  # name of the compared metric
    examples: int  # number of compared examples
    value: float | None = None  # of the model
    rival: str | None = None  # name of the simple method, or of the guess
    rival_value: float | None = None
    difference: tuple[float, float] | None = None  # 95 % interval of value − rival_value
    improving: bool = False  # the run ended while its loss still fell, and its metric was not perfect
    p: float | None = None  # p-value of approximate randomisation, where it decides: below 30 examples

    @property
    def useful(self) -> bool:
        """False if the predictions do not depend on the input."""
        return self.kind not in USELESS

    def as_dict(self) -> dict[str, Any]:
        """Returns the verdict as a dictionary for JSON.

        ``"baseline"`` is ``{"name", "value"}`` or None, and ``"difference"`` a list [low, high] or None.
        """
        rival = None if self.rival is None else {"name": self.rival, "value": self.rival_value}
        return {
            "kind": self.kind,
            "text": self.text,
            "useful": self.useful,
            "improving": self.improving,
            "metric": self.metric,
            "value": self.value,
            "baseline": rival,
            "difference": None if self.difference is None else list(self.difference),
            "p": self.p,
            "examples": self.examples,
        }


def verdict(
    scored: Scored | None,
    metric: str,
    *,
    guess: Rival | None = None,
    baseline: Rival | None = None,
    outputs: Sequence[Any] = (),
    expected: Sequence[Any] = (),
    classes: bool = False,
    improving: bool = False,
    more: str = MORE,
) -> Verdict:
    """Returns the verdict on a model, which is the first of these that applies:

    - "one class" or "writes nothing": the model predicts the same for all inputs.
    - "chance": it is no better than ``guess``. Its score is not higher, or the gain is clearly below a tenth of the way
      from the guess to a perfect score.
    - "better" or "below": it is better or worse than ``baseline`` or, without a baseline, than ``guess``.
    - "cannot tell": none of these is certain.

    Args:
        scored: per-example scores of the model.
        metric: name of the metric to compare.
        guess: a prediction that ignores the input: the most frequent label, the frequencies of tokens.
        baseline: a simple method.
        outputs: the model's predictions; empty if the task has none.
        expected: the references of the same examples.
        classes: True if predictions are of a closed set (labels, tags).
        improving: True if the loss was still falling when the run ended. It does not count if the metric is perfect.
        more: what people can do about too few examples.
    """
    improving = improving and not _is_perfect(scored, metric)
    start = Verdict("cannot tell", "", metric, 0 if scored is None else len(scored), improving=improving)
    constant = constant_predictions(outputs, expected, classes)
    if constant is not None:
        return _with_text(replace(start, kind=constant[0], examples=len(outputs)), constant[1])
    over_guess, over_baseline = (_compared(scored, rival, metric) for rival in (guess, baseline))
    if over_guess is not None and guess is not None and _by_chance(over_guess, metric):
        return _with_text(_with_comparison(start, guess, over_guess, "chance"), "no better than guessing")
    rival, difference = (baseline, over_baseline) if over_baseline is not None else (guess, over_guess)
    if rival is None or difference is None:
        few = scored is None or len(scored) < 2
        reason = (
            f"there is only one validation example (a text counts as one); {more}"
            if few
            else "there is no simple method to compare the model with"
        )
        return _with_text(start, f"cannot tell: {reason}")
    gain = _gain(difference, metric)
    kind: Kind = "better" if min(gain) > 0 else "below"
    few = start.examples < FEW and difference.better is None  # the interval of few examples is too narrow
    if few or difference.interval is None or min(gain) <= 0 <= max(gain):
        kind = "cannot tell"
    lines = {
        "better": "better than {}",
        "below": "below the baseline, {}",
        "cannot tell": "cannot tell whether it is better than {}",
    }
    return _with_text(_with_comparison(start, rival, difference, kind), lines[kind].format(rival.name), more)


def improving(losses: Sequence[tuple[int, float]]) -> bool:
    """Returns True if a loss was still falling at the end of a run.

    That is the case if the last value is the lowest, and over 1 % below the lowest of the first three quarters of the
    steps.

    Args:
        losses: (step, loss) pairs, in order.

    >>> improving([(100, 3.0), (200, 2.5), (300, 2.2), (400, 2.0)])
    True
    >>> improving([(100, 3.0), (200, 2.0), (300, 2.0), (400, 1.995)])
    False
    """
    if len(losses) < 2:
        return False
    last, loss = losses[-1]
    before = [value for step, value in losses[:-1] if step <= LATE * last] or [losses[0][1]]
    least = min(value for _, value in losses)
    return loss <= least and loss < min(before) - GAIN * abs(min(before))


def select_examples(scored: Scored, places: Places) -> Scored:
    """Returns the scores of the examples at the indices ``places``."""
    if isinstance(scored, Sums):
        return Sums(scored.statistics[places], scored.formula)
    return _SelectedScores(scored, places)


class _SelectedScores:
    def __init__(self, scored: Scored, places: Places) -> None:
        self.scored, self.places = scored, np.asarray(places, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.places)

    def metrics_of(self, places: Places) -> dict[str, float]:
        return self.scored.metrics_of(self.places[places])

    def metrics_of_draws(self, places: Places) -> list[dict[str, float]]:
        return metrics_of_draws(self.scored, self.places[places])

    def joined(self, other: Any) -> Scored:
        if not isinstance(self.scored, Joins):
            raise ValueError(
                f"{type(self.scored).__name__} has no method 'joined', which p-values need; add the method"
            )
        selected = other if isinstance(other, _SelectedScores) else _SelectedScores(other, np.arange(len(other)))
        places = np.concatenate([self.places, selected.places + len(self.scored)])
        return _SelectedScores(self.scored.joined(selected.scored), places)


# ---------------------------------------------------------------------------------------------- constant predictions


def constant_predictions(outputs: Sequence[Any], expected: Sequence[Any], classes: bool) -> tuple[Kind, str] | None:
    """Returns kind and text of the verdict on a model that predicts the same for all inputs; None for other models.

    Also returns None if all references are the same.

    >>> constant_predictions(["ham", "ham"], ["ham", "spam"], classes=True)
    ('one class', "one class only: it predicts 'ham' for all 2 examples")
    >>> constant_predictions(["", ""], ["un", "deux"], classes=False)
    ('writes nothing', 'writes nothing: its output for all 2 examples is empty')
    """
    if len(outputs) < 2 or isinstance(outputs[0], float):
        return None
    predicted = {part for output in outputs for part in _parts(output, classes)}
    references = {part for reference in expected for part in _parts(reference, classes)}
    number = f"all {len(outputs):,} examples"
    if not any(part.strip() for part in predicted):
        if not any(part.strip() for part in references):
            return None
        if classes:
            return "writes nothing", f"predicts nothing: it gives no label to any of {len(outputs):,} examples"
        return "writes nothing", f"writes nothing: its output for {number} is empty"
    if len(predicted) > 1 or len(references) < 2:
        return None
    (output,) = predicted
    short = output if len(output) <= 40 else output[:39] + "…"
    if classes:
        return "one class", f"one class only: it predicts {short!r} for {number}"
    return "writes nothing", f"the same output for {number}: {short!r}"


def _parts(value: Any, classes: bool) -> list[str]:
    """Returns the labels of a prediction or reference, or its text."""
    if isinstance(value, Mapping):
        return [str(value.get("label" if classes else "answer", ""))]
    if isinstance(span := getattr(value, "text", None), str):
        return [span]
    if isinstance(value, list | tuple):
        parts = [part for item in value for part in _parts(item, classes)]
        return [part for part in parts if part != "O"] or [""]
    return ["" if value is None else str(value)]


# ----------------------------------------------------------------------------------------------------------- chance


def _compared(scored: Scored | None, rival: Rival | None, metric: str) -> Difference | None:
    """Returns the difference between rival and model; None if they have no common metric, or different examples."""
    if scored is None or rival is None or len(scored) != len(rival.scored) or len(scored) < 2:
        return None
    if len(scored) > MOST:
        places = np.linspace(0, len(scored) - 1, MOST).astype(np.int64)
        scored, rival = select_examples(scored, places), Rival(rival.name, select_examples(rival.scored, places))
    return differences(rival.scored, scored).get(metric)


def _by_chance(difference: Difference, metric: str) -> bool:
    if difference.interval is None:
        return False
    low, high = sorted(_gain(difference, metric))
    way = abs(_best(metric) - difference.a)
    return low <= 0 and (_gain(difference, metric, point=True)[0] <= 0 or high < SMALL * way)


def _best(metric: str) -> float:
    return 0.0 if lower_is_better(metric) else 100.0


def _is_perfect(scored: Scored | None, metric: str) -> bool:
    value = None if scored is None or not len(scored) else overall(scored).get(metric)
    return value is not None and abs(value - _best(metric)) < ROUNDING


def _gain(difference: Difference, metric: str, point: bool = False) -> tuple[float, ...]:
    """Returns the interval of the difference, or the difference itself, with the sign such that higher is better."""
    values = (difference.difference,) if point or difference.interval is None else difference.interval
    return tuple(sign(metric) * value for value in values)


def _with_comparison(verdict: Verdict, rival: Rival, difference: Difference, kind: Kind) -> Verdict:
    return replace(
        verdict,
        kind=kind,
        examples=min(verdict.examples, MOST),
        value=difference.b,
        rival=rival.name,
        rival_value=difference.a,
        difference=difference.interval,
        p=difference.p if verdict.examples < FEW and kind != "chance" else None,
    )


def _with_text(verdict: Verdict, text: str, more: str = MORE) -> Verdict:
    """Returns the verdict with its line: the sentence, the numbers, and whether the run was still improving."""
    if verdict.value is not None and verdict.difference is not None:
        low, high = verdict.difference
        rival = f" of {verdict.rival}" if verdict.kind == "chance" else ""
        values = f"{verdict.metric.replace('_', ' ')} {verdict.value:.4g} against {verdict.rival_value:.4g}{rival}"
        if low == high == 0:
            text += f": {values}, no difference"
        else:
            text += f": {values}, a difference of {low:+.3g} to {high:+.3g} at 95 %"
            p_decides = verdict.kind == "cannot tell" and not low <= 0 <= high
            text += "" if verdict.p is None else f", {'but ' if p_decides else ''}p = {verdict.p:.2g}"
        text += f" ({verdict.examples:,} examples{f'; {more}' if verdict.kind == 'cannot tell' else ''})"
    if verdict.improving:
        text += "; the model was still improving when the run ended"
    return replace(verdict, text=text)
