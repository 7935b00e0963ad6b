"""How alike a model's positions are, or what they add to the scores where they are no vectors."""

from __future__ import annotations

from functools import partial
from typing import Any

from heedful.config import AlibiPosition, LearnedPosition, NoPosition, RelativePosition, RotaryPosition
from heedful.inspection.position_tables import position_bias, position_similarity
from heedful.views import figures
from heedful.views.inspect.catalogue import stacks_of
from heedful.views.inspect.model_input import Array
from heedful.views.inspect.opened_model import Subject
from heedful.views.inspect.request import Ask
from heedful.views.inspect.result import Look

USUAL = 64  # positions of schemes without a length of their own
MOST = 64  # positions a side of a picture
COSINE = "The cosine of each position's vector with each other's."
TURNED = (
    "The cosine of a vector turned by one position with itself turned by another, the mean over the pairs of a head."
)
ADDED = "What the positions add to the scores before the softmax, the mean over heads; rows are the queries."


def look(subject: Subject, ask: Ask) -> Look:
    """Every stack that has positions, the encoder first; the picture is of the first."""
    shown: dict[str, Array] = {}
    notes = {}
    for name, stack in stacks_of(subject.model.config).items():
        scheme = stack.position
        if isinstance(scheme, NoPosition):
            continue
        if isinstance(scheme, AlibiPosition | RelativePosition):
            found, notes[name] = position_bias(subject.model, USUAL, name).mean(0), ADDED
        else:
            length = scheme.length if isinstance(scheme, LearnedPosition) else USUAL
            found = position_similarity(subject.model, length, name)
            notes[name] = COSINE if not isinstance(scheme, RotaryPosition) else TURNED
        shown[name] = found.float().cpu().numpy()
    first, values = next(iter(shown.items()))
    places = list(range(0, len(values), -(-len(values) // MOST)))
    note = notes[first]
    if len(places) < len(values):
        note += f" Drawn is every {places[1]}th of {len(values):,} positions."
    title = f"{subject.name}: positions"
    data: dict[str, Any] = {"positions": shown, "note": note}
    drawn, names = values[places][:, places], [str(place) for place in places]
    table: list[list[str | float]] = [["position", *names]]
    table += [[name, *row] for name, row in zip(names, drawn.tolist(), strict=True)]
    draw = partial(figures.heat, drawn, names, names, row_label="position", column_label="position")
    caption = f"positions of the {first}" if len(shown) > 1 else "each position against each other"
    return Look.drawn(title, ask.view, data, caption=caption, draw=draw, table=table)
