"""Trains a token classifier for the role of each name in Python code, and colours a file with its predictions.

    python examples/code_sets.py code-roles
    python examples/code_in_colours.py [FILE [OUT]]

FILE is any file of Python, by default this one; the model is trained first, in the folder OUT ("roles" by default),
unless it is there. One core, a minute and a half. To expect (other figures on another machine):

    300 unseen functions: F1 73.8, of the most frequent role of each word 63.4
    212 names are painted in roles/code.html

The input is nothing but the tokens of a function: the context decides whether a name is a parameter or a variable.
Predictions with a probability below one half are underlined. The same without Python:

    heedful train token-classification --train code-roles/train.jsonl --max-epochs 6 --out roles
    heedful evaluate roles --data code-roles/test.jsonl --baseline
"""

from __future__ import annotations

import ast
import sys
import tokenize
from collections.abc import Iterator
from html import escape
from io import StringIO
from itertools import accumulate
from pathlib import Path
from typing import Any

import heedful
from heedful.evaluation.evaluate import evaluate
from heedful.settings import RunSettings
from heedful.training import train
from heedful.views.page import page

DATA = Path("code-roles")
SKIPPED = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
HUES = {"parameter": 40, "variable": 90, "attribute": 150, "method": 195, "function": 240, "class": 280}
HUES |= {"module": 310, "keyword": 345, "global": 15}
STYLE = "pre { font: 15px/1.6 ui-monospace, monospace; overflow-x: auto; color: var(--quiet); }"
STYLE += "".join(f" .{role} {{ color: oklch(62% .19 {hue}); font-weight: 600; }}" for role, hue in HUES.items())
STYLE += " b { margin-right: 1em; } .unsure { text-decoration: underline dotted; text-underline-offset: .25em; }"


def functions(source: str) -> Iterator[list[tokenize.TokenInfo]]:
    """The tokens of each function of a source, comments and docstrings aside; of one in another no second time."""
    tokens = [one for one in tokenize.generate_tokens(StringIO(source).readline) if one.type not in SKIPPED]
    end = 0
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    for node in sorted(nodes, key=lambda node: node.lineno):
        told = node.body[0] if ast.get_docstring(node) else None
        if node.lineno > end:
            end = node.end_lineno
            own = [one for one in tokens if node.lineno <= one.start[0] <= end]
            yield [one for one in own if not told or not told.lineno <= one.start[0] <= told.end_lineno]


def painted(source: str, roles: Any) -> tuple[str, int]:
    """The source as HTML, each name in the colour of what it is said to be, and how many names that are."""
    parts, marks = list(functions(source)), {}
    words = [
        [one.string if len(one.string) < 16 or one.type != tokenize.STRING else '"…"' for one in part] for part in parts
    ]
    for tokens, own, told in zip(parts, words, roles([{"words": own} for own in words]), strict=True):
        begins = accumulate((len(word) + 1 for word in own), initial=0)  # in the words with a space between
        at = dict(zip(begins, tokens, strict=False))
        marks |= {at[one["start"]].start: (at[one["start"]].end[1], one) for one in told["output"]}
    lines = []
    for row, line in enumerate(source.splitlines(), 1):
        done, made = 0, ""
        for (_, column), (end, one) in sorted(item for item in marks.items() if item[0][0] == row):
            kind = one["label"] + (" unsure" if one["score"] < 0.5 else "")
            title = f"{one['label']}, {one['score']:.0%}"
            made += f'{escape(line[done:column])}<i class="{kind}" title="{title}">{escape(line[column:end])}</i>'
            done = end
        lines.append(made + escape(line[done:]))
    return "\n".join(lines), len(marks)


def main(file: Path, out: Path, steps: int | None = None) -> None:
    """Train, measure, and paint the functions of a file."""
    if not out.exists():
        rows = str(DATA / "train.jsonl")
        train(RunSettings(task="token-classification", train=(rows,), out=str(out), max_epochs=6, max_steps=steps))
    told = evaluate(str(out), [str(DATA / "test.jsonl")], baseline=True)
    score, simple = told["metrics"]["f1"], told["baseline"]["metrics"]["f1"]
    print(f"{told['examples']} unseen functions: F1 {score:.1f}, of the most frequent role of each word {simple:.1f}")

    code, count = painted(file.read_text(encoding="utf-8"), heedful.pipeline("token-classification", out))
    legend = "".join(f'<b class="{role}">{role}</b>' for role in HUES)
    body = f"<p>{legend}</p><pre>{code}</pre><footer>Hover over a name to see how sure the model is.</footer>"
    (out / "code.html").write_text(page(file.name, body, STYLE), encoding="utf-8")
    print(f"{count} names are painted in {out / 'code.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else __file__), Path(sys.argv[2] if sys.argv[2:] else "roles"))
