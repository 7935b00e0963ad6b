"""HTML page of a model's attention to fixed inputs during training, with a slider over the steps."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from heedful.errors import HeedfulError
from heedful.metrics.registry import label_of
from heedful.util.files import parse_json, write
from heedful.views import raster
from heedful.views.attention_data import Array, AttentionMaps
from heedful.views.page import asset, base64_numbers, data, page, piece
from heedful.views.text import escaped, visible

MEAN = -1  # number of the head that stands for the mean of all heads
FILE = "watch.jsonl"
STORED = 512  # pixels a side of a stored image


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """Attention to all inputs at one training step.

    Attributes:
        step: step of the run; 0 is the model before training.
        value: value of the metric at this step; None without an evaluation.
        maps: attention maps by input and kind of attention. Averaged heads are one head, with the number ``MEAN``.
    """

    step: int
    value: float | None
    maps: Sequence[Sequence[AttentionMaps]]


@dataclass(frozen=True, kw_only=True, eq=False)
class WatchHistory:
    """Attention to fixed inputs over the steps of a run.

    Attributes:
        inputs: texts, or names of image files.
        images: for each input the pixels, uint8 (H, W, C), and the grid (rows, columns) of patches; None for a text.
        metric: name of the metric in ``value``, such as "bleu".
        snapshots: the snapshots in the order of their steps, all with maps of the same inputs, layers and heads.
        left_out: number of snapshots that were recorded but not kept.
    """

    inputs: Sequence[str]
    images: Sequence[tuple[Array, tuple[int, int]] | None]
    metric: str
    snapshots: Sequence[Snapshot]
    left_out: int = 0

    def __post_init__(self) -> None:
        if not self.snapshots or not self.inputs:
            raise HeedfulError("nothing to draw: no snapshot of any input; give at least one")
        first = self.snapshots[0]
        names = [[maps.name for maps in by_kind] for by_kind in first.maps]
        for snapshot in self.snapshots:
            others = [[maps.name for maps in by_kind] for by_kind in snapshot.maps]
            if others != names or len(names) != len(self.inputs):
                raise HeedfulError(
                    f"step {snapshot.step} has other attention maps than step {first.step}; give the same maps at "
                    "every step"
                )


def watch_page(history: WatchHistory, *, title: str) -> str:
    """Returns a self-contained HTML page of a model's attention during training.

    A slider selects a step, below the curves of the run's metric and of the chosen head's sharpness: the mean over its
    queries of the largest weight. The page shows the weights of the chosen layer and head as a heat map, or as light on
    the patches of an image, and every layer and head. The address keeps the view:
    ``page.html#step=400&input=0&map=2&layer=1&head=3`` (inputs and maps counted from 0).

    Weights are stored in 8 bits, within 0.2 percentage points.

    >>> maps = AttentionMaps.of("self-attention", ["a", " b"], ["a", " b"], [[[[1, 0], [0.25, 0.75]]]])
    >>> snapshots = [Snapshot(step=step, value=None, maps=[[maps]]) for step in (0, 10)]
    >>> history = WatchHistory(inputs=["a b"], images=[None], metric="loss", snapshots=snapshots)
    >>> "step 10" in watch_page(history, title="A run")
    True
    """
    facts = {
        "metric": visible(label_of(history.metric)),
        "inputs": [_named(text, image is not None) for text, image in zip(history.inputs, history.images, strict=True)],
        "images": [None if image is None else _image(*image) for image in history.images],
        "snapshots": [
            {
                "step": snapshot.step,
                "value": snapshot.value,
                "maps": [[_facts(maps) for maps in by_kind] for by_kind in snapshot.maps],
            }
            for snapshot in history.snapshots
        ],
    }
    style, script = (asset(f"parts.{kind}") + asset(f"watch.{kind}") for kind in ("css", "js"))
    return page(title, _body(history) + data(facts), style, script, images=True)


def _body(history: WatchHistory) -> str:
    snapshots = history.snapshots
    first, last, end = snapshots[0].step, snapshots[-1].step, len(snapshots) - 1
    kept = f"{len(snapshots)} snapshots are kept" + (
        f", {history.left_out} others, evenly spread, are left out to keep this page small" if history.left_out else ""
    )
    return f"""<p class="quiet">The same inputs to the same model, from step {first:,} to step {last:,}.</p>
<div class="tools">
<label class="inputs">input <select class="input"></select></label>
<label class="maps">attention <select class="map"></select></label>
<label class="queries">of <select class="query"></select></label>
<label>layer <select class="layer"></select></label><label>head <select class="head"></select></label>
</div>
<section class="time" aria-label="the steps">
<div class="curve"><canvas aria-hidden="true"></canvas>
<input type="range" class="steps" min="0" max="{end}" step="1" value="{end}" aria-label="step"></div>
<div class="now"><output class="at"></output><span class="sharp"></span><span class="metric"></span>
<button type="button" class="play" aria-pressed="false">▶ play</button></div>
</section>
<p class="status" role="status"></p>
<noscript><p>The maps are drawn by this page's own script, which your browser does not run.</p></noscript>
<div class="cards">
<section class="one"><h2 class="which"></h2><div class="scroll"><canvas role="img" tabindex="0"
aria-label="Heat map of the weights; arrow keys go from one to the next, and the line above names it."></canvas>
</div></section>
<section class="sheet"><h2>every layer and head, at this step<span class="scale"></span></h2>
<div class="scroll"><table></table></div></section>
</div>
<div class="tip" hidden></div>
<footer>
<p><kbd>,</kbd> <kbd>.</kbd> previous and next step, <kbd>Space</kbd> plays, <kbd>l</kbd> next layer, <kbd>h</kbd> next
head (with Shift the one before), <kbd>i</kbd> next input, <kbd>m</kbd> next attention, arrow keys on the map from
weight to weight, <kbd>Esc</kbd> clears. The address keeps the view. Sharpness is the largest weight of a query,
averaged over the queries of the map.</p>
<p>{escaped(kept)}. Weights are kept in 8 bits: each is within 0.2 percentage points of the model's.</p>
</footer>
"""


def _named(text: str, image: bool) -> str:
    """Returns an input's name for a list: a text and its target, or a file with its folder."""
    return piece(str(Path(*Path(text).parts[-2:])) if image else text.replace("\t", " → "))


def _facts(maps: AttentionMaps) -> dict[str, Any]:
    return {
        "name": visible(maps.name),
        "queries": [piece(query) for query in maps.queries],
        "keys": [piece(key) for key in maps.keys],
        "layers": list(maps.layers),
        "heads": list(maps.heads),
        "weights": base64_numbers(np.rint(maps.weights * 255), "u1"),
        "note": visible(maps.note) if maps.note else "",
    }


def _image(pixels: Array, grid: tuple[int, int]) -> dict[str, Any]:
    pixels = raster.as_uint8(pixels)
    return {"source": raster.embedded(pixels, STORED), "size": [pixels.shape[1], pixels.shape[0]], "grid": list(grid)}


# ------------------------------------------------------------------------------------------------------- a run's folder


def draw_watch(folder: str | os.PathLike[str]) -> Path:
    """Draws the attention maps in a run folder's ``watch.jsonl`` as the page ``watch.html``, and returns its path."""
    folder = Path(folder)
    name = folder.resolve().name
    return write(
        folder / "watch.html", watch_page(read_watch(folder / FILE), title=f"{name}: attention during training")
    )


def read_watch(path: Path) -> WatchHistory:
    """Returns the attention maps in a ``watch.jsonl`` that training wrote; raises ``HeedfulError`` for another file."""
    try:
        head, *lines = (parse_json(line, path, "remove it") for line in path.read_text(encoding="utf-8").splitlines())
        return WatchHistory(
            inputs=[entry["text"] for entry in head["inputs"]],
            images=[_pixels(entry["image"]) if "image" in entry else None for entry in head["inputs"]],
            metric=lines[-1]["metric"],
            snapshots=[
                Snapshot(
                    step=int(line["step"]),
                    value=line["value"],
                    maps=[[_maps(maps) for maps in by_kind] for by_kind in line["maps" if "maps" in line else "looks"]],
                )
                for line in lines
            ],
            left_out=len(head["steps"]) - len(lines),
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise HeedfulError(
            f"{path} holds no recorded attention ({error}); train with --training.record-attention"
        ) from None


def _maps(entry: Mapping[str, Any]) -> AttentionMaps:
    shape = tuple(len(entry[side]) for side in ("layers", "heads", "queries", "keys"))
    codes = np.frombuffer(base64.b64decode(entry["weights"]), np.uint8).reshape(shape)
    weights = codes / np.float32(255)
    maps = AttentionMaps.of(entry["name"], entry["queries"], entry["keys"], weights, entry["layers"], entry["heads"])
    return replace(maps, note=entry["note"])


def _pixels(entry: Mapping[str, Any]) -> tuple[Array, tuple[int, int]]:
    pixels = np.frombuffer(base64.b64decode(entry["pixels"]), np.uint8).reshape(entry["shape"])
    rows, columns = entry["grid"]
    return pixels, (rows, columns)
