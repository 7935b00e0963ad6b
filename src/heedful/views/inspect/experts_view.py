"""The view experts: which experts of each mixture computed each token of a text."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from heedful.errors import HeedfulError
from heedful.inspection import record
from heedful.views import figures
from heedful.views.inspect.catalogue import stack_names
from heedful.views.inspect.model_input import read_input
from heedful.views.inspect.opened_model import OpenedModel
from heedful.views.inspect.request import Request, within
from heedful.views.inspect.result import InspectionResult

DEFAULT_POSITIONS = 40  # positions by default
NO_EXPERT = "–"  # of a token that is over the capacity of its experts


def look(opened: OpenedModel, request: Request) -> InspectionResult:
    """Returns the view of the experts over one text; in an encoder-decoder, over the decoder's text if it has experts.

    A row is a block, and a cell has the numbers of its token's experts, the one of the largest weight first.
    """
    reading = read_input(opened, request.inputs[0], request)
    side = [name for name, stack in stack_names(opened.model.config).items() if stack.experts is not None][-1]
    with torch.no_grad(), record(opened.model, "router") as recorded:
        opened.model(*reading.arguments)
    by_layer = {int(path.split(".")[2]): w[0] for path, w in recorded.items() if path.startswith(f"{side}.")}
    layers = list(by_layer) if request.layers is None else list(request.layers)
    if other := [layer for layer in layers if layer not in by_layer]:
        numbers = ", ".join(map(str, by_layer))
        raise HeedfulError(f"layer {other[0]} of the {side} has no experts; choose of layers {numbers}")
    pieces = reading.read[side]
    first, end = within(request.queries, len(pieces), "queries") or (0, min(DEFAULT_POSITIONS, len(pieces)))
    weights = torch.stack([by_layer[layer][first:end] for layer in layers]).float().cpu().numpy()  # (L, T, E)
    experts = [[_experts(token) for token in row] for row in weights]
    notes = ["Numbers of the experts, counted from 0; the shade is the weight of the first."]
    if not weights.any(-1).all():
        notes.append(f"A token with {NO_EXPERT} was over the capacity of its experts, and passed by.")
    if end - first < len(pieces):
        notes.append(f"Shown are positions {first}:{end} of {len(pieces):,}; --queries START:END chooses others.")
    data: dict[str, Any] = {
        "input": reading.name,
        "stack": side,
        "pieces": pieces[first:end],
        "layers": layers,
        "experts": [[[e for e, _ in token] for token in row] for row in experts],
        "weights": weights,
        "note": " ".join(filter(None, (reading.note, *notes))),
    }
    names = [f"layer {layer}" for layer in layers]
    texts = [[" ".join(str(e) for e, _ in token) or NO_EXPERT for token in row] for row in experts]
    table: list[list[str | float]] = [["token", *names]]
    for t, piece in enumerate(data["pieces"]):
        table.append([piece, *(", ".join(f"{e} ({w:.2f})" for e, w in row[t]) or NO_EXPERT for row in experts)])
    return InspectionResult.drawn(
        f"{opened.name}: {reading.name}",
        request.view,
        data,
        caption=f"experts of each token in the {side}",
        draw=partial(figures.heat, weights.max(-1), names, data["pieces"], texts=texts),
        table=table,
    )


def _experts(weights: Any) -> list[tuple[int, float]]:
    """Returns the experts of a token and their weights, the largest weight first."""
    return [(int(e), float(weights[e])) for e in np.argsort(-weights, kind="stable") if weights[e] > 0]
