"""Scores of what heads do, by loops over every query and key."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.inspection.head_scores import (
    duplicate_token,
    first_token,
    induction,
    mutual_information,
    previous_token,
    repeated_tokens,
)
from tolerances import approx, assert_close

IDS = torch.tensor([[3, 5, 3, 3, 5, 4], [9, 4, 9, 4, 9, 9]])
REALS = {
    "whole": torch.ones(2, 6).bool(),
    "left": torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]).bool(),
    "holes": torch.tensor([[1, 1, 1, 0, 1, 1], [1, 0, 1, 1, 1, 1]]).bool(),
    "right": torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]]).bool(),
}


def is_previous(b: int, t: int, s: int, real: Tensor) -> bool:
    return s == t - 1


def is_first(b: int, t: int, s: int, real: Tensor) -> bool:
    return s < t and not real[b, :s].any()


def is_copy(b: int, t: int, s: int, real: Tensor) -> bool:
    return s < t and bool(IDS[b, s] == IDS[b, t])


def follows_copy(b: int, t: int, s: int, real: Tensor) -> bool:
    return 1 <= s < t and bool(real[b, s - 1]) and bool(IDS[b, s - 1] == IDS[b, t])


@pytest.mark.parametrize("padding", REALS)
@pytest.mark.parametrize(
    ("score", "expects"),
    [
        (previous_token, is_previous),
        (first_token, is_first),
        (lambda p, real: duplicate_token(p, IDS, real), is_copy),
        (lambda p, real: induction(p, IDS, real), follows_copy),
        (lambda p, real: previous_token(p, real, offset=-2), lambda b, t, s, real: s == t + 2),
    ],
    ids=["previous", "first", "duplicate", "induction", "two ahead"],
)
def test_by_loops(score: Callable[..., Tensor], expects: Callable[..., bool], padding: str) -> None:
    real = REALS[padding]
    pattern = torch.randn(2, 3, 6, 6, dtype=torch.float64).softmax(-1)
    total, counted = [0.0] * 3, 0
    for b in range(2):
        for t in range(6):
            keys = [s for s in range(6) if real[b, t] and real[b, s] and expects(b, t, s, real)]
            counted += bool(keys)
            for h in range(3):
                total[h] += sum(float(pattern[b, h, t, s]) for s in keys)
    assert counted
    made = score(pattern, real)
    assert made.tolist() == pytest.approx([one / counted for one in total])
    if padding == "whole":
        assert_close(score(pattern, None), made)


def test_mutual_information_by_counting() -> None:
    """I(T; S) of the joint p(t, s) = a_ts / T."""
    pattern = torch.randn(2, 3, 5, 4, dtype=torch.float64).softmax(-1)
    expected = []
    for h in range(3):
        each = []
        for b in range(2):
            joint = pattern[b, h] / 5
            columns = joint.sum(0)
            each.append(
                sum(float(joint[t, s] * (joint[t, s] / (columns[s] / 5)).log()) for t in range(5) for s in range(4))
            )
        expected.append(sum(each) / 2)
    assert mutual_information(pattern).tolist() == pytest.approx(expected)


def test_mutual_information_of_plain_cases() -> None:
    clean, alike = torch.eye(6), torch.zeros(6, 6)
    alike[:, -1] = 1  # all at the end mark
    made = mutual_information(torch.stack([clean, alike, torch.full((6, 6), 1 / 6)])[None])
    assert made.tolist() == approx([math.log(6), 0, 0], "layer")
    real = torch.tensor([[1, 1, 1, 0, 0, 0]]).bool()
    assert float(mutual_information(clean[None, None], real)) == pytest.approx(math.log(3))
    padded = torch.nn.functional.pad(clean, (0, 0, 2, 0))[None, None]  # two rows that may attend to nothing
    assert float(mutual_information(padded)) == pytest.approx(math.log(6))
    with pytest.raises(HeedfulError, match="no query to measure"):
        mutual_information(clean[None, None], torch.zeros(1, 6))


def test_repeated_tokens() -> None:
    ids = repeated_tokens(20, length=15, rows=4, repeats=3, seed=1, avoid=(0, 7))
    assert ids.shape == (4, 45)
    for row in ids.tolist():
        assert row == row[:15] * 3
        assert len(set(row)) == 15
        assert not {0, 7} & set(row)
    assert torch.equal(ids, repeated_tokens(20, length=15, rows=4, repeats=3, seed=1, avoid=(0, 7)))
    assert not torch.equal(ids, repeated_tokens(20, length=15, rows=4, repeats=3, seed=2, avoid=(0, 7)))
    assert repeated_tokens(3, length=7, rows=2).shape == (2, 14)  # more than there are ids
    before = random.getstate(), torch.get_rng_state()
    repeated_tokens(20)
    assert before[0] == random.getstate()
    assert torch.equal(before[1], torch.get_rng_state())


@pytest.mark.parametrize("options", [{"length": 1}, {"repeats": 1}, {"avoid": tuple(range(19))}])
def test_nothing_to_repeat(options: dict[str, object]) -> None:
    with pytest.raises(HeedfulError, match="each must be at least 2"):
        repeated_tokens(20, **options)


def test_refuses() -> None:
    square = torch.ones(1, 1, 3, 3)
    with pytest.raises(HeedfulError, match="expects no key for any token of these inputs"):
        induction(square, torch.tensor([[1, 2, 3]]))
    with pytest.raises(HeedfulError, match=r"\(1, 1, 3, 4\)"):
        previous_token(torch.ones(1, 1, 3, 4))
    with pytest.raises(HeedfulError, match="offset is 0"):
        previous_token(square, offset=0)
