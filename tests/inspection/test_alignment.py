"""Alignment from cross-attention, and its error rate, by hand and against a generated model's own rows."""

from __future__ import annotations

import random

import pytest
import torch

import heedful
from heedful.errors import HeedfulError
from heedful.inspection.alignment import align, alignment_error_rate


def test_both_times() -> None:
    """start, a, b, c over x, y, z: row 0 chooses a, row 1 reads a and chooses b."""
    pattern = torch.eye(3)[[2, 0, 1, 1]]
    assert align(pattern) == [(2, 1), (0, 2), (1, 3)]
    assert align(pattern, when="input") == [(0, 1), (1, 2), (1, 3)]


def test_the_end_token_is_never_linked() -> None:
    """The end mark takes most of the weight, as it often does; it is passed over, not linked."""
    pattern = torch.tensor([[0.1, 0.2, 0.7], [0.3, 0.1, 0.6], [0.0, 0.0, 1.0]])
    assert align(pattern) == [(2, 1), (2, 2)]
    assert align(pattern, source_words=[0, 1, None]) == [(1, 1), (0, 2)]
    assert align(pattern, source_words=[0, 1, None], target_words=[None, None, 0]) == [(0, 0)]
    assert align(pattern, when="input", source_words=[0, 1, None]) == [(0, 1)]  # the last row has nothing else to give
    assert align(pattern, source_words=[None] * 3) == []
    assert align(torch.zeros(3, 3)) == []


def test_words_are_linked_where_any_of_their_tokens_are() -> None:
    pattern = torch.eye(4)[[0, 1, 3, 2, 0]]
    links = align(pattern, source_words=[0, 0, 1, 1], target_words=[None, 0, 0, 1, 1])
    assert links == [(0, 0), (1, 1)]  # four tokens, two links


def test_align_by_brute_force() -> None:
    random.seed(1)
    for _ in range(50):
        queries, keys = random.randint(1, 6), random.randint(1, 6)
        pattern = torch.rand(queries, keys).softmax(-1)
        sources = [random.choice([None, 0, 1, 2]) for _ in range(keys)]
        targets = [random.choice([None, 0, 1]) for _ in range(queries)]
        for when, back in (("output", 1), ("input", 0)):
            expected = set()
            for t in range(1, queries):
                allowed = [s for s in range(keys) if sources[s] is not None]
                if allowed and targets[t] is not None:
                    best = max(allowed, key=lambda s: float(pattern[t - back, s]))
                    expected.add((sources[best], targets[t]))
            made = align(pattern, when=when, source_words=sources, target_words=targets)
            assert set(made) == expected
            assert len(made) == len(expected)


def test_rows_of_a_generation() -> None:
    """The row recorded for a generated token is the row that ``when="output"`` reads."""
    model = heedful.create("transformer-tiny", seed=0).eval()
    source = torch.tensor([[5, 9, 11, 2]])
    with heedful.record(model, "cross_attention.pattern", layers=[1], heads=[2]) as seen:
        made = model.generate(source, max_new_tokens=4)
    rows = seen["decoder.block.1.cross_attention.pattern"][0, 0]
    with torch.no_grad(), heedful.record(model, "cross_attention.pattern", layers=[1], heads=[2]) as seen:
        model(source, made)
    links = align(seen["decoder.block.1.cross_attention.pattern"][0, 0])
    assert links == [(int(row.argmax()), t + 1) for t, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pattern": torch.ones(1, 2, 3)}, r"\(1, 2, 3\)"),
        ({"when": "outputs"}, "did you mean 'output'"),
        ({"source_words": [0]}, "1 source_words"),
        ({"target_words": [0, 1]}, "2 target_words"),
    ],
)
def test_align_refuses(options: dict[str, object], said: str) -> None:
    with pytest.raises(HeedfulError, match=said):
        align(**{"pattern": torch.ones(3, 2), **options})


def test_error_rate_by_hand() -> None:
    """Two sentences: A = 4 links, S = 3, P = S and one more. A ∩ S = 2, A ∩ P = 3: 1 − 5 / 7."""
    made = [[(0, 0), (1, 1)], [(0, 1), (2, 2)]]
    sure = [[(0, 0), (2, 1)], [(2, 2)]]
    agreed = alignment_error_rate(made, sure, possible=[[(1, 1)], []])
    assert agreed.error == pytest.approx(1 - 5 / 7)
    assert agreed.precision == pytest.approx(3 / 4)
    assert agreed.recall == pytest.approx(2 / 3)
    repeated = [[(1, 1), (0, 0), (2, 1)], [(2, 2)]]
    assert alignment_error_rate(made, sure, repeated) == agreed  # S ⊆ P, said or unsaid


def test_error_rate_is_one_minus_f1_where_all_links_are_sure() -> None:
    random.seed(0)
    every = [(s, t) for s in range(4) for t in range(4)]
    for _ in range(20):
        made, sure = ([random.sample(every, 5) for _ in range(3)] for _ in range(2))
        agreed = alignment_error_rate(made, sure)
        p, r = agreed.precision, agreed.recall
        assert agreed.error == pytest.approx(1 - (2 * p * r / (p + r) if p + r else 0))
    assert alignment_error_rate(made, made).error == 0


def test_error_rate_refuses() -> None:
    with pytest.raises(HeedfulError, match="1 sentences, sure 2"):
        alignment_error_rate([[(0, 0)]], [[(0, 0)], []])
    with pytest.raises(HeedfulError, match="there are 0 predicted"):
        alignment_error_rate([[]], [[(0, 0)]])
