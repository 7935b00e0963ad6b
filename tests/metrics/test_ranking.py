"""Correlations and retrieval, against SciPy and against sorting by hand."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from heedful.metrics import ranking
from heedful.metrics.example_scores import overall
from heedful.tasks import contrastive_loss as contrast
from tolerances import approx

ODD = [
    ([1, 2, 3, 4, 5], [5, 6, 7, 8, 7]),
    ([0.1, 0.1, 0.1, 0.5], [1, 2, 2, 2]),  # ties on both sides
    ([3, -1, 3, 2, 0, 0], [0, 0, 1, 5, -2, 9]),
    ([1e-9, 2e-9, 4e-9], [1e9, 3e9, 2e9]),
    (list(range(50)), [i % 7 for i in range(50)]),
]


@pytest.mark.parametrize(("x", "y"), ODD)
def test_correlations_are_scipys(x: list[float], y: list[float]) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert ranking.average_ranks(x).tolist() == stats.rankdata(x).tolist()
    assert ranking.pearson(x, y) == approx(stats.pearsonr(x, y).statistic, "layer", dtype=torch.float64)
    assert ranking.spearman(x, y) == approx(stats.spearmanr(x, y).statistic, "layer", dtype=torch.float64)
    random = np.random.default_rng(0)
    places = random.integers(len(x), size=3 * len(x))
    figures = ranking.Correlations(x, y, 0.05).metrics_of(places)
    x, y = np.array(x)[places], np.array(y)[places]
    assert figures["spearman"] == pytest.approx(100 * stats.spearmanr(x, y).statistic)
    assert figures["pearson"] == pytest.approx(100 * stats.pearsonr(x, y).statistic)


@pytest.mark.parametrize(("x", "y"), [([], []), ([1], [2]), ([1, 1, 1], [1, 2, 3]), ([1, 2, 3], [4, 4, 4])])
def test_constant_scores_have_no_correlation(x: list[float], y: list[float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ranking.pearson(x, y) == ranking.spearman(x, y) == 0
        assert math.isfinite(ranking.cosent(x, y, 0.05))


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_the_loss_of_scores_is_that_of_all_pairs_of_rows(temperature: float) -> None:
    random = np.random.default_rng(1)
    cosines, scores = random.uniform(-1, 1, 40), random.integers(0, 5, 40).astype(float)
    total = sum(
        math.exp((cosines[j] - cosines[i]) / temperature) for i in range(40) for j in range(40) if scores[i] > scores[j]
    )
    assert ranking.cosent(cosines, scores, temperature) == pytest.approx(math.log(1 + total))
    # the one that is learned by, from vectors of these cosines
    texts = torch.tensor([[1.0, 0.0]] * 40, dtype=torch.float64)
    pairs = torch.tensor(np.stack([cosines, np.sqrt(1 - cosines**2)], 1)) * 3
    learned = contrast.cosent(texts, pairs, torch.tensor(scores), temperature)
    assert learned.item() == pytest.approx(40 * math.log(1 + total))
    assert contrast.cosent(texts, pairs, torch.ones(40), temperature).item() == 0
    far = ranking.cosent([1, -1], [0, 1], 0.001)  # no overflow
    assert far == pytest.approx(2000)


def brute(near: np.ndarray, own: list[int], right: list[set[int]], temperature: float) -> tuple[list[int], list[float]]:
    ranks, losses = [], []
    for row, mine, rights in zip(near, own, right, strict=True):
        wrong = [float(value) for i, value in enumerate(row) if i not in rights]
        ranks.append(1 + sum(value >= row[mine] for value in wrong))
        total = sum(math.exp((value - row[mine]) / temperature) for value in wrong)
        losses.append(math.log(1 + total))
    return ranks, losses


@pytest.mark.parametrize("block", [1, 7, 1 << 22])
def test_a_search_is_that_by_hand(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "BLOCK", block)
    random = np.random.default_rng(2)
    near = random.integers(-8, 9, (30, 12)) / 8  # many are equal
    own = random.integers(0, 12, 30).tolist()
    right = [{mine, *random.integers(0, 12, random.integers(0, 3)).tolist()} for mine in own]
    places = [np.array(sorted(each)) for each in right]
    found = ranking.rank_candidates(lambda part: near[part].copy(), 12, own, places, 0.3)
    ranks, losses = brute(near, own, right, 0.3)
    assert found.ranks.tolist() == ranks
    assert found.losses == pytest.approx(losses)
    for row, (place, mine, rank) in enumerate(zip(found.nearest, own, ranks, strict=True)):
        assert (place == mine) == (rank == 1)
        assert place == mine or (place not in right[row] and near[row, place] >= near[row, mine])
    scored = ranking.retrieval(found.ranks, found.losses)
    assert overall(scored) == pytest.approx(
        {f"recall_at_{k}": 100 * sum(rank <= k for rank in ranks) / 30 for k in (1, 5, 10)}
        | {"mrr": 100 * sum(1 / rank for rank in ranks) / 30, "loss": sum(losses) / 30}
    )
    twice = scored.metrics_of(np.array([3, 3, 4]))
    assert twice["mrr"] == pytest.approx(100 * (2 / ranks[3] + 1 / ranks[4]) / 3)


@pytest.mark.parametrize("value", [0.5, np.nan])
def test_vectors_that_are_all_alike_find_nothing(value: float) -> None:
    near = np.full((4, 4), value)
    found = ranking.rank_candidates(lambda part: near[part].copy(), 4, range(4), [np.array([i]) for i in range(4)], 0.1)
    assert found.ranks.tolist() == [4] * 4


def test_one_candidate_is_found() -> None:
    alone = ranking.rank_candidates(lambda part: np.ones((1, 1)), 1, [0], [np.array([0])], 0.1)
    assert (alone.ranks.tolist(), alone.losses.tolist()) == ([1], [0.0])


def test_unit() -> None:
    made = ranking.unit(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32))
    assert made.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0, 0]]
    assert made.dtype == np.float32


def test_two_models_correlations_stand_in_one_row() -> None:
    first, second = ranking.Correlations([0.1, 0.9], [1, 2], 0.05), ranking.Correlations([0.9, 0.1], [1, 2], 0.05)
    both = first.joined(second)
    assert len(both) == 4
    assert both.metrics_of(np.array([0, 1]))["spearman"] == pytest.approx(100)
    assert both.metrics_of(np.array([2, 3]))["spearman"] == pytest.approx(-100)
