"""Times turned into figures: medians, ratios within rounds, shares of the bound. Plain data, as the JSON holds it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.speed import bounds
from benchmarks.speed.rounds import Times
from benchmarks.speed.works import ROWS, SERVING, Competitor, Work, data

# the judge's number that rounding explains, by precision; four bits are lossy: theirs is told and not judged
MOST = 1e9  # JSON has no infinity
FORMAT = 2  # of the JSON
ORDER = (*ROWS, SERVING)  # of rows on the page
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
    return {"run": 0, "work": data(work), "unit": work.unit, "bound_ms": _medians(least), "results": found}


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


def joined(*several: Mapping[str, Any]) -> dict[str, Any]:
    """Results of several runs as one: of a work that several have measured, the last; runs without a work go."""
    works: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
    left_out: dict[str, Any] = {}
    for told in several:
        works |= {work["work"]["name"]: (work, told["runs"][work["run"]]) for work in told["works"]}
        served = {**left_out.get(SERVING, {}), **told["left_out"].get(SERVING, {})}  # a run of it has one model
        left_out |= {**told["left_out"], **({SERVING: served} if served else {})}
    ordered = sorted(works.values(), key=lambda pair: ORDER.index(pair[0]["work"]["row"]))
    runs = [run for told in several for run in told["runs"] if any(of is run for _, of in ordered)]
    place = {id(run): number for number, run in enumerate(runs)}
    rows = {work["work"]["row"] for work, _ in ordered}
    return {
        "format": FORMAT,
        "runs": runs,
        "works": [{**work, "run": place[id(run)]} for work, run in ordered],
        "left_out": {row: left_out.get(row, {}) for row in ORDER if row in rows},
    }


def read(file: Path) -> dict[str, Any]:
    """Results that ``write`` wrote."""
    told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if told.get("format") != FORMAT:
        raise ValueError(
            f"{file} is no result of this program: format {told.get('format')}, not {FORMAT}; measure again"
        )
    return told


def write(told: Mapping[str, Any], file: Path) -> None:
    """Write results, four digits of each number, a program's in a line."""

    def line(value: Any) -> str:
        return json.dumps(_short(value), ensure_ascii=False)

    parts = []
    for work in told["works"]:
        head = line({key: value for key, value in work.items() if key != "results"})[:-1]
        parts.append(f'{head}, "results": [\n' + ",\n".join(map(line, work["results"])) + "\n]}")
    runs = ",\n".join(map(line, told["runs"]))
    file.write_text(
        f'{{"format": {FORMAT},\n"runs": [\n{runs}\n],\n"works": [\n'
        + ",\n".join(parts)
        + f'\n],\n"left_out": {line(told["left_out"])}}}\n',
        encoding="utf-8",
    )


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {key: _short(each) for key, each in value.items()}
    return [_short(each) for each in value] if isinstance(value, list) else value


def right(work: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A work's figures, without those of programs that gave another answer."""
    return [one for one in work["results"] if one["agrees"] is not False]


def fastest(work: Mapping[str, Any], precision: str) -> dict[str, Any] | None:
    """The quickest of the other programs under a precision, in a work's figures."""
    others = [one for one in right(work) if one["program"] != "ours" and one["precision"] == precision]
    return min(others, key=lambda one: one["ms"], default=None)


def disagreeing(told: Mapping[str, Any]) -> list[str]:
    """Works and competitors whose answer is another one."""
    return [
        f"{work['work']['name']}: {one['name']} is {one['apart']:.3g} apart"
        for work in told["works"]
        for one in work["results"]
        if one["agrees"] is False
    ]
