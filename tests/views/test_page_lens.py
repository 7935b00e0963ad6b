from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest

from heedful.errors import HeedfulError
from heedful.views.lens_html import LensPredictions, lens_page

READ = [" the", " cat", " s", "at"]
NAMES = [" a", " b", " c", "<b>&amp;</script>", "\n", " é"]


def shares(*shape, seed=0):
    """(..., K) probabilities, largest first, that leave something to others."""
    drawn = np.random.default_rng(seed).dirichlet(np.full(shape[-1] + 1, 0.5), shape[:-1])
    return -np.sort(-drawn[..., :-1], axis=-1)


def lens(layers=4, positions=4, candidates=3, names=NAMES, seed=0, **changes):
    random = np.random.default_rng(seed)
    drawn = shares(layers, positions, candidates, seed=seed).tolist()
    orders = random.permuted(np.tile(np.arange(len(names)), (layers, positions, 1)), axis=-1)[..., :candidates].tolist()
    top = [
        [[(names[i], p) for i, p in zip(order, cell, strict=True)] for order, cell in zip(*rows, strict=True)]
        for rows in zip(orders, drawn, strict=True)
    ]
    facts = {
        "pieces": [READ[i % 4] for i in range(positions)],
        "layers": ["embedding", *(f"block {i}" for i in range(layers - 1))],
        "top": top,
        "target": [names[i % len(names)] for i in range(positions - 1)] + [""],
    }
    return LensPredictions(**(facts | changes))


def facts(text):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found[1])


def first_final(given, position):
    likeliest = [row[position][0][0] for row in given.top]
    return likeliest.index(likeliest[-1])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"pieces": []}, "nothing to show: 0 pieces and 4 layers"),
        ({"target": ["a"]}, "1 targets for 4 pieces"),
        ({"top": []}, "candidates of 0 layers, but 4 layer names"),
        (
            {"pieces": READ[:3], "target": READ[:3]},
            "candidates at 4 positions in layer embedding, but the text has 3 pieces",
        ),
    ],
)
def test_wrong_lengths_are_refused(changes, told):
    with pytest.raises(HeedfulError, match=re.escape(told)):
        lens(**changes)


@pytest.mark.parametrize("cell", [[], [("a", 1.2)], [("a", float("nan"))]])
def test_a_cell_needs_candidates_with_probabilities(cell):
    with pytest.raises(HeedfulError, match="layer x has a position without candidates"):
        LensPredictions(pieces=["a"], layers=["x"], top=[[cell]], target=[""])


def test_the_page_holds_every_candidate_and_its_probability():
    given = lens(layers=5, positions=7)
    held = facts(lens_page(given, title="A lens"))
    places = np.frombuffer(base64.b64decode(held["top"]), "<u2").reshape(5, 7, 3)
    kept = np.frombuffer(base64.b64decode(held["shares"]), "<u2").reshape(5, 7, 3) / 0xFFFF
    shown = {" a": "␣a", " b": "␣b", " c": "␣c", "\n": "↵", " é": "␣é"}
    for layer, row in enumerate(given.top):
        for position, cell in enumerate(row):
            for rank, (name, share) in enumerate(cell):
                assert held["pool"][places[layer, position, rank]] == shown.get(name, name)
                assert abs(kept[layer, position, rank] - share) <= 0.5 / 0xFFFF + 1e-12


def test_texts_can_neither_end_the_data_nor_ask_for_anything():
    text = lens_page(lens(name="</p><script>"), title="</title><script>alert(1)</script>")
    assert text.count("<script") == 2  # the data, and the page's own
    assert "default-src 'none'" in text
    assert not re.search(r"https?://", text)


def long_lens(layers, positions):
    names = [f" piece{i}" for i in range(70_000)]
    pieces = np.random.default_rng(0).integers(len(names), size=(layers, positions, 5)).tolist()
    top = [
        [list(zip([names[i] for i in cell], p, strict=True)) for cell, p in zip(row, ps, strict=True)]
        for row, ps in zip(pieces, shares(layers, positions, 5).tolist(), strict=True)
    ]
    named = [str(i) for i in range(layers)]
    return LensPredictions(pieces=names[:positions], layers=named, top=top, target=names[1 : positions + 1])


def test_any_length_stays_small_and_the_page_says_what_is_left_out():
    text = lens_page(long_lens(13, 8192), title="Long")
    held = facts(text)
    assert 3_000_000 < len(text.encode()) < 5_000_000
    assert held["wide"]
    assert (held["count"], len(held["pieces"])) == (3, 8192)
    assert "To keep this page small, only 3 candidates per cell are kept." in text


def test_where_three_candidates_are_too_many_the_end_is_left_out():
    given = long_lens(4, 1000)
    text = lens_page(given, title="Long", max_bytes=120_000)
    held = facts(text)
    kept = len(held["pieces"])
    assert 80_000 < len(text.encode()) < 160_000
    assert held["pieces"] == [name.replace(" ", "␣") for name in given.pieces[:kept]]
    assert f"only 3 candidates per cell and the first {kept:,} of 1,000 positions are kept" in text


def test_long_pieces_are_cut():
    given = LensPredictions(pieces=["x" * 10_000], layers=["0"], top=[[[("y" * 10_000, 1.0)]]], target=[""])
    text = lens_page(given, title="Long pieces")
    assert facts(text)["pieces"] == ["x" * 39 + "…"]
    assert "y" * 40 not in text


# ---- in a browser ----


def address(page):
    return page.evaluate("() => location.hash")  # playwright's own `url` hears of a change a little later


def test_the_table_marks_where_the_final_piece_first_appears(open_page):
    given = lens(layers=6, positions=9, seed=3)
    page = open_page(lens_page(given, title="A lens"))
    for position in range(9):
        column = page.locator(f"tbody td:nth-child({position + 2})")
        marked = [i for i in range(6) if "first" in (column.nth(i).get_attribute("class") or "").split()]
        assert marked == [first_final(given, position)]
    assert page.locator("tfoot td").nth(8).inner_text().strip() == "–"
    likeliest, true = given.top[-1][0][0][0], given.target[0]
    assert page.locator("tfoot td").nth(0).inner_text().split("\n")[-1].startswith("✓" if likeliest == true else "✗")


def test_a_cell_that_is_pointed_at_tells_its_candidates(open_page):
    given = lens()
    page = open_page(lens_page(given, title="A lens"))
    assert page.locator(".cards").is_hidden()
    page.locator("tbody tr").nth(2).locator("td").nth(1).hover()
    names = page.locator(".candidates .name").all_inner_texts()
    assert [name.replace("␣", " ") for name in names[:3]] == [
        {"\n": "↵"}.get(name, name) for name, _ in given.top[2][1]
    ]
    rest = 1 - sum(share for _, share in given.top[2][1])
    assert names[3:] == (["all others"] if rest > 0.0005 else [])
    assert page.locator(".through li").count() == 4
    assert "After block 1, position 1" in page.locator(".status").inner_text()
    page.mouse.move(0, 0)
    assert page.locator(".cards").is_hidden()


def test_keys_walk_through_the_table_and_the_address_keeps_the_cell(open_page):
    given = lens(layers=5, positions=6, seed=1)
    page = open_page(lens_page(given, title="A lens"), "#layer=block 3&position=2")
    assert page.locator("tbody td.chosen").count() == 1
    page.keyboard.press("Tab")
    if page.evaluate("() => document.activeElement === document.body"):  # where some versions of Chromium begin
        page.keyboard.press("Tab")
    assert address(page).endswith("#layer=block+3&position=2")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    assert address(page).endswith("#layer=block+2&position=3")
    page.keyboard.press("f")
    assert address(page).endswith(f"#layer={given.layers[first_final(given, 3)].replace(' ', '+')}&position=3")
    page.keyboard.press("End")
    assert address(page).endswith("position=5")
    page.keyboard.press("ArrowRight")
    assert address(page).endswith("position=5")
    page.keyboard.press("Escape")
    assert page.locator("tbody td.chosen").count() == 0
    assert page.locator("tbody td[tabindex='0']").count() == 1


def test_many_positions_are_a_window_under_an_overview(open_page):
    given = lens(layers=3, positions=200)
    page = open_page(lens_page(given, title="Long"), dark=True)
    assert page.locator("thead th").count() == 41
    assert page.locator(".range").inner_text() == "positions 0–39 of 0–199"
    assert page.get_by_role("button", name="earlier").is_disabled()
    page.get_by_role("button", name="later").click()
    assert page.locator("thead th").nth(1).inner_text().split() == ["␣the", "40"]
    page.locator(".overview canvas").focus()
    page.keyboard.press("End")
    assert page.locator(".range").inner_text() == "positions 160–199 of 0–199"
    page.locator("tbody td").first.focus()
    page.keyboard.press("ArrowLeft")
    assert address(page).endswith("position=159")
    box = page.locator(".overview canvas").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 10)
    assert page.locator(".range").inner_text() == "positions 80–119 of 0–199"


def test_short_texts_have_no_overview(open_page):
    page = open_page(lens_page(lens(), title="Short"))
    assert page.locator(".overview").is_hidden()
    assert page.locator("thead th").count() == 5
