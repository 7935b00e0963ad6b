"""``heedful summary`` and ``inspect``: what a model is made of, and what goes on inside it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heedful.cli.arguments import check_model
from heedful.cli.parser import Device, Json
from heedful.errors import HeedfulError, nearest
from heedful.settings import DecodingSettings
from heedful.util.terminal import to_json


def summary(
    name: Annotated[str, Parameter(help="model folder, preset, or a config.json")],
    /,
    *,
    length: Annotated[int | None, Parameter(help="tokens of the input; 128 by default")] = None,
    batch: Annotated[int | None, Parameter(help="rows of the input; 1 by default")] = None,
    image_size: Annotated[int | None, Parameter(help="pixels of an image's side; the model's by default")] = None,
    json: Json = False,
) -> None:
    """Show a model's layers, parameters, operations and memory."""
    from heedful import presets

    if name not in presets.names() and not Path(name).exists() and "/" not in name:
        raise HeedfulError(f"{name} is no folder or file here, and no preset; {nearest(name, presets.names())}")
    import heedful

    info = heedful.summary(name, length=length, batch=batch, image_size=image_size)
    print(to_json(info.as_dict()) if json else info)


def inspect(
    model: Annotated[str, Parameter(help="model folder, ours or Hugging Face's, or a Hub id")],
    /,
    *inputs: Annotated[str, Parameter(help="a text, a pair with a tab between, or an image file; - is standard input")],
    target: Annotated[
        str | None,
        Parameter(help="what an encoder-decoder is to write, or the label or token in question"),
    ] = None,
    view: Annotated[
        str | None,
        Parameter(
            help="heads, model, matrix, steps, lens, image, gradient, embeddings, similarity, positions, filters or "
            "importance; what suits the model by default"
        ),
    ] = None,
    layers: Annotated[tuple[int, ...] | None, Parameter(help="only these, numbered from 0")] = None,
    heads: Annotated[tuple[int, ...] | None, Parameter(help="only these, numbered from 0")] = None,
    queries: Annotated[str | None, Parameter(help="START:END, the tokens that look; of long texts the first")] = None,
    keys: Annotated[str | None, Parameter(help="START:END, the tokens that are looked at")] = None,
    out: Annotated[str | None, Parameter(help=".html, .svg, .png or .pdf; by default MODEL.VIEW.html here")] = None,
    show: Annotated[bool, Parameter(name="--open", help="open what was written")] = False,
    device: Device = None,
    decoding: Annotated[DecodingSettings, Parameter(name="*", show=False)] = DecodingSettings(),  # noqa: B008 (frozen)
    json: Json = False,
) -> None:
    """Look inside a model: attention, generated text step by step, what each layer would say, and more."""
    check_model(model)
    from heedful.views.inspect.request import Request, called, check_format

    if out is not None:
        check_format(out)
    if show and json and out is None:
        raise HeedfulError("--json writes no page to --open; name one with --out")
    texts = [sys.stdin.read().removesuffix("\n")] if inputs == ("-",) else list(inputs)
    given = decoding.given()
    request = Request.of(
        texts, view, target=target, layers=layers, heads=heads, queries=queries, keys=keys, decoding=given
    )
    if Path(model).is_dir():
        request = request.checked(model)

    from heedful.views.inspect.inspect import run_request

    look = run_request(model, request, device)
    if json:
        print(to_json({"model": model, "view": look.view, "title": look.title, **look.data}))
    if json and out is None:
        return
    path = look.save(out or f"{called(model)}.{look.view}.html")
    print(path, file=sys.stderr if json else sys.stdout)
    if show:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
