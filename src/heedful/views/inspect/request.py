"""A request to inspect a model, checked against the model's configuration before torch is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from heedful.config import ModelConfig, StackConfig
from heedful.errors import HeedfulError, lookup
from heedful.text.chat_template import is_conversation
from heedful.views.inspect.catalogue import (
    OPTIONS,
    VIEWS,
    View,
    classifies,
    generates_text,
    has_target,
    reads_images,
    stack_names,
)

FORMATS = (".html", ".svg", ".png", ".pdf")
BROKEN = re.compile("[\ud800-\udfff]")  # lone surrogates, which stand for bytes that are not UTF-8
Span = tuple[int, int | None]  # first position, end; None: to the end of the text


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checked request: view, inputs and options; ``heedful.inspect`` documents the fields."""

    view: str = ""  # "": the model's default
    inputs: tuple[Any, ...] = ()
    target: str | tuple[int, ...] | None = None  # a text, or token ids as the model generated them
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    queries: Span | None = None
    keys: Span | None = None
    decoding: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        inputs: Any,
        view: str | None = None,
        *,
        target: str | Sequence[int] | None = None,
        layers: int | Sequence[int] | None = None,
        heads: int | Sequence[int] | None = None,
        queries: str | Sequence[int] | None = None,
        keys: str | Sequence[int] | None = None,
        **others: Any,
    ) -> Request:
        """Returns a request that is not yet checked against a model.

        If ``inputs`` is a list, each item is an input; a list of messages is one input.
        """
        if view is not None:
            check_view(view)
        is_list = isinstance(inputs, list) and not is_conversation(inputs)
        return cls(
            view=view or "",
            inputs=tuple(inputs) if is_list else () if inputs is None else (inputs,),
            target=target if target is None or isinstance(target, str) else _numbers(target, "target"),
            layers=_numbers(layers, "layers"),
            heads=_numbers(heads, "heads"),
            queries=parse_span(queries, "queries"),
            keys=parse_span(keys, "keys"),
            **others,
        )

    def checked(self, folder: str | Path) -> Request:
        """Returns the request, checked against the model in ``folder``, of an ensemble its first member.

        Reads only the configuration.
        """
        from heedful.pretrained.configuration import config_of
        from heedful.pretrained.folder import members_of

        read = next(iter(members_of(Path(folder))), Path(folder))
        return check_request(config_of(read), model_name(folder), self)

    def given(self) -> list[str]:
        """Returns the names of the options that were given."""
        return [name for name in OPTIONS if getattr(self, name) not in (None, {})]


def _numbers(numbers: int | Sequence[int] | None, name: str) -> tuple[int, ...] | None:
    if numbers is None:
        return None
    try:
        return tuple(index(number) for number in (numbers if isinstance(numbers, Iterable) else (numbers,)))
    except TypeError:
        raise HeedfulError(f"{name} {numbers!r} are not whole numbers; give one whole number, or a list") from None


def model_name(model: str | PathLike[str]) -> str:
    """Returns the name of a folder or Hub model for headings and file names.

    >>> model_name("org/name@main")
    'name'
    """
    path = Path(model)
    return path.resolve().name if path.is_dir() else Path(fspath(model).partition("@")[0]).name


def check_view(name: str) -> View:
    """Returns the view called ``name``; raises ``HeedfulError`` with the nearest name if there is none."""
    return lookup(VIEWS, name, "view")


def check_format(path: str) -> str:
    """Returns the suffix of a file to write, in lower case; raises ``HeedfulError`` for an unsupported suffix."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise HeedfulError(f"{path} ends in {suffix or 'no suffix'}; use a name that ends in {', '.join(FORMATS)}")
    if Path(path).is_dir():
        raise HeedfulError(f"{path} is a folder; name a file in it")
    return suffix


def parse_span(text: str | Sequence[int] | None, name: str) -> Span | None:
    """Returns a range of positions, given as ``"START:END"`` or as two numbers; ``HeedfulError`` for anything else.

    ``name`` is the option, for the message.

    >>> parse_span("128:256", "queries"), parse_span(":64", "keys"), parse_span("7:", "keys")
    ((128, 256), (0, 64), (7, None))
    """
    if text is None:
        return None
    if isinstance(text, str):
        match = re.fullmatch(r"(\d{0,18}):(\d{0,18})", text)
        first, end = (int(match[1] or 0), int(match[2]) if match[2] else None) if match else (1, 0)
    else:
        is_pair = len(text) == 2 and all(isinstance(number, int) and number >= 0 for number in text)
        first, end = (text[0], text[1]) if is_pair else (1, 0)
    if end is not None and first >= end:
        raise HeedfulError(f"{name} {text!r} is not a range; give START:END, counted from 0, such as 128:256")
    return first, end


def within(span: Span | None, length: int, name: str) -> tuple[int, int] | None:
    """Returns a range of positions cut to ``length`` positions; raises ``HeedfulError`` if it begins after them."""
    if span is None:
        return None
    first, end = span
    if first >= length:
        raise HeedfulError(
            f"{name} begin at {first}, but there are only {length} positions, counted from 0; give smaller numbers"
        )
    return first, length if end is None else min(end, length)


def check_request(config: ModelConfig, name: str, request: Request) -> Request:
    """Returns a request with its view; raises ``HeedfulError`` if the model does not support the view or an option.

    Without a view the request gets the default view of the model. ``config`` is the model's configuration, ``name`` its
    name for messages.
    """
    request = request if request.view else replace(request, view=default_view(config))
    view = check_view(request.view)
    if not view.has(config):
        supported = ", ".join(known for known, other in VIEWS.items() if other.has(config))
        raise HeedfulError(
            f"view {request.view!r} works only with {view.whose}; for {name} ({config.kind}), choose from {supported}"
        )
    _check_inputs(config, request, view)
    for option in request.given():
        if option not in view.takes:
            raise HeedfulError(f"{option} has no effect on view {request.view!r}; leave it out")
    if request.target is not None:
        _check_target(config, request, name)
    elif request.decoding and not generates_text(config):
        raise HeedfulError(
            f"{', '.join(request.decoding)} has no effect: {name} ({config.kind}) generates no text; leave it out"
        )
    elif request.decoding and not has_target(config) and request.view != "steps":
        raise HeedfulError(
            f"{', '.join(request.decoding)} has no effect: view {request.view!r} generates no text; leave it out"
        )
    elif "target" in view.takes and has_target(config) and not generates_text(config):
        raise HeedfulError(f"{name} has no language model head; give the decoder's input with --target TEXT")
    for kind, count in (("layer", "depth"), ("head", "heads")):
        _check_numbers(getattr(request, f"{kind}s"), kind, max(getattr(s, count) for s in stack_names(config).values()))
    return request


def _check_inputs(config: ModelConfig, request: Request, view: View) -> None:
    an_input, number = "an image" if reads_images(config) else "a text", len(request.inputs)
    if number < view.least:
        required = an_input if view.least == 1 else f"{view.least} inputs or more"
        raise HeedfulError(f"view {request.view!r} shows {view.shows}; give {required}, not {number or 'nothing'}")
    if view.most is not None and number > view.most:
        allowed = an_input if view.most else "no input"
        takes_pairs = view.most and not reads_images(config) and not generates_text(config)
        pair = ", or give a pair of texts as one input with a tab between" if takes_pairs else ""
        raise HeedfulError(f"view {request.view!r} takes {allowed}, not {number} inputs; remove the others{pair}")
    if any(item == "" for item in request.inputs if isinstance(item, str)):
        raise HeedfulError(f"the input is empty; give {an_input}")
    if not reads_images(config):  # names of image files may have any bytes
        texts = [text for item in request.inputs for text in (item if isinstance(item, tuple) else (item,))]
        for text in (*texts, request.target):
            if isinstance(text, str) and BROKEN.search(text):
                raise HeedfulError(f"the input {text!r:.60} is not UTF-8; convert it first")


def _check_target(config: ModelConfig, request: Request, name: str) -> None:
    explains = request.view in ("gradient", "importance") and classifies(config)
    if not (has_target(config) or explains or (generates_text(config) and request.view != "importance")):
        raise HeedfulError(f"target has no effect on {name} ({config.kind}) in this view; leave target out")
    if request.decoding:
        raise HeedfulError(
            f"{', '.join(request.decoding)}: with a target, no text is generated; remove the target or these options"
        )
    if not isinstance(request.target, str) and not writes_target(config, request):
        raise HeedfulError(f"the target is a list of token ids; for view {request.view!r} of {name}, give a text")
    if has_target(config) and len(request.inputs) > 1:
        raise HeedfulError(
            f"a target needs a single input, but there are {len(request.inputs)}; give one input, or no target"
        )
    if not request.target:
        raise HeedfulError("the target is empty; give its text, or leave it out")


def writes_target(config: ModelConfig, request: Request) -> bool:
    """Returns True if the target is a text of the model itself; a decoder's gradient view has the token to explain."""
    return has_target(config) or (generates_text(config) and request.view != "gradient")


def decoder_layers_and_heads(request: Request, decoder: StackConfig) -> tuple[list[int], list[int]]:
    """Returns the requested layers and heads of a decoder, by default all.

    Raises ``HeedfulError`` for those that only the encoder has.
    """
    layers, heads = list(request.layers or range(decoder.depth)), list(request.heads or range(decoder.heads))
    _check_numbers(layers, "layer", decoder.depth, "decoder")
    _check_numbers(heads, "head", decoder.heads, "decoder")
    return layers, heads


def _check_numbers(numbers: Sequence[int] | None, kind: str, count: int, owner: str = "model") -> None:
    for number in numbers or ():
        if not 0 <= number < count:
            raise HeedfulError(f"no {kind} {number}; the {owner}'s {kind}s are 0 to {count - 1}")
    if numbers is not None and not numbers:
        raise HeedfulError(f"{kind}s is empty; give numbers from 0 to {count - 1}, or leave it out")
    if numbers and len(set(numbers)) < len(numbers):
        raise HeedfulError(f"{kind}s {', '.join(map(str, numbers))} has duplicates; give each number once")


def default_view(config: ModelConfig) -> str:
    """Returns the default view of a model: image or words for models of images that have it, heads for all others."""
    return next((name for name in ("image", "words") if VIEWS[name].has(config)), "heads")
