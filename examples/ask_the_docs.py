"""Fine-tunes a published encoder to find what a parameter does in a docstring, and asks it about help pages.

    python examples/code_sets.py parameters
    python examples/ask_the_docs.py MODEL [STEPS]

MODEL is an encoder's folder or Hub id, such as sentence-transformers/all-MiniLM-L6-v2; the run folder is "answers",
which is reused. STEPS (48 by default) of eight questions take three and a half minutes on one core beside other work.
To expect, with that model:

    387 questions about other functions: F1 34.3, exactly right 15.5 %; the likeliest sentence has F1 47.9

and answers from Python's own help pages with their probabilities. So few steps do not beat the whole likeliest
sentence; more do. The same without Python:

    heedful train question-answering --train parameters/train.jsonl --from MODEL --out answers
    heedful evaluate answers --data parameters/test.jsonl --baseline
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from pathlib import Path

import heedful
from heedful.evaluation.evaluate import evaluate
from heedful.settings import DataSettings, RunSettings, TrainingSettings
from heedful.training import train

DATA, OUT = Path("parameters"), "answers"
ASKED = (
    (textwrap.TextWrapper, "What does `width` do?"),
    (textwrap.TextWrapper, "What is `initial_indent` in `TextWrapper`?"),
    (sorted, "What should I pass to `sorted` as `key`?"),
)


def main(model: str, steps: int = 48) -> None:
    """Train, measure, and ask."""
    if not Path(OUT).exists():
        settings = RunSettings(
            task="question-answering",
            train=(str(DATA / "train.jsonl"),),
            start_from=model,
            out=OUT,
            max_steps=steps,
            data=DataSettings(max_length=192, limit=8 * steps),
            training=TrainingSettings(batch_size=8, lr=3e-4),
        )
        train(settings)
    told = evaluate(OUT, [str(DATA / "test.jsonl")], baseline=True)
    scores, simple = told["metrics"], told["baseline"]["metrics"]["f1"]
    print(
        f"{told['examples']} questions about other functions: F1 {scores['f1']:.1f}, exactly right "
        f"{scores['exact_match']:.1f} %; the likeliest sentence has F1 {simple:.1f}"
    )
    answer = heedful.pipeline("question-answering", OUT)
    for thing, question in ASKED:
        told = answer({"question": question, "context": inspect.getdoc(thing)})
        text = " ".join(told["output"]["answer"].split())
        print(f"\n{question}\n    {text} ({told['score']:.0%})")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 48)
