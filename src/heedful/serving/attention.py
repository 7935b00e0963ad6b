"""The computation behind ``POST /v1/attention``: the views of ``heedful inspect``, for a model that is loaded already.

A look is one forward pass over an input and, if the model wrote a text, over that text: nothing is generated.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from heedful.errors import HeedfulError, lookup, nearest
from heedful.models import Model
from heedful.pretrained.folder import find
from heedful.text.chat_template import is_conversation
from heedful.views.inspect.attention_view import MAX_WEIGHTS
from heedful.views.inspect.catalogue import VIEWS, has_target, reads_images
from heedful.views.inspect.inspect import run_view
from heedful.views.inspect.model_input import Array
from heedful.views.inspect.opened_model import OpenedModel, opened_of
from heedful.views.inspect.prediction import task_for
from heedful.views.inspect.request import Request, check_request, model_name
from heedful.views.inspect.result import InspectionResult

MAX_DECIMALS = 1 << 18  # numbers of a JSON answer: 2 to 3 MB
MAX_PACKED = 3_000_000  # numbers of a JSON answer in base64: 8 MB
DECIMALS = 6
BACKWARD = ("gradient", "importance")  # views that need backward passes, up to one a target token
KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("view", "format", "encoding_format"), (str,)),
    **dict.fromkeys(("queries", "keys"), (str, list)),
}
FIELDS = ("input", "messages", "target", "layers", "heads", *KINDS)


class TooManyNumbers(HeedfulError):
    """More numbers than an answer may hold; the message names the selectors."""


def open_loaded(model: Model, source: str | Path) -> OpenedModel:
    """Returns a loaded model for ``look``, with the tokenizers or the preprocessing of its folder or Hub id."""
    return opened_of(model, find(source), model_name(source))


def look(opened: OpenedModel, data: Mapping[str, Any]) -> dict[str, Any] | str:
    """Returns a view of one input: its data (format "json"), its page ("html") or its figure ("svg").

    Equal to ``heedful.inspect`` with the same arguments. An array of the data is a list of numbers, rounded to six
    decimals, or with ``encoding_format`` "base64" a mapping ``{"shape", "dtype": "float16", "base64"}``.

    Args:
        opened: the model, of ``open_loaded``.
        data: the request. ``input`` is a text; a pair as a mapping, such as ``{"question", "context"}``; an image in
            base64; or a list of those for view "similarity". ``messages`` stands in place of it for a chat template.
            ``target`` is the text that the model wrote, or its token ids. ``view``, ``layers``, ``heads``, ``queries``
            and ``keys`` are those of ``heedful.inspect``.

    Raises:
        TooManyNumbers: the answer would have more than 262,144 numbers, 3,000,000 in base64, or 16,000,000 behind a
            page, which bounds its own size, or a figure.
        HeedfulError: an unknown field, a view that the model does not support or that needs more than a forward pass,
            or a request that ``heedful.inspect`` refuses.
    """
    for name in data:
        if name not in FIELDS:
            raise HeedfulError(f"{name} has no effect on attention; {nearest(name, FIELDS)}")
    given = {name: value for name, value in data.items() if value is not None}
    for name, kinds in KINDS.items():
        if not isinstance(given.get(name, ""), kinds):
            raise HeedfulError(f"{name} is {given[name]!r:.40}; give {'a text' if kinds == (str,) else 'START:END'}")
    form, encoding = given.pop("format", "json"), given.pop("encoding_format", None)
    lookup(dict.fromkeys(("json", "html", "svg")), form, "format")
    lookup(dict.fromkeys(("float", "base64")), encoding or "float", "encoding_format")
    if encoding is not None and form != "json":
        raise HeedfulError("encoding_format has no effect on a page or figure; leave it out, or give format json")
    request = check_request(opened.model.config, opened.name, _request(opened, given))
    _check_one_forward(opened, request)
    result = run_view(opened, request, task_for(opened) if form == "html" else None)
    if form != "json":
        _check_size(result, MAX_WEIGHTS)
        return result.html() if form == "html" else result.svg()
    is_packed = encoding == "base64"
    _check_size(result, MAX_PACKED if is_packed else MAX_DECIMALS)
    return {"view": result.view, "title": result.title} | _plain(result.data, _base64 if is_packed else _decimals)


# ---------------------------------------------------------------------------------------------------------- the request


def _request(opened: OpenedModel, given: dict[str, Any]) -> Request:
    """Returns the request for the views; no part of it names a file or an address."""
    item, messages = given.pop("input", None), given.pop("messages", None)
    if messages is not None and (item is not None or not is_conversation(messages)):
        raise HeedfulError('give input, or messages such as [{"role": "user", "content": "..."}]')
    prepare = _image if reads_images(opened.model.config) else _text
    inputs = messages or (list(map(prepare, item)) if isinstance(item, list) else item and prepare(item))
    return Request.of(inputs, given.pop("view", None), **given)


def _image(text: Any) -> bytes:
    """Returns the bytes of an image in base64, alone or as a ``data:`` address; refuses any other text."""
    try:
        return base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text, validate=True)
    except (AttributeError, ValueError):
        raise HeedfulError("the input is not an image in base64; send the bytes of a PNG or JPEG file so") from None


def _text(item: Any) -> str | tuple[str, ...]:
    """Returns a text, or a pair of texts from a mapping."""
    if isinstance(item, str):
        return item
    parts = tuple(item.values()) if isinstance(item, Mapping) else ()
    if not parts or not all(isinstance(part, str) for part in parts):
        raise HeedfulError(f'the input is {item!r:.40}; give a text, or two such as {{"text": ..., "text_pair": ...}}')
    return parts


def _check_one_forward(opened: OpenedModel, request: Request) -> None:
    """Raises ``HeedfulError`` for a view that needs backward passes, or that would generate a text first."""
    if request.view in BACKWARD:
        raise HeedfulError(f"view {request.view!r} needs backward passes; run heedful inspect, or choose another view")
    config, view = opened.model.config, VIEWS[request.view]
    generates = "target" in view.takes and (has_target(config) or request.view == "steps")
    if generates and request.target is None:
        raise HeedfulError(f"view {request.view!r} shows a generated text; generate it first, and give it as target")


# ----------------------------------------------------------------------------------------------------------- the answer


def _check_size(result: InspectionResult, most: int) -> None:
    count = _count(result.data)
    if count > most:
        larger = f", or encoding_format base64, which holds {MAX_PACKED:,}" if most < MAX_PACKED else ""
        raise TooManyNumbers(
            f"{count:,} numbers, but an answer holds at most {most:,}; choose fewer with layers, heads, queries or "
            f"keys{larger}"
        )


def _count(value: Any) -> int:
    if isinstance(value, Mapping | list | tuple):
        return sum(map(_count, value.values() if isinstance(value, Mapping) else value))
    return value.size if isinstance(value, np.ndarray) else int(isinstance(value, float))


def _plain(value: Any, convert: Callable[[Array], Any]) -> Any:
    """Returns data for JSON; ``convert`` writes arrays, other numbers are rounded."""
    if isinstance(value, np.ndarray):
        return convert(value)
    if isinstance(value, float):
        return round(value, DECIMALS)
    if isinstance(value, Mapping):
        return {name: _plain(item, convert) for name, item in value.items()}
    return [_plain(item, convert) for item in value] if isinstance(value, list | tuple) else value


def _decimals(array: Array) -> Any:
    return np.round(array.astype(np.float64), DECIMALS).tolist()


def _base64(array: Array) -> dict[str, Any]:
    codes = base64.b64encode(array.astype("<f2").tobytes()).decode("ascii")
    return {"shape": list(array.shape), "dtype": "float16", "base64": codes}
