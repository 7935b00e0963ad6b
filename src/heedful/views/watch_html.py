"""The page (HTML) of a run's attention to fixed inputs, with a slider over its training steps."""

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
from heedful.views.page import asset, data, page, piece, stored
from heedful.views.text import escaped, visible

MEAN = -1  # the head's number where the weights are the mean of all heads
FILE = "watch.jsonl"
STORED = 512  # pixels a side of an image as it is stored


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """Attention to all inputs at one training step.

    Attributes:
        step: of the run; 0 is the model before training.
        value: what the evaluation at this step said, in the run's chosen metric; None where there was none.
        maps: of each input, of each kind of attention. Heads that were averaged are the one head ``MEAN``.
    """

    step: int
    value: float | None
    maps: Sequence[Sequence[AttentionMaps]]


@dataclass(frozen=True, kw_only=True, eq=False)
class WatchHistory:
    """Attention to fixed inputs over the steps of a run.

    Attributes:
        inputs: their texts, or the names of image files.
        images: of each input the pixels, uint8 (H, W, C), and the grid (rows, columns) of patches; None of a text.
        metric: what ``value`` is, such as "bleu".
        looks: in the order of their steps; each has as many maps as every other.
        left_out: how many looks were made besides.
    """

    inputs: Sequence[str]
    images: Sequence[tuple[Array, tuple[int, int]] | None]
    metric: str
    looks: Sequence[Snapshot]
    left_out: int = 0

    def __post_init__(self) -> None:
        if not self.looks or not self.inputs:
            raise HeedfulError("nothing to draw: no look at any input; give one at least")
        names = [[maps.name for maps in one] for one in self.looks[0].maps]
        for look in self.looks:
            if [[maps.name for maps in one] for one in look.maps] != names or len(names) != len(self.inputs):
                raise HeedfulError(f"the looks at step {look.step} are not those at step {self.looks[0].step}")


def watch_page(watched: WatchHistory, *, title: str) -> str:
    """Returns a self-contained HTML page of what a model looked at while it learned, to be opened from disk.

    A slider runs over the steps whose looks were kept, under the curve of the run's metric and that of how sharp the
    chosen head is: the mean over its queries of the largest weight. Below stand the weights of the chosen layer and
    head as a heat map, over an image as light on its patches, and every layer and head at a glance. The address keeps
    the view: ``page.html#step=400&input=0&map=2&layer=1&head=3`` (inputs and maps counted from 0).

    Weights are kept in 8 bits, within 0.2 percentage points.

    >>> maps = AttentionMaps.of("self-attention", ["a", " b"], ["a", " b"], [[[[1, 0], [0.25, 0.75]]]])
    >>> looks = [Snapshot(step=step, value=None, maps=[[maps]]) for step in (0, 10)]
    >>> "step 10" in watch_page(WatchHistory(inputs=["a b"], images=[None], metric="loss", looks=looks), title="A run")
    True
    """
    facts = {
        "metric": visible(label_of(watched.metric)),
        "inputs": [_named(one, image is not None) for one, image in zip(watched.inputs, watched.images, strict=True)],
        "images": [None if one is None else _image(*one) for one in watched.images],
        "looks": [
            {"step": look.step, "value": look.value, "maps": [[_facts(maps) for maps in one] for one in look.maps]}
            for look in watched.looks
        ],
    }
    first, last, end = watched.looks[0].step, watched.looks[-1].step, len(watched.looks) - 1
    kept = f"{len(watched.looks)} looks are kept" + (
        f", {watched.left_out} others, evenly spread, are left out to keep this page small" if watched.left_out else ""
    )
    body = f"""<p class="quiet">The same inputs, looked at by the same model from step {first:,} to step {last:,}.</p>
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
<p class="told" role="status"></p>
<noscript><p>The maps are drawn by this page's own script, which your browser does not run.</p></noscript>
<div class="cards">
<section class="one"><h2 class="which"></h2><div class="scroll"><canvas role="img" tabindex="0"
aria-label="Heat map of the weights; arrow keys go from one to the next, and the line above tells it."></canvas>
</div></section>
<section class="sheet"><h2>every layer and head, at this step<span class="scale"></span></h2>
<div class="scroll"><table></table></div></section>
</div>
<div class="tip" hidden></div>
<footer>
<p><kbd>,</kbd> <kbd>.</kbd> a look back and on, <kbd>Space</kbd> plays, <kbd>l</kbd> next layer, <kbd>h</kbd> next
head (with Shift the one before), <kbd>i</kbd> next input, <kbd>m</kbd> next attention, arrow keys on the map from
weight to weight, <kbd>Esc</kbd> clears. The address keeps the view. Sharpness is the largest weight of a query, in the
mean over the queries of the map.</p>
<p>{escaped(kept)}. Weights are kept in 8 bits: each is within 0.2 percentage points of the model's.</p>
</footer>
{data(facts)}"""
    style, script = (asset(f"parts.{kind}") + asset(f"watch.{kind}") for kind in ("css", "js"))
    return page(title, body, style, script, images=True)


def _named(text: str, image: bool) -> str:
    """Returns an input in a list of them: a text and its target, or the name of a file and its folder's."""
    return piece(str(Path(*Path(text).parts[-2:])) if image else text.replace("\t", " → "))


def _facts(maps: AttentionMaps) -> dict[str, Any]:
    return {
        "name": visible(maps.name),
        "queries": [piece(one) for one in maps.queries],
        "keys": [piece(one) for one in maps.keys],
        "layers": list(maps.layers),
        "heads": list(maps.heads),
        "weights": stored(np.rint(maps.weights * 255), "u1"),
        "note": visible(maps.note) if maps.note else "",
    }


def _image(pixels: Array, grid: tuple[int, int]) -> dict[str, Any]:
    found = raster.checked(pixels)
    return {"source": raster.embedded(found, STORED), "size": [found.shape[1], found.shape[0]], "grid": list(grid)}


# ------------------------------------------------------------------------------------------------------- a run's folder


def draw_watch(folder: str | os.PathLike[str]) -> Path:
    """Writes ``watch.html`` from the ``watch.jsonl`` in ``folder``, and returns its path."""
    folder = Path(folder)
    name = folder.resolve().name
    return write(
        folder / "watch.html", watch_page(read_watch(folder / FILE), title=f"{name}: attention while it learned")
    )


def read_watch(path: Path) -> WatchHistory:
    """Reads ``watch.jsonl`` of ``--training.record-attention``; raises ``HeedfulError`` where it is not such a file."""
    try:
        head, *lines = (parse_json(line, path, "remove it") for line in path.read_text(encoding="utf-8").splitlines())
        inputs = [one["text"] for one in head["inputs"]]
        return WatchHistory(
            inputs=inputs,
            images=[_pixels(one["image"]) if "image" in one else None for one in head["inputs"]],
            metric=lines[-1]["metric"],
            looks=[
                Snapshot(
                    step=int(one["step"]), value=one["value"], maps=[[_maps(m) for m in maps] for maps in one["looks"]]
                )
                for one in lines
            ],
            left_out=len(head["steps"]) - len(lines),
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise HeedfulError(
            f"{path} holds no looks of a run ({error}); train with --training.record-attention"
        ) from None


def _maps(one: Mapping[str, Any]) -> AttentionMaps:
    shape = tuple(len(one[side]) for side in ("layers", "heads", "queries", "keys"))
    codes = np.frombuffer(base64.b64decode(one["weights"]), np.uint8)
    maps = AttentionMaps.of(
        one["name"], one["queries"], one["keys"], codes.reshape(shape) / np.float32(255), one["layers"], one["heads"]
    )
    return replace(maps, note=one["note"])


def _pixels(one: Mapping[str, Any]) -> tuple[Array, tuple[int, int]]:
    pixels = np.frombuffer(base64.b64decode(one["pixels"]), np.uint8).reshape(one["shape"])
    rows, columns = one["grid"]
    return pixels, (rows, columns)
