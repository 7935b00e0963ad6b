"""What the tasks of encoders do alike: how one learns, anew or from a model, how it is made, how much it reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from heedful.config import DecoderConfig, EncoderConfig, LearnedPosition, ModelConfig, SpecialTokens
from heedful.errors import HeedfulError
from heedful.pretrained.configuration import config_of
from heedful.pretrained.folder import find
from heedful.settings import (
    AveragingSettings,
    DataSettings,
    ModelSettings,
    RunSettings,
    TokenizerSettings,
    TrainingSettings,
)
from heedful.tasks.shared import changed, gentle, positions_of, preset_of, reads, special_id
from heedful.text import Tokenizer


class Size(NamedTuple):
    """What a number of examples suggests."""

    preset: str
    vocabulary: int
    dropout: float
    epochs: int
    lr: float


# below so many examples: this
SIZES: tuple[tuple[float, Size], ...] = (
    (50_000, Size("bert-tiny", 8_000, 0.3, 20, 1e-3)),
    (500_000, Size("bert-mini", 16_000, 0.2, 10, 5e-4)),
    (float("inf"), Size("bert-mini", 30_000, 0.1, 4, 5e-4)),
)
LONGEST = 128  # tokens of an example in training, where nobody says
UNTOLD = 512  # tokens that a model takes where neither it nor its tokenizer has a limit
TUNED, BATCH = 3, 32  # passes and examples of a step in going on from a model (Devlin et al. 2019, A.3)
LEAST_STEPS, MOST_PASSES = 300, 20  # few examples want more passes (Mosbach et al. 2021, section 6)


def beginning(examples: int, asked: RunSettings, words: int = 25) -> RunSettings:
    """How an encoder learns from nothing, by the number of examples, of about ``words`` tokens each."""
    size = next(size for most, size in SIZES if examples < most)
    tokens = 1024
    steps = asked.max_steps or size.epochs * max(1, examples * words // tokens)
    return replace(
        asked,
        preset=asked.preset or size.preset,
        max_epochs=size.epochs,
        data=DataSettings(max_length=LONGEST),
        tokenizer=TokenizerSettings(kind="wordpiece", size=size.vocabulary),
        model=ModelSettings(dropout=None if asked.preset else size.dropout),
        training=TrainingSettings(
            lr=size.lr,
            schedule="linear",
            warmup=min(200, steps // 10 + 1),
            batch_tokens=tokens,
            accumulate=1,
            label_smoothing=0.1,
            clip=1.0,
            weight_decay=0.01,
            betas=(0.9, 0.98),
            eps=1e-8,
            patience=10,
            log_every=50,
        ),
        averaging=AveragingSettings(share=0.1),
    )


def tuning(examples: int, asked: RunSettings, folder: str) -> RunSettings:
    """How a model is gone on from: few passes over batches of sentences, a rate that rises over a tenth of the steps
    and falls in a line, no smoothing and no averaging (Devlin et al. 2019, section 4.1 and A.3).
    """
    training = asked.training
    batch = training.batch_size or BATCH
    each = max(1, -(-examples // (batch * (training.accumulate or 1))))
    passes = min(MOST_PASSES, max(TUNED, -(-LEAST_STEPS // each)))
    steps = asked.max_steps or (asked.max_epochs or passes) * each
    return replace(
        asked,
        max_epochs=passes,
        data=DataSettings(max_length=LONGEST),
        training=TrainingSettings(
            lr=training.lr or gentle(config_of(find(folder))),
            schedule="linear",
            warmup=steps // 10 + 1,
            batch_size=None if training.batch_tokens else batch,
            accumulate=1,
            label_smoothing=0.0,
            clip=1.0,
            weight_decay=0.01,
            betas=(0.9, 0.999),
            eps=1e-8,
            patience=10,
            evaluate_every=max(50, each),
            log_every=50,
        ),
        averaging=AveragingSettings(share=0.0),
    )


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
