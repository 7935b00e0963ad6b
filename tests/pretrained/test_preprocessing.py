"""Preprocessing of images in folders: written for transformers, read as it writes it, refused by name."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from heedful.data import LazyImage
from heedful.errors import HeedfulError
from heedful.pretrained.preprocessing import PROCESSORS, Preprocessing, read_preprocessing, write_preprocessing

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
GREY = Preprocessing(size=28, mean=(0.28,), std=(0.35,))
CUT = Preprocessing(size=256, crop=224, resample="bicubic", mean=MEAN, std=STD)
SHORTER = Preprocessing(size=36, sides="shorter", crop=32, resample="lanczos", factor=1 / 127.5, mean=MEAN, std=STD)
KINDS = {"grey": GREY, "cut": CUT, "shorter": SHORTER}
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


@pytest.mark.parametrize("how", KINDS.values(), ids=KINDS)
def test_there_and_back(how: Preprocessing, tmp_path: Path) -> None:
    write_preprocessing(how, tmp_path / "new")
    assert read_preprocessing(tmp_path / "new") == how
    assert json.loads((tmp_path / "new" / "preprocessor_config.json").read_text())["do_normalize"] is True


@pytest.mark.parametrize("how", KINDS.values(), ids=KINDS)
def test_transformers_reads_it_and_we_what_it_writes(how: Preprocessing, tmp_path: Path) -> None:
    from transformers import AutoImageProcessor

    write_preprocessing(how, tmp_path)
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    image = Image.new("L" if how is GREY else "RGB", (40, 30))
    assert processor(image, return_tensors="np")["pixel_values"].shape == (1, *how.shape)
    processor.save_pretrained(tmp_path / "theirs")
    assert read_preprocessing(tmp_path / "theirs") == how


@pytest.mark.parametrize("said", [VIT, DEIT, {"size": 32, "do_center_crop": False, "crop_size": {"height": 8}}])
def test_a_folder_that_is_read_and_written_keeps_its_keys(said: dict[str, Any], tmp_path: Path) -> None:
    unknown = {"my_key": [1, {"two": None}], "processor_class": "ViTProcessor", "do_pad": False, "size_divisor": None}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said | unknown))
    how = read_preprocessing(tmp_path)
    write_preprocessing(how, tmp_path / "out")
    back = json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())
    rewritten = ("feature_extractor_type", "size", "crop_size") if how.crop else ("size",)
    for key, value in (said | unknown).items():
        if key not in rewritten:
            assert back[key] == value, key
    assert read_preprocessing(tmp_path / "out") == how


def test_keys_that_say_another_preprocessing_stay_behind() -> None:
    """Those of a middle that is cut out, where it no longer is."""
    how = replace(Preprocessing.from_dict(DEIT | {"my_key": 1}), crop=None)
    assert "my_key" not in how.to_dict()
    assert Preprocessing.from_dict(how.to_dict()) == how


def test_published_files() -> None:
    assert Preprocessing.from_dict(VIT) == Preprocessing(size=224, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert Preprocessing.from_dict(DEIT) == CUT
    assert CUT.shape == (3, 224, 224)
    assert GREY.shape == (1, 28, 28)


# ------------------------------------------------------------------------------------- the pixels, by their processors


def photograph(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Slopes, a disc and noise: neither smooth everywhere nor noise alone."""
    random = np.random.default_rng(width * height)
    y, x = np.mgrid[:height, :width]
    disc = ((x - width / 3) ** 2 + (y - height / 2) ** 2 < (min(width, height) / 3) ** 2) * 90
    planes = [x * 200 / width, y * 200 / height, (x + y) * 120 / (width + height), 255 - x * 255 / width]
    noise = random.normal(0, 25, (height, width, 4))
    pixels = np.clip(np.stack(planes, 2) + disc[..., None] + noise, 0, 255).astype(np.uint8)
    image = Image.fromarray(pixels, "RGBA")
    return image if mode == "RGBA" else image.convert("RGB").convert(mode)


def theirs(said: dict[str, Any], image: Image.Image, folder: Path) -> np.ndarray:
    """Pixels by transformers, with Pillow, since torchvision's tensors round otherwise."""
    from transformers import AutoImageProcessor

    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    return processor(image, do_convert_rgb=True, return_tensors="np")["pixel_values"]


def ours(image: Image.Image, folder: Path, form: str = "PNG", **options: Any) -> np.ndarray:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    how = read_preprocessing(folder)
    return how.normalised(how.fitted(LazyImage.of(stream.getvalue()).pixels(how.channels))[None])


@pytest.mark.parametrize("shape", [(61, 47), (47, 61), (301, 199), (40, 200), (32, 32), (31, 33), (9, 12)])
@pytest.mark.parametrize("resample", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "said",
    [
        {"image_processor_type": "ViTImageProcessor", "size": 32},
        {"image_processor_type": "ViTImageProcessorFast", "size": {"height": 32, "width": 32}, "do_normalize": False},
        {"image_processor_type": "ViTImageProcessor", "size": [33, 33], "image_mean": MEAN, "image_std": STD},
        {"image_processor_type": "DeiTImageProcessor", "size": 40, "crop_size": 33, "rescale_factor": 1 / 127.5},
        {"image_processor_type": "DeiTImageProcessor", "size": {"shortest_edge": 36}, "crop_size": 32},
        {"image_processor_type": "BitImageProcessor", "size": 37, "crop_size": {"height": 32, "width": 32}},
        {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}, "crop_size": 32},
        {"feature_extractor_type": "DeiTFeatureExtractor", "size": 36, "crop_size": 35, "do_rescale": False},
    ],
    ids=["ViT", "pair", "list", "DeiT", "shortest edge", "BiT", "CLIP", "older"],
)
def test_pixels_are_theirs_to_the_last_bit(
    said: dict[str, Any], resample: int, shape: tuple[int, int], tmp_path: Path
) -> None:
    image = photograph(*shape)
    expected = theirs({**said, "resample": resample}, image, tmp_path)
    assert expected.std() > 0.1
    assert np.array_equal(ours(image, tmp_path), expected)


@pytest.mark.parametrize(
    ("mode", "form"),
    [("L", "PNG"), ("RGBA", "PNG"), ("P", "PNG"), ("P", "GIF"), ("LA", "PNG"), ("1", "PNG"), ("CMYK", "JPEG")],
)
def test_every_mode_of_an_image(mode: str, form: str, tmp_path: Path) -> None:
    """Grey, palettes, transparency and ink: after the same decoding, the same pixels."""
    image = photograph(70, 50, mode)
    stream = io.BytesIO()
    image.save(stream, form)
    said = {"image_processor_type": "DeiTImageProcessor", "size": 40, "crop_size": 32, "image_mean": MEAN}
    with Image.open(stream) as opened:
        expected = theirs(said, opened, tmp_path)
    assert np.array_equal(ours(image, tmp_path, form), expected)


def test_sixteen_bits_are_not_burnt_out(tmp_path: Path) -> None:
    """Pillow makes white of whatever is above 255; here the upper 8 bits remain, as of a copy in 8 bits."""
    eight = photograph(50, 40, "L")
    sixteen = Image.fromarray(np.asarray(eight).astype(np.uint16) * 257)
    said = {"image_processor_type": "ViTImageProcessor", "size": 32}
    expected = theirs(said, eight, tmp_path)
    assert np.array_equal(ours(sixteen, tmp_path), expected)


def test_a_turned_photograph_is_seen_upright(tmp_path: Path) -> None:
    """As transformers' pipelines turn it before their processors see it."""
    from transformers.image_utils import load_image

    exif = Image.Exif()
    exif[0x0112] = 6
    photograph(64, 48).save(tmp_path / "turned.png", exif=exif)
    said = {"image_processor_type": "ViTImageProcessor", "size": 32}
    expected = theirs(said, load_image(str(tmp_path / "turned.png")), tmp_path)
    how = read_preprocessing(tmp_path)
    pixels = LazyImage.of(tmp_path / "turned.png").pixels(3)
    assert pixels.shape == (64, 48, 3)
    assert np.array_equal(how.normalised(how.fitted(pixels)[None]), expected)


@pytest.mark.parametrize("name", PROCESSORS)
def test_missing_keys_have_the_processors_defaults(name: str, tmp_path: Path) -> None:
    image = photograph(90, 70)
    expected = theirs({"image_processor_type": name}, image, tmp_path)
    assert expected.shape == (1, 3, 224, 224)
    assert np.array_equal(ours(image, tmp_path), expected)


@pytest.mark.parametrize("model", ["vit", "deit", "ijepa"])
def test_where_no_processor_is_named_the_model_tells(model: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model}))
    image = photograph(300, 200)
    expected = theirs({"image_mean": MEAN}, image, tmp_path)
    assert np.array_equal(ours(image, tmp_path), expected)


def test_another_size_keeps_the_share_that_is_cut_off() -> None:
    assert GREY.sized(32) == Preprocessing(size=32, mean=(0.28,), std=(0.35,))
    larger = CUT.sized(384)
    assert (larger.shape, larger.size, larger.resample) == ((3, 384, 384), 439, "bicubic")


# ------------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"do_resize": False}, "do_resize is False"),
        ({"image_processor_type": "ConvNextImageProcessor"}, "'ConvNextImageProcessor' is not supported"),
        (
            {"image_processor_type": "ViTHybridImageProcessor"},
            "'ViTHybridImageProcessor' is.*known: .*ViTImageProcessor",
        ),
        ({"do_pad": True}, "do_pad is True"),
        ({"rescale_factor": 0}, r"rescale_factor is 0; give a number above 0"),
        ({"rescale_factor": "1/255"}, "rescale_factor is '1/255'"),
        ({"resample": 5}, "resample is 5"),
        ({"size": {"shortest_edge": 224}}, "size is .*without do_center_crop; only square"),
        ({"size": {"shortest_edge": 224, "longest_edge": 512}}, "size is .*only squares"),
        ({"size": [224, 192]}, "size is .*only squares"),
        ({"do_center_crop": True}, "crop_size is None"),
        ({"size": {"height": 224, "width": 192}}, "size is .*only squares"),
        ({"size": 0}, "size is 0"),
        ({"size": "224"}, "size is '224'"),
        (
            {"do_center_crop": True, "crop_size": 256, "size": 224},
            "crop_size is 256, larger than size; give at most 224",
        ),
        ({"image_mean": [0.5, 0.5]}, "image_mean is .*1 or 3 channels"),
        ({"image_mean": 0.5}, "image_mean is 0.5"),
        ({"image_mean": [0.5], "image_std": [0.5] * 3}, "one per channel"),
        ({"image_std": [0.5, 0.0, 0.5]}, r"image_std \[0\.5, 0\.0, 0\.5\]"),
        ({"image_std": [0.5, "x", 0.5]}, "image_std is "),
    ],
)
def test_unsupported_steps_are_refused(said: dict[str, Any], message: str, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"do_normalize": "false"}, "do_normalize is 'false'; give true or false"),
        ({"do_rescale": 0}, "do_rescale is 0; give true or false"),
        ({"do_center_crop": "no"}, "do_center_crop is 'no'"),
        ({"image_mean": [1e308] * 3}, "image_mean .* give values up to"),
        ({"image_std": [1e-300] * 3}, "image_std .* give values up to"),
        ({"image_mean": [True, 0.5, 0.5]}, "image_mean is .*; give a list of numbers"),
        ({"rescale_factor": 1e30}, "rescale_factor 1e\\+30 give values up to"),
    ],
)
def test_values_that_no_image_could_have_are_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(VIT | changes))
    with pytest.raises(HeedfulError, match=said) as error:
        read_preprocessing(tmp_path)
    assert "preprocessor_config.json" in str(error.value)
