"""What folders say of their images: written so that transformers reads it, read as it writes it, refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from heedful.checkpoints.preprocessing import Preprocessing, read_preprocessing, write_preprocessing
from heedful.errors import HeedfulError

GREY = Preprocessing(size=28, mean=(0.28,), std=(0.35,))
CUT = Preprocessing(size=256, crop=224, resample="bicubic", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
# what is published with google/vit-base-patch16-224 and with facebook/deit-base-patch16-224
VIT = {
    "do_normalize": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "size": 224,
}
DEIT = {
    "crop_size": 224,
    "do_center_crop": True,
    "do_normalize": True,
    "do_resize": True,
    "feature_extractor_type": "ViTFeatureExtractor",
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "resample": 3,
    "size": 256,
}


@pytest.mark.parametrize("how", [GREY, CUT], ids=["grey", "cut"])
def test_there_and_back(how: Preprocessing, tmp_path: Path) -> None:
    write_preprocessing(how, tmp_path / "new")
    assert read_preprocessing(tmp_path / "new") == how
    assert json.loads((tmp_path / "new" / "preprocessor_config.json").read_text())["do_normalize"] is True


@pytest.mark.parametrize("how", [GREY, CUT], ids=["grey", "cut"])
def test_transformers_reads_it_and_we_what_it_writes(how: Preprocessing, tmp_path: Path) -> None:
    from transformers import AutoImageProcessor

    write_preprocessing(how, tmp_path)
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    image = Image.new("L" if how is GREY else "RGB", (40, 30))
    assert processor(image, return_tensors="np")["pixel_values"].shape == (1, *how.shape)
    processor.save_pretrained(tmp_path / "theirs")
    assert read_preprocessing(tmp_path / "theirs") == how


def test_published_files() -> None:
    assert Preprocessing.from_dict(VIT) == Preprocessing(size=224, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert Preprocessing.from_dict(DEIT) == CUT
    assert CUT.shape == (3, 224, 224)
    assert GREY.shape == (1, 28, 28)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"do_rescale": False}, "do_rescale is False"),
        ({"do_pad": True}, "do_pad is True"),
        ({"rescale_factor": 1 / 127.5}, r"rescale_factor is 0\.0078"),
        ({"rescale_factor": "1/255"}, "rescale_factor is '1/255'"),
        ({"resample": 5}, "resample is 5"),
        ({"size": {"shortest_edge": 224}}, "size is .*only squares"),
        ({"size": {"height": 224, "width": 192}}, "size is .*only squares"),
        ({"size": 0}, "size is 0"),
        ({"size": "224"}, "size is '224'"),
        ({"do_center_crop": True, "crop_size": 256, "size": 224}, "crop_size is 256, more than the size 224"),
        ({"image_mean": [0.5, 0.5]}, "image_mean is .*1 or 3 channels"),
        ({"image_mean": 0.5}, "image_mean is 0.5"),
        ({"image_mean": [0.5], "image_std": [0.5] * 3}, "one each"),
        ({"image_std": [0.5, 0.0, 0.5]}, r"image_std \[0\.5, 0\.0, 0\.5\]"),
        ({"image_std": [0.5, "x", 0.5]}, "image_std is "),
    ],
)
def test_what_we_do_not_do_is_refused(said: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    with pytest.raises(HeedfulError, match=message) as caught:
        read_preprocessing(tmp_path)
    assert "preprocessor_config.json: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match=r"has no preprocessor_config\.json"):
        read_preprocessing(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(HeedfulError, match="broken JSON"):
        read_preprocessing(tmp_path)
