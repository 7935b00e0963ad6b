"""Times turned into figures: medians, ratios within rounds, shares of the bound. Plain data, as the JSON holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.speed import bounds
from benchmarks.speed.rounds import Times
from benchmarks.speed.works import Competitor, Work, data

# the judge's number that rounding explains, by precision; four bits are lossy: theirs is told and not judged
MOST = 1e9  # JSON has no infinity
LOSSES = {"float32": 2e-3, "bfloat16": 0.05}  # of losses in training
TOLERANCE = {"float32": 2e-3, "float16": 0.1, "bfloat16": 0.5, "int8": 1.0}


def figures(work: Work, times: Times, apart: Mapping[Competitor, float]) -> dict[str, Any]:
    """All that one work gave.

    Of each competitor: milliseconds a unit, the median and every round; ``share``, the bound over its time;
    ``ours_faster``, its time over ours under the same precision (of ours: ``over_float32``, float32's time over its
    own); ``apart``, the judge's number, and whether it ``agrees``. Ratios are medians of the rounds' ratios.
    """
    ms = {each: [1e3 * second / work.units for second in seconds] for each, seconds in times.seconds.items()}
    ours = {each.precision: each for each in ms if each.is_ours}
    least = {
        each.precision: [bounds.milliseconds(work, each.precision, ceilings) for ceilings in times.ceilings]
        for each in ms
    }
    found = []
    for each, taken in ms.items():
        one: dict[str, Any] = {"name": each.name, "program": each.program, "precision": each.precision, "way": each.way}
        one |= {"ms": median(taken), "rounds_ms": taken, "share": ratio(least[each.precision], taken)}
        same = ours.get(each.precision)
        if not each.is_ours:
            one["ours_faster"] = ratio(taken, ms[same]) if same else None
        elif "float32" in ours:
            one["over_float32"] = ratio(ms[ours["float32"]], taken)
        limit = (LOSSES if work.steps else TOLERANCE).get(each.precision)
        one["apart"] = apart.get(each) if apart.get(each, 0.0) < MOST else MOST  # a NaN, too
        one["agrees"] = None if limit is None or each not in apart else apart[each] <= limit
        found.append(one)
    return {"work": data(work), "unit": work.unit, "bound_ms": _medians(least), "results": found}


def ratio(upper: Sequence[float | None], lower: Sequence[float]) -> float | None:
    """The median of the rounds' ratios; None where something is not known."""
    pairs = [(a, b) for a, b in zip(upper, lower, strict=True) if a is not None]
    return median(a / b for a, b in pairs) if pairs else None


def _medians(columns: Mapping[str, Sequence[float | None]]) -> dict[str, float | None]:
    return {name: None if None in values else median(v for v in values if v) for name, values in columns.items()}


def ceilings(rounds: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Of each ceiling, in gigabytes or billions of operations a second: the median over all rounds, and the best."""
    names = dict.fromkeys(name for each in rounds for name in each)
    columns = {name: [each[name] / 1e9 for each in rounds if name in each] for name in names}
    return {name: {"median": median(values), "best": max(values)} for name, values in columns.items()}


def fastest(work: Mapping[str, Any], precision: str) -> dict[str, Any] | None:
    """The quickest of the other programs under a precision, in a work's figures."""
    others = [one for one in work["results"] if one["program"] != "ours" and one["precision"] == precision]
    return min(others, key=lambda one: one["ms"], default=None)


def disagreeing(told: Mapping[str, Any]) -> list[str]:
    """Works and competitors whose answer is another one."""
    return [
        f"{work['work']['name']}: {one['name']} is {one['apart']:.3g} apart"
        for work in told["works"]
        for one in work["results"]
        if one["agrees"] is False
    ]
