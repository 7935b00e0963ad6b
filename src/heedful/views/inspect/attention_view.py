"""The views heads, model and matrix: attention maps of any input; of a long text a window with an overview.

The weights arrive a few queries at a time (``heedful.inspection.observe``), and only the shown ones are kept, so that
memory does not grow with the length. Letters: L layers, H heads, T queries, S keys.
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
from heedful.views.attention_data import AttentionMaps, block_edges, most_informative_layer
from heedful.views.attention_html import View, attention_page
from heedful.views.inspect.catalogue import has_target, stack_names
from heedful.views.inspect.model_input import ModelInput, read_input
from heedful.views.inspect.opened_model import OpenedModel
from heedful.views.inspect.request import Request, Span, within
from heedful.views.inspect.result import InspectionResult

DEFAULT = 3_000_000  # weights that a page shows by default: under 5 MB
MAX_WEIGHTS = 16_000_000  # weights that layers, heads, queries and keys may select: 64 MB
BLOCKS = 64  # maximum blocks a side of an overview
LEAST = 16  # minimum positions of a window, and blocks of an overview

Range = tuple[int, int]  # first position, end


@dataclass(frozen=True, kw_only=True)
class AttentionGroup:
    """One kind of attention: its name, the paths of its layers, and the texts of queries and keys."""

    name: str
    paths: dict[int, str]  # layer → path
    heads: Sequence[int]
    queries: Sequence[str]
    keys: Sequence[str]


def look(opened: OpenedModel, request: Request) -> InspectionResult:
    """Returns the view of one input that shows its attention maps."""
    reading = read_input(opened, request.inputs[0], request)
    shown = maps_of(opened, reading, request)
    title = f"{opened.name}: {reading.name}"
    data = {"input": reading.name, "note": reading.note, "maps": [maps_as_data(maps) for maps in shown]}
    return InspectionResult(
        title=title,
        view=request.view,
        data=data,
        page=partial(_page, shown, title, request),
        picture=partial(_svg, shown, title, request),
    )


# ---------------------------------------------------------------------------------------------------- kinds and windows


def groups(opened: OpenedModel, reading: ModelInput, request: Request) -> list[AttentionGroup]:
    """Returns every kind of attention of the model, cross-attention first, with the requested layers and heads.

    A query of cross-attention is named by the piece that it predicts, a query of self-attention by its input piece.
    """
    config = opened.model.config
    stacks = stack_names(config)
    kinds = [("encoder", "attention"), ("decoder", "attention")]
    kinds = [(stack, part) for stack, part in kinds if stack in stacks]
    if len(stacks) == 2:
        kinds = [("decoder", "cross_attention"), *kinds]
    found_groups = []
    for stack, part in kinds:
        layers = [n for n in request.layers or range(stacks[stack].depth) if n < stacks[stack].depth]
        heads = [n for n in request.heads or range(stacks[stack].heads) if n < stacks[stack].heads]
        is_cross = part == "cross_attention"
        name = "cross-attention" if is_cross else "self-attention"
        if layers and heads:
            found_groups.append(
                AttentionGroup(
                    name=name if is_cross or len(stacks) == 1 else f"{stack} {name}",
                    paths={n: f"{stack}.block.{n}.{part}.pattern" for n in layers},
                    heads=heads,
                    queries=list(reading.written) if is_cross and has_target(config) else reading.read[stack],
                    keys=reading.read["encoder"] if is_cross else reading.read[stack],
                )
            )
    return found_groups


def maps_of(opened: OpenedModel, reading: ModelInput, request: Request) -> list[AttentionMaps]:
    """Returns the maps of one input, cross-attention first.

    Raises ``HeedfulError`` for too many weights, or positions that no text of the input has.
    """
    all_groups = groups(opened, reading, request)
    shown = [group for group in all_groups if _has(request.queries, group.queries) and _has(request.keys, group.keys)]
    if not shown:
        within(request.queries, max(len(group.queries) for group in all_groups), "queries")
        within(request.keys, max(len(group.keys) for group in all_groups), "keys")
        raise HeedfulError(
            "no attention of this model has both these queries and these keys; give lower positions as queries or keys"
        )
    room = DEFAULT // len(shown)
    windows = [AttentionWindow(group, *_ranges(group, request, room), room=room) for group in shown]
    by_path = {path: (window, index) for window in windows for index, path in enumerate(window.group.paths.values())}

    def receive(path: str, weights: Tensor, first: int) -> None:
        window, index = by_path[path]
        window.add(index, weights[0].float(), first)

    with torch.no_grad(), ExitStack() as stack:
        for window in windows:
            paths = list(window.group.paths.values())
            stack.enter_context(observe(opened.model, receive, paths, heads=window.group.heads))
        opened.model(*reading.arguments)
    return [window.maps() for window in windows]


def _has(span: Span | None, pieces: Sequence[str]) -> bool:
    return span is None or span[0] < len(pieces)


def _ranges(group: AttentionGroup, request: Request, room: int) -> tuple[Range, Range]:
    """Returns the queries and keys to show: the requested ones, or as many as ``room`` weights allow."""
    high, wide, count = len(group.queries), len(group.keys), len(group.paths) * len(group.heads)
    rows, columns = _completed(
        within(request.queries, high, "queries"), within(request.keys, wide, "keys"), high, wide, max(1, room // count)
    )
    requested = count * (rows[1] - rows[0]) * (columns[1] - columns[0])
    if requested > MAX_WEIGHTS:
        raise HeedfulError(
            f"{requested:,} weights of {group.name} requested, but at most {MAX_WEIGHTS:,} can be shown; choose fewer "
            "layers, heads, queries or keys"
        )
    return rows, columns


def _completed(rows: Range | None, columns: Range | None, high: int, wide: int, room: int) -> tuple[Range, Range]:
    """Returns both ranges of ``high`` queries and ``wide`` keys, a missing one as large as ``room`` weights allow."""
    if rows is not None and columns is not None:
        return rows, columns
    if rows is not None:
        return rows, _other_range(rows, wide, room)
    if columns is not None:
        return _other_range(columns, high, room), columns
    if high * wide <= room:
        return (0, high), (0, wide)
    side = max(LEAST, math.isqrt(room // 2))
    return (0, min(side, high)), (0, min(side, wide))


def _other_range(chosen: Range, length: int, room: int) -> Range:
    """Returns the other axis's range: all ``length`` positions if they fit ``room``, else ``chosen`` or the start."""
    first, end = chosen
    if (end - first) * length <= room:
        return 0, length
    return (first, min(end, length)) if first < length else (0, min(end - first, length))


# ------------------------------------------------------------------------------------------------------------ recording


class AttentionWindow:
    """The window and the overview of one kind of attention, filled a few queries at a time.

    A block of the overview is the mean over its queries and keys.
    """

    def __init__(self, group: AttentionGroup, rows: Range, columns: Range, room: int) -> None:
        self.group, self.rows, self.columns = group, rows, columns
        stack = len(group.paths), len(group.heads)
        high, wide = len(group.queries), len(group.keys)
        self.window = torch.zeros(*stack, rows[1] - rows[0], columns[1] - columns[0])
        self.overview: Tensor | None = None
        if (rows, columns) != ((0, high), (0, wide)):
            side = min(BLOCKS, max(LEAST, math.isqrt(room // 2 // (stack[0] * stack[1]))))
            self.overview = torch.zeros(*stack, min(side, high), min(side, wide))
            self.row_means, self.column_means = _averaging(high, min(side, high)), _averaging(wide, min(side, wide))

    def add(self, index: int, weights: Tensor, first: int) -> None:
        """Adds the weights (H, t, S) of t queries, from query ``first`` on, in the layer at ``index``."""
        end = first + weights.size(1)
        low, high = max(first, self.rows[0]), min(end, self.rows[1])
        if low < high:
            part = weights[:, low - first : high - first, self.columns[0] : self.columns[1]]
            self.window[index, :, low - self.rows[0] : high - self.rows[0]] = part.cpu()
        if self.overview is not None:
            row_means = self.row_means[:, first:end].to(weights.device)
            column_means = self.column_means.to(weights.device)
            self.overview[index] += (row_means @ (weights @ column_means.mT)).cpu()

    def maps(self) -> AttentionMaps:
        """Returns the collected weights as ``AttentionMaps``."""
        group, note = self.group, ""
        if self.overview is not None:
            shown = [
                f"{axis} {first}:{end} of {length:,}"
                for axis, (first, end), length in (
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


def _averaging(length: int, blocks: int) -> Tensor:
    """Returns the matrix (blocks, length) that averages positions in blocks."""
    limits = torch.tensor(block_edges(length, blocks))
    positions = torch.arange(length)
    inside = (positions >= limits[:-1, None]) & (positions < limits[1:, None])
    return inside.float() / inside.sum(1, keepdim=True)


# -------------------------------------------------------------------------------------------------------------- drawing


def maps_as_data(maps: AttentionMaps) -> dict[str, Any]:
    """Returns the fields of attention maps as a dictionary for ``InspectionResult.data``; weights are not rounded."""
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
    """Returns a figure of the first kind of attention.

    The view model shows all heads; the others show the first requested layer and head, or, as the page, the mean of
    heads of the most informative layer.
    """
    first = maps[0]
    if request.view == "model":
        return figures.model(first, title)
    layer = first.layers[0 if request.layers is not None else most_informative_layer(first.weights)]
    draw = {"heads": figures.heads, "matrix": figures.matrix}[request.view]
    return draw(first, layer, None if request.heads is None else first.heads[0], title)
