"""A decoder learns to write Python from the source of the standard library."""

from __future__ import annotations

import lzma
from pathlib import Path

from heedful.data import Rows
from heedful.demos.show import Demo, Told
from heedful.inference.pipeline import Pipeline
from heedful.settings import RunSettings
from heedful.tasks.task import Measured

PROMPT = "def "


def demo() -> Demo:
    """The standard library's modules, some held out whole: about three minutes on two cores."""
    return Demo(
        title="A decoder learns to write Python from the source of the standard library, modules apart for the test.",
        settings=RunSettings(
            task="text-generation",
            train=("builtin:stdlib",),
            out="runs/demo-code",
            max_minutes=2.5,
        ),
        tell=tell,
        metric="bits_per_byte",
        ask='"class Queue" --max-new-tokens 200',
        mine="book.txt",
    )


def tell(pipe: Pipeline, measured: Measured, rows: Rows, folder: Path) -> Told:
    """Bits a byte beside those of xz on the same modules, and a sample."""
    text = "\n".join(row.values["text"] for row in rows).encode()
    packed = 8 * len(lzma.compress(text, preset=9)) / len(text)
    answer = pipe.answers([PROMPT], max_new_tokens=120, temperature=0.7, seed=0)[0]
    return Told(
        headline=f"Unseen modules: {measured.metrics['bits_per_byte']:.2f} bits a byte",
        lines=[
            f"  xz -9 needs {packed:.2f}; perplexity {measured.metrics['perplexity']:.1f} a token",
            "",
            *(f"  {line}" for line in answer.output.splitlines()),
        ],
        baseline={"xz_bits_per_byte": packed},
        examples=[{"input": PROMPT, "output": answer.output}],
    )
