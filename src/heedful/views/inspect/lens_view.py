"""The view lens: the logit lens over a text."""

from __future__ import annotations

from functools import partial

from heedful.config import LanguageHead
from heedful.inspection.logit_lens import logit_lens
from heedful.views import figures
from heedful.views.inspect.model_input import ModelInput, pieces_of, read_input
from heedful.views.inspect.opened_model import OpenedModel
from heedful.views.inspect.request import Request, within
from heedful.views.inspect.result import InspectionResult
from heedful.views.lens_html import LensPredictions, lens_page

DEFAULT_POSITIONS = 256  # positions by default; each runs the head at every layer
TOP = 5  # candidates


def look(opened: OpenedModel, request: Request) -> InspectionResult:
    """Returns the view of the logit lens over one text; in an encoder-decoder, over the decoder's text."""
    reading = read_input(opened, request.inputs[0], request)
    lens = lens_of(opened, reading, request)
    title = f"{opened.name}: {reading.name}"
    data = {
        "input": reading.name,
        "pieces": list(lens.pieces),
        "layers": list(lens.layers),
        "top": [[[list(candidate) for candidate in cell] for cell in row] for row in lens.top],
        "target": list(lens.target),
        "note": lens.note,
    }
    return InspectionResult(
        title=title,
        view=request.view,
        data=data,
        page=partial(lens_page, lens, title=title),
        picture=partial(figures.lens, lens, title),
    )


def lens_of(opened: OpenedModel, reading: ModelInput, request: Request) -> LensPredictions:
    """Returns the predictions of the logit lens at the requested positions, by default at the first ones."""
    target = opened.target
    side = "decoder" if "decoder" in reading.read else "encoder"
    pieces, masked = reading.read[side], not isinstance(opened.model.config.head, LanguageHead)
    first, end = within(request.queries, len(pieces), "queries") or (0, min(DEFAULT_POSITIONS, len(pieces)))
    lens = logit_lens(opened.model, *reading.arguments, top=TOP, queries=range(first, end))
    rows = [0, *range(1, len(lens.layers))] if request.layers is None else [layer + 1 for layer in request.layers]
    notes = [reading.note]
    if end - first < len(pieces):
        notes.append(f"Shown are positions {first}:{end} of {len(pieces):,}; --queries START:END chooses others.")
    if masked:
        notes.append("The model predicts the token at each position itself, not the next one.")
    return LensPredictions(
        pieces=pieces[first:end],
        layers=[lens.layers[row] for row in rows],
        top=[
            [
                list(zip(pieces_of(target, ids), shares, strict=True))
                for ids, shares in zip(lens.ids[row, 0].tolist(), lens.probabilities[row, 0].tolist(), strict=True)
            ]
            for row in rows
        ],
        target=(pieces if masked else list(reading.written))[first:end],
        note=" ".join(filter(None, notes)),
        name=side if len(reading.read) == 2 else "",
    )
