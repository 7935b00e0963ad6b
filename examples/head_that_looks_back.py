"""Finds the head of a character model that attends to the previous letter, shows it and tests it by ablation.

    python examples/head_that_looks_back.py input.txt [RUN]

input.txt is Tiny Shakespeare, data/tinyshakespeare/input.txt of github.com/karpathy/char-rnn, as it is or gzipped. RUN
is the folder of a model trained on it; without one, examples/character_model.py trains it first, in "shakespeare". Two
cores, a hundred seconds of training, then ten seconds. To know the previous letter, a model needs a head that attends
one position back. Writes head.html and head.svg beside the model. To expect (other figures on another machine, the same
conclusion):

    loss on the last 6,400 characters: 1.88
    looks back best: block 0, head 3, weight on the letter before 0.84 (a head that looks everywhere: 0.06)
    without it: loss 2.71
    without one of the other 15: loss 2.00 at worst
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from character_model import main as train

import heedful
from heedful.data.text_files import read_text
from heedful.inspection import ablate, find_heads
from heedful.text import Tokenizer

WINDOW = 64


def main(text: str, folder: str) -> None:
    """Find the head, draw it, and take it away."""
    model, tokenizer = heedful.from_pretrained(folder).eval(), Tokenizer.load(folder)
    end = read_text(text)[-100 * WINDOW :]
    ids = torch.tensor(tokenizer.encode([end])[0]).view(-1, WINDOW)

    def loss() -> float:
        """Nats a character."""
        with torch.no_grad():
            return float(F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))

    print(f"loss on the last {ids.numel():,} characters: {loss():.2f}")
    found = find_heads(model, ids, by="previous-token")
    best = found[0]
    print(
        f"looks back best: block {best.layer}, head {best.head}, weight on the letter before {best.score:.2f} "
        f"(a head that looks everywhere: {best.uniform:.2f})"
    )
    for name in ("head.html", "head.svg"):
        look = heedful.inspect(folder, end.splitlines()[1][:24], view="heads", layers=[best.layer], heads=[best.head])
        look.save(Path(folder) / name)

    # broken: each head silent in turn
    ablation = ablate(model, loss, "heads")
    worth = {(path, head): float(x) for path, change in ablation.change.items() for head, x in enumerate(change)}
    without = worth.pop((best.path.removesuffix(".pattern"), best.head))
    print(f"without it: loss {ablation.base + without:.2f}")
    print(f"without one of the other {len(worth)}: loss {ablation.base + max(worth.values()):.2f} at worst")


if __name__ == "__main__":
    if not sys.argv[2:]:
        train(sys.argv[1])
    main(sys.argv[1], sys.argv[2] if sys.argv[2:] else "shakespeare")
