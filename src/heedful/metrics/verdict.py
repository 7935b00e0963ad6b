"""Verdict on a trained model: better than a baseline or than guessing, or undecided.

The metric that chose the weights is compared on the validation rows, example by example: the difference to a rival and
its 95 % interval by the paired bootstrap. The model is better or worse if the interval excludes 0. An interval from
fewer than 30 examples is too narrow; then the p-value of approximate randomisation, which the line shows, must be below
5 %, too (:func:`heedful.metrics.paired.differences`).

A model must first be better than a constant output. Where a comparison stays open, the line says how many examples
would probably decide it (:func:`examples_needed`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np

from heedful.metrics.example_scores import Joins, Places, Scored, Sums, metrics_of_draws, overall
from heedful.metrics.intervals import CONFIDENCE, FEW
from heedful.metrics.paired import ROUNDING, Difference, differences
from heedful.metrics.registry import lower_is_better, sign

Kind = Literal["better", "cannot tell", "chance", "one class", "writes nothing", "below"]
USELESS: tuple[Kind, ...] = ("chance", "one class", "writes nothing")
LATE, GAIN = 0.75, 0.01  # the loss fell by over 1 % in the last quarter of the steps: the run was still improving
MOST = 5_000  # maximum number of compared examples
MORE = "give more"  # examples, by default
POWER = 0.8  # probability of a decision, for the number of examples that would decide
MOST_NEEDED = 1_000_000  # larger numbers are not shown


class Rival(NamedTuple):
    """Baseline or guess with which a model is compared, scored on the same examples."""

    name: str  # for people: "a linear SVM on words and character n-grams"
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
    needed: int | None = None  # number of examples that would decide with 80 % power, where the comparison is open

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
            "needed": self.needed,
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
    - "chance": it is not better than ``guess``, a constant output. Fewer than 30 examples that leave this open are
      "cannot tell" instead.
    - "better" or "below": it is better or worse than ``baseline`` or, without a baseline, than ``guess``.
    - "cannot tell": none of these is certain.

    Args:
        scored: per-example scores of the model.
        metric: name of the metric to compare. If it is 0 for the model and its rivals, as BLEU is for texts of fewer
            than four words, the first other metric that is not is compared instead.
        guess: the best output that ignores the input: the most frequent label, the mean, the frequencies of tokens.
        baseline: a simple method.
        outputs: the model's predictions; empty if the task has none.
        expected: the references of the same examples.
        classes: True if predictions are of a closed set (labels, tags).
        improving: True if the loss was still falling when the run ended. It does not count if the metric is perfect.
        more: what people can do about too few examples.
    """
    metric = _telling_metric(metric, scored, guess, baseline)
    improving = improving and not _is_perfect(scored, metric)
    start = Verdict("cannot tell", "", metric, 0 if scored is None else len(scored), improving=improving)
    constant = constant_predictions(outputs, expected, classes)
    if constant is not None:
        return _with_text(replace(start, kind=constant[0], examples=len(outputs)), constant[1])
    over_guess, over_baseline = (_compared(scored, rival, metric) for rival in (guess, baseline))
    if guess is not None and over_guess is not None and _outcome(over_guess, metric, start.examples) != "better":
        if start.examples < FEW and _gain(over_guess, metric, point=True)[0] > 0:
            text = f"cannot tell whether it has learned more than {guess.name}"
            return _with_text(_with_comparison(start, guess, over_guess, "cannot tell"), text, more)
        return _with_text(
            _with_comparison(start, guess, over_guess, "chance"), f"has not learned more than {guess.name}", more
        )
    rival, difference = (baseline, over_baseline) if over_baseline is not None else (guess, over_guess)
    if rival is None or difference is None:
        few = scored is None or len(scored) < 2
        reason = (
            f"there is only one validation example (a text counts as one); {more}"
            if few
            else "there is no simple method to compare the model with"
        )
        return _with_text(start, f"cannot tell: {reason}")
    kind = _outcome(difference, metric, start.examples)
    lines: dict[Kind, str] = {
        "better": "better than {}",
        "below": "below the baseline, {}",
        "cannot tell": "cannot tell whether it is better than {}",
    }
    return _with_text(_with_comparison(start, rival, difference, kind), lines[kind].format(rival.name), more)


def examples_needed(difference: Difference, examples: int) -> int | None:
    """Returns the number of examples that would decide a comparison with 80 % probability, if its difference holds.

    With the difference d of n examples and its standard error s, N examples have the standard error s √(n / N). Their
    95 % interval excludes 0 with the power 1 − β if |d| = (z₀.₉₇₅ + z₁₋β) s √(n / N), so that
    N = n ((z₀.₉₇₅ + z₁₋β) s / d)². Of two classifiers, one of which alone is right on the share p of the examples,
    n s² = p − d². Connor (1987, Biometrics 43) has √p in place of √(p − d²) beside z₀.₉₇₅, the error of McNemar's test
    under the null hypothesis; the interval here has the error at the observed difference.

    Args:
        difference: the difference, with its standard error.
        examples: number n of compared examples.

    Returns:
        The number N, at least 30; None without a difference, or above a million.
    """
    if not difference.error or abs(difference.difference) < ROUNDING:
        return None
    quantiles = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) + NormalDist().inv_cdf(POWER)
    needed = math.ceil(examples * (quantiles * difference.error / difference.difference) ** 2)
    return max(needed, FEW) if needed <= MOST_NEEDED else None


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


def _telling_metric(metric: str, scored: Scored | None, *rivals: Rival | None) -> str:
    """Returns the metric, or the first other one if the metric is 0 for all sides and higher is better."""
    if lower_is_better(metric):
        return metric
    sides = [scored, *(rival.scored for rival in rivals if rival is not None)]
    values = [overall(side) for side in sides if side is not None and len(side)]
    names = [metric, *(name for name in values[0] if name != "loss")] if len(values) == len(sides) > 1 else []
    names = [name for name in names if not lower_is_better(name) and all(name in side for side in values)]
    return next((name for name in names if any(side[name] for side in values)), metric)


def _compared(scored: Scored | None, rival: Rival | None, metric: str) -> Difference | None:
    """Returns the difference between rival and model; None if they have no common metric, or different examples."""
    if scored is None or rival is None or len(scored) != len(rival.scored) or len(scored) < 2:
        return None
    if len(scored) > MOST:
        places = np.linspace(0, len(scored) - 1, MOST).astype(np.int64)
        scored, rival = select_examples(scored, places), Rival(rival.name, select_examples(rival.scored, places))
    return differences(rival.scored, scored).get(metric)


def _outcome(difference: Difference, metric: str, examples: int) -> Kind:
    """Returns "better", "below" or "cannot tell"; the interval of few examples is too narrow to decide alone."""
    gain = _gain(difference, metric)
    few = examples < FEW and difference.better is None
    if few or difference.interval is None or min(gain) <= 0 <= max(gain):
        return "cannot tell"
    return "better" if min(gain) > 0 else "below"


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
    examples = min(verdict.examples, MOST)
    is_open = kind == "cannot tell" or (kind == "chance" and _gain(difference, verdict.metric, point=True)[0] > 0)
    return replace(
        verdict,
        kind=kind,
        examples=examples,
        value=difference.b,
        rival=rival.name,
        rival_value=difference.a,
        difference=difference.interval,
        p=difference.p if verdict.examples < FEW and kind != "chance" else None,
        needed=examples_needed(difference, examples) if is_open else None,
    )


def _with_text(verdict: Verdict, text: str, more: str = MORE) -> Verdict:
    """Returns the verdict with its line: the sentence, the numbers, and whether the run was still improving."""
    if verdict.value is not None and verdict.difference is not None:
        low, high = verdict.difference
        values = f"{verdict.metric.replace('_', ' ')} {verdict.value:.4g} against {verdict.rival_value:.4g}"
        if low == high == 0:
            text += f": {values}, no difference"
        else:
            text += f": {values}, a difference of {low:+.3g} to {high:+.3g} at 95 %"
            p_decides = verdict.kind == "cannot tell" and not low <= 0 <= high
            text += "" if verdict.p is None else f", {'but ' if p_decides else ''}p = {verdict.p:.2g}"
        notes = [f"{verdict.examples:,} examples"]
        if verdict.needed is not None:
            notes.append(f"at this difference about {_two_digits(verdict.needed):,} would tell")
        if verdict.kind == "cannot tell" or verdict.needed is not None:
            notes.append(more)
        text += f" ({'; '.join(notes)})"
    if verdict.improving:
        text += "; the model was still improving when the run ended"
    return replace(verdict, text=text)


def _two_digits(number: int) -> int:
    """Returns a number rounded up to two significant digits."""
    unit = 10 ** max(0, len(str(number)) - 2)
    return -(-number // unit) * unit
