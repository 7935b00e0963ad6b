"""What every layer would say: the logit lens over a text."""

from __future__ import annotations

from functools import partial

from heedful.config import LanguageHead
from heedful.inspection.logit_lens import logit_lens
from heedful.views import figures
from heedful.views.inspect.model_input import Reading, pieces_of, read
from heedful.views.inspect.opened_model import Subject
from heedful.views.inspect.request import Ask, within
from heedful.views.inspect.result import Look
from heedful.views.lens_html import Lens, lens_page

MOST = 256  # positions of which it is asked where nobody says: each costs the head's work at every layer
TOP = 5


def look(subject: Subject, ask: Ask) -> Look:
    """One text: of an encoder-decoder what its decoder would say at each layer."""
    reading = read(subject, ask.inputs[0], ask)
    lens = lens_of(subject, reading, ask)
    title = f"{subject.name}: {reading.name}"
    data = {
        "input": reading.name,
        "pieces": list(lens.pieces),
        "layers": list(lens.layers),
        "top": [[[list(one) for one in cell] for cell in row] for row in lens.top],
        "target": list(lens.target),
        "note": lens.note,
    }
    return Look(
        title=title,
        view=ask.view,
        data=data,
        page=partial(lens_page, lens, title=title),
        picture=partial(figures.lens, lens, title),
    )


def lens_of(subject: Subject, reading: Reading, ask: Ask) -> Lens:
    """The lens over the positions that were asked for; of long texts the first."""
    target = subject.target
    side = "decoder" if "decoder" in reading.read else "encoder"
    read, masked = reading.read[side], not isinstance(subject.model.config.head, LanguageHead)
    first, end = within(ask.queries, len(read), "queries") or (0, min(MOST, len(read)))
    found = logit_lens(subject.model, *reading.arguments, top=TOP, queries=range(first, end))
    rows = [0, *range(1, len(found.layers))] if ask.layers is None else [layer + 1 for layer in ask.layers]
    notes = [reading.note]
    if end - first < len(read):
        notes.append(f"Shown are positions {first}:{end} of {len(read):,}; --queries START:END chooses others.")
    if masked:
        notes.append("The model says what stands at each place itself, not what comes next.")
    return Lens(
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
