from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from heedful.errors import HeedfulError
from heedful.views.attention_data import AttentionMaps, block_edges, block_means
from tolerances import assert_close


def rows(*shape, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(shape[-1]), shape[:-1])


def window(**changes):
    facts = {
        "name": "cross-attention",
        "queries": ["a", " b", " c"],
        "keys": ["x", " y", " z", "!"],
        "layers": [2, 5],
        "heads": [7],
        "weights": rows(2, 1, 2, 3),
        "rows": (1, 3),
        "columns": (0, 3),
    }
    return AttentionMaps(**{**facts, **changes})


def test_the_whole_text_is_the_window_and_numbers_count_from_nought():
    weights = rows(2, 3, 4, 5)
    maps = AttentionMaps.of("cross-attention", list("abcd"), list("vwxyz"), weights)
    assert (maps.layers, maps.heads) == ((0, 1), (0, 1, 2))
    assert (maps.rows, maps.columns) == ((0, 4), (0, 5))
    assert maps.is_whole_text
    assert not maps.is_self_attention
    assert maps.overview is None
    assert maps.note == ""
    np.testing.assert_array_equal(maps.weights, weights)


def test_lists_and_tuples_of_the_same_pieces_are_one_text():
    assert AttentionMaps.of("self-attention", ["a", "b"], ("a", "b"), rows(1, 1, 2, 2)).is_self_attention
    assert not AttentionMaps.of("self-attention", ["a", "b"], ("a", "c"), rows(1, 1, 2, 2)).is_self_attention


def test_one_map_is_found_by_the_numbers_of_the_model():
    weights = rows(2, 3, 2, 2)
    maps = AttentionMaps.of("self-attention", ["a", "b"], ["a", "b"], weights, layers=[4, 1], heads=[0, 9, 3])
    np.testing.assert_array_equal(maps.weights_of(1, 9), weights[1, 1])
    assert_close(maps.weights_of(4), (weights[0, 0] + weights[0, 1] + weights[0, 2]) / 3)
    with pytest.raises(HeedfulError, match="no layer 0 in this self-attention; there are 4, 1"):
        maps.weights_of(0)
    with pytest.raises(HeedfulError, match="no head 1 in this self-attention; there are 0, 9, 3"):
        maps.weights_of(4, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_of_any_precision_are_taken(dtype):
    weights = torch.full((1, 2, 1, 4), 0.25, dtype=dtype, requires_grad=True)
    maps = AttentionMaps.of("self-attention", ["a"], list("wxyz"), weights)
    assert maps.weights.dtype == (np.float64 if dtype == torch.float64 else np.float32)
    assert (maps.weights == 0.25).all()


def test_rows_that_look_at_nothing_and_sums_a_little_above_one_are_taken():
    maps = AttentionMaps.of("self-attention", ["a", "b"], ["a", "b"], [[[[0, 0], [1.004, 0]]]])
    np.testing.assert_array_equal(maps.weights, [[[[0, 0], [1, 0]]]])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"queries": []}, "cannot draw cross-attention: it has no queries"),
        ({"keys": []}, "cannot draw cross-attention: it has no keys"),
        ({"layers": []}, "it has no layers"),
        ({"heads": []}, "it has no heads"),
        ({"rows": (2, 4)}, "queries 2:4 of cross-attention are not within 0:3"),
        ({"rows": (2, 2)}, "queries 2:2"),
        ({"columns": (-1, 2)}, "keys -1:2"),
        ({"layers": [1]}, r"shape \(2, 1, 2, 3\) do not fit 1 layers.*give \(1, 1, 2, 3\)"),
        ({"columns": (0, 4)}, r"keys 0:4; give \(2, 1, 2, 4\)"),
        ({"weights": rows(2, 1, 2, 3) - 1}, r"weight -\d.* is not in 0..1; give the weights after the softmax"),
        ({"weights": np.full((2, 1, 2, 3), 1.5)}, "weight 1.5 is not"),
        ({"weights": np.full((2, 1, 2, 3), np.nan)}, "weight nan is not"),
        ({"overview": np.zeros((2, 1, 4, 1))}, "overview has shape .* for 3 queries and 4 keys"),
        ({"overview": np.zeros((2, 3))}, "overview has shape"),
        ({"overview": np.zeros((1, 1, 2, 2))}, r"give \(2, 1, 2, 2\)"),
    ],
)
def test_maps_of_wrong_shapes_are_refused(changes, said):
    with pytest.raises(HeedfulError, match=said) as caught:
        window(**changes)
    assert "\n" not in str(caught.value)


def test_weights_that_are_no_stack_of_maps_are_refused():
    with pytest.raises(HeedfulError, match=r"shape \(2, 2\); give \(layers, heads, queries, keys\)"):
        AttentionMaps.of("self-attention", ["a", "b"], ["a", "b"], [[1, 0], [0, 1]])


def test_blocks_cover_the_whole_and_their_means_are_those_of_a_plain_loop():
    for length, parts in ((10, 4), (7, 7), (8192, 64), (5, 1)):
        limits = block_edges(length, parts)
        assert (limits[0], limits[-1], len(limits)) == (0, length, parts + 1)
        assert all(low < high for low, high in pairwise(limits))
    weights = rows(2, 2, 11, 7)
    means, tall, wide = block_means(weights, 4, 3), block_edges(11, 4), block_edges(7, 3)
    for i in range(4):
        for j in range(3):
            block = weights[:, :, tall[i] : tall[i + 1], wide[j] : wide[j + 1]]
            assert_close(means[:, :, i, j], block.mean((2, 3)))
