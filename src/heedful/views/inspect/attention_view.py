"""The views heads, model and matrix: attention maps of any input; long texts through a window under an overview.

The weights come a few queries at a time (``heedful.inspection.observe``) and are put where they are shown, so that what
is held at once is what is shown, at any length. Letters: L layers, H heads, T queries, S keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.inspection import observe
from heedful.views import figures
from heedful.views.attention_data import AttentionMaps, clearest, edges
from heedful.views.attention_html import View, attention_page
from heedful.views.inspect.catalogue import stacks_of, translates
from heedful.views.inspect.model_input import ModelInput, read
from heedful.views.inspect.opened_model import OpenedModel
from heedful.views.inspect.request import Request, Span, within
from heedful.views.inspect.result import InspectionResult

WHOLE = 3_000_000  # weights that a page shows without being asked to: under 5 MB of it
MOST = 16_000_000  # weights that may be asked for with layers, heads, queries and keys: 64 MB
BLOCKS = 64  # a side of an overview, at most
LEAST = 16  # places of a window, and blocks of an overview, at least

Places = tuple[int, int]  # from the first to before the second


@dataclass(frozen=True, kw_only=True)
class AttentionGroup:
    """One kind of attention: its name for people, the paths of its layers, and the texts that it joins."""

    name: str
    paths: dict[int, str]  # layer → path
    heads: Sequence[int]
    queries: Sequence[str]
    keys: Sequence[str]


def look(opened: OpenedModel, request: Request) -> InspectionResult:
    """Returns the maps of one input, drawn as ``request.view`` says."""
    reading = read(opened, request.inputs[0], request)
    shown = maps_of(opened, reading, request)
    title = f"{opened.name}: {reading.name}"
    data = {"input": reading.name, "note": reading.note, "maps": [numbers(maps) for maps in shown]}
    return InspectionResult(
        title=title,
        view=request.view,
        data=data,
        page=partial(_page, shown, title, request),
        picture=partial(_svg, shown, title, request),
    )


# -------------------------------------------------------------------------------------------------------- what there is


def groups(opened: OpenedModel, reading: ModelInput, request: Request) -> list[AttentionGroup]:
    """Returns every kind of attention of the model, cross-attention first: the layers and heads that were asked for.

    A row of cross-attention is called by the piece that it wrote, one of self-attention by the piece that it read.
    """
    config = opened.model.config
    stacks = stacks_of(config)
    kinds = [("encoder", "attention"), ("decoder", "attention")]
    kinds = [(stack, part) for stack, part in kinds if stack in stacks]
    if len(stacks) == 2:
        kinds = [("decoder", "cross_attention"), *kinds]
    found = []
    for stack, part in kinds:
        layers = [n for n in request.layers or range(stacks[stack].depth) if n < stacks[stack].depth]
        heads = [n for n in request.heads or range(stacks[stack].heads) if n < stacks[stack].heads]
        name = "cross-attention" if part == "cross_attention" else "self-attention"
        cross = name == "cross-attention"
        if layers and heads:
            found.append(
                AttentionGroup(
                    name=name if cross or len(stacks) == 1 else f"{stack} {name}",
                    paths={n: f"{stack}.block.{n}.{part}.pattern" for n in layers},
                    heads=heads,
                    queries=list(reading.written) if cross and translates(config) else reading.read[stack],
                    keys=reading.read["encoder"] if cross else reading.read[stack],
                )
            )
    return found


def maps_of(opened: OpenedModel, reading: ModelInput, request: Request) -> list[AttentionMaps]:
    """Returns the maps of one input, cross-attention first.

    Raises ``HeedfulError`` where more is asked for than can be held, or a place that no text of the input has.
    """
    kinds = groups(opened, reading, request)
    there = [kind for kind in kinds if _has(request.queries, kind.queries) and _has(request.keys, kind.keys)]
    if not there:
        within(request.queries, max(len(kind.queries) for kind in kinds), "queries")
        within(request.keys, max(len(kind.keys) for kind in kinds), "keys")
        raise HeedfulError("no kind of attention has these queries and these keys; choose them for one of its texts")
    held = [AttentionWindow(kind, *_window(kind, request, len(there)), room=WHOLE // len(there)) for kind in there]
    by_path = {path: (one, place) for one in held for place, path in enumerate(one.group.paths.values())}

    def receive(path: str, weights: Tensor, first: int) -> None:
        one, place = by_path[path]
        one.take(place, weights[0].float(), first)

    with torch.no_grad(), ExitStack() as stack:
        for one in held:
            paths = list(one.group.paths.values())
            stack.enter_context(observe(opened.model, receive, paths, heads=one.group.heads))
        opened.model(*reading.arguments)
    return [one.maps() for one in held]


def _has(span: Span | None, pieces: Sequence[str]) -> bool:
    return span is None or span[0] < len(pieces)


def _window(group: AttentionGroup, request: Request, share: int) -> tuple[Places, Places]:
    """Returns the queries and keys to show: those asked for; otherwise all, where a page can hold them."""
    high, wide, count = len(group.queries), len(group.keys), len(group.paths) * len(group.heads)
    room = max(1, WHOLE // share // count)  # weights of a head
    rows, columns = within(request.queries, high, "queries"), within(request.keys, wide, "keys")
    if rows is None and columns is None:
        side = max(LEAST, math.isqrt(room // 2))
        rows, columns = ((0, high), (0, wide)) if high * wide <= room else ((0, min(side, high)), (0, min(side, wide)))
    elif rows is None and columns is not None:
        rows = _beside(columns, high, room)
    elif columns is None and rows is not None:
        columns = _beside(rows, wide, room)
    assert rows is not None
    assert columns is not None
    asked = count * (rows[1] - rows[0]) * (columns[1] - columns[0])
    if asked > MOST:
        what = f"{asked:,} weights of {group.name} are asked for, {MOST:,} can be shown"
        raise HeedfulError(f"{what}; choose fewer layers, heads, queries or keys")
    return rows, columns


def _beside(chosen: Places, length: int, room: int) -> Places:
    """All ``length`` places, where ``room`` weights hold them beside the ``chosen``; else the same, or the first."""
    first, end = chosen
    if (end - first) * length <= room:
        return 0, length
    return (first, min(end, length)) if first < length else (0, min(end - first, length))


# --------------------------------------------------------------------------------------------------------- what is held


class AttentionWindow:
    """The window and the overview of one kind of attention, filled a few queries at a time.

    An overview's block is the mean over its queries and keys: each row of weights is added to its block's row, by
    columns, divided by the block's size.
    """

    def __init__(self, group: AttentionGroup, rows: Places, columns: Places, room: int) -> None:
        self.group, self.rows, self.columns = group, rows, columns
        stack = len(group.paths), len(group.heads)
        high, wide = len(group.queries), len(group.keys)
        self.window = torch.zeros(*stack, rows[1] - rows[0], columns[1] - columns[0])
        self.overview: Tensor | None = None
        if (rows, columns) != ((0, high), (0, wide)):
            side = min(BLOCKS, max(LEAST, math.isqrt(room // 2 // (stack[0] * stack[1]))))
            self.overview = torch.zeros(*stack, min(side, high), min(side, wide))
            self.above, self.across = _shares(high, min(side, high)), _shares(wide, min(side, wide))

    def take(self, place: int, weights: Tensor, first: int) -> None:
        """The weights (H, t, S) of the layer at ``place``, of the t queries from ``first`` on."""
        end = first + weights.size(1)
        low, high = max(first, self.rows[0]), min(end, self.rows[1])
        if low < high:
            part = weights[:, low - first : high - first, self.columns[0] : self.columns[1]]
            self.window[place, :, low - self.rows[0] : high - self.rows[0]] = part.cpu()
        if self.overview is not None:
            above, across = self.above[:, first:end].to(weights.device), self.across.to(weights.device)
            self.overview[place] += (above @ (weights @ across.mT)).cpu()

    def maps(self) -> AttentionMaps:
        """Returns the collected weights as ``AttentionMaps``."""
        group, note = self.group, ""
        if self.overview is not None:
            shown = [
                f"{what} {a}:{b} of {n:,}"
                for what, (a, b), n in (
                    ("queries", self.rows, len(group.queries)),
                    ("keys", self.columns, len(group.keys)),
                )
            ]
            note = f"Shown one by one are {' and '.join(shown)}; --queries and --keys choose others."
        return AttentionMaps(
            name=group.name,
            queries=group.queries,
            keys=group.keys,
            layers=list(group.paths),
            heads=list(group.heads),
            weights=self.window.numpy(),
            rows=self.rows,
            columns=self.columns,
            overview=None if self.overview is None else self.overview.clamp(0, 1).numpy(),
            note=note,
        )


def _shares(length: int, parts: int) -> Tensor:
    """(parts, length): one part's row holds 1 / its size at its places."""
    limits = torch.tensor(edges(length, parts))
    places = torch.arange(length)
    inside = (places >= limits[:-1, None]) & (places < limits[1:, None])
    return inside.float() / inside.sum(1, keepdim=True)


# -------------------------------------------------------------------------------------------------------------- drawing


def numbers(maps: AttentionMaps) -> dict[str, Any]:
    """Returns the numbers of maps, as they are; not rounded."""
    return {
        "name": maps.name,
        "queries": list(maps.queries),
        "keys": list(maps.keys),
        "layers": list(maps.layers),
        "heads": list(maps.heads),
        "rows": list(maps.rows),
        "columns": list(maps.columns),
        "weights": maps.weights,
        "overview": maps.overview,
        "note": maps.note,
    }


def _page(maps: Sequence[AttentionMaps], title: str, request: Request) -> str:
    return attention_page(maps, title=title, view=cast(View, request.view))


def _svg(maps: Sequence[AttentionMaps], title: str, request: Request) -> str:
    """Of the first kind of attention: all heads for the view of the model; for the others the first layer and head that
    were asked for, or else the clearest layer and the mean of its heads, where the page opens too.
    """
    first = maps[0]
    if request.view == "model":
        return figures.model(first, title)
    layer = first.layers[0 if request.layers is not None else clearest(first.weights)]
    draw = {"heads": figures.heads, "matrix": figures.matrix}[request.view]
    return draw(first, layer, None if request.heads is None else first.heads[0], title)
