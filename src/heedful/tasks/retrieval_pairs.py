"""Rows of texts that belong together: what they hold, which hang together, how each finds its pair."""

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


def texts_of(row: Row) -> tuple[str, ...]:
    """The texts of a row; raises where it has a score too and three of them."""
    found = tuple(row.values[name] for name in SIDES if name in row.values)
    if len(found) == len(SIDES) and "score" in row.values:
        raise HeedfulError(
            f"{row.file}:{row.line}: both 'negative' and 'score'; a pair is told from others or scored, so leave one "
            "column out"
        )
    return found


def check_rows(rows: Sequence[Row], settings: RunSettings) -> None:
    """Raise where there is nothing to learn from, or a setting has no effect on what there is."""
    scores = {row.values.get("score") for row in rows}
    if scores == {None} and len({texts_of(row) for row in rows}) < 2:
        raise HeedfulError(
            f"{rows[0].file}:{rows[0].line}: one pair alone has nothing to be told apart from; give two or more"
        )
    if scores != {None} and len(scores) < 2:
        raise HeedfulError(
            f"{rows[0].file}: every score is {scores.pop():g}, in {plural(len(rows), 'row')}; there must be two to put "
            "in order"
        )
    idle = {
        "--training.label-smoothing": bool(settings.training.label_smoothing),
        "--pooling.symmetric": settings.pooling.symmetric is False,
    }
    for flag, given in idle.items():
        if scores != {None} and given:
            raise HeedfulError(f"{flag} has no effect on pairs with scores, as in {rows[0].file}; leave it out")


def groups_of(rows: Iterable[Row]) -> list[str]:
    """For each row one text of all the rows that hang together by their texts."""
    above: dict[str, str] = {}

    def top(text: str) -> str:
        while above.setdefault(text, text) != text:
            above[text] = text = above[above[text]]
        return text

    firsts = []
    for row in rows:
        first, *others = texts_of(row)
        firsts.append(first)
        for other in others:
            above[top(other)] = top(first)
    return [top(first) for first in firsts]


def search(vectors: Any, places: NDArray[np.int64], temperature: float) -> tuple[ranking.Retrieval, NDArray[np.int64]]:
    """Ranks each row's pair among all pairs and negatives, and returns the number of the nearest of these.

    Args:
        vectors: (texts, D) of length 1, an array or sparse.
        places: (N, 2 or 3), the numbers of each row's texts among them.
        temperature: of the loss.
    """
    pool, own = np.unique(places[:, 1:], return_inverse=True)
    own = own.reshape(len(places), -1)[:, 0]
    rights: dict[int, list[int]] = defaultdict(list)
    for text, pair in {(int(text), int(pair)) for text, pair in zip(places[:, 0], own, strict=True)}:
        rights[text].append(pair)
    itself = {int(number): place for place, number in enumerate(pool)}
    for text, right in rights.items():  # a text's equal is no mistake either
        right.extend({itself[text]} - {*right} if text in itself else ())
    every = [np.array(rights[int(text)], dtype=np.int64) for text in places[:, 0]]
    candidates = vectors[pool].T

    def near(part: slice) -> ranking.Floats:
        alike = vectors[places[part, 0]] @ candidates
        made: ranking.Floats = alike.toarray() if hasattr(alike, "toarray") else alike
        return made

    found = ranking.find(near, len(pool), own, every, temperature)
    return found, pool[found.nearest]
