"""Image classification: a label for an image, by a Vision Transformer (Dosovitskiy et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.config import ImageHead, LearnedPosition, ModelConfig, VisionConfig
from heedful.data import Kind, LazyImage, Row, Rows
from heedful.data.image_arrays import channel_moments
from heedful.data.image_transforms import erase, flip, mixup, pad_crop, rand_augment
from heedful.data.split import Same, content_digest
from heedful.errors import HeedfulError, plural
from heedful.heads import head_of
from heedful.metrics.classification import Labelled, Mistakes, among_top
from heedful.metrics.example_scores import overall
from heedful.models import Model
from heedful.pretrained import load
from heedful.pretrained.configuration import config_of, read_configs
from heedful.pretrained.folder import find
from heedful.pretrained.preprocessing import Preprocessing, read_preprocessing, write_preprocessing
from heedful.settings import ImageSettings, ModelSettings, RunSettings
from heedful.stack import initialise
from heedful.tasks import defaults
from heedful.tasks.baselines import linear_images, svm
from heedful.tasks.labels import (
    checked_top_k,
    label_ids,
    most_frequent_baseline,
    row_labels,
    stored_label_names,
    top_labels,
    training_labels,
    with_learnable_labels,
)
from heedful.tasks.model_setup import check_classifier, checked_folder, preset_of, with_settings
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

SMALLEST = "vit-micro"
SMALL = 64  # pixels: images of one size up to it stay as they are
LOOKED_AT = 200  # images that tell sizes and channels
MEASURED = 1000  # images that tell mean and deviation
QUICK = 2_000  # images that the simple method of a verdict learns from
TOP = 5
LabelledImage = tuple[np.ndarray, int]  # uint8 (C, H, W), and the label's number


class Unlabelled(Sequence[LabelledImage]):
    """Pictures as examples, each decoded when it is asked for, so that no more of them are held than a batch has."""

    def __init__(self, pictures: Sequence[LazyImage], preprocessing: Preprocessing) -> None:
        self.pictures, self.preprocessing = pictures, preprocessing

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, place: Any) -> Any:
        how = self.preprocessing
        return how.fitted(self.pictures[place].pixels(how.channels)), 0


class ImageClassification(Task):
    """A vision model whose head says which of ``labels`` an image shows.

    Images are decoded once and kept as bytes, N · C · H · W of them. What training changes (shifts, mirror images,
    colours and shapes, rectangles of noise, mixup) is drawn anew each time an image is learned from.

    Args:
        labels: the names of the classes, in the order of the model's logits.
        preprocessing: how an image becomes what the model sees.
    """

    name: ClassVar[str] = "image-classification"
    columns: Mapping[str, Kind] = MappingProxyType({"image": "image", "label": "label"})
    unit = "images"
    main_metric: str = "accuracy"
    used_settings: ClassVar[frozenset[str]] = frozenset({"image", "model.patch_size", "model.class_token"})
    options: ClassVar[frozenset[str]] = frozenset({"batch_tokens", "top_k", "mirror"})
    display_options: ClassVar[frozenset[str]] = frozenset({"top_k"})

    def __init__(self, labels: Sequence[str], preprocessing: Preprocessing) -> None:
        self.labels, self.preprocessing = list(labels), preprocessing
        self.changes = ImageSettings()  # of images in training: told by ``before_training``
        self.tokens = 1  # of an image: told by the model

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def split_rows(cls, rows: Rows, valid: float | None, seed: int, same: Same = content_digest) -> tuple[Rows, Rows]:
        """As every task does, but an image whose label no training row would have goes to training."""
        return with_learnable_labels(*super().split_rows(rows, valid, seed, same), by="image", same=same)

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], asked: RunSettings) -> RunSettings:
        """By the images and their number.

        Images of one size up to 64 pixels stay as they are; others become 64 pixels wide and high, or 224 from 200,000
        images on: fewer do not teach a model of so many patches anything from nothing (but do with ``--from``). A
        preset that is asked for brings its own size and patch; otherwise small images are cut into about 4 × 4 patches,
        the smallest into 2 × 2: in the same time coarse patches learn more than fine ones. Nothing is mirrored unless
        asked, since the mirror image of a digit, a letter or an arrow is something else; and small images are not
        shifted, since to a patch of few pixels one pixel is much.
        """
        if asked.start_from:
            folder = checked_folder(cls.name, find(asked.start_from), images=True)
            side = asked.image.size or read_preprocessing(folder).shape[1]
            return defaults.vision(len(rows), asked, side, config_of(folder))
        size = defaults.size_for(len(rows), defaults.VISION)
        preset = asked.preset or size.preset
        config = preset_of(preset, VisionConfig, cls.name)
        own = config.patches.image_size[0] if asked.preset else side_of(rows) or size.side
        side = asked.image.size or own
        patch = config.patches.patch_size if asked.preset else patch_of(side) or config.patches.patch_size
        made = defaults.vision(len(rows), asked, side, config)
        return replace(
            made,
            preset=preset,
            image=replace(made.image, size=side, channels=channels_of(rows)),
            model=ModelSettings(patch_size=patch),
        )

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """The label names in alphabetical order; mean and deviation of each channel, over at most 1,000 images."""
        labels, side, channels = _names(rows), settings.image.size or SMALL, settings.image.channels or 3
        plain = Preprocessing(size=side, mean=(0.0,) * channels, std=(1.0,) * channels)
        taken = rows[:: -(-len(rows) // MEASURED)]
        mean, std = channel_moments(plain.fitted(row.values["image"].pixels(channels)) for row in taken)
        mean, std = mean.round(6), std.round(6)
        std[std < 1e-3] = 1.0  # one and the same value everywhere
        return cls(labels, replace(plain, mean=tuple(mean.tolist()), std=tuple(std.tolist())))

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """The folder's model and preprocessing, for images of another size where that is asked for; a fresh linear
        head where the data has labels that the model does not know.
        """
        folder = checked_folder(cls.name, find(folder), images=True)
        preprocessing, names, asked = read_preprocessing(folder), _names(rows), settings.image
        if asked.channels not in (None, preprocessing.channels):
            takes = f"the model in {folder} takes {preprocessing.channels}"
            raise HeedfulError(f"--image.channels is {asked.channels}, but {takes}; leave it out")
        side = preprocessing.shape[1]
        if asked.size in (None, side):
            model = load(folder, dtype="float32")
        else:
            preprocessing, model = preprocessing.sized(asked.size), load(folder, dtype="float32", image_size=asked.size)
        config, head = model.config, model.config.head
        if not isinstance(config, VisionConfig):
            raise HeedfulError(f"{cls.name} needs a vision model; {folder} is a {config.kind}")
        own = stored_label_names(read_configs(folder)[0]) if isinstance(head, ImageHead) else []
        known = set(names) <= set(own)
        if not known:
            linear = replace(head if isinstance(head, ImageHead) else ImageHead(), labels=len(names), hidden=0)
            model.config = replace(config, head=linear)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(settings.seed or 0)
                model.head = head_of(linear, model.main.dim, prefix_tokens=config.patches.prefix_tokens)
                initialise(model.head, model.main)
            model.fresh = [f"head.{name}" for name in model.head.state_dict()]
        task = cls(own if known else names, preprocessing)
        task.check_model(model)
        return task, model

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The labels in ``config.json`` and what ``preprocessor_config.json`` says."""
        folder = checked_folder(cls.name, find(folder), images=True)
        return cls(stored_label_names(read_configs(folder)[0]), read_preprocessing(folder))

    def save(self, folder: str | Path) -> None:
        """Write ``preprocessor_config.json``; the labels are the model's."""
        write_preprocessing(self.preprocessing, folder)

    def config(self, settings: RunSettings) -> ModelConfig:
        """The preset for images of this size, cut into patches as the settings say, with an output for each label."""
        config = preset_of(settings.preset or SMALLEST, VisionConfig, self.name)
        channels, height, width = self.preprocessing.shape
        patch, gathers = settings.model.patch_size or config.patches.patch_size, settings.model.class_token
        prefix = "none" if gathers is False else config.patches.prefix
        try:
            patches = replace(
                config.patches, image_size=(height, width), patch_size=patch, channels=channels, prefix=prefix
            )
        except HeedfulError as error:
            raise HeedfulError(f"{error}; change --image.size or --model.patch-size") from None
        stack = with_settings(config.encoder, settings.model, None)
        if isinstance(stack.position, LearnedPosition):
            stack = replace(stack, position=replace(stack.position, length=patches.tokens))
        hidden = config.head.hidden if isinstance(config.head, ImageHead) else 0
        head = ImageHead(labels=len(self.labels), hidden=hidden)
        return replace(config, patches=patches, encoder=stack, head=head)

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Name the model's classes, and take how images are changed in training."""
        self.check_model(model)
        model.labels, self.changes = list(self.labels), settings.image

    def check_model(self, model: Model) -> None:
        """A vision model that classifies, with an output for every label, for images as the folder prepares them."""
        config = model.config
        if not isinstance(config, VisionConfig):
            raise HeedfulError(f"{self.name} needs a vision model; this one is of kind {config.kind!r}")
        check_classifier(self.name, model, self.labels, ImageHead)
        takes, made = (config.patches.channels, *config.patches.image_size), self.preprocessing.shape
        if takes != made:
            raise HeedfulError(
                f"the model takes images of {_by(takes)}, its preprocessor_config.json makes {_by(made)}"
            )
        self.tokens = config.patches.tokens

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Each image decoded once, and brought to the model's size where it has another."""
        pixels = np.empty((len(rows), *self.preprocessing.shape), dtype=np.uint8)
        resized, examples = 0, []
        for row, kept in zip(rows, pixels, strict=True):
            _one(row)
            (number,) = label_ids(row, self.labels)
            image = row.values["image"].pixels(self.preprocessing.channels)
            resized += image.shape[:2] != (self.preprocessing.size, self.preprocessing.size)
            kept[:] = self.preprocessing.fitted(image)
            examples.append((kept, number))
        to = f"{plural(resized, 'image')} resized to {_by(self.preprocessing.shape)} (--image.size)"
        return Encoded(examples, rows, to if resized else "")

    def lengths(self, examples: Sequence[LabelledImage]) -> np.ndarray:
        """(N, 1): patches and class token, as many of each image."""
        return np.full((len(examples), 1), self.tokens, dtype=np.int64)

    def collate(
        self, examples: Sequence[LabelledImage], random: np.random.Generator | None = None
    ) -> dict[str, Tensor]:
        """``pixels`` (B, C, H, W), normalised, and ``labels``: their numbers (B,), or (B, labels) where mixup blends.

        In training images are shifted, mirrored, changed and erased in part, in this order, each anew. Mixup blends the
        images of one batch, so it is not the same under ``accumulate``.
        """
        pixels = np.stack([image for image, _ in examples])
        labels = np.array([label for _, label in examples], dtype=np.int64)
        how, changes = self.preprocessing, self.changes
        if random is None:
            return _tensors(how.normalised(pixels), labels)
        pixels = pad_crop(pixels, changes.crop_padding or 0, random)
        if changes.flip:
            pixels = flip(pixels, random)
        pixels = rand_augment(pixels, changes.rand_augment or 0, random)
        pixels = how.normalised(erase(pixels, changes.random_erasing or 0.0, random))
        if not changes.mixup:
            return _tensors(pixels, labels)
        targets = np.eye(len(self.labels), dtype=np.float32)[labels]
        return _tensors(*mixup(pixels, targets, changes.mixup, random))

    # --------------------------------------------------------------------------------------------------------- training

    def count(self, batch: Batch) -> int:
        """Images."""
        return len(batch["labels"])

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Σ over images of −Σ_c ((1 − ε) y_c + ε/C) log p_c, y the label or the blend of two."""
        logits = model(batch["pixels"]).float()
        return F.cross_entropy(logits, batch["labels"], reduction="sum", label_smoothing=label_smoothing)

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    @torch.no_grad()
    def measure(
        self, model: Model, examples: Sequence[LabelledImage], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """Accuracy, macro F1, Matthews correlation, and of more than five labels the top-5 accuracy, always of all
        examples.

        Details: ``by_class``, ``confusion`` and the surest ``mistakes``. With ``mirror`` as ``predict`` has it.
        """
        each, mistakes = Labelled(self.labels, len(examples)), Mistakes()

        def read(batch: Batch) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
            logits, truth = said_of(model, batch["pixels"], mirrored(options)), batch["labels"]
            means = {"loss": F.cross_entropy(logits, truth, reduction="none").cpu()}
            if len(self.labels) > TOP:
                means["top5_accuracy"] = 100.0 * torch.from_numpy(among_top(logits.cpu(), truth.cpu(), TOP))
            scores, said = logits.softmax(-1).max(-1)
            return truth.cpu(), said.cpu(), scores.cpu(), means

        for places, (truth, said, scores, means) in self.map_batches(
            model, examples, read, options.get("batch_tokens")
        ):
            each.add(places, *(F.one_hot(ids, len(self.labels)) for ids in (truth, said)), **means)
            for i in (said != truth).nonzero().flatten().tolist():
                place, answer = int(places[i]), self.labels[said[i]]
                mistakes.add(place, rows[place].values["image"].name, self.labels[truth[i]], answer, float(scores[i]))
        return Measured(overall(each), each.details() | mistakes.details(), each, each.outputs())

    def logged_samples(self, model: Model, rows: Rows, measured: Measured) -> list[LoggedSample]:
        """As all; of a picture the name of its file."""
        told = zip(rows, super().logged_samples(model, rows, measured), strict=False)
        return [one | {"input": short(Path(row.values["image"].name).name, LINE)} for row, one in told]

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """Logistic regression on the pixels: ``heedful.tasks.baselines.linear_images``."""
        name, said = linear_images(learned(), rows, self.preprocessing.channels, self.preprocessing.size)
        truth = [row_labels(row) for row in rows]
        scored = Labelled.of(self.labels, truth, [(label,) for label in said])
        return Baseline(name, overall(scored), scored)

    def quick_baseline(self, examples: Sequence[LabelledImage], rows: Rows, learned: Rows) -> Baseline | None:
        """As ``baseline``, with a support vector machine and of at most 2,000 images, which is quicker."""
        some = Rows(learned[:: -(-len(learned) // QUICK)])
        how = self.preprocessing
        name, said = linear_images(some, rows, how.channels, how.size, partial(svm, strength=0.01))
        scored = Labelled.of(self.labels, list(map(row_labels, rows)), [(label,) for label in said])
        return Baseline(name, overall(scored), scored)

    def guess(self, examples: Sequence[LabelledImage], rows: Rows, learned: Rows) -> Baseline | None:
        """The most frequent label of training."""
        return most_frequent_baseline(self.labels, rows, learned)

    @torch.no_grad()
    def predict(self, model: Model, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        """The likeliest label of each image and its probability; with ``top_k`` a list of so many ``{"label",
        "score"}``, the likeliest first, of all labels where there are no more, and the score of the first. With
        ``mirror`` the probabilities are the mean of those of the image and of its mirror image, left to right: for a
        model that learned from both (``--image.flip``).

        An image is a path, the bytes of a file, a PIL image, an array or a ``LazyImage``. One without a path is called
        by its name in the prediction.
        """
        top_k = checked_top_k(options.get("top_k"))
        pictures = [LazyImage.of(one) for one in inputs]
        examples = Unlabelled(pictures, self.preprocessing)
        answers: list[Prediction] = [Prediction(picture.name, "", None) for picture in pictures]

        def read(batch: Batch) -> list[list[dict[str, Any]]]:
            logits = said_of(model, batch["pixels"], mirrored(options))
            return top_labels(logits.softmax(-1), self.labels, top_k or 1)

        for places, found in self.map_batches(model, examples, read, options.get("batch_tokens")) if examples else ():
            for place, best in zip(places, found, strict=True):
                first = best[0]
                answers[place] = Prediction(pictures[place].name, best if top_k else first["label"], first["score"])
        return answers

    def row_line(self, row: Row) -> str:
        """``17.png (28 × 28) → boot``."""
        picture = row.values["image"]
        width, height = picture.size
        return arrow_joined([f"{Path(picture.name).name} ({width} × {height})", *row_labels(row)])


def mirrored(options: Mapping[str, Any]) -> bool:
    """Returns True if mirror images are asked too."""
    if not isinstance(asked := options.get("mirror") or False, bool):
        raise HeedfulError(f"mirror is {asked!r}; give True or False")
    return asked


def said_of(model: Model, pixels: Tensor, mirror: bool) -> Tensor:
    """Logits (B, C) of images (B, channels, height, width) in float32; with ``mirror`` log ½ (p + p′), p′ of the image
    turned left to right.
    """
    logits = model(pixels).float()
    if not mirror:
        return logits
    return torch.logaddexp(logits.log_softmax(-1), model(pixels.flip(-1)).float().log_softmax(-1)) - math.log(2)


def _names(rows: Sequence[Row]) -> list[str]:
    """The labels of training; several for one image are an error."""
    for row in rows:
        _one(row)
    return training_labels(rows)


def _one(row: Row) -> None:
    labels = row.values["label"]
    if not isinstance(labels, str):
        raise HeedfulError(f"{len(labels)} labels of one image in {row.file}:{row.line}; images have one label here")


def _tensors(pixels: np.ndarray, labels: np.ndarray) -> dict[str, Tensor]:
    return {"pixels": torch.from_numpy(pixels), "labels": torch.from_numpy(labels)}


def _by(shape: tuple[int, ...]) -> str:
    channels, height, width = shape
    return f"{height} × {width}, {'grey' if channels == 1 else 'colour'}"


def side_of(rows: Sequence[Row]) -> int | None:
    """The longer side of images that are small and of one size; where no patch divides it, the next multiple of 4."""
    sizes = {row.values["image"].size for row in rows[:LOOKED_AT]}
    side = max(max(size) for size in sizes)
    if len(sizes) > 1 or side > SMALL:
        return None
    return side if patch_of(side) else -(-side // 4) * 4


def channels_of(rows: Sequence[Row]) -> Literal[1, 3]:
    """Grey where all are grey."""
    return 3 if any(row.values["image"].pixels().shape[2] == 3 for row in rows[:LOOKED_AT]) else 1


def patch_of(side: int) -> int | None:
    """The patch that cuts a side evenly into about four, a short one into two, a long one into patches of 8 or 16."""
    wanted = max(2.0, min(4.0, side / 4), min(8.0, side / 8), side / 16)
    even = [patch for patch in range(1, side) if side % patch == 0 and 2 <= side // patch <= 2 * wanted]
    return min(even, key=lambda patch: abs(math.log(side / patch / wanted)), default=None)
