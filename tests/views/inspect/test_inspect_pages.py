"""The pages of `heedful inspect` in a real browser: each draws what it is to show, and complains of nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heedful.views.inspect.inspect import inspect

Make = Callable[[str], Path]
Opened = Callable[..., Any]
TEXT = "a small dog sees two cats"


@pytest.mark.parametrize(
    ("kind", "given", "options", "seen"),
    [
        ("encoder", TEXT, {"view": "gradient"}, "gradient × input"),
        ("decoder", TEXT, {"view": "embeddings"}, "nearest in the whole vocabulary"),
        ("decoder", TEXT, {"view": "importance"}, "head 3"),
        ("decoder", None, {"view": "positions"}, "31"),
        ("encoder", [TEXT, "the cats"], {"view": "similarity"}, "the cats"),
        ("pair", TEXT, {"view": "gradient", "target": "les chats"}, "</s>"),
        ("vision", None, {"view": "filters"}, "15"),
        ("vision", np.eye(12, dtype=np.uint8) * 255, {"view": "gradient"}, "2,2"),
    ],
)
def test_a_picture_and_its_numbers(
    made: Make, open_page: Opened, kind: str, given: Any, options: dict[str, Any], seen: str
) -> None:
    page = open_page(inspect(made(kind), given, **options).html(), dark=True)
    image = page.locator("main img")
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
    assert len(image.get_attribute("alt")) > 10
    numbers = page.locator("details")
    assert not numbers.locator("table").is_visible()
    numbers.locator("summary").click()
    assert numbers.locator("table").is_visible()
    assert seen in numbers.inner_text()


def test_a_narrow_screen_scrolls_what_would_be_too_small(made: Make, open_page: Opened) -> None:
    """The picture keeps a size that can be read, words stand from the left, and the page itself does not scroll."""
    wide = open_page(inspect(made("decoder"), " ".join([TEXT] * 2), view="gradient").html(), width=360)
    image = wide.locator("main img")
    assert image.evaluate("image => image.decode().then(() => image.clientWidth)") >= 640
    assert wide.evaluate("document.documentElement.scrollWidth <= 360")
    words = open_page(inspect(made("decoder"), TEXT, view="embeddings").html(), width=360)
    words.locator("summary").click()
    cell = words.locator("tbody td").last
    assert cell.evaluate("cell => getComputedStyle(cell).textAlign") == "left"
    assert cell.bounding_box()["width"] > 250


def test_an_encoder_decoder_opens_at_its_cross_attention(made: Make, open_page: Opened) -> None:
    page = open_page(inspect(made("pair"), "two cats", target="les chats").html())
    choice = page.locator("select.group")
    assert choice.locator("option").all_inner_texts() == [
        "cross-attention",
        "encoder self-attention",
        "decoder self-attention",
    ]
    assert "Cross-attention" in page.locator("p.about").inner_text()
    assert [text.strip() for text in page.locator('[data-side="query"] button').all_inner_texts()][-1] == "</s>"


@pytest.mark.parametrize(
    ("kind", "given", "options"),
    [
        ("decoder", TEXT, {"view": "steps", "max_new_tokens": 4}),
        ("pair", TEXT, {"view": "steps", "max_new_tokens": 4}),
        ("decoder", TEXT, {"view": "lens"}),
        ("filler", TEXT, {"view": "lens"}),
        ("vision", np.eye(12, dtype=np.uint8) * 255, {}),
        ("vision", np.eye(12, dtype=np.uint8) * 255, {"view": "matrix"}),
        ("decoder", TEXT * 2, {"view": "model", "queries": "2:9", "keys": "0:9"}),
    ],
)
@pytest.mark.full(keep=3)
def test_pages_that_move(made: Make, open_page: Opened, kind: str, given: Any, options: dict[str, Any]) -> None:
    """That they open without a complaint; how they move is their own tests' matter."""
    look = inspect(made(kind), given, **options)
    page = open_page(look.html())
    assert page.locator("h1").inner_text() == look.title
