from __future__ import annotations

import base64
import io
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from PIL import Image

from heedful.errors import HeedfulError
from heedful.views import feature_maps_svg, patch_grid_svg, strip_svg
from heedful.views.patches import coloured

SVG = "{http://www.w3.org/2000/svg}"


def drawn(text):
    return ET.fromstring(text.encode("utf-8"))


def decoded(element):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(element.get("href").split(",")[1]))))


def texts(root, kind):
    return [element.text for element in root.iter(f"{SVG}text") if element.get("class") == kind]


def random_pixels(high, wide, channels=3):
    return np.random.default_rng(0).integers(0, 256, (high, wide, channels), dtype=np.uint8)


def photograph():
    """The photograph that scikit-learn ships, 224 pixels a side."""
    from sklearn.datasets import load_sample_image

    return np.asarray(Image.fromarray(load_sample_image("china.jpg")[:420, :420]).resize((224, 224)))


def pieces(root):
    """Pixels of each patch, cut out of the stored image as a browser does, in the order drawn."""
    (image,) = root.iter(f"{SVG}image")
    stored = decoded(image)
    across, down = stored.shape[1] / float(image.get("width")), stored.shape[0] / float(image.get("height"))
    for patch in root.iter(f"{SVG}svg"):
        if patch.get("class") == "patch":
            assert patch.find(f"{SVG}use").get("href") == "#" + image.get("id")
            x, y, wide, high = map(float, patch.get("viewBox").split())
            yield stored[round(y * down) : round((y + high) * down), round(x * across) : round((x + wide) * across)]


@pytest.mark.parametrize("draw", [patch_grid_svg, strip_svg])
@pytest.mark.parametrize(("high", "wide", "patch"), [(8, 8, 2), (28, 28, 4), (48, 32, 16), (6, 3, 3)])
def test_the_patches_are_those_of_the_model_in_its_order(draw, high, wide, patch):
    pixels = random_pixels(high, wide)
    found = np.stack(list(pieces(drawn(draw(pixels, patch, "t")))))
    columns = torch.nn.functional.unfold(torch.tensor(pixels).permute(2, 0, 1)[None].float(), patch, stride=patch)
    expected = columns[0].T.reshape(-1, 3, patch, patch).permute(0, 2, 3, 1)
    np.testing.assert_array_equal(found, expected.numpy())


@pytest.mark.parametrize("draw", [patch_grid_svg, strip_svg])
def test_no_two_patches_overlap_and_all_stay_within_the_picture(draw):
    for high, wide, patch in ((224, 224, 16), (8, 8, 2), (16, 16, 16), (32, 512, 8), (128, 128, 2)):
        root = drawn(draw(random_pixels(high, wide), patch, "t"))
        boxes = [
            [float(e.get(name)) for name in ("x", "y", "width", "height")]
            for e in [*root.iter(f"{SVG}svg"), *root.iter(f"{SVG}rect")]
            if e.get("class") in ("patch", "class")
        ]
        assert len(boxes) == high * wide // patch**2 + (draw is strip_svg)
        x, y, w, h = np.array(boxes).T
        assert x.min() >= 0
        assert y.min() >= 60
        assert (x + w).max() <= float(root.get("width"))
        assert (y + h).max() <= float(root.get("height"))
        apart = (x[:, None] + w[:, None] < x) | (x + w < x[:, None]) | (y[:, None] + h[:, None] < y)
        apart |= y + h < y[:, None]
        assert apart.sum() == len(boxes) * (len(boxes) - 1)


def test_a_photograph_becomes_197_tokens():
    grid, strip = patch_grid_svg(photograph(), 16, "t"), strip_svg(photograph(), 16, "t")
    assert texts(drawn(grid), "quiet") == ["224 × 224 pixels at 16: 14 × 14 = 196 patches of 16 × 16 × 3 = 768 numbers"]
    assert texts(drawn(grid), "number") == ["1", "2", "3", "14", "15", "196"]
    root = drawn(strip)
    assert texts(root, "on") == ["[class]"]
    assert texts(root, "quiet") == ["197 tokens: [class], then 196 patches of 16 × 16, row by row"]
    starts = sorted(map(int, texts(root, "small")))
    assert starts == [0, *range(23, 196, 24)]
    assert max(len(grid), len(strip)) < 100_000


def test_the_numbers_stand_on_their_patches():
    root = drawn(patch_grid_svg(photograph(), 16, "t"))
    boxes = [
        [float(e.get(n)) for n in ("x", "y", "width")] for e in root.iter(f"{SVG}svg") if e.get("class") == "patch"
    ]
    for number in root.iter(f"{SVG}text"):
        if number.get("class") == "number":
            x, y, side = boxes[int(number.text) - 1]
            assert x < float(number.get("x")) < x + side
            assert y < float(number.get("y")) < y + side


def test_a_large_photograph_is_stored_smaller():
    pixels = np.asarray(Image.fromarray(photograph()).resize((1024, 1024)))
    text = patch_grid_svg(pixels, 32, "t")
    (image,) = drawn(text).iter(f"{SVG}image")
    assert decoded(image).shape == (512, 512, 3)
    assert len(text) < 300_000
    average = np.asarray(Image.fromarray(pixels).resize((512, 512), Image.Resampling.LANCZOS)).astype(float)
    assert np.abs(decoded(image) - average).mean() < 3


def test_pictures_of_two_images_may_stand_on_one_page():
    names = {re.search(r'id="([^"]*)"', patch_grid_svg(random_pixels(8, 8 * i), 4, "t")).group(1) for i in (1, 2)}
    assert len(names) == 2


@pytest.mark.parametrize("draw", [patch_grid_svg, strip_svg])
@pytest.mark.parametrize(
    ("pixels", "patch", "message"),
    [
        (random_pixels(230, 224), 16, "224 × 230 pixels cannot be cut into patches of 16 × 16"),
        (random_pixels(240, 240), 32, "cannot be cut"),
        (random_pixels(8, 8), 0, "cannot be cut"),
        (random_pixels(130, 130), 2, "4,225 patches are too many for a figure; give at most 4,096"),
        (np.zeros((8, 8, 3)), 2, "float64"),
        (np.zeros((3, 8, 8), np.uint8), 2, r"shape \(3, 8, 8\)"),
    ],
)
def test_impossible_patches_are_refused(draw, pixels, patch, message):
    with pytest.raises(HeedfulError, match=message):
        draw(pixels, patch, "t")


def test_feature_maps_are_drawn_to_the_value():
    maps = np.random.default_rng(0).normal(size=(5, 14, 14))
    text = feature_maps_svg(torch.tensor(maps, dtype=torch.float64), [f"filter {i}" for i in range(5)], "t")
    root = drawn(text)
    images = list(root.iter(f"{SVG}image"))
    ramp = coloured(np.linspace(0, 1, 4001)[None])[0].astype(int)
    for values, image, scale in zip(maps, images[0::2], images[1::2], strict=True):
        pixels = decoded(image).astype(int)
        nearest = np.abs(pixels[:, :, None] - ramp).sum(-1).argmin(-1) / 4000
        np.testing.assert_allclose(nearest, (values - values.min()) / np.ptp(values), atol=0.01)
        np.testing.assert_array_equal(decoded(scale)[0, [0, -1]], ramp[[0, -1]])
    assert texts(root, "name") == [f"filter {i}" for i in range(5)]
    ends = [float(end.replace("−", "-")) for end in texts(root, "end")]
    np.testing.assert_allclose(ends, [end for one in maps for end in (one.min(), one.max())], rtol=0.005)
    assert len(text) < 30_000


def test_lighter_is_higher_in_grey_too():
    grey = coloured(np.linspace(0, 1, 256)[None])[0] @ [0.299, 0.587, 0.114]
    assert (np.diff(grey) > 0).all()


def test_a_constant_map_and_many_maps_are_drawn_within_the_picture():
    for shape in ((1, 4, 4), (7, 3, 9), (13, 9, 3)):
        root = drawn(feature_maps_svg(np.ones(shape), ["n" * 99] * shape[0], "t"))
        images = list(root.iter(f"{SVG}image"))
        assert len(images) == 2 * shape[0]
        assert len(np.unique(decoded(images[0]).reshape(-1, 3), axis=0)) == 1
        wide, high = float(root.get("width")), float(root.get("height"))
        for image in images:
            assert float(image.get("x")) + float(image.get("width")) <= wide
            assert float(image.get("y")) + float(image.get("height")) <= high


def test_feature_maps_that_cannot_be_drawn_are_refused():
    with pytest.raises(HeedfulError, match="2 names for 3 feature maps"):
        feature_maps_svg(np.ones((3, 2, 2)), ["a", "b"], "t")
    with pytest.raises(HeedfulError, match=r"shape \(2, 2\)"):
        feature_maps_svg(np.ones((2, 2)), ["a", "b"], "t")
    with pytest.raises(HeedfulError, match="not finite"):
        feature_maps_svg(np.full((1, 2, 2), np.nan), ["a"], "t")


@pytest.mark.parametrize(
    "text",
    [
        patch_grid_svg(random_pixels(8, 8), 2, "<&>"),
        strip_svg(random_pixels(8, 8, 1), 2, "<&>"),
        feature_maps_svg(np.ones((1, 2, 2)), ["</svg><script>"], "<&>"),
    ],
)
def test_nothing_is_fetched_names_are_escaped_and_dark_is_served(text):
    root = drawn(text)
    assert root.find(f"{SVG}title").text == "<&>"
    assert root.find(f"{SVG}desc").text
    assert "script" not in {element.tag.removeprefix(SVG) for element in root.iter()}
    assert all(address.startswith(("data:image/", "#")) for address in re.findall(r'href="([^"]*)"', text))
    assert not re.search(r"https?:|url\(|@import", text.replace("http://www.w3.org/2000/svg", ""))
    assert "prefers-color-scheme:dark" in text
