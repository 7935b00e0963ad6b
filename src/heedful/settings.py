"""Run settings: a frozen dataclass a section, the same on the command line, in a TOML file and in Python.

None means *auto*: the value comes from the recipe, else from the data, else from the machine (:func:`resolve`). The
flags of the command line, their help, and the keys of a file are derived from these fields.
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
    """Returns a field with its line of help and the bounds of its numbers (above, least, below, most)."""
    return field(default=default, metadata={"help": help, **bounds})


class _OldNames(type):
    """Metaclass that accepts the old names of a section's fields, with a warning."""

    if not TYPE_CHECKING:

        def __call__(cls, *args: Any, **values: Any) -> Any:
            new = renamed.new_settings(cls.section, values)
            for old in sorted(values.keys() - new.keys()):
                key_of_old = f"{cls.section}.{old}"
                renamed.warn(key_of_old, renamed.SETTINGS[key_of_old])
            return super().__call__(*args, **new)


@dataclass(frozen=True, kw_only=True)
class Settings(metaclass=_OldNames):
    """Base of all sections: checks the values in the constructor, and converts to and from a dictionary."""

    section: ClassVar[str] = ""  # prefix of the section's flags, and name of its table in a file

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, list):  # JSON and TOML have no tuples
                value = tuple(value)
                object.__setattr__(self, f.name, value)
            flag = "--" + key(type(self), f.name).replace("_", "-")
            check(flag, value, hints[f.name], **{name: f.metadata[name] for name in BOUNDS if name in f.metadata})

    def _split(self, name: str) -> None:
        """Splits names that are given as one text with commas; call it before they are checked."""
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
        """Returns the options that are not *auto*, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Returns nested dictionaries, lists and scalars, as ``heedful.json`` holds them."""
        plain: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Settings):
                plain[name] = value.to_dict()
            else:
                plain[name] = list(value) if isinstance(value, tuple) else value
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the settings of :meth:`to_dict`; raises :class:`HeedfulError` for an unknown key or a wrong value."""
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
    """Returns the name of a field for people: ``training.lr``, and ``from`` (reserved in Python) for ``start_from``."""
    return f"{cls.section}.{name}" if cls.section else {"start_from": "from"}.get(name, name)


def keys(cls: type[Settings]) -> list[str]:
    """Returns all keys of a settings file: ``["task", ..., "training.lr", ...]``."""
    hints = get_type_hints(cls)
    names: list[str] = []
    for f in fields(cls):
        nested = hints[f.name]
        names += keys(nested) if isinstance(nested, type) and issubclass(nested, Settings) else [key(cls, f.name)]
    return names


S = TypeVar("S", bound=Settings)


def resolve(first: S, *others: S) -> S:
    """Returns for each field the first value that is not None: ``resolve(given, recipe, suggested)``."""
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
    label_separator: str | None = _option("separator of several labels of an example")
    valid_fraction: float | None = _option("share of the rows for validation without --valid", above=0, below=1)
    max_length: int | None = _option("maximum tokens of an example (a language model's context)", least=1)
    limit: int | None = _option("maximum number of rows to read", least=1)
    stride: int | None = _option("tokens shared by neighbouring windows of a long text", least=0)
    prefix: str | None = _option('text before every source, as for a T5: "summarize: "')
    strip_prefix: str | None = _option("prefix to remove from words, such as en: in WikiANN")
    document_mask: bool | None = _option("documents that share a window do not attend to each other")

    def __post_init__(self) -> None:
        self._split("columns")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings(Settings):
    """Tokenizer training."""

    section: ClassVar[str] = "tokenizer"

    kind: Literal["bpe", "unigram", "wordpiece", "character"] | None = _option("tokenization algorithm")
    size: int | None = _option("vocabulary size", least=1)
    shared: bool | None = _option("one vocabulary for source and target (=false for two)")
    lowercase: bool | None = _option("lowercase all text")
    dropout: float | None = _option("probability of leaving out a BPE merge in training", least=0, below=1)


@dataclass(frozen=True, kw_only=True)
class ImageSettings(Settings):
    """Image sizes and augmentation."""

    section: ClassVar[str] = "image"

    size: int | None = _option("image height and width in pixels; images are resized", least=1)
    channels: Literal[1, 3] | None = _option("1 grey, 3 colour")
    crop_padding: int | None = _option("random crops: pixels of padding on each side", least=0)
    flip: bool | None = _option("mirror half of the images at random")
    rand_augment: int | None = _option("RandAugment operations an image; 0 for none", least=0)
    random_erasing: float | None = _option("share of the images with a rectangle of noise", least=0, most=1)
    mixup: float | None = _option("alpha of mixup; 0 for none", least=0)


@dataclass(frozen=True, kw_only=True)
class MaskingSettings(Settings):
    """Masking for fill-mask."""

    section: ClassVar[str] = "masking"

    share: float | None = _option("share of the tokens to mask, others each epoch", above=0, below=1)
    unit: Literal["token", "word", "span"] | None = _option("mask single tokens, whole words, or spans of words")
    length: float | None = _option("mean length of a span in words; for an encoder-decoder in tokens", least=1)


@dataclass(frozen=True, kw_only=True)
class PoolingSettings(Settings):
    """Pooling of token vectors, and their loss."""

    section: ClassVar[str] = "pooling"

    kind: Literal["mean", "first", "max", "last"] | None = _option("tokens that form the vector of a text")
    normalise: bool | None = _option("scale vectors to length 1 (=false: as they are)")
    temperature: float | None = _option("divisor of similarities in training", above=0)
    chunk: int | None = _option("texts with activations in memory at once; the loss is over the whole batch", least=1)
    symmetric: bool | None = _option("loss in both directions (=false: from text to pair only)")


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """Changes to the preset."""

    section: ClassVar[str] = "model"

    dim: int | None = _option("hidden size", least=1)
    depth: int | None = _option("number of blocks in every stack", least=1)
    encoder_depth: int | None = _option("number of blocks in the encoder", least=1)
    decoder_depth: int | None = _option("number of blocks in the decoder", least=1)
    heads: int | None = _option("number of attention heads", least=1)
    kv_heads: int | None = _option("number of key and value heads; fewer than heads: grouped-query attention", least=1)
    ff_dim: int | None = _option("hidden size of the feed-forward layers", least=1)
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] | None = _option("feed-forward activation")
    dropout: float | None = _option("dropout probability of the hidden states", least=0, below=1)
    drop_path: float | None = _option("stochastic depth: skip probability of the last block", least=0, below=1)
    r_drop: float | None = _option("R-Drop: weight of the divergence of two passes; 5 is usual", least=0)
    tied: bool | None = _option("output layer shares the embedding's weights (=false: own weights)")
    patch_size: int | None = _option("height and width of a patch in pixels", least=1)
    class_token: bool | None = _option("use a class token (=false: the mean of the patches)")


REPORTS = ("tensorboard", "wandb", "trackio")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Settings):
    """Training: optimiser, schedule, batches, evaluations, checkpoints."""

    section: ClassVar[str] = "training"

    optimiser: Literal["adamw", "muon"] | None = _option("AdamW, or Muon for the matrices of the blocks")
    lr: float | None = _option("peak learning rate", above=0)
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant", "wsd"] | None = _option(
        "schedule after the warm-up"
    )
    warmup: int | None = _option("steps of linear warm-up", least=0)
    min_lr_ratio: float | None = _option(
        "final rate of cosine, linear and wsd, as a share of the peak", least=0, below=1
    )
    decay_ratio: float | None = _option("share of the run in which wsd decays; 0.2 by default", above=0, most=1)
    batch_tokens: int | None = _option("maximum tokens of a batch, with padding", least=1)
    batch_size: int | None = _option("maximum examples of a batch", least=1)
    accumulate: int | None = _option("batches of a step, over all processes (gradient accumulation)", least=1)
    label_smoothing: float | None = _option("label smoothing; 0 for none", least=0, below=1)
    clip: float | None = _option("maximum norm of the gradient; 0 for no clipping", least=0)
    skip_spikes: float | None = _option(
        "skip steps whose gradient norm is this many times the usual; 0 for none", least=0
    )
    weight_decay: float | None = _option("decoupled weight decay", least=0)
    betas: tuple[float, float] | None = _option("Adam's beta1 and beta2", least=0, below=1)
    eps: float | None = _option("Adam's epsilon", above=0)
    precision: Literal["fp32", "bf16"] | None = _option("precision of the forward pass")
    kernels: Literal["auto", "plain"] | None = _option("plain: no optimised kernels, slower, to look for a bug")
    gradient_checkpointing: bool | None = _option("recompute activations in the backward pass: less memory")
    shard: bool | None = _option("shard the weights over the processes of torchrun (fully_shard)")
    patience: int | None = _option(
        "evaluations without a better metric or lower loss before stopping; 0: never", least=0
    )
    evaluate_every: int | None = _option("steps between evaluations", least=1)
    evaluate_examples: int | None = _option(
        "validation examples of an evaluation; all, or as --max-minutes allows", least=1
    )
    planned_steps: int | None = _option("steps that fit into --max-minutes; measured by default", least=1)
    save_every: int | None = _option("steps between checkpoints", least=1)
    keep: int | None = _option(
        "checkpoints to keep; 0: none at the end; 1 by default, 0 after patience ended", least=0
    )
    log_every: int | None = _option("steps between lines of the log", least=1)
    threads: int | None = _option("CPU threads of an operation, which decide its bits; as torch by default", least=1)
    report: tuple[str, ...] | None = _option("also send the log to tensorboard,wandb,trackio")
    record_attention: tuple[str, ...] | None = _option("record attention maps of texts (source, tab, target) or images")

    def __post_init__(self) -> None:
        self._split("report")
        super().__post_init__()
        for name in self.report or ():
            if name not in REPORTS:
                raise HeedfulError(f"--training.report names {name!r}, which is no reporter; {nearest(name, REPORTS)}")
        if self.skip_spikes and self.skip_spikes <= 1:
            raise HeedfulError(
                f"--training.skip-spikes must be above 1, or 0 for none, not {self.skip_spikes}; 10 is usual"
            )
        if self.record_attention is not None and not all(text.strip() for text in self.record_attention):
            raise HeedfulError("--training.record-attention is empty; give a text, or leave it out")


@dataclass(frozen=True, kw_only=True)
class AveragingSettings(Settings):
    """Average of the weights, one of three, which is evaluated and saved."""

    section: ClassVar[str] = "averaging"

    polynomial: float | None = _option(
        "mean age of the averaged weights, a share of the run; 0 for none", least=0, below=0.5
    )
    ema: float | None = _option("decay of an exponential average; 0.999 is usual, 0 for none", least=0, below=1)
    last: int | None = _option("mean of the weights at this many last evaluations; 0 for none", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.last == 1:
            raise HeedfulError("--averaging.last must be at least 2, or 0 for none, not 1")


@dataclass(frozen=True, kw_only=True)
class TuningSettings(Settings):
    """Fine-tuning settings."""

    section: ClassVar[str] = "tuning"

    layer_decay: float | None = _option("a block's learning rate as a share of the one above it", above=0, most=1)


LORA_TARGETS = ("query", "key", "value", "out", "up", "down", "gate")  # linear maps of a block that can have an adapter


@dataclass(frozen=True, kw_only=True)
class LoraSettings(Settings):
    """A low-rank adapter, trained in place of the model's own weights (Hu et al. 2022)."""

    section: ClassVar[str] = "lora"

    rank: int | None = _option("train an adapter of this rank beside the frozen model", least=1)
    alpha: float | None = _option("the adapter's output is scaled by alpha / rank; 2 x rank by default", above=0)
    dropout: float | None = _option("dropout probability of the adapter's input", least=0, below=1)
    targets: tuple[str, ...] | None = _option("query,key,value,out,up,down,gate, or all; query,value by default")

    def __post_init__(self) -> None:
        self._split("targets")
        super().__post_init__()
        for name in self.targets or ():
            if name not in (*LORA_TARGETS, "all"):
                known = nearest(name, (*LORA_TARGETS, "all"))
                raise HeedfulError(f"--lora.targets names {name!r}, which is no linear map of a block; {known}")
        given = [f"--lora.{name}" for name in self.given() if name != "rank"]
        if given and self.rank is None:
            raise HeedfulError(f"{', '.join(given)} needs --lora.rank, which adds the adapter; 8 is usual")


@dataclass(frozen=True, kw_only=True)
class DecodingSettings(Settings):
    """Decoding options, with names and meanings as in transformers; None: as the model folder says."""

    num_beams: int | None = _option("beams; 1 is greedy", least=1)
    length_penalty: float | None = _option("a beam's score is divided by its length to this power")
    early_stopping: bool | Literal["never"] | None = _option("stop when num-beams outputs are finished")
    max_new_tokens: int | None = _option("maximum length of an output, in tokens", least=1)
    max_length: int | None = _option("maximum length with the prompt, in tokens", least=1)
    min_new_tokens: int | None = _option("minimum length of an output, in tokens", least=0)
    min_length: int | None = _option("minimum length with the prompt, in tokens", least=0)
    no_repeat_ngram_size: int | None = _option("n-grams of this size occur only once; 0 for no rule", least=0)
    repetition_penalty: float | None = _option("above 1: tokens that occurred are less likely", above=0)
    presence_penalty: float | None = _option("subtracted from the scores of generated tokens")
    frequency_penalty: float | None = _option("the same, times their number of occurrences")
    do_sample: bool | None = _option("sample tokens (=false: take the most likely)")
    temperature: float | None = _option("divisor of the logits: below 1 less random, above 1 more", above=0)
    top_k: int | None = _option("sample from this many most likely tokens; for labels, show this many", least=1)
    top_p: float | None = _option("sample from the most likely tokens with this total probability", above=0, most=1)
    min_p: float | None = _option(
        "sample from tokens with at least this share of the highest probability", least=0, most=1
    )
    typical_p: float | None = _option("sample from typical tokens with this total probability", above=0, most=1)
    seed: int | None = _option("seed of the sampling", least=0)
    stop_strings: tuple[str, ...] | None = _option("end an output after one of these; write inputs before this option")
    batch_tokens: int | None = _option("maximum tokens of a batch, with padding", least=1)
    prefill_chunk_size: int | None = _option("read a long prompt in chunks of this many tokens; 0 for at once", least=0)
    prompt_lookup_num_tokens: int | None = _option(
        "propose this many tokens that followed earlier in the text", least=0
    )
    penalty_alpha: float | None = _option(
        "contrastive search: weight of the similarity penalty, 0 to 1", least=0, most=1
    )
    num_beam_groups: int | None = _option("groups of beams that differ from each other", least=1)
    diversity_penalty: float | None = _option("penalty for tokens that another group chose, above 0", least=0)


@dataclass(frozen=True, kw_only=True)
class AnsweringSettings(Settings):
    """Options of predictions; None: the task's default."""

    logprobs: bool | None = _option("with --json: the log-probability of each generated token")
    prefix: str | None = _option("text before every source; by default as in training")
    max_answer_length: int | None = _option("maximum length of an answer to a question, in tokens", least=1)
    align_to_words: bool | None = _option("extend answers to whole words; by default as answers in training end")
    null_threshold: float | None = _option("no answer if its logit is higher than the best answer's by more than this")
    stride: int | None = _option("tokens shared by neighbouring windows of a long text", least=0)
    mirror: bool | None = _option("average the predictions of an image and its mirror image; twice the time")


@dataclass(frozen=True, kw_only=True)
class RunSettings(Settings):
    """Settings of a training run."""

    task: str = field(kw_only=False, metadata={"help": "task to train for; heedful tasks lists them"})
    train: tuple[str, ...] = field(
        metadata={"help": "training files: one, a folder, or one a language; - is standard input"}
    )
    valid: tuple[str, ...] | None = _option("validation data; a part of --train by default")
    out: str = field(metadata={"help": "run folder, which holds the model"})
    recipe: str | None = _option("published training settings; heedful recipes lists them")
    preset: str | None = _option("published size of a new model; heedful presets lists them")
    start_from: str | None = _option("model to fine-tune: a folder or a name on the Hub")
    seed: int | None = _option("seed of weights, order and dropout; 0 by default", least=0, most=2**63 - 1)
    max_steps: int | None = _option("stop after this many steps", least=1)
    max_epochs: int | None = _option("stop after this many epochs", least=1)
    max_minutes: float | None = _option("stop after this many minutes", above=0)
    resume: bool = _option("resume the run in --out, or start it there", default=False)
    overwrite: bool = _option("replace the run in --out", default=False)
    device: str | None = _option("cpu, cuda, cuda:1, mps")
    deterministic: bool | None = _option("the same bits each time on a GPU, too; slower there")
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
            raise HeedfulError("--resume continues a run and --overwrite replaces it; give one of them")
        if self.training.planned_steps is not None and self.max_minutes is None and not self.resume:
            raise HeedfulError("--training.planned-steps has no effect without --max-minutes; give --max-steps")
        if self.preset is not None and self.start_from is not None:
            raise HeedfulError("--preset creates a new model and --from fine-tunes one; give one of them")
        if self.lora.rank is not None and self.start_from is None and not self.resume:
            raise HeedfulError("--lora.rank adapts a trained model; name it with --from, or leave --lora.rank out")


# --------------------------------------------------------------------------------------------------- resolved settings


@dataclass(frozen=True, kw_only=True)
class Resolved(Settings):
    """Base of resolved settings, in which None has a meaning of its own; the class says which.

    Unset options with a fixed default (``defaults``) have it here. ``unset`` names them, and ``run.toml`` and
    ``heedful.json`` have no value for them.
    """

    defaults: ClassVar[Mapping[str, Any]] = {}
    unset: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings, **sections: Settings) -> Self:
        """Returns the resolved form of ``settings``, with the resolved ``sections``.

        Raises:
            HeedfulError: a required option has no value.
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
        """Returns nested dictionaries, lists and scalars, as ``heedful.json`` holds them; None for unset options."""
        values = super().to_dict()
        del values["unset"]
        return values | dict.fromkeys(self.unset)


@dataclass(frozen=True, kw_only=True)
class ResolvedTraining(Resolved, TrainingSettings):
    """Resolved training settings of a run.

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
    """Resolved averaging of a run: at most one option is not 0."""

    defaults: ClassVar[Mapping[str, Any]] = {"polynomial": 0.0, "ema": 0.0, "last": 0}

    polynomial: float
    ema: float
    last: int


@dataclass(frozen=True, kw_only=True)
class ResolvedTuning(Resolved, TuningSettings):
    """Resolved fine-tuning settings of a run."""

    defaults: ClassVar[Mapping[str, Any]] = {"layer_decay": 1.0}

    layer_decay: float


@dataclass(frozen=True, kw_only=True)
class ResolvedSettings(Resolved, RunSettings):
    """Resolved settings of a run: as given, else from its recipe, else from the data, else from the machine.

    None means: ``valid``: a part of ``train``; ``recipe``, ``preset``, ``start_from``: none; ``max_steps``,
    ``max_epochs``, ``max_minutes``: no such limit; ``device``: the best there is. In the sections of the data and the
    model None means the default of the task, the preset or the model folder; ``lora.rank``: no adapter.
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
    # a file name that is not UTF-8 holds surrogates, which cannot be encoded
    return tomli_w.dumps(values).encode("utf-8", "backslashreplace").decode()


def read_toml(path: Path) -> RunSettings:
    """Returns the settings in a file of :func:`to_toml`; raises :class:`HeedfulError` if it is missing or damaged."""
    remedy = "start a new run with --overwrite"
    if not os.path.lexists(path):
        raise HeedfulError(f"{path.parent} holds no run to resume (no {path.name}); leave --resume out")
    values = files.read_toml(path, remedy)
    try:
        return RunSettings.from_dict({"start_from" if name == "from" else name: v for name, v in values.items()})
    except HeedfulError as error:
        raise HeedfulError(f"{path} is damaged ({error}); {remedy}") from None
