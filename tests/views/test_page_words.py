"""The page of a text about an image, in a browser: a word that is pointed at or chosen names its strongest patch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from heedful.views.words_html import WordMaps, words_page

Open = Callable[..., Any]
WORDS, GRID = ["a", "red", "<i>disc</i>", "left", "of", "a", "blue", "square"], (3, 4)


def maps(words: list[str] = WORDS, side: int = 8) -> WordMaps:
    """Random weights of 2 layers with 3 heads."""
    random = np.random.default_rng(0)
    weights = random.random((2, 3, len(words), *GRID)) ** 4
    return WordMaps(
        pixels=random.integers(0, 256, (side * GRID[0], side * GRID[1], 3), dtype=np.uint8),
        words=words,
        grid=GRID,
        layers=[0, 1],
        heads=[0, 1, 2],
        weights=weights / weights.sum((3, 4), keepdims=True) * 0.9,
    )


def lit(page: Any, word: int) -> np.ndarray:
    """The share of light on each patch of a word's image: 1 is the image as it is."""
    alphas = (
        page.locator(".words canvas")
        .nth(word)
        .evaluate(
            """canvas => {
            const { width, height } = canvas;
            const copy = new OffscreenCanvas(width, height).getContext("2d");  // one that is read often is warned of
            copy.drawImage(canvas, 0, 0);
            return [...copy.getImageData(0, 0, width, height).data].filter((_, i) => i % 4 === 3);
        }"""
        )
    )
    return 1 - np.array(alphas).reshape(GRID) / (255 * 0.88)


def chosen(page: Any) -> list[int]:
    return [int(one.get_attribute("data-word")) for one in page.locator("figure.chosen").all()]


def strongest(word: str, weights: np.ndarray) -> str:
    row, column = np.unravel_index(weights.argmax(), GRID)
    return f"“{word}”: {100 * weights.max():.1f} % on row {row + 1}, column {column + 1}."


def address(page: Any) -> str:
    return page.evaluate("location.hash")


def test_each_word_lights_its_patches(open_page: Open) -> None:
    given = maps()
    page = open_page(words_page(given, title="An image"))
    mean = given.weights.mean((0, 1))
    for word in range(len(WORDS)):
        np.testing.assert_allclose(lit(page, word), mean[word] / mean[word].max(), atol=0.006)
    assert page.locator(".words b").all_text_contents() == WORDS
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth === 32)")
    assert len(set(page.evaluate("[...document.images].map(image => image.src)"))) == 1
    image, canvas = (page.locator(f".words {name}").nth(2).bounding_box() for name in ("img", "canvas"))
    assert image == canvas
    assert image["width"] / image["height"] == pytest.approx(4 / 3, rel=0.01)
    assert chosen(page) == []


def test_a_word_is_pointed_at_clicked_and_walked_to(open_page: Open) -> None:
    given = maps()
    page = open_page(words_page(given, title="An image"))
    mean, figures, status = given.weights.mean((0, 1)), page.locator(".words figure"), page.locator(".status")
    figures.nth(1).hover()
    assert (chosen(page), status.text_content()) == ([1], strongest("red", mean[1]))
    figures.nth(7).click()
    assert (chosen(page), address(page)) == ([7], "#word=7")
    page.keyboard.press("Shift+Tab")
    assert (chosen(page), status.text_content()) == ([6], strongest("blue", mean[6]))
    page.keyboard.press("Tab")
    assert chosen(page) == [7]


def test_layers_and_heads_are_chosen_by_list_and_key(open_page: Open) -> None:
    given = maps()
    page = open_page(words_page(given, title="An image"), "#layer=1&head=2&word=7")  # the last word too
    weights = given.weights[1, 2]
    assert (chosen(page), page.locator(".status").text_content()) == ([7], strongest("square", weights[7]))
    np.testing.assert_allclose(lit(page, 3), weights[3] / weights[3].max(), atol=0.006)
    page.select_option("select.head", "0")
    np.testing.assert_allclose(lit(page, 3), (mean := given.weights[1].mean(0))[3] / mean[3].max(), atol=0.006)
    assert address(page) == "#layer=1&word=7"
    page.locator("body").press("l")
    page.keyboard.press("Shift+H")
    assert address(page) == "#head=2&word=7"
    over_layers = given.weights.mean(0)[2]
    np.testing.assert_allclose(lit(page, 0), over_layers[0] / over_layers[0].max(), atol=0.006)


@pytest.mark.parametrize("width", [360, 1000])
def test_nothing_moves_away_from_the_pointer(open_page: Open, width: int) -> None:
    page = open_page(words_page(maps([*WORDS, "w" * 60]), title="An image"), width=width, dark=width < 500)
    before = [figure.bounding_box() for figure in page.locator(".words figure").all()]
    for word in range(len(WORDS)):
        page.locator(".words canvas").nth(word).hover()
        assert chosen(page) == [word]
        assert [figure.bounding_box() for figure in page.locator(".words figure").all()] == before
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_page_of_means_has_no_list_of_heads(open_page: Open) -> None:
    given = maps(side=16)
    html = words_page(given, title="An image", max_bytes=len(words_page(given, title="An image")) // 3)
    assert json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])["heads"] == []
    page = open_page(html, "#layer=0&head=1&word=0")
    assert page.locator("select.head option").all_text_contents() == ["mean"]
    weights = given.weights[0].mean(0)
    np.testing.assert_allclose(lit(page, 4), weights[4] / weights[4].max(), atol=0.006)
    assert "only the mean over 3 heads" in page.locator("footer").text_content()


def test_the_page_has_no_style_that_a_policy_of_nonces_forbids() -> None:
    html = words_page(maps(), title="An image")
    assert not re.search(r"<[^>]* style=", html)
    assert html.count("<i>") == 0
