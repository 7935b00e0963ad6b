"""Scores as lines of text: a model's, with intervals and a baseline beside them, and those of two models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heedful.tasks.task import worded
from heedful.views.text import visible

NAME = 16  # columns of a metric's name, at least
MOST = 300  # characters of a value that are shown


def scored(result: Mapping[str, Any]) -> list[str]:
    """A metric a line, with its 95 % interval, and beside it what the baseline has.

    Args:
        result: as ``heedful.evaluation.run.evaluate`` gives it, or ``heedful.training.run.train``.

    >>> result = {"metrics": {"accuracy": 88.7}, "intervals": {"accuracy": [87.2, 90.1]}, "seconds": 1.5}
    >>> print(*scored(result), sep="\\n")
    accuracy        88.7 (87.2–90.1)
    seconds         1.5
    >>> result["baseline"] = {"name": "most frequent label", "metrics": {"accuracy": 50.0}}
    >>> print(*scored(result), sep="\\n")
                                      most frequent label
    accuracy        88.7 (87.2–90.1)  50
    seconds         1.5
    """
    beside, spans = result.get("baseline"), result.get("intervals", {})
    lines, told = [], {**result["metrics"], "seconds": result["seconds"]}
    column = max(NAME, *(len(name) + 2 for name in told))
    for name, value in told.items():
        span = f" ({_short(spans[name][0])}–{_short(spans[name][1])})" if name in spans else ""
        lines.append((f"{name:<{column}}{_short(value)}{span}", name))
    if beside is None:
        return [line for line, _ in lines]
    wide = max(len(line) for line, name in lines if name in beside["metrics"]) + 2
    others = {name: _short(value) for name, value in beside["metrics"].items()}
    return [
        " " * wide + beside["name"],
        *(f"{line:<{wide}}{others[name]}" if name in others else line for line, name in lines),
    ]


def compared(result: Mapping[str, Any]) -> list[str]:
    """A metric a line: model A, model B, the difference with its 95 % interval, and p; then the verdict, and the
    examples that most tell the two apart.

    Args:
        result: as ``heedful.evaluation.compare.compare`` gives it.
    """
    rows = [("", "A", "B", "B − A", "95 %", "p")]
    for name, one in result["metrics"].items():
        span = "" if one["interval"] is None else "{:+.3g} to {:+.3g}".format(*one["interval"])
        p = "" if one["p"] is None else f"{one['p']:.2g}"
        rows.append((name, _short(one["a"]), _short(one["b"]), f"{one['difference']:+.3g}", span, p))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{letter}  {model}" for letter, model in zip("AB", result["models"], strict=True)]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += ["", result["verdict"]]
    for example in result["differ"]:
        lines += ["", f"{example['file']}:{example['line']}"]
        told = {"input": example["input"], "expected": example["expected"]}
        told |= {f"{letter.upper()} ({_short(example[f'score_{letter}'])})": example.get(letter) for letter in "ab"}
        lines += [
            f"  {name:<12}{_cut(visible(worded(value)))}".rstrip()
            for name, value in told.items()
            if name != "expected" or value is not None
        ]
    return lines


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= MOST else f"{text[: MOST - 1]}…"
