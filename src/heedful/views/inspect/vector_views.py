"""The views of vectors: token embeddings, similarity of inputs, positions, patch filters."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from heedful.config import (
    AlibiPosition,
    EncoderDecoderConfig,
    LearnedPosition,
    NoPosition,
    PooledHead,
    RelativePosition,
    RotaryPosition,
    SequenceHead,
    VisionConfig,
)
from heedful.errors import HeedfulError
from heedful.heads import pool
from heedful.inspection.embedding_space import cosine_similarity, embedding_tables, neighbours, principal_components
from heedful.inspection.image_patches import filters, patch_filters
from heedful.inspection.position_tables import position_bias, position_similarity
from heedful.views import figures
from heedful.views.inspect.catalogue import stacks_of
from heedful.views.inspect.model_input import Array, pieces_of, read, read_source, row_of
from heedful.views.inspect.opened_model import OpenedModel
from heedful.views.inspect.request import Request
from heedful.views.inspect.result import InspectionResult
from heedful.views.text import visible

NEAR = 8  # neighbours of each token


def look_at_embeddings(opened: OpenedModel, request: Request) -> InspectionResult:
    """Returns each token of one text once, in the order in which it comes; of an encoder-decoder its source."""
    name, ids = read_source(opened, request.inputs[0])
    ids = list(dict.fromkeys(ids))
    if len(ids) < 3:
        raise HeedfulError(f"a picture needs 3 different tokens, {name!r} has {len(ids)}; give a longer text")
    table = embedding_tables(opened.model)["embedding.token"]
    seen = principal_components(table[ids])
    near, cosines = neighbours(table, ids, k=min(NEAR, len(table) - 1))
    pieces = pieces_of(opened.source, ids)
    around = [
        list(zip(pieces_of(opened.source, row), values, strict=True))
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
    title = f"{opened.name}: {name}"
    lines: list[list[str | float]] = [["token", "x", "y", "nearest in the whole vocabulary, by cosine"]]
    for piece, point, row in zip(pieces, points.tolist(), around, strict=True):
        lines.append([piece, *point, ", ".join(f"{visible(one)} {cosine:.2f}" for one, cosine in row)])
    axes = f"{first} of the variance", f"{second} of the variance"
    caption = "the tokens' embeddings in two dimensions"
    draw = partial(figures.scatter, points, pieces, axes=axes)
    return InspectionResult.drawn(title, request.view, data, caption=caption, draw=draw, table=lines)


ROWS = {
    "first": "the first token",
    "last": "the last token",
    "mean": "the mean of all tokens",
    "max": "the largest of all",
}


def look_at_similarity(opened: OpenedModel, request: Request) -> InspectionResult:
    """Two inputs or more."""
    pooling, what = _pooling(opened)
    names, vectors = zip(*(_vector(opened, one, pooling, request) for one in request.inputs), strict=True)
    cosines = cosine_similarity(torch.stack(vectors)).cpu().numpy()
    note = f"The cosine of the inputs' vectors, each {what}."
    title = f"{opened.name}: how alike {len(names)} inputs are"
    data: dict[str, Any] = {"inputs": list(names), "similarity": cosines, "note": note}
    table: list[list[str | float]] = [["cosine", *names]]
    table += [[name, *row] for name, row in zip(names, cosines.tolist(), strict=True)]
    draw = partial(figures.heat, cosines, names, names)
    return InspectionResult.drawn(title, request.view, data, caption="cosines", draw=draw, table=table)


def _pooling(opened: OpenedModel) -> tuple[str, str]:
    """Returns the pooling that gives an input's vector, as the model or its folder says, and its description."""
    config = opened.model.config
    if isinstance(config, VisionConfig):
        pooling = "first" if config.patches.prefix_tokens else "mean"
        return pooling, "the class token's in the last layer" if pooling == "first" else ROWS["mean"]
    if isinstance(config, EncoderDecoderConfig):
        return "mean", "the mean of the encoder's last layer over all tokens"
    if isinstance(config.head, PooledHead):
        return "", "as the model's head makes it"
    told = config.head if isinstance(config.head, SequenceHead) else opened.pooled
    pooling = told.pooling if told else "mean"
    return pooling, f"{ROWS[pooling]} in the last layer" + ("" if told else ", since the folder says nothing of it")


@torch.no_grad()
def _vector(opened: OpenedModel, one: Any, pooling: str, request: Request) -> tuple[str, Tensor]:
    model = opened.model
    if isinstance(model.config, EncoderDecoderConfig):
        name, ids = read_source(opened, one)
        stream = model.encode(row_of(opened, ids))  # type: ignore[operator]  # an encoder-decoder's
    else:
        reading = read(opened, one, request)
        if isinstance(model.config.head, PooledHead):
            return reading.name, model(*reading.arguments)[0].float()
        name, stream = reading.name, model.hidden(*reading.arguments)  # type: ignore[operator]  # every model's
    return name, pool(stream, None, pooling)[0].float()


POSITIONS = 64  # positions of schemes without a length of their own
DRAWN = 64  # positions a side of a picture
COSINE = "The cosine of each position's vector with each other's."
TURNED = (
    "The cosine of a vector turned by one position with itself turned by another, the mean over the pairs of a head."
)
ADDED = "What the positions add to the scores before the softmax, the mean over heads; rows are the queries."


def look_at_positions(opened: OpenedModel, request: Request) -> InspectionResult:
    """Returns every stack that has positions, the encoder first; the picture is of the first."""
    shown: dict[str, Array] = {}
    notes = {}
    for name, stack in stacks_of(opened.model.config).items():
        scheme = stack.position
        if isinstance(scheme, NoPosition):
            continue
        if isinstance(scheme, AlibiPosition | RelativePosition):
            found, notes[name] = position_bias(opened.model, POSITIONS, name).mean(0), ADDED
        else:
            length = scheme.length if isinstance(scheme, LearnedPosition) else POSITIONS
            found = position_similarity(opened.model, length, name)
            notes[name] = COSINE if not isinstance(scheme, RotaryPosition) else TURNED
        shown[name] = found.float().cpu().numpy()
    first, values = next(iter(shown.items()))
    places = list(range(0, len(values), -(-len(values) // DRAWN)))
    note = notes[first]
    if len(places) < len(values):
        note += f" Drawn is every {places[1]}th of {len(values):,} positions."
    title = f"{opened.name}: positions"
    data: dict[str, Any] = {"positions": shown, "note": note}
    drawn, names = values[places][:, places], [str(place) for place in places]
    table: list[list[str | float]] = [["position", *names]]
    table += [[name, *row] for name, row in zip(names, drawn.tolist(), strict=True)]
    draw = partial(figures.heat, drawn, names, names, row_label="position", column_label="position")
    caption = f"positions of the {first}" if len(shown) > 1 else "each position against each other"
    return InspectionResult.drawn(title, request.view, data, caption=caption, draw=draw, table=table)


COMPONENTS = 28  # components, as in Dosovitskiy et al. 2021, figure 7


def look_at_filters(opened: OpenedModel, request: Request) -> InspectionResult:
    """Returns the principal components of the patch filters, those of most variance first."""
    weights = filters(opened.model)
    count = min(COMPONENTS, len(weights), weights[0].numel())
    found = patch_filters(opened.model, count)
    images, shares = found.images.cpu().numpy(), found.explained.tolist()
    note = (
        f"The first {count} principal components of {len(weights)} patch filters (Dosovitskiy et al. 2021, figure 7), "
        f"row by row; they hold {100 * sum(shares):.0f} % of the filters' variance."
    )
    title = f"{opened.name}: patch filters"
    data: dict[str, Any] = {"filters": images, "explained": shares, "note": note}
    table: list[list[str | float]] = [["component", "share of variance"]]
    table += [[str(number), share] for number, share in enumerate(shares)]
    draw = partial(figures.filters, images)
    return InspectionResult.drawn(title, request.view, data, caption="principal components", draw=draw, table=table)
