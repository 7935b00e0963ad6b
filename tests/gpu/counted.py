"""Kinds of work on the pretend GPU, how often each may wait for it or copy to or from it, and a table of what it does.

    python tests/gpu/counted.py

prints the table of ``docs/gpu.md``. Tests import the kinds of work and their budgets; a unit of work is a forward pass,
a step of training, or a token of decoding.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
from pretend import Watch, pretend_gpu
from torch import Tensor

import heedful
from heedful import cli
from heedful.config import AlibiPosition, DropoutRates, RelativePosition
from heedful.training import Loop
from test_every_task import MADE, command_of

CUDA = "cuda:0"
IDS = torch.tensor([[9, 14, 33, 7, 52, 21, 40], [8, 30, 11, 47, 5, 29, 18], [55, 6, 24, 13, 38, 44, 10]])
LEFT = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1]]).bool()
PACKED = torch.tensor([[1, 1, 2, 2, 2, 0, 0], [1, 2, 2, 2, 2, 2, 3], [1, 1, 1, 1, 1, 1, 1]])
MASKS: dict[str, Tensor | None] = {  # (B, T), and (B, T, T): a prefix of two tokens that all attend to
    "plain": None,
    "left": LEFT,
    "right": LEFT.flip(1),
    "packed": PACKED,
    "pairs": (torch.ones(7, 7).tril().bool() | (torch.arange(7) < 2)).expand(3, 7, 7),
}


class Budget(NamedTuple):
    """Largest number of waits and of copies in a unit of work."""

    waits: float
    copies: float


BUDGETS = {
    "forward pass": Budget(0, 0),
    "step of training": Budget(0, 0),  # besides its batch, which is copied from pinned memory and waits for nothing
    "greedy": Budget(1 / 8, 0),  # the host looks which rows have ended
    "sampling": Budget(1 / 8, 0),
    "contrastive": Budget(1 / 8, 0),
    "beams": Budget(1, 0),
    "assisted": Budget(1 + 1 / 8, 0),  # the number of proposals that all rows accept decides what is computed next
    "prompt lookup": Budget(2 + 1 / 8, 0),  # and whether any row has proposals
    "stop strings": Budget(2, 0),  # the tokenizer decodes on the host, which must read the ids
}


class Decoding(NamedTuple):
    """A way to decode: the budget of a token, and the options of ``generate``."""

    budget: str
    options: Mapping[str, Any]


SAMPLING = {"do_sample": True, "seed": 0}
BEAMS = {"num_beams": 3}
GROUPS = {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}
PENALTIES = {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 3}
IDS_OF_PROCESSORS = {
    "bad_words_ids": [[7], [8, 9]],
    "suppress_tokens": [3],
    "begin_suppress_tokens": [4],
    "forced_bos_token_id": 6,
    "forced_eos_token_id": 5,
    "min_new_tokens": "all",
}
WORDS = {"num_beams": 3, "force_words_ids": [[7, 9], [[11], [12, 13]]]}
STATIC = {"cache_implementation": "static"}
DECODING = {
    "greedy": Decoding("greedy", {}),
    "sampling": Decoding("sampling", SAMPLING),
    "beams": Decoding("beams", BEAMS),
    "processors": Decoding("greedy", PENALTIES | IDS_OF_PROCESSORS | {"presence_penalty": 0.1}),
    "warpers": Decoding(
        "sampling", SAMPLING | {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "min_length": 40}
    ),
    "groups": Decoding("beams", GROUPS),
    "forced words": Decoding("beams", WORDS),
    "static": Decoding("greedy", STATIC),
    "contrastive": Decoding("contrastive", {"penalty_alpha": 0.6, "top_k": 4}),
    "assisted": Decoding("assisted", {"assistant_model": True}),
    "prompt lookup": Decoding("prompt lookup", {"prompt_lookup_num_tokens": 3}),
    "stop strings": Decoding("stop strings", {"stop_strings": ["zzzz"]}),
    "contrastive and processors": Decoding(
        "contrastive", {"penalty_alpha": 0.6, "top_k": 4} | PENALTIES | IDS_OF_PROCESSORS
    ),
    "lookup and processors": Decoding("prompt lookup", {"prompt_lookup_num_tokens": 3} | PENALTIES | IDS_OF_PROCESSORS),
    "typical": Decoding("sampling", SAMPLING | {"typical_p": 0.8}),
    "samples": Decoding("sampling", SAMPLING | {"num_return_sequences": 2, "frequency_penalty": 0.1}),
    "assisted samples": Decoding("assisted", SAMPLING | {"assistant_model": True, "temperature": 0.8}),
    "beams and processors": Decoding("beams", BEAMS | PENALTIES | IDS_OF_PROCESSORS | {"renormalize_logits": True}),
    "groups and processors": Decoding("beams", GROUPS | IDS_OF_PROCESSORS | {"num_return_sequences": 2}),
    "words and processors": Decoding(
        "beams", WORDS | PENALTIES | {"begin_suppress_tokens": [4], "forced_eos_token_id": 5}
    ),
    "chunks of the prompt": Decoding("greedy", {"prefill_chunk_size": 3, "frequency_penalty": 0.1}),
    "static and processors": Decoding("greedy", STATIC | PENALTIES | IDS_OF_PROCESSORS),
    "static sampling": Decoding("sampling", STATIC | SAMPLING | {"top_k": 5, "top_p": 0.9}),
    "static beams": Decoding("beams", STATIC | BEAMS),
    "static groups": Decoding("beams", STATIC | GROUPS),
    "static words": Decoding("beams", STATIC | WORDS),
}
GENERATORS = ("gpt-micro", "stories260k", "transformer-tiny")


def config_of(family: str) -> Any:
    """The configuration of a family: presets with fewer blocks and tokens, without dropout; variants of positions."""
    preset = {"alibi": "gpt-micro", "window": "stories260k", "relative": "transformer-tiny"}.get(family, family)
    config: Any = heedful.presets.get(preset)
    stacks = {
        name: replace(getattr(config, name), depth=2, dropout=DropoutRates())
        for name in ("encoder", "decoder")
        if hasattr(config, name)
    }
    if family == "alibi":
        stacks["decoder"] = replace(stacks["decoder"], position=AlibiPosition())
    if family == "window":
        stacks["decoder"] = replace(stacks["decoder"], window=4)
    if family == "relative":
        stacks = {name: replace(stack, position=RelativePosition()) for name, stack in stacks.items()}
    vocabulary = "source" if family in ("transformer-tiny", "relative") else "embedding"
    if hasattr(config, vocabulary):
        stacks[vocabulary] = replace(getattr(config, vocabulary), vocab_size=65)
    return replace(config, **stacks)


FAMILIES = ("gpt-micro", "stories260k", "bert-tiny", "transformer-tiny", "vit-micro", "alibi", "relative", "window")


def made(family: str) -> Any:
    """A model with random weights, the same at each call, in evaluation mode."""
    return heedful.create(config_of(family), seed=0).eval()


def inputs_of(family: str, mask: str) -> dict[str, Tensor]:
    """A batch: the arguments of a model, in order."""
    if family == "vit-micro":
        return {"images": torch.linspace(0, 1, 2 * 784).reshape(2, 1, 28, 28)}
    batch = {"ids": IDS, "target": IDS} if family in ("transformer-tiny", "relative") else {"ids": IDS}
    tensor = MASKS[mask]
    return batch if tensor is None else batch | {f"mask of {name}": tensor for name in batch}


def counts(events: Mapping[tuple[str, str, str], int]) -> Budget:
    """Returns the number of waits and of copies in ``events``, without the copies of batches to the device."""
    kinds: Counter[str] = Counter()
    for (kind, line, _), number in events.items():
        if not line.startswith("util/to_device.py"):
            kinds["wait" if kind == "wait" else "copy"] += number
    return Budget(kinds["wait"], kinds["copy"])


class Letters:
    """A tokenizer of a letter for each id."""

    def decode(self, rows: Any) -> list[str]:
        """Returns the texts of rows of ids."""
        return ["".join(chr(97 + number % 26) for number in row) for row in rows]


def generated(model: Any, method: str, tokens: int) -> Tensor:
    """Returns the ids that ``model`` generates with a method, on its device."""
    options = dict(DECODING[method].options)
    if "assistant_model" in options:
        options["assistant_model"] = made("gpt-micro" if not hasattr(model, "encode") else "transformer-tiny")
        options["assistant_model"].to(model.device)
    if options.get("min_new_tokens") == "all":
        options["min_new_tokens"] = tokens
    if "stop_strings" in options:
        options["tokenizer"] = Letters()
    ids: Tensor = model.generate(IDS.to(model.device), LEFT.to(model.device), max_new_tokens=tokens, **options)
    return ids


def decoding_counts(family: str, method: str, watch: Watch, captured: bool = False) -> tuple[Budget, Tensor]:
    """Returns the waits and copies of a token, over the last eight of sixteen, and the ids of all sixteen."""
    model, events = made(family).to(CUDA), []
    if captured:
        heedful.optimize(model)
    for tokens in (8, 16):
        watch.events.clear()
        ids = generated(model, method, tokens)
        events.append(Counter(watch.events))
    events[1].subtract(events[0])
    waits, copies = counts(events[1])
    return Budget(waits / 8, copies / 8), ids


def forward_counts(family: str, mask: str, watch: Watch) -> Budget:
    """Returns the waits and copies of a forward pass."""
    model, inputs = made(family).to(CUDA), [tensor.to(CUDA) for tensor in inputs_of(family, mask).values()]
    watch.events.clear()
    model(*inputs)
    return counts(watch.events)


def trained(command: list[str], watch: Watch, each: Callable[[Loop], None] = lambda loop: None) -> Counter[Any]:
    """Runs a command of two steps of training on the device; returns the events in the steps."""
    inner, events = Loop._step, Counter[Any]()

    def step(self: Loop) -> None:
        before = Counter(watch.events)
        each(self)
        inner(self)
        events.update(watch.events - before)

    with mock.patch.object(Loop, "_step", step):
        if cli.main([*command, "--max-steps=2", f"--device={CUDA}"]) != 0:
            raise AssertionError(f"the command fails: {command}")
    return events


OTHER_ROWS: dict[str, tuple[str, str, Callable[[int], str]]] = {  # kind of loss: task, columns, and a row
    "regression": ("text-classification", "text\tlabel", lambda n: f"one fig {n}\t{n / 7:.3f}"),
    "pairs with scores": (
        "feature-extraction",
        "text\ttext_pair\tscore",
        lambda n: f"the fig {n}\ta saw {n % 5}\t{n % 9 / 8}",
    ),
}


def task_command(name: str, folder: Path) -> list[str]:
    """The command that trains a small model of a task, or with other rows, and reads the losses at its end alone."""
    task, header, row = OTHER_ROWS.get(name, (name, "", str))
    command = [part.replace("log-every=1", "log-every=50") for part in command_of(task, folder)]
    if header:
        Path(command[3]).write_text("\n".join([header, *map(row, range(40))]) + "\n", encoding="utf-8")
    return [*command, "--out", str(folder / "run")]


def rows() -> dict[str, dict[str, Budget | None]]:
    """Counts all kinds of work: for each unit the largest counts of its variants; None where one does not run."""

    def of_a_step(name: str, watch: Watch) -> Budget:
        with tempfile.TemporaryDirectory() as folder:
            waits, copies = counts(trained(task_command(name, Path(folder)), watch))
        return Budget(waits / 2, copies / 2)

    forward = [(family, mask) for family in FAMILIES for mask in MASKS if mask == "plain" or family != "vit-micro"]
    units: dict[str, list[tuple[str, Callable[[Watch], Budget]]]] = {
        "forward pass": [
            (family if mask != "pairs" else "masks (B, T, T)", partial(forward_counts, family, mask))
            for family, mask in forward
        ],
        "step of training": [(name, partial(of_a_step, name)) for name in (*MADE, *OTHER_ROWS)],
        "token": [
            (method, lambda watch, method=method, family=family: decoding_counts(family, method, watch)[0])
            for method in DECODING
            for family in GENERATORS
        ],
    }
    largest: dict[str, dict[str, Budget | None]] = {unit: {} for unit in units}
    for unit, variants in units.items():
        for variant, count in variants:
            try:
                with pretend_gpu() as watch:
                    counted = count(watch)
            except Exception:  # an error of any kind is a row of the table
                largest[unit][variant] = None
            else:
                known = largest[unit].get(variant, Budget(0, 0))
                largest[unit][variant] = known and Budget(*map(max, known, counted))
    return largest


def main() -> None:
    """Prints the table, with variants of equal counts in one row."""
    print("| work | waits | copies |\n|---|---|---|")
    for unit, variants in rows().items():
        for budget in dict.fromkeys(variants.values()):
            names = ", ".join(name for name, counted in variants.items() if counted == budget)
            numbers = "does not run | " if budget is None else f"{budget.waits:g} | {budget.copies:g}"
            print(f"| {unit}: {names} | {numbers} |")


if __name__ == "__main__":
    main()
