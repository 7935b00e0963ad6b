"""Run settings: one frozen dataclass a section, the same from the command line, a TOML file and Python.

``None`` means *auto*: command line over file over preset over what the data suggests (:func:`resolve`).
This file knows no command line; flags, their help and a file's keys are read off these fields.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, get_type_hints

from heedful import renamed
from heedful.errors import HeedfulError, nearest
from heedful.util import files
from heedful.util.values import BOUNDS, check, fits


def _option(help: str, default: Any = None, **bounds: float) -> Any:
    """A field with its line of help and the bounds of its numbers (above, least, below, most)."""
    return field(default=default, metadata={"help": help, **bounds})


class _OldNames(type):
    """Lets sections be made with the old names of their fields, with a warning."""

    if not TYPE_CHECKING:

        def __call__(cls, *args: Any, **values: Any) -> Any:
            new = renamed.new_settings(cls.section, values)
            for old in sorted(values.keys() - new.keys()):
                key_of_old = f"{cls.section}.{old}"
                renamed.warn(key_of_old, renamed.SETTINGS[key_of_old])
            return super().__call__(*args, **new)


@dataclass(frozen=True, kw_only=True)
class Settings(metaclass=_OldNames):
    """Base of all sections: checks the values when made, and converts to and from a dictionary."""

    section: ClassVar[str] = ""  # the prefix of the section's flags and the name of its table in a file

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, list):  # JSON and TOML know no tuples
                value = tuple(value)
                object.__setattr__(self, f.name, value)
            flag = "--" + key(type(self), f.name).replace("_", "-")
            check(flag, value, hints[f.name], **{name: f.metadata[name] for name in BOUNDS if name in f.metadata})

    def _split(self, name: str) -> None:
        """Names that came as one, with commas between them, one by one; before they are checked."""
        value = getattr(self, name)
        if isinstance(value, (tuple, list)) and len(value) == 1 and isinstance(value[0], str):
            object.__setattr__(self, name, tuple(part.strip() for part in value[0].split(",")))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Reads a field by its old name, with a warning."""
            old = f"{self.section}.{name}"
            if old not in renamed.SETTINGS:
                raise AttributeError(f"{type(self).__name__} has no setting {name!r}")
            renamed.warn(old, renamed.SETTINGS[old])
            return getattr(self, renamed.SETTINGS[old].rpartition(".")[2])

    def given(self) -> dict[str, Any]:
        """The options that are not left to *auto*, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Nested dictionaries, lists and scalars, as ``heedful.json`` holds them."""
        plain: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Settings):
                plain[name] = value.to_dict()
            else:
                plain[name] = list(value) if isinstance(value, tuple) else value
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`; raises :class:`HeedfulError` for an unknown key or a wrong value."""
        hints = get_type_hints(cls)
        values = renamed.new_settings(cls.section, values)
        names = [f.name for f in fields(cls)]
        for name in values:
            if name not in names:
                known = [key(cls, n) for n in names]
                raise HeedfulError(f"unknown setting {key(cls, name)!r}; {nearest(key(cls, name), known)}")
        for f in fields(cls):
            if f.default is MISSING and f.default_factory is MISSING and f.name not in values:
                raise HeedfulError(f"the setting {key(cls, f.name)!r} is missing")
        return cls(
            **{
                name: hints[name].from_dict(value)
                if isinstance(value, Mapping) and isinstance(hints[name], type) and issubclass(hints[name], Settings)
                else value
                for name, value in values.items()
            }
        )


def key(cls: type[Settings], name: str) -> str:
    """The name by which people call a field: ``training.lr``, and ``from`` (no name in Python) for ``start_from``."""
    return f"{cls.section}.{name}" if cls.section else {"start_from": "from"}.get(name, name)


def keys(cls: type[Settings]) -> list[str]:
    """Every key that a file may set, those of the sections dotted: ``["task", ..., "training.lr", ...]``."""
    hints = get_type_hints(cls)
    found: list[str] = []
    for f in fields(cls):
        nested = hints[f.name]
        found += keys(nested) if isinstance(nested, type) and issubclass(nested, Settings) else [key(cls, f.name)]
    return found


S = TypeVar("S", bound=Settings)


def resolve(first: S, *others: S) -> S:
    """Field by field, the first that is not ``None``: ``resolve(asked, preset, suggested_by_the_data)``."""
    merged: dict[str, Any] = {}
    for f in fields(first):
        values = [getattr(layer, f.name) for layer in (first, *others)]
        if isinstance(values[0], Settings):
            merged[f.name] = resolve(*values)
        else:
            merged[f.name] = next((value for value in values if value is not None), None)
    return replace(first, **merged)


@dataclass(frozen=True, kw_only=True)
class DataSettings(Settings):
    """Reading of the files."""

    section: ClassVar[str] = "data"

    columns: tuple[str, ...] | None = _option("columns, source first: names as en,fr, numbers from 1, or column=name")
    label_kind: Literal["class", "number"] | None = _option("labels are classes, or numbers (regression)")
    label_separator: str | None = _option("what stands between labels where an example may have several")
    valid_fraction: float | None = _option("share kept for validation without --valid", above=0, below=1)
    max_length: int | None = _option("most tokens of an example (a language model's context)", least=1)
    limit: int | None = _option("read at most this many rows", least=1)
    stride: int | None = _option("tokens that neighbouring windows of a long text share", least=0)
    prefix: str | None = _option('put before every source, as a T5 wants: "summarize: "')
    strip_prefix: str | None = _option("taken off every word that begins with it, as en: of WikiANN")
    document_mask: bool | None = _option("documents that share a window do not attend to each other")

    def __post_init__(self) -> None:
        self._split("columns")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings(Settings):
    """Tokenizer training."""

    section: ClassVar[str] = "tokenizer"

    kind: Literal["bpe", "unigram", "wordpiece", "character"] | None = _option("how tokens are learned")
    size: int | None = _option("tokens in the vocabulary", least=1)
    shared: bool | None = _option("one vocabulary for source and target (=false for two)")
    lowercase: bool | None = _option("read everything in lower case")
    dropout: float | None = _option("leave out merges of bpe in training, a probability", least=0, below=1)


@dataclass(frozen=True, kw_only=True)
class ImageSettings(Settings):
    """Image sizes and augmentation."""

    section: ClassVar[str] = "image"

    size: int | None = _option("pixels of a side; images are resized to it", least=1)
    channels: Literal[1, 3] | None = _option("1 grey, 3 colour")
    crop_padding: int | None = _option("random crops: pixels of padding on each side", least=0)
    flip: bool | None = _option("mirror half of the images")
    rand_augment: int | None = _option("operations of RandAugment an image: colour and shape; 0 for none", least=0)
    random_erasing: float | None = _option("share of the images with a rectangle of noise", least=0, most=1)
    mixup: float | None = _option("alpha of mixup, two images and labels blended; 0 for none", least=0)


@dataclass(frozen=True, kw_only=True)
class MaskingSettings(Settings):
    """Masking for fill-mask."""

    section: ClassVar[str] = "masking"

    share: float | None = _option("share of the tokens hidden, other ones each epoch", above=0, below=1)
    unit: Literal["token", "word", "span"] | None = _option("hide single tokens, whole words, or spans of words")
    length: float | None = _option("a span's words, or an encoder-decoder's tokens, on average", least=1)


@dataclass(frozen=True, kw_only=True)
class PoolingSettings(Settings):
    """Pooling of token vectors, and their loss."""

    section: ClassVar[str] = "pooling"

    kind: Literal["mean", "first", "max", "last"] | None = _option("which tokens make a text's vector")
    normalise: bool | None = _option("vectors of length 1 (=false to leave them)")
    temperature: float | None = _option("by which similarities are divided in training", above=0)
    chunk: int | None = _option("texts whose activations are held at once; the batch stays whole", least=1)
    symmetric: bool | None = _option("pairs are found both ways (=false from text to pair alone)")


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """Parts of the preset to change."""

    section: ClassVar[str] = "model"

    dim: int | None = _option("width of the stream", least=1)
    depth: int | None = _option("blocks in every stack", least=1)
    encoder_depth: int | None = _option("blocks in the encoder", least=1)
    decoder_depth: int | None = _option("blocks in the decoder", least=1)
    heads: int | None = _option("attention heads", least=1)
    kv_heads: int | None = _option("key and value heads; fewer than heads: grouped queries", least=1)
    ff_dim: int | None = _option("width of the feed-forward layers", least=1)
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] | None = _option("feed-forward activation")
    dropout: float | None = _option("dropout of the hidden states, a probability", least=0, below=1)
    drop_path: float | None = _option("leave a sublayer out with a chance that rises to this", least=0, below=1)
    r_drop: float | None = _option(
        "pass each example twice, weight of the two answers' divergence; 5 is usual", least=0
    )
    tied: bool | None = _option("output layer shares the embedding's weights (=false for its own)")
    patch_size: int | None = _option("pixels of a patch's side", least=1)
    class_token: bool | None = _option("a token that gathers the image (=false: the mean of its patches)")


REPORTS = ("tensorboard", "wandb", "trackio")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Settings):
    """Training: optimiser, schedule, batches, evaluations, checkpoints."""

    section: ClassVar[str] = "training"

    optimiser: Literal["adamw", "muon"] | None = _option("AdamW, or Muon for the matrices of the blocks")
    lr: float | None = _option("peak learning rate", above=0)
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant", "wsd"] | None = _option("fall after the warm-up")
    warmup: int | None = _option("steps of linear rise", least=0)
    min_lr_ratio: float | None = _option(
        "last rate of cosine, linear and wsd, as a share of the peak", least=0, below=1
    )
    decay_ratio: float | None = _option("share of the run over which wsd falls; 0.2 by default", above=0, most=1)
    batch_tokens: int | None = _option("tokens of one batch, padding counted", least=1)
    batch_size: int | None = _option("examples of one batch at most", least=1)
    accumulate: int | None = _option("batches added up for one step, of all processes", least=1)
    label_smoothing: float | None = _option("probability spread over the other tokens", least=0, below=1)
    clip: float | None = _option("largest norm of the gradient; 0 for none", least=0)
    skip_spikes: float | None = _option(
        "leave out steps whose gradient is so many times the usual; 0 for none", least=0
    )
    weight_decay: float | None = _option("decoupled weight decay", least=0)
    betas: tuple[float, float] | None = _option("Adam's two decay rates", least=0, below=1)
    eps: float | None = _option("Adam's epsilon", above=0)
    precision: Literal["fp32", "bf16"] | None = _option("number format of the forward pass")
    kernels: Literal["auto", "plain"] | None = _option("plain: the model's own code alone, slower, to look for a bug")
    gradient_checkpointing: bool | None = _option("keep no activations of a block but make them again: less memory")
    shard: bool | None = _option("share the weights among the processes of torchrun, as fully_shard does")
    patience: int | None = _option(
        "evaluations with no better metric and no lower loss before stopping; 0: never", least=0
    )
    evaluate_every: int | None = _option("steps between evaluations", least=1)
    evaluate_examples: int | None = _option(
        "validation examples of an evaluation; all, or as --max-minutes allows", least=1
    )
    planned_steps: int | None = _option("steps that fit into --max-minutes; measured by default", least=1)
    save_every: int | None = _option("steps between checkpoints", least=1)
    keep: int | None = _option("checkpoints to keep; 0: none at the end; 1 by default, 0 if patience ended it", least=0)
    log_every: int | None = _option("steps between lines of the log", least=1)
    threads: int | None = _option(
        "CPU threads of an operation, which decide its bits; torch's choice by default", least=1
    )
    report: tuple[str, ...] | None = _option("show the log there as well: tensorboard,wandb,trackio")
    record_attention: tuple[str, ...] | None = _option("texts (source, tab, target) or images: their attention maps")

    def __post_init__(self) -> None:
        self._split("report")
        super().__post_init__()
        for name in self.report or ():
            if name not in REPORTS:
                raise HeedfulError(f"--training.report names {name!r}, which shows no logs; {nearest(name, REPORTS)}")
        if self.skip_spikes and self.skip_spikes <= 1:
            raise HeedfulError(
                f"--training.skip-spikes must be above 1, or 0 for none, not {self.skip_spikes}; 10 is usual"
            )
        if self.record_attention is not None and not all(text.strip() for text in self.record_attention):
            raise HeedfulError("--training.record-attention is empty; give a text, or leave it out")


@dataclass(frozen=True, kw_only=True)
class AveragingSettings(Settings):
    """Which average of the weights is evaluated and kept, one of three."""

    section: ClassVar[str] = "averaging"

    polynomial: float | None = _option(
        "mean age of the averaged weights, a share of the run; 0 for none", least=0, below=0.5
    )
    ema: float | None = _option("decay of an exponential average; 0.999 is usual, 0 for none", least=0, below=1)
    last: int | None = _option("the mean of the weights at so many last evaluations; 0 for none", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.last == 1:
            raise HeedfulError("--averaging.last must be at least 2, or 0 for none, not 1")


@dataclass(frozen=True, kw_only=True)
class TuningSettings(Settings):
    """Fine-tuning settings."""

    section: ClassVar[str] = "tuning"

    layer_decay: float | None = _option("a block's learning rate as a share of the one above it", above=0, most=1)


LORA_TARGETS = ("query", "key", "value", "out", "up", "down", "gate")  # the maps of a block that may have an adapter


@dataclass(frozen=True, kw_only=True)
class LoraSettings(Settings):
    """A low-rank adapter, trained in place of the model's own weights (Hu et al. 2022)."""

    section: ClassVar[str] = "lora"

    rank: int | None = _option("train an adapter of this rank beside the frozen model", least=1)
    alpha: float | None = _option("what the adapter adds is scaled by alpha / rank; 2 x rank by default", above=0)
    dropout: float | None = _option("dropout of the adapter's input, a probability", least=0, below=1)
    targets: tuple[str, ...] | None = _option("query,key,value,out,up,down,gate, or all; query,value by default")

    def __post_init__(self) -> None:
        self._split("targets")
        super().__post_init__()
        for name in self.targets or ():
            if name not in (*LORA_TARGETS, "all"):
                known = nearest(name, (*LORA_TARGETS, "all"))
                raise HeedfulError(f"--lora.targets names {name!r}, which is no map of a block; {known}")
        given = [f"--lora.{name}" for name in self.given() if name != "rank"]
        if given and self.rank is None:
            raise HeedfulError(f"{', '.join(given)} needs --lora.rank, which makes the adapter; 8 is usual")


@dataclass(frozen=True, kw_only=True)
class DecodingSettings(Settings):
    """Decoding options; ``None`` leaves them to the model folder. Names and meanings as in transformers."""

    num_beams: int | None = _option("beams; 1 is greedy", least=1)
    length_penalty: float | None = _option("exponent of the length by which a beam's score is divided")
    early_stopping: bool | Literal["never"] | None = _option("search no further than num-beams answers")
    max_new_tokens: int | None = _option("longest answer, in tokens", least=1)
    max_length: int | None = _option("the same, with the prompt's tokens", least=1)
    min_new_tokens: int | None = _option("shortest answer, in tokens", least=0)
    min_length: int | None = _option("the same, with the prompt's tokens", least=0)
    no_repeat_ngram_size: int | None = _option("so many tokens in a row come only once; 0 for no rule", least=0)
    repetition_penalty: float | None = _option("above 1 what was said already is less likely", above=0)
    presence_penalty: float | None = _option("taken from the score of what was generated already")
    frequency_penalty: float | None = _option("the same, as often as it was")
    do_sample: bool | None = _option("draw tokens instead of taking the likeliest (=false for those)")
    temperature: float | None = _option("below 1 safer, above 1 wilder", above=0)
    top_k: int | None = _option("draw from so many likeliest tokens; of labels, tell so many", least=1)
    top_p: float | None = _option("draw from the likeliest tokens of this probability together", above=0, most=1)
    min_p: float | None = _option("draw from tokens at least this share as likely as the likeliest", least=0, most=1)
    typical_p: float | None = _option(
        "draw from tokens of usual surprise, of this probability together", above=0, most=1
    )
    seed: int | None = _option("of what is drawn", least=0)
    stop_strings: tuple[str, ...] | None = _option("end an answer right after one of these; inputs come first")
    batch_tokens: int | None = _option("tokens of one batch, padding counted", least=1)
    prefill_chunk_size: int | None = _option("read a long prompt so many tokens at a time; 0 for at once", least=0)
    prompt_lookup_num_tokens: int | None = _option("propose so many tokens that stood in the text before", least=0)
    penalty_alpha: float | None = _option("contrastive search among top-k tokens: 0 to 1", least=0, most=1)
    num_beam_groups: int | None = _option("groups of beams that shun each other's tokens", least=1)
    diversity_penalty: float | None = _option("by which they do, above 0", least=0)


@dataclass(frozen=True, kw_only=True)
class AnsweringSettings(Settings):
    """Options of predictions; ``None`` leaves them to the task."""

    logprobs: bool | None = _option("with --json: the log-probability of each generated token")
    prefix: str | None = _option("put before every source; by default as the model was trained")
    max_answer_length: int | None = _option("longest answer to a question, in tokens", least=1)
    align_to_words: bool | None = _option("widen answers to whole words; by default unless training's end inside words")
    null_threshold: float | None = _option("no answer where it scores better by more than this (a logit)")
    stride: int | None = _option("tokens that neighbouring windows of a long text share", least=0)
    mirror: bool | None = _option("what is said of an image and of its mirror image, on average; twice the time")


@dataclass(frozen=True, kw_only=True)
class RunSettings(Settings):
    """One training run."""

    task: str = field(kw_only=False, metadata={"help": "what to learn; heedful tasks lists them"})
    train: tuple[str, ...] = field(metadata={"help": "a file or folder, or a file a language; - is standard input"})
    valid: tuple[str, ...] | None = _option("examples to validate on; without it a part of --train")
    out: str = field(metadata={"help": "folder of the run and its model"})
    recipe: str | None = _option("published training settings; heedful recipes lists them")
    preset: str | None = _option("published size to start anew; heedful presets lists them")
    start_from: str | None = _option("model folder to go on from")
    seed: int | None = _option("of the weights, the order and the dropout; 0 by default", least=0, most=2**63 - 1)
    max_steps: int | None = _option("stop after this many steps", least=1)
    max_epochs: int | None = _option("stop after this many passes over the data", least=1)
    max_minutes: float | None = _option("stop after this many minutes", above=0)
    resume: bool = _option("go on with the run in --out, or begin it there", default=False)
    overwrite: bool = _option("replace the run in --out", default=False)
    device: str | None = _option("cpu, cuda, cuda:1, mps")
    deterministic: bool | None = _option("the same bits each time on a GPU too, which is slower there")
    data: DataSettings = field(default_factory=DataSettings)
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    image: ImageSettings = field(default_factory=ImageSettings)
    masking: MaskingSettings = field(default_factory=MaskingSettings)
    pooling: PoolingSettings = field(default_factory=PoolingSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    averaging: AveragingSettings = field(default_factory=AveragingSettings)
    tuning: TuningSettings = field(default_factory=TuningSettings)
    lora: LoraSettings = field(default_factory=LoraSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.train:
            raise HeedfulError("--train names no file; give at least one")
        if self.resume and self.overwrite:
            raise HeedfulError("--resume goes on with a run and --overwrite replaces it; give one of them")
        if self.training.planned_steps is not None and self.max_minutes is None and not self.resume:
            raise HeedfulError("--training.planned-steps has no effect without --max-minutes; give --max-steps")
        if self.preset is not None and self.start_from is not None:
            raise HeedfulError("--preset starts anew and --from goes on from a model; give one of them")
        if self.lora.rank is not None and self.start_from is None and not self.resume:
            raise HeedfulError("--lora.rank adapts a trained model; name it with --from, or leave --lora.rank out")


# --------------------------------------------------------------------------------------------------- resolved settings


@dataclass(frozen=True, kw_only=True)
class Resolved(Settings):
    """Base of resolved settings: None only where None itself means something, and then the class says what.

    Options with a fixed default (``defaults``) that nobody set have it here; ``unset`` names them, and ``run.toml`` and
    ``heedful.json`` hold no value for them.
    """

    defaults: ClassVar[Mapping[str, Any]] = {}
    unset: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings, **sections: Settings) -> Self:
        """Returns the resolved form of ``settings``; ``sections`` are resolved already.

        Raises:
            HeedfulError: an option has no value, and needs one.
        """
        values = {**vars(settings), **sections}
        unset = tuple(name for name in cls.defaults if values[name] is None)
        values |= {name: cls.defaults[name] for name in unset}
        hints = get_type_hints(cls)
        for name, value in values.items():
            if value is None and not fits(None, hints[name]):
                raise HeedfulError(f"--{key(cls, name).replace('_', '-')} has no default here; give it")
        return cls(**values, unset=unset)

    def given(self) -> dict[str, Any]:
        """The options that ``run.toml`` holds, by name."""
        return {name: value for name, value in super().given().items() if name not in ("unset", *self.unset)}

    def to_dict(self) -> dict[str, Any]:
        """Nested dictionaries, lists and scalars, as ``heedful.json`` holds them: None for options that are unset."""
        values = super().to_dict()
        del values["unset"]
        return values | dict.fromkeys(self.unset)


@dataclass(frozen=True, kw_only=True)
class ResolvedTraining(Resolved, TrainingSettings):
    """Training settings of a run that begins.

    None means: ``min_lr_ratio``, ``decay_ratio``: as the schedule has it; ``batch_tokens`` or ``batch_size``: no such
    limit (one of them is set); ``evaluate_every``: at the end of each epoch; ``evaluate_examples``: all;
    ``planned_steps``: no plan; ``save_every``: after evaluations and epochs; ``keep``: 1, or 0 where patience ends the
    run.
    """

    defaults: ClassVar[Mapping[str, Any]] = {
        "skip_spikes": 0.0,
        "kernels": "auto",
        "gradient_checkpointing": False,
        "shard": False,
        "report": (),
        "record_attention": (),
    }

    optimiser: Literal["adamw", "muon"]
    lr: float
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant", "wsd"]
    warmup: int
    accumulate: int
    label_smoothing: float
    clip: float
    skip_spikes: float
    weight_decay: float
    betas: tuple[float, float]
    eps: float
    precision: Literal["fp32", "bf16"]
    kernels: Literal["auto", "plain"]
    gradient_checkpointing: bool
    shard: bool
    patience: int
    log_every: int
    threads: int
    report: tuple[str, ...]
    record_attention: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_tokens is None and self.batch_size is None:
            raise HeedfulError("a batch has no size; give --training.batch-tokens or --training.batch-size")

    def token_budget(self, longest: int) -> int:
        """Returns the most tokens of a batch whose longest example has ``longest`` tokens."""
        return self.batch_tokens if self.batch_tokens is not None else (self.batch_size or 1) * longest


@dataclass(frozen=True, kw_only=True)
class ResolvedAveraging(Resolved, AveragingSettings):
    """Averaging of a run that begins: at most one is not 0."""

    defaults: ClassVar[Mapping[str, Any]] = {"polynomial": 0.0, "ema": 0.0, "last": 0}

    polynomial: float
    ema: float
    last: int


@dataclass(frozen=True, kw_only=True)
class ResolvedTuning(Resolved, TuningSettings):
    """Fine-tuning settings of a run that begins."""

    defaults: ClassVar[Mapping[str, Any]] = {"layer_decay": 1.0}

    layer_decay: float


@dataclass(frozen=True, kw_only=True)
class ResolvedSettings(Resolved, RunSettings):
    """Settings of a run that begins or is resumed: given, from its recipe, suggested by the data, set by the machine.

    None means: ``valid``: a part of ``train``; ``recipe``, ``preset``, ``start_from``: none; ``max_steps``,
    ``max_epochs``, ``max_minutes``: no such limit; ``device``: the best there is. In the sections of the data and the
    model None is what the task, the preset or the folder of the model has; ``lora.rank``: no adapter.
    """

    defaults: ClassVar[Mapping[str, Any]] = {"seed": 0, "deterministic": False}

    seed: int
    deterministic: bool
    training: ResolvedTraining
    averaging: ResolvedAveraging
    tuning: ResolvedTuning

    @classmethod
    def of(cls, settings: RunSettings) -> Self:  # type: ignore[override]  # the sections are those of the settings
        """Returns the resolved form of ``settings`` and of its sections."""
        return super().of(
            settings,
            training=ResolvedTraining.of(settings.training),
            averaging=ResolvedAveraging.of(settings.averaging),
            tuning=ResolvedTuning.of(settings.tuning),
        )


# --------------------------------------------------------------------------------------------------------------- files


def to_toml(settings: RunSettings) -> str:
    """Returns the settings as a TOML file that ``--config`` reads, without unset options, ``resume`` and
    ``overwrite``.
    """
    import tomli_w

    def table(section: Settings) -> dict[str, Any]:
        return {key(type(section), name).rpartition(".")[2]: value for name, value in section.given().items()}

    values = {name: value for name, value in table(settings).items() if name not in ("resume", "overwrite")}
    sections = {name: table(value) for name, value in values.items() if isinstance(value, Settings)}
    values = {name: value for name, value in (values | sections).items() if value != {}}
    # a file name that is not UTF-8 holds surrogates, which no encoder takes
    return tomli_w.dumps(values).encode("utf-8", "backslashreplace").decode()


def read_toml(path: Path) -> RunSettings:
    """The settings of a run, as :func:`to_toml` wrote them; a missing or damaged file is a :class:`HeedfulError`."""
    remedy = "start the run anew with --overwrite"
    if not os.path.lexists(path):
        raise HeedfulError(f"{path.parent} holds no run to go on with (no {path.name}); leave --resume out")
    values = files.read_toml(path, remedy)
    try:
        return RunSettings.from_dict({"start_from" if name == "from" else name: v for name, v in values.items()})
    except HeedfulError as error:
        raise HeedfulError(f"{path} is damaged ({error}); {remedy}") from None
