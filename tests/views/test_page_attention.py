"""The attention page in a real browser: what it shows is compared with the weights, every way of moving is taken."""

from __future__ import annotations

import html
import re
from itertools import pairwise

import numpy as np
import pytest

from heedful.views import attention_page
from heedful.views.attention_data import AttentionMaps, block_means

SOURCE = ["Fri", "day", ",", " Sept", " 19", "</s>"]
TARGET = [" ven", "dredi", " 19", "</s>"]


def weights(*shape, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(shape[-1]) * 0.4, shape[:-1])


CROSS = AttentionMaps.of("cross-attention", TARGET, SOURCE, weights(3, 4, 4, 6), layers=[0, 2, 5])
SELF = AttentionMaps.of("encoder self-attention", SOURCE, SOURCE, weights(2, 4, 6, 6, seed=1))


def long(count=120, first=1000, whole=4000):
    """A window of a long text under its overview: each piece looks at itself, the one before, and far away."""
    pieces = [f" w{i}" for i in range(whole)]
    table = np.zeros((2, 2, count, count))
    table[..., np.arange(count), np.arange(count)] = 0.5
    table[..., np.arange(1, count), np.arange(count - 1)] = 0.25
    shares = np.full((2, 2, 40, 40), 1 / whole)
    shares[:, 1, 3, 7] = 0.8 / 100  # of head 1, what queries 300:400 give to keys 700:800
    return AttentionMaps(
        name="self-attention",
        queries=pieces,
        keys=pieces,
        layers=[0, 1],
        heads=[0, 1],
        weights=table,
        rows=(first, first + count),
        columns=(first, first + count),
        overview=shares,
        note="A window.",
    )


@pytest.fixture
def shown(open_page):
    """Opens the page of some maps and waits for its weights."""

    def show(maps, address="", *, view="heads", **how):
        page = open_page(attention_page(maps, title="A title", view=view), address, **how)
        page.wait_for_selector("[aria-busy=false]")
        return page

    return show


def word(page, side, i):
    return page.locator(f"[data-side={side}] .word").nth(i)


def lit(page, side):
    """The numbers beside the pieces of a side, in %, nothing where there is none."""
    return [float(text or 0) for text in page.locator(f"[data-side={side}] .word i").all_text_contents()]


def rounded(row, least=0.02):
    return [0 if w < least else round(100 * w) if w >= 0.0995 else round(100 * w, 1) for w in row]


def told(page):
    return re.sub("[\u2068\u2069]", "", page.text_content(".status"))


def drawing(page, which):
    """The pixels of a canvas, as text."""
    return page.eval_on_selector(which, "canvas => canvas.toDataURL()")


def hash_of(page):
    return dict(part.split("=") for part in page.evaluate("location.hash.slice(1)").split("&"))


LINES, HEAT, FAR = ".pair > canvas", ".matrix > .scroll canvas", ".overview canvas"


# ---------------------------------------------------------------------------------------------------------------- heads


@pytest.mark.parametrize("dark", [False, True])
def test_a_piece_that_is_pointed_at_lights_what_it_looks_at(shown, dark):
    page = shown(CROSS, "#layer=2&head=3", dark=dark)
    before = drawing(page, LINES)
    word(page, "query", 1).hover()
    assert lit(page, "key") == rounded(CROSS.weights_of(2, 3)[1])
    assert lit(page, "query") == [0, 0, 0, 0]
    assert drawing(page, LINES) != before
    best = int(CROSS.weights_of(2, 3)[1].argmax())
    percent = rounded([CROSS.weights_of(2, 3)[1][best]])[0]
    assert told(page).startswith(f"Layer 2, head 3: “dredi” attends to  “{SOURCE[best].strip()}” {percent} %")
    word(page, "key", 4).hover()
    assert lit(page, "query") == rounded(CROSS.weights_of(2, 3)[:, 4])
    assert "“19” is attended to by" in told(page)
    page.mouse.move(5, 5)
    assert lit(page, "query") == [0, 0, 0, 0]
    assert drawing(page, LINES) == before


def test_the_page_opens_at_the_mean_over_heads(shown):
    page = shown(CROSS, "#layer=5")
    assert page.input_value(".layer") == "2"
    word(page, "query", 0).hover()
    assert lit(page, "key") == rounded(CROSS.weights_of(5)[0])
    assert told(page).startswith("Layer 5, mean of 4 heads: “ven” attends to")


def test_lines_are_as_thick_as_weights(shown):
    table = np.zeros((1, 1, 2, 2))
    table[0, 0] = [[0.9, 0.1], [0.0, 0.0]]
    page = shown(AttentionMaps.of("self-attention", ["a", "b"], ["a", "b"], table))
    ink = """canvas => {
        const pen = canvas.getContext("2d"), row = pen.getImageData(0, canvas.height / 2, canvas.width, 1).data;
        let runs = [], run = 0;
        for (let i = 3; i < row.length; i += 4) { if (row[i] > 40) run++; else { if (run) runs.push(run); run = 0; } }
        return runs;
    }"""
    upright, slanting = page.eval_on_selector(LINES, ink)
    assert 5 <= upright <= 8  # 0.6 + 6 × 0.9 pixels
    assert 1 <= slanting < upright


def test_layers_and_heads_are_switched_by_keys_and_lists(shown):
    page = shown(CROSS, "#layer=0&head=0&token=2")
    seen = []
    for press, layer, head in (
        ("l", 2, 0),
        ("l", 5, 0),
        ("l", 0, 0),
        ("Shift+L", 5, 0),
        ("h", 5, 1),
        ("Shift+H", 5, 0),
    ):
        page.keyboard.press(press)
        assert lit(page, "key") == rounded(CROSS.weights_of(layer, head)[2])
        assert (hash_of(page)["layer"], hash_of(page)["head"]) == (str(layer), str(head))
        seen.append(drawing(page, HEAT))
    assert len(set(seen)) == 4
    page.keyboard.press("Shift+H")
    assert lit(page, "key") == rounded(CROSS.weights_of(5)[2])
    assert "head" not in hash_of(page)
    page.select_option(".layer", label="2")
    page.select_option(".head", label="3")
    assert lit(page, "key") == rounded(CROSS.weights_of(2, 3)[2])
    page.locator(".head").press("l")  # in a list the letters are the list's own
    assert hash_of(page)["layer"] == "2"


def test_everything_is_reached_with_the_keyboard(shown):
    page = shown(CROSS, "#layer=0&head=1")
    word(page, "key", 0).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert hash_of(page)["key"] == "2"
    assert lit(page, "query") == rounded(CROSS.weights_of(0, 1)[:, 2])
    page.keyboard.press("ArrowDown")
    best = int(CROSS.weights_of(0, 1)[:, 2].argmax())
    assert hash_of(page)["token"] == str(best)
    page.keyboard.press("ArrowUp")
    assert hash_of(page)["key"] == str(CROSS.weights_of(0, 1)[best].argmax())
    page.keyboard.press("End")
    assert hash_of(page)["key"] == "5"
    page.keyboard.press("ArrowRight")
    assert hash_of(page)["key"] == "5"
    page.keyboard.press("Home")
    assert hash_of(page)["key"] == "0"
    page.keyboard.press("Escape")
    assert "key" not in hash_of(page)
    assert lit(page, "query") == [0, 0, 0, 0]
    word(page, "key", 0).focus()
    page.keyboard.press("Tab")  # a text is one stop
    assert page.evaluate("document.activeElement.closest('[data-side]').dataset.side") == "query"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.title") == "layer 0, head 1"
    page.keyboard.press("Tab")  # and so is the sheet
    assert page.evaluate("document.activeElement.getAttribute('aria-roledescription')") == "heat map"


def test_the_address_opens_the_page_as_it_was_left(shown, until):
    page = shown([SELF, CROSS], "#group=cross-attention&view=matrix&layer=5&head=2&key=3")
    assert page.input_value(".group") == "1"
    assert page.get_attribute(".sections > section >> nth=0", "data-view") == "matrix"
    assert lit(page, "query") == rounded(CROSS.weights_of(5, 2)[:, 3])
    page.evaluate("location.hash = '#group=0&layer=1&token=0'")
    until(page, "document.querySelector('.group').value === '0'")
    assert lit(page, "key") == rounded(SELF.weights_of(1)[0])
    page.evaluate("location.hash = '#layer=99&head=x&token=77'")
    until(page, "document.querySelector('.status').textContent.includes('Point at')")


def test_another_group_brings_its_own_texts_layers_and_maps(shown, until):
    page = shown([CROSS, SELF], "#layer=0&head=2&token=1")
    assert page.locator(".sheet canvas").count() == 3 * 5
    assert "Cross-attention: 4 queries, 6 keys; 3 layers of 4 heads." in page.text_content(".about")
    page.select_option(".group", label="encoder self-attention")
    until(page, "document.querySelectorAll('.sheet canvas').length === 10")
    assert "Encoder self-attention: 6 pieces; 2 layers of 4 heads." in page.text_content(".about")
    assert page.locator("[data-side=query] .word bdi").all_text_contents() == [text.strip() for text in SOURCE]
    word(page, "query", 5).hover()
    assert lit(page, "key") == rounded(SELF.weights_of(0, 2)[5])  # the layer and head stay
    assert hash_of(page)["group"] == "encoder+self-attention"


def test_short_texts_stand_as_rows_long_ones_and_narrow_pages_as_columns(shown):
    page = shown(CROSS)
    key, query = word(page, "key", 0).bounding_box(), word(page, "query", 0).bounding_box()
    assert key["y"] + key["height"] < query["y"]
    page.set_viewport_size({"width": 260, "height": 800})
    page.wait_for_selector(".pair.columns")
    key, query = word(page, "key", 0).bounding_box(), word(page, "query", 0).bounding_box()
    assert query["x"] + query["width"] < key["x"]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    word(page, "query", 1).focus()
    page.keyboard.press("ArrowDown")
    assert hash_of(page)["token"] == "2"
    page.keyboard.press("ArrowRight")
    assert "key" in hash_of(page)
    page.keyboard.press("ArrowLeft")
    assert "token" in hash_of(page)


def test_pieces_of_a_word_stand_together(shown):
    page = shown(CROSS)
    boxes = [word(page, "key", i).bounding_box() for i in range(6)]
    gaps = [right["x"] - left["x"] - left["width"] for left, right in pairwise(boxes)]
    assert [gap < 0.5 for gap in gaps] == [True, True, False, False, False]


def test_right_to_left_texts_run_from_the_right(shown):
    pieces = [" בראשית", " ברא", " אלהים"]
    page = shown(AttentionMaps.of("self-attention", pieces, pieces, weights(1, 2, 3, 3)))
    assert word(page, "query", 0).bounding_box()["x"] > word(page, "query", 2).bounding_box()["x"]
    word(page, "query", 0).focus()
    page.keyboard.press("ArrowLeft")
    assert hash_of(page)["token"] == "1"
    page.set_viewport_size({"width": 200, "height": 800})
    page.wait_for_selector(".pair.columns")
    assert word(page, "query", 0).bounding_box()["x"] > word(page, "key", 0).bounding_box()["x"]
    word(page, "query", 0).focus()
    page.keyboard.press("ArrowLeft")
    assert "key" in hash_of(page)


# ---------------------------------------------------------------------------------------------------------------- model


def test_every_layer_and_head_is_a_small_map_to_choose(shown, shades):
    page = shown(CROSS, "#layer=0&token=3", view="model")
    assert page.get_attribute(".sections > section >> nth=0", "data-view") == "model"
    for number, (layer, head) in enumerate((layer, head) for layer in (0, 2, 5) for head in (None, 0, 1, 2, 3)):
        small = shades(page.locator(".sheet canvas").nth(number))
        np.testing.assert_allclose(small, CROSS.weights_of(layer, head), atol=0.01)
    page.click("[title='layer 5, head 2']")
    assert lit(page, "key") == rounded(CROSS.weights_of(5, 2)[3])
    assert page.get_attribute(".sheet [aria-pressed=true]", "title") == "layer 5, head 2"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.title") == "layer 2, head 3"
    page.keyboard.press("Enter")
    assert lit(page, "key") == rounded(CROSS.weights_of(2, 3)[3])
    assert page.locator(".sheet [tabindex='0']").count() == 1


def test_another_view_may_lead(shown):
    page = shown(SELF)
    small = page.locator(".sheet canvas").first.bounding_box()["width"]
    page.click(".knobs button:has-text('model')")
    assert page.get_attribute(".sections > section >> nth=0", "data-view") == "model"
    assert page.locator(".sheet canvas").first.bounding_box()["width"] > small
    assert hash_of(page)["view"] == "model"
    assert page.get_attribute(".knobs [aria-pressed=true]", "type") == "button"


def test_a_single_map_has_no_sheet(shown):
    page = shown(AttentionMaps.of("self-attention", SOURCE, SOURCE, weights(1, 1, 6, 6), layers=[7], heads=[3]))
    assert page.locator(".sheet").is_hidden()
    word(page, "query", 0).hover()
    assert told(page).startswith("Layer 7, head 3: “Fri” attends to")


# --------------------------------------------------------------------------------------------------------------- matrix


def cell(page, t, s):
    """The middle of a cell of the heat map, from its own corner."""
    return page.evaluate(
        f"({{ x: grid.left + {s + 0.5} * grid.wide, y: grid.top + {t + 0.5} * grid.high }})"  # the script's own name
    )


def test_a_cell_says_its_weight_to_the_pointer_and_to_the_keyboard(shown):
    page = shown(CROSS, "#layer=2&head=0", view="matrix")
    page.hover(HEAT, position=cell(page, 3, 4))
    assert re.sub("[\u2068\u2069]", "", page.text_content(".tip")).startswith("“</s>” → “19”  ")
    assert abs(float(page.text_content(".tip").split()[-2]) - 100 * CROSS.weights_of(2, 0)[3, 4]) <= 0.006
    assert lit(page, "key") == rounded(CROSS.weights_of(2, 0)[3])
    page.mouse.move(5, 5)
    assert page.locator(".tip").is_hidden()
    page.hover(HEAT, position={**cell(page, 3, 4), "y": 3})  # where the names are
    assert page.locator(".tip").is_hidden()
    page.focus(HEAT)
    for press in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(press)
    assert told(page).startswith("Layer 2, head 0: “dredi” → “,”  ")
    assert abs(float(told(page).split()[-2]) - 100 * CROSS.weights_of(2, 0)[1, 2]) <= 0.006
    assert hash_of(page)["token"] == "1"


def test_the_heat_map_names_its_rows_and_columns(shown):
    page = shown(CROSS, view="matrix")
    inked = """canvas => {
        const { width, height } = canvas, data = canvas.getContext("2d").getImageData(0, 0, width, height).data;
        return [height, width, [...Array(width * height).keys()].filter(i => data[4 * i + 3] > 128)];
    }"""
    grid = page.evaluate("({ ...grid })")  # the script's own name
    rows, columns, places = page.eval_on_selector(HEAT, inked)
    pixels = np.isin(np.arange(rows * columns), places).reshape(rows, columns)

    def ink(x, y, across, down):
        return pixels[int(y) : int(y + down), int(x) : int(x + across)].any()

    left, top, wide, high = (grid[side] for side in ("left", "top", "wide", "high"))
    assert all(ink(left - 16, top + t * high + 2, 10, high - 4) for t in range(4))
    assert all(ink(left + (s + 0.5) * wide - 4, top - 16, 12, 14) for s in range(6))
    assert not ink(0, 0, 8, top - 10)


def test_colours_follow_the_system(shown, until):
    page = shown(CROSS, "#token=0")
    light = drawing(page, HEAT), drawing(page, LINES)
    page.emulate_media(color_scheme="dark")
    until(page, "before => document.querySelector('.matrix canvas').toDataURL() !== before", light[0])
    assert drawing(page, LINES) != light[1]
    page.emulate_media(color_scheme="light")
    until(page, "before => document.querySelector('.matrix canvas').toDataURL() === before", light[0])


# ----------------------------------------------------------------------------------------------------------- long texts


def test_a_window_says_where_it_is_and_what_is_outside(shown, until):
    page = shown(long(), "#layer=1&head=0&token=1005")
    about = page.text_content(".about")
    assert "4,000 pieces; 2 layers of 2 heads. Shown are queries 1,000–1,119 and keys 1,000–1,119" in about
    assert page.text_content(".kept").endswith("A window.")
    assert told(page).endswith("“w1005” (1,005) 50 %  ·  “w1004” (1,004) 25 %  ·  25 % outside of the keys shown")
    assert hash_of(page)["token"] == "1005"
    page.evaluate("location.hash = '#token=3'")
    until(page, "document.querySelector('.status').textContent.includes('Query 3 is not among the ones shown')")


def test_lines_follow_where_two_long_columns_are_scrolled_to(shown, until):
    page = shown(long())
    top = drawing(page, LINES)
    word(page, "query", 100).scroll_into_view_if_needed()
    until(page, "before => document.querySelector('.pair > canvas').toDataURL() !== before", top)
    word(page, "query", 100).hover()
    assert lit(page, "key")[98:102] == [0, 25, 50, 0]
    box = page.locator(".pair").bounding_box()
    assert box["height"] < 900


def test_a_short_column_stays_beside_a_long_one(shown):
    keys = [f" w{i}" for i in range(200)]
    table = np.full((1, 1, 3, 200), 0.1 / 198)
    table[..., 0], table[..., 190] = 0.4, 0.5
    page = shown(AttentionMaps.of("cross-attention", [" a", " b", " c"], keys, table))
    word(page, "key", 190).scroll_into_view_if_needed()
    frame, query = page.locator(".pair").bounding_box(), word(page, "query", 1).bounding_box()
    assert frame["y"] < query["y"] < frame["y"] + frame["height"]
    word(page, "query", 1).hover()
    assert lit(page, "key")[190] == 50


def test_a_block_of_the_overview_says_its_share_and_the_options_that_show_it(shown):
    page = shown(long(), "#layer=1&head=1")
    place = page.evaluate("({ x: lattice.left + 7.5 * lattice.wide, y: lattice.top + 3.5 * lattice.high })")
    page.locator(FAR).scroll_into_view_if_needed()
    page.click(FAR, position=place)
    said = re.sub("[\u2068\u2069]", "", page.text_content(".show"))
    assert re.match(r"queries 300–399 “w300 w301 .*” give 80 % to keys 700–799 “w700 w701", said)
    assert page.text_content(".show code") == "heedful inspect … --queries 290:410 --keys 690:810"
    page.focus(FAR)
    page.keyboard.press("ArrowRight")
    assert "to keys 800–899" in page.text_content(".show")
    page.keyboard.press("Enter")
    assert page.text_content(".show code") == "heedful inspect … --queries 290:410 --keys 790:910"
    page.keyboard.press("Escape")
    assert page.text_content(".show") == ""


def test_a_text_cut_by_the_page_has_an_overview_of_the_whole(shown, open_page):
    pieces = [f" w{i}" for i in range(200)]
    table = weights(2, 3, 200, 200)
    maps = AttentionMaps.of("self-attention", pieces, pieces, table)
    page = open_page(attention_page(maps, title="t", limit=200_000), "#layer=1&head=2&token=0")
    page.wait_for_selector("[aria-busy=false]")
    wide = page.locator("[data-side=key] .word").count()
    assert 50 < wide < 200
    assert lit(page, "key") == rounded(table[1, 2, 0, :wide], least=0.005)
    assert f"it shows queries 0:{wide} of 200" in page.text_content(".kept")
    page.focus(FAR)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    share = block_means(table, 64, 64)[1, 2, 0, 0] * 3  # keys 0:3
    assert abs(float(re.search(r"give ([\d.]+) %", page.text_content(".show"))[1]) - 100 * share) < 0.4


def test_a_page_in_a_page_works(open_page):
    """As a notebook shows it: in a frame without an address, which may run scripts and nothing else."""
    inside = html.escape(attention_page(CROSS, title="inside"), quote=True)
    page = open_page(f'<iframe sandbox="allow-scripts" width=900 height=700 srcdoc="{inside}"></iframe>')
    frame = page.frame_locator("iframe")
    frame.locator("[aria-busy=false]").wait_for()
    frame.locator("[data-side=query] .word").nth(0).click()
    frame.locator(".chosen").wait_for()
