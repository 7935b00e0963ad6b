"""The view words: a generated text, and for each word the image, bright where the decoder attended for this word."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from heedful.config import patches_of
from heedful.errors import HeedfulError
from heedful.inspection import record
from heedful.inspection.image_patches import patch_grid
from heedful.views import figures
from heedful.views.attention_data import word_starts
from heedful.views.inspect.attention_view import MAX_WEIGHTS
from heedful.views.inspect.model_input import ModelInput, read_input
from heedful.views.inspect.opened_model import OpenedModel
from heedful.views.inspect.request import Request, decoder_layers_and_heads
from heedful.views.inspect.result import InspectionResult
from heedful.views.text import visible
from heedful.views.words_html import WordMaps, words_page


def look(opened: OpenedModel, request: Request) -> InspectionResult:
    """Returns the view of one image and the text that the model writes about it."""
    reading = read_input(opened, request.inputs[0], request)
    maps = words_of(opened, reading, request)
    title = f"{opened.name}: {reading.name}"
    data: dict[str, Any] = {
        "input": reading.name,
        "words": list(maps.words),
        "grid": list(maps.grid),
        "layers": list(maps.layers),
        "heads": list(maps.heads),
        "weights": maps.weights,
        "note": maps.note,
    }
    return InspectionResult(
        title=title,
        view=request.view,
        data=data,
        page=partial(words_page, maps, title=title),
        picture=partial(_svg, maps, title),
    )


def words_of(opened: OpenedModel, reading: ModelInput, request: Request) -> WordMaps:
    """Returns the words of the text, and the cross-attention with which each was written, (L, H, words, rows, columns).

    The map of a word of several tokens is the mean of their maps. Tokens before the patches are left out, so that a map
    may sum to less than 1. The end token is left out.
    """
    model, stack = opened.model, opened.model.config.decoder  # type: ignore[union-attr]  # the view's models have one
    patches, cells = patches_of(model.config), patch_grid(model)
    assert patches is not None
    layers, heads = decoder_layers_and_heads(request, stack)
    pieces, ends = list(reading.written), model.config.special.end  # type: ignore[union-attr]
    if reading.answer and reading.answer[-1] in ends:
        pieces.pop()
    if not pieces:
        raise HeedfulError("the model wrote no word for this image; give a text with target")
    if (weights := len(layers) * len(heads) * len(pieces) * patches.tokens) > MAX_WEIGHTS:
        raise HeedfulError(
            f"the words have {weights:,} weights, but at most {MAX_WEIGHTS:,} can be shown; choose fewer layers or "
            "heads"
        )
    paths = [f"decoder.block.{layer}.cross_attention.pattern" for layer in layers]
    with torch.no_grad(), record(model, paths, heads=heads) as recorded:
        model(*reading.arguments)
    stacked = torch.stack([recorded[path][0, :, : len(pieces), patches.prefix_tokens :] for path in paths])
    starts = [i for i, is_start in enumerate(word_starts(pieces)) if is_start or i == 0]
    spans = list(zip(starts, [*starts[1:], len(pieces)], strict=True))
    by_word = torch.stack([stacked[:, :, start:end].mean(2) for start, end in spans], 2).float().cpu().numpy()
    assert reading.pixels is not None
    return WordMaps(
        pixels=np.asarray(reading.pixels),
        words=[visible("".join(pieces[start:end]).strip()) for start, end in spans],
        grid=cells,
        layers=layers,
        heads=heads,
        weights=by_word.reshape(*by_word.shape[:3], *cells),
        note=" ".join(part for part in (reading.note, opened.untrained) if part),
    )


def _svg(maps: WordMaps, title: str) -> str:
    """Returns a figure of the image for each word, by the mean over layers and heads."""
    return figures.bright_images(maps.pixels, maps.weights.mean((0, 1)), maps.words, title, note=maps.note)
