"""The views of gradients: gradient × input of each token or patch, and the importance of each head.

A classifier's answer is one number, and so is the next token of a text: a value for each piece of the input. What an
encoder-decoder writes is explained token by token: a table of target pieces by source pieces.
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
from heedful.inspection.image_patches import grid
from heedful.inspection.importance import head_importance
from heedful.views import figures
from heedful.views.inspect.catalogue import classifies, sees, translates
from heedful.views.inspect.model_input import Array, ModelInput, pieces_of, read
from heedful.views.inspect.opened_model import OpenedModel
from heedful.views.inspect.request import Request
from heedful.views.inspect.result import InspectionResult

MOST = 48  # target tokens that are explained: each is a forward and a backward of its own
DRAWN = 500  # pieces of one picture, and of its table


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Attribution: an answer, and the value of each input piece for it.

    ``values`` is (pieces,) for one answer, (answers, pieces) for several, (rows, columns) for the patches of an image.
    """

    answer: Sequence[str]
    pieces: Sequence[str]
    values: Array
    note: str = ""
    pixels: Array | None = None


def look_at_gradient(opened: OpenedModel, request: Request) -> InspectionResult:
    """One input and the answer in question."""
    reading = read(opened, request.inputs[0], request)
    found = shown = explained(opened, reading, request)
    if found.values.ndim == 1 and len(found.pieces) > DRAWN:
        said = f"Drawn are the last {DRAWN:,} of {len(found.pieces):,} pieces; --json has all."
        found = replace(found, note=f"{found.note} {said}".strip())
        shown = replace(found, pieces=found.pieces[-DRAWN:], values=found.values[-DRAWN:])
    title = f"{opened.name}: {reading.name}"
    data: dict[str, Any] = {
        "input": reading.name,
        "answer": list(found.answer),
        "pieces": list(found.pieces),
        "values": found.values,
        "note": found.note,
    }
    caption = "gradient × input" + (f" → {found.answer[0].strip()}" if len(found.answer) == 1 else "")
    return InspectionResult.drawn(
        title, request.view, data, caption=caption, draw=partial(_gradient_svg, shown), table=_gradient_table(shown)
    )


def explained(opened: OpenedModel, reading: ModelInput, request: Request) -> Explained:
    """Gradient × input for the answer that was asked for, or the likeliest."""
    config = opened.model.config
    if sees(config) or classifies(config):
        return _class(opened, reading, request)
    if translates(config):
        return _translation(opened, reading)
    return _token(opened, reading, request)


def _class(opened: OpenedModel, reading: ModelInput, request: Request) -> Explained:
    config, number = opened.model.config, label_of(opened, reading, request)
    found = gradient_x_input(opened.model, *reading.arguments, label=number)
    answer, note = [opened.labels[number]], opened.untrained
    values = _numbers(found)
    if isinstance(config, VisionConfig):
        values, pieces = values[config.patches.prefix_tokens :].reshape(grid(opened.model)), reading.read["encoder"]
        return Explained(
            answer=answer,
            pieces=pieces[config.patches.prefix_tokens :],
            values=values,
            note=note,
            pixels=reading.pixels,
        )
    if found.target is not None:  # its decoder reads the text again, one place further: each token's two values add up
        again = found.target[0].float().cpu().numpy()
        values = values + np.append(again[1:], 0.0).astype(values.dtype)
    return Explained(answer=answer, pieces=next(iter(reading.read.values())), values=values, note=note)


def label_of(opened: OpenedModel, reading: ModelInput, request: Request) -> int:
    """Returns the number of the label that was asked for; by default the likeliest for the input."""
    if request.target is not None:
        if request.target not in opened.labels:
            raise HeedfulError(
                f"no label {request.target!r} among the model's; {nearest(request.target, opened.labels)}"
            )
        return opened.labels.index(request.target)
    with torch.no_grad():
        return int(opened.model(*reading.arguments)[0].argmax())


def _token(opened: OpenedModel, reading: ModelInput, request: Request) -> Explained:
    """Returns a language model's next token, a masked one's first mask, a span's best start and end."""
    model, tokenizer, pieces = opened.model, opened.source, next(iter(reading.read.values()))
    query = -1
    if not isinstance(model.config.head, MaskedHead) and not hasattr(model, "decoder"):
        found = gradient_x_input(model, *reading.arguments)
        return Explained(answer=["best start + best end"], pieces=pieces, values=_numbers(found), note=opened.untrained)
    if isinstance(model.config.head, MaskedHead):
        if tokenizer.mask is None or tokenizer.mask not in reading.ids:
            name = tokenizer.config.get("mask_token", "a mask token")
            raise HeedfulError(f"there is nothing to fill in: write {name} in the text where the model is to guess")
        query = list(reading.ids).index(tokenizer.mask)
    note = ""
    if request.target is None:
        with torch.no_grad():
            label = int(model(*reading.arguments)[0, query].argmax())
    else:
        ids = tokenizer.encode([request.target])[0]
        if not ids:
            raise HeedfulError("the target is empty; give a word")
        label = ids[0]
        note = "" if len(ids) == 1 else "The target has several pieces: the first is explained."
    found = gradient_x_input(model, *reading.arguments, label=label, query=query)
    return Explained(answer=pieces_of(tokenizer, [label]), pieces=pieces, values=_numbers(found), note=note)


def _translation(opened: OpenedModel, reading: ModelInput) -> Explained:
    """Returns each token that is written, by each piece of the source."""
    rows = [
        _numbers(gradient_x_input(opened.model, *reading.arguments, label=label, query=query))
        for query, label in enumerate(reading.answer[:MOST])
    ]
    notes = [reading.note]
    if len(reading.answer) > MOST:
        notes.append(f"Explained are the first {MOST} of {len(reading.answer):,} tokens.")
    notes.append("What a token owes to those written before it is left out.")
    return Explained(
        answer=reading.written[:MOST], pieces=reading.read["encoder"], values=np.stack(rows), note=" ".join(notes)
    )


def _numbers(found: Attribution) -> Array:
    return found.input[0].float().cpu().numpy()


def _gradient_table(found: Explained) -> list[list[str | float]]:
    """Returns a row a piece, a column an answer."""
    columns = found.values if found.pixels is None and found.values.ndim == 2 else found.values.reshape(1, -1)
    rows = zip(found.pieces, *columns.tolist(), strict=True)
    return [["gradient × input", *found.answer], *(list(row) for row in rows)]


def _gradient_svg(found: Explained, *, title: str, note: str) -> str:
    if found.pixels is not None:
        return figures.overlay(found.pixels, found.values, title, note=note)
    if found.values.ndim == 2:
        return figures.heat(found.values, list(found.answer), list(found.pieces), title, signed=True, note=note)
    return figures.saliency(list(found.pieces), found.values, title, note=note)


NAMES = {
    "encoder.attention": "encoder self-attention",
    "decoder.attention": "decoder self-attention",
    "decoder.cross_attention": "cross-attention",
}
IMPORTANCE_NOTE = (
    "How fast the loss of these inputs changes as a head is turned down (Michel et al. 2019), the mean over them."
)


def look_at_importance(opened: OpenedModel, request: Request) -> InspectionResult:
    """Returns all inputs together: each has the loss of its own text, target or label."""
    readings = [read(opened, one, request) for one in request.inputs]
    losses = [loss_of(opened, reading, request) for reading in readings]
    found = head_importance(opened.model, lambda: sum((loss() for loss in losses[1:]), losses[0]()))
    kinds = kinds_of({path: values.cpu().numpy() for path, values in found.items()})
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
    """Returns a function that runs the model and gives the summed loss of one input."""
    model = opened.model
    if classifies(model.config):
        number = label_of(opened, reading, request)
        return lambda: -model(*reading.arguments).float().log_softmax(-1)[0, number]
    if not translates(model.config) and len(reading.ids) < 2:
        raise HeedfulError(f"{reading.name!r} is one token, which nothing predicts; give a longer text")
    answer = reading.arguments[0].new_tensor(list(reading.answer))

    def loss() -> Tensor:
        return F.cross_entropy(model(*reading.arguments)[0].float(), answer, ignore_index=-1, reduction="sum")

    return loss


def kinds_of(found: dict[str, Array]) -> dict[str, Array]:
    """(layers, heads) of each kind of attention, from a row a path."""
    rows: dict[str, list[Array]] = {}
    for path, values in found.items():
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
    """One kind as a grid; several below one another, where they have as many heads; otherwise the first of them."""
    name, values = next(iter(kinds.items()))
    if len(kinds) == 1:
        return figures.grid(values, title, note=note)
    if len({one.shape[1] for one in kinds.values()}) > 1:
        return figures.grid(values, f"{title}: {name}", note=f"{note} Drawn is {name}; the numbers are of all kinds.")
    rows = [f"{kind} {layer}" for kind, one in kinds.items() for layer in range(len(one))]
    return figures.heat(np.concatenate(list(kinds.values())), rows, None, title, note=note, column_label="head")
