from __future__ import annotations

import base64
import io
import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from heedful.errors import HeedfulError
from heedful.views import figures
from heedful.views.attention_data import AttentionMaps
from heedful.views.figures import Arrow, Box

SVG = "{http://www.w3.org/2000/svg}"
NASTY = ["<script>", "a & b", "\x00", '"quoted"', "\ud800"]


def drawn(text):
    return ET.fromstring(text.encode("utf-8"))


def texts(root, kind):
    return [element.text for element in root.iter(f"{SVG}text") if kind in element.get("class").split()]


def of(root, tag, kind):
    return [element for element in root.iter(f"{SVG}{tag}") if element.get("class") == kind]


def numbers(element, *names):
    return [float(element.get(name)) for name in names]


def decoded(element):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(element.get("href").split(",")[1]))))


@pytest.fixture(scope="module")
def random():
    return np.random.default_rng(0)


def test_an_overlay_lights_each_patch_by_its_value(random):
    pixels = random.integers(0, 256, (16, 24, 3), dtype=np.uint8)
    values = random.random((4, 6))
    root = drawn(figures.overlay(pixels, values, "t"))
    plain, lit = map(decoded, root.iter(f"{SVG}image"))
    np.testing.assert_array_equal(plain, pixels)
    share = np.kron(values / values.max(), np.ones((4, 4)))[:, :, None]
    np.testing.assert_allclose(lit, pixels * (0.12 + 0.88 * share), atol=0.51)
    image = list(root.iter(f"{SVG}image"))[1]
    left, top, wide, high = numbers(image, "x", "y", "width", "height")
    frames = [numbers(e, "x", "y") for e in of(root, "rect", "peak")]
    best = [divmod(int(i), 6) for i in np.argsort(-values.ravel())[:3]]
    np.testing.assert_allclose(frames, [(left + c * wide / 6, top + r * high / 4) for r, c in best], atol=0.06)


def test_saliency_shades_underlines_and_tells(random):
    values = np.array([0.5, -1.0, 0.0, 0.25])
    root = drawn(figures.saliency(["a", " b", " c", "d"], values, "t"))
    assert texts(root, "token") == ["a", "b", "c", "d"]
    assert texts(root, "small")[:4] == ["0.50", "−1.0", "0", "0.25"]
    shades = [e for e in root.iter(f"{SVG}rect") if e.get("fill-opacity")]
    assert [(e.get("class"), float(e.get("fill-opacity"))) for e in shades] == [
        ("cell", 0.5),
        ("minus", 1.0),
        ("cell", 0.0),
        ("cell", 0.25),
    ]
    assert len(of(root, "path", "under")) == 1


def test_a_long_text_is_broken_into_lines(random):
    root = drawn(figures.saliency([" word"] * 400, random.normal(size=400), "t"))
    places = [numbers(e, "x", "y", "width") for e in root.iter(f"{SVG}rect") if e.get("fill-opacity")]
    assert max(x + wide for x, _, wide in places) <= 720
    rows = {}
    for x, y, wide in places:
        rows.setdefault(y, []).append((x, x + wide))
    assert all(one[1] < two[0] for row in rows.values() for one, two in pairwise(row))
    assert max(rows) + 100 < float(root.get("height"))


def test_filters_run_from_their_own_lowest_to_highest(random):
    images = random.normal(size=(5, 4, 4, 3)) * np.arange(1, 6)[:, None, None, None]
    found = list(drawn(figures.filters(images, "t")).iter(f"{SVG}image"))
    for one, image in zip(images, found, strict=True):
        np.testing.assert_allclose(decoded(image), 255 * (one - one.min()) / np.ptp(one), atol=0.51)
    boxes = np.array([numbers(image, "x", "y", "width", "height") for image in found])
    assert len({(x, y) for x, y, *_ in boxes}) == 5


def test_points_keep_their_distances(random):
    points = random.normal(size=(12, 2)) * [5, 1]
    root = drawn(figures.scatter(points, [f"p{i}" for i in range(12)], "t"))
    found = np.array([numbers(e, "cx", "cy") for e in of(root, "circle", "f0")])
    apart = np.linalg.norm(found[:, None] - found, axis=-1)
    expected = np.linalg.norm(points[:, None] - points, axis=-1)
    np.testing.assert_allclose(apart, expected * apart.max() / expected.max(), atol=0.2)
    assert np.all(np.argsort(found[:, 0]) == np.argsort(points[:, 0]))
    assert np.all(np.argsort(found[:, 1]) == np.argsort(-points[:, 1]))


def test_points_without_room_for_a_name_are_counted():
    root = drawn(figures.scatter(np.zeros((30, 2)), [f"point {i}" for i in range(30)], "t"))
    named = len(texts(root, "point"))
    assert 0 < named < 30
    assert f"{30 - named} of 30 points have no room for their names" in " ".join(texts(root, "quiet"))
    assert len([e for e in root.iter(f"{SVG}title") if e.text.startswith("point")]) == 30


def test_groups_differ_by_shape(random):
    groups = ["a", "b", "c", "d", "e", "f"]
    root = drawn(figures.scatter(random.normal(size=(6, 2)), groups, "t", groups=groups))
    assert set(groups) <= set(texts(root, "piece"))
    marks = [
        next(e for e in group if e.tag not in (f"{SVG}title", f"{SVG}text"))
        for group in root.iter(f"{SVG}g")
        if group.find(f"{SVG}title") is not None
    ]
    shapes = {(mark.tag, mark.get("fill"), re.sub(r"M[\d. ]+", "", mark.get("d", ""))) for mark in marks}
    assert len(shapes) == 6


def test_functions_are_drawn_to_the_value():
    xs = np.linspace(-4, 4, 33)
    gelu = np.array([0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in xs])
    root = drawn(figures.functions(xs, {"ReLU": np.maximum(xs, 0), "GELU": gelu}, "t"))
    lines = [e for e in root.iter(f"{SVG}path") if e.find(f"{SVG}title") is not None]
    assert [e.find(f"{SVG}title").text for e in lines] == ["ReLU", "GELU"]
    assert len({e.get("stroke-dasharray") for e in lines}) == 2
    (across, down) = (
        {
            float(e.text.replace("−", "-")): (float(e.get("x")), float(e.get("y")))
            for e in of(root, "text", "quiet")
            if e.get("text-anchor") == anchor and e.text != "x"
        }
        for anchor in ("middle", "end")
    )
    unit_x = (across[4][0] - across[-4][0]) / 8
    unit_y = (down[0][1] - down[2][1]) / 2
    for line, expected in zip(lines, (np.maximum(xs, 0), gelu), strict=True):
        points = np.array([[float(n) for n in pair.split()] for pair in line.get("d")[1:].split("L")])
        np.testing.assert_allclose((points[:, 0] - across[0][0]) / unit_x, xs, atol=0.01)
        np.testing.assert_allclose((down[0][1] - 4 - points[:, 1]) / unit_y, expected, atol=0.01)


def test_bars_begin_at_zero():
    values = np.array([0.3, -0.1, 0.0, 0.2])
    root = drawn(figures.bars(list("abcd"), values, "t"))
    boxes = [
        (e.get("class"), *numbers(e, "x", "width"))
        for e in root.iter(f"{SVG}rect")
        if e.get("class") in ("cell", "minus")
    ]
    zero = boxes[0][1]
    assert [kind for kind, *_ in boxes] == ["cell", "minus", "cell", "cell"]
    np.testing.assert_allclose([wide for _, _, wide in boxes], np.abs(values) * 360 / 0.4, atol=0.01)
    np.testing.assert_allclose([x + wide if kind == "minus" else x for kind, x, wide in boxes], zero, atol=0.02)
    assert texts(root, "number") == ["0.3", "−0.1", "0", "0.2"]
    (axis,) = of(root, "path", "axis")
    assert float(axis.get("d")[1:].split()[0]) == pytest.approx(zero, abs=0.1)
    assert min(x for _, x, _ in boxes) > 13  # beside the names


def test_masks_are_full_where_a_query_may_look():
    causal = np.tri(4, dtype=bool)
    root = drawn(figures.masks({"causal": causal}, "t", queries=list("abcd"), keys=list("wxyz")))
    boxes = {
        kind: re.findall(r"M([\d.]+) ([\d.]+)h", "".join(e.get("d") for e in of(root, "path", kind)))
        for kind in ("cell", "shut")
    }
    places = np.array([[float(n) for n in one] for kind in boxes.values() for one in kind])
    left, top = places.min(axis=0)
    found = np.zeros((4, 4), int)
    for kind, value in (("cell", 1), ("shut", 2)):
        for x, y in boxes[kind]:
            found[round((float(y) - top) / 22), round((float(x) - left) / 22)] = value
    np.testing.assert_array_equal(found, np.where(causal, 1, 2))
    (crosses,) = of(root, "path", "cross")
    assert crosses.get("d").count("M") == 6


def test_arrows_end_at_their_boxes():
    boxes = {
        "x": Box(text="x", kind="data"),
        "f": Box(text="f", row=1, kind="main"),
        "+": Box(text="+", row=2, kind="sum"),
        "y": Box(text="y", row=2, column=1),
    }
    ways = [
        Arrow(start="x", end="f"),
        Arrow(start="f", end="+"),
        Arrow(start="x", end="+", way="left"),
        Arrow(start="+", end="y", text="out"),
    ]
    root = drawn(figures.flow(boxes, ways, "t"))
    (circle,) = of(root, "circle", "sum")
    cx, cy, r = numbers(circle, "cx", "cy", "r")
    edges = {}
    for kind in ("data", "main", "step"):
        (box,) = of(root, "rect", kind)
        edges[kind] = numbers(box, "x", "y", "width", "height")
    tips = [
        tuple(map(float, re.match(r"M(-?[\d.]+) (-?[\d.]+)", e.get("d")).groups())) for e in of(root, "path", "tip")
    ]
    x, y, wide, high = edges["main"]
    assert tips[0] == pytest.approx((x + wide / 2, y + high), abs=0.1)
    assert tips[1] == pytest.approx((cx, cy + r), abs=0.1)
    assert tips[2] == pytest.approx((cx - r, cy), abs=0.1)
    assert tips[3] == pytest.approx((edges["step"][0], cy), abs=0.1)
    around = of(root, "path", "arrow")[2].get("d")
    assert 0 <= float(re.search(r"H(-?[\d.]+)V", around)[1]) < edges["main"][0]
    with pytest.raises(HeedfulError, match="'g', which is not a box"):
        figures.flow(boxes, [Arrow(start="x", end="g")], "t")


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: figures.overlay(np.zeros((4, 4, 3)), np.ones((2, 2)), "t"), "uint8"),
        (lambda: figures.saliency(["a"], [1.0, 2.0], "t"), "1 names for 2 values"),
        (lambda: figures.saliency(["a"] * 1001, np.ones(1001), "t"), "1,001 pieces in one figure"),
        (lambda: figures.filters(np.zeros((3, 4, 4, 2)), "t"), "1 or 3 channels"),
        (lambda: figures.scatter(np.zeros((2, 3)), ["a", "b"], "t"), r"shape \(2, 3\)"),
        (lambda: figures.functions([0, 0], {"f": [1, 2]}, "t"), "x increasing"),
        (lambda: figures.functions([0, 1], {}, "t"), "0 functions"),
        (lambda: figures.bars(["a"] * 81, np.ones(81), "t"), "81 bars"),
        (lambda: figures.masks({"m": np.ones((3, 3))}, "t"), "float64; give booleans"),
        (lambda: figures.masks({}, "t"), "no mask"),
        (lambda: figures.flow({}, [], "t"), "no box"),
    ],
)
def test_impossible_figures_are_refused_in_one_line(draw, message):
    with pytest.raises(HeedfulError, match=message) as caught:
        draw()
    assert "\n" not in str(caught.value)


def nasty_figures():
    n = len(NASTY)
    maps = AttentionMaps.of("x<y", NASTY, NASTY, np.full((1, 1, n, n), 1 / n))
    pixels = np.zeros((4, 4, 3), np.uint8)
    eye = np.eye(n)
    return {
        "matrix": figures.matrix(maps, 0, 0, NASTY[0]),
        "model": figures.model(maps, NASTY[0]),
        "heads": figures.heads(maps, 0, None, NASTY[0]),
        "heat": figures.heat(eye, NASTY, NASTY, NASTY[0], note=NASTY[1], row_label=NASTY[3]),
        "overlay": figures.overlay(pixels, np.zeros((2, 2)), NASTY[0], note=NASTY[1]),
        "saliency": figures.saliency(NASTY, np.zeros(n), NASTY[0], note=NASTY[1]),
        "filters": figures.filters(np.zeros((n, 2, 2, 1)), NASTY[0], names=NASTY),
        "scatter": figures.scatter(eye[:, :2], NASTY, NASTY[0], groups=NASTY),
        "functions": figures.functions([0, 1], {name: [0, i] for i, name in enumerate(NASTY)}, NASTY[0]),
        "bars": figures.bars(NASTY, np.zeros(n), NASTY[0]),
        "masks": figures.masks({NASTY[0]: eye > 0}, NASTY[0], queries=NASTY, keys=NASTY),
        "flow": figures.flow({NASTY[0]: Box(text=NASTY[0])}, [], NASTY[0]),
    }


@pytest.mark.parametrize("name", list(nasty_figures()))
def test_every_figure_is_named_well_formed_and_within_its_frame(name):
    text = nasty_figures()[name]
    root = drawn(text)
    assert root.find(f"{SVG}title").text == "<script>"
    assert root.find(f"{SVG}desc").text
    assert "prefers-color-scheme" in root.find(f"{SVG}style").text
    assert f"{SVG}script" not in {element.tag for element in root.iter()}
    (group,) = [g for g in root.findall(f"{SVG}g") if g.get("transform", "").startswith("translate(24")]
    top = float(group.get("transform").split()[1].rstrip(")"))
    wide, high = numbers(root, "width", "height")
    for element in group.iter(f"{SVG}text"):
        x, y = numbers(element, "x", "y")
        assert 0 <= x + 24 <= wide
        assert 0 < y + top < high
    for element in group.iter(f"{SVG}rect"):
        x, y, across, down = numbers(element, "x", "y", "width", "height")
        assert x >= 0
        assert x + 24 + across <= wide
        assert y + top + down <= high


def test_an_image_is_lit_for_each_name():
    pixels = np.full((8, 8, 3), 200, np.uint8)
    values = np.zeros((2, 2, 4))
    values[0, 1, 2], values[1, 0, 0] = 0.5, 0.1
    svg = figures.bright_images(pixels, values, ["a", "cat"], "t", note="n")
    for element, own in zip(drawn(svg).iter(f"{SVG}image"), values, strict=True):
        shares = np.repeat(np.repeat(own / own.max(), 4, 0), 2, 1)[:, :, None]  # patches of 4 × 2 pixels
        assert np.array_equal(decoded(element), np.rint(pixels * (0.12 + 0.88 * shares)))
    assert "a: row 2, column 3; cat: row 1, column 1" in svg
    with pytest.raises(HeedfulError, match="1 names for 2 values"):
        figures.bright_images(pixels, values, ["a"])
