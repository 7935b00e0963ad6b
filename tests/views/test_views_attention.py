from __future__ import annotations

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ET
import zlib
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from heedful.errors import HeedfulError
from heedful.views import attention_page, attention_svg
from heedful.views.attention_data import AttentionMaps

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


def maps(queries=TARGET, keys=SOURCE, layers=3, heads=4, name="cross-attention"):
    return AttentionMaps.of(name, queries, keys, weights(layers, heads, len(queries), len(keys)))


def page(*groups, **options):
    return attention_page(groups or maps(), title="A & B", **options)


def facts(text):
    return json.loads(Page(text).content["scriptapplication/json"][0])


def test_the_page_holds_pieces_and_weights():
    text = page()
    read = Page(text)
    assert read.content["title"] == read.content["h1"] == ["A & B"]
    [group] = facts(text)["groups"]
    assert group["key"]["pieces"] == ["T", "ues", "day", ",", "March", "4", "</s>"]
    assert group["key"]["starts"] == [1, 0, 0, 0, 1, 1, 1]
    assert group["query"]["pieces"] == ["mar", "di", "4", "mars"]
    assert group["query"]["starts"] == [1, 0, 1, 1]
    assert (group["layers"], group["heads"]) == ([0, 1, 2], [0, 1, 2, 3])
    assert group["bits"] == 16
    codes = np.frombuffer(zlib.decompress(base64.b64decode(group["weights"])), "<u2").reshape(3, 4, 4, 7)
    assert np.abs(codes / 65535 - weights(3, 4, 4, 7)).max() < 1e-5


@pytest.mark.parametrize("view", ["heads", "model", "matrix"])
def test_the_view_that_was_asked_for_comes_first(view):
    sections = [attrs["data-view"] for tag, attrs in Page(page(view=view)).tags if tag == "section"]
    assert sections[0] == view
    assert sorted(sections) == ["heads", "matrix", "model"]
    assert facts(page(view=view))["view"] == view


def test_several_groups_share_a_page():
    text = page(maps(), maps(SOURCE, SOURCE, 2, 4, "encoder self-attention"))
    groups = facts(text)["groups"]
    assert [group["name"] for group in groups] == ["cross-attention", "encoder self-attention"]
    assert [len(group["layers"]) for group in groups] == [3, 2]
    assert all(group["weights"] for group in groups)


def assert_self_contained(text):
    assert not re.search(r"https?:|//\w", re.sub(r'xmlns="[^"]*"|^ *//.*$|(?<=[;{}]) +// .*$', "", text, flags=re.M))
    assert not re.search(r"\b(src|href|action|formaction|poster|ping)\s*=|@import|url\(", text)


def test_nothing_is_fetched():
    assert_self_contained(page())
    assert_self_contained(attention_svg(maps(), title="A"))


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
    group = AttentionMaps.of(NASTY[0], NASTY, NASTY, weights(1, 2, len(NASTY), len(NASTY)))
    group = replace(group, note=NASTY[6] + NASTY[0])
    text = attention_page(group, title="</title>" + NASTY[0])
    text.encode("utf-8")
    read = Page(text)
    assert [tag for tag, _ in read.tags].count("script") == 2
    [held] = facts(text)["groups"]
    assert held["key"]["pieces"] == [
        "</script><script>alert(1)</script>",
        "<b>\"'&amp;",
        "\ufffd␀␉␤",
        "␣",
        "<U+202E>abc",
        "]]>",
        "<!--",
    ]
    assert read.content["title"] == ["</title></script><script>alert(1)</script>"]
    assert held["name"] == NASTY[0]
    assert held["note"] == "<!--</script><script>alert(1)</script>"


def test_text_cannot_leave_its_place_in_the_picture():
    count = len(NASTY)
    group = AttentionMaps.of("cross-attention", NASTY, NASTY, weights(1, 1, count, count))
    text = attention_svg(group, title=NASTY[0], note=NASTY[1])
    root = ET.fromstring(text.encode("utf-8"))
    assert root.find(f"{SVG}title").text == NASTY[0]
    assert {element.tag.removeprefix(SVG) for element in root} == {"title", "desc", "style", "rect", "text", "path"}
    assert "alert" not in "".join(element.tag for element in root.iter())


def test_the_picture_draws_each_strong_weight_once_as_line_and_number():
    w = [[[[0.9, 0.06, 0.04], [0.0, 0.3, 0.7]]]]
    root = ET.fromstring(attention_svg(AttentionMaps.of("cross-attention", ["x", "y"], list("abc"), w), title="t"))
    kinds = [element.get("class") for element in root]
    assert kinds.count("line") == 4
    assert kinds.count("chip") == 6
    assert [e.get("fill-opacity") for e in root if e.get("class") == "cell"] == ["0.90", "0.06", "0.04", "0.30", "0.70"]
    assert [e.text for e in root if (e.get("class") or "").startswith("number")] == ["90", "6", "30", "70"]
    assert root.find(f"{SVG}desc").text == "Strongest key of each query: x: a 90 %; y: c 70 %"
    widths = sorted(float(e.get("stroke-width")) for e in root if e.get("class") == "line")
    assert widths == pytest.approx([0.6 + 6 * x for x in (0.06, 0.3, 0.7, 0.9)], abs=0.01)


def test_the_picture_is_of_the_layer_and_head_asked_for_and_says_so():
    group = AttentionMaps.of(
        "self-attention", ["a", "b"], ["a", "b"], weights(2, 3, 2, 2), layers=[5, 8], heads=[0, 1, 4]
    )

    def drawn(**options):
        root = ET.fromstring(attention_svg(group, title="t", **options))
        cells = [float(e.get("fill-opacity")) for e in root if e.get("class") == "cell"]
        return cells, next(e.text for e in root if e.get("class") == "quiet")

    assert drawn(layer=8, head=4)[1] == "self-attention, layer 8, head 4."
    np.testing.assert_allclose(
        drawn(layer=8, head=4)[0], [w for w in group.weights_of(8, 4).flat if w >= 0.005], atol=0.006
    )
    assert drawn(layer=5)[1] == "self-attention, layer 5, mean of 3 heads."
    np.testing.assert_allclose(drawn(layer=5)[0], group.weights[0].mean(0).ravel(), atol=0.006)
    with pytest.raises(HeedfulError, match="no layer 6 in this self-attention; there are 5, 8"):
        drawn(layer=6)


def test_the_picture_of_a_window_shows_its_pieces_and_what_is_left_out():
    whole = weights(1, 1, 2, 3)
    window = AttentionMaps(
        name="self-attention",
        queries=list("abcdef"),
        keys=list("abcdef"),
        layers=[0],
        heads=[0],
        weights=whole,
        rows=(2, 4),
        columns=(3, 6),
        note="Shown are queries 2:4.",
    )
    root = ET.fromstring(attention_svg(window, title="t"))
    words = [e.text for e in root if e.get("class") == "word"]
    assert sorted(words) == sorted([*"def", *"def", *"cd"])
    assert next(e.text for e in root if e.get("class") == "quiet").endswith("Shown are queries 2:4.")


def test_both_serve_light_and_dark():
    assert "prefers-color-scheme: dark" in page()
    assert "prefers-color-scheme:dark" in attention_svg(maps(), title="A")


def test_everything_stays_within_the_picture():
    for count in (1, 5, 40):
        source, target = ["Donaudampfschifffahrtsgesellschaft" * 3] * count, ["一九九七"] * (count * 2)
        root = ET.fromstring(attention_svg(maps(target, source, 1, 1), title="Wide " * 10))
        wide, high = float(root.get("width")), float(root.get("height"))
        for element in root:
            if element.get("x") and element.tag != f"{SVG}style":
                assert 0 <= float(element.get("x")) <= wide - float(element.get("width") or 0)
                assert 0 <= float(element.get("y")) <= high - float(element.get("height") or 0)


def test_a_page_is_bounded_whatever_the_length():
    empty = len(page())
    assert empty < 60_000
    noise = np.random.default_rng(0).uniform(size=(2, 3, 300, 300)) / 300  # deflating gains little here
    pieces = [f" word {i}" for i in range(300)]
    group = AttentionMaps.of("self-attention", pieces, pieces, noise)
    small = AttentionMaps.of("decoder self-attention", pieces[:9], pieces[:9], noise[:, :, :9, :9])
    for limit in (150_000, 400_000):
        text = attention_page([group, small], title="long", limit=limit)
        assert 0.8 * limit < len(text.encode()) <= limit
        long, short = facts(text)["groups"]
        shown = long["query"]["window"][1]
        assert len(long["query"]["pieces"]) == len(long["key"]["pieces"]) == shown < 300
        assert f"queries 0:{shown} of 300 and keys 0:{shown} of 300" in long["note"]
        assert long["overview"]["rows"][-1] == 300
        assert short["note"] == ""
        assert len(short["key"]["pieces"]) == 9


def test_a_piece_of_any_length_takes_little_room():
    text = attention_page(maps(["x" * 1_000_000], ["y" * 1_000_000], 1, 1), title="t")
    assert len(text) < 60_000
    [group] = facts(text)["groups"]
    assert group["query"]["pieces"][0].endswith("x…")


def test_impossible_views_are_refused():
    with pytest.raises(HeedfulError, match="no attention maps; give at least one"):
        attention_page([], title="")
    with pytest.raises(HeedfulError, match=r"unknown view 'head'.*heads"):
        page(view="head")
    with pytest.raises(HeedfulError, match="3 layers of 4 heads do not fit a page"):
        page(limit=1000)
    with pytest.raises(HeedfulError, match=r"figure of 121 keys and 1 queries is not readable.*at most 120 of each"):
        attention_svg(maps(["b"], ["a"] * 121, 1, 1), title="")


def test_the_direction_follows_the_script():
    [group] = facts(page(maps(["4", "月"], ["יום", " שלישי"])))["groups"]
    assert (group["key"]["way"], group["query"]["way"]) == ("rtl", "ltr")
