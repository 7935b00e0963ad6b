"""Analyses of attention maps against brute force: all paths, all pixels, SciPy's Jensen-Shannon distance."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from torch import Tensor

import heedful
from heedful.errors import HeedfulError
from heedful.inspection.attention_maps import class_token_overlay, distance, entropy, head_similarity, rollout
from tolerances import approx, assert_close


def random_patterns(*shape: int, layers: int = 3, causal: bool = False) -> list[Tensor]:
    scores = torch.randn(layers, *shape, dtype=torch.float64)
    if causal:
        scores = scores.masked_fill(torch.ones(shape[-2:]).triu(1).bool(), float("-inf"))
    return list(scores.softmax(-1))


@pytest.mark.parametrize("residual", [0.0, 0.3, 0.5])
@pytest.mark.parametrize("causal", [False, True])
def test_rollout_is_the_sum_over_all_paths(residual: float, causal: bool) -> None:
    """From output token t back to input token s: every way through the layers, the product of its steps."""
    patterns = random_patterns(2, 2, 4, 4, causal=causal)
    steps = [(1 - residual) * p.mean(1).numpy() + residual * np.eye(4) for p in patterns]
    expected = np.zeros((2, 4, 4))
    for b, t, first, second, s in itertools.product(range(2), *[range(4)] * 4):
        expected[b, t, s] += steps[2][b, t, second] * steps[1][b, second, first] * steps[0][b, first, s]
    made = rollout(iter(patterns), residual=residual)
    assert_close(made, expected, "gradient")
    assert_close(made.sum(-1), 1, "gradient")


def test_rollout_of_a_padded_model() -> None:
    """Left padding comes from itself, and the rest is what the sentence alone gives."""
    model = heedful.create("gpt-micro", seed=0).double().eval()
    ids = torch.tensor([[5, 6, 7]])
    with heedful.record(model) as alone:
        model(ids)
    with heedful.record(model) as padded:
        model(torch.tensor([[0, 0, 5, 6, 7]]), torch.tensor([[0, 0, 1, 1, 1]]).bool())
    made = rollout(padded.values())
    assert_close(made[:, 2:, 2:], rollout(alone.values()))
    assert_close(made[:, :2], torch.eye(5, dtype=torch.float64)[None, :2])
    alone_without, padded_without = (rollout(seen.values(), residual=0) for seen in (alone, padded))
    assert_close(padded_without[:, 2:, 2:], alone_without)


def test_rollout_of_ablated_heads() -> None:
    """One head of two is set to nothing: (½ · ½ A + ½ I) made to sum to 1 is ⅓ A + ⅔ I."""
    (pattern,) = random_patterns(1, 2, 3, 3, layers=1)
    pattern[:, 1] = 0
    expected = pattern[:, 0] / 3 + torch.eye(3, dtype=torch.float64) * 2 / 3
    assert_close(rollout([pattern]), expected)


@pytest.mark.parametrize(
    ("patterns", "residual", "said"),
    [
        ([], 0.5, "no pattern"),
        ([torch.ones(1, 2, 3, 4)], 0.5, r"\(1, 2, 3, 4\)"),
        ([torch.ones(1, 2, 3, 3), torch.ones(1, 2, 4, 4)], 0.5, r"\(1, 2, 4, 4\)"),
        ([torch.ones(3, 3)], 0.5, r"\(3, 3\)"),
        ([torch.ones(1, 2, 3, 3)], 1.0, "residual is 1"),
        ([torch.ones(1, 2, 3, 3)], -0.1, "residual is -0.1"),
    ],
)
def test_rollout_refuses(patterns: list[Tensor], residual: float, said: str) -> None:
    with pytest.raises(HeedfulError, match=said):
        rollout(patterns, residual=residual)


def test_entropy() -> None:
    (pattern,) = random_patterns(2, 3, 4, 5, layers=1)
    expected = [-sum(p * math.log(p) for p in row) for row in pattern.view(-1, 5).tolist()]
    assert_close(entropy(pattern).flatten(), torch.tensor(expected, dtype=torch.float64))
    assert float(entropy(torch.full((1000,), 1e-3, dtype=torch.bfloat16))) == pytest.approx(math.log(1000), rel=0.01)
    assert entropy(torch.zeros(2, 4)).tolist() == [0, 0]


@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_distance(prefix: int) -> None:
    """Pixel by pixel in a 2 × 3 grid of patches of 4 × 4 pixels."""
    rows, columns, patch = 2, 3, 4
    (pattern,) = random_patterns(2, 3, 6 + prefix, 6 + prefix, layers=1)
    centres = [((i + 0.5) * patch, (j + 0.5) * patch) for i in range(rows) for j in range(columns)]
    made = distance(pattern, (rows, columns), patch)
    for b, h in itertools.product(range(2), range(3)):
        each = []
        for t, here in enumerate(centres):
            weights = [float(pattern[b, h, prefix + t, prefix + s]) for s in range(6)]
            each.append(sum(w * math.dist(here, c) for w, c in zip(weights, centres, strict=True)) / sum(weights))
        assert float(made[b, h]) == approx(sum(each) / 6, "layer", dtype=torch.float64)


def test_distance_of_queries_that_look_at_the_class_token_alone() -> None:
    pattern = torch.zeros(1, 1, 5, 5)
    pattern[..., 0] = 1
    assert distance(pattern, (2, 2)).tolist() == [[0.0]]
    pattern[0, 0, 1] = torch.tensor([0.5, 0, 0, 0, 0.5])  # one patch looks at the opposite corner
    assert float(distance(pattern, (2, 2), 10)) == pytest.approx(10 * 2**0.5)


def test_distance_grows_from_the_patch_to_the_whole() -> None:
    model = heedful.create("vit-micro", seed=0).eval()
    with heedful.record(model) as seen:
        model(torch.randn(2, 1, 28, 28))
    for pattern in seen.values():
        made = distance(pattern, (4, 4), 7)
        assert made.shape == (2, 4)
        assert made.gt(0).all()
        assert made.lt(7 * 3 * 2**0.5).all()  # the diagonal between centres
    with pytest.raises(HeedfulError, match="4 × 5 patches"):
        distance(pattern, (4, 5), 7)


def test_head_similarity_is_scipys_jensen_shannon() -> None:
    patterns = random_patterns(2, 2, 3, 4, layers=2)
    real = torch.tensor([[True, True, False], [False, True, True]])
    heads = torch.cat(patterns, 1).transpose(0, 1)[:, real].numpy()
    made = head_similarity(patterns, real)
    assert made.shape == (4, 4)
    for one, other in itertools.product(range(4), range(4)):
        apart = [jensenshannon(p, q, base=2) ** 2 for p, q in zip(heads[one], heads[other], strict=True)]
        assert float(made[one, other]) == approx(1 - np.mean(apart), dtype=torch.float64)


def test_head_similarity_leaves_empty_rows_out() -> None:
    patterns = random_patterns(1, 3, 4, 4, layers=2, causal=True)
    padded = [torch.nn.functional.pad(pattern, (2, 0, 2, 0)) for pattern in patterns]
    assert_close(head_similarity(padded), head_similarity(patterns))


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        ([], "none"),
        ([torch.ones(1, 2, 3, 3), torch.ones(1, 2, 3, 4)], r"\(1, 2, 3, 4\)"),
        ([torch.zeros(1, 2, 3, 3)], "there is no query to compare"),
    ],
)
def test_head_similarity_refuses(patterns: list[Tensor], said: str) -> None:
    with pytest.raises(HeedfulError, match=said):
        head_similarity(patterns)


def test_class_token_overlay() -> None:
    """Entry by entry: patch (i, j) of a 2 × 3 grid is token prefix + 3 i + j."""
    (pattern,) = random_patterns(2, 4, 8, 8, layers=1)
    made = class_token_overlay(pattern, (2, 3), token=1)
    assert made.shape == (2, 4, 2, 3)
    for i, j in itertools.product(range(2), range(3)):
        assert torch.equal(made[..., i, j], pattern[..., 1, 2 + 3 * i + j])
    assert class_token_overlay(rollout([pattern]), (2, 3)).shape == (2, 2, 3)
    with pytest.raises(HeedfulError, match="no token 8"):
        class_token_overlay(pattern, (2, 3), token=8)
    with pytest.raises(HeedfulError, match="2 × 4 patches"):
        class_token_overlay(pattern[..., :5, :5], (2, 4))
