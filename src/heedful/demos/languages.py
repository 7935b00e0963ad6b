"""An encoder learns to tell in which language a name or phrase is written."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from heedful.data import Rows
from heedful.demos.show import Demo, Told
from heedful.inference.pipeline import Pipeline
from heedful.settings import RunSettings
from heedful.tasks.task import Measured


def demo() -> Demo:
    """Names of places, months, currencies and languages from CLDR: about two minutes on two cores."""
    return Demo(
        title="An encoder learns to tell in which of many languages a name or phrase is written.",
        settings=RunSettings(
            task="text-classification",
            train=("builtin:cldr-languages",),
            out="runs/demo-languages",
            max_minutes=2.0,
        ),
        tell=tell,
        metric="accuracy",
        ask='"Donnerstag" "jeudi" "čtvrtek"',
        mine="labels.csv",
    )


def tell(pipe: Pipeline, measured: Measured, rows: Rows, folder: Path) -> Told:
    """Accuracy beside the most frequent language, the easiest and hardest languages, a few names."""
    counts = Counter(row.values["label"] for row in rows)
    most = 100 * max(counts.values()) / len(rows)
    classes = sorted(measured.details["by_class"], key=lambda one: -one["f1"])
    lines = [f"  always the most frequent one: {most:.1f} %; macro F1 {measured.metrics['macro_f1']:.1f}", ""]
    for one in [*classes[:4], *classes[-4:]]:
        lines.append(f"  {one['label']:<14}F1 {one['f1']:5.1f}  {'█' * round(one['f1'] / 5)}")
    lines.append("")
    chosen = random.Random(0).sample(list(rows), 6)
    answers = pipe.answers([row.values["text"] for row in chosen])
    for answer, row in zip(answers, chosen, strict=True):
        truth = "" if answer.output == row.values["label"] else f"  (it is {row.values['label']})"
        lines.append(f"  {answer.input:<36} → {answer.output}, {answer.score:.0%}{truth}")
    return Told(
        headline=f"Held-out names told right: {measured.metrics['accuracy']:.1f} % of {len(counts)} languages",
        lines=lines,
        baseline={"most_frequent_accuracy": most},
        examples=[{"input": answer.input, "output": answer.output} for answer in answers],
    )
