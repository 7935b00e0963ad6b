"""What the patch projection of a vision Transformer looks for."""

from __future__ import annotations

from functools import partial
from typing import Any

from heedful.inspection.image_patches import filters, patch_filters
from heedful.views import figures
from heedful.views.inspect.opened_model import Subject
from heedful.views.inspect.request import Ask
from heedful.views.inspect.result import Look

SHOWN = 28  # components, as in Dosovitskiy et al. 2021, figure 7


def look(subject: Subject, ask: Ask) -> Look:
    """The principal components of the patch filters, those of most variance first."""
    weights = filters(subject.model)
    count = min(SHOWN, len(weights), weights[0].numel())
    found = patch_filters(subject.model, count)
    images, shares = found.images.cpu().numpy(), found.explained.tolist()
    note = (
        f"The first {count} principal components of {len(weights)} patch filters (Dosovitskiy et al. 2021, figure 7), "
        f"row by row; they hold {100 * sum(shares):.0f} % of the filters' variance."
    )
    title = f"{subject.name}: patch filters"
    data: dict[str, Any] = {"filters": images, "explained": shares, "note": note}
    table: list[list[str | float]] = [["component", "share of variance"]]
    table += [[str(number), share] for number, share in enumerate(shares)]
    draw = partial(figures.filters, images)
    return Look.drawn(title, ask.view, data, caption="principal components", draw=draw, table=table)
