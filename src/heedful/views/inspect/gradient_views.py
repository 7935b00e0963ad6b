"""Which parts of the input an answer hangs on, to first order: gradient × input of each token or patch.

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

from heedful.config import MaskedHead, VisionConfig
from heedful.errors import HeedfulError, nearest
from heedful.inspection.gradients import Attribution, gradient_x_input
from heedful.inspection.image_patches import grid
from heedful.views import figures
from heedful.views.inspect.catalogue import classifies, sees, translates
from heedful.views.inspect.model_input import Array, Reading, pieces_of, read
from heedful.views.inspect.opened_model import Subject
from heedful.views.inspect.request import Ask
from heedful.views.inspect.result import Look

MOST = 48  # target tokens that are explained: each is a forward and a backward of its own
DRAWN = 500  # pieces of one picture, and of its table


@dataclass(frozen=True, kw_only=True)
class Explained:
    """What was explained, and the value of each piece for it.

    ``values`` is (pieces,) for one answer, (answers, pieces) for several, (rows, columns) for the patches of an image.
    """

    answer: Sequence[str]
    pieces: Sequence[str]
    values: Array
    note: str = ""
    pixels: Array | None = None


def look(subject: Subject, ask: Ask) -> Look:
    """One input and the answer in question."""
    reading = read(subject, ask.inputs[0], ask)
    found = shown = explained(subject, reading, ask)
    if found.values.ndim == 1 and len(found.pieces) > DRAWN:
        said = f"Drawn are the last {DRAWN:,} of {len(found.pieces):,} pieces; --json has all."
        found = replace(found, note=f"{found.note} {said}".strip())
        shown = replace(found, pieces=found.pieces[-DRAWN:], values=found.values[-DRAWN:])
    title = f"{subject.name}: {reading.name}"
    data: dict[str, Any] = {
        "input": reading.name,
        "answer": list(found.answer),
        "pieces": list(found.pieces),
        "values": found.values,
        "note": found.note,
    }
    caption = "gradient × input" + (f" → {found.answer[0].strip()}" if len(found.answer) == 1 else "")
    return Look.drawn(title, ask.view, data, caption=caption, draw=partial(_svg, shown), table=_table(shown))


def explained(subject: Subject, reading: Reading, ask: Ask) -> Explained:
    """Gradient × input for the answer that was asked for, or the likeliest."""
    config = subject.model.config
    if sees(config) or classifies(config):
        return _class(subject, reading, ask)
    if translates(config):
        return _translation(subject, reading)
    return _token(subject, reading, ask)


def _class(subject: Subject, reading: Reading, ask: Ask) -> Explained:
    config, number = subject.model.config, label_of(subject, reading, ask)
    found = gradient_x_input(subject.model, *reading.arguments, label=number)
    answer, note = [subject.labels[number]], subject.untrained
    values = _numbers(found)
    if isinstance(config, VisionConfig):
        values, pieces = values[config.patches.prefix_tokens :].reshape(grid(subject.model)), reading.read["encoder"]
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


def label_of(subject: Subject, reading: Reading, ask: Ask) -> int:
    """The number of the label that was asked for; by default the likeliest for the input."""
    if ask.target is not None:
        if ask.target not in subject.labels:
            raise HeedfulError(f"no label {ask.target!r} among the model's; {nearest(ask.target, subject.labels)}")
        return subject.labels.index(ask.target)
    with torch.no_grad():
        return int(subject.model(*reading.arguments)[0].argmax())


def _token(subject: Subject, reading: Reading, ask: Ask) -> Explained:
    """A language model's next token, a masked one's first mask, a span's best start and end."""
    model, tokenizer, pieces = subject.model, subject.source, next(iter(reading.read.values()))
    query = -1
    if not isinstance(model.config.head, MaskedHead) and not hasattr(model, "decoder"):
        found = gradient_x_input(model, *reading.arguments)
        return Explained(
            answer=["best start + best end"], pieces=pieces, values=_numbers(found), note=subject.untrained
        )
    if isinstance(model.config.head, MaskedHead):
        if tokenizer.mask is None or tokenizer.mask not in reading.ids:
            name = tokenizer.config.get("mask_token", "a mask token")
            raise HeedfulError(f"there is nothing to fill in: write {name} in the text where the model is to guess")
        query = list(reading.ids).index(tokenizer.mask)
    note = ""
    if ask.target is None:
        with torch.no_grad():
            label = int(model(*reading.arguments)[0, query].argmax())
    else:
        ids = tokenizer.encode([ask.target])[0]
        if not ids:
            raise HeedfulError("the target is empty; give a word")
        label = ids[0]
        note = "" if len(ids) == 1 else "The target has several pieces: the first is explained."
    found = gradient_x_input(model, *reading.arguments, label=label, query=query)
    return Explained(answer=pieces_of(tokenizer, [label]), pieces=pieces, values=_numbers(found), note=note)


def _translation(subject: Subject, reading: Reading) -> Explained:
    """Each token that is written, by each piece of the source."""
    rows = [
        _numbers(gradient_x_input(subject.model, *reading.arguments, label=label, query=query))
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


def _table(found: Explained) -> list[list[str | float]]:
    """A row a piece, a column an answer."""
    columns = found.values if found.pixels is None and found.values.ndim == 2 else found.values.reshape(1, -1)
    rows = zip(found.pieces, *columns.tolist(), strict=True)
    return [["gradient × input", *found.answer], *(list(row) for row in rows)]


def _svg(found: Explained, *, title: str, note: str) -> str:
    if found.pixels is not None:
        return figures.overlay(found.pixels, found.values, title, note=note)
    if found.values.ndim == 2:
        return figures.heat(found.values, list(found.answer), list(found.pieces), title, signed=True, note=note)
    return figures.saliency(list(found.pieces), found.values, title, note=note)
