"""Settings and options as dictionaries, for type checkers and editors.

A checker reads no class that is made at run time, so that these are written out; tests compare them, name by name and
type by type, with the sections of ``RunSettings``, with ``heedful.generation.Options`` and with
``AnsweringSettings``, which alone check values. A list may stand for a tuple, and None for unset. The type of a section
has no None, since checkers name a wrong key only where a dictionary is all that an argument can be.

A dictionary that is a variable needs its type: ``training: TrainingDict = {"lr": 1e-3}``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Required, TypedDict


class DataDict(TypedDict, total=False):
    """Argument ``data_settings`` of ``heedful.train``: reading of the files."""

    columns: list[str] | tuple[str, ...] | None
    label_kind: Literal["class", "number"] | None
    label_separator: str | None
    valid_fraction: float | None
    max_length: int | None
    limit: int | None
    stride: int | None
    prefix: str | None
    source_language: str | None
    target_language: str | None
    strip_prefix: str | None
    document_mask: bool | None


class TokenizerDict(TypedDict, total=False):
    """Argument ``tokenizer`` of ``heedful.train``: tokenizer training."""

    kind: Literal["bpe", "unigram", "wordpiece", "word", "character"] | None
    size: int | None
    shared: bool | None
    lowercase: bool | None
    dropout: float | None
    chat_template: Literal["plain", "llama2", "llama3"] | None


class ImageDict(TypedDict, total=False):
    """Argument ``image`` of ``heedful.train``: image sizes and augmentation."""

    size: int | None
    channels: Literal[1, 3] | None
    crop_padding: int | None
    flip: bool | None
    rand_augment: int | None
    random_erasing: float | None
    mixup: float | None


class MaskingDict(TypedDict, total=False):
    """Argument ``masking`` of ``heedful.train``: masking for fill-mask."""

    probability: float | None
    unit: Literal["token", "word", "span"] | None
    span_length: float | None
    objective: Literal["masked-token", "replaced-token"] | None
    generator: float | None


class PoolingDict(TypedDict, total=False):
    """Argument ``pooling`` of ``heedful.train``: pooling, and the contrastive loss."""

    kind: Literal["mean", "first", "max", "last"] | None
    normalise: bool | None
    temperature: float | None
    chunk: int | None
    symmetric: bool | None


class PreferenceDict(TypedDict, total=False):
    """Argument ``preference`` of ``heedful.train``: learning from preferences."""

    beta: float | None


class DistillationDict(TypedDict, total=False):
    """Argument ``distillation`` of ``heedful.train``: learning from a teacher."""

    temperature: float | None
    made_up: int | None


class ModelDict(TypedDict, total=False):
    """Argument ``model_settings`` of ``heedful.train``: changes to the preset."""

    members: int | None
    dim: int | None
    depth: int | None
    encoder_depth: int | None
    decoder_depth: int | None
    heads: int | None
    kv_heads: int | None
    ff_dim: int | None
    experts: int | None
    experts_per_token: int | None
    balance: float | None
    window: int | str | list[int] | tuple[int, ...] | None
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] | None
    norm: str | None
    position: str | None
    attention: str | None
    feed_forward: str | None
    block: str | None
    head: str | None
    dropout: float | None
    drop_path: float | None
    r_drop: float | None
    tied: bool | None
    patch_size: int | None
    class_token: bool | None


class TrainingDict(TypedDict, total=False):
    """Argument ``training`` of ``heedful.train``: optimiser, schedule, batches, evaluations, checkpoints."""

    optimiser: Literal["adamw", "muon"] | str | None
    lr: float | None
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant", "wsd"] | str | None
    warmup: int | None
    min_lr_ratio: float | None
    decay_ratio: float | None
    batch_tokens: int | None
    batch_size: int | None
    accumulate: int | None
    label_smoothing: float | None
    clip: float | None
    skip_spikes: float | None
    weight_decay: float | None
    betas: list[float] | tuple[float, float] | None
    eps: float | None
    precision: Literal["fp32", "bf16"] | None
    tf32: bool | None
    kernels: Literal["auto", "plain"] | None
    compile: bool | None
    gradient_checkpointing: bool | None
    shard: bool | None
    patience: int | None
    evaluate_every: int | None
    evaluate_examples: int | None
    planned_steps: int | None
    replanned: list[str] | tuple[str, ...] | None
    save_every: int | None
    keep_checkpoints: int | None
    log_every: int | None
    threads: int | None
    report: list[str] | tuple[str, ...] | None
    profile: bool | None
    record_attention: list[str] | tuple[str, ...] | None


class AveragingDict(TypedDict, total=False):
    """Argument ``averaging`` of ``heedful.train``: averaging of the weights."""

    polynomial: float | None
    ema: float | None
    last: int | None


class TuningDict(TypedDict, total=False):
    """Argument ``tuning`` of ``heedful.train``: fine-tuning settings."""

    layer_decay: float | None


class LoraDict(TypedDict, total=False):
    """Argument ``lora`` of ``heedful.train``: a low-rank adapter."""

    rank: int | None
    alpha: float | None
    dropout: float | None
    targets: list[str] | tuple[str, ...] | None


class Sections(TypedDict, total=False):
    """Sections of settings that ``heedful.train`` takes by name, beside ``training``."""

    data_settings: DataDict
    tokenizer: TokenizerDict
    image: ImageDict
    masking: MaskingDict
    pooling: PoolingDict
    preference: PreferenceDict
    distillation: DistillationDict
    model_settings: ModelDict
    averaging: AveragingDict
    tuning: TuningDict
    lora: LoraDict


class SingleOutputDecoding(TypedDict, total=False):
    """Options of decoding with which an input has one output."""

    max_new_tokens: int | None
    max_length: int | None
    min_new_tokens: int | None
    min_length: int | None
    do_sample: bool | None
    seed: int | Sequence[int] | None
    temperature: float | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    num_beams: int | None
    length_penalty: float | None
    early_stopping: bool | Literal["never"] | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    no_repeat_ngram_size: int | None
    encoder_no_repeat_ngram_size: int | None
    bad_words_ids: Sequence[Sequence[int]] | None
    suppress_tokens: Sequence[int] | None
    begin_suppress_tokens: Sequence[int] | None
    decoder_start_token_id: int | None
    forced_bos_token_id: int | None
    forced_eos_token_id: int | Sequence[int] | None
    renormalize_logits: bool | None
    stop_strings: Sequence[str] | None
    prefill_chunk_size: int | None
    cache_implementation: Literal["dynamic", "static"] | None
    context_keep: int | None
    assistant_model: Any
    num_assistant_tokens: int | None
    prompt_lookup_num_tokens: int | None
    penalty_alpha: float | None
    num_beam_groups: int | None
    diversity_penalty: float | None
    force_words_ids: Sequence[Sequence[Any]] | None


class DecodingOptions(SingleOutputDecoding, total=False):
    """Options of decoding, with names and meanings as in transformers."""

    top_k: int | None
    num_return_sequences: int | None


class GenerateOptions(DecodingOptions, total=False):
    """All arguments of ``model.generate`` by name, after the ids and their mask."""

    decoding: Any
    context: int | None
    tokenizer: Any
    decoder_input_ids: Any
    decoder_attention_mask: Any


class SingleOutputOptions(SingleOutputDecoding, total=False):
    """Options of a prediction with which an input has one output."""

    batch_tokens: int | None
    logprobs: bool | None
    prefix: str | None
    source_language: str | None
    target_language: str | None
    max_answer_length: int | None
    align_to_words: bool | None
    null_threshold: float | None
    stride: int | None
    mirror: bool | None
    choices: list[str] | tuple[str, ...] | None
    hypothesis_template: str | None
    multi_label: bool | None
    normalise: Literal["tokens", "characters"] | None


class PredictionOptions(SingleOutputOptions, DecodingOptions, total=False):
    """Options of a pipeline, of all tasks together; each task refuses those that it does not have."""


class Message(TypedDict, total=False):
    """Message of a conversation; the chat templates of some models read further keys."""

    role: Required[str]
    content: Any
