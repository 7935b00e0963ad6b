"""Image captioning by a vision encoder and a text decoder. Columns ``image`` and ``text``."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import compress
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from heedful.config import EncoderDecoderConfig, LanguageHead, ModelConfig, SpecialTokens, patches_of
from heedful.data import Kind, LazyImage, Row, Rows
from heedful.errors import HeedfulError, plural
from heedful.generation.options import Options
from heedful.metrics.captions import caption_scores, signature
from heedful.metrics.example_scores import overall
from heedful.models import Model
from heedful.pretrained.configuration import home
from heedful.pretrained.folder import find
from heedful.pretrained.preprocessing import Preprocessing, read_preprocessing, write_preprocessing
from heedful.settings import DataSettings, ImageSettings, RunSettings
from heedful.tasks import defaults
from heedful.tasks.baselines import nearest_images
from heedful.tasks.encoder_decoder_task import EncoderDecoderTask, with_loss
from heedful.tasks.generated_text_baselines import best_constant
from heedful.tasks.image_inputs import (
    DecodedImages,
    channels_of,
    check_image_size,
    load_for_images,
    normalised_images,
    patch_of,
    patches_with_settings,
    preprocessing_for,
    shape_text,
    side_of,
)
from heedful.tasks.inputs_and_targets import Side, next_token_side
from heedful.tasks.model_setup import (
    check_vocabulary,
    positions_of,
    preset_of,
    special_id,
    start_of,
    with_positions,
    with_settings,
)
from heedful.tasks.published import encoder_decoder_of
from heedful.tasks.sequence_to_sequence import encode_with_special
from heedful.tasks.task import (
    LINE,
    SAMPLES,
    Baseline,
    Batch,
    Encoded,
    LoggedSample,
    Measured,
    Prediction,
    arrow_joined,
    short,
)
from heedful.tasks.token_batches import outputs_of_call, prediction_of
from heedful.tasks.used_settings import USED_SETTINGS
from heedful.text import Tokenizer

PATCHES_PER_SIDE = 8.0  # of a small image: a patch is smaller than the things that a text names
QUICK = 2_000  # training images of the quick baseline


class CaptionExample(NamedTuple):
    """Example: an image as the model takes it, uint8 (C, H, W), and the ids of its text with the end token."""

    pixels: np.ndarray
    text: list[int]


class ImageToText(EncoderDecoderTask):
    """Generates the column ``text`` from the column ``image``: captions, or any other text about an image.

    An image may have several texts, in rows of their own or as a list in a table's cell. In training each text is an
    example. In evaluation an image is one example, and all its texts are references.

    Images are decoded once and kept in memory, a byte for each pixel and channel. They are not mirrored by default,
    since "left" would become "right".

    Vinyals et al. 2015 ("Show and tell"); Li et al. 2023 ("TrOCR"), for the model.

    Args:
        tokenizer: tokenizer of the texts.
        preprocessing: resizing and normalisation of images.
        special: the model's special token ids; None takes the tokenizer's.
        positions: maximum number of tokens of a text, if the decoder's positions are limited.
    """

    name: ClassVar[str] = "image-to-text"
    columns: Mapping[str, Kind] = MappingProxyType({"image": "image", "text": "texts"})
    main_metric: str = "cider"
    used_settings: ClassVar[frozenset[str]] = USED_SETTINGS["ImageToText"]
    options: ClassVar[frozenset[str]] = EncoderDecoderTask.options - {"encoder_no_repeat_ngram_size"}

    def __init__(
        self,
        tokenizer: Tokenizer,
        preprocessing: Preprocessing,
        special: SpecialTokens | None = None,
        positions: int | None = None,
    ) -> None:
        super().__init__(tokenizer, tokenizer, special, positions)
        self.preprocessing, self.augmentation = preprocessing, ImageSettings()
        self.tokens = 1  # of an image; set by ``check_model``
        self.longest_text: int | None = None  # tokens of the longest training text, if known

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns default settings for the size of the images and the number of texts.

        Images that all have one size of up to 64 pixels keep that size, others are resized to 64 × 64 pixels, or to
        224 × 224 if there are 500,000 texts or more. A given preset sets the sizes of images and patches; without one
        there are about 8 × 8 patches, more than for classification, since a text names several things in an image.
        """
        if given.start_from:
            config = captioner_of(find(given.start_from), cls.name)
            longest = min(positions_of(config) or cls.max_length, cls.max_length)
            suggested = defaults.captioning(len(rows), given, config.decoder.dim)
            return replace(suggested, data=DataSettings(max_length=longest))
        size = defaults.size_for(len(rows), defaults.CAPTIONING)
        preset = given.preset or size.preset
        config = captioner_preset(preset, cls.name)
        patches = patches_of(config)
        assert patches is not None
        side = given.image.size or (patches.image_size[0] if given.preset else side_of(rows) or size.side)
        small = None if given.preset or side > 2 * defaults.CAPTION_SIDE else patch_of(side, PATCHES_PER_SIDE)
        suggested = defaults.captioning(len(rows), given, given.model.dim or config.decoder.dim)
        return replace(
            suggested,
            preset=preset,
            image=replace(suggested.image, size=side, channels=channels_of(rows)),
            model=replace(suggested.model, patch_size=small or patches.patch_size),
            data=DataSettings(max_length=cls.max_length),
        )

    max_length: ClassVar[int] = 64  # default maximum number of tokens of a text

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Creates the task for a new model: trains the tokenizer, and measures mean and deviation of the channels."""
        size, kind = settings.tokenizer.size or 1000, settings.tokenizer.kind or "bpe"
        texts = (row.values["text"] for row in rows)
        tokenizer = Tokenizer.train(texts, size, kind, bool(settings.tokenizer.lowercase))
        limit = settings.data.max_length or cls.max_length
        task = cls(tokenizer, preprocessing_for(rows, settings.image), positions=limit)
        longest = max(map(len, encode_with_special(tokenizer, [row.values["text"] for row in rows])))
        task.longest_text = min(longest, limit)
        return task

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """Loads task and model of a folder; the image size is that of the settings, if they set one."""
        task = cls.load(folder)
        task.preprocessing, model = load_for_images(find(folder), settings.image)
        task.check_model(model)
        return task, model

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the tokenizer, the preprocessing and the model's special tokens."""
        folder = find(folder)
        config = captioner_of(folder, cls.name)
        tokenizer = Tokenizer.load(folder if Tokenizer.has_files(folder) else home(folder))
        return cls(tokenizer, read_preprocessing(folder), config.special, positions_of(config))

    def save(self, folder: str | Path) -> None:
        """Writes the tokenizer and ``preprocessor_config.json``."""
        super().save(folder)
        write_preprocessing(self.preprocessing, folder)

    def config(self, settings: RunSettings) -> ModelConfig:
        """Returns the configuration of a new model: the preset with the changes in the settings, for these images and
        this vocabulary.
        """
        config = captioner_preset(settings.preset or defaults.CAPTIONING[0][1].preset, self.name)
        preset_patches = patches_of(config)
        assert preset_patches is not None
        patches = patches_with_settings(preset_patches, self.preprocessing, settings.model)
        encoder = with_settings(config.encoder, settings.model, settings.model.encoder_depth)
        decoder = with_settings(config.decoder, settings.model, settings.model.decoder_depth)
        return replace(
            config,
            source=patches,
            target=replace(config.tokens, vocab_size=self.target.vocab_size),
            encoder=with_positions(encoder, patches.tokens),
            decoder=decoder if self.positions is None else with_positions(decoder, self.positions),
            head=config.head if settings.model.tied is None else LanguageHead(tied=settings.model.tied),
            special=SpecialTokens(pad=self.target.pad, start=self.target.start, end=(special_id(self.target.end),)),
        )

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Stores the settings of augmentation; a new model will generate no more tokens than the longest text has."""
        self.check_model(model)
        self.augmentation = settings.image
        if self.longest_text is not None:
            model.generation = {**model.generation, "max_new_tokens": self.longest_text}

    def check_model(self, model: Model) -> None:
        """Raises ``HeedfulError`` for a model that does not fit the task.

        It must be an encoder-decoder of images of the size that the preprocessing produces, with a language-model head,
        an embedding for every token, and a start token.
        """
        config = model.config
        reads = patches_of(config) is not None
        if not isinstance(config, EncoderDecoderConfig) or not reads or not isinstance(config.head, LanguageHead):
            raise HeedfulError(
                f"{self.name} needs an encoder-decoder that reads images, with a language-model head; this model is of "
                f"kind {config.kind!r}{'' if reads else ' and reads text'}, and its head of kind {config.head.kind!r}; "
                "choose another model"
            )
        check_vocabulary(self.target, config.tokens)
        start_of(config)
        self.tokens = check_image_size(config, self.preprocessing).tokens

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Decodes each image once, resizes it to the model's size, and encodes its texts.

        A text longer than ``max_length`` tokens, or than the model's limit, is left out.
        """
        most = min((limit for limit in (max_length, self.positions) if limit is not None), default=None)
        texts = encode_with_special(self.target, [row.values["text"] for row in rows])
        fits = [most is None or len(ids) <= most for ids in texts]
        if not any(fits):
            remedy = "the model takes no more" if most == self.positions else "raise --data.max-length"
            raise HeedfulError(f"every text is longer than {plural(most or 0, 'token')}, in {rows[0].file}; {remedy}")
        stored: dict[Any, np.ndarray] = {}
        resized, examples, side = 0, [], (self.preprocessing.size, self.preprocessing.size)
        for row, ids in compress(zip(rows, texts, strict=True), fits):
            image = row.values["image"]
            if (key := image_key(image)) not in stored:
                pixels = image.pixels(self.preprocessing.channels)
                resized += pixels.shape[:2] != side
                stored[key] = np.ascontiguousarray(self.preprocessing.fitted(pixels))
            examples.append(CaptionExample(stored[key], ids))
        fitting = Rows(compress(rows, fits), rows.skipped, rows.columns)
        unread = [row for row, fit in zip(rows, fits, strict=True) if not fit]
        notes = [f"{plural(resized, 'image')} resized to {shape_text(self.preprocessing.shape)} (--image.size)"]
        notes = notes if resized else []
        notes += [f"{plural(len(unread), 'text')} longer than {plural(most or 0, 'token')} left out"] if unread else []
        return Encoded(examples, fitting, ", ".join(notes), len(unread), unread)

    def lengths(self, examples: Sequence[CaptionExample]) -> np.ndarray:
        """Returns the number of tokens of image and text of each example, as an array (N, 2)."""
        return np.array([(self.tokens, len(text)) for _, text in examples], dtype=np.int64)

    def collate(
        self, examples: Sequence[CaptionExample], random: np.random.Generator | None = None
    ) -> dict[str, Tensor]:
        """Returns ``source`` (B, C, H, W), normalised images, in training augmented as ``--image`` says; ``target``
        (B, T), the decoder's input, and ``labels`` (B, T), the next tokens.
        """
        pixels = np.stack([image for image, _ in examples])
        images = normalised_images(pixels, self.preprocessing, self.augmentation, random)
        return {"source": torch.from_numpy(images), **self.target_tensors([text for _, text in examples])}

    def sides(self, batch: Batch, row: int = 0) -> list[Side]:
        """Returns the decoder's input of a batch's ``row``, whose targets are the next tokens."""
        return [next_token_side("target", batch["target"][row], batch["labels"][row], self.target)]

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    def measure(
        self, model: Model, examples: Sequence[CaptionExample], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """Returns CIDEr, BLEU, ROUGE-L and the exact match of the texts generated for the images of the first ``most``
        rows.

        All texts of an image are its references (``heedful.metrics.captions``).
        """
        losses = self.losses(model, examples)
        total, count = losses.sum(0).tolist()
        chosen = Rows(rows[:most])
        keys, references, counted = references_of(chosen)
        images = [row.values["image"] for row in compress(chosen, counted)]
        if most is not None:
            longest = self.longest_text or max(len(text) for _, text in examples)
            options = dict(self.with_limit(model, options, longest))
        predicted = (prediction.output for prediction in self.predict(model, images, **options))
        by_image = dict(zip(compress(keys, counted), predicted, strict=True))
        outputs = [by_image[key] for key in keys]
        scores = caption_scores(outputs, references, counted)
        metrics = {**overall(scores), "bleu_signature": signature(references)}
        details = {"images": len(images)}
        return Measured({"loss": total / count, **metrics}, details, with_loss(scores, losses), outputs)

    def logged_samples(self, model: Model, rows: Rows, measured: Measured) -> list[LoggedSample]:
        """Returns samples of the first images for the run's log, with the name of the image's file as input."""
        first = [*compress(range(len(rows)), references_of(Rows(rows[: len(measured.outputs)]))[2])][:SAMPLES]
        chosen = Rows(rows[i] for i in first)
        samples = super().logged_samples(model, chosen, replace(measured, outputs=[measured.outputs[i] for i in first]))
        names = [short(Path(row.values["image"].name).name, LINE) for row in chosen]
        return [sample | {"input": name} for sample, name in zip(samples, names, strict=True)]

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """Scores a baseline: the text of the training image with the nearest pixels (Devlin et al. 2015, "Exploring
        nearest neighbor approaches for image captioning", with pixels in place of features).
        """
        known = learned()
        places = nearest_images(known, rows, self.preprocessing.channels, self.preprocessing.size)
        texts = [known[place].values["text"] for place in places]
        return self._scored("the text of the training image with the nearest pixels", texts, rows)

    def quick_baseline(self, examples: Sequence[CaptionExample], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores the text of the nearest of at most 2,000 training images."""
        return self.baseline(rows, lambda: Rows(learned[:: -(-len(learned) // QUICK)]))

    def guess(self, examples: Sequence[CaptionExample], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores a baseline that writes the same text for every image."""
        return best_constant(learned, rows, lambda row: row.values["text"], self._scored, self.main_metric)

    def _scored(self, name: str, texts: Sequence[str], rows: Rows) -> Baseline:
        _, references, counted = references_of(rows)
        scores = caption_scores(texts, references, counted)
        return Baseline(name, overall(scores), with_loss(scores, np.zeros((len(rows), 2))))

    def predict(
        self,
        model: Model,
        inputs: Sequence[Any],
        *,
        decoding: Options | None = None,
        batch_tokens: int | None = None,
        logprobs: bool = False,
        **options: Any,
    ) -> list[Prediction]:
        """Generates a text for each image.

        With ``num_return_sequences`` > 1 the output is a list of ``{"text", "score"}``, samples or the best beams.

        Args:
            model: the model.
            inputs: images: a path, the bytes of a file, a PIL image, an array or a ``LazyImage`` each. The prediction
                has the path or name as input.
            decoding: resolved decoding options (``decoding_options``), instead of ``options``.
            batch_tokens: maximum number of tokens in a batch, a token for each patch; by default 4,096.
            logprobs: if True, predictions have log p of each generated token.
            **options: decoding options.
        """
        decoding = outputs_of_call(decoding or self.decoding_options(model, options))
        images = [LazyImage.of(value) for value in inputs]
        if not images:
            return []
        decoded = DecodedImages(images, self.preprocessing)

        def batch_of(batch: np.ndarray) -> tuple[Tensor, None]:
            pixels = self.preprocessing.normalised(np.stack([decoded[i] for i in batch]))
            return torch.from_numpy(pixels).to(model.device), None

        lengths, keys = [self.tokens] * len(images), [[]] * len(images) if decoding.seed is None else digests(images)
        predictions: list[Prediction] = [Prediction(image.name, "", None) for image in images]
        for i, outputs in self.generated_texts(model, lengths, keys, batch_of, decoding, batch_tokens, logprobs):
            predictions[i] = prediction_of(images[i].name, outputs, decoding)
        return predictions

    def row_line(self, row: Row) -> str:
        """Returns a row as one line for people: ``17.png (32 × 32) → a red circle above a blue square``."""
        image = row.values["image"]
        width, height = image.size
        return arrow_joined([f"{Path(image.name).name} ({width} × {height})", row.values["text"]])


def captioner_of(folder: Path, task: str) -> EncoderDecoderConfig:
    """Returns the configuration of a folder's model; raises ``HeedfulError`` unless it is an encoder-decoder of
    images.
    """
    config = encoder_decoder_of(folder, task)
    if patches_of(config) is None:
        raise HeedfulError(f"{task} needs a model that reads images, but {folder} reads text; choose another model")
    return config


def captioner_preset(name: str, task: str) -> EncoderDecoderConfig:
    """Returns the configuration of a preset; raises ``HeedfulError`` unless it is an encoder-decoder of images."""
    config = preset_of(name, EncoderDecoderConfig, task)
    if patches_of(config) is None:
        known = ", ".join(dict.fromkeys(size.preset for _, size in defaults.CAPTIONING))
        raise HeedfulError(f"preset {name!r} reads text, but {task} needs a model that reads images; choose {known}")
    return config


def image_key(image: LazyImage) -> Any:
    """Returns a key that equal images of a data set share: the absolute path, or a digest of the bytes."""
    return (
        os.path.abspath(image.source)
        if isinstance(image.source, str)
        else blake2b(image.digest_bytes(), digest_size=16).digest()
    )


def digests(images: Sequence[LazyImage]) -> list[list[int]]:
    """Returns a number for each image that depends on its bytes."""
    return [[int.from_bytes(blake2b(image.digest_bytes(), digest_size=8).digest())] for image in images]


def references_of(rows: Rows) -> tuple[list[Any], list[list[str]], list[bool]]:
    """Returns for each row the key of its image, all texts of the image, and True if it is the image's first row."""
    keys = [image_key(row.values["image"]) for row in rows]
    texts: dict[Any, list[str]] = defaultdict(list)
    counted = []
    for key, row in zip(keys, rows, strict=True):
        counted.append(key not in texts)
        texts[key].append(row.values["text"])
    return keys, [texts[key] for key in keys], counted
