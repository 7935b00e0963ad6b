"""The embeddings of a text's tokens: a picture in two dimensions, and the tokens of the vocabulary next to each."""

from __future__ import annotations

from functools import partial
from typing import Any

from heedful.errors import HeedfulError
from heedful.inspection.embedding_space import neighbours, picture, tables
from heedful.views import figures
from heedful.views.inspect.model_input import pieces_of, read_source
from heedful.views.inspect.opened_model import Subject
from heedful.views.inspect.request import Ask
from heedful.views.inspect.result import Look
from heedful.views.text import visible

NEAR = 8  # neighbours of each token


def look(subject: Subject, ask: Ask) -> Look:
    """Each token of one text once, in the order in which it comes; of an encoder-decoder its source."""
    name, ids = read_source(subject, ask.inputs[0])
    ids = list(dict.fromkeys(ids))
    if len(ids) < 3:
        raise HeedfulError(f"a picture needs 3 different tokens, {name!r} has {len(ids)}; give a longer text")
    table = tables(subject.model)["embedding.token"]
    seen = picture(table[ids])
    near, cosines = neighbours(table, ids, k=min(NEAR, len(table) - 1))
    pieces = pieces_of(subject.source, ids)
    around = [
        list(zip(pieces_of(subject.source, row), values, strict=True))
        for row, values in zip(near.tolist(), cosines.tolist(), strict=True)
    ]
    first, second = (f"{100 * share:.0f} %" for share in seen.explained.tolist())
    note = (
        f"The two axes along which these {len(ids)} embeddings differ most hold {first} and {second} of their "
        "variance; the rest is left out."
    )
    points = seen.points.float().cpu().numpy()
    data: dict[str, Any] = {
        "input": name,
        "pieces": pieces,
        "points": points,
        "explained": seen.explained.tolist(),
        "neighbours": [[list(one) for one in row] for row in around],
        "note": note,
    }
    title = f"{subject.name}: {name}"
    lines: list[list[str | float]] = [["token", "x", "y", "nearest in the whole vocabulary, by cosine"]]
    for piece, point, row in zip(pieces, points.tolist(), around, strict=True):
        lines.append([piece, *point, ", ".join(f"{visible(one)} {cosine:.2f}" for one, cosine in row)])
    axes = f"{first} of the variance", f"{second} of the variance"
    caption = "the tokens' embeddings in two dimensions"
    draw = partial(figures.scatter, points, pieces, axes=axes)
    return Look.drawn(title, ask.view, data, caption=caption, draw=draw, table=lines)
