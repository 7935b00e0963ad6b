from __future__ import annotations

import base64
import io
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from heedful.data import LazyImage, Row
from heedful.errors import HeedfulError
from heedful.metrics.classification import Mistakes
from heedful.views import mistakes_html, mistakes_svg
from heedful.views.mistakes import Mistake
from heedful.views.run_figures import draw_report

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</svg></td><script>alert(1)</script>\ud800 & \"'"


def small(count, side=8, channels=1):
    return np.random.default_rng(0).integers(0, 256, (count, side, side, channels), dtype=np.uint8)


def wrongs(count, **options):
    return [Mistake(pixels, str(i), str(i + 1), 1 - i / 100) for i, pixels in enumerate(small(count, **options))]


def drawn(text):
    return ET.fromstring(text.encode("utf-8"))


def decoded(element):
    kind, data = re.fullmatch(r"data:image/(png|jpeg);base64,(.*)", element.get("href")).groups()
    return kind, np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def said(root):
    return ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("channels", [1, 3])
def test_small_images_are_kept_to_the_pixel_and_scaled_by_a_whole_factor(channels):
    wrong = wrongs(3, channels=channels)
    root = drawn(mistakes_svg(wrong, "t"))
    images = list(root.iter(f"{SVG}image"))
    for one, image in zip(wrong, images, strict=True):
        kind, pixels = decoded(image)
        assert kind == "png"
        np.testing.assert_array_equal(pixels.reshape(one.input.shape), one.input)
        assert float(image.get("width")) % 8 == float(image.get("height")) % 8 == 0
        assert image.get("class") == "crisp"
    assert said(root)[2:] == ["0 → 1 100 %", "1 → 2 99 %", "2 → 3 98 %"]
    assert images[1].find(f"{SVG}title").text == "1, taken for 2, 99 %"


def test_at_most_forty_are_shown_and_the_picture_says_so():
    root = drawn(mistakes_svg(wrongs(50), "t", total=312))
    assert len(list(root.iter(f"{SVG}image"))) == 40
    assert said(root)[1].startswith("40 of 312 mistakes, the most confident first")
    assert said(drawn(mistakes_svg(wrongs(2), "t")))[1].startswith("all 2 mistakes")
    assert said(drawn(mistakes_svg([], "t")))[1] == "no mistakes"


def test_tiles_do_not_touch_and_stay_within_the_picture():
    for wrong in (wrongs(1), wrongs(23), [one._replace(output="W" * 80, expected="é" * 90) for one in wrongs(9)]):
        root = drawn(mistakes_svg(wrong, "t"))
        wide, high = float(root.get("width")), float(root.get("height"))
        tiles = [
            [float(e.get(name)) for name in ("x", "y", "width")]
            for e in root.iter(f"{SVG}rect")
            if e.get("class") == "tile"
        ]
        assert len(tiles) == len(wrong)
        assert all(x >= 0 and x + side <= wide and y + side <= high for x, y, side in tiles)
        assert all(
            abs(x - u) >= side or abs(y - v) >= side
            for place, (x, y, side) in enumerate(tiles)
            for u, v, _ in tiles[:place]
        )


def test_long_names_stand_beneath_one_another_and_are_cut():
    root = drawn(mistakes_svg([one._replace(expected="Brandenburg Gate", output="W" * 80) for one in wrongs(2)], "t"))
    lines = said(root)[2:4]
    assert lines[0] == "Brandenburg Gate"
    assert re.fullmatch(r"→ W+… 100 %", lines[1])
    assert root.find(f".//{SVG}image/{SVG}title").text == f"Brandenburg Gate, taken for {'W' * 80}, 100 %"


def test_large_photographs_are_stored_small():
    y, x = np.mgrid[:600, :900] / 900
    photo = np.stack([x, y, np.sin(9 * x) ** 2], axis=-1)
    photo = (255 * photo + np.random.default_rng(0).normal(0, 3, photo.shape)).clip(0, 255).astype(np.uint8)
    text = mistakes_svg([Mistake(photo, "a", "b", 0.5)] * 8, "t")
    assert len(text) < 8 * 10_000
    image = next(drawn(text).iter(f"{SVG}image"))
    kind, pixels = decoded(image)
    assert kind == "jpeg"
    assert pixels.shape == (139, 208, 3)
    assert image.get("class") is None
    again = np.asarray(Image.fromarray(photo).resize((208, 139), Image.Resampling.LANCZOS)).astype(float)
    assert np.abs(pixels - again).mean() < 4
    assert float(image.get("width")) / float(image.get("height")) == pytest.approx(1.5, abs=0.01)


def test_names_cannot_leave_their_place_in_the_picture():
    root = drawn(mistakes_svg([one._replace(expected=HOSTILE, output=HOSTILE) for one in wrongs(2)], HOSTILE))
    kinds = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert kinds == {"svg", "title", "desc", "style", "rect", "text", "tspan", "image"}


def test_values_that_are_no_images_are_refused():
    for bad in ("text", np.zeros((8, 8), np.uint8), np.zeros((8, 8, 3)), np.zeros((0, 8, 3), np.uint8)):
        with pytest.raises(HeedfulError, match="give uint8 pixels"):
            mistakes_svg([Mistake(bad, "a", "b", 0.5)], "t")


class Cells(HTMLParser):
    """The table's rows as lists of texts, and every element met."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.rows, self.tags, self.attributes = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "br":
            self.rows[-1][-1] += "|"

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip("\n")


def test_the_page_holds_a_row_for_each_text():
    text = mistakes_html(
        [Mistake("so good\n\n so bad", "good", "bad", 0.934), Mistake("  ", "a", "b", 0.5)], "A & B", total=31
    )
    read = Cells(text)
    assert read.rows == [
        ["text", "truth", "prediction", "probability"],
        ["so good|so bad", "good", "bad", "93 %"],
        ["␣", "a", "b", "50 %"],
    ]
    assert "2 of 31 mistakes, the most confident first" in text
    assert "<h1>A &amp; B</h1>" in text
    assert "prefers-color-scheme: dark" in text


def test_text_cannot_leave_its_place_in_the_page_and_nothing_is_fetched_or_run():
    text = mistakes_html([Mistake(HOSTILE, HOSTILE, HOSTILE, 0.5)], HOSTILE)
    text.encode("utf-8")
    read = Cells(text)
    assert "script" not in read.tags
    assert read.rows[1][1] == HOSTILE.replace("\ud800", "\ufffd")
    assert "default-src 'none'; style-src 'sha256-" in text
    assert "script-src" not in text
    assert not [name for name, _ in read.attributes if name.startswith("on") or name in ("src", "href", "style")]


def test_a_long_text_is_cut():
    read = Cells(mistakes_html([Mistake("word " * 1000, "a", "b", 0.5)], "t"))
    assert len(read.rows[1][0]) == 1000
    assert read.rows[1][0].endswith("word…")


def test_a_page_without_mistakes_says_so():
    text = mistakes_html([], "t")
    assert "no mistakes" in text
    assert "<table" not in text


# ------------------------------------------------------------------------------------------------------ what is written


def measured(**details):
    return SimpleNamespace(metrics={}, details=json.loads(json.dumps(details)))


def wrong(place, expected, output):
    return {"place": place, "input": "short", "expected": expected, "output": output, "score": 0.9}


CONFUSION = {"labels": ["a", "b"], "counts": [[3, 1], [2, 4]]}


def test_a_report_on_images(tmp_path):
    rows = [Row({"image": LazyImage.of(pixels), "label": "a"}, "f", i) for i, pixels in enumerate(small(6))]
    mistakes = [wrong(4, "a", "b"), wrong(1, "b", "a")]
    told = measured(confusion=CONFUSION, mistakes=mistakes, mistakes_total=3)
    paths = draw_report(tmp_path / "run", told, rows)
    assert [path.name for path in paths] == ["confusion.svg", "mistakes.svg"]
    assert "7 of 10 right" in paths[0].read_text(encoding="utf-8")
    root = drawn(paths[1].read_text(encoding="utf-8"))
    first = decoded(next(root.iter(f"{SVG}image")))[1]
    np.testing.assert_array_equal(first, small(6)[4, :, :, 0])
    assert said(root)[:2] == [
        "run: most confident mistakes",
        "2 of 3 mistakes, the most confident first: truth → prediction, and its probability",
    ]


def test_a_report_on_texts_shows_them_whole(tmp_path):
    rows = [Row({"text": f"text {i} {'x' * 80}", "text_pair": "pair", "label": "a"}, "f", i) for i in range(3)]
    paths = draw_report(tmp_path, measured(mistakes=[wrong(2, ["a", "b"], [])], by_class=[]), rows)
    assert [path.name for path in paths] == ["mistakes.html"]
    (_, cells) = Cells(paths[0].read_text(encoding="utf-8")).rows
    assert cells == [f"text 2 {'x' * 80}|pairf:2", "a, b", "none", "90 %"]


def test_the_number_of_mistakes_without_a_confusion(tmp_path):
    """Of entities, answers and several labels there is none, and the 50 surest passed for all."""
    kept = Mistakes()
    for place in range(4812):
        kept.add(place, "short", "a", "b", 0.9)
    rows = [Row({"text": f"text {i}", "label": "a"}, "f", i) for i in range(4812)]
    (path,) = draw_report(tmp_path, measured(**kept.details()), rows)
    assert "50 of 4,812 mistakes" in path.read_text(encoding="utf-8")


def test_nothing_to_report_is_nothing_written(tmp_path):
    assert draw_report(tmp_path / "run", measured(by_format={}), []) == []
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("width", [1280, 390])
def test_a_text_is_read_across_a_narrow_screen(open_page, width):
    mistakes = [
        Mistake(
            "What was Colonel Drake the first to drill?",
            "abbreviation",
            "entity",
            0.5,
            "/a/long/path/to/a/table.tsv:12",
        )
    ]
    page = open_page(mistakes_html(mistakes, "a run"), width=width)
    cells = [cell.bounding_box() for cell in page.locator("td").all()]
    assert cells[0]["width"] > 0.5 * width
    assert len({round(cell["y"]) for cell in cells[1:]}) == 1  # truth, prediction and probability in one line
    assert page.locator(".truth bdi").bounding_box()["height"] < 30  # in one line
    heads = [page.get_by_role("columnheader", name=name).bounding_box() for name in ("truth", "prediction")]
    assert [round(head["x"]) for head in heads] == [round(cell["x"]) for cell in cells[1:3]]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
