from __future__ import annotations

import numpy as np
import pytest

from heedful.errors import HeedfulError
from heedful.views.attention_data import checked_weights, merge_words, most_informative_layer, word_starts
from tolerances import assert_close


def rows(rng, *shape):
    return rng.dirichlet(np.ones(shape[-1]), shape[:-1])


def test_merging_sums_over_source_and_averages_over_target():
    source, target = ["Tues", "day", " 4", "</s>"], ["mar", "di", " 4"]
    weights = rows(np.random.default_rng(0), 2, 3, 3, 4)
    words_in, words_out, merged = merge_words(source, target, weights)
    assert words_in == ["Tuesday", " 4", "</s>"]
    assert words_out == ["mardi", " 4"]
    for layer in range(2):
        for head in range(3):
            w = weights[layer, head]
            first = [(w[0, 0] + w[0, 1] + w[1, 0] + w[1, 1]) / 2, (w[0, 2] + w[1, 2]) / 2, (w[0, 3] + w[1, 3]) / 2]
            second = [w[2, 0] + w[2, 1], w[2, 2], w[2, 3]]
            assert_close(merged[layer, head], [first, second])
    assert_close(merged.sum(-1), 1)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["a", "b", " c"], [True, False, True]),
        (["a", " b", "c", "</s>"], [True, True, False, True]),
        (["[CLS]", "a", "b", " c", "[SEP]", "d"], [True, True, False, True, True, True]),
        (["一", "九", "</s>"], [True, True, True]),
        (["one", "two"], [True, True]),
    ],
)
def test_where_words_start(pieces, expected):
    assert word_starts(pieces) == expected


def test_clearest_prefers_an_alignment_to_rows_that_are_all_alike():
    uniform = np.full((2, 4, 4), 0.25)
    at_the_end = np.broadcast_to(np.eye(4)[3], (2, 4, 4))
    aligned = np.broadcast_to(0.8 * np.eye(4) + 0.05, (2, 4, 4))
    assert most_informative_layer(np.stack([uniform, at_the_end, aligned])) == 2
    assert most_informative_layer(np.stack([aligned, uniform, at_the_end])) == 0


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (np.full((2, 3), 0.5), r"\(2, 3\).*give \(3, 2\)"),
        (np.full((1, 3, 2), 0.5), r"\(1, 3, 2\)"),
        ([[0.5, 0.5], [1.0]], "differ in shape"),
        ([[0.5, 0.5], [1, 0], [float("nan"), 1]], "nan is not in 0..1"),
        ([[0.5, 0.5], [1, 0], [-2, 3]], "-2 is not in 0..1"),
    ],
)
def test_wrong_weights_are_refused(weights, said):
    with pytest.raises(HeedfulError, match=said):
        checked_weights(["a", "b"], ["x", "y", "z"], weights, "TS")


def test_an_empty_sentence_is_refused():
    with pytest.raises(HeedfulError, match="0 source and 1 target"):
        checked_weights([], ["x"], np.zeros((1, 0)), "TS")


def test_tensors_of_any_precision_are_taken():
    torch = pytest.importorskip("torch")
    layers = [torch.full((2, 1, 2), 0.5, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    taken = checked_weights(["a", "b"], ["x"], layers, "LHTS")
    assert taken.shape == (3, 2, 1, 2)
    assert taken.dtype == np.float64
