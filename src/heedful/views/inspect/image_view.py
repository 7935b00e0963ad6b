"""An image with its patches: what each looks at, rollout, gradient × input, and what the model says."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from heedful.config import VisionConfig
from heedful.errors import HeedfulError
from heedful.inspection import record
from heedful.inspection.attention_maps import class_token_overlay, rollout
from heedful.inspection.gradients import gradient_x_input
from heedful.inspection.image_patches import grid, tokens
from heedful.views import figures
from heedful.views.image_html import ImageMaps, image_page
from heedful.views.inspect.model_input import read
from heedful.views.inspect.opened_model import OpenedModel
from heedful.views.inspect.request import Request
from heedful.views.inspect.result import InspectionResult

CLASSES = 5  # likeliest, told
MOST = 64_000_000  # weights held at once: 256 MB


def look(opened: OpenedModel, request: Request) -> InspectionResult:
    """One image."""
    reading = read(opened, request.inputs[0], request)
    assert reading.pixels is not None
    image = image_of(opened, reading.arguments[0], reading.pixels, request)
    title = f"{opened.name}: {reading.name}"
    data: dict[str, Any] = {
        "input": reading.name,
        "grid": list(image.grid),
        "prefix": list(image.prefix),
        "layers": list(image.layers),
        "heads": list(image.heads),
        "classes": [list(one) for one in image.classes],
        "rollout": image.rollout,
        "gradient": image.gradient,
        "weights": image.weights,
        "note": image.note,
    }
    return InspectionResult(
        title=title,
        view=request.view,
        data=data,
        page=partial(image_page, image, title=title),
        picture=partial(_svg, image, title),
    )


def image_of(opened: OpenedModel, pixels: torch.Tensor, shown: Any, request: Request) -> ImageMaps:
    """Returns all that the page shows; rollout is through every layer and head, whichever are shown."""
    model, config = opened.model, opened.model.config
    assert isinstance(config, VisionConfig)
    stack, cells, prefix = config.encoder, grid(model), tokens(model)[: config.patches.prefix_tokens]
    if (held := stack.depth * stack.heads * config.patches.tokens**2) > MOST:
        what = f"{held:,} weights of {config.patches.tokens:,} tokens do not fit one page"
        raise HeedfulError(f"{what}; take --view matrix with --layers and --heads")
    with torch.no_grad(), record(model, "attention.pattern") as seen:
        chances = model(pixels).float().softmax(-1)[0]
    patterns = [seen[f"encoder.block.{layer}.attention.pattern"] for layer in range(stack.depth)]
    through = rollout(patterns)
    reached = class_token_overlay(through, cells) if prefix else through.mean(1).unflatten(-1, cells)
    layers, heads = list(request.layers or range(stack.depth)), list(request.heads or range(stack.heads))
    best = chances.topk(min(CLASSES, len(chances)))
    slopes = gradient_x_input(model, pixels, label=int(best.indices[0])).input[0, len(prefix) :]
    return ImageMaps(
        pixels=shown,
        grid=cells,
        prefix=prefix,
        layers=layers,
        heads=heads,
        weights=torch.stack([patterns[layer][0, heads] for layer in layers]).float().cpu().numpy(),
        rollout=reached[0].cpu().numpy(),
        classes=[
            (opened.labels[number], chance)
            for number, chance in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ],
        gradient=slopes.float().reshape(cells).cpu().numpy(),
        note=opened.untrained,
    )


def _svg(image: ImageMaps, title: str) -> str:
    """Returns the rollout over the image."""
    said = ", ".join(f"{name} {100 * chance:.0f} %" for name, chance in image.classes[:1])
    gathers = "class token" if image.prefix else "mean of all patches"
    note = f"Rollout: how much of each patch reaches the {gathers}. {image.note}"
    return figures.overlay(np.asarray(image.pixels), np.asarray(image.rollout), f"{title} · {said}", note=note.strip())
