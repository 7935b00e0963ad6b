"""Shared parts of the encoder tasks: suggested settings, model creation and fine-tuning, input lengths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from heedful.config import DecoderConfig, EncoderConfig, LearnedPosition, ModelConfig, SpecialTokens
from heedful.errors import HeedfulError
from heedful.pretrained.configuration import config_of
from heedful.pretrained.folder import find
from heedful.settings import RunSettings
from heedful.tasks.model_setup import changed, positions_of, preset_of, reads, special_id
from heedful.text import Tokenizer

UNTOLD = 512  # tokens that a model takes where neither it nor its tokenizer has a limit


def encoder_config(
    settings: RunSettings, tokenizer: Tokenizer, longest: int, task: str, default: str = "bert-tiny"
) -> EncoderConfig:
    """The preset with the settings' changes, this vocabulary, and no more positions than the ``longest`` example
    needs; the caller gives it its head.
    """
    config = preset_of(settings.preset or default, EncoderConfig, task)
    # BERT's own N(0, 0.02²) is for wide models: narrow ones may long see one class only
    stack = replace(changed(config.encoder, settings.model, None), init="xavier")
    if isinstance(stack.position, LearnedPosition):
        stack = replace(stack, position=replace(stack.position, length=longest))
    start, end = special_id(tokenizer.start), special_id(tokenizer.end)
    return replace(
        config,
        embedding=replace(config.embedding, vocab_size=tokenizer.vocab_size),
        encoder=stack,
        special=SpecialTokens(pad=tokenizer.pad, start=start, end=(end,)),
    )


def encoder_in(task: str, folder: str | Path, decoders: bool = False) -> Path:
    """The folder, whose model must be an encoder of texts, or with ``decoders`` one of these: asked before it is opened
    with another head.
    """
    found = reads(task, find(folder))
    config = config_of(found)
    if not isinstance(config, EncoderConfig) and not (decoders and isinstance(config, DecoderConfig)):
        wanted = "an encoder or a decoder" if decoders else "an encoder"
        raise HeedfulError(f"{task} needs {wanted}; the model in {folder} is of kind {config.kind!r}")
    return found


def longest_of(tokenizer: Tokenizer) -> int:
    """The most tokens of an example, special ones counted, as the tokenizer's folder says."""
    return int(tokenizer.config.get("model_max_length", UNTOLD))


def limit(tokenizer: Tokenizer, config: ModelConfig) -> None:
    """Let no example be longer than the model's positions reach: what ``longest_of`` gives from then on."""
    told = (tokenizer.config.get("model_max_length"), positions_of(config))
    tokenizer.config["model_max_length"] = min((number for number in told if number), default=UNTOLD)


def ranges(length: int, most: int, stride: int) -> list[range]:
    """Windows of at most ``most`` of ``length`` places, each but the first beginning with the last ``stride`` of the
    one before; the last ends at the end, and none is needless.

    >>> ranges(10, 5, 2)
    [range(0, 5), range(3, 8), range(6, 10)]
    >>> ranges(3, 5, 2)
    [range(0, 3)]
    """
    step = most - stride
    if step < 1:
        raise ValueError(f"windows of {most} cannot share {stride}")
    firsts = range(0, max(1, length - stride), step)
    return [range(first, min(first + most, length)) for first in firsts]
