"""The lines at the head of a page: what the model predicts for the input, and what it has no token for."""

from __future__ import annotations

import math
from typing import Any

from heedful import tasks
from heedful.config import ImageHead, MaskedHead, SequenceHead, SpanHead, TokenHead
from heedful.data import LazyImage
from heedful.errors import HeedfulError
from heedful.models.base import Model
from heedful.pretrained.configuration import config_of
from heedful.pretrained.folder import read_card
from heedful.tasks.published import task_of
from heedful.tasks.task import Task
from heedful.views.inspect.catalogue import reads_images
from heedful.views.inspect.model_input import UNKNOWN, unknown_count
from heedful.views.inspect.opened_model import OpenedModel
from heedful.views.inspect.request import Request
from heedful.views.text import escaped

HEADS = SequenceHead | TokenHead | SpanHead | MaskedHead | ImageHead
COUNT = 5  # of the likeliest labels, answers and fills
MOST = 40  # entities of a text


def task_for(opened: OpenedModel) -> Task | None:
    """Returns the task of a model whose head is one of an encoder; None if it has another head, or is untrained."""
    if not isinstance(opened.model.config.head, HEADS) or opened.model.fresh or opened.folder is None:
        return None
    try:
        name = read_card(opened.folder).get("task") or task_of(opened.folder)
        task = tasks.get(name, config_of(opened.folder).kind).for_folder(opened.folder).load(opened.folder)
        task.check_model(opened.model)
    except HeedfulError:  # a model of no task can be looked at all the same
        return None
    return task


def predicted(task: Task, model: Model, item: Any) -> tuple[Any, Any] | None:
    """Returns what ``heedful predict`` returns for an input, and the same with the likeliest others.

    None for a model with another head than one of an encoder, and if the task refuses the input, such as a text without
    a mask.
    """
    if not isinstance(model.config.head, HEADS) or model.fresh:
        return None
    item = LazyImage.of(item) if reads_images(model.config) else item
    others = {"top_k": COUNT} if "top_k" in task.options else {}
    try:
        outputs = [task.predict(model, [item], **options)[0].output for options in ({}, others)]
    except HeedfulError:
        return None
    return outputs[0], outputs[1]


def lead(opened: OpenedModel, request: Request, prediction: tuple[Any, Any] | None) -> str:
    """Returns the HTML between the heading and the view."""
    count = unknown_count(opened, request.inputs)
    lines = []
    if prediction is not None:
        parts = [
            f"<b>{escaped(text)}</b>{said}" if best else escaped(text) + said
            for text, said, best in _parts(*prediction)
        ]
        lines.append(f'<p class="predicted"><span class="quiet">prediction</span> {" · ".join(parts)}</p>')
    if count and (unknown := opened.source.unknown) is not None:
        name = escaped(opened.source.pieces([unknown])[0].strip())
        unit = "piece is" if count == 1 else "pieces are"
        lines.append(
            f'<p class="quiet">{UNKNOWN} marks what is not in the vocabulary: {count} {unit} read as {name}.</p>'
        )
    return "\n".join(lines)


def _parts(chosen: Any, likeliest: Any) -> list[tuple[str, str, bool]]:
    """Returns the parts of a prediction: a text, what follows it, and True for what is predicted."""
    if isinstance(chosen, float | int):
        return [(f"{chosen:.4g}", "", True)]
    if not isinstance(likeliest, list):
        return [(str(chosen), "", True)]
    if not likeliest:
        return [("nothing is marked", "", False)]
    if all(isinstance(fills, list) for fills in likeliest):
        return [
            (fill["label"], f" {_percent(fill['score'])} for mask {number}", not place)
            for number, fills in enumerate(likeliest, 1)
            for place, fill in enumerate(fills[:3])
        ]
    if "answer" in likeliest[0]:
        return [
            (one["answer"] or "(no answer)", f" {_percent(one['score'])}", not i) for i, one in enumerate(likeliest)
        ]
    if "start" in likeliest[0]:
        rest = len(likeliest) - MOST
        shown = [(one["text"], f" {escaped(one['label'])} {_percent(one['score'])}", True) for one in likeliest[:MOST]]
        return shown + ([(f"and {rest} more", "", False)] if rest > 0 else [])
    labels = chosen if isinstance(chosen, list) else [likeliest[0]["label"]]  # several labels, or the likeliest
    return [(one["label"], f" {_percent(one['score'])}", one["label"] in labels) for one in likeliest]


def _percent(share: float) -> str:
    """Returns a probability in percent, as the pages write it.

    >>> [_percent(share) for share in (1.0, 0.346, 0.05, 0.0001, 0.0)]
    ['100 %', '35 %', '5.0 %', '&lt;0.1 %', '0 %']
    """
    if share >= 0.0995:
        return f"{math.floor(100 * share + 0.5)} %"
    return f"{100 * share:.1f} %" if share >= 0.00095 else "&lt;0.1 %" if share > 0 else "0 %"
