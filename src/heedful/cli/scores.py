"""Prints scores: of a model with intervals and a baseline, of two models side by side, and a table by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size

from heedful.errors import plural
from heedful.tasks.task import text_of_value
from heedful.util.escaping import visible
from heedful.util.values import to_json

MIN_NAME_WIDTH = 16  # minimum width of a metric's name
MAX_CHARACTERS = 300  # characters of a value that are shown
MAX_CLASSES = 40  # rows of the table by class
MAX_LABEL_WIDTH = 40  # maximum width of a label


def print_result(result: Mapping[str, Any], as_json: bool) -> None:
    """Prints the result of an evaluation: a line for each metric and its tables, or everything as JSON."""
    if as_json:
        print(to_json(result))
        return
    print(*scored(result), sep="\n")
    for name, group in result.get("by_format", {}).items():
        note = "" if group["counted"] else "  (not counted: the source is ambiguous)"
        print(f"  {name:<18}{group['exact_match']:5.1f} % of {group['examples']}{note}")
    for breakdown in ("by_language", "by_kind", "by_set", "by_template"):
        for name, group in result.get(breakdown, {}).items():
            metrics = ", ".join(f"{key} {value:.4g}" for key, value in group.items() if isinstance(value, float))
            print(f"  {name:<18}{metrics} ({plural(group['examples'])})")
    if "by_class" in result:
        print(*class_table(result["by_class"]), sep="\n")


def print_comparison(result: Mapping[str, Any], as_json: bool) -> None:
    """Prints two models' scores side by side, the verdict, and examples that differ; or everything as JSON."""
    if as_json:
        print(to_json(result))
        return
    print(*compared(result), sep="\n")


def scored(result: Mapping[str, Any]) -> list[str]:
    """Returns a line for each metric, with its 95 % interval and the baseline's value.

    Args:
        result: what ``heedful.evaluation.evaluate.evaluate`` or ``heedful.training.run.train`` returned.

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
    baseline, intervals = result.get("baseline"), result.get("intervals", {})
    lines, values = [], {**result["metrics"], "seconds": result["seconds"]}
    column = max(MIN_NAME_WIDTH, *(len(name) + 2 for name in values))
    for name, value in values.items():
        interval = f" ({_short(intervals[name][0])}–{_short(intervals[name][1])})" if name in intervals else ""
        lines.append((f"{name:<{column}}{_short(value)}{interval}", name))
    if baseline is None:
        return [line for line, _ in lines]
    wide = max(len(line) for line, name in lines if name in baseline["metrics"]) + 2
    others = {name: _short(value) for name, value in baseline["metrics"].items()}
    return [
        " " * wide + baseline["name"],
        *(f"{line:<{wide}}{others[name]}" if name in others else line for line, name in lines),
    ]


def compared(result: Mapping[str, Any]) -> list[str]:
    """Returns a line for each metric, the verdict, and the examples that differ most.

    A metric's line has its values for models A and B, the difference B − A with its 95 % interval, and the p-value.

    Args:
        result: what ``heedful.evaluation.compare.compare`` returned.
    """
    rows = [("", "A", "B", "B − A", "95 %", "p")]
    for name, metric in result["metrics"].items():
        interval = "" if metric["interval"] is None else "{:+.3g} to {:+.3g}".format(*metric["interval"])
        p = "" if metric["p"] is None else f"{metric['p']:.2g}"
        rows.append((name, _short(metric["a"]), _short(metric["b"]), f"{metric['difference']:+.3g}", interval, p))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{letter}  {model}" for letter, model in zip("AB", result["models"], strict=True)]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += ["", result["verdict"]]
    for example in result["differing_examples"]:
        lines += ["", f"{example['file']}:{example['line']}"]
        values = {"input": example["input"], "expected": example["expected"]}
        values |= {f"{letter.upper()} ({_short(example[f'score_{letter}'])})": example.get(letter) for letter in "ab"}
        lines += [
            f"  {name:<12}{_cut(visible(text_of_value(value)))}".rstrip()
            for name, value in values.items()
            if name != "expected" or value is not None
        ]
    return lines


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"


def class_table(by_class: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a table with the precision, recall and F1 in percent of each class, and its number of examples (support).

    Args:
        by_class: ``{"label", "precision", "recall", "f1", "support"}`` of each class. The 40 classes with
            the most support are shown, largest first, and a last line counts the others.

    >>> spam = {"label": "spam", "precision": 50.0, "recall": 100.0, "f1": 66.7, "support": 3}
    >>> print(*class_table([spam]), sep="\\n")
    label  precision  recall     F1  support
    spam        50.0   100.0   66.7        3
    """
    rows = sorted(by_class, key=lambda row: -row["support"])[:MAX_CLASSES]
    labels = ["label", *(_label(visible(str(row["label"]))) for row in rows)]
    wide = max(map(cell_len, labels))
    numbers = ["precision  recall     F1  support"]
    numbers += [f"{r['precision']:9.1f}  {r['recall']:6.1f}  {r['f1']:5.1f}  {r['support']:7,}" for r in rows]
    lines = [f"{set_cell_size(name, wide)}  {line}" for name, line in zip(labels, numbers, strict=True)]
    others = len(by_class) - len(rows)
    return [*lines, f"and {others:,} more of {len(by_class):,}, with less or equal support"] if others else lines


def _label(name: str) -> str:
    return name if cell_len(name) <= MAX_LABEL_WIDTH else set_cell_size(name, MAX_LABEL_WIDTH - 1).rstrip() + "…"
