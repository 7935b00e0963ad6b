"""The view image: an image with its patches, their attention, rollout, gradient × input and predicted classes."""

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
from heedful.inspection.image_patches import patch_grid, tokens
from heedful.views import figures
from heedful.views.image_html import ImageMaps, image_page
from heedful.views.inspect.model_input import read_input
from heedful.views.inspect.opened_model import OpenedModel
from heedful.views.inspect.request import Request
from heedful.views.inspect.result import InspectionResult

CLASSES = 5  # likeliest classes to show
MAX_WEIGHTS = 64_000_000  # weights in memory: 256 MB


def look(opened: OpenedModel, request: Request) -> InspectionResult:
    """Returns the view of one image: its patches, their attention, and the predicted classes."""
    reading = read_input(opened, request.inputs[0], request)
    image = image_of(opened, reading.arguments[0], reading.pixels, request)
    title = f"{opened.name}: {reading.name}"
    data: dict[str, Any] = {
        "input": reading.name,
        "grid": list(image.grid),
        "prefix": list(image.prefix),
        "layers": list(image.layers),
        "heads": list(image.heads),
        "classes": [list(predicted) for predicted in image.classes],
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
    """Returns what the page shows of an image. The rollout uses all layers and heads, also if not all are shown."""
    model, config = opened.model, opened.model.config
    assert isinstance(config, VisionConfig)
    stack, cells, prefix = config.encoder, patch_grid(model), tokens(model)[: config.patches.prefix_tokens]
    if (count := stack.depth * stack.heads * config.patches.tokens**2) > MAX_WEIGHTS:
        raise HeedfulError(
            f"{count:,} weights of {config.patches.tokens:,} tokens do not fit one page; take --view matrix with "
            "--layers and --heads"
        )
    with torch.no_grad(), record(model, "attention.pattern") as recorded:
        probabilities = model(pixels).float().softmax(-1)[0]
    patterns = [recorded[f"encoder.block.{layer}.attention.pattern"] for layer in range(stack.depth)]
    rolled_out = rollout(patterns)
    overlay = class_token_overlay(rolled_out, cells) if prefix else rolled_out.mean(1).unflatten(-1, cells)
    layers, heads = list(request.layers or range(stack.depth)), list(request.heads or range(stack.heads))
    best = probabilities.topk(min(CLASSES, len(probabilities)))
    gradients, note = None, opened.untrained
    if model.optimised:
        note = f"{note} Gradient × input is left out: a model optimised for inference has no gradients.".strip()
    else:
        by_patch = gradient_x_input(model, pixels, label=int(best.indices[0])).input[0, len(prefix) :]
        gradients = by_patch.float().reshape(cells).cpu().numpy()
    return ImageMaps(
        pixels=shown,
        grid=cells,
        prefix=prefix,
        layers=layers,
        heads=heads,
        weights=torch.stack([patterns[layer][0, heads] for layer in layers]).float().cpu().numpy(),
        rollout=overlay[0].cpu().numpy(),
        classes=[
            (opened.labels[number], probability)
            for number, probability in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ],
        gradient=gradients,
        note=note,
    )


def _svg(image: ImageMaps, title: str) -> str:
    """Returns a figure of the rollout over the image."""
    predicted = ", ".join(f"{name} {100 * probability:.0f} %" for name, probability in image.classes[:1])
    output = "class token" if image.prefix else "mean of all patches"
    note = f"Rollout: how much of each patch reaches the {output}. {image.note}".strip()
    return figures.overlay(np.asarray(image.pixels), np.asarray(image.rollout), f"{title} · {predicted}", note=note)
