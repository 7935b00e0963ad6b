"""Settings as given: the sections, the run, the options of answers, and the settings file ``run.toml``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from heedful.errors import HeedfulError, nearest
from heedful.settings.base import Settings, key, option, with_present_keys
from heedful.util import files

AUTO = "auto"  # of --from: a small, well-known model of the Hub, chosen by the task and the data


@dataclass(frozen=True, kw_only=True)
class DataSettings(Settings):
    """Reading of the files."""

    section: ClassVar[str] = "data"

    columns: tuple[str, ...] | None = option(
        "columns, source first: names as en,fr, numbers from 1, or column=name", common=True
    )
    label_kind: Literal["class", "number"] | None = option("labels are classes, or numbers (regression)", common=True)
    label_separator: str | None = option("separator of several labels of an example", common=True)
    valid_fraction: float | None = option(
        "share of the rows for validation without --valid; 5 %, of few rows up to 20 %", above=0, below=1, common=True
    )
    max_length: int | None = option("maximum tokens of an example (a language model's context)", least=1, common=True)
    limit: int | None = option("maximum number of rows to read", least=1, common=True)
    stride: int | None = option("tokens shared by neighbouring windows of a long text", least=0)
    prefix: str | None = option('text before every source, as for a T5: "summarize: "', common=True)
    source_language: str | None = option("language of the sources, as the model names it: en_XX, eng_Latn or en")
    target_language: str | None = option("language of the targets, as the model names it: fr_XX, fra_Latn or fr")
    strip_prefix: str | None = option("prefix to remove from words, such as en: in WikiANN")
    document_mask: bool | None = option("documents that share a window do not attend to each other")

    def __post_init__(self) -> None:
        self._split("columns")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings(Settings):
    """Tokenizer training."""

    section: ClassVar[str] = "tokenizer"

    kind: Literal["bpe", "unigram", "wordpiece", "word", "character"] | None = option(
        "tokenization algorithm", common=True
    )
    size: int | None = option("vocabulary size", least=1, common=True)
    shared: bool | None = option("one vocabulary for source and target (=false for two)")
    lowercase: bool | None = option("lowercase all text", common=True)
    dropout: float | None = option("probability of leaving out a BPE merge in training", least=0, below=1)
    chat_template: Literal["plain", "llama2", "llama3"] | None = option("form in which messages are written")


@dataclass(frozen=True, kw_only=True)
class ImageSettings(Settings):
    """Image sizes and augmentation."""

    section: ClassVar[str] = "image"

    size: int | None = option("image height and width in pixels; images are resized", least=1, common=True)
    channels: Literal[1, 3] | None = option("1 grey, 3 colour", common=True)
    crop_padding: int | None = option("random crops: pixels of padding on each side", least=0)
    flip: bool | None = option("mirror half of the images at random", common=True)
    rand_augment: int | None = option("RandAugment operations an image; 0 for none", least=0)
    random_erasing: float | None = option("share of the images with a rectangle of noise", least=0, most=1)
    mixup: float | None = option("alpha of mixup; 0 for none", least=0)


@dataclass(frozen=True, kw_only=True)
class MaskingSettings(Settings):
    """Masking for fill-mask."""

    section: ClassVar[str] = "masking"

    probability: float | None = option(
        "share of the tokens to mask; each epoch masks other tokens", above=0, below=1, common=True
    )
    unit: Literal["token", "word", "span"] | None = option("mask single tokens, whole words, or spans of words")
    span_length: float | None = option("mean length of a span in words; for an encoder-decoder in tokens", least=1)
    objective: Literal["masked-token", "replaced-token"] | None = option(
        "predict masked tokens, or detect those that a generator replaced (ELECTRA)"
    )
    generator: float | None = option("width of that generator, as a share of the model's", above=0, most=1)


@dataclass(frozen=True, kw_only=True)
class PoolingSettings(Settings):
    """Pooling of token vectors to one vector a text, and the contrastive loss."""

    section: ClassVar[str] = "pooling"

    kind: Literal["mean", "first", "max", "last"] | None = option("tokens that form the vector of a text")
    normalise: bool | None = option("scale vectors to length 1 (=false: do not scale them)")
    temperature: float | None = option("divisor of similarities in training", above=0)
    chunk: int | None = option("texts whose activations are in memory at once; the loss is of the whole batch", least=1)
    symmetric: bool | None = option("loss from text to pair and from pair to text (=false: from text to pair only)")


@dataclass(frozen=True, kw_only=True)
class PreferenceSettings(Settings):
    """Learning from preferences (DPO)."""

    section: ClassVar[str] = "preference"

    beta: float | None = option(
        "scale of the rewards: larger keeps the model nearer to its start", above=0, common=True
    )


@dataclass(frozen=True, kw_only=True)
class DistillationSettings(Settings):
    """Learning from a teacher."""

    section: ClassVar[str] = "distillation"

    temperature: float | None = option("divisor of the teacher's logits and the model's; 1 by default", above=0)
    made_up: int | None = option("texts made up from each training text, which the teacher labels", least=0)


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """Changes to the preset."""

    section: ClassVar[str] = "model"

    members: int | None = option("classifiers of an ensemble; 1 is a single model", least=1, common=True)
    dim: int | None = option("hidden size", least=1, common=True)
    depth: int | None = option("number of blocks in every stack", least=1, common=True)
    encoder_depth: int | None = option("number of blocks in the encoder", least=1)
    decoder_depth: int | None = option("number of blocks in the decoder", least=1)
    heads: int | None = option("number of attention heads", least=1)
    kv_heads: int | None = option("number of key and value heads; fewer than heads: grouped-query attention", least=1)
    ff_dim: int | None = option("hidden size of the feed-forward layers", least=1)
    experts: int | None = option("experts in place of each feed-forward network (mixture of experts)", least=2)
    experts_per_token: int | None = option("experts that compute a token; 2 by default", least=1)
    balance: float | None = option("weight of the loss that keeps the shares of the experts equal", least=0)
    window: str | tuple[int, ...] | None = option(
        "tokens that a token attends to; 0,256 alternates all and 256 between blocks", least=0
    )
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] | None = option("feed-forward activation")
    norm: str | None = option("layer, rms or batch, or a registered norm")
    position: str | None = option("a registered position scheme")
    attention: str | None = option("a registered attention function")
    feed_forward: str | None = option("a registered feed-forward network")
    block: str | None = option("a registered block")
    head: str | None = option("a registered head, in place of the task's")
    dropout: float | None = option("dropout probability of embeddings and sublayer outputs", least=0, below=1)
    drop_path: float | None = option("stochastic depth: skip probability of the last block", least=0, below=1)
    r_drop: float | None = option("R-Drop: factor of the divergence between two forward passes; 5 is usual", least=0)
    tied: bool | None = option("output layer shares the embedding's weights (=false: own weights)")
    patch_size: int | None = option("height and width of a patch in pixels", least=1)
    class_token: bool | None = option("use a class token (=false: the mean of the patches)")

    def __post_init__(self) -> None:
        window = (self.window,) if isinstance(self.window, int) else self.window
        if isinstance(window, str):
            parts = [part.strip() for part in window.split(",")]
            if not all(part.isdecimal() for part in parts):
                raise HeedfulError(f"--model.window is {window!r}; give whole numbers with commas, as in 0,256")
            window = tuple(int(part) for part in parts)
        object.__setattr__(self, "window", window)
        super().__post_init__()


REPORTS = ("tensorboard", "wandb", "trackio")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Settings):
    """Training: optimiser, schedule, batches, evaluations, checkpoints."""

    section: ClassVar[str] = "training"

    optimiser: str | None = option("adamw, or muon for the matrices of the blocks", words=("adamw", "muon"))
    lr: float | None = option("peak learning rate", above=0, common=True)
    schedule: str | None = option(
        "after the warm-up: inverse_sqrt, cosine, linear, constant or wsd",
        words=("inverse_sqrt", "cosine", "linear", "constant", "wsd"),
    )
    warmup: int | None = option("steps of linear warm-up", least=0, common=True)
    min_lr_ratio: float | None = option(
        "final learning rate of cosine, linear and wsd, as a share of the peak", least=0, below=1
    )
    decay_ratio: float | None = option("share of the run in which wsd decays; 0.2 by default", above=0, most=1)
    batch_tokens: int | None = option("maximum tokens of a batch, with padding", least=1, common=True)
    batch_size: int | None = option("maximum examples of a batch", least=1, common=True)
    accumulate: int | None = option("batches of a step, over all processes (gradient accumulation)", least=1)
    label_smoothing: float | None = option("label smoothing; 0 for none", least=0, below=1)
    clip: float | None = option("maximum norm of the gradient; 0 for no clipping", least=0)
    skip_spikes: float | None = option(
        "skip steps whose gradient norm is this many times the usual; 0 for none", least=0
    )
    weight_decay: float | None = option("decoupled weight decay", least=0)
    betas: tuple[float, float] | None = option("Adam's beta1 and beta2", least=0, below=1)
    eps: float | None = option("Adam's epsilon", above=0)
    precision: Literal["fp32", "bf16"] | None = option("precision of the forward pass", common=True)
    tf32: bool | None = option("round float32 products on NVIDIA GPUs to TF32; false: exact")
    kernels: Literal["auto", "plain"] | None = option("plain: no optimised kernels, slower, to look for a bug")
    compile: bool | None = option("compile the blocks with torch.compile: faster steps, a slow start")
    gradient_checkpointing: bool | None = option("recompute activations in the backward pass: less memory")
    shard: bool | None = option("shard the weights over the processes of torchrun (fully_shard)")
    patience: int | None = option(
        "evaluations without a better metric or lower loss before stopping; 0: never", least=0, common=True
    )
    evaluate_every: int | None = option("steps between evaluations", least=1)
    evaluate_examples: int | None = option(
        "validation examples of an evaluation; all, or as --max-minutes allows", least=1
    )
    planned_steps: int | None = option("steps that fit into --max-minutes; measured by default", least=1)
    replanned: tuple[str, ...] | None = option("the run's own changes of planned-steps, step:steps; run.toml has them")
    save_every: int | None = option("steps between checkpoints", least=1)
    keep_checkpoints: int | None = option(
        "checkpoints to keep (0: none at the end); by default 1, or 0 with patience", least=0
    )
    log_every: int | None = option("steps between lines of the log", least=1)
    threads: int | None = option(
        "CPU threads, torch's number by default; the last bits of results depend on it", least=1
    )
    report: tuple[str, ...] | None = option("also send the log to tensorboard,wandb,trackio")
    profile: bool | None = option("write a torch.profiler trace of steps 4 to 8 to trace.json")
    record_attention: tuple[str, ...] | None = option("record attention maps of texts (source, tab, target) or images")

    def __post_init__(self) -> None:
        self._split("report")
        self._split("replanned")
        super().__post_init__()
        if not all(re.fullmatch(r"[1-9]\d*:[1-9]\d*", text, re.ASCII) for text in self.replanned or ()):
            raise HeedfulError(
                f"--training.replanned is {','.join(self.replanned or ())!r}; give step:steps, such as 20:300,45:310"
            )
        for name in self.report or ():
            if name not in REPORTS:
                raise HeedfulError(f"unknown --training.report {name!r}; {nearest(name, REPORTS)}")
        if self.skip_spikes and self.skip_spikes <= 1:
            raise HeedfulError(
                f"--training.skip-spikes must be above 1, or 0 for none, not {self.skip_spikes}; 10 is usual"
            )
        if self.record_attention is not None and not all(text.strip() for text in self.record_attention):
            raise HeedfulError("--training.record-attention is empty; give a text, or leave it out")

    def changes_of_plan(self) -> list[tuple[int, int]]:
        """Returns (step after which the steps were planned anew, planned steps from then on) for each change.

        >>> TrainingSettings(planned_steps=200, replanned=("20:300", "45:310")).changes_of_plan()
        [(20, 300), (45, 310)]
        """
        pairs = (text.split(":") for text in self.replanned or ())
        return [(int(step), int(planned)) for step, planned in pairs]

    @property
    def last_planned_steps(self) -> int | None:
        """The planned steps after the last change; None: none are planned."""
        changes = self.changes_of_plan()
        return changes[-1][1] if changes else self.planned_steps


@dataclass(frozen=True, kw_only=True)
class AveragingSettings(Settings):
    """Averaging of the weights, by one of three methods; the average is evaluated and saved."""

    section: ClassVar[str] = "averaging"

    polynomial: float | None = option(
        "mean age of the averaged weights, as a share of the run; 0 for none", least=0, below=0.5
    )
    ema: float | None = option("decay of an exponential average; 0.999 is usual, 0 for none", least=0, below=1)
    last: int | None = option("number of last evaluations whose weights are averaged; 0 for none", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.last == 1:
            raise HeedfulError("--averaging.last is 1; give at least 2, or 0 for none")


@dataclass(frozen=True, kw_only=True)
class TuningSettings(Settings):
    """Fine-tuning settings."""

    section: ClassVar[str] = "tuning"

    layer_decay: float | None = option(
        "a block's learning rate as a share of the next block's, nearer the output", above=0, most=1
    )


LORA_TARGETS = ("query", "key", "value", "out", "up", "down", "gate")  # linear maps of a block that can have an adapter


@dataclass(frozen=True, kw_only=True)
class LoraSettings(Settings):
    """A low-rank adapter, trained in place of the model's own weights (Hu et al. 2022)."""

    section: ClassVar[str] = "lora"

    rank: int | None = option("train an adapter of this rank beside the frozen model", least=1, common=True)
    alpha: float | None = option("the adapter's output is scaled by alpha / rank; 2 x rank by default", above=0)
    dropout: float | None = option("dropout probability of the adapter's input", least=0, below=1)
    targets: tuple[str, ...] | None = option("query,key,value,out,up,down,gate, or all; query,value by default")

    def __post_init__(self) -> None:
        self._split("targets")
        super().__post_init__()
        for name in self.targets or ():
            if name not in (*LORA_TARGETS, "all"):
                known = nearest(name, (*LORA_TARGETS, "all"))
                raise HeedfulError(f"--lora.targets names {name!r}, which is not a linear map of a block; {known}")
        given = [f"--lora.{name}" for name in self.given() if name != "rank"]
        if given and self.rank is None:
            raise HeedfulError(f"{', '.join(given)} needs --lora.rank, which adds the adapter; 8 is usual")


@dataclass(frozen=True, kw_only=True)
class AnsweringSettings(Settings):
    """Options of predictions; None: the task's default."""

    logprobs: bool | None = option("with --json: the log-probability of each generated token")
    prefix: str | None = option("text before every source; by default as in training")
    source_language: str | None = option("language of the sources, as the model names it: en_XX, eng_Latn or en")
    target_language: str | None = option("language to translate into, as the model names it: fr_XX, fra_Latn or fr")
    max_answer_length: int | None = option("maximum length of an answer to a question, in tokens", least=1)
    align_to_words: bool | None = option("extend answers to whole words; by default if training answers end at words")
    null_threshold: float | None = option(
        "say no answer if its logit or log-probability exceeds the best answer's by more"
    )
    stride: int | None = option("tokens shared by neighbouring windows of a long text", least=0)
    mirror: bool | None = option("average the predictions of an image and its mirror image; twice the time")
    choices: tuple[str, ...] | None = option("answer by the most probable of these texts: yes,no")
    hypothesis_template: str | None = option('with choices, a text classifier: sentence of a label, "This is {}."')
    multi_label: bool | None = option("with choices, a text classifier: several may hold; a probability for each")
    normalise: Literal["tokens", "characters"] | None = option(
        "divide the log-probability of a choice by its number of tokens or characters"
    )

    def __post_init__(self) -> None:
        self._split("choices")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class RunSettings(Settings):
    """Settings of a training run."""

    task: str = field(kw_only=False, metadata={"help": "task to train for; heedful tasks lists them"})
    train: tuple[str, ...] = field(
        metadata={"help": "training data: a file, a folder, or one file per language; - is standard input"}
    )
    valid: tuple[str, ...] | None = option("validation data; a part of --train by default", common=True)
    unlabelled: tuple[str, ...] | None = option("texts without labels to learn from too", common=True)
    teacher: str | None = option("classifier whose probabilities to learn", common=True)
    out: str = field(metadata={"help": "run folder, which holds the model"})
    recipe: str | None = option("published training settings; heedful recipes lists them")
    preset: str | None = option("size of a new model (heedful presets lists them), or a .json file", common=True)
    start_from: str | None = option(
        "model to fine-tune: a folder, a name on the Hub, or auto: a small one", common=True
    )
    seed: int | None = option(
        "seed of initial weights, data order and dropout; 0 by default", least=0, most=2**63 - 1, common=True
    )
    max_steps: int | None = option("stop after this many steps", least=1)
    max_epochs: int | None = option("stop after this many epochs", least=1, common=True)
    max_minutes: float | None = option("stop after this many minutes", above=0, common=True)
    resume: bool = option("resume the run in --out, or start it there", default=False, common=True)
    overwrite: bool = option("replace the run in --out", default=False, common=True)
    device: str | None = option("cpu, cuda, cuda:1, mps", common=True)
    deterministic: bool | None = option("make GPU runs repeatable bit for bit, too; slower")
    push: str | None = option("upload the model at the end, to this name on the Hub: ORG/NAME")
    data: DataSettings = field(default_factory=DataSettings)
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    image: ImageSettings = field(default_factory=ImageSettings)
    masking: MaskingSettings = field(default_factory=MaskingSettings)
    pooling: PoolingSettings = field(default_factory=PoolingSettings)
    preference: PreferenceSettings = field(default_factory=PreferenceSettings)
    distillation: DistillationSettings = field(default_factory=DistillationSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    averaging: AveragingSettings = field(default_factory=AveragingSettings)
    tuning: TuningSettings = field(default_factory=TuningSettings)
    lora: LoraSettings = field(default_factory=LoraSettings)

    @property
    def files(self) -> tuple[str, ...]:
        """The sources of all data of the run."""
        return (*self.train, *(self.valid or ()), *(self.unlabelled or ()))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.train:
            raise HeedfulError("--train names no file; give at least one")
        if self.resume and self.overwrite:
            raise HeedfulError("--resume continues a run and --overwrite replaces it; give one of them")
        if self.training.planned_steps is not None and self.max_minutes is None and not self.resume:
            raise HeedfulError("--training.planned-steps has no effect without --max-minutes; give --max-steps instead")
        if self.training.replanned and self.training.planned_steps is None and not self.resume:
            raise HeedfulError("--training.replanned changes --training.planned-steps; give that too, or leave it out")
        if self.preset is not None and self.start_from is not None:
            raise HeedfulError("--preset creates a new model and --from fine-tunes one; give one of them")
        if self.lora.rank is not None and self.start_from is None and not self.resume:
            raise HeedfulError("--lora.rank adapts a trained model; name it with --from, or leave --lora.rank out")


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
        values = with_present_keys(values)
        return RunSettings.from_dict({"start_from" if name == "from" else name: v for name, v in values.items()})
    except HeedfulError as error:
        raise HeedfulError(f"{path} is damaged ({error}); {remedy}") from None
