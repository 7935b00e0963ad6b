"""Which heads the loss hangs on, for the inputs at hand: the gradient of a gate on each head's output."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.inspection.importance import head_importance
from heedful.views import figures
from heedful.views.inspect.catalogue import classifies, translates
from heedful.views.inspect.gradient_views import label_of
from heedful.views.inspect.model_input import Array, Reading, read
from heedful.views.inspect.opened_model import Subject
from heedful.views.inspect.request import Ask
from heedful.views.inspect.result import Look

NAMES = {
    "encoder.attention": "encoder self-attention",
    "decoder.attention": "decoder self-attention",
    "decoder.cross_attention": "cross-attention",
}
SAID = "How fast the loss of these inputs changes as a head is turned down (Michel et al. 2019), the mean over them."


def look(subject: Subject, ask: Ask) -> Look:
    """All inputs together: each has the loss of its own text, target or label."""
    readings = [read(subject, one, ask) for one in ask.inputs]
    losses = [loss_of(subject, reading, ask) for reading in readings]
    found = head_importance(subject.model, lambda: sum((loss() for loss in losses[1:]), losses[0]()))
    kinds = kinds_of({path: values.cpu().numpy() for path, values in found.items()})
    title = f"{subject.name}: {readings[0].name}" + (f" and {len(readings) - 1} more" if readings[1:] else "")
    note = " ".join(part for part in (SAID, readings[0].note, subject.untrained) if part)
    data: dict[str, Any] = {
        "input": [reading.name for reading in readings],
        "importance": kinds,
        "note": note,
    }
    draw, caption = partial(_svg, kinds), "importance of heads"
    return Look.drawn(title, ask.view, data, caption=caption, draw=draw, table=_table(kinds))


def loss_of(subject: Subject, reading: Reading, ask: Ask) -> Any:
    """A function that runs the model and gives the summed loss of one input."""
    model = subject.model
    if classifies(model.config):
        number = label_of(subject, reading, ask)
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


def _table(kinds: dict[str, Array]) -> list[list[str | float]]:
    most = max(values.shape[1] for values in kinds.values())
    rows: list[list[str | float]] = [["layer", *(f"head {head}" for head in range(most))]]
    for name, values in kinds.items():
        rows += [[f"{name} {layer}", *own] for layer, own in enumerate(values.tolist())]
    return rows


def _svg(kinds: dict[str, Array], *, title: str, note: str) -> str:
    """One kind as a grid; several below one another, where they have as many heads; otherwise the first of them."""
    name, values = next(iter(kinds.items()))
    if len(kinds) == 1:
        return figures.grid(values, title, note=note)
    if len({one.shape[1] for one in kinds.values()}) > 1:
        return figures.grid(values, f"{title}: {name}", note=f"{note} Drawn is {name}; the numbers are of all kinds.")
    rows = [f"{kind} {layer}" for kind, one in kinds.items() for layer in range(len(one))]
    return figures.heat(np.concatenate(list(kinds.values())), rows, None, title, note=note, column_label="head")
