"""``heedful.inspect``: runs a model on an input under probes and returns the view."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from heedful.errors import HeedfulError, nearest
from heedful.generation.options import NAMES
from heedful.inspection.eval_mode import evaluating
from heedful.views.inspect.catalogue import OPTIONS
from heedful.views.inspect.opened_model import ModelSource, open_model
from heedful.views.inspect.request import Request, check_view
from heedful.views.inspect.result import InspectionResult


def inspect(
    model: ModelSource,
    input: Any = None,
    *,
    target: str | None = None,
    view: str | None = None,
    layers: int | Sequence[int] | None = None,
    heads: int | Sequence[int] | None = None,
    queries: str | Sequence[int] | None = None,
    keys: str | Sequence[int] | None = None,
    device: str | None = None,
    **decoding: Any,
) -> InspectionResult:
    """Runs a model on an input, and returns a view of what happens inside: attention, predictions of layers, gradients.

    Args:
        model: a model folder, a Hub id, a model of ``from_pretrained``, or ``(model, folder)`` with the tokenizer's
            folder.
        input: a text; a pair of texts ``(text, pair)``, or one string with a tab between; an image (a path, bytes, a
            PIL image, an array); for ``view="similarity"`` a list of inputs; nothing for "positions" and "filters".
        target: the target text of an encoder-decoder; by default the model generates it. For ``view="gradient"`` and
            "importance" of a classifier the label to explain; by default the likeliest.
        view: "heads", "model", "matrix" (attention maps); "steps" (generated text, step by step); "lens" (predictions
            of every layer); "image" (patches, overlay, rollout); "gradient" (gradient × input); "embeddings";
            "similarity"; "positions"; "filters"; "importance" (of heads). By default "image" for image classifiers and
            "heads" for all others; an encoder-decoder's first map is its cross-attention.
        layers, heads: numbers of the layers and heads to show, counted from 0; one number or several.
        queries, keys: the positions to show, as ``"START:END"`` or ``(start, end)``. By default all that fit a page; of
            a long input the first, with an overview of the whole.
        device: by default the best available.
        **decoding: options of ``generate``, if text is generated: ``num_beams=4``, ``max_new_tokens=20``, ...

    Returns:
        An ``InspectionResult``, with ``save("x.html")`` (or .svg, .png, .pdf), ``html()``, ``svg()``, and ``data`` with
        the numbers. Notebooks show it as a page.

    Raises:
        HeedfulError: an unknown view, or one that the model does not support; an unknown layer, head or position; an
            option without effect; an input that is empty, or that the model cannot read.

    >>> import heedful
    >>> heedful.inspect("runs/en-fr", "How are you?").save("attention.html")  # doctest: +SKIP
    PosixPath('attention.html')
    """
    for name in decoding:
        if name not in NAMES:
            raise HeedfulError(f"unknown option {name!r}; {nearest(name, [*NAMES, *OPTIONS[:-1], 'view', 'device'])}")
    request = Request.of(
        input, view, target=target, layers=layers, heads=heads, queries=queries, keys=keys, decoding=decoding
    )
    return run_request(model, request, device)


def run_request(model: ModelSource, request: Request, device: str | None = None) -> InspectionResult:
    """Loads the model, checks a request against it, and returns the requested view."""
    opened, request = open_model(model, request, device)
    with evaluating(opened.model):
        module, _, function = check_view(request.view).home.partition(":")
        look: InspectionResult = getattr(import_module(module), function)(opened, request)
    return look
