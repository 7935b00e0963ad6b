"""Masks as values: True may attend."""

from __future__ import annotations

import math

import pytest
import torch

from heedful.layers import causal_mask, combine, padding_mask, window_mask
from heedful.layers.mask import add_bias


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 3), (2, 5), (5, 2)])
def test_causal(queries: int, keys: int) -> None:
    expected = [[j <= keys - queries + i for j in range(keys)] for i in range(queries)]
    assert causal_mask(queries, keys).tolist() == expected


def test_causal_is_square_by_default() -> None:
    assert causal_mask(3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]


@pytest.mark.parametrize("window", [1, 2, 9])
def test_window(window: int) -> None:
    queries, keys = torch.tensor([[3, 4]]), torch.tensor([[0, 1, 2, 3, 4]])
    expected = [[p - window < j for j in range(5)] for p in (3, 4)]
    assert window_mask(queries, keys, window)[0, 0].tolist() == expected


def test_combine() -> None:
    real = torch.tensor([[True, True, False], [True, False, False]])
    assert combine() is None
    assert combine(None, None) is None
    assert combine(None, "causal", "causal") == "causal"
    assert combine(padding_mask(real), None) is not None
    joined = combine("causal", padding_mask(real), torch.tensor([[False], [True], [True]]))
    assert joined.shape == (2, 1, 3, 3)
    assert joined[0, 0].tolist() == [[False, False, False], [True, True, False], [True, True, False]]
    assert joined[1, 0].tolist() == [[False, False, False], [True, False, False], [True, False, False]]


def test_combine_takes_lengths_from_the_tensors() -> None:
    allowed = torch.ones(2, 1, 2, 5, dtype=torch.bool)
    assert combine(allowed, "causal")[0, 0].tolist() == causal_mask(2, 5).tolist()


def test_bias_where_the_mask_allows() -> None:
    bias = torch.arange(6.0).view(1, 1, 2, 3)
    assert add_bias(None, bias, 2, 3) is bias
    assert add_bias("causal", bias, 2, 3)[0, 0].tolist() == [[0, 1, -math.inf], [3, 4, 5]]
    assert add_bias(torch.tensor([True, False, True]), bias, 2, 3)[0, 0].tolist() == [
        [0, -math.inf, 2],
        [3, -math.inf, 5],
    ]
