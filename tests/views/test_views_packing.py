from __future__ import annotations

import base64
import zlib

import numpy as np
import pytest

from heedful.errors import HeedfulError
from heedful.views import attention_html as packing
from heedful.views.attention_data import AttentionMaps, block_edges, block_means
from heedful.views.attention_html import compressed, overviewed, window_maps


def rows(*shape, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(shape[-1]) * 0.3, shape[:-1])


def opened(bits, text, shape):
    """The weights as the page reads them."""
    codes = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u2" if bits == 16 else np.uint8).reshape(shape)
    return codes / 65535 if bits == 16 else (codes / 255) ** 2


def texts(count):
    return [f" {i}" for i in range(count)]


def test_few_weights_are_kept_to_half_a_step_of_sixteen_bits():
    weights = rows(2, 3, 4, 5)
    bits, text = compressed(weights)
    assert bits == 16
    assert np.abs(opened(bits, text, weights.shape) - weights).max() <= 0.5 / 65535 + 1e-12


def test_many_weights_are_kept_in_eight_bits_small_ones_closer(monkeypatch):
    monkeypatch.setattr(packing, "FINE", 10)
    weights = np.concatenate([np.linspace(0, 1, 1001), np.geomspace(1e-7, 1, 1001)])
    bits, text = compressed(weights)
    assert bits == 8
    error = np.abs(opened(bits, text, weights.shape) - weights)
    assert (error <= 0.004 * np.sqrt(weights) + 4e-6).all()
    assert error[weights <= 0.01].max() <= 0.0004  # the figures that the page states
    assert error[weights <= 0.5].max() <= 0.003


def test_small_maps_stay_as_they_are():
    maps = AttentionMaps.of("self-attention", texts(5), texts(5), rows(2, 3, 5, 5))
    fit, bits, text = window_maps(maps, 10_000)
    assert fit is maps
    np.testing.assert_allclose(opened(bits, text, (2, 3, 5, 5)), maps.weights, atol=1e-5)


@pytest.mark.parametrize(("queries", "keys"), [(300, 300), (1500, 3), (3, 1500), (40, 400)])
def test_large_maps_become_a_window_and_an_overview(queries, keys):
    weights = rows(2, 2, queries, keys)
    maps = AttentionMaps.of("cross-attention", texts(queries), texts(keys), weights)
    full = len(compressed(weights)[1])
    fit, bits, text = window_maps(maps, full // 2)
    tall, wide = fit.weights.shape[2:]
    assert tall * wide < queries * keys
    assert len(text) + len(overviewed(fit)["weights"]) <= full // 2
    assert len(text) > full // 12  # and room is not wasted
    np.testing.assert_allclose(opened(bits, text, (2, 2, tall, wide)), weights[:, :, :tall, :wide], atol=0.004)
    assert (fit.rows, fit.columns) == ((0, tall), (0, wide))
    assert f"queries 0:{tall} of {queries:,} and keys 0:{wide} of {keys:,}" in fit.note
    np.testing.assert_array_equal(fit.overview, block_means(weights, min(64, queries), min(64, keys)))
    if queries == keys:
        assert tall == wide


def test_the_part_of_a_window_keeps_the_given_overview_its_places_and_its_note():
    weights, overview = rows(1, 1, 200, 200) / 2, rows(1, 1, 10, 10) / 40
    facts = {"layers": [0], "heads": [0], "weights": weights, "rows": (100, 300), "columns": (50, 250)}
    maps = AttentionMaps(
        name="self-attention", queries=texts(400), keys=texts(400), **facts, overview=overview, note="A window."
    )
    fit, _, _ = window_maps(maps, 20_000)
    tall, wide = fit.weights.shape[2:]
    assert tall < 200
    np.testing.assert_array_equal(fit.overview, overview)
    assert fit.rows == (100, 100 + tall)
    assert fit.columns == (50, 50 + wide)
    assert fit.note.startswith(f"A window. To keep this page small, it shows queries 100:{100 + tall} of 400")


def test_a_side_is_never_longer_than_a_page_can_lay_out(monkeypatch):
    monkeypatch.setattr(packing, "SIDE", 100)
    maps = AttentionMaps.of("self-attention", texts(150), texts(150), np.zeros((1, 1, 150, 150)))
    fit, _, text = window_maps(maps, 1_000_000)
    assert fit.weights.shape == (1, 1, 100, 100)
    assert len(text) < 1000


def test_too_many_heads_for_any_window_are_refused():
    maps = AttentionMaps.of("self-attention", texts(2), texts(2), rows(40, 40, 2, 2))
    with pytest.raises(HeedfulError, match="40 layers of 40 heads do not fit a page; choose fewer layers or heads"):
        window_maps(maps, 1500)


def test_an_overview_holds_what_each_blocks_queries_give_to_its_keys_together():
    weights = rows(2, 2, 50, 70)
    maps = AttentionMaps(
        name="cross-attention",
        queries=texts(50),
        keys=texts(70),
        layers=[0, 1],
        heads=[0, 1],
        weights=weights[:, :, :4, :4],
        rows=(0, 4),
        columns=(0, 4),
        overview=block_means(weights, 6, 9),
    )
    facts = overviewed(maps)
    assert facts["rows"] == block_edges(50, 6)
    assert facts["columns"] == block_edges(70, 9)
    assert facts["rowsSaid"][1] == "8 9 10 11 12 13 14 15"
    shares = opened(8, facts["weights"], (2, 2, 6, 9))
    for i, (top, bottom) in enumerate(zip(facts["rows"][:-1], facts["rows"][1:], strict=True)):
        for j, (left, right) in enumerate(zip(facts["columns"][:-1], facts["columns"][1:], strict=True)):
            wanted = weights[:, :, top:bottom, left:right].sum(-1).mean(-1)
            np.testing.assert_allclose(shares[:, :, i, j], wanted, atol=0.004)


def test_an_overview_of_very_many_heads_has_fewer_blocks(monkeypatch):
    monkeypatch.setattr(packing, "OVERVIEWS", 4 * 5 * 5)
    weights = rows(2, 2, 33, 47)
    maps = AttentionMaps(
        name="cross-attention",
        queries=texts(33),
        keys=texts(47),
        layers=[0, 1],
        heads=[0, 1],
        weights=weights[:, :, :4, :4],
        rows=(0, 4),
        columns=(0, 4),
        overview=block_means(weights, 12, 13),
    )
    facts = overviewed(maps)
    assert (len(facts["rows"]), len(facts["columns"])) == (6, 6)
    assert (facts["rows"][-1], facts["columns"][-1]) == (33, 47)
    shares = opened(8, facts["weights"], (2, 2, 5, 5))
    top, bottom, left, right = *facts["rows"][2:4], *facts["columns"][3:5]
    wanted = weights[:, :, top:bottom, left:right].sum(-1).mean(-1)
    np.testing.assert_allclose(shares[:, :, 2, 3], wanted, atol=0.004)
