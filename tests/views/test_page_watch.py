"""The page of a run's looks: what it holds, how large it is, and how it moves in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heedful.errors import HeedfulError
from heedful.training.series import RecordedMaps, Series
from heedful.views.attention_data import AttentionMaps
from heedful.views.watch_html import MEAN, Snapshot, WatchHistory, draw_watch, read_watch, watch_page

SOURCE, TARGET = [" the", " cat", " sat", "</s>"], [" le", " chat", "</s>"]


def maps(name: str, queries: list[str], keys: list[str], seed: int, **more: Any) -> AttentionMaps:
    raw = np.random.default_rng(seed).random((2, 3, len(queries), len(keys))) ** 4
    return AttentionMaps.of(name, queries, keys, raw / raw.sum(-1, keepdims=True), **more)


def watched(steps: int = 5) -> WatchHistory:
    snapshots = [
        Snapshot(
            step=100 * i,
            value=None if i == 0 else 1.5 * i,
            maps=[
                [maps("encoder self-attention", SOURCE, SOURCE, i), maps("cross-attention", TARGET, SOURCE, 50 + i)],
                [
                    maps("encoder self-attention", ["<b>"], ["<b>"], 0),
                    maps("cross-attention", TARGET[: 1 + i], ["<b>"], i),
                ],
            ],
        )
        for i in range(steps)
    ]
    return WatchHistory(
        inputs=["the cat sat\tle chat", "<b>&"], images=[None, None], metric="bleu", snapshots=snapshots, left_out=2
    )


def pictured() -> WatchHistory:
    pixels = np.random.default_rng(0).integers(0, 255, (28, 28, 1), np.uint8)
    keys = ["[class]", *(f"{row},{column}" for row in range(4) for column in range(4))]
    snapshots = []
    for step in (0, 10):
        weights = np.full((2, 2, 1, 17), 0.25 / 16)
        weights[..., 1 + (5 if step else 10)] += 0.75
        snapshots.append(
            Snapshot(step=step, value=None, maps=[[AttentionMaps.of("self-attention", ["[class]"], keys, weights)]])
        )
    return WatchHistory(inputs=["/far/away/cat.png"], images=[(pixels, (4, 4))], metric="accuracy", snapshots=snapshots)


def held(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert found
    return json.loads(found[1])


def test_the_page_holds_the_looks_and_nothing_of_others() -> None:
    html = watch_page(watched(), title="<i>a run</i>")
    facts = held(html)
    assert [look["step"] for look in facts["snapshots"]] == [0, 100, 200, 300, 400]
    assert [look["value"] for look in facts["snapshots"]] == [None, 1.5, 3.0, 4.5, 6.0]
    assert facts["metric"] == "BLEU"
    assert facts["inputs"] == ["the cat sat → le chat", "<b>&"]
    assert "5 snapshots are kept, 2 others" in html
    assert "<b>" not in html
    assert "<i>" not in html
    assert "http" not in html.replace("http-equiv", "")


def test_looks_that_do_not_fit_are_refused() -> None:
    one = watched()
    with pytest.raises(HeedfulError, match="nothing to draw"):
        WatchHistory(inputs=[], images=[], metric="loss", snapshots=one.snapshots)
    odd = Snapshot(step=7, value=None, maps=[one.snapshots[0].maps[0]])
    with pytest.raises(HeedfulError, match="step 7"):
        WatchHistory(inputs=one.inputs, images=one.images, metric="loss", snapshots=[*one.snapshots, odd])


def test_a_full_series_is_a_page_below_five_megabytes(tmp_path: Path) -> None:
    names = [f" word{i}" for i in range(29)]
    series = Series(tmp_path, [{"text": " ".join(names)}])
    random = np.random.default_rng(0)
    for step in range(60):
        weights = random.random((12, 12, 29, 29))
        maps = RecordedMaps(
            name="self-attention", queries=names, keys=names, layers=range(12), heads=range(12), weights=weights
        )
        series.add(step, "loss", 1.0, [[maps]])
    html = draw_watch(tmp_path).read_text(encoding="utf-8")
    facts = held(html)
    assert 12 <= len(facts["snapshots"]) < 60
    assert f"{60 - len(facts['snapshots'])} others, evenly spread, are left out" in html
    assert 1_500_000 < len(html.encode()) < 5_000_000


def test_recorded_attention_is_read_back(tmp_path: Path) -> None:
    series = Series(tmp_path, [{"text": "a b"}])
    weights = np.array([[[[1.0, 0.0], [0.25, 0.75]]]])
    kind = {"name": "self-attention", "queries": ["a", " b"], "keys": ["a", " b"], "layers": [3]}
    series.add(4, "loss", 0.5, [[RecordedMaps(**kind, heads=[MEAN], weights=weights, note="the mean of 8 heads")]])
    found = read_watch(tmp_path / "watch.jsonl")
    (look,) = found.snapshots
    (one,) = look.maps[0]
    assert (look.step, look.value, found.metric, found.inputs) == (4, 0.5, "loss", ["a b"])
    assert (one.layers, one.heads, one.note) == ((3,), (MEAN,), "the mean of 8 heads")
    np.testing.assert_allclose(one.weights, weights, atol=0.5 / 255)
    for broken in ("", "{}", '{"inputs": [], "steps": []}\n'):
        (tmp_path / "watch.jsonl").write_text(broken, encoding="utf-8")
        with pytest.raises(HeedfulError, match="holds no recorded attention"):
            draw_watch(tmp_path)


def test_it_moves(open_page: Callable[..., Any]) -> None:
    page = open_page(watch_page(watched(), title="A run"), "#step=100&map=1&layer=0&head=2")
    text = lambda query: page.locator(query).text_content()  # noqa: E731
    assert text(".at") == "step 100"
    assert text(".metric") == "BLEU 1.5"
    assert text(".which") == "cross-attention, layer 0, head 2"
    found = watched().snapshots[1].maps[0][1].weights_of(0, 2)
    assert text(".sharp") == f"sharpness {round(100 * found.max(1).mean())} %"
    page.locator(".steps").fill("3")
    assert text(".at") == "step 300"
    assert "step=300" in page.url
    page.keyboard.press("l")
    page.keyboard.press("h")
    assert text(".which") == "cross-attention, layer 1, mean of 3 heads"
    page.locator(".one canvas").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    now, then = (round(100 * watched().snapshots[i].maps[0][1].weights_of(1)[1, 0]) for i in (3, 4))
    told = text(".status").replace("\u2068", "").replace("\u2069", "")
    assert told.startswith("␣chat → ␣the: ")
    assert f"{now} % at step 300, {then} % at step 400" in told
    page.locator(".sheet button").nth(2).click()
    assert text(".which") == "cross-attention, layer 0, head 1"
    page.locator("select.input").select_option("1")
    assert text(".which").startswith("cross-attention, layer 0, head 1")
    page.keyboard.press("Escape")
    page.locator("select.map").select_option("0")
    page.locator(".play").click()
    page.locator(".play[aria-pressed=true]").wait_for()
    page.locator(".at", has_text="step 400").wait_for()
    page.locator(".play[aria-pressed=false]").wait_for()


def cell(page: Any, row: int, column: int) -> list[int]:
    """The colour in the middle of a patch."""
    return page.evaluate(
        """([row, column]) => { const canvas = document.querySelector(".one canvas"), side = canvas.width / 4;
        const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
        copy.drawImage(canvas, 0, 0);
        return [...copy.getImageData((column + .5) * side, (row + .5) * side, 1, 1).data]; }""",
        [row, column],
    )


def test_an_image_is_lit_where_it_is_looked_at(open_page: Callable[..., Any]) -> None:
    one = pictured()
    page = open_page(watch_page(one, title="A run"), dark=True)
    page.evaluate("pictures[0].decode()")
    assert page.locator("select.input option").text_content() == "away/cat.png"
    assert "of [class]" in page.locator(".which").text_content()
    assert re.search("full light is 7[67] %", page.locator(".which").text_content())
    page.wait_for_timeout(100)
    pixels = one.images[0][0]
    lit, dim = cell(page, 1, 1), cell(page, 2, 2)
    assert lit[0] == pytest.approx(int(pixels[10, 10, 0]), abs=3)
    assert dim[0] < 0.3 * int(pixels[17, 17, 0]) + 20
    page.keyboard.press(",")
    assert page.locator(".at").text_content() == "step 0"
    assert cell(page, 1, 1)[0] < lit[0]


def test_every_layer_and_head_of_a_step_is_a_small_map(
    open_page: Callable[..., Any], shades: Callable[..., Any]
) -> None:
    look = watched().snapshots[2]
    page = open_page(watch_page(watched(), title="A run"), "#step=200&map=1")
    canvases = page.locator(".sheet canvas")
    for number, (layer, head) in enumerate((layer, head) for layer in range(2) for head in (None, 0, 1, 2)):
        np.testing.assert_allclose(shades(canvases.nth(number)), look.maps[0][1].weights_of(layer, head), atol=0.01)
    page = open_page(watch_page(pictured(), title="A run"), "#step=10")
    weights = pictured().snapshots[1].maps[0][0].weights_of(1, 0)[0, 1:].reshape(4, 4)
    np.testing.assert_allclose(shades(page.locator(".sheet canvas").nth(4)), weights / weights.max(), atol=0.01)


def test_it_fits_a_narrow_screen(open_page: Callable[..., Any]) -> None:
    page = open_page(watch_page(watched(), title="A run"), width=420)
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
