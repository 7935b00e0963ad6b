"""Trains on questions under some prompts, and answers under prompts that it never saw, by the likeliest choice (T0).

    python examples/unseen_prompts.py TREC.train TREC.test [STEPS]

TREC (Li and Roth 2002, https://cogcomp.seas.upenn.edu/Data/QA/QC/): a line has a label, a space and a question. Four
templates make prompts of the 5,452 training questions, and a small encoder-decoder learns from scratch to write what
each question asks for ("person", "place", ...). Then the 500 test questions stand under each of these templates, and
under two with other words in another order. The six choices are ranked by log-likelihood (Sanh et al. 2022). The folder
"unseen" gets the run and `accuracy.svg`. STEPS (800 by default) take three minutes on one core. To expect (other
figures on another machine):

    asks for         81.6 (78.2-85.0)  seen in training
    what kind        82.4 (79.2-85.6)  seen in training
    topic            82.4 (79.0-85.8)  seen in training
    options          81.8 (78.4-85.2)  seen in training
    reply            57.2 (53.0-61.4)  never seen
    quiz             33.4 (29.4-37.0)  never seen
    chance           16.7
    majority         27.6

The same without Python, with the mixtures that this writes:

    heedful train translation --train unseen/seen.toml --out unseen/run --max-steps 800
    heedful evaluate unseen/run --data unseen/all.toml --baseline
    heedful predict unseen/run "Topic: Who was Galileo ?" --choices person,place,number
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import tomli_w

import heedful
from heedful.evaluation.evaluate import evaluate
from heedful.views.figures import bars

OUT = Path("unseen")
KINDS = {
    "ABBR": "abbreviation",
    "DESC": "description",
    "ENTY": "thing",
    "HUM": "person",
    "LOC": "place",
    "NUM": "number",
}
SEEN = {
    "asks for": "{{text}} What does this question ask for?",
    "what kind": "What kind of answer is right? {{text}}",
    "topic": "Topic: {{text}}",
    "options": "Question: {{text}} Options: {{answer_choices | join(', ')}}. Answer:",
}
UNSEEN = {
    "reply": "Somebody asked me today: {{text}} My reply should be a",
    "quiz": "We play a quiz, and this is my turn. {{text}} Do they want to hear a number, a person or a place?",
}


def mixture(name: str, templates: dict[str, str], **files: str) -> Path:
    """Writes a mixture of one set under the templates."""
    written = [
        {
            "name": title,
            "answer_choices": " ||| ".join(KINDS.values()),
            "jinja": f"{text} ||| {{{{answer_choices[label]}}}}",
        }
        for title, text in templates.items()
    ]
    part = {"name": "questions", **files, "classes": {"label": [*KINDS]}, "templates": written}
    path = OUT / f"{name}.toml"
    path.write_text(tomli_w.dumps({"sets": [part]}), encoding="utf-8")
    return path


def table(source: Path) -> str:
    """Writes the questions as a table with a header, the coarse labels alone; returns the file's name."""
    lines = [line.split(" ", 1) for line in source.read_text(encoding="cp1252").splitlines() if line.strip()]
    rows = [f"{label.partition(':')[0]}\t{text}\n" for label, text in lines]
    path = OUT / f"{source.name}.tsv"
    path.write_text("label\ttext\n" + "".join(rows), encoding="utf-8")
    return path.name


def main(train: Path, test: Path, steps: int = 800) -> None:
    """Train, rank, print and draw."""
    OUT.mkdir(exist_ok=True)
    learned, asked = mixture("seen", SEEN, train=table(train)), table(test)
    mixture("all", SEEN | UNSEEN, test=asked)
    if not (OUT / "run").exists():
        settings = {"warmup": 100, "batch_tokens": 2048, "evaluate_every": 200}
        heedful.train(
            "translation", learned, out=OUT / "run", preset="transformer-tiny", max_steps=steps, training=settings
        )
    accuracies = {}
    for title in SEEN | UNSEEN:
        data = mixture("one", {title: (SEEN | UNSEEN)[title]}, test=asked)
        result = evaluate(str(OUT / "run"), [str(data)], say=lambda line: None)
        accuracies[title] = result["metrics"]["accuracy"]
        low, high = result["intervals"]["accuracy"]
        known = "seen in training" if title in SEEN else "never seen"
        print(f"{title:<16} {accuracies[title]:.1f} ({low:.1f}-{high:.1f})  {known}")
    labels = Counter(line.split("\t")[0] for line in (OUT / asked).read_text(encoding="utf-8").splitlines()[1:])
    accuracies |= {"chance": 100 / len(KINDS), "majority": 100 * max(labels.values()) / labels.total()}
    print(*(f"{name:<16} {accuracies[name]:.1f}" for name in ("chance", "majority")), sep="\n")
    names = [f"{name} (unseen)" if name in UNSEEN else name for name in accuracies]
    values = np.round([*accuracies.values()], 1)
    note = "test questions under templates of training and under others; the likeliest of six choices"
    (OUT / "accuracy.svg").write_text(
        bars(names, values, "Accuracy (%) under each prompt", note=note), encoding="utf-8"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 800)
