"""Image classification by a Vision Transformer (Dosovitskiy et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.config import ImageHead, ModelConfig, VisionConfig
from heedful.data import Kind, LazyImage, Row, Rows
from heedful.data.image_transforms import mixup
from heedful.data.split import Same, content_digest
from heedful.errors import HeedfulError, plural
from heedful.heads import head_of
from heedful.metrics.classification import ClassifierScores, Mistakes, is_in_top_k
from heedful.metrics.example_scores import overall
from heedful.models import Model
from heedful.models.create import head_config
from heedful.models.initial_weights import initialise
from heedful.pretrained.configuration import config_of, read_configs
from heedful.pretrained.folder import find
from heedful.pretrained.preprocessing import Preprocessing, read_preprocessing, write_preprocessing
from heedful.settings import ImageSettings, ModelSettings, RunSettings
from heedful.tasks import defaults
from heedful.tasks.baselines import kernel_images
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
from heedful.tasks.labels import (
    check_known_labels,
    constant_baseline,
    label_ids,
    labels_to_list,
    row_labels,
    stored_label_names,
    top_labels,
    training_labels,
    with_learnable_labels,
)
from heedful.tasks.model_setup import check_classifier, checked_folder, preset_of, with_positions, with_settings
from heedful.tasks.task import (
    LINE,
    Baseline,
    Batch,
    Encoded,
    LoggedSample,
    Measured,
    Prediction,
    Task,
    arrow_joined,
    short,
)
from heedful.tasks.used_settings import USED_SETTINGS
from heedful.util.random_state import seeded

SMALLEST = "vit-micro"
TOP = 5
LabelledImage = tuple[np.ndarray, int]  # uint8 (C, H, W), and the label's index


class Unlabelled(DecodedImages):
    """Sequence of examples without labels, decoded on access."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index), 0


class ImageClassification(Task):
    """A vision model with a classifier.

    Images are decoded once and kept in memory, a byte for each pixel and channel. Augmentation (shifts, mirror images,
    RandAugment, random erasing, mixup) is drawn anew in each epoch.

    Args:
        labels: names of the classes, in the order of the model's logits.
        preprocessing: resizing and normalisation of images.
    """

    name: ClassVar[str] = "image-classification"
    columns: Mapping[str, Kind] = MappingProxyType({"image": "image", "label": "label"})
    unit = "images"
    main_metric: str = "accuracy"
    used_settings: ClassVar[frozenset[str]] = USED_SETTINGS["ImageClassification"]
    options: ClassVar[frozenset[str]] = frozenset({"batch_tokens", "top_k", "mirror"})
    display_options: ClassVar[frozenset[str]] = frozenset({"top_k"})

    def __init__(self, labels: Sequence[str], preprocessing: Preprocessing) -> None:
        self.labels, self.preprocessing = list(labels), preprocessing
        self.augmentation = ImageSettings()  # set by ``before_training``
        self.tokens = 1  # of an image; set by ``check_model``

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def split_rows(cls, rows: Rows, valid: float | None, seed: int, same: Same = content_digest) -> tuple[Rows, Rows]:
        """Returns training and validation rows; ``valid`` is the fraction to hold out.

        An image with a label that no training row has is moved to training.
        """
        return with_learnable_labels(*super().split_rows(rows, valid, seed, same), by="image", same=same)

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns default settings for the size and the number of the images.

        Images that all have one size of up to 64 pixels keep that size. Other images are resized to 64 × 64 pixels, or
        to 224 × 224 if there are 200,000 images or more: from fewer images a new model with so many patches learns
        nothing (a pretrained model, ``--from``, does learn). A given preset sets the sizes of images and patches.
        Without a preset, small images have about 4 × 4 patches, the smallest images 2 × 2, since a model with coarse
        patches learns more in the same time. Images are not mirrored by default, since mirroring changes the meaning of
        digits and letters. Small images are not shifted, since one pixel is a large part of a small patch.
        """
        if given.start_from:
            folder = checked_folder(cls.name, find(given.start_from), images=True)
            side = given.image.size or read_preprocessing(folder).shape[1]
            return defaults.vision(len(rows), given, side, config_of(folder))
        size = defaults.size_for(len(rows), defaults.VISION)
        preset = given.preset or size.preset
        config = preset_of(preset, VisionConfig, cls.name)
        default_side = config.patches.image_size[0] if given.preset else side_of(rows) or size.side
        side = given.image.size or default_side
        patch = config.patches.patch_size if given.preset else patch_of(side) or config.patches.patch_size
        suggested = defaults.vision(len(rows), given, side, config)
        return replace(
            suggested,
            preset=preset,
            image=replace(suggested.image, size=side, channels=channels_of(rows)),
            model=ModelSettings(patch_size=patch),
        )

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Creates the task with the training labels in alphabetical order, and the mean and standard deviation of each
        channel over at most 1,000 images.
        """
        return cls(_label_names(rows), preprocessing_for(rows, settings.image))

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """Loads task and model of a folder for fine-tuning.

        The image size is that of the settings, if they set one. If the data has labels that the model does not know, it
        gets a new linear head.
        """
        folder = checked_folder(cls.name, find(folder), images=True)
        names, (preprocessing, model) = _label_names(rows), load_for_images(folder, settings.image)
        config, head = model.config, model.config.head
        if not isinstance(config, VisionConfig):
            raise HeedfulError(
                f"{cls.name} needs a vision model; the model in {folder} is of kind {config.kind!r}; choose another "
                "model"
            )
        own = stored_label_names(read_configs(folder)[0]) if isinstance(head, ImageHead) else []
        known = set(names) <= set(own)
        if not known:
            linear = replace(_usual_head(config), labels=len(names), hidden=0)
            model.config = replace(config, head=linear)
            with seeded(settings.seed or 0):
                model.head = head_of(linear, model.main.dim, prefix_tokens=config.patches.prefix_tokens)
                initialise(model.head, model.main)
            model.fresh = [f"head.{name}" for name in model.head.state_dict()]
        task = cls(own if known else names, preprocessing)
        task.check_model(model)
        return task, model

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the labels of ``config.json`` and the preprocessing of ``preprocessor_config.json``."""
        folder = checked_folder(cls.name, find(folder), images=True)
        return cls(stored_label_names(read_configs(folder)[0]), read_preprocessing(folder))

    def save(self, folder: str | Path) -> None:
        """Writes ``preprocessor_config.json``; the labels are saved with the model."""
        write_preprocessing(self.preprocessing, folder)

    def config(self, settings: RunSettings) -> ModelConfig:
        """Returns the configuration of a new model: the preset with the settings' patches and an output for each label.

        The size of images is that of the task's preprocessing.
        """
        config = preset_of(settings.preset or SMALLEST, VisionConfig, self.name)
        patches = patches_with_settings(config.patches, self.preprocessing, settings.model)
        stack = with_positions(with_settings(config.encoder, settings.model, None), patches.tokens)
        usual = _usual_head(config)
        head = ImageHead(labels=len(self.labels), hidden=usual.hidden, tokens=usual.tokens)
        return replace(config, patches=patches, encoder=stack, head=head)

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Stores the label names in the model, and the settings of augmentation in the task."""
        self.check_model(model)
        model.labels, self.augmentation = list(self.labels), settings.image

    def check_model(self, model: Model) -> None:
        """Raises ``HeedfulError`` for a model that does not fit the task.

        It must be a vision model with an output for every label, for images of the size that the preprocessing
        produces.
        """
        config = model.config
        if not isinstance(config, VisionConfig):
            raise HeedfulError(
                f"{self.name} needs a vision model; this model is of kind {config.kind!r}; choose another model"
            )
        check_classifier(self.name, model, self.labels, ImageHead)
        self.tokens = check_image_size(config, self.preprocessing).tokens

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Decodes each image and resizes it to the model's size."""
        check_known_labels(rows, self.labels)
        pixels = np.empty((len(rows), *self.preprocessing.shape), dtype=np.uint8)
        resized, examples = 0, []
        for row, target in zip(rows, pixels, strict=True):
            _check_single_label(row)
            (label,) = label_ids(row, self.labels)
            image = row.values["image"].pixels(self.preprocessing.channels)
            resized += image.shape[:2] != (self.preprocessing.size, self.preprocessing.size)
            target[:] = self.preprocessing.fitted(image)
            examples.append((target, label))
        note = f"{plural(resized, 'image')} resized to {shape_text(self.preprocessing.shape)} (--image.size)"
        return Encoded(examples, rows, note if resized else "")

    def lengths(self, examples: Sequence[LabelledImage]) -> np.ndarray:
        """Returns the number of patches plus the class token for each example, equal for all, as an array (N, 1)."""
        return np.full((len(examples), 1), self.tokens, dtype=np.int64)

    def collate(
        self, examples: Sequence[LabelledImage], random: np.random.Generator | None = None
    ) -> dict[str, Tensor]:
        """Returns ``pixels`` (B, C, H, W), normalised, and ``labels``: indices (B,), or weights (B, labels) with mixup.

        Training applies random shifts, mirroring, RandAugment and erasing, in this order. Mixup blends images of one
        micro-batch, so its result depends on ``accumulate``.
        """
        pixels = np.stack([image for image, _ in examples])
        labels = np.array([label for _, label in examples], dtype=np.int64)
        pixels = normalised_images(pixels, self.preprocessing, self.augmentation, random)
        if random is None or not self.augmentation.mixup:
            return _tensors(pixels, labels)
        targets = np.eye(len(self.labels), dtype=np.float32)[labels]
        return _tensors(*mixup(pixels, targets, self.augmentation.mixup, random))

    # --------------------------------------------------------------------------------------------------------- training

    def count(self, batch: Batch) -> int:
        """Returns the number of predictions in a batch, which are its images."""
        return len(batch["labels"])

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Returns the loss of a batch, Σ over images of −Σ_c ((1 − ε) y_c + ε/C) log p_c.

        ε is the label smoothing, C the number of labels, and y the one-hot label or, with mixup, a blend of two.
        """
        logits = model(batch["pixels"]).float()
        return F.cross_entropy(logits, batch["labels"], reduction="sum", label_smoothing=label_smoothing)

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    @torch.no_grad()
    def measure(
        self, model: Model, examples: Sequence[LabelledImage], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """Returns accuracy, macro F1 and Matthews correlation, and with more than five labels top-5 accuracy.

        All examples are scored; ``most`` has no effect. The details have ``by_class``, ``confusion`` and the most
        confident ``mistakes``. The option ``mirror`` averages over an image and its mirror image, as in ``predict``.
        """
        example_scores, mistakes = ClassifierScores(self.labels, len(examples)), Mistakes()

        def read(batch: Batch) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
            logits, truth = mirrored_logits(model, batch["pixels"], uses_mirror(options)), batch["labels"]
            means = {"loss": F.cross_entropy(logits, truth, reduction="none").cpu()}
            if len(self.labels) > TOP:
                means["top5_accuracy"] = 100.0 * torch.from_numpy(is_in_top_k(logits.cpu(), truth.cpu(), TOP))
            p, predicted = logits.softmax(-1).max(-1)
            return truth.cpu(), predicted.cpu(), p.cpu(), means

        for indices, (truth, predicted, p, means) in self.map_batches(
            model, examples, read, options.get("batch_tokens")
        ):
            example_scores.add(indices, *(F.one_hot(ids, len(self.labels)) for ids in (truth, predicted)), **means)
            for i in (predicted != truth).nonzero().flatten().tolist():
                index, label = int(indices[i]), self.labels[predicted[i]]
                mistakes.add(index, rows[index].values["image"].name, self.labels[truth[i]], label, float(p[i]))
        details = example_scores.details() | mistakes.details()
        return Measured(overall(example_scores), details, example_scores, example_scores.outputs())

    def logged_samples(self, model: Model, rows: Rows, measured: Measured) -> list[LoggedSample]:
        """Returns samples for the run's log, with the name of the image's file as input."""
        samples = zip(rows, super().logged_samples(model, rows, measured), strict=False)
        return [sample | {"input": short(Path(row.values["image"].name).name, LINE)} for row, sample in samples]

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """Scores a baseline: kernel ridge regression on pixels (``heedful.tasks.baselines.kernel_images``)."""
        name, predicted = kernel_images(learned(), rows, self.preprocessing.channels, self.preprocessing.size)
        scored = ClassifierScores.of(self.labels, list(map(row_labels, rows)), [(label,) for label in predicted])
        return Baseline(name, overall(scored), scored)

    def guess(self, examples: Sequence[LabelledImage], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores a baseline that predicts the most frequent training label for every image."""
        return constant_baseline(self.labels, rows, learned)

    @torch.no_grad()
    def predict(self, model: Model, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        """Returns the most likely label of each image and its probability.

        With ``top_k`` the output is a list of the ``top_k`` most likely labels (of all, if None), ``{"label",
        "score"}``, best first, and the score is that of the first. With ``mirror`` the probabilities are the mean over
        the image and its mirror image, for models trained on both (``--image.flip``). An image is a path, the bytes of
        a file, a PIL image, an array or a ``LazyImage``; the prediction has its path or name as input.
        """
        top_k = labels_to_list(options, self.labels)
        images = [LazyImage.of(value) for value in inputs]
        examples = Unlabelled(images, self.preprocessing)
        predictions: list[Prediction] = [Prediction(image.name, "", None) for image in images]

        def read(batch: Batch) -> list[list[dict[str, Any]]]:
            logits = mirrored_logits(model, batch["pixels"], uses_mirror(options))
            return top_labels(logits.softmax(-1), self.labels, top_k or 1)

        for indices, labels in self.map_batches(model, examples, read, options.get("batch_tokens")) if examples else ():
            for index, best in zip(indices, labels, strict=True):
                first = best[0]
                predictions[index] = Prediction(images[index].name, best if top_k else first["label"], first["score"])
        return predictions

    def row_line(self, row: Row) -> str:
        """Returns a row as one line for people: ``17.png (28 × 28) → boot``."""
        image = row.values["image"]
        width, height = image.size
        return arrow_joined([f"{Path(image.name).name} ({width} × {height})", *row_labels(row)])


def uses_mirror(options: Mapping[str, Any]) -> bool:
    """Returns the value of the option ``mirror``; raises ``HeedfulError`` unless it is True or False."""
    if not isinstance(mirror := options.get("mirror") or False, bool):
        raise HeedfulError(f"mirror is {mirror!r}; give True or False")
    return mirror


def mirrored_logits(model: Model, pixels: Tensor, mirror: bool) -> Tensor:
    """Returns the logits of images (B, channels, height, width), (B, C) in float32 for C labels.

    With ``mirror`` they are log ½ (p + p′), where p are the probabilities for the images and p′ those for their mirror
    images.
    """
    logits = model(pixels).float()
    if not mirror:
        return logits
    return torch.logaddexp(logits.log_softmax(-1), model(pixels.flip(-1)).float().log_softmax(-1)) - math.log(2)


def _usual_head(config: VisionConfig) -> ImageHead:
    """Returns the configuration of a model's classifier, or of the usual one for a model that has another head."""
    head = config.head if isinstance(config.head, ImageHead) else head_config(config, "image")
    assert isinstance(head, ImageHead)
    return head


def _label_names(rows: Sequence[Row]) -> list[str]:
    """Returns the training labels; raises ``HeedfulError`` for an image with several labels."""
    for row in rows:
        _check_single_label(row)
    return training_labels(rows)


def _check_single_label(row: Row) -> None:
    labels = row.values["label"]
    if not isinstance(labels, str):
        raise HeedfulError(f"{row.file}:{row.line}: the image has {len(labels)} labels; give it one label")


def _tensors(pixels: np.ndarray, labels: np.ndarray) -> dict[str, Tensor]:
    return {"pixels": torch.from_numpy(pixels), "labels": torch.from_numpy(labels)}
