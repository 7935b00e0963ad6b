"""The character model of nanoGPT's CPU recipe, trained by nanoGPT and by us: time of a step, loss for the time.

    python benchmarks/character_model.py input.txt --nanogpt ../nanoGPT           # a step of each, alternating
    python benchmarks/character_model.py input.txt --nanogpt ../nanoGPT --learn   # and what each learns in that time

input.txt is Tiny Shakespeare, data/tinyshakespeare/input.txt of github.com/karpathy/char-rnn, as it is or gzipped;
``--nanogpt`` is a folder with model.py of github.com/karpathy/nanoGPT. Without it ours is measured alone.

Ours has biases, as GPT-2 has; nanoGPT's has none. Expect on two cores of an AMD EPYC (Zen 3, AVX2) with torch 2.13, in
two minutes: nanoGPT 46 ms a step, ours 47; our best recipe 100 ms for twice the characters. ``--learn`` takes 2,000
steps of each and the same time for the best recipe: about five minutes more.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import io
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import heedful
from heedful import presets
from heedful.config import DecoderConfig, LearnedPosition
from heedful.data.token_stream import Stream, StreamWindow, read_windows
from heedful.training.averages import Polynomial
from heedful.training.guard import GradientLimits
from heedful.training.loader import Loader
from heedful.training.loop import Loop
from heedful.training.loop_parts import Objective, Optimiser
from heedful.training.muon import muon
from heedful.training.optimisation import adamw
from heedful.training.schedule import Limits, Schedule, constant, schedule

# nanoGPT's settings for a CPU (its README): 4 layers of 128, 4 heads, windows of 64, 12 of them a step, no dropout
CONTEXT, ROWS, STEPS, PUBLISHED = 64, 12, 2000, 1.88
RATE, BETAS, DECAY, CLIP = 1e-3, (0.9, 0.99), 0.1, 1.0
BLOCK = 20  # steps of one program before the other's turn


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of our training; the defaults are nanoGPT's."""

    # changes to the preset gpt-micro; these are nanoGPT's
    stack: Mapping[str, Any] = field(default_factory=lambda: {"activation": "gelu", "init_std": 0.02})
    context: int = CONTEXT
    rows: int = ROWS
    optimiser: Callable[..., Optimiser] = adamw
    lr: float = RATE
    schedule: str = "cosine"
    warmup: int = 100
    floor: float = 0.1
    betas: tuple[float, float] = BETAS
    weight_decay: float = DECAY
    average: float = 0.0


BEST = Recipe(stack={"activation": "gelu"}, rows=24, optimiser=muon, lr=6e-3, warmup=20, floor=0.0)


# ----------------------------------------------------------------------------------------------------------- the data


def characters(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The text's characters as numbers: the first nine tenths to train on, the rest to validate."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = raw.decode("utf-8")
    number = {character: place for place, character in enumerate(sorted(set(text)))}
    ids = np.array([number[character] for character in text], dtype=np.uint16)
    cut = int(0.9 * len(ids))
    return ids[:cut], ids[cut:]


def loss_of(predict: Callable[[Tensor], Tensor], ids: np.ndarray, context: int) -> float:
    """The mean loss over all of ``ids``, in windows that follow one another."""
    stream, total = Stream(ids, context), 0.0
    for first in range(0, stream.windows, 64):
        places = range(first, min(first + 64, stream.windows))
        tokens, there = map(torch.from_numpy, read_windows([StreamWindow(stream, place) for place in places])[:2])
        with torch.no_grad():
            logits = predict(tokens[:, :-1])[there[:, 1:]]
        total += F.cross_entropy(logits, tokens[:, 1:][there[:, 1:]], reduction="sum").item()
    return total / (len(ids) - 1)


# ---------------------------------------------------------------------------------------------------------------- ours


def objective(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten(), reduction="sum")


def count(batch: Mapping[str, Tensor]) -> int:
    return batch["labels"].numel()


class Ours:
    """A recipe's model, optimiser and examples."""

    def __init__(self, ids: np.ndarray, recipe: Recipe) -> None:
        config = presets.get("gpt-micro")
        assert isinstance(config, DecoderConfig)
        stack = replace(config.decoder, **{"position": LearnedPosition(length=recipe.context), **recipe.stack})
        self.model = heedful.create(replace(config, decoder=stack), seed=0)
        self.optimiser = recipe.optimiser(
            self.model, lr=recipe.lr, betas=recipe.betas, eps=1e-8, weight_decay=recipe.weight_decay
        )
        self.average = Polynomial(self.model, share=recipe.average) if recipe.average else None
        stream = Stream(ids, recipe.context)

        def collate(places: np.ndarray, random: np.random.Generator) -> dict[str, Tensor]:
            tokens = torch.from_numpy(read_windows([StreamWindow(stream, int(place)) for place in places], random)[0])
            return {"ids": tokens[:, :-1], "labels": tokens[:, 1:]}

        lengths = np.full(stream.windows, recipe.context)
        self.loader = Loader(lengths, collate, tokens=recipe.rows * recipe.context)

    def fit(self, limits: Limits, rates: Schedule = constant()) -> None:  # noqa: B008 - a function
        """Train in our loop."""
        Loop(
            model=self.model,
            objective=Objective(loss=objective, count=count),
            loader=self.loader,
            optimiser=self.optimiser,
            schedule=rates,
            limits=limits,
            gradient_limits=GradientLimits(clip=CLIP),
            average=self.average,
        ).fit()

    def bare(self, steps: int) -> None:
        """Train in the shortest loop that does the same."""
        for _ in range(steps):
            (batch,) = next(self.loader)
            self.optimiser.zero_grad()
            (objective(self.model, batch) / count(batch)).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
            self.optimiser.step()

    def loss(self, ids: np.ndarray, context: int) -> float:
        """Of the averaged weights, where they are averaged."""
        self.model.eval()
        with contextlib.nullcontext() if self.average is None else self.average.swapped():
            return loss_of(self.model, ids, context)


# ------------------------------------------------------------------------------------------------------------- nanoGPT


class Theirs:
    """nanoGPT's model and optimiser, and the steps of its train.py."""

    def __init__(self, folder: Path, ids: np.ndarray) -> None:
        sys.path.insert(0, str(folder))
        nanogpt = importlib.import_module("model")
        sys.path.remove(str(folder))
        sizes = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": CONTEXT, "vocab_size": 65}
        torch.manual_seed(1337)
        with contextlib.redirect_stdout(io.StringIO()):
            self.model = nanogpt.GPT(nanogpt.GPTConfig(**sizes, dropout=0.0, bias=False))
            self.optimiser = self.model.configure_optimizers(DECAY, RATE, BETAS, "cpu")
        self.ids = ids
        self.next = self.batch()

    def batch(self) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(self.ids) - CONTEXT, (ROWS,))
        rows = [torch.from_numpy(self.ids[i : i + CONTEXT + 1].astype(np.int64)) for i in starts]
        return torch.stack([row[:-1] for row in rows]), torch.stack([row[1:] for row in rows])

    def fit(self, steps: int, rates: Schedule = constant()) -> None:  # noqa: B008 - a function
        for step in range(steps):
            for group in self.optimiser.param_groups:
                group["lr"] = RATE * rates(step + 1, step / steps)
            _, loss = self.model(*self.next)
            self.next = self.batch()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=True)
            loss.item()

    def loss(self, ids: np.ndarray, context: int) -> float:
        return loss_of(lambda tokens: self.model(tokens, tokens)[0], ids, context)  # with targets: logits of all


# ----------------------------------------------------------------------------------------------------------- measuring


def alternating(programs: Mapping[str, Callable[[int], None]], blocks: int) -> dict[str, float]:
    """Milliseconds a step: the median over blocks of steps, the programs taking turns."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(blocks + 1):  # the first is not counted
        for name, run in programs.items():
            begun = time.perf_counter()
            run(BLOCK)
            times[name].append(1e3 * (time.perf_counter() - begun) / BLOCK)
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Ours and nanoGPT on Tiny Shakespeare, by characters.")
    parser.add_argument("text", type=Path, help="Tiny Shakespeare: input.txt, or input.txt.gz")
    parser.add_argument("--nanogpt", type=Path, help="a folder with nanoGPT's model.py")
    parser.add_argument("--blocks", type=int, default=15, help=f"blocks of {BLOCK} steps of each")
    parser.add_argument("--learn", action="store_true", help="train as well, and print the losses")
    asked = parser.parse_args()
    train, valid = characters(asked.text)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")

    plain, best = Ours(train, Recipe()), Ours(train, BEST)
    programs: dict[str, Callable[[int], None]] = {
        "ours": lambda steps: plain.fit(Limits(max_steps=steps)),
        "ours, without our loop": plain.bare,
        "ours, best recipe": lambda steps: best.fit(Limits(max_steps=steps)),
    }
    if asked.nanogpt is None:
        print("nanoGPT is not measured: give its folder with --nanogpt")
    else:
        programs = {"nanoGPT": Theirs(asked.nanogpt, train).fit, **programs}
    times = alternating(programs, asked.blocks)
    first = next(iter(times))
    for name, found in times.items():
        print(f"{name:24}{found:7.1f} ms a step{times[first] / found:7.2f} × {first}")
    if not asked.learn:
        return

    print(f"\nloss over the last tenth, in windows of the training context and of {CONTEXT}; published: {PUBLISHED}")
    minutes = STEPS * times[first] / 6e4
    for name, recipe, limits in (
        ("nanoGPT's recipe", Recipe(), Limits(max_steps=STEPS)),
        ("best recipe", BEST, Limits(max_minutes=minutes)),
    ):
        ours = Ours(train, recipe)
        begun = time.perf_counter()
        ours.fit(limits, schedule(recipe.schedule, recipe.warmup, recipe.floor))
        report(
            f"ours, {name}", time.perf_counter() - begun, ours.loss(valid, recipe.context), ours.loss(valid, CONTEXT)
        )
    if asked.nanogpt is not None:
        theirs = Theirs(asked.nanogpt, train)
        begun = time.perf_counter()
        theirs.fit(STEPS, schedule("cosine", 100, 0.1))
        found = theirs.loss(valid, CONTEXT)
        report("nanoGPT", time.perf_counter() - begun, found, found)


def report(name: str, seconds: float, own: float, short: float) -> None:
    print(f"{name:24}{seconds:7.1f} s{own:9.4f}{short:9.4f}")


if __name__ == "__main__":
    main()
