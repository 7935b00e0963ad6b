"""Trains an encoder to fill in missing letters of a line of code from those around them.

    python examples/letters_with_holes.py ["for i in r_ng_(1_):" ...] [STEPS]

Each `_` of the lines is a missing letter. The model is trained on Python's own library, letter by letter; the run
folder is "holes", which is reused. STEPS (500 by default) take three minutes on one core beside other work. To expect
(other figures on another machine):

    67,218 hidden letters: 32.8 % told right; always the most frequent: 29.9 %

and each line, filled, with further guesses for each hole: so few steps teach little more than which letters are
neighbours, enough for `len(self)` and not for `range`. The same without Python:

    heedful train fill-mask --train builtin:stdlib --tokenizer.kind character --data.max-length 32 --out holes
    heedful predict holes "for i in r<mask>nge(10):" --top-k 5 --json
"""

from __future__ import annotations

import sys
from pathlib import Path

import heedful
from heedful.evaluation.evaluate import evaluate
from heedful.settings import DataSettings, MaskingSettings, RunSettings, TokenizerSettings, TrainingSettings
from heedful.training import train

DATA, OUT = "builtin:stdlib", "holes"
LINES = ("for i in r_ng_(len(s_lf)):", "    ret_rn N_ne", "imp_rt _s", "if not isin_tance(value, st_):")


def main(lines: list[str], steps: int = 500) -> None:
    """Train, measure, and fill."""
    if not Path(OUT).exists():
        settings = RunSettings(
            task="fill-mask",
            train=(DATA,),
            out=OUT,
            max_steps=steps,
            data=DataSettings(max_length=32),
            tokenizer=TokenizerSettings(kind="character"),
            masking=MaskingSettings(unit="token"),
            training=TrainingSettings(lr=2e-3),
        )
        train(settings)
    told = evaluate(OUT, [DATA], baseline=True)
    right, simple = (each["metrics"]["accuracy"] for each in (told, told["baseline"]))
    print(f"{told['hidden']:,} hidden letters: {right:.1f} % told right; always the most frequent: {simple:.1f} %")
    fill = heedful.pipeline("fill-mask", OUT)
    for line in lines:
        asked = line.replace("_", "<mask>")
        guesses = fill(asked, top_k=3)["output"]
        each = guesses if isinstance(guesses[0], list) else [guesses]
        thought = "  ".join("/".join(one["label"] or "␣" for one in hole) for hole in each)
        print(f"\n{line}\n{fill(asked)['output']}    {thought}")


if __name__ == "__main__":
    steps = int(sys.argv[-1]) if sys.argv[-1].isdecimal() else 500
    main([line for line in sys.argv[1:] if not line.isdecimal()] or list(LINES), steps)
