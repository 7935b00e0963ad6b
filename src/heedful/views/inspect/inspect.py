"""``heedful.inspect``: runs a model on an input under probes and returns the view."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from heedful.errors import HeedfulError, nearest
from heedful.generation.options import NAMES
from heedful.inspection.eval_mode import evaluating
from heedful.views.inspect.catalogue import OPTIONS
from heedful.views.inspect.opened_model import Named, open_model
from heedful.views.inspect.request import Request, check_view
from heedful.views.inspect.result import InspectionResult


def inspect(
    model: Named,
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
    """Looks inside a model while it reads, or writes.

    Args:
        model: a model folder, a Hub id, a model that ``from_pretrained`` opened, or ``(model, folder)``, where the
            folder tells the tokenizer.
        input: a text; a pair of texts ``(text, pair)``, or one string with a tab between; an image (a path, bytes, a
            PIL image, an array); for ``view="similarity"`` a list of inputs; nothing for "positions" and "filters".
        target: what an encoder-decoder is to write; by default what it does write. For ``view="gradient"`` and
            "importance" of a classifier the label in question; by default the likeliest.
        view: "heads", "model", "matrix" (attention maps); "steps" (generated text, step by step); "lens" (what every
            layer would say); "image" (patches, overlay, rollout); "gradient" (gradient × input); "embeddings";
            "similarity"; "positions"; "filters"; "importance" (of heads). By default "image" for image classifiers and
            "heads" for all others; an encoder-decoder's first map is its cross-attention.
        layers, heads: only this one, or these, numbered from 0.
        queries, keys: only these places, as ``"START:END"`` or ``(start, end)``. By default all where a page can hold
            them; of a long input the first, under an overview of the whole.
        device: where to run; the best there is.
        **decoding: how to write, where something is written: ``num_beams=4``, ``max_new_tokens=20``, ... as of
            ``generate``.

    Returns:
        An ``InspectionResult``: ``save("x.html")`` (or .svg, .png, .pdf), ``html()``, ``svg()``, and ``data`` with the
        numbers. Notebooks show it as it is.

    Raises:
        HeedfulError: a view that there is not, or that the model cannot have; a layer, head or place that is not there;
            an option without effect; an input that is empty, or that the model cannot read.

    >>> import heedful
    >>> heedful.inspect("runs/en-fr", "How are you?").save("look.html")  # doctest: +SKIP
    PosixPath('look.html')
    """
    for name in decoding:
        if name not in NAMES:
            raise HeedfulError(f"unknown option {name!r}; {nearest(name, [*NAMES, *OPTIONS[:-1], 'view', 'device'])}")
    request = Request.of(
        input, view, target=target, layers=layers, heads=heads, queries=queries, keys=keys, decoding=decoding
    )
    return run_request(model, request, device)


def run_request(model: Named, request: Request, device: str | None = None) -> InspectionResult:
    """Returns the same for what is asked as one object."""
    opened, request = open_model(model, request, device)
    with evaluating(opened.model):
        module, _, function = check_view(request.view).home.partition(":")
        look: InspectionResult = getattr(import_module(module), function)(opened, request)
    return look
