"""Every text of every kind of figure lies within the figure, measured by a browser in this machine's fonts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from heedful.views import (
    AttentionMaps,
    LensPredictions,
    attention_svg,
    confusion_svg,
    feature_maps_svg,
    figures,
    loss_curve,
    mistakes_svg,
    patch_grid_svg,
    strip_svg,
)
from heedful.views.curve import curve
from heedful.views.mistakes import Mistake

# words whose letters are wider than a sans-serif font's mean, as long as titles of `heedful inspect` are
TITLES = ("transformer-medium: momentum, temperature · parameters of term memory", "tiny: Who came? · gradient × input")
NOTE = "remembered parameters of the transformer-medium: momentum, temperature, term memory"
PIXELS = np.zeros((8, 8, 3), np.uint8)
MAPS = AttentionMaps.of("self-attention", ["a", "b"], ["a", "b"], [[[[1, 0], [0.25, 0.75]]]])
LENS = LensPredictions(pieces=["a"], layers=["embedding"], top=[[[("b", 0.5)]]], target=["b"], note=NOTE)

FIGURES: Mapping[str, Callable[[str], str]] = {
    "bars": lambda title: figures.bars(["a"], [1.0], title, note=NOTE),
    "bright_images": lambda title: figures.bright_images(PIXELS, np.ones((1, 2, 2)), ["a"], title, note=NOTE),
    "filters": lambda title: figures.filters(np.ones((1, 2, 2, 3)), title, note=NOTE),
    "flow": lambda title: figures.flow({"x": figures.Box(text="x")}, [], title, note=NOTE),
    "functions": lambda title: figures.functions([0, 1], {"f": [0, 1]}, title, note=NOTE),
    "grid": lambda title: figures.grid(np.ones((1, 1)), title, note=NOTE),
    "heads": lambda title: figures.heads(MAPS, 0, None, title),
    "heat": lambda title: figures.heat(np.ones((1, 1)), ["a"], ["b"], title, note=NOTE),
    "lens": lambda title: figures.lens(LENS, title),
    "masks": lambda title: figures.masks({"causal": np.ones((2, 2), bool)}, title, note=NOTE),
    "matrix": lambda title: figures.matrix(MAPS, 0, None, title),
    "model": lambda title: figures.model(MAPS, title),
    "overlay": lambda title: figures.overlay(PIXELS, np.ones((2, 2)), title, note=NOTE),
    "saliency": lambda title: figures.saliency(["a"], [1.0], title, note=NOTE),
    "scatter": lambda title: figures.scatter([[0, 0], [1, 1]], ["a", "b"], title, note=NOTE),
    "attention_svg": lambda title: attention_svg(MAPS, title=title, note=NOTE),
    "confusion_svg": lambda title: confusion_svg(["a", "b"], [[1, 0], [0, 1]], title),
    "confusion_svg of many": lambda title: confusion_svg(
        [f"class {i}" for i in range(40)], np.eye(40, dtype=int).tolist(), title
    ),
    "feature_maps_svg": lambda title: feature_maps_svg(np.ones((1, 2, 2)), ["a"], title),
    "loss_curve": lambda title: loss_curve([{"step": s, "loss": 1.0 / s} for s in range(1, 9)], title),
    "curve": lambda title: curve({NOTE[:24]: [(1, 2), (2, 1)]}, title=title, x_label="x", y_label="y"),
    "mistakes_svg": lambda title: mistakes_svg([Mistake(PIXELS, "automobile", "mammal", 0.5)], title, 2_000_000),
    "patch_grid_svg": lambda title: patch_grid_svg(PIXELS, 4, title),
    "strip_svg": lambda title: strip_svg(PIXELS, 4, title),
}

OUTSIDE = """() => {
    const { left, right, top, bottom } = document.querySelector("svg").getBoundingClientRect();
    return [...document.querySelectorAll("svg text")].filter(text => {
        const box = text.getBoundingClientRect();
        return box.right > right - 2 || box.left < left + 2 || box.bottom > bottom || box.top < top;
    }).map(text => text.textContent);
}"""


def test_every_kind_of_figure_is_measured() -> None:
    assert {name for name in figures.__all__ if name.islower()} <= FIGURES.keys()
    from heedful import views

    assert {name for name in views.__all__ if name.endswith(("_svg", "_curve"))} <= FIGURES.keys()


@pytest.mark.parametrize("title", TITLES)
def test_no_text_is_clipped(browser: Any, title: str) -> None:
    page = browser.new_page()
    clipped = {}
    for name, draw in FIGURES.items():
        page.set_content(draw(title))
        assert page.locator("text.title").text_content() == title
        if outside := page.evaluate(OUTSIDE):
            clipped[name] = outside
    page.close()
    assert clipped == {}
