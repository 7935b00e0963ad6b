"""Batches of token ids: padding, masks, seeds for prompts, generated texts and log-probabilities of new tokens."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from heedful.tasks.task import Prediction

if TYPE_CHECKING:
    from heedful.generation.decoding import Generated
    from heedful.generation.options import Options

IGNORED = -100  # label of padding and of tokens without a target, as in PyTorch's cross entropy


def padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Returns lists of ids as one int64 tensor (B, longest), padded with ``value`` at their ends."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows], dtype=torch.long)


def padded_with_mask(rows: Sequence[Sequence[int]], value: int = 0) -> tuple[Tensor, Tensor]:
    """Pads lists of ids with ``value`` at their ends; returns int64 (B, longest) and a mask, True for tokens."""
    return padded(rows, value), padded([[1] * len(row) for row in rows], 0).bool()


def with_label_index(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a batch on the CPU with ``label_index`` (M,): the indices of the M labels among all B · T tokens.

    Computed on the CPU, it spares a GPU's host the wait for boolean indices.

    >>> with_label_index({"labels": torch.tensor([[7, IGNORED], [IGNORED, 5]])})["label_index"]
    tensor([0, 3])
    """
    return {**batch, "label_index": (batch["labels"].flatten() != IGNORED).nonzero()[:, 0]}


def label_index(batch: Mapping[str, Tensor]) -> Tensor:
    """Returns the ``label_index`` of a batch, which is computed if the batch has none."""
    return batch["label_index"] if "label_index" in batch else with_label_index(batch)["label_index"]


def new_token_logprobs(generated: Generated, starts: Sequence[int]) -> list[list[float] | None]:
    """Returns log p of the new tokens of each generated row; None for a row without log-probabilities.

    ``starts`` has the position of each row's first new token.
    """
    if generated.logprobs is None:
        return [None] * len(generated.ids)
    rows = zip(generated.logprobs.tolist(), starts, generated.lengths.tolist(), strict=True)
    return [row[start:end] for row, start, end in rows]


class GeneratedText(NamedTuple):
    """One output for an input: its text, its score, and log p of its new tokens if requested."""

    text: str
    score: float
    logprobs: list[float] | None

    def as_dict(self) -> dict[str, Any]:
        """Returns ``{"text", "score"}``, and ``"logprobs"`` if there are any."""
        values = {"text": self.text, "score": self.score}
        return values if self.logprobs is None else {**values, "logprobs": self.logprobs}


def outputs_of_call(decoding: Options) -> Options:
    """Returns the options with the ``num_return_sequences`` of the call; a folder's has no effect on predictions."""
    if "num_return_sequences" in decoding.given:
        return decoding
    return replace(decoding, num_return_sequences=1)


def prediction_of(value: Any, outputs: Sequence[GeneratedText], decoding: Options) -> Prediction:
    """Returns the prediction for one input: its output, or a list of outputs with ``num_return_sequences`` > 1.

    The score is that of the first output. Beams that the search did not find are left out; without ``outputs``, for an
    input without text, the output is empty.
    """
    if decoding.num_return_sequences > 1:
        found = [output.as_dict() for output in outputs if output.score > -math.inf]
        return Prediction(value, found, found[0]["score"] if found else None)
    if not outputs:
        return Prediction(value, "", None)
    return Prediction(value, *outputs[0])


def by_prompt(outputs: Iterable[GeneratedText], decoding: Options) -> list[list[GeneratedText]]:
    """Groups the outputs of a batch by prompt: ``num_return_sequences`` adjacent ones each."""
    rows, size = list(outputs), decoding.num_return_sequences
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def seed_per_prompt(decoding: Options, prompts: Sequence[Sequence[int]]) -> Options:
    """Returns the options with a seed for each of the ``prompts``, which are lists of ids.

    A repeated prompt gets a seed of its own, computed from the options' seed and the number of its earlier occurrences.
    So it draws other tokens, whether or not it is in the same batch. The options are unchanged if they have no seed, or
    a list of seeds that is not as long as ``prompts``.

    >>> from heedful.generation import Options
    >>> seeds = seed_per_prompt(Options(do_sample=True, seed=5), [[1, 2], [3], [1, 2]]).seed
    >>> seeds[:2], seeds[2] != 5
    ([5, 5], True)
    """
    seeds = [decoding.seed] * len(prompts) if isinstance(decoding.seed, int) else decoding.seed
    if seeds is None or len(seeds) != len(prompts):
        return decoding
    occurrences: Counter[tuple[int, ...]] = Counter()
    own_seeds = []
    for prompt, seed in zip(prompts, seeds, strict=True):
        key = (seed, *prompt)
        own_seeds.append(seed_of_repeat(seed, occurrences[key]))
        occurrences[key] += 1
    return replace(decoding, seed=own_seeds)


def seed_of_repeat(seed: int, times: int) -> int:
    """Returns the seed of a prompt that occurred ``times`` times before; ``seed`` itself for the first occurrence."""
    digest = hashlib.blake2b(f"{seed} {times}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") if times else seed
