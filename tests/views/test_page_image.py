from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest

from heedful.errors import HeedfulError
from heedful.views.image_html import ImageMaps, PagePlan, image_page, kept, plan, pooled_weights
from tolerances import assert_close


def rows(*shape, seed=0):
    drawn = np.random.default_rng(seed).random(shape, dtype=np.float32) ** 4
    return drawn / drawn.sum(-1, keepdims=True)


def image(grid=(3, 4), prefix=("[class]",), layers=2, heads=3, seed=0, side=8, **changes):
    tokens = len(prefix) + grid[0] * grid[1]
    random = np.random.default_rng(seed)
    facts = {
        "pixels": random.integers(0, 256, (side * grid[0], side * grid[1], 3), dtype=np.uint8),
        "grid": grid,
        "prefix": prefix,
        "layers": range(layers),
        "heads": range(heads),
        "weights": rows(layers, heads, tokens, tokens, seed=seed),
        "rollout": random.random(grid),
        "classes": [("<i>cat</i>", 0.7), ("dog", 0.2)],
        "gradient": random.normal(size=grid),
    }
    return ImageMaps(**(facts | changes))


def facts(text):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found[1])


def opened(pack, *shape):
    """Weights in a page, read back as numbers."""
    codes = np.frombuffer(base64.b64decode(pack["codes"]), np.uint8)
    largest = np.frombuffer(base64.b64decode(pack["largest"]), "<f4").reshape(*shape[:-1], 1)
    if pack["bits"] == 4:
        halves = np.stack([codes & 15, codes >> 4], -1).ravel()[: np.prod(shape)]
        return largest * (halves.reshape(shape) / 15) ** 2
    return largest * codes.reshape(shape) / 255


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"weights": rows(2, 3, 12, 12)}, "weights of shape (2, 3, 12, 12) do not fit 1 prefix tokens and 3 × 4"),
        ({"weights": rows(2, 3, 13, 13) * 9}, "an attention weight is not in 0..1"),
        ({"weights": np.full((2, 3, 13, 13), np.nan)}, "an attention weight is not in 0..1"),
        ({"rollout": np.ones((4, 3))}, "rollout of shape (4, 3); give finite numbers of shape (3, 4)"),
        ({"rollout": -np.ones((3, 4))}, "the rollout has a negative value, -1"),
        ({"gradient": np.full((3, 4), np.inf)}, "gradient of shape (3, 4); give finite numbers of shape (3, 4)"),
        ({"pixels": np.zeros((8, 8, 3))}, "give uint8 pixels"),
    ],
)
def test_wrong_shapes_are_refused(changes, told):
    with pytest.raises(HeedfulError, match=re.escape(told)):
        image(**changes)


@pytest.mark.parametrize("bits", [8, 4])
def test_the_page_holds_the_weights_as_exactly_as_it_says(bits):
    weights = rows(2, 3, 13, 13)
    pack = kept(weights, 1, (3, 4), PagePlan(bits=bits))
    last = weights[:, :, 1:].mean(2, keepdims=True)
    parts = {
        "mean": (np.concatenate([weights, last], 2).mean(1), 8),
        "tokens": (np.concatenate([weights[:, :, :1], last], 2), 8),
        "heads": (weights[:, :, 1:], bits),
    }
    for name, (true, own) in parts.items():
        error = abs(opened(pack[name], *true.shape) - true) / true.max(-1, keepdims=True)
        assert error.max() <= {8: 0.5 / 255 + 1e-6, 4: 0.07}[own]


def test_blocks_sum_keys_and_average_queries():
    weights, block, prefix, (high, wide) = rows(2, 17, 17), 2, 2, (3, 5)
    groups = [[0], [1]]
    for r in range(0, high, block):
        for c in range(0, wide, block):
            spots = [(y, x) for y in range(r, min(r + 2, high)) for x in range(c, min(c + 2, wide))]
            groups.append([prefix + y * wide + x for y, x in spots])
    found = pooled_weights(weights, prefix, (high, wide), block)
    assert found.shape == (2, len(groups), len(groups))
    for i, queries in enumerate(groups):
        for j, keys in enumerate(groups):
            expected = np.mean([weights[:, q, keys].sum(-1) for q in queries], axis=0)
            assert_close(found[:, i, j], expected, "layer")
    assert_close(found.sum(-1), 1)


def test_vit_base_keeps_every_head_in_a_page_under_five_megabytes():
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (224, 224, 3), dtype=np.uint8)  # noise: no image is stored in more bytes
    text = image_page(image(grid=(14, 14), layers=12, heads=12, pixels=pixels), title="ViT-B/16")
    assert len(text.encode()) < 5_000_000
    assert facts(text)["heads"]["bits"] == 4
    assert "Weights of single heads from patches have 4 bits, within 7 %" in text


@pytest.mark.parametrize(
    ("shape", "block"), [((24, 16, 1, (16, 16)), 1), ((24, 16, 2, (24, 24)), 2), ((12, 12, 1, (64, 64)), 4)]
)
def test_larger_models_give_up_single_heads_then_join_patches(shape, block):
    chosen = plan(*shape, 4_600_000)
    assert chosen.block == block
    assert chosen.size(*shape) <= 4_600_000
    if chosen.bits < 8:  # nothing is given up that there was room for
        assert PagePlan(block=block, bits=8 if chosen.bits == 4 else 4).size(*shape) > 4_600_000


def test_a_page_of_joined_patches_says_so():
    text = image_page(image(grid=(6, 7), layers=4, heads=2), title="Joined", max_bytes=14_000)
    held = facts(text)
    assert (len(held["rows"]), len(held["columns"])) == (4, 5)
    assert held["columns"] == [0, 2 / 7, 4 / 7, 6 / 7, 1]
    assert "2 × 2 patches are drawn as one" in text


def test_texts_cannot_act_on_the_page():
    text = image_page(image(prefix=("</script><b>",), classes=[("<script>", 1.0)], note="<u>"), title="<script>")
    assert text.count("<script") == 2  # the data, and the page's own
    assert not re.search("<[bu]>", text)
    assert "img-src data:" in text
    assert not re.search(r"https?://", text)


# ---- in a browser ----


def address(page):
    return page.evaluate("() => location.hash")  # playwright's own `url` hears of a change a little later


def told(page):
    return page.locator(".status").inner_text()


def best_patch(weights, grid, prefix=1):
    r, c = divmod(int(weights[prefix:].argmax()), grid[1])
    return f"patch ({r + 1}, {c + 1})"


def click_patch(page, row, column, grid, button="click"):
    box = page.locator(".frame").bounding_box()
    x, y = (column + 0.5) / grid[1] * box["width"], (row + 0.5) / grid[0] * box["height"]
    getattr(page.mouse, button)(box["x"] + x, box["y"] + y)


def test_it_opens_at_the_class_token_and_the_mean_of_the_last_layer(open_page):
    given = image()
    page = open_page(image_page(given, title="An image"))
    weights = given.weights[1].mean(0)[0]
    assert told(page).startswith("[class] attends to [class]")
    assert best_patch(weights, (3, 4)) in told(page)
    assert page.locator(".where").inner_text() == "layer 1, mean of 3 heads"
    assert page.locator(".sheet td button").count() == 2 * 4
    assert page.locator(".classes .name").all_inner_texts() == ["<i>cat</i>", "dog"]


def test_a_patch_is_clicked_hovered_and_walked_to(open_page):
    given = image()
    page = open_page(image_page(given, title="An image"), "#layer=0&head=2")
    click_patch(page, 1, 2, (3, 4))
    assert address(page).endswith("#token=7&layer=0&head=2")
    assert told(page).startswith("patch (2, 3) attends to")
    assert best_patch(given.weights[0, 2, 7], (3, 4)) in told(page).split("·")[1]
    click_patch(page, 0, 0, (3, 4), "move")
    assert told(page).startswith("patch (1, 1) attends to")
    page.mouse.move(2, 2)
    assert told(page).startswith("patch (2, 3) attends to")
    page.locator(".frame").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    assert address(page).endswith("#token=10&layer=0&head=2")
    for _ in range(3):
        page.keyboard.press("ArrowUp")
    assert address(page).endswith("#token=0&layer=0&head=2")


def test_layers_and_heads_are_chosen_by_sheet_list_and_key(open_page):
    given = image()
    page = open_page(image_page(given, title="An image"))
    page.locator(".sheet td button[title='layer 0, head 1']").click()
    assert address(page).endswith("#token=0&layer=0&head=1")
    assert best_patch(given.weights[0, 1, 0], (3, 4)) in told(page).split("·")[1]
    page.select_option("select.layer", "1")
    page.locator("body").press("h")
    assert address(page).endswith("layer=1&head=2")
    page.keyboard.press("h")
    assert address(page).endswith("layer=1")
    page.get_by_role("button", name="every patch").click()
    assert address(page).endswith("#token=patches&layer=1")
    assert best_patch(given.weights[1].mean(0)[1:].mean(0), (3, 4)) in told(page).split("·")[1]


def test_rollout_and_gradient_take_the_place_of_the_weights(open_page):
    given = image()
    page = open_page(image_page(given, title="An image"), "#show=rollout", dark=True)
    r, c = np.unravel_index(given.rollout.argmax(), (3, 4))
    assert told(page).startswith(f"Most reaches the output from patch ({r + 1}, {c + 1})")
    assert page.locator(".sheet").is_hidden()
    page.locator("body").press("s")
    assert address(page).endswith("#show=gradient")
    r, c = np.unravel_index(abs(given.gradient).argmax(), (3, 4))
    sign = "+" if given.gradient[r, c] > 0 else "−"
    assert f"patch ({r + 1}, {c + 1}) {sign}" in told(page).split("·")[0]
    page.keyboard.press("s")
    assert told(page) == ""
    page.keyboard.press("Escape")
    assert told(page).startswith("[class] attends to")


@pytest.mark.parametrize("dark", [False, True])
def test_the_image_is_dimmed_where_it_is_not_looked_at_and_stays_to_be_seen(open_page, dark):
    weights = np.zeros((1, 1, 13, 13), np.float32)
    weights[..., 6] = 1.0  # every token looks at the patch in row 2, column 2 alone
    page = open_page(image_page(image(layers=1, heads=1, weights=weights), title="One patch"), dark=dark)
    veil = page.evaluate(
        """() => {
          const { width, height } = document.querySelector(".frame canvas");
          const image = document.querySelector(".frame canvas").getContext("2d").getImageData(0, 0, width, height).data;
          const middle = (i, of, side) => Math.floor(((i + 0.5) / of) * side);
          const spot = (i) => middle(i >> 2, 3, height) * width + middle(i & 3, 4, width);
          return [...Array(12).keys()].map((i) => [...image.slice(4 * spot(i), 4 * spot(i) + 4)]);
        }"""
    )
    assert veil.pop(5)[3] == 0
    assert all(max(colour) < 60 and 130 < opacity < 210 for *colour, opacity in veil)  # dark, never a white page
    assert page.locator(".sheet").is_hidden()  # one layer of one head


def test_single_heads_that_were_left_out_are_named(open_page):
    given = image(grid=(6, 7), layers=4, heads=4)
    text = image_page(given, title="Left out", max_bytes=30_000)
    assert facts(text)["heads"] is None
    page = open_page(text, "#token=9&layer=2&head=1")
    assert "Of single heads, only the tokens before the patches" in told(page)
    page.select_option("select.head", "-1")
    assert told(page).startswith("patch (")
    assert "weights from patches are kept as the mean of 4 heads only" in page.locator("footer").inner_text()


def test_small_maps_are_each_to_its_own_scale(open_page, shades):
    given = image()
    page = open_page(image_page(given, title="All heads"), "#token=5")
    page.locator(".sheet td button:not([disabled])").first.wait_for()
    for number, (layer, head) in enumerate((layer, head) for layer in range(2) for head in (None, 0, 1, 2)):
        heads = given.weights[layer]
        weights = (heads.mean(0) if head is None else heads[head])[5, 1:].reshape(3, 4)
        scaled = (weights - weights.min()) / (weights.max() - weights.min())
        np.testing.assert_allclose(shades(page.locator(".sheet canvas").nth(number)), scaled, atol=0.01)


def test_weights_of_four_bits_have_the_precision_that_the_page_names(open_page):
    given = image(grid=(6, 7), layers=4, heads=4)
    text = image_page(given, title="Four bits", max_bytes=50_000)
    assert facts(text)["heads"]["bits"] == 4
    page = open_page(text, "#token=9&layer=2&head=1")
    assert "roughly" in page.locator(".scale").inner_text()
    weights = given.weights[2, 1, 9]
    shown = [float(share) / 100 for share in re.findall(r"([\d.]+) %", told(page))]
    places = [1 + 7 * (int(r) - 1) + int(c) - 1 for r, c in re.findall(r"patch \((\d+), (\d+)\) [\d.]+ %", told(page))]
    assert len(places) == 5
    np.testing.assert_allclose(shown, weights[[0, *places]], atol=0.07 * weights.max() + 0.005)


def test_a_model_without_class_token_opens_at_the_mean_over_patches(open_page):
    given = image(prefix=(), gradient=None, classes=[])
    page = open_page(image_page(given, title="No class token"))
    assert told(page).startswith("every patch (mean) attends to")
    assert best_patch(given.weights[1].mean((0, 1)), (3, 4), 0) in told(page).split("·")[0]
    assert page.locator("select.show option").all_inner_texts() == [
        "attention",
        "rollout of all layers",
        "the image alone",
    ]
    assert page.locator(".says").is_hidden()


def test_the_view_stands_in_the_middle_of_the_page(open_page):
    page = open_page(image_page(image(layers=2, heads=2), title="In the middle"), width=1280)
    left, right = page.evaluate(
        """() => {
          const table = document.querySelector(".sheet table").getBoundingClientRect();
          return [table.left, document.documentElement.clientWidth - table.right];
        }"""
    )
    assert abs(left - right) < 2
