"""Helpers of several tasks: presets with changed sizes, input lengths, rows of ids as a tensor."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from heedful import presets
from heedful.config import (
    Config,
    DecoderConfig,
    DropoutRates,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    ImageHead,
    LearnedPosition,
    ModelConfig,
    RotaryPosition,
    SequenceHead,
    StackConfig,
    TokenHead,
    VisionConfig,
)
from heedful.errors import HeedfulError
from heedful.generation.decode import Generated
from heedful.generation.options import Options
from heedful.models import Model
from heedful.pretrained import load
from heedful.pretrained.configuration import config_of, home
from heedful.settings import ModelSettings
from heedful.stack import initialise
from heedful.text import Tokenizer

IGNORED = -100  # the label of padding
FAMILIES: dict[type[Config], str] = {
    EncoderConfig: "an encoder",
    DecoderConfig: "a decoder",
    EncoderDecoderConfig: "an encoder-decoder",
    VisionConfig: "a vision model",
}
C = TypeVar("C", EncoderConfig, DecoderConfig, EncoderDecoderConfig, VisionConfig)


def preset_of(name: str, family: type[C], task: str) -> C:
    """The configuration of a preset; one of another family than the task needs is an error."""
    config = presets.get(name)
    if not isinstance(config, family):
        raise HeedfulError(f"preset {name!r} is of the {config.kind} family; {task} needs {FAMILIES[family]}")
    return config


def changed(stack: StackConfig, model: ModelSettings, depth: int | None) -> StackConfig:
    """The stack with the settings' changes; a new width keeps the ratio of the feed-forward's."""
    given = {name: value for name, value in model.given().items() if name in ("heads", "kv_heads", "activation")}
    dim = model.dim or stack.dim
    dropout = stack.dropout
    if model.dropout is not None:
        dropout = DropoutRates(embedding=model.dropout, residual=model.dropout)
    return replace(
        stack,
        dim=dim,
        depth=depth or model.depth or stack.depth,
        ff_dim=model.ff_dim or (stack.ff_dim or 4 * stack.dim) * dim // stack.dim,
        dropout=dropout,
        **given,
    )


def stacks_of(config: ModelConfig) -> list[StackConfig]:
    """The stacks of a configuration, the encoder first."""
    return [stack for stack in vars(config).values() if isinstance(stack, StackConfig)]


def positions_of(config: ModelConfig) -> int | None:
    """The most positions that every stack was made for; None where distances alone count."""
    schemes = (stack.position for stack in stacks_of(config))
    return min((each.length for each in schemes if isinstance(each, LearnedPosition | RotaryPosition)), default=None)


def reads(task: str, folder: Path, images: bool = False) -> Path:
    """The folder, whose model must read texts, or ``images``."""
    config = config_of(folder)
    if isinstance(config, VisionConfig) != images:
        wanted = "a vision model" if images else "a model of text"
        raise HeedfulError(f"{task} needs {wanted}; the model in {folder} is of kind {config.kind!r}")
    return folder


def tokenizer_of(folder: Path) -> Tokenizer:
    """The tokenizer of a model's folder; an adapter that has none takes its base's."""
    return Tokenizer.load(folder if Tokenizer.lies_in(folder) else home(folder))


def check_vocabulary(tokenizer: Tokenizer, embedding: EmbeddingConfig, name: str = "tokenizer") -> None:
    """Raise where the embedding lacks a row for a token; rows to spare are no harm."""
    if tokenizer.vocab_size > embedding.vocab_size:
        raise HeedfulError(
            f"the {name} has {tokenizer.vocab_size} tokens, the model's embedding {embedding.vocab_size} rows; they do "
            "not belong together"
        )


def check_classifier(
    task: str, model: Model, labels: Sequence[str], head: type[SequenceHead] | type[TokenHead] | type[ImageHead]
) -> None:
    """Raises ``HeedfulError`` if the model has no classifier of this kind, or not one output for each label."""
    found = model.config.head
    if not isinstance(found, head):
        raise HeedfulError(
            f"{task} needs a classifier, but this {model.config.kind} model has none (its head is of kind "
            f"{found.kind!r}); teach it one: heedful train {task} --from MODEL --train FILE"
        )
    if found.labels != len(labels):
        raise HeedfulError(f"the model tells {found.labels} labels apart, its folder names {len(labels)}")


def load_with_head(folder: Path, head: str | None, seed: int, labels: int | None = None) -> Model:
    """Loads the model of a folder with a head of this kind: its own, or else a new one drawn by ``seed``.

    With ``labels`` the head gets a new output layer for that many labels, even if its own has as many: they are others.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = load(folder, head=head, num_labels=labels, dtype="float32")
        if labels is not None:
            output = model.get_submodule("head.output")
            initialise(output, model.main)
            model.fresh = sorted({*model.fresh, *(f"head.output.{name}" for name in output.state_dict())})
    return model


def special_id(special: int | None) -> int:
    """A start or end token's id; none is an error."""
    if special is None:
        raise HeedfulError("the tokenizer has no start or end token; name them in its tokenizer_config.json")
    return special


def start_of(config: EncoderDecoderConfig) -> int:
    """The id that the decoder begins with; none is an error."""
    if config.special.start is None:
        raise HeedfulError("the model does not say what its decoder begins with; give config.json a start token")
    return config.special.start


def check_texts(task: str, inputs: Sequence[Any]) -> None:
    """Raise where an input is no text."""
    for one in inputs:
        if not isinstance(one, str):
            raise HeedfulError(f"{task} is asked with a text, or a list of texts, not with a {type(one).__name__}")


def padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Rows of unequal length as one (B, longest) int64 tensor, ``value`` after their ends."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows], dtype=torch.long)


def masked(rows: Sequence[Sequence[int]], value: int = 0) -> tuple[Tensor, Tensor]:
    """``padded`` and its mask (B, longest), True for a real token."""
    return padded(rows, value), padded([[1] * len(row) for row in rows], 0).bool()


def said_of(found: Generated, firsts: Sequence[int]) -> list[list[float] | None]:
    """Of each row log p of its new tokens, which begin at place ``firsts``; None where it was not asked for."""
    if found.logprobs is None:
        return [None] * len(found.ids)
    rows = zip(found.logprobs.tolist(), firsts, found.lengths.tolist(), strict=True)
    return [row[first:last] for row, first, last in rows]


def seeded(decoding: Options, prompts: Sequence[Sequence[int]]) -> Options:
    """Returns the options with a seed for each of the ``prompts`` (their ids), if they have a seed that fits them.

    A prompt that comes again under the same seed gets one of its own, made of the seed and its turn: it draws anew
    whether or not it falls into the batch of the first.

    >>> seeds = seeded(Options(do_sample=True, seed=5), [[1, 2], [3], [1, 2]]).seed
    >>> seeds[:2], seeds[2] != 5
    ([5, 5], True)
    """
    seeds = [decoding.seed] * len(prompts) if isinstance(decoding.seed, int) else decoding.seed
    if seeds is None or len(seeds) != len(prompts):
        return decoding
    met: Counter[tuple[int, ...]] = Counter()
    own = []
    for prompt, seed in zip(prompts, seeds, strict=True):
        key = (seed, *prompt)
        own.append(drawn_again(seed, met[key]))
        met[key] += 1
    return replace(decoding, seed=own)


def drawn_again(seed: int, times: int) -> int:
    """The seed of a prompt that came so many ``times`` before under ``seed``: the first time that itself."""
    digest = hashlib.blake2b(f"{seed} {times}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") if times else seed
