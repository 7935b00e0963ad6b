"""Prints scores: a model's with intervals and a baseline, two models' beside each other, a table by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size

from heedful.errors import plural
from heedful.tasks.task import text_of_value
from heedful.util.escaping import visible
from heedful.util.values import to_json

NAME = 16  # columns of a metric's name, at least
MOST = 300  # characters of a value that are shown
MOST_CLASSES = 40  # rows of the table by class
WIDEST = 40  # columns of a terminal that a label may take


def print_result(result: Mapping[str, Any], as_json: bool) -> None:
    """The metrics of a result and its seconds, a line each, and its tables; or all of it as JSON."""
    if as_json:
        print(to_json(result))
        return
    print(*scored(result), sep="\n")
    for name, group in result.get("by_format", {}).items():
        note = "" if group["counted"] else "  (not counted: no answer can be sure)"
        print(f"  {name:<18}{group['exact_match']:5.1f} % of {group['examples']}{note}")
    for parts in ("by_language", "by_kind"):
        for name, group in result.get(parts, {}).items():
            figures = ", ".join(f"{key} {value:.4g}" for key, value in group.items() if isinstance(value, float))
            print(f"  {name:<18}{figures} ({plural(group['examples'])})")
    if "by_class" in result:
        print(*class_table(result["by_class"]), sep="\n")


def print_comparison(result: Mapping[str, Any], as_json: bool) -> None:
    """Two models' scores beside each other, the verdict, and where they differ; or all of it as JSON."""
    if as_json:
        print(to_json(result))
        return
    print(*compared(result), sep="\n")


def scored(result: Mapping[str, Any]) -> list[str]:
    """Returns a metric a line, with its 95 % interval, and beside it what the baseline has.

    Args:
        result: as ``heedful.evaluation.evaluate.evaluate`` gives it, or ``heedful.training.run.train``.

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
            f"  {name:<12}{_cut(visible(text_of_value(value)))}".rstrip()
            for name, value in told.items()
            if name != "expected" or value is not None
        ]
    return lines


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= MOST else f"{text[: MOST - 1]}…"


def class_table(by_class: Sequence[Mapping[str, Any]]) -> list[str]:
    """Precision, recall and F1 (in percent) and support (examples) of each class, aligned, by support.

    Args:
        by_class: ``{"label", "precision", "recall", "f1", "support"}`` of each class. The 40 of most support are
            shown, and a last line says how many more there are.

    >>> spam = {"label": "spam", "precision": 50.0, "recall": 100.0, "f1": 66.7, "support": 3}
    >>> print(*class_table([spam]), sep="\\n")
    label  precision  recall     F1  support
    spam        50.0   100.0   66.7        3
    """
    rows = sorted(by_class, key=lambda row: -row["support"])[:MOST_CLASSES]
    labels = ["label", *(_label(visible(str(row["label"]))) for row in rows)]
    wide = max(map(cell_len, labels))
    figures = ["precision  recall     F1  support"]
    figures += [f"{r['precision']:9.1f}  {r['recall']:6.1f}  {r['f1']:5.1f}  {r['support']:7,}" for r in rows]
    lines = [f"{set_cell_size(name, wide)}  {line}" for name, line in zip(labels, figures, strict=True)]
    left = len(by_class) - len(rows)
    return [*lines, f"and {left:,} more of {len(by_class):,}, of no more support"] if left else lines


def _label(name: str) -> str:
    return name if cell_len(name) <= WIDEST else set_cell_size(name, WIDEST - 1).rstrip() + "…"
