"""Neighbours, pictures and likeness against sklearn and brute force."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import cosine_similarity as sklearn_cosine
from sklearn.neighbors import NearestNeighbors
from tokenizers import Tokenizer
from torch import Tensor, nn

import heedful
from heedful.errors import HeedfulError
from heedful.inspection.embedding_space import cosine_similarity, embedding_tables, neighbours, principal_components
from tolerances import assert_close


@pytest.mark.parametrize(("by", "metric"), [("cosine", "cosine"), ("distance", "euclidean")])
def test_neighbours_are_sklearns(by: Any, metric: str) -> None:
    table = torch.randn(200, 12, dtype=torch.float64)
    ids = [3, 0, 199, 57]
    found, values = neighbours(table, ids, k=7, by=by)
    distances, theirs = (
        NearestNeighbors(n_neighbors=8, metric=metric, algorithm="brute").fit(table).kneighbors(table[ids])
    )
    assert found.tolist() == theirs[:, 1:].tolist()  # theirs begins with the row itself
    expected = torch.from_numpy(distances[:, 1:])
    assert_close(values, 1 - expected if by == "cosine" else expected)


def test_neighbours_of_equal_rows_in_order_and_a_row_of_zeros() -> None:
    table = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [1.0, 1.0], [-1.0, 1.0]])
    found, values = neighbours(table, torch.tensor([1, 0]), k=4)
    assert found.tolist() == [[2, 3, 0, 4], [1, 2, 3, 4]]
    assert_close(values, torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]))
    found, values = neighbours(table, [1], k=2, by="distance")
    assert found.tolist() == [[3, 0]]  # and 2 is as near as 0
    assert_close(values, torch.tensor([[0.0, 2**0.5]]))


def test_near_ones_in_half_precision_and_far_from_the_origin() -> None:
    """Distances of 1 at 10,000 from the origin: by a product of float32 they would be lost."""
    table = torch.full((4, 8), 10_000.0)
    table[:, 0] += torch.tensor([0.0, 3.0, 1.0, 2.0])
    assert neighbours(table, [0], k=3, by="distance")[0].tolist() == [[2, 3, 1]]
    assert neighbours(torch.randn(9, 4).bfloat16(), [0], k=3)[1].dtype == torch.float32


@pytest.mark.parametrize(("rows", "columns"), [(40, 9), (5, 30), (9, 9)])
def test_a_picture_is_sklearns(rows: int, columns: int) -> None:
    vectors = torch.randn(rows, columns, dtype=torch.float64) @ torch.randn(columns, columns, dtype=torch.float64) + 3
    found = principal_components(vectors, 4)
    theirs = PCA(4, svd_solver="full").fit(vectors.numpy())
    assert_close(found.explained, torch.from_numpy(theirs.explained_variance_ratio_))
    assert_close(found.points, torch.from_numpy(theirs.transform(vectors.numpy())))
    assert_close(found.axes, torch.from_numpy(theirs.components_))
    assert_close(found.mean, torch.from_numpy(theirs.mean_))


def test_a_picture_of_everything_turns_and_leaves_distances() -> None:
    vectors = torch.randn(12, 6)
    found = principal_components(vectors, 6)
    assert_close(torch.cdist(found.points, found.points), torch.cdist(vectors, vectors), "training")
    assert found.explained.sum() == pytest.approx(1.0)
    assert found.points.dtype == torch.float32
    nowhere = principal_components(torch.ones(3, 4))
    assert nowhere.points.eq(0).all()
    assert nowhere.explained.eq(0).all()


def test_similarity_is_sklearns() -> None:
    a, b = torch.randn(5, 7, dtype=torch.float64), torch.randn(3, 7, dtype=torch.float64)
    assert_close(cosine_similarity(a), torch.from_numpy(sklearn_cosine(a.numpy())))
    assert_close(cosine_similarity(a, b), torch.from_numpy(sklearn_cosine(a.numpy(), b.numpy())))
    assert cosine_similarity(torch.zeros(2, 3)).eq(0).all()


def test_tables_are_those_of_the_model() -> None:
    model = heedful.create(heedful.presets.t5(16, 2, 4, 24), seed=0)
    found = embedding_tables(model)
    assert {path: tuple(table.shape) for path, table in found.items()} == {
        "embedding.token": (32128, 16),
        "encoder.position.table": (32, 4),
        "decoder.position.table": (32, 4),
    }
    assert found["embedding.token"].data_ptr() == model.embedding.token.weight.data_ptr()
    assert not found["embedding.token"].requires_grad


def test_sentences_of_a_published_model(shared_data: Callable[[str], Path]) -> None:
    """Of three sentences the two that mean the same are the most alike; and all is as by hand."""
    folder = shared_data("weights/minilm-l6")
    words, model = Tokenizer.from_file(str(folder / "tokenizer.json")), heedful.from_pretrained(folder, head="pooled")
    words.no_padding()
    texts = ["A cat sleeps.", "A kitten naps.", "Taxes will rise."]
    with torch.no_grad():
        vectors = torch.cat([model(torch.tensor([words.encode(text).ids])) for text in texts])
    found = cosine_similarity(vectors)
    assert found[0, 1] > 0.5 > max(found[0, 2], found[1, 2])
    assert_close(found, torch.from_numpy(sklearn_cosine(vectors.numpy())))


def test_words_of_a_published_model(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("weights/minilm-l6")
    words = Tokenizer.from_file(str(folder / "tokenizer.json"))
    table = embedding_tables(heedful.from_pretrained(folder))["embedding.token"]
    near = neighbours(table, [words.token_to_id(word) for word in ("monday", "blue")], k=6)[0]
    named = [{words.id_to_token(int(i)) for i in row} for row in near]
    assert len(named[0] & {"tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}) >= 5
    assert len(named[1] & {"red", "green", "yellow", "purple", "pink", "orange", "blues", "white", "black"}) >= 3


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: neighbours(torch.randn(4, 2), [0], k=4), "k is 4 for a table of shape"),
        (lambda: neighbours(torch.randn(4, 2), [4], k=1), "no row 4; the table has 4"),
        (lambda: neighbours(torch.randn(4, 2), [-1], k=1), "no row -1"),
        (lambda: neighbours(torch.randn(4, 2), [0], k=1, by="cosin"), "did you mean 'cosine'"),  # type: ignore[arg-type]
        (lambda: neighbours(torch.randn(4), [0], k=1), "a table of shape"),
        (lambda: principal_components(torch.randn(1, 2)), "give at least two"),
        (lambda: principal_components(torch.randn(5, 2), 3), "5 vectors of 2 numbers do not have 3 axes"),
        (lambda: principal_components(torch.tensor([[1.0], [torch.nan]]), 1), "NaN or infinity"),
        (lambda: cosine_similarity(torch.randn(2)), "one row for each vector"),
        (lambda: cosine_similarity(torch.randn(2, 3), torch.randn(2, 4)), "vectors of 3 and of 4 numbers"),
    ],
)
def test_wrong_comparisons_are_refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(HeedfulError, match=said) as error:
        call()
    assert "\n" not in str(error.value)


def test_no_gradient_is_kept() -> None:
    table = nn.Embedding(5, 3).weight
    made: list[Tensor] = [neighbours(table, [0], 2)[1], cosine_similarity(table), principal_components(table).points]
    assert not any(tensor.requires_grad for tensor in made)
