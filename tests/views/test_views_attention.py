from __future__ import annotations

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest

from heedful.errors import HeedfulError
from heedful.views import attention_page, attention_svg

SVG = "{http://www.w3.org/2000/svg}"
SOURCE = ["T", "ues", "day", ",", " March", " 4", "</s>"]
TARGET = ["mar", "di", " 4", " mars"]
NASTY = [
    "</script><script>alert(1)</script>",
    " <b>\"'&amp;",
    " \ud800\x00\t\u2028",
    "  ",
    " \u202eabc",
    " ]]>",
    "<!--",
]
VOID = {"meta", "link", "img", "br", "input"}


class Page(HTMLParser):
    """Reads a page as a browser does and notes its elements, its words and whether every element is closed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.open, self.content = [], [], {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))
            self.content.setdefault(self.key(), []).append("")

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open:
            self.content[self.key()][-1] += data

    def key(self):
        tag, attrs = self.open[-1]
        side = next((attributes["data-side"] for _, attributes in self.open if "data-side" in attributes), "")
        return tag + attrs.get("type", "") + side


def weights(*shape, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(shape[-1]) * 0.4, shape[:-1])


def page(source=SOURCE, target=TARGET, layers=3, heads=4, **options):
    return attention_page(source, target, weights(layers, heads, len(target), len(source)), title="A & B", **options)


def facts(text):
    return json.loads(Page(text).content["scriptapplication/json"][0])


def test_the_page_holds_words_and_weights():
    text = page()
    read = Page(text)
    assert read.content["bdisource"] == ["T", "ues", "day", ",", "March", "4", "</s>"]
    assert read.content["bditarget"] == ["mar", "di", "4", "mars"]
    assert read.content["title"] == read.content["h1"] == ["A & B"]
    data = facts(text)
    assert data["layers"] == ["0", "1", "2"]
    assert data["heads"] == ["0", "1", "2", "3"]
    stored = np.frombuffer(base64.b64decode(data["weights"]), np.uint8).reshape(3, 4, 4, 7) / 255
    assert np.abs(stored - weights(3, 4, 4, 7)).max() <= 0.002
    assert "within 0.2 percentage points" in text


def test_pieces_of_a_word_stand_together():
    kinds = [attrs["class"] for tag, attrs in Page(page()).tags if tag == "button"]
    assert kinds[:5] == ["word open", "word inside open", "word inside open", "word inside", "word"]
    wholes = [attrs for tag, attrs in Page(page()).tags if attrs.get("class") == "whole"]
    assert len(wholes) == 4 + 3


def assert_self_contained(text):
    assert not re.search(r"https?:|//\w", re.sub(r'xmlns="[^"]*"|^ *//.*$|(?<=[;{}]) +// .*$', "", text, flags=re.M))
    assert not re.search(r"\b(src|href|action|formaction|poster|ping)\s*=|@import|url\(", text)


def test_nothing_is_fetched():
    assert_self_contained(page())
    assert_self_contained(attention_svg(SOURCE, TARGET, weights(4, 7), title="A"))


def test_the_policy_allows_the_page_its_own_script_and_style_alone():
    text = page()
    read = Page(text)
    policy = next(attrs["content"] for tag, attrs in read.tags if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none';")
    for kind, content in (("style", read.content["style"][0]), ("script", read.content["script"][0])):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert not [attrs for _, attrs in read.tags if any(name.startswith("on") or name == "style" for name in attrs)]


def test_text_cannot_leave_its_place_in_the_page():
    count = len(NASTY)
    w = weights(1, 2, count, count)
    text = attention_page(NASTY, NASTY, w, title="</title>" + NASTY[0], layers=[NASTY[0]], heads=["<!--", "\ud800"])
    text.encode("utf-8")
    read = Page(text)
    assert [tag for tag, _ in read.tags].count("script") == 2
    assert read.content["bdisource"] == [
        "</script><script>alert(1)</script>",
        "<b>\"'&amp;",
        "\ufffd␀␉␤",
        "␣",
        "\u202eabc",
        "]]>",
        "<!--",
    ]
    assert read.content["title"] == ["</title></script><script>alert(1)</script>"]
    assert facts(text)["layers"] == ["</script><script>alert(1)</script>"]
    assert facts(text)["heads"] == ["<!--", "\ufffd"]


def test_text_cannot_leave_its_place_in_the_picture():
    count = len(NASTY)
    text = attention_svg(NASTY, NASTY, weights(count, count), title=NASTY[0], note=NASTY[1])
    root = ET.fromstring(text.encode("utf-8"))
    assert root.find(f"{SVG}title").text == NASTY[0]
    assert {element.tag.removeprefix(SVG) for element in root} == {"title", "desc", "style", "rect", "text", "path"}
    assert "alert" not in "".join(element.tag for element in root.iter())


def test_the_picture_draws_each_strong_weight_once_as_line_and_number():
    w = np.array([[0.9, 0.06, 0.04], [0.0, 0.3, 0.7]])
    root = ET.fromstring(attention_svg(["a", "b", "c"], ["x", "y"], w, title="t", note="n"))
    kinds = [element.get("class") for element in root]
    assert kinds.count("line") == 4
    assert kinds.count("chip") == 6
    assert [e.get("fill-opacity") for e in root if e.get("class") == "cell"] == ["0.90", "0.06", "0.04", "0.30", "0.70"]
    assert [e.text for e in root if (e.get("class") or "").startswith("number")] == ["90", "6", "30", "70"]
    assert root.find(f"{SVG}desc").text == "What each target word attends to most: x: a 90 %; y: c 70 %"
    widths = sorted(float(e.get("stroke-width")) for e in root if e.get("class") == "line")
    assert widths == pytest.approx([0.6 + 6 * x for x in (0.06, 0.3, 0.7, 0.9)], abs=0.01)


def test_both_serve_light_and_dark():
    assert "prefers-color-scheme: dark" in page()
    assert "prefers-color-scheme:dark" in attention_svg(SOURCE, TARGET, weights(4, 7), title="A")


def test_everything_stays_within_the_picture():
    for count in (1, 5, 40):
        source, target = ["Donaudampfschifffahrtsgesellschaft" * 3] * count, ["一九九七"] * (count * 2)
        root = ET.fromstring(attention_svg(source, target, weights(count * 2, count), title="Wide " * 10))
        wide, high = float(root.get("width")), float(root.get("height"))
        for element in root:
            if element.get("x") and element.tag != f"{SVG}style":
                assert 0 <= float(element.get("x")) <= wide - float(element.get("width") or 0)
                assert 0 <= float(element.get("y")) <= high - float(element.get("height") or 0)


def test_a_page_is_bounded_whatever_the_length():
    short = len(page())
    assert short < 40_000
    source = [" s"] * 300
    text = attention_page(source, source, np.full((2, 3, 300, 300), 1 / 300), title="long", limit=10_000)
    assert len(text) < short + 10_000 * 4 / 3 + 2 * 100 * 110
    data = facts(text)
    assert (data["layers"], data["heads"]) == (["average"], ["mean"])
    assert len(Page(text).content["bdisource"]) == 100
    assert "first 100 of 300 source and 100 of 300 target" in text


def test_names_and_shapes_that_do_not_fit_are_refused():
    with pytest.raises(HeedfulError, match="2 names for 3 layers"):
        attention_page(SOURCE, TARGET, weights(3, 4, 4, 7), title="", layers=["a", "b"])
    with pytest.raises(
        HeedfulError, match=r"shape \(3, 4, 7, 4\) do not fit 4 target and 7 source pieces; give \(L, H, 4"
    ):
        attention_page(SOURCE, TARGET, weights(3, 4, 7, 4), title="")
    with pytest.raises(HeedfulError, match="at most 120 words a side"):
        attention_svg(["a"] * 121, ["b"], weights(1, 121), title="")


def test_the_direction_follows_the_script():
    text = page(source=["יום", " שלישי"], target=["4", "月"])
    ways = [attrs["dir"] for _, attrs in Page(text).tags if "data-side" in attrs]
    assert ways == ["rtl", "ltr"]
