"""Image classification on folders that others wrote: their pixels, their logits, tuned and opened by them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import heedful
from heedful.config import ImageHead, VisionConfig
from heedful.data import Row, Rows
from heedful.data.lazy_image import LazyImage
from heedful.errors import HeedfulError
from heedful.pretrained import load
from heedful.pretrained.preprocessing import read_preprocessing
from heedful.settings import ImageSettings, RunSettings, TrainingSettings
from heedful.tasks.image_classification import ImageClassification
from heedful.training.run import train
from tolerances import approx

transformers = pytest.importorskip("transformers")

NAMES = {0: "cat", 1: "dog", 2: "fish", 3: "owl"}
SHAPE = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40, "patch_size": 8}
PROCESSORS = {
    "ViT": {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}, "do_convert_rgb": True},
    "DeiT": {
        "image_processor_type": "DeiTImageProcessor",
        "size": {"shortest_edge": 38},
        "crop_size": {"height": 32, "width": 32},
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
        "do_convert_rgb": True,
    },
}
CLASSES = ["ViTForImageClassification", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"]


def published(name: str, folder: Path, **config: Any) -> Any:
    """A folder as its own library writes it."""
    family = name.partition("For")[0].removesuffix("Model")
    made = getattr(transformers, f"{family}Config")(
        image_size=32, initializer_range=0.2, id2label=NAMES, **SHAPE | config
    )
    model = getattr(transformers, name)(made).eval()
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSORS[family]))
    return model


def pictures(folder: Path) -> list[Path]:
    """Photographs of several shapes and kinds."""
    random = np.random.default_rng(0)
    paths = []
    for i, (width, height, mode) in enumerate([(61, 40, "RGB"), (33, 70, "L"), (32, 32, "RGBA"), (90, 91, "P")]):
        slopes = np.linspace(0, 200, width)[None, :, None] * random.random(4) + random.integers(
            0, 56, (height, width, 4)
        )
        image = Image.fromarray(slopes.astype(np.uint8), "RGBA")
        paths.append(folder / f"{i}.png")
        (image if mode == "RGBA" else image.convert("RGB").convert(mode)).save(paths[-1])
    return paths


def logits(folder: Path, paths: list[Path]) -> torch.Tensor:
    """By their own processor and their own model."""
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    model = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    pixels = processor([Image.open(path) for path in paths], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        return model(pixel_values=pixels).logits


@pytest.mark.parametrize("name", CLASSES)
def test_answers_are_theirs(name: str, tmp_path: Path) -> None:
    model = published(name, tmp_path)
    paths = pictures(tmp_path)
    classify = heedful.pipeline("image-classification", tmp_path)
    assert classify.task.labels == list(NAMES.values())
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    pixels = processor([Image.open(path) for path in paths], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        expected = model(pixel_values=pixels).logits.softmax(1)
    assert expected.std(0).max() > 0.01  # the pictures tell
    for path, answer, p in zip(paths, classify([str(path) for path in paths]), expected, strict=True):
        assert answer["input"] == str(path)
        assert answer["output"] == NAMES[int(p.argmax())]
        assert answer["score"] == approx(float(p.max()))


@pytest.mark.parametrize("name", ["ViTModel", "DeiTModel"])
def test_a_model_without_a_classifier_is_refused(name: str, tmp_path: Path) -> None:
    published(name, tmp_path)
    with pytest.raises(
        HeedfulError, match=r"this vision model has none.*heedful train image-classification --from MODEL"
    ):
        heedful.pipeline("image-classification", tmp_path)


def written(folder: Path) -> Path:
    """Noise of one of two colours, a folder a label."""
    random = np.random.default_rng(0)
    for label, channel in (("red", 0), ("blue", 2)):
        (folder / "set" / label).mkdir(parents=True)
        for i in range(16):
            image = random.integers(0, 120, (24, 36, 3))
            image[..., channel] += 120
            Image.fromarray(image.astype(np.uint8)).save(folder / "set" / label / f"{i}.png")
    return folder / "set"


def tuned(folder: Path, data: Path, out: Path, said: list[str], **image: Any) -> dict[str, Any]:
    asked = RunSettings(
        task="image-classification",
        train=(str(data),),
        valid=(str(data),),
        out=str(out),
        start_from=str(folder),
        max_steps=24,
        image=ImageSettings(**image),
        training=TrainingSettings(lr=2e-3, batch_size=16),
    )
    return train(asked, say=said.append, quiet=True)


@pytest.mark.parametrize("name", ["ViTModel", "DeiTModel", *CLASSES])
def test_tuned_to_other_classes_and_opened_by_its_own_library(name: str, tmp_path: Path) -> None:
    published(name, tmp_path / "from")
    data, out, said = written(tmp_path), tmp_path / "out", []
    result = tuned(tmp_path / "from", data, out, said)
    assert result["metrics"]["accuracy"] > 95
    assert any("head.output.0.weight" in line and "fresh weights" in line for line in said)
    opened = load(out)
    assert opened.folder.layout == json.loads((tmp_path / "from" / "config.json").read_text())["model_type"]
    assert isinstance(opened.config.head, ImageHead)
    assert opened.config.head.tokens == ("class" if name == "DeiTForImageClassification" else "all")
    paths = [*pictures(tmp_path), data / "red" / "3.png"]
    for p, answer in zip(logits(out, paths).softmax(1), heedful.pipeline(None, out)(paths), strict=True):
        assert answer["output"] == ["blue", "red"][int(p.argmax())]
        assert answer["score"] == approx(float(p.max()))


@pytest.mark.parametrize("name", CLASSES)
def test_tuned_at_another_size(name: str, tmp_path: Path) -> None:
    """Positions are spread over the larger picture, and as large a share of it is cut off as before."""
    published(name, tmp_path / "from")
    data, out, said = written(tmp_path), tmp_path / "out", []
    result = tuned(tmp_path / "from", data, out, said, size=48)
    assert result["metrics"]["accuracy"] > 95
    opened, how = load(out), read_preprocessing(out)
    assert isinstance(opened.config, VisionConfig)
    assert opened.config.patches.image_size == how.shape[1:] == (48, 48)
    assert how.size == (48 if name.startswith("ViT") else 57)
    paths = pictures(tmp_path)
    for p, answer in zip(logits(out, paths).softmax(1), heedful.pipeline(None, out)(paths), strict=True):
        assert answer["score"] == approx(float(p.max()))


def test_a_size_that_the_patches_do_not_divide(tmp_path: Path) -> None:
    published(CLASSES[0], tmp_path)
    asked = RunSettings(
        task="image-classification", train=("-",), out="-", start_from=str(tmp_path), image=ImageSettings(size=50)
    )
    blank = LazyImage.of(np.zeros((8, 8, 3), np.uint8))
    two = Rows(Row({"image": blank, "label": label}, "f", 1) for label in "ab")
    with pytest.raises(HeedfulError, match=r"50 is not a multiple of the patch size 8") as caught:
        ImageClassification.for_fine_tuning(tmp_path, two, asked)
    assert "\n" not in str(caught.value)
