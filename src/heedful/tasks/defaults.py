"""Default training settings: every learning rate, schedule, warm-up, batch size and number of epochs, with its reason.

A task's ``suggested_settings`` calls the function of its family and adds the task's own settings (the kind of labels,
the length of a window). Settings given by a person or a recipe take precedence.

    encoder, encoder_finetuning   text and token classification, questions, embeddings: from scratch; with ``--from``
    classifier_finetuning         text classification with ``--from``
    masked_model                  masked language models, from scratch; with ``--from`` as above
    decoder                       text generation, both ways
    preference_tuning             text generation from preferences (DPO), with ``--from``
    encoder_decoder               translation and summarization, both ways; ``span_corruption`` of T5 too
    vision                        image classification, both ways
    captioning                    image-to-text, both ways

``examples`` and ``characters`` are the size of the training data; ``given`` holds the settings of the person or recipe.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from heedful.config import EncoderConfig, ModelConfig, Pooling, SequenceHead
from heedful.errors import HeedfulError
from heedful.pretrained.configuration import config_of
from heedful.pretrained.folder import find
from heedful.pretrained.peft import is_adapter
from heedful.pretrained.pooling import pooled_head
from heedful.settings import (
    AveragingSettings,
    DataSettings,
    DistillationSettings,
    LoraSettings,
    ModelSettings,
    PoolingSettings,
    RunSettings,
    TokenizerSettings,
    TrainingSettings,
)
from heedful.tasks.model_setup import stacks_of

# ------------------------------------------------------------------------------------------------------ learning rates

# Of an encoder-decoder of width 256, scaled by lr_for_width; of decoders (nanoGPT) and small encoders as it is.
FROM_SCRATCH_LR = 1e-3
# Fine-tuning an encoder-decoder or a decoder: a tenth, since a large rate overwrites what the model has learned.
DECODER_FINETUNING_LR = 1e-4
VISION_LR = 1.4e-3  # at a width of 128; nearly the same rule as FROM_SCRATCH_LR
# Rafailov et al. 2023, appendix B, tuned GPT-J by DPO at 1e-6; its width is 4,096. Narrower models take larger steps.
DPO_LR, DPO_DIM = 1e-6, 4096
BERT_LR, BERT_DIM = 5e-5, 768  # Devlin et al. 2019, A.3, tried 2e-5 to 5e-5 for fine-tuning
# Times the rate of whole weights: 5e-4 where BERT-base's is 5e-5, the rate of the LoRA authors' own run of RoBERTa-base
# on MNLI (github.com/microsoft/LoRA, examples/NLU/roberta_base_mnli.sh).
LORA_LR_FACTOR = 10


def lr_for_width(peak: float, width: int, dim: int) -> float:
    """Returns peak · √(width / dim), to six decimals: a learning rate for models of width ``dim``.

    ``peak`` is the rate that suits models of width ``width``. Wider models need smaller steps.
    """
    return round(peak * (width / dim) ** 0.5, 6)


def finetuning_lr(config: ModelConfig) -> float:
    """Returns the learning rate for fine-tuning a pretrained encoder: 5e-5 · 768 / width.

    At 5e-5 itself, a narrow model learns hardly anything.
    """
    return BERT_LR * BERT_DIM / stacks_of(config)[0].dim


# --------------------------------------------------------------------------------------------------- sizes of the data

S = TypeVar("S")
Sizes = Sequence[tuple[float, S]]  # (number of examples or characters, what data below that number suggests)


class EncoderSize(NamedTuple):
    """Default model size and training settings of an encoder, chosen by the number of examples."""

    preset: str
    vocabulary: int
    dropout: float
    epochs: int
    lr: float


class Member(NamedTuple):
    """Tokens that a member of an ensemble reads."""

    tokenizer: TokenizerSettings
    bigrams: int = 0  # rows for hashed pairs of neighbouring tokens
    vectors: bool = False  # tokens of all texts, unlabelled ones too, whose first embeddings are ``token_vectors``


class MaskedSize(NamedTuple):
    """Default model size and training settings of a masked language model, chosen by the number of characters."""

    preset: str
    vocabulary: int
    epochs: int
    window: int  # tokens


class DecoderSize(NamedTuple):
    """Default model size and training settings of a language model, chosen by the number of characters."""

    preset: str
    kind: str  # of tokenizer
    vocabulary: int  # of other kinds than character, which has every character
    context: int
    epochs: int
    windows: int  # in a batch of a new model; of short ones as many as ``examples``, up to LEAST_TOKENS together
    examples: int  # in a batch of instructions, or of windows in fine-tuning


class EncoderDecoderSize(NamedTuple):
    """Default model size and training settings of an encoder-decoder, chosen by the number of pairs."""

    preset: str
    vocabulary: int
    dropout: float
    epochs: int
    warmup: int
    batch_tokens: int


class VisionSize(NamedTuple):
    """Default model size and training settings of a vision model, chosen by the number of images."""

    preset: str
    side: int  # pixels, of images that are large or of several sizes
    epochs: int
    batch_size: int


class CaptioningSize(NamedTuple):
    """Default model size and training settings of a captioner, chosen by the number of texts."""

    preset: str
    vocabulary: int
    side: int  # pixels, of images that are large or of several sizes
    dropout: float
    epochs: int
    batch_size: int


# classification, tagging, questions and embeddings; larger sets have larger models, which learn with half the rate
ENCODER: Sizes[EncoderSize] = (
    (50_000, EncoderSize("bert-tiny", vocabulary=8_000, dropout=0.3, epochs=20, lr=FROM_SCRATCH_LR)),
    (500_000, EncoderSize("bert-mini", vocabulary=16_000, dropout=0.2, epochs=10, lr=5e-4)),
    (float("inf"), EncoderSize("bert-mini", vocabulary=30_000, dropout=0.1, epochs=4, lr=5e-4)),
)
MAX_LENGTH = 128  # tokens of an encoder's example in training
# On little text a model needs few positions and tokens, so that it reads each often. Otherwise it learns only the
# tokens' frequencies for long (built-in set stdlib: with 128 positions and 8,000 tokens for 1,000 steps).
MASKED: Sizes[MaskedSize] = (
    (500_000, MaskedSize("bert-tiny", vocabulary=1000, epochs=20, window=32)),
    (20_000_000, MaskedSize("bert-tiny", vocabulary=1000, epochs=1, window=32)),
    (200_000_000, MaskedSize("bert-mini", vocabulary=16_000, epochs=2, window=MAX_LENGTH)),
    (float("inf"), MaskedSize("bert-mini", vocabulary=30_000, epochs=1, window=MAX_LENGTH)),
)
CHARACTERS_PER_TOKEN = 4  # about
LEAST_TOKENS = 768  # of a batch of windows
# Rotary positions learn long windows as fast as short ones: on 300,000 tokens of Tiny Shakespeare, 768 a step, a model
# of this size had a loss of 2.05 in windows of 256, and with learned positions 2.47, or 2.22 in windows of 64.
DECODER: Sizes[DecoderSize] = (
    (200_000, DecoderSize("llama-micro", "character", 500, context=256, epochs=40, windows=3, examples=12)),
    (2_000_000, DecoderSize("llama-micro", "character", 1000, context=256, epochs=5, windows=3, examples=12)),
    (200_000_000, DecoderSize("llama-micro", "bpe", 4000, context=256, epochs=2, windows=3, examples=12)),
    (float("inf"), DecoderSize("llama-mini", "bpe", 8000, context=256, epochs=1, windows=16, examples=16)),
)
# preset, vocabulary, dropout, epochs, warm-up, tokens in a batch
TRANSLATION: Sizes[EncoderDecoderSize] = (
    (10_000, EncoderDecoderSize("transformer-tiny", 2000, 0.3, 100, 400, 1024)),
    (100_000, EncoderDecoderSize("transformer-small", 5000, 0.3, 30, 400, 1024)),
    (1_000_000, EncoderDecoderSize("transformer-small", 8000, 0.1, 20, 1000, 2048)),
    (float("inf"), EncoderDecoderSize("transformer-base", 32000, 0.1, 10, 4000, 4096)),
)
SUMMARIZATION: Sizes[EncoderDecoderSize] = (
    (20_000, EncoderDecoderSize("transformer-tiny", 4000, 0.2, 40, 400, 2048)),
    (500_000, EncoderDecoderSize("transformer-small", 8000, 0.1, 20, 400, 4096)),
    (float("inf"), EncoderDecoderSize("transformer-base", 32000, 0.1, 10, 4000, 8192)),
)
VISION: Sizes[VisionSize] = (
    (10_000, VisionSize("vit-micro", side=64, epochs=100, batch_size=64)),
    (200_000, VisionSize("vit-micro", side=64, epochs=30, batch_size=64)),
    # fewer images do not teach a model of so many patches anything from scratch
    (float("inf"), VisionSize("deit-ti", side=224, epochs=30, batch_size=128)),
)

CAPTION_SIDE = 64
CAPTIONING: Sizes[CaptioningSize] = (
    (5_000, CaptioningSize("captioner-micro", 1000, CAPTION_SIDE, dropout=0.0, epochs=60, batch_size=64)),
    (20_000, CaptioningSize("captioner-micro", 1000, CAPTION_SIDE, dropout=0.0, epochs=20, batch_size=64)),
    (500_000, CaptioningSize("captioner-micro", 8000, CAPTION_SIDE, dropout=0.1, epochs=10, batch_size=64)),
    (float("inf"), CaptioningSize("vit-gpt2", 16000, 224, dropout=0.1, epochs=10, batch_size=128)),
)


def size_for(count: int, sizes: Sizes[S]) -> S:
    """Returns the entry of ``sizes`` for data with ``count`` examples, characters or images.

    >>> size_for(60_000, TRANSLATION).preset
    'transformer-small'
    """
    return next(size for bound, size in sizes if count < bound)


# ------------------------------------------------------------------------------------------------------------ settings

ENCODER_TOKENS = 1024  # of a batch, in training from scratch
TOKENS_PER_EXAMPLE = 25  # of a sentence, about; only the warm-up depends on it
PAIR_BATCH = 64  # pairs of texts: the contrastive loss tells each from all others of its batch
FINETUNING_EPOCHS, FINETUNING_BATCH = 3, 32  # Devlin et al. 2019, A.3
DPO_BATCH = 64  # pairs; Rafailov et al. 2023, appendix B
WORDS = 20_000  # of a vocabulary of whole words
# Share of words that occur once, up to which whole words are the tokens. Of sets whose share was below 0.1 none lost
# more than its noise against word pieces, and TREC won 8 points; names in 36 languages (0.33) need parts of words.
RARE_SHARE = 0.15
# Fewer words have a larger share, so the limit for an ensemble is higher for them: the share of the first 100 to 3,000
# texts of five sets is 0.37 to 0.94 times this limit (0.05 to 0.45), of names in 36 languages 1.2 times or more.
RARE_WORDS, RARE_FALL, MOST_RARE = 40_000, 0.3, 0.48
COUNTED_TEXTS = 50_000
WORD = re.compile(r"\w+|[^\w\s]")
# Members of an ensemble, which differ in what they read: the mean of equal members gains less.
MEMBERS = (
    Member(TokenizerSettings(kind="word", size=WORDS, lowercase=True)),
    Member(TokenizerSettings(kind="word", size=WORDS, lowercase=True), bigrams=20_000),
    Member(TokenizerSettings(kind="wordpiece", size=2_000, lowercase=True), bigrams=50_000),
    Member(TokenizerSettings(kind="wordpiece", size=8_000, lowercase=True)),
)
# Two more members, for texts without labels. Vectors as first embeddings of all members lose 5 points on TREC.
VECTOR_MEMBERS = tuple(member._replace(vectors=True) for member in MEMBERS[:2])
ENSEMBLE_EXAMPLES, MEMBER_DIM = 20_000, 64
ENSEMBLE_WORDS, FEWEST_EPOCHS, MOST_ENSEMBLE_EPOCHS = 700_000, 4, 15
# With fewer examples the ensemble stays: one model that learned from it was 3.4 points below on 667 questions of TREC.
FEWEST_TAUGHT = 2_000
# Of a model with a teacher: words made up and words read in all; texts made up for each text, and drawn in a step.
MADE_UP_WORDS, STUDENT_WORDS, STUDENT_LR, MOST_MADE_UP, DRAWN = 1_200_000, 2_800_000, 1.4e-3, 30, 3
FEWEST_STUDENT_EPOCHS, MOST_STUDENT_EPOCHS = 2, 50
VECTOR_EPOCHS = 30  # at most, with vectors as first embeddings, which change slowly
# R-Drop's α in fine-tuning a classifier of few labels on fewer examples than that: SST-2 gained 2 points, TREC none. A
# step takes twice as long, which many examples do not repay; with many labels the time goes into epochs.
AGREEMENT, AGREEMENT_EXAMPLES, FEW_LABELS = 1.0, 20_000, 10
LEAST_STEPS, MOST_EPOCHS = 300, 20  # few examples want more epochs of fine-tuning (Mosbach et al. 2021, section 6)
# and so do many labels, up to a number of steps that a person waits for: 24 categories of Unicode's names gained 2.5
# points by 2,000 steps in place of 750, 59 sections of Debian 2.2 by 1,866 in place of 933, 13 tags of WNUT-17 4 points
# of F1 by 856 in place of 321
STEPS_PER_LABEL, MOST_LEAST_STEPS = 60, 1_800
VISION_FINETUNING_EPOCHS = 10


def _training(**own: Any) -> TrainingSettings:
    """Returns the training settings that all tasks share, updated with ``own``, the settings of a family.

    Gradients are clipped to the norm 1, which is customary. Ten evaluations without a gain end a run.
    """
    return TrainingSettings(accumulate=1, clip=1.0, patience=10, log_every=50, **own)


def encoder(examples: int, given: RunSettings, tokens: int = TOKENS_PER_EXAMPLE) -> RunSettings:
    """Returns settings for an encoder trained from scratch on examples of about ``tokens`` tokens each.

    β₂ = 0.98 is RoBERTa's (Liu et al. 2019, section 3.1).
    """
    size = size_for(examples, ENCODER)
    steps = given.max_steps or size.epochs * max(1, examples * tokens // ENCODER_TOKENS)
    return replace(
        given,
        preset=given.preset or size.preset,
        max_epochs=size.epochs,
        data=DataSettings(max_length=MAX_LENGTH),
        tokenizer=TokenizerSettings(kind="wordpiece", size=size.vocabulary),
        model=ModelSettings(dropout=None if given.preset else size.dropout),
        training=_training(
            lr=size.lr,
            schedule="linear",
            warmup=min(200, steps // 10 + 1),
            batch_tokens=ENCODER_TOKENS,
            label_smoothing=0.1,
            weight_decay=0.01,
            betas=(0.9, 0.98),
            eps=1e-8,
        ),
        averaging=AveragingSettings(polynomial=0.1),
    )


def word_tokens(suggested: RunSettings, given: RunSettings, texts: Iterable[str], fall: float = 0.0) -> RunSettings:
    """Returns the suggested settings with whole words in lower case as tokens, if words are rarely new in the texts.

    ``fall`` is that of ``rarely_new``. A rare word that is split teaches its parts noise. A kind of tokens that
    ``given`` names, or a pretrained model's, stays.
    """
    if given.start_from or given.tokenizer.kind or not rarely_new(texts, fall):
        return suggested
    return replace(suggested, tokenizer=TokenizerSettings(kind="word", size=WORDS, lowercase=True))


def rarely_new(texts: Iterable[str], fall: float = 0.0) -> bool:
    """Returns True if the next word of the texts is probably known.

    The probability that it is new is about the share of words that occur once among all N words of the texts, n₁ / N
    (Good 1953). Up to 0.15 is rare. Fewer words have a larger share: with ``fall``, among N < 40,000 words up to
    0.15 (40,000 / N)^fall is rare, and at most 0.48. At most 50,000 texts are counted.
    """
    counts: Counter[str] = Counter()
    for text in islice(texts, COUNTED_TEXTS):
        counts.update(WORD.findall(text.lower()))
    once, words = sum(count == 1 for count in counts.values()), counts.total()
    if not words:
        return False
    return once <= words * min(RARE_SHARE * max(1.0, RARE_WORDS / words) ** fall, MOST_RARE)


def member_count(examples: int, given: RunSettings, texts: Iterable[str]) -> int:
    """Returns the number of classifiers that a run trains: ``--model.members``, or what the data suggests.

    That is an ensemble for fewer than 20,000 examples whose words are rarely new, or with ``--unlabelled``, unless
    ``given`` chooses a model or its tokens, and else a single model.
    """
    if given.model.members is not None:
        return given.model.members
    chosen = (
        given.start_from
        or given.teacher
        or given.preset
        or given.recipe
        or given.model.given()
        or given.tokenizer.given()
    )
    if chosen or (not given.unlabelled and (examples >= ENSEMBLE_EXAMPLES or not rarely_new(texts, RARE_FALL))):
        return 1
    return len(kinds_of_members(given))


def ensemble(examples: int, given: RunSettings, texts: Iterable[str]) -> RunSettings:
    """Returns settings for an ensemble of narrow classifiers, trained from scratch.

    The epochs read about 700,000 words in all: more epochs on long texts learn them by heart. The words of at most
    50,000 ``texts`` are counted.
    """
    words = _words_a_text(texts)
    most = VECTOR_EPOCHS if given.unlabelled else MOST_ENSEMBLE_EPOCHS
    epochs = min(max(round(ENSEMBLE_WORDS / (words * examples)), FEWEST_EPOCHS), most)
    size, model = size_for(0, ENCODER), ModelSettings(members=given.model.members or len(kinds_of_members(given)))
    if not given.preset:
        model = replace(model, dim=MEMBER_DIM, depth=1, dropout=size.dropout)
    return replace(
        encoder(examples, given, int(words) + 1),
        preset=given.preset or size.preset,
        max_epochs=epochs,
        tokenizer=TokenizerSettings(),
        model=model,
    )


def student(examples: int, given: RunSettings, texts: Iterable[str]) -> RunSettings:
    """Returns settings for a new classifier that learns from a teacher (``--teacher``).

    About 1,200,000 words are made up, up to 30 texts for each, and the epochs read about 2,800,000 words, those made up
    among them. Dropout of 0.1 left the model further from its teacher, so that there is none.
    """
    texts = list(islice(texts, COUNTED_TEXTS))
    words, suggested = _words_a_text(texts), made_up_texts(encoder(examples, given), examples, texts)
    made_up = given.distillation.made_up if given.distillation.made_up is not None else suggested.distillation.made_up
    assert made_up is not None
    share = 1 + min(made_up, DRAWN)  # of what is read, over the training texts
    epochs = min(max(round(STUDENT_WORDS / (words * examples * share)), FEWEST_STUDENT_EPOCHS), MOST_STUDENT_EPOCHS)
    tokens = max(64, ENCODER_TOKENS // share)
    steps = given.max_steps or (given.max_epochs or epochs) * max(1, round(examples * (words + 2)) // tokens)
    return replace(
        suggested,
        max_epochs=epochs,
        model=replace(suggested.model, dropout=None if given.preset else 0.0),
        training=replace(
            suggested.training,
            lr=STUDENT_LR,
            warmup=min(500, steps // 10 + 1),
            batch_tokens=tokens,
            label_smoothing=0.0,
        ),
    )


def made_up_texts(suggested: RunSettings, examples: int, texts: Iterable[str]) -> RunSettings:
    """Returns the suggested settings with as many texts made up from each as have about 1,200,000 words, 1 to 30."""
    count = min(max(round(MADE_UP_WORDS / (_words_a_text(texts) * examples)), 1), MOST_MADE_UP)
    return replace(suggested, distillation=DistillationSettings(made_up=count, temperature=1.0))


def _words_a_text(texts: Iterable[str]) -> float:
    """Returns the mean number of words of at most 50,000 texts, at least 1."""
    counts = [len(WORD.findall(text)) for text in islice(texts, COUNTED_TEXTS)]
    return max(1, sum(counts)) / max(1, len(counts))


def kinds_of_members(settings: RunSettings) -> tuple[Member, ...]:
    """Returns what the members of an ensemble may read: ``MEMBERS``; with ``--unlabelled`` ``VECTOR_MEMBERS`` first."""
    return (*VECTOR_MEMBERS, *MEMBERS) if settings.unlabelled else MEMBERS


def members(settings: RunSettings) -> list[Member]:
    """Returns what each member of an ensemble reads: the ``kinds_of_members`` in turn, with the given tokenizer."""
    kinds = kinds_of_members(settings)
    own = (kinds[number % len(kinds)] for number in range(settings.model.members or 1))
    return [member._replace(tokenizer=replace(member.tokenizer, **settings.tokenizer.given())) for member in own]


def encoder_finetuning(examples: int, given: RunSettings, folder: str, labels: int = 0) -> RunSettings:
    """Returns settings for fine-tuning an encoder as in BERT (Devlin et al. 2019, section 4.1 and A.3).

    These are few epochs, more of them for few examples and for many ``labels`` (of texts or of words); batches of
    sentences, linear warm-up over a tenth of the steps and linear decay, without label smoothing and weight averaging.
    """
    training = given.training
    batch = training.batch_size or FINETUNING_BATCH
    steps_per_epoch = max(1, -(-examples // (batch * (training.accumulate or 1))))
    least_steps = min(max(LEAST_STEPS, STEPS_PER_LABEL * labels), MOST_LEAST_STEPS)
    epochs = min(MOST_EPOCHS, max(FINETUNING_EPOCHS, -(-least_steps // steps_per_epoch)))
    steps = given.max_steps or (given.max_epochs or epochs) * steps_per_epoch
    return replace(
        given,
        max_epochs=epochs,
        data=DataSettings(max_length=MAX_LENGTH),
        training=_training(
            lr=training.lr or finetuning_lr(config_of(find(folder))),
            schedule="linear",
            warmup=steps // 10 + 1,
            batch_size=None if training.batch_tokens else batch,
            label_smoothing=0.0,
            weight_decay=0.01,
            betas=(0.9, 0.999),
            eps=1e-8,
            evaluate_every=max(50, steps_per_epoch),
        ),
        averaging=AveragingSettings(polynomial=0.0),
    )


def _stored_pooling(folder: Path) -> Pooling | None:
    """Returns the pooling of a sentence-transformers encoder; None for other folders, adapters and classifiers."""
    config = config_of(folder)
    if not isinstance(config, EncoderConfig) or isinstance(config.head, SequenceHead) or is_adapter(folder):
        return None
    with suppress(HeedfulError):  # such as a dense module, which a classifier does without
        head = pooled_head(folder)
        return None if head is None else head.pooling
    return None


def classifier_finetuning(examples: int, labels: int, given: RunSettings, folder: str) -> RunSettings:
    """Returns settings for fine-tuning a classifier: those of an encoder, with R-Drop for few labels and examples.

    For many labels there are more epochs, and a new classifier on a sentence-transformers folder pools the tokens as
    the folder says, because the class token of such a model was not trained. A resumed run keeps its settings.
    """
    fine = encoder_finetuning(examples, given, folder, labels)
    if given.resume:
        return fine
    if labels > FEW_LABELS and given.pooling.kind is None and given.lora.rank is None:
        fine = replace(fine, pooling=PoolingSettings(kind=_stored_pooling(find(folder))))
    if given.model.r_drop is None:
        rates = (rate for stack in stacks_of(config_of(find(folder))) for rate in vars(stack.dropout).values())
        pays = examples < AGREEMENT_EXAMPLES and labels <= FEW_LABELS and any(rates)
        fine = replace(fine, model=replace(fine.model, r_drop=AGREEMENT if pays else 0.0))
    return fine


def masked_model(characters: int, given: RunSettings, lr: float = FROM_SCRATCH_LR) -> RunSettings:
    """Returns settings for a new masked language model, trained on ``characters`` characters of text.

    β₂ and ε are RoBERTa's (Liu et al. 2019, section 3.1).
    """
    size = size_for(characters, MASKED)
    steps = given.max_steps or size.epochs * max(1, characters // (CHARACTERS_PER_TOKEN * ENCODER_TOKENS))
    return replace(
        given,
        preset=None if given.start_from else given.preset or size.preset,
        max_epochs=size.epochs,
        data=DataSettings(max_length=given.data.max_length or size.window),
        tokenizer=TokenizerSettings(kind="bpe", size=size.vocabulary),
        model=ModelSettings(dropout=None if given.preset else 0.0),
        training=_training(
            lr=lr,
            schedule="linear",
            warmup=min(200, steps // 10 + 1),
            batch_tokens=ENCODER_TOKENS,
            label_smoothing=0.0,
            weight_decay=0.01,
            betas=(0.9, 0.98),
            eps=1e-6,
        ),
        averaging=AveragingSettings(polynomial=0.05),
    )


def span_corruption(characters: int, given: RunSettings, dim: int) -> RunSettings:
    """Returns settings for span corruption by a model of width ``dim``.

    They are those of a masked language model, with a learning rate for this width.
    """
    peak = DECODER_FINETUNING_LR if given.start_from else FROM_SCRATCH_LR
    return masked_model(characters, given, lr=lr_for_width(peak, 256, dim))


def decoder(size: DecoderSize, given: RunSettings, context: int, instructions: bool = False) -> RunSettings:
    """Returns settings for a language model on windows of ``context`` tokens, or on instructions of at most so many.

    The tokenizer is left to the caller.

    The learning rate, its cosine decay to a tenth, the warm-up, weight decay and β₂ are those of nanoGPT
    (config/train_shakespeare_char.py).
    """
    tokens = context * size.examples
    if not (instructions or given.start_from):
        tokens = max(context * size.windows, min(tokens, LEAST_TOKENS))
    return replace(
        given,
        preset=None if given.start_from else given.preset or size.preset,
        max_epochs=FINETUNING_EPOCHS if given.start_from else size.epochs,
        data=DataSettings(max_length=context),
        model=ModelSettings(dropout=None if given.start_from or given.preset else 0.0),
        training=_training(
            lr=DECODER_FINETUNING_LR if given.start_from else FROM_SCRATCH_LR,
            schedule="cosine",
            min_lr_ratio=0.1 if given.training.schedule in (None, "cosine", "linear") else None,
            warmup=min(100, (given.max_steps or 10**9) // 10 + 1),
            batch_tokens=tokens,
            label_smoothing=0.0,
            weight_decay=0.1,
            betas=(0.9, 0.99),
            eps=1e-8,
        ),
        averaging=AveragingSettings(polynomial=0.05),
    )


def preference_tuning(pairs: int, given: RunSettings, folder: str, context: int) -> RunSettings:
    """Returns settings for direct preference optimisation of the model in ``folder`` on ``pairs`` pairs of answers.

    Batches of 64 pairs, a linear warm-up over a tenth of the steps, at most the paper's 150, and no weight decay.
    The learning rate is that of Rafailov et al. 2023, appendix B, scaled by the model's width.
    """
    training = given.training
    batch = training.batch_size or DPO_BATCH
    steps = given.max_steps or int((given.max_epochs or FINETUNING_EPOCHS) * -(-pairs // batch))
    return replace(
        given,
        max_epochs=FINETUNING_EPOCHS,
        data=DataSettings(max_length=context),
        training=_training(
            lr=round(DPO_LR * DPO_DIM / stacks_of(config_of(find(folder)))[0].dim, 9),
            schedule="linear",
            warmup=min(150, steps // 10 + 1),
            batch_size=None if training.batch_tokens else batch,
            label_smoothing=0.0,
            weight_decay=0.0,
            betas=(0.9, 0.999),
            eps=1e-8,
        ),
        averaging=AveragingSettings(polynomial=0.0),
    )


def encoder_decoder(size: EncoderDecoderSize, given: RunSettings, dim: int) -> RunSettings:
    """Returns settings for an encoder-decoder of width ``dim``; maximum length and prefix are left to the caller.

    Label smoothing, β and ε are those of Vaswani et al. 2017, sections 5.3 and 5.4.
    """
    peak = DECODER_FINETUNING_LR if given.start_from else FROM_SCRATCH_LR
    return replace(
        given,
        preset=None if given.start_from else given.preset or size.preset,
        max_epochs=size.epochs,
        tokenizer=TokenizerSettings()
        if given.start_from
        else TokenizerSettings(kind="bpe", size=size.vocabulary, shared=True),
        model=ModelSettings(dropout=None if given.preset or given.start_from else size.dropout),
        training=_training(
            lr=lr_for_width(peak, 256, dim),
            schedule="cosine",
            warmup=min(size.warmup, (given.max_steps or 10**9) // 5 + 1),  # a short run has no time for a long one
            batch_tokens=size.batch_tokens,
            label_smoothing=0.1,
            weight_decay=0.01,
            betas=(0.9, 0.98),
            eps=1e-9,
        ),
        averaging=AveragingSettings(polynomial=0.1),
    )


def vision(images: int, given: RunSettings, side: int, config: ModelConfig) -> RunSettings:
    """Returns settings for a vision model on images of ``side`` pixels; preset and patch size are left to the caller.

    Label smoothing, weight decay and cosine schedule are DeiT's (Touvron et al. 2021, table 9). Fine-tuning uses the
    learning rate of an encoder, but at most 1e-4, since a higher rate overwrites what was learned. Small images are not
    shifted, since one pixel is a large part of a small patch. Images are not mirrored by default, since mirroring
    changes the meaning of digits and letters.
    """
    size = size_for(images, VISION)
    if given.start_from:
        epochs, lr = VISION_FINETUNING_EPOCHS, min(DECODER_FINETUNING_LR, finetuning_lr(config))
    else:
        epochs = size.epochs
        lr = lr_for_width(VISION_LR, 128, given.model.dim or stacks_of(config)[0].dim)
    suggested = _image_task(images, given, size, epochs, lr)
    return replace(suggested, image=replace(suggested.image, crop_padding=side // 32, mixup=0.0))


def _image_task(
    examples: int, given: RunSettings, size: VisionSize | CaptioningSize, epochs: int, lr: float
) -> RunSettings:
    """Returns the settings that tasks of images share: schedule and batches, and images that are not augmented."""
    steps = int((given.max_epochs or epochs) * examples / (given.training.batch_size or size.batch_size))
    return replace(
        given,
        max_epochs=epochs,
        image=replace(given.image, crop_padding=0, flip=False, rand_augment=0, random_erasing=0.0),
        training=_training(
            lr=lr,
            schedule="cosine",
            warmup=min(500, (given.max_steps or steps) // 10 + 1),
            batch_size=None if given.training.batch_tokens else size.batch_size,
            label_smoothing=0.1,
            weight_decay=0.05,
            betas=(0.9, 0.98),
            eps=1e-8,
        ),
        averaging=AveragingSettings(polynomial=0.1),
    )


def captioning(texts: int, given: RunSettings, dim: int) -> RunSettings:
    """Returns settings for a captioner with a decoder of width ``dim``; preset, sizes of images and patches, and the
    maximum length are left to the caller.

    Schedule, weight decay, label smoothing and β are those of a vision model. Images are neither mirrored nor shifted
    by default, since a text may say where things are.
    """
    size = size_for(texts, CAPTIONING)
    peak = DECODER_FINETUNING_LR if given.start_from else FROM_SCRATCH_LR
    epochs = VISION_FINETUNING_EPOCHS if given.start_from else size.epochs
    return replace(
        _image_task(texts, given, size, epochs, lr_for_width(peak, 256, dim)),
        tokenizer=TokenizerSettings() if given.start_from else TokenizerSettings(kind="bpe", size=size.vocabulary),
        model=ModelSettings(dropout=None if given.preset or given.start_from else size.dropout),
    )


def lora(given: LoraSettings, rank: int) -> LoraSettings:
    """Returns settings of a low-rank adapter as in Hu et al. 2022: α is twice the rank, on queries and values.

    Values in ``given`` take precedence.
    """
    defaults = LoraSettings(rank=rank, alpha=2.0 * rank, dropout=0.05, targets=("query", "value"))
    return replace(defaults, **given.given())
