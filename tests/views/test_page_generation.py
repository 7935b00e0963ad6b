from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest
import torch

from heedful.errors import HeedfulError
from heedful.views.attention_data import AttentionMaps
from heedful.views.generation_html import (
    GenerationSteps,
    Reduction,
    fitting_reduction,
    kept_rows,
    steps_page,
    sum_key_groups,
)
from tolerances import assert_close

PROMPT = ["<s>", " The", " cat"]
MADE = [" s", "at", " down", ".", "\n", "It"]


def causal(layers, heads, prompt, made, seed=0):
    drawn = np.random.default_rng(seed).random((layers, heads, made, prompt + made)) ** 3 + 1e-6
    drawn *= np.arange(prompt + made) < max(prompt, 1) + np.arange(made)[:, None]
    return (drawn / drawn.sum(-1, keepdims=True)).astype(np.float32)


def steps(prompt=PROMPT, made=MADE, layers=2, heads=3, **changes):
    if "maps" not in changes:
        weights = causal(layers, heads, len(prompt), len(made))
        changes["maps"] = [AttentionMaps.of("self-attention", made, [*prompt, *made], weights)]
    facts = {
        "prompt": prompt,
        "generated": made,
        "chosen": [0.9 - 0.1 * (i % 8) for i in range(len(made))],
        "candidates": [
            [(piece, 0.9 - 0.1 * (i % 8)), (" other", 0.05)] if i % 2 else [(" other", 0.05), ("<b>", 0.01)]
            for i, piece in enumerate(made)
        ],
    }
    return GenerationSteps(**(facts | changes))


def facts(text):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found[1])


def opened(pack, rows, keys):
    """Weights in a page, read back as numbers."""
    codes = np.frombuffer(base64.b64decode(pack["codes"]), np.uint8).reshape(*rows, pack["most"])
    values = np.frombuffer(base64.b64decode(pack["largest"]), "<f4").reshape(*rows, 1) * (codes / 255)
    if pack["places"] is None:
        return values
    found = np.zeros((*rows, keys))
    places = np.frombuffer(base64.b64decode(pack["places"]), "<u2").reshape(*rows, pack["most"])
    np.put_along_axis(found, places.astype(np.int64), values, -1)
    return found


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"made": [], "maps": []}, "no token was generated"),
        ({"chosen": [0.5]}, "chosen has 1 steps, but 6 tokens were generated"),
        ({"candidates": [[]]}, "candidates has 1 steps, but 6 tokens were generated"),
        ({"chosen": [1.5] * 6}, "the probability 1.5 is not in 0..1"),
        ({"candidates": [[("a", float("nan"))]] * 6}, "the probability nan is not in 0..1"),
        ({"maps": [AttentionMaps.of("x", ["a"], ["b"], [[[[1.0]]]])]}, "the maps of x have 1 queries, but 6 tokens"),
    ],
)
def test_wrong_shapes_are_refused(changes, told):
    with pytest.raises(HeedfulError, match=re.escape(told)):
        steps(**changes)


def test_the_page_holds_every_weight_and_the_mean_of_heads():
    given = steps()
    pack = facts(steps_page(given, title="GenerationSteps"))["maps"][0]
    weights = given.maps[0].weights
    true = np.concatenate([weights, weights.mean(1, keepdims=True)], 1)
    error = abs(opened(pack, true.shape[:-1], 9) - true) / true.max(-1, keepdims=True)
    assert error.max() <= 0.5 / 255 + 1e-6


def test_of_long_rows_the_largest_weights_are_kept():
    weights = causal(2, 3, 5, 40)
    pack = kept_rows(weights, Reduction(keeps_heads=True, weights_per_row=7, steps=30))
    true = np.concatenate([weights, weights.mean(1, keepdims=True)], 1)[:, :, :30]
    least = np.sort(true, -1)[..., -7:-6]
    true = np.where(true >= least, true, 0)
    error = abs(opened(pack, true.shape[:-1], 45) - true) / true.max(-1, keepdims=True)
    assert error.max() <= 0.5 / 255 + 1e-6


@pytest.mark.parametrize("byte_budget", [10_000, 100_000, 1_000_000])
@pytest.mark.parametrize("shape", [(2, 3, 40, 45), (6, 8, 300, 400), (12, 12, 4000, 6000)])
def test_a_cut_stays_within_its_room_and_wastes_little(shape, byte_budget):
    layers, heads, steps, keys = shape
    chosen = fitting_reduction(shape, byte_budget)

    def size(alone, most, steps):
        rows = layers * (heads + 1 if alone else 1) * steps
        return 4 / 3 * rows * (4 + (most if most == keys else 3 * most))

    found = size(chosen.keeps_heads, chosen.weights_per_row, chosen.steps)
    assert found <= byte_budget
    if chosen.weights_per_row < keys and chosen.steps == steps:
        assert size(chosen.keeps_heads, chosen.weights_per_row + 1, steps) > byte_budget
    if chosen.steps < steps:
        assert size(chosen.keeps_heads, chosen.weights_per_row, chosen.steps + 1) > byte_budget


def test_groups_of_keys_are_summed():
    weights = np.random.default_rng(0).random((2, 3, 7))
    found = sum_key_groups(weights, [0, 1, 4, 6])
    expected = [weights[..., a:b].sum(-1) for a, b in [(0, 1), (1, 4), (4, 6), (6, 7)]]
    assert_close(found, np.stack(expected, -1))


def test_a_long_prompt_is_drawn_by_its_ends_and_the_middle_keeps_its_weight():
    prompt = [f" w{i}" for i in range(8192)]
    weights = np.full((1, 2, 6, 8198), 1 / 8198, np.float32)
    maps = [AttentionMaps.of("self-attention", MADE, [*prompt, *MADE], weights)]
    text = steps_page(steps(prompt=prompt, maps=maps), title="A long prompt")
    assert len(text.encode()) < 1_000_000
    assert "… 6,193 tokens …" in text
    assert "w49<" in text
    assert "w50<" not in text
    pack = facts(text)["maps"][0]
    found = opened(pack, (1, 3, 6), pack["keys"])
    assert pack["keys"] == 50 + 1 + 1949 + 6
    assert_close(found[..., 50], 6193 / 8198, dtype=torch.float32)


def test_any_length_stays_under_five_megabytes_and_says_what_is_left_out():
    made = [f" w{i}" for i in range(8192)]
    weights = np.zeros((12, 1, 200, 300), np.float32)
    weights[..., 7] = 1
    maps = [
        AttentionMaps(
            name="self-attention", queries=made, keys=made, layers=range(12), heads=[3], weights=weights,
            rows=(100, 300), columns=(50, 350),
        )
    ]  # fmt: skip
    text = steps_page(steps(prompt=[], made=made, maps=maps), title="Long")
    assert len(text.encode()) < 5_000_000
    assert "Shown are the first 4,000 of 8,192 generated tokens." in text
    assert "Only tokens 100 to 299 have weights." in text
    assert "Of the keys, only tokens 50 to 349 have weights." in text


def test_weights_beyond_what_is_shown_are_left_out_and_said_to_be():
    made = [f" w{i}" for i in range(5000)]
    maps = AttentionMaps(
        name="self-attention", queries=made, keys=made, layers=[0], heads=[0], weights=np.full((1, 1, 5, 5), 0.2),
        rows=(4990, 4995), columns=(10, 15),
    )  # fmt: skip
    text = steps_page(steps(prompt=[], made=made, maps=[maps]), title="Beyond")
    assert facts(text)["maps"] == []
    assert "The weights are of tokens that are not shown" in text


def test_many_heads_and_steps_stay_under_five_megabytes():
    made = [f" {i}" for i in range(400)]
    text = steps_page(steps(made=made, layers=6, heads=8), title="Many")
    assert 1_500_000 < len(text.encode()) < 5_000_000
    pack = facts(text)["maps"][0]
    assert pack["alone"]
    assert f"Of each row the {pack['most']} largest weights are kept" in text


def test_texts_can_neither_end_the_data_nor_ask_for_anything():
    text = steps_page(steps(made=["</script><script>alert(1)</script>"] * 6), title="<script>")
    assert text.count("<script") == 2  # the data, and the page's own
    assert "default-src 'none'" in text
    assert not re.search(r"https?://", text)


# ---- in a browser ----


def address(page):
    return page.evaluate("() => location.hash")  # playwright's own `url` hears of a change a little later


def told(page):
    return page.locator(".status").inner_text()


def now(page):
    return page.locator(".made.now bdi").all_inner_texts()


def test_a_token_tells_what_it_looked_at_and_what_nearly_stood_there(open_page):
    given = steps()
    page = open_page(steps_page(given, title="GenerationSteps"), "#layer=1&head=2")
    assert now(page) == ["It"]
    page.locator(".made").nth(2).click()
    assert address(page).endswith("#step=2&layer=1&head=2")
    assert now(page) == ["down"]
    weights = given.maps[0].weights[1, 2, 2]
    strongest = np.argsort(-weights)[:3]
    texts = [piece.strip() for piece in [*PROMPT, *MADE]]
    assert page.locator(".seen .name").all_inner_texts()[:3] == [texts[i] for i in strongest]
    word = page.locator("[data-text='0'] .word").nth(int(strongest[0]))
    assert word.locator("i").inner_text() == f"{weights[strongest[0]] * 100:.0f}"
    assert page.locator(".made.later").count() == 3
    # the chosen one was not among the likeliest two
    assert page.locator(".nearly .name").all_inner_texts() == ["␣other", "<b>", "down", "all others"]
    assert page.locator(".nearly .share").all_inner_texts() == ["5.0 %", "1.0 %", "70 %", "24 %"]
    assert page.locator(".nearly .chosen .share").inner_text() == "70 %"
    assert told(page).startswith("Token 3 of 6: “\u2068down\u2069” with 70 %, alternatives: “\u2068other\u2069” 5.0 %")


def test_keys_and_buttons_step_through(open_page):
    page = open_page(steps_page(steps(), title="GenerationSteps"), "#step=1")
    assert now(page) == ["at"]
    page.keyboard.press("ArrowRight")
    assert now(page) == ["down"]
    page.keyboard.press("Home")
    assert now(page) == ["s"]
    page.keyboard.press("ArrowLeft")
    assert now(page) == ["s"]
    page.get_by_role("button", name="last token").click()
    assert now(page) == ["It"]
    page.get_by_role("button", name="one token back").click()
    assert now(page) == ["↵"]
    page.keyboard.press("l")
    assert re.search(r"layer=[01]$", address(page))
    page.keyboard.press("h")
    assert address(page).endswith("head=0")
    page.locator(".sheet td button").nth(0).click()
    assert re.search(r"#step=4&layer=0$", address(page))


def test_play_goes_from_token_to_token_and_stops_at_the_end(open_page):
    page = open_page(steps_page(steps(), title="GenerationSteps"), "#step=3")
    page.get_by_role("button", name="play").click()
    assert page.locator(".play").inner_text().endswith("pause")
    page.locator(".made.now", has_text="It").wait_for()
    page.get_by_role("button", name="▶ play").wait_for()
    page.keyboard.press("Space")  # from the end it starts anew
    assert now(page) == ["s"]
    page.keyboard.press("Space")
    assert page.locator(".play").inner_text().endswith("play")


def test_every_head_says_what_it_looked_at_most(open_page):
    given = steps()
    page = open_page(steps_page(given, title="GenerationSteps"), "#step=4", dark=True)
    texts = [piece.strip() for piece in [*PROMPT, *MADE]]
    weights = given.maps[0].weights[:, :, 4]
    expected = [texts[i] for layer in weights for i in [layer.mean(0).argmax(), *layer.argmax(-1)]]
    assert page.locator(".sheet td bdi").all_inner_texts() == expected


def test_a_source_and_the_tokens_themselves_are_two_maps(open_page):
    source, out = [" le", " chat", "</s>"], [" the", " cat"]
    cross = np.array([[[[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]]]])
    own = np.array([[[[1.0, 0.0, 0.0], [0.25, 0.75, 0.0]]]])
    maps = [
        AttentionMaps.of("cross-attention", out, source, cross),
        AttentionMaps.of("decoder self-attention", out, ["<s>", *out], own),
    ]
    given = GenerationSteps(prompt=source, generated=out, chosen=[0.5, 0.5], candidates=[[], []], maps=maps)
    page = open_page(steps_page(given, title="Two"))
    assert page.locator(".seen .name").all_inner_texts() == ["chat", "le"]
    assert page.locator(".word.now bdi").inner_text() == "cat"
    assert page.locator(".word.unknown").count() == 0  # "the" was written before, and is no key of cross-attention
    assert page.locator(".aside").is_hidden()
    page.keyboard.press("m")
    assert page.locator(".aside .word i").all_inner_texts() == ["25", "75", ""]
    assert address(page).endswith("#step=1&maps=1&layer=0")
    assert page.locator(".seen .name").all_inner_texts() == ["the", "<s>"]


def test_weights_that_were_left_out_are_not_drawn_as_zero(open_page):
    weights = np.full((1, 1, 2, 2), 0.3)
    window = AttentionMaps(
        name="self-attention", queries=MADE, keys=[*PROMPT, *MADE], layers=[4], heads=[1], weights=weights,
        rows=(2, 4), columns=(1, 3), note="A window.",
    )  # fmt: skip
    page = open_page(steps_page(steps(maps=[window]), title="Window"), "#step=3")
    assert page.locator("[data-text='0'] .unknown bdi").all_inner_texts() == ["<s>", "s", "at", "down"]
    decorations = page.locator(".word").evaluate_all("words => words.map(w => getComputedStyle(w).textDecorationLine)")
    assert decorations.count("underline") == 4
    assert "line-through" not in decorations
    assert page.locator(".seen .share").all_inner_texts() == ["30 %", "30 %", "40 %"]
    assert "A window." in page.locator("footer").inner_text()
    page.keyboard.press("End")
    assert "The weights of this step were left out" in told(page)
    assert page.locator(".seen li").count() == 0


def test_without_maps_the_alternatives_remain(open_page):
    page = open_page(steps_page(steps(maps=[]), title="No maps"), "#step=1")
    assert page.locator(".nearly .chosen .name").inner_text() == "at"
    for part in (".looked", ".sheet", "select.layer", ".which"):
        assert page.locator(part).is_hidden()
