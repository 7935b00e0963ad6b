"""The views of gradients: gradient × input of each token or patch, and the importance of each head.

For a class, or the next token of a text, each input piece has one value. For the text of an encoder-decoder, each
target piece has a row of values, one for each source piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.config import MaskedHead, VisionConfig
from heedful.errors import HeedfulError, nearest
from heedful.inspection.gradients import Attribution, gradient_x_input
from heedful.inspection.image_patches import patch_grid
from heedful.inspection.importance import head_importance
from heedful.views import figures
from heedful.views.inspect.catalogue import classifies, has_target, reads_images
from heedful.views.inspect.model_input import Array, ModelInput, pieces_of, read_input
from heedful.views.inspect.opened_model import OpenedModel
from heedful.views.inspect.request import Request
from heedful.views.inspect.result import InspectionResult

MAX_TARGETS = 48  # target tokens that are explained; each needs a forward and a backward pass
DRAWN = 500  # pieces of a figure, and of its table


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Explanation of a prediction: gradient × input of each input piece.

    ``values`` is (pieces,) for one prediction, (predictions, pieces) for several, (rows, columns) for image patches.
    """

    prediction: Sequence[str]
    pieces: Sequence[str]
    values: Array
    note: str = ""
    pixels: Array | None = None


def look_at_gradient(opened: OpenedModel, request: Request) -> InspectionResult:
    """Returns the view of gradient × input: how much each part of one input contributes to a prediction."""
    reading = read_input(opened, request.inputs[0], request)
    explanation = shown = explain(opened, reading, request)
    if explanation.values.ndim == 1 and len(explanation.pieces) > DRAWN:
        note = f"Drawn are the last {DRAWN:,} of {len(explanation.pieces):,} pieces; --json has all pieces."
        explanation = replace(explanation, note=f"{explanation.note} {note}".strip())
        shown = replace(explanation, pieces=explanation.pieces[-DRAWN:], values=explanation.values[-DRAWN:])
    title = f"{opened.name}: {reading.name}"
    data: dict[str, Any] = {
        "input": reading.name,
        "prediction": list(explanation.prediction),
        "pieces": list(explanation.pieces),
        "values": explanation.values,
        "note": explanation.note,
    }
    caption = "gradient × input" + (
        f" → {explanation.prediction[0].strip()}" if len(explanation.prediction) == 1 else ""
    )
    return InspectionResult.drawn(
        title, request.view, data, caption=caption, draw=partial(_gradient_svg, shown), table=_gradient_table(shown)
    )


def explain(opened: OpenedModel, reading: ModelInput, request: Request) -> Explanation:
    """Returns gradient × input for the requested prediction, or for the likeliest prediction."""
    config = opened.model.config
    if reads_images(config) or classifies(config):
        return _class(opened, reading, request)
    if has_target(config):
        return _translation(opened, reading)
    return _token(opened, reading, request)


def _class(opened: OpenedModel, reading: ModelInput, request: Request) -> Explanation:
    config, number = opened.model.config, gradient_label(opened, reading, request)
    attribution = gradient_x_input(opened.model, *reading.arguments, label=number)
    answer, note = [opened.labels[number]], opened.untrained
    values = _numbers(attribution)
    if isinstance(config, VisionConfig):
        values, pieces = (
            values[config.patches.prefix_tokens :].reshape(patch_grid(opened.model)),
            reading.read["encoder"],
        )
        return Explanation(
            prediction=answer,
            pieces=pieces[config.patches.prefix_tokens :],
            values=values,
            note=note,
            pixels=reading.pixels,
        )
    if attribution.target is not None:  # the decoder reads the text too, shifted by one: each token has two values
        shifted = attribution.target[0].float().cpu().numpy()
        values = values + np.append(shifted[1:], 0.0).astype(values.dtype)
    return Explanation(prediction=answer, pieces=next(iter(reading.read.values())), values=values, note=note)


def gradient_label(opened: OpenedModel, reading: ModelInput, request: Request) -> int:
    """Returns the id of the requested label; by default of the likeliest label."""
    if request.target is not None:
        assert isinstance(request.target, str)  # checked with the request
        if request.target not in opened.labels:
            raise HeedfulError(f"the model has no label {request.target!r}; {nearest(request.target, opened.labels)}")
        return opened.labels.index(request.target)
    with torch.no_grad():
        return int(opened.model(*reading.arguments)[0].argmax())


def _token(opened: OpenedModel, reading: ModelInput, request: Request) -> Explanation:
    """Explains a language model's next token, a masked language model's first mask, or a span's start and end."""
    model, tokenizer, pieces = opened.model, opened.source, next(iter(reading.read.values()))
    query = -1
    if not isinstance(model.config.head, MaskedHead) and not hasattr(model, "decoder"):
        values = _numbers(gradient_x_input(model, *reading.arguments))
        return Explanation(prediction=["best start + best end"], pieces=pieces, values=values, note=opened.untrained)
    if isinstance(model.config.head, MaskedHead):
        if tokenizer.mask is None or tokenizer.mask not in reading.ids:
            name = tokenizer.config.get("mask_token", "a mask token")
            raise HeedfulError(f"the text has no mask; write {name} in it where the model should predict")
        query = list(reading.ids).index(tokenizer.mask)
    note = ""
    if request.target is None:
        with torch.no_grad():
            label = int(model(*reading.arguments)[0, query].argmax())
    else:
        assert isinstance(request.target, str)  # checked with the request
        ids = tokenizer.encode([request.target])[0]
        if not ids:
            raise HeedfulError("the target is empty; give a word")
        label = ids[0]
        note = "" if len(ids) == 1 else "The target has several pieces: the first is explained."
    values = _numbers(gradient_x_input(model, *reading.arguments, label=label, query=query))
    return Explanation(prediction=pieces_of(tokenizer, [label]), pieces=pieces, values=values, note=note)


def _translation(opened: OpenedModel, reading: ModelInput) -> Explanation:
    """Explains each target token by the source pieces."""
    rows = [
        _numbers(gradient_x_input(opened.model, *reading.arguments, label=label, query=query))
        for query, label in enumerate(reading.answer[:MAX_TARGETS])
    ]
    notes = [reading.note]
    if len(reading.answer) > MAX_TARGETS:
        notes.append(f"Explained are the first {MAX_TARGETS} of {len(reading.answer):,} tokens.")
    notes.append("The contributions of earlier target tokens are left out.")
    return Explanation(
        prediction=reading.written[:MAX_TARGETS],
        pieces=reading.read["encoder"],
        values=np.stack(rows),
        note=" ".join(notes),
    )


def _numbers(attribution: Attribution) -> Array:
    return attribution.input[0].float().cpu().numpy()


def _gradient_table(explanation: Explanation) -> list[list[str | float]]:
    """Returns a table: rows are pieces, columns are predictions."""
    values = explanation.values
    columns = values if explanation.pixels is None and values.ndim == 2 else values.reshape(1, -1)
    rows = zip(explanation.pieces, *columns.tolist(), strict=True)
    return [["gradient × input", *explanation.prediction], *(list(row) for row in rows)]


def _gradient_svg(explanation: Explanation, *, title: str, note: str) -> str:
    answer, pieces, values = list(explanation.prediction), list(explanation.pieces), explanation.values
    if explanation.pixels is not None:
        return figures.overlay(explanation.pixels, values, title, note=note)
    if values.ndim == 2:
        return figures.heat(values, answer, pieces, title, signed=True, note=note)
    return figures.saliency(pieces, values, title, note=note)


NAMES = {
    "encoder.attention": "encoder self-attention",
    "decoder.attention": "decoder self-attention",
    "decoder.cross_attention": "cross-attention",
}
IMPORTANCE_NOTE = (
    "Absolute gradient of the loss with respect to a gate on each head (Michel et al. 2019), mean over these inputs."
)


def look_at_importance(opened: OpenedModel, request: Request) -> InspectionResult:
    """Returns the view of the importance of heads, over all inputs together.

    The loss of an input is that of its text, target or label.
    """
    readings = [read_input(opened, item, request) for item in request.inputs]
    losses = [loss_of(opened, reading, request) for reading in readings]
    importance = head_importance(opened.model, lambda: sum((loss() for loss in losses[1:]), losses[0]()))
    kinds = kinds_of({path: values.cpu().numpy() for path, values in importance.items()})
    title = f"{opened.name}: {readings[0].name}" + (f" and {len(readings) - 1} more" if readings[1:] else "")
    note = " ".join(part for part in (IMPORTANCE_NOTE, readings[0].note, opened.untrained) if part)
    data: dict[str, Any] = {
        "input": [reading.name for reading in readings],
        "importance": kinds,
        "note": note,
    }
    draw, caption = partial(_importance_svg, kinds), "importance of heads"
    return InspectionResult.drawn(title, request.view, data, caption=caption, draw=draw, table=_importance_table(kinds))


def loss_of(opened: OpenedModel, reading: ModelInput, request: Request) -> Any:
    """Returns a function that runs the model and returns the summed loss of one input."""
    model = opened.model
    if classifies(model.config):
        number = gradient_label(opened, reading, request)
        return lambda: -model(*reading.arguments).float().log_softmax(-1)[0, number]
    if not has_target(model.config) and len(reading.ids) < 2:
        raise HeedfulError(f"{reading.name!r} is one token, so no token is predicted; give a longer text")
    answer = reading.arguments[0].new_tensor(list(reading.answer))

    def loss() -> Tensor:
        return F.cross_entropy(model(*reading.arguments)[0].float(), answer, ignore_index=-1, reduction="sum")

    return loss


def kinds_of(by_path: dict[str, Array]) -> dict[str, Array]:
    """Returns an array (layers, heads) for each kind of attention, from a row of heads for each path."""
    rows: dict[str, list[Array]] = {}
    for path, values in by_path.items():
        stack, _, rest = path.partition(".block.")
        rows.setdefault(f"{stack}.{rest.partition('.')[2]}", []).append(values)
    named = {NAMES[kind] if len(rows) > 1 else "self-attention": np.stack(own) for kind, own in rows.items()}
    return dict(sorted(named.items()))


def _importance_table(kinds: dict[str, Array]) -> list[list[str | float]]:
    most = max(values.shape[1] for values in kinds.values())
    rows: list[list[str | float]] = [["layer", *(f"head {head}" for head in range(most))]]
    for name, values in kinds.items():
        rows += [[f"{name} {layer}", *own] for layer, own in enumerate(values.tolist())]
    return rows


def _importance_svg(kinds: dict[str, Array], *, title: str, note: str) -> str:
    """Returns the grids of all kinds of attention; only the first if their numbers of heads differ."""
    name, values = next(iter(kinds.items()))
    if len(kinds) == 1:
        return figures.grid(values, title, note=note)
    if len({by_layer.shape[1] for by_layer in kinds.values()}) > 1:
        return figures.grid(values, f"{title}: {name}", note=f"{note} Drawn is {name}; the numbers are of all kinds.")
    rows = [f"{kind} {layer}" for kind, by_layer in kinds.items() for layer in range(len(by_layer))]
    return figures.heat(np.concatenate(list(kinds.values())), rows, None, title, note=note, column_label="head")
