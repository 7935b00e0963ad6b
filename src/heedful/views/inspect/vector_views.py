"""The views of vectors: token embeddings, similarity of inputs, positions, patch filters."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from heedful.config import (
    AlibiPosition,
    ContentPosition,
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
from heedful.views.inspect.catalogue import stack_names
from heedful.views.inspect.model_input import Array, pieces_of, read_input, read_source, source_of
from heedful.views.inspect.opened_model import OpenedModel
from heedful.views.inspect.request import Request
from heedful.views.inspect.result import InspectionResult
from heedful.views.text import visible

NEAR = 8  # neighbours of each token


def look_at_embeddings(opened: OpenedModel, request: Request) -> InspectionResult:
    """Returns the view of the embeddings of one text's different tokens; an encoder-decoder's text is its source."""
    name, ids = read_source(opened, request.inputs[0])
    ids = list(dict.fromkeys(ids))
    if len(ids) < 3:
        raise HeedfulError(f"the figure needs 3 different tokens, but {name!r} has {len(ids)}; give a longer text")
    table = embedding_tables(opened.model)["embedding.token"]
    components = principal_components(table[ids])
    nearest_ids, cosines = neighbours(table, ids, k=min(NEAR, len(table) - 1))
    pieces = pieces_of(opened.source, ids)
    nearest = [
        list(zip(pieces_of(opened.source, row), values, strict=True))
        for row, values in zip(nearest_ids.tolist(), cosines.tolist(), strict=True)
    ]
    first, second = (f"{100 * share:.0f} %" for share in components.explained.tolist())
    note = (
        f"The first two principal components of these {len(ids)} embeddings hold {first} and {second} of their "
        "variance; the rest is left out."
    )
    points = components.points.float().cpu().numpy()
    data: dict[str, Any] = {
        "input": name,
        "pieces": pieces,
        "points": points,
        "explained": components.explained.tolist(),
        "neighbours": [[list(neighbour) for neighbour in row] for row in nearest],
        "note": note,
    }
    title = f"{opened.name}: {name}"
    lines: list[list[str | float]] = [["token", "x", "y", "nearest in the whole vocabulary, by cosine"]]
    for piece, point, row in zip(pieces, points.tolist(), nearest, strict=True):
        lines.append([piece, *point, ", ".join(f"{visible(near)} {cosine:.2f}" for near, cosine in row)])
    axes = f"{first} of the variance", f"{second} of the variance"
    caption = "the tokens' embeddings in two dimensions"
    draw = partial(figures.scatter, points, pieces, axes=axes)
    return InspectionResult.drawn(title, request.view, data, caption=caption, draw=draw, table=lines)


ROWS = {
    "first": "the first token",
    "last": "the last token",
    "mean": "the mean of all tokens",
    "max": "the maximum over all tokens",
}


def look_at_similarity(opened: OpenedModel, request: Request) -> InspectionResult:
    """Returns the view of the similarity of two inputs or more."""
    pooling, description = _pooling(opened)
    names, vectors = zip(*(_vector(opened, item, pooling, request) for item in request.inputs), strict=True)
    cosines = cosine_similarity(torch.stack(vectors)).cpu().numpy()
    note = f"The cosine of the inputs' vectors, each {description}."
    title = f"{opened.name}: similarity of {len(names)} inputs"
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
        return "", "the output of the model's head"
    head = config.head if isinstance(config.head, SequenceHead) else opened.pooled
    pooling = head.pooling if head else "mean"
    return pooling, f"{ROWS[pooling]} in the last layer" + ("" if head else ", since the folder names no pooling")


@torch.no_grad()
def _vector(opened: OpenedModel, item: Any, pooling: str, request: Request) -> tuple[str, Tensor]:
    model = opened.model
    if isinstance(model.config, EncoderDecoderConfig):
        name, _, source = source_of(opened, item)
        stream = model.encode(source)  # type: ignore[operator]  # an encoder-decoder's
    else:
        reading = read_input(opened, item, request)
        if isinstance(model.config.head, PooledHead):
            return reading.name, model(*reading.arguments)[0].float()
        name, stream = reading.name, model.hidden(*reading.arguments)  # type: ignore[operator]  # every model's
    return name, pool(stream, None, pooling)[0].float()


POSITIONS = 64  # positions of schemes without a maximum length
DRAWN = 64  # positions a side of a figure
COSINE = "The cosine of each position's vector with the vector of each other position."
ROTATED = (
    "The cosine of a vector rotated by one position with itself rotated by another, averaged over the pairs of a head."
)
BIAS = "The position bias that is added to the scores before the softmax, averaged over heads; rows are the queries."


def look_at_positions(opened: OpenedModel, request: Request) -> InspectionResult:
    """Returns the view of positions, for every stack that has them; the figure shows the first such stack."""
    shown: dict[str, Array] = {}
    notes = {}
    for name, stack in stack_names(opened.model.config).items():
        scheme = stack.position
        if isinstance(scheme, NoPosition | ContentPosition):
            continue
        if isinstance(scheme, AlibiPosition | RelativePosition):
            matrix, notes[name] = position_bias(opened.model, POSITIONS, name).mean(0), BIAS
        else:
            length = scheme.length if isinstance(scheme, LearnedPosition) else POSITIONS
            matrix = position_similarity(opened.model, length, name)
            notes[name] = COSINE if not isinstance(scheme, RotaryPosition) else ROTATED
        shown[name] = matrix.float().cpu().numpy()
    first, values = next(iter(shown.items()))
    positions = list(range(0, len(values), -(-len(values) // DRAWN)))
    note = notes[first]
    if len(positions) < len(values):
        note += f" Drawn is every {positions[1]}th of {len(values):,} positions."
    title = f"{opened.name}: positions"
    data: dict[str, Any] = {"positions": shown, "note": note}
    drawn, names = values[positions][:, positions], [str(position) for position in positions]
    table: list[list[str | float]] = [["position", *names]]
    table += [[name, *row] for name, row in zip(names, drawn.tolist(), strict=True)]
    draw = partial(figures.heat, drawn, names, names, row_label="position", column_label="position")
    caption = f"positions of the {first}" if len(shown) > 1 else "each position against each other"
    return InspectionResult.drawn(title, request.view, data, caption=caption, draw=draw, table=table)


COMPONENTS = 28  # components, as in Dosovitskiy et al. 2021, figure 7


def look_at_filters(opened: OpenedModel, request: Request) -> InspectionResult:
    """Returns the view of patch filters: their principal components, the largest variance first."""
    weights = filters(opened.model)
    count = min(COMPONENTS, len(weights), weights[0].numel())
    components = patch_filters(opened.model, count)
    images, shares = components.images.cpu().numpy(), components.explained.tolist()
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
