"""Rows of related texts: checks, groups connected by shared texts, and retrieval of each text's pair."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.data import Row
from heedful.errors import HeedfulError, plural
from heedful.metrics import ranking
from heedful.settings import RunSettings

SIDES = ("text", "text_pair", "negative")


def retrieval_texts(row: Row) -> tuple[str, ...]:
    """Returns the texts of a row; raises ``HeedfulError`` if it has both a negative and a score."""
    texts = tuple(row.values[name] for name in SIDES if name in row.values)
    if len(texts) == len(SIDES) and "score" in row.values:
        raise HeedfulError(
            f"{row.file}:{row.line}: the row has both 'negative' and 'score', but only one of them can be learned; "
            "leave one column out"
        )
    return texts


def check_rows(rows: Sequence[Row], settings: RunSettings) -> None:
    """Raises ``HeedfulError`` if nothing can be learned from the rows, or if a setting has no effect on them.

    Nothing can be learned from a single pair without a score, or from equal scores.
    """
    scores = {row.values.get("score") for row in rows}
    if scores == {None} and len({retrieval_texts(row) for row in rows}) < 2:
        raise HeedfulError(
            f"{rows[0].file}:{rows[0].line}: there is a single pair, and no other pair to contrast it with; add rows"
        )
    if scores != {None} and len(scores) < 2:
        raise HeedfulError(
            f"{rows[0].file}: every score is {scores.pop():g}, in {plural(len(rows), 'row')}; give different scores"
        )
    without_effect = {
        "--training.label-smoothing": bool(settings.training.label_smoothing),
        "--pooling.symmetric": settings.pooling.symmetric is False,
    }
    for flag, is_set in without_effect.items():
        if scores != {None} and is_set:
            raise HeedfulError(f"{flag} has no effect on pairs with scores, as in {rows[0].file}; leave the option out")


def groups_of(rows: Iterable[Row]) -> list[str]:
    """Returns the group of each row, as a text that all rows of the group have in common.

    Rows that share a text, directly or through other rows, are one group (union-find).
    """
    parents: dict[str, str] = {}

    def root(text: str) -> str:
        while parents.setdefault(text, text) != text:
            parents[text] = text = parents[parents[text]]
        return text

    firsts = []
    for row in rows:
        first, *others = retrieval_texts(row)
        firsts.append(first)
        for other in others:
            parents[root(other)] = root(first)
    return [root(first) for first in firsts]


def search(
    vectors: Any, text_numbers: NDArray[np.int64], temperature: float
) -> tuple[ranking.Retrieval, NDArray[np.int64]]:
    """Ranks each row's pair among all pairs and negatives by similarity to the row's text.

    Args:
        vectors: (texts, D) vectors of length 1, dense or sparse.
        text_numbers: (N, 2 or 3), for each row the numbers of its text, its pair and any negative in ``vectors``.
        temperature: temperature of the loss.

    Returns:
        The ranks, and for each row the number of the most similar candidate.
    """
    pool, own = np.unique(text_numbers[:, 1:], return_inverse=True)
    own = own.reshape(len(text_numbers), -1)[:, 0]
    rights: dict[int, list[int]] = defaultdict(list)
    for text, pair in {(int(text), int(pair)) for text, pair in zip(text_numbers[:, 0], own, strict=True)}:
        rights[text].append(pair)
    index = {int(number): candidate for candidate, number in enumerate(pool)}
    for text, right in rights.items():  # a candidate equal to the text is right, too
        right.extend({index[text]} - {*right} if text in index else ())
    right_candidates = [np.array(rights[int(text)], dtype=np.int64) for text in text_numbers[:, 0]]
    candidates = vectors[pool].T

    def similarities(part: slice) -> ranking.Floats:
        product = vectors[text_numbers[part, 0]] @ candidates
        dense: ranking.Floats = product.toarray() if hasattr(product, "toarray") else product
        return dense

    result = ranking.rank_candidates(similarities, len(pool), own, right_candidates, temperature)
    return result, pool[result.nearest]
