"""Batches of token ids: padding, masks, seeds for prompts, and log-probabilities of new tokens."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

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


def new_token_logprobs(generated: Generated, starts: Sequence[int]) -> list[list[float] | None]:
    """Returns log p of the new tokens of each generated row; None for a row without log-probabilities.

    ``starts`` has the position of each row's first new token.
    """
    if generated.logprobs is None:
        return [None] * len(generated.ids)
    rows = zip(generated.logprobs.tolist(), starts, generated.lengths.tolist(), strict=True)
    return [row[start:end] for row, start, end in rows]


def seed_per_prompt(decoding: Options, prompts: Sequence[Sequence[int]]) -> Options:
    """Returns the options with a seed for each of the ``prompts``, which are lists of ids.

    A repeated prompt gets a seed of its own, computed from the options' seed and the number of its earlier occurrences.
    So it draws other tokens, whether or not it is in the same batch. The options are unchanged if they have no seed, or
    a list of seeds that is not as long as ``prompts``.

    >>> from heedful.generation.options import Options
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
