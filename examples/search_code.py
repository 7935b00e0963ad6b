"""Searches source code by its meaning, with the vectors of a published sentence encoder.

    python examples/code_sets.py functions
    python examples/search_code.py MODEL ["which lines of a program were executed?" ...]

MODEL is a folder or a Hub id, such as sentence-transformers/all-MiniLM-L6-v2, used without training. One
core, a minute the first time; then seconds, since the vectors are saved in the folder "vectors". To expect, with that
model:

    895 functions: 47.4 % are the first that their own first line finds, 85.3 % among the first ten

and under each question the three nearest functions. Your own texts are searched without Python:

    heedful nearest MODEL "how do I open a file?" --among notes --index notes.vectors
"""

from __future__ import annotations

import sys
from pathlib import Path

import heedful
from heedful.data import read
from heedful.inference import Index

QUESTIONS = ("which lines of a program were executed?", "compile C to object files", "talk to a host over telnet")
DATA, OUT = Path("functions", "test.jsonl"), Path("vectors")


def main(model: str, questions: list[str], limit: int | None = None) -> None:
    """Make the vectors of all functions, or take those that are there; measure, and answer."""
    rows = read(DATA, {"text": "text", "text_pair": "text"}, limit=limit)
    sources = [row.values["text_pair"] for row in rows]
    pipe = heedful.pipeline("feature-extraction", model)
    if OUT.exists():
        index = Index.open(OUT, pipe)
    else:
        index = Index(pipe).add(sources)
        index.save(OUT)

    found = index.nearest([row.values["text"] for row in rows], k=10)
    first, ten = (
        100 * sum(own in [near.text for near in each[:k]] for own, each in zip(sources, found, strict=True)) / len(rows)
        for k in (1, 10)
    )
    print(
        f"{len(rows)} functions: {first:.1f} % are the first that their own first line finds, {ten:.1f} % among the "
        "first ten"
    )
    for question, nearest in zip(questions, index.nearest(questions, k=3), strict=True):
        print(f"\n{question}")
        for near in nearest:
            print(f"    {near.score:.2f}  {near.text.splitlines()[0]}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or list(QUESTIONS))
