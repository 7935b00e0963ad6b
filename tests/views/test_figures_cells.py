from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from heedful.errors import HeedfulError
from heedful.views import figures
from heedful.views.attention_data import AttentionMaps, block_means
from heedful.views.lens_html import LensPredictions

SVG = "{http://www.w3.org/2000/svg}"
BOX = re.compile(r"M(-?[\d.]+) (-?[\d.]+)h(-?[\d.]+)v(-?[\d.]+)h-?[\d.]+z")


def drawn(text):
    return ET.fromstring(text.encode("utf-8"))


def cells(root, kind="cell"):
    """(x middle, y middle, width, opacity) of every box of a kind, runs of one shade not taken apart."""
    for path in root.iter(f"{SVG}path"):
        if path.get("class") == kind:
            for x, y, wide, high in (map(float, box) for box in BOX.findall(path.get("d"))):
                yield x + wide / 2, y + high / 2, wide, float(path.get("fill-opacity", "1"))


def texts(root, kind):
    return [element.text for element in root.iter(f"{SVG}text") if kind in element.get("class").split()]


def shades(found, xs, ys):
    """The shade at each (y, x): 0 where there is no box, the box's width taken into account."""
    table = np.zeros((len(ys), len(xs)))
    for x, y, wide, shade in found:
        row = int(np.argmin(np.abs(np.array(ys) - y)))
        for column in np.flatnonzero(np.abs(np.array(xs) - x) < wide / 2):
            table[row, column] = shade
    return table


def random_maps(layers=2, heads=3, rows=5, columns=5, name="self-attention"):
    weights = np.random.default_rng(0).dirichlet(np.full(columns, 0.3), size=(layers, heads, rows))
    return AttentionMaps.of(name, [f" q{i}" for i in range(rows)], [f" k{i}" for i in range(columns)], weights)


def middles(root, kind="piece"):
    """Places of the names of columns and of rows."""
    found = [e for e in root.iter(f"{SVG}text") if e.get("class") == kind]
    across = [float(e.get("x")) for e in found if e.get("text-anchor") != "end"]
    down = [float(e.get("y")) - 4.5 for e in found if e.get("text-anchor") == "end"]
    return across, down


@pytest.mark.parametrize("head", [1, None])
def test_the_matrix_is_drawn_to_the_weight(head):
    maps = random_maps()
    weights = maps.weights[1].mean(axis=0) if head is None else maps.weights[1, head]
    root = drawn(figures.matrix(maps, 1, head, "t"))
    xs, ys = middles(root)
    boxes = [cell for cell in cells(root) if cell[1] < max(ys) + 17]
    np.testing.assert_allclose(shades(boxes, xs, ys), weights, atol=0.00501)
    assert texts(root, "number") == [f"{100 * w:.0f}" for w in weights.flat if w >= 0.01]
    told = " ".join(texts(root, "quiet"))
    assert ("layer 1, head 1" if head == 1 else "layer 1, mean of 3 heads") in told


def test_weights_without_numbers_are_shaded_by_the_largest_with_a_note():
    maps = random_maps(1, 1, 26, 40)
    weights = maps.weights[0, 0] / maps.weights.max()
    root = drawn(figures.matrix(maps, 0, 0, "t"))
    chip = next(path for path in root.iter(f"{SVG}path") if path.get("class") == "chip")
    boxes = np.array([[float(n) for n in box] for box in BOX.findall(chip.get("d"))])
    xs, ys = (np.unique(boxes[:, i] + boxes[:, i + 2] / 2) for i in (0, 1))
    found = shades([cell for cell in cells(root) if cell[1] < ys.max() + 5], xs, ys)
    np.testing.assert_allclose(found, weights, atol=0.00501)
    assert f"the darkest is {100 * maps.weights.max():.2g} %" in texts(root, "quiet")
    assert not texts(root, "number")


def test_a_long_text_is_drawn_as_block_means_and_says_so():
    maps = random_maps(1, 1, 300, 260)
    root = drawn(figures.matrix(maps, 0, 0, "t"))
    assert "300 × 260 weights as the means of 128 × 128 blocks" in " ".join(texts(root, "quiet"))
    means = block_means(maps.weights[0, 0], 128, 128)
    (chip,) = [path for path in root.iter(f"{SVG}path") if path.get("class") == "chip"][:1]
    left, top, wide, high = map(float, BOX.findall(chip.get("d"))[0])
    xs = left + (np.arange(128) + 0.5) * wide / 128
    ys = top + (np.arange(128) + 0.5) * high / 128
    boxes = [cell for cell in cells(root) if cell[1] < top + high]
    np.testing.assert_allclose(shades(boxes, xs, ys), means / means.max(), atol=0.00501)
    ends = texts(root, "small")
    assert ends[:2] == ["0", "0"]
    assert "299" in ends
    assert "259" in ends


def test_a_window_is_framed_within_its_overview():
    whole = np.full((1, 1, 200, 100), 0.01)
    maps = AttentionMaps(
        name="cross-attention",
        queries=[f"q{i}" for i in range(200)],
        keys=[f"k{i}" for i in range(100)],
        layers=[3],
        heads=[2],
        weights=whole[:, :, 50:60, 25:50],
        rows=(50, 60),
        columns=(25, 50),
        overview=block_means(whole, 40, 20),
        note="Chosen.",
    )
    root = drawn(figures.matrix(maps, 3, 2, "t"))
    (frame,) = [e for e in root.iter(f"{SVG}rect") if e.get("class") == "frame"]
    chips = [path.get("d") for path in root.iter(f"{SVG}path") if path.get("class") == "chip"]
    left, top, wide, high = next(b for d in chips for b in [tuple(map(float, BOX.findall(d)[0]))] if b[3] > 100)
    place = [float(frame.get(key)) for key in ("x", "y", "width", "height")]
    np.testing.assert_allclose(place, [left + wide / 4, top + high / 4, wide / 4, high * 0.05], atol=0.06)
    told = " ".join(texts(root, "quiet"))
    assert "queries 50–59 of 200, keys 25–49 of 100" in told
    assert "Chosen." in told


@pytest.mark.parametrize("size", [5, 90])
def test_the_sheet_has_every_map_in_its_place(size):
    maps = random_maps(3, 4, size, size)
    root = drawn(figures.model(maps, "t"))
    found = {}
    for group in root.iter(f"{SVG}g"):
        title = group.find(f"{SVG}title")
        if title is not None:
            found[title.text] = group
    assert list(found) == [f"layer {n}, head {h}" for n in range(3) for h in range(4)]
    blocks = min(32, size)
    for name, group in found.items():
        layer, head = map(int, re.findall(r"\d+", name))
        means = block_means(maps.weights[layer, head], blocks, blocks)
        expected = means if size == blocks else means / means.max()
        (chip,) = [path for path in group.iter(f"{SVG}path") if path.get("class") == "chip"]
        left, top, wide, _ = map(float, BOX.findall(chip.get("d"))[0])
        at = (np.arange(blocks) + 0.5) * wide / blocks
        np.testing.assert_allclose(shades(cells(group), left + at, top + at), expected, atol=1 / 64 + 1e-3)
    assert ("means of 32 × 32 blocks" in " ".join(texts(root, "quiet"))) == (size > 32)


def test_a_sheet_stays_small():
    maps = random_maps(24, 16, 64, 64)
    assert len(figures.model(maps, "t")) < 1_500_000


def test_lines_are_as_thick_as_the_weights():
    maps = random_maps(1, 2, 4, 6, "cross-attention")
    root = drawn(figures.heads(maps, 0, 1, "t"))
    weights = maps.weights[0, 1]
    names = {e.text: float(e.get("y")) - 4.5 for e in root.iter(f"{SVG}text") if e.get("class") == "piece"}
    lines = {}
    for path in root.iter(f"{SVG}path"):
        if path.get("class") == "line":
            start, *_, end = re.findall(r"[\d.]+ ([\d.]+)", path.get("d"))
            lines[float(start), float(end)] = float(path.get("stroke-width"))
    for t, s in np.ndindex(4, 6):
        near = [w for (y, v), w in lines.items() if abs(y - names[f"q{t}"]) < 0.2 and abs(v - names[f"k{s}"]) < 0.2]
        assert len(near) == (weights[t, s] >= 0.05)
        if near:
            assert near[0] == pytest.approx(0.6 + 6 * weights[t, s], abs=0.006)
    assert "weights below 5 % are not drawn" in " ".join(texts(root, "quiet"))


def test_too_many_lines_and_maps_are_refused():
    with pytest.raises(HeedfulError, match="61 queries and 61 keys are not readable; draw the matrix"):
        figures.heads(random_maps(1, 1, 61, 61), 0, 0, "t")
    with pytest.raises(HeedfulError, match="1,025 maps"):
        figures.model(random_maps(41, 25, 1, 1), "t")
    with pytest.raises(HeedfulError, match="no head 7"):
        figures.matrix(random_maps(), 0, 7, "t")


@pytest.mark.parametrize("signed", [True, False])
def test_any_matrix_is_drawn_to_the_value(signed):
    values = np.random.default_rng(1).normal(size=(4, 6))
    values = values if signed else np.abs(values)
    root = drawn(figures.heat(values, list("abcd"), list("uvwxyz"), "t"))
    xs, ys = middles(root)
    low = max(ys) + 14
    plus, minus = (shades([c for c in cells(root, k) if c[1] < low], xs, ys) for k in ("cell", "minus"))
    peak = np.abs(values).max()
    np.testing.assert_allclose((plus - minus) * peak, values, atol=0.00501 * peak)
    widths = {kind: {round(c[2], 1) for c in cells(root, kind) if c[1] < low} for kind in ("cell", "minus")}
    assert not signed or max(widths["minus"]) < min(widths["cell"])
    shown = [float(text.replace("−", "-")) for text in texts(root, "number")]
    np.testing.assert_allclose(shown, values.ravel(), rtol=0.051)


def test_a_large_signed_matrix_runs_from_lowest_to_highest_and_says_so():
    values = np.random.default_rng(1).normal(size=(180, 200))
    root = drawn(figures.heat(values, title="t"))
    assert "from the lowest value to the highest" in " ".join(texts(root, "quiet"))
    (chip,) = [path for path in root.iter(f"{SVG}path") if path.get("class") == "chip"][:1]
    left, top, wide, high = map(float, BOX.findall(chip.get("d"))[0])
    xs, ys = left + (np.arange(200) + 0.5) * wide / 200, top + (np.arange(180) + 0.5) * high / 180
    found = shades([c for c in cells(root) if c[1] < top + high], xs, ys)
    np.testing.assert_allclose(found, (values - values.min()) / np.ptp(values), atol=0.00501)


@pytest.mark.parametrize(
    ("values", "rows", "message"),
    [
        (np.zeros((300, 300)), None, "300 × 300 cells do not fit one figure; draw a part"),
        (np.full((2, 2), np.nan), None, "not finite"),
        (np.zeros(3), None, r"shape \(3,\)"),
        (np.zeros((2, 2)), ["a"], "1 names for 2 rows"),
    ],
)
def test_impossible_heat_maps_are_refused(values, rows, message):
    with pytest.raises(HeedfulError, match=message):
        figures.heat(values, rows, title="t")


def test_the_grid_names_layers_and_heads():
    values = np.arange(6.0).reshape(2, 3)
    root = drawn(figures.grid(values, "t", layers=[4, 7], heads=[0, 2, 5]))
    assert texts(root, "piece") == ["0", "2", "5", "layer 4", "layer 7"]
    assert [float(text) for text in texts(root, "number")] == [0, 1, 2, 3, 4, 5]


def small_lens(positions=3):
    top = [
        [[("a", 0.5), ("b", 0.1)], [("x", 0.4)], [("y", 0.3)]],
        [[("b", 0.6)], [("x", 0.2)], [(" ", 0.3)]],
        [[("b", 0.9)], [("x", 1.0)], [("<z>", 0.7)]],
    ]
    top = [[row[t % 3] for t in range(positions)] for row in top]
    pieces = [f" p{t}" for t in range(positions)]
    return LensPredictions(
        pieces=pieces, layers=["embedding", "1", "2"], top=top, target=["b", *[""] * (positions - 1)], note="N."
    )


def test_the_lens_marks_where_the_last_word_is_first_said():
    root = drawn(figures.lens(small_lens(), "t"))
    said = [(e.text, "name" in e.get("class")) for e in root.iter(f"{SVG}text") if "said" in e.get("class").split()]
    assert [one for one in said if one[1]] == [
        ("◆ x", True),
        ("◆ b", True),
        ("x", True),
        ("b", True),
        ("x", True),
        ("◆ <z>", True),
    ]
    assert [one for one in said if not one[1]] == [("a", False), ("y", False), ("␣", False)]
    assert texts(root, "number") == ["50 %", "40 %", "30 %", "60 %", "20 %", "30 %", "90 %", "100 %", "70 %"]
    assert "N." in texts(root, "quiet")
    assert "came next" in texts(root, "small")
    titles = [e.text for e in root.iter(f"{SVG}title")]
    assert "embedding, p0: a 50.0 %; b 10.0 %" in titles


def test_a_lens_of_many_positions_is_refused():
    with pytest.raises(HeedfulError, match="3 layers × 41 positions is not readable"):
        figures.lens(small_lens(41), "t")
