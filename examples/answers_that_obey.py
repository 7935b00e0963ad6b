"""Makes an assistant as ChatGPT was made, in small: instructions first, then preferences (DPO).

    python examples/answers_that_obey.py [SEEDS]

A model learns to answer "name three tools:" from answers of which about half obey. Of two such answers a rule prefers
the one that obeys better; from these pairs the model is tuned, and a reward model learns. On instructions that no
training had, answers of the tuned model are compared with those of the first model by the rule: the win rate, a tie
counting one half, with its 95 % interval over the instructions. Half a minute of one core a seed;
the folder "obey" is overwritten. To expect, for three seeds (the numbers differ a little from machine to machine):

    seed  win rate          obey %        words         reward model
    0     62.8 (60.3-65.5)  54.7 -> 77.8  3.37 -> 3.35  accuracy 67.8
    1     61.2 (58.8-63.9)  59.1 -> 78.1  3.48 -> 3.47  accuracy 81.1
    2     62.0 (58.4-65.3)  55.9 -> 75.6  3.75 -> 3.66  accuracy 84.4

The settings were chosen on these seeds; seeds 3 to 5 win 62.2, 63.3 and 61.4 %. At a rate of 3e-4, after 600 first
steps, seed 0 wins 63.3 %, its answers shorter: 3.26 words instead of 3.45.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

import heedful
from heedful.metrics.example_scores import overall
from heedful.metrics.intervals import intervals
from heedful.metrics.preference import win_scores

VERBS = ["name", "list", "say", "write", "tell me", "give me", "find", "show", "please name", "please list", "recall"]
COUNTS = {"two": 2, "three": 3, "four": 4, "five": 5}
WORDS = {
    "tools": ["saw", "axe", "drill", "file", "hammer", "rasp"],
    "colours": ["red", "blue", "green", "pink", "black", "white"],
    "animals": ["cat", "dog", "cow", "owl", "hen", "fox"],
    "fruits": ["fig", "plum", "pear", "apple", "grape", "lime"],
    "metals": ["iron", "gold", "zinc", "lead", "tin", "brass"],
}
SAMPLES = 8  # answers to an instruction
SIZE: dict[str, Any] = {"preset": "gpt-micro", "model_settings": {"dim": 64, "depth": 2}, "tokenizer": {"size": 800}}
FIRST = {"training": {"lr": 4e-3, "batch_tokens": 1536}}
TUNING = {"training": {"lr": 1e-4}, "preference": {"beta": 0.5}}


def instruction(verb: str, count: str, kind: str) -> str:
    """Returns an instruction, with the space before its answer."""
    return f"{verb} {count} {kind}: "


def score(prompt: str, answer: str) -> float:
    """The rule: half a point for the number of words, half a point for the share of words of the right kind."""
    *_, count, kind = prompt.rstrip(": ").split()
    words = answer.split()
    right = sum(word in WORDS[kind] for word in words)
    return 0.5 * (len(words) == COUNTS[count]) + 0.5 * right / max(1, len(words))


def demonstration(prompt: str, chance: random.Random) -> str:
    """An answer as people wrote it here: of the right kind, and of the right length, two times of three each."""
    *_, count, kind = prompt.rstrip(": ").split()
    kind = kind if chance.random() < 0.67 else chance.choice([*WORDS])
    number = COUNTS[count] if chance.random() < 0.67 else chance.choice([*COUNTS.values()])
    return " ".join(chance.sample(WORDS[kind], number))


def answers(folder: str, prompts: list[str], seed: int) -> list[list[str]]:
    """Samples answers of a model to each prompt."""
    pipe = heedful.pipeline("text-generation", folder)
    options = {"do_sample": True, "temperature": 1.0, "max_new_tokens": 24, "num_return_sequences": SAMPLES}
    found = pipe(prompts, seed=seed, **options)
    return [[one["text"].removeprefix(p) for one in row["output"]] for p, row in zip(prompts, found, strict=True)]


def preference(prompt: str, chance: random.Random) -> dict[str, str]:
    """Two such answers, of which the rule prefers one."""
    worse, better = 0.0, 0.0
    while worse == better:
        pair = sorted((demonstration(prompt, chance) for _ in range(2)), key=lambda text: score(prompt, text))
        worse, better = (score(prompt, text) for text in pair)
    return {"prompt": prompt, "chosen": pair[1], "rejected": pair[0]}


def row(seed: int, steps: int) -> str:
    """Trains the three models of one seed; returns their line of the table."""
    chance = random.Random(seed)
    prompts = [instruction(v, c, k) for v in VERBS for c in COUNTS for k in WORDS]
    chance.shuffle(prompts)
    unseen, seen = prompts[:40], prompts[40:]
    shown = [{"prompt": p, "completion": demonstration(p, chance)} for p in seen for _ in range(20)]
    pairs = [preference(p, chance) for p in seen for _ in range(10)]
    common: dict[str, Any] = {"overwrite": True, "seed": seed, "quiet": True}
    heedful.train("text-generation", shown, out="obey/assistant", max_steps=8 * steps, **SIZE, **FIRST, **common)
    common["model"] = "obey/assistant"
    heedful.train("text-generation", pairs, out="obey/tuned", max_steps=steps, **TUNING, **common)
    reward = heedful.train("text-classification", pairs, out="obey/reward", max_steps=steps, **common)
    before, after = (answers(f"obey/{name}", unseen, seed + 1) for name in ("assistant", "tuned"))
    scores = [
        [[score(p, text) for text in texts] for p, texts in zip(unseen, part, strict=True)] for part in (before, after)
    ]
    wins = win_scores(scores[1], scores[0])
    low, high = intervals(wins)["win_rate"]
    obey = [100 * np.mean(np.array(part) == 1) for part in scores]
    words = [np.mean([len(text.split()) for texts in part for text in texts]) for part in (before, after)]
    return (
        f"{seed:<6}{overall(wins)['win_rate']:.1f} ({low:.1f}-{high:.1f})  {obey[0]:.1f} -> {obey[1]:.1f}  "
        f"{words[0]:.2f} -> {words[1]:.2f}  accuracy {reward.metrics['accuracy']:.1f}"
    )


def main(seeds: int = 3, steps: int = 100) -> None:
    """Prints the table, a line a seed."""
    lines = [row(seed, steps) for seed in range(seeds)]
    print("seed  win rate          obey %        words         reward model", *lines, sep="\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
