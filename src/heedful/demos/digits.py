"""A vision Transformer learns to read handwritten digits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from PIL import Image

from heedful.data import Rows
from heedful.demos.show import Demo, Told
from heedful.inference.pipeline import Pipeline
from heedful.settings import RunSettings
from heedful.tasks.task import Measured

INK = " ·░▒▓█"


def demo() -> Demo:
    """1,797 digits of 8 × 8 pixels: about a minute on two cores."""
    return Demo(
        title="A vision Transformer learns to read handwritten digits of 8 × 8 pixels.",
        settings=RunSettings(
            task="image-classification",
            train=("builtin:digits",),
            out="runs/demo-digits",
            max_minutes=1.5,
        ),
        tell=tell,
        metric="accuracy",
        ask="{folder}/digit.png",
        mine="folder-of-folders",
    )


def tell(pipe: Pipeline, measured: Measured, rows: Rows, folder: Path) -> Told:
    """Accuracy beside the most frequent digit, and the first digits as they look; one as a file, to ask with."""
    counts = Counter(row.values["label"] for row in rows)
    most = 100 * max(counts.values()) / len(rows)
    chosen = rows[:6]
    answers = pipe.answers([row.values["image"] for row in chosen])
    Image.fromarray(chosen[0].values["image"].pixels(1)[:, :, 0]).save(folder / "digit.png")
    drawn = [drawing(row.values["image"].pixels(1)[:, :, 0].tolist()) for row in chosen]
    lines = [f"  always the most frequent one: {most:.1f} %", ""]
    lines += ["  " + "   ".join(parts) for parts in zip(*drawn, strict=True)]
    lines.append("  " + "   ".join(f"{answer.output}, {answer.score:.0%}".center(16) for answer in answers))
    return Told(
        headline=f"Held-out digits read right: {measured.metrics['accuracy']:.1f} %",
        lines=lines,
        baseline={"most_frequent_accuracy": most},
        examples=[{"input": answer.input, "output": answer.output} for answer in answers],
    )


def drawing(pixels: list[list[int]]) -> list[str]:
    """Grey values 0 to 255 as characters, two a pixel, so that it looks square."""
    return ["".join(2 * INK[value * (len(INK) - 1) // 255] for value in row) for row in pixels]
