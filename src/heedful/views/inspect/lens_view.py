"""The view lens: the logit lens over a text."""

from __future__ import annotations

from functools import partial

from heedful.config import LanguageHead
from heedful.inspection.logit_lens import logit_lens
from heedful.views import figures
from heedful.views.inspect.model_input import ModelInput, pieces_of, read
from heedful.views.inspect.opened_model import OpenedModel
from heedful.views.inspect.request import Request, within
from heedful.views.inspect.result import InspectionResult
from heedful.views.lens_html import LensPredictions, lens_page

MOST = 256  # positions of which it is asked where nobody says: each costs the head's work at every layer
TOP = 5


def look(opened: OpenedModel, request: Request) -> InspectionResult:
    """One text: of an encoder-decoder what its decoder would say at each layer."""
    reading = read(opened, request.inputs[0], request)
    lens = lens_of(opened, reading, request)
    title = f"{opened.name}: {reading.name}"
    data = {
        "input": reading.name,
        "pieces": list(lens.pieces),
        "layers": list(lens.layers),
        "top": [[[list(one) for one in cell] for cell in row] for row in lens.top],
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
    """Returns the lens over the positions that were asked for; of long texts the first."""
    target = opened.target
    side = "decoder" if "decoder" in reading.read else "encoder"
    read, masked = reading.read[side], not isinstance(opened.model.config.head, LanguageHead)
    first, end = within(request.queries, len(read), "queries") or (0, min(MOST, len(read)))
    found = logit_lens(opened.model, *reading.arguments, top=TOP, queries=range(first, end))
    rows = [0, *range(1, len(found.layers))] if request.layers is None else [layer + 1 for layer in request.layers]
    notes = [reading.note]
    if end - first < len(read):
        notes.append(f"Shown are positions {first}:{end} of {len(read):,}; --queries START:END chooses others.")
    if masked:
        notes.append("The model says what stands at each place itself, not what comes next.")
    return LensPredictions(
        pieces=read[first:end],
        layers=[found.layers[row] for row in rows],
        top=[
            [
                list(zip(pieces_of(target, ids), chances, strict=True))
                for ids, chances in zip(found.ids[row, 0].tolist(), found.probabilities[row, 0].tolist(), strict=True)
            ]
            for row in rows
        ],
        target=(read if masked else list(reading.written))[first:end],
        note=" ".join(filter(None, notes)),
        name=side if len(reading.read) == 2 else "",
    )
