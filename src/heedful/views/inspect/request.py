"""A request to inspect a model, checked against the model's configuration before torch is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from heedful.config import ModelConfig
from heedful.errors import HeedfulError, lookup
from heedful.views.inspect.catalogue import OPTIONS, VIEWS, View, classifies, sees, stacks_of, translates, writes

FORMATS = (".html", ".svg", ".png", ".pdf")
BROKEN = re.compile("[\ud800-\udfff]")  # half characters: what bytes that are not UTF-8 come as
Span = tuple[int, int | None]  # from the first place to before the second; None: to the end


# -------------------------------------------------------------------------------------------------------- what is asked


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checked request: view, inputs and options; ``heedful.inspect`` documents the fields."""

    view: str = ""  # nothing: what suits the model
    inputs: tuple[Any, ...] = ()
    target: str | None = None
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    queries: Span | None = None
    keys: Span | None = None
    decoding: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        given: Any,
        view: str | None = None,
        *,
        layers: int | Sequence[int] | None = None,
        heads: int | Sequence[int] | None = None,
        queries: str | Sequence[int] | None = None,
        keys: str | Sequence[int] | None = None,
        **others: Any,
    ) -> Request:
        """Returns a request that is not yet checked against a model. Each item of a list is an input."""
        if view is not None:
            check_view(view)
        inputs = tuple(given) if isinstance(given, list) else () if given is None else (given,)
        return cls(
            view=view or "",
            inputs=inputs,
            layers=_numbers(layers, "layers"),
            heads=_numbers(heads, "heads"),
            queries=span(queries, "queries"),
            keys=span(keys, "keys"),
            **others,
        )

    def checked(self, folder: str | Path) -> Request:
        """Returns the same, known to suit the model in ``folder``; nothing but its configuration is read."""
        from heedful.pretrained.configuration import config_of

        return check_request(config_of(Path(folder)), called(folder), self)

    def given(self) -> list[str]:
        """Returns the names of the options that were given."""
        return [name for name in OPTIONS if getattr(self, name) not in (None, {})]


def _numbers(given: int | Sequence[int] | None, what: str) -> tuple[int, ...] | None:
    if given is None:
        return None
    try:
        return tuple(index(number) for number in (given if isinstance(given, Iterable) else (given,)))
    except TypeError:
        raise HeedfulError(f"{what} {given!r} are no whole numbers; give one, or a list of them") from None


def called(model: str | PathLike[str]) -> str:
    """Returns the name of a folder or Hub model for headings and file names.

    >>> called("org/name@main")
    'name'
    """
    path = Path(model)
    return path.resolve().name if path.is_dir() else Path(fspath(model).partition("@")[0]).name


def check_view(name: str) -> View:
    """Returns the view of a name; raises ``HeedfulError``, naming the nearest, where there is none."""
    return lookup(VIEWS, name, "view")


def check_format(path: str) -> str:
    """Returns the suffix of a file to write, in lower case; raises ``HeedfulError`` for one that is not written."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise HeedfulError(f"{path} ends in {suffix or 'no suffix'}; give it one of {', '.join(FORMATS)}")
    if Path(path).is_dir():
        raise HeedfulError(f"{path} is a folder; name a file in it")
    return suffix


def span(given: str | Sequence[int] | None, what: str) -> Span | None:
    """``"START:END"``, or two numbers, as a span; raises ``HeedfulError`` where it is none.

    >>> span("128:256", "queries"), span(":64", "keys"), span("7:", "keys")
    ((128, 256), (0, 64), (7, None))
    """
    if given is None:
        return None
    if isinstance(given, str):
        found = re.fullmatch(r"(\d*):(\d*)", given)
        first, end = (int(found[1] or 0), int(found[2]) if found[2] else None) if found else (1, 0)
    else:
        whole = len(given) == 2 and all(isinstance(number, int) and number >= 0 for number in given)
        first, end = (given[0], given[1]) if whole else (1, 0)
    if end is not None and first >= end:
        raise HeedfulError(f"{what} {given!r} are no places; give START:END, counted from 0, such as 128:256")
    return first, end


def within(span: Span | None, length: int, what: str) -> tuple[int, int] | None:
    """Returns a span of ``length`` places; raises ``HeedfulError`` where it begins after their end."""
    if span is None:
        return None
    first, end = span
    if first >= length:
        raise HeedfulError(f"{what} begin at {first}, but there are {length}, counted from 0; give smaller numbers")
    return first, length if end is None else min(end, length)


def check_request(config: ModelConfig, name: str, request: Request) -> Request:
    """The same where a model of ``config``, called ``name``, can show it; else a ``HeedfulError`` says what it can."""
    request = request if request.view else replace(request, view=default_view(config))
    view = check_view(request.view)
    if not view.has(config):
        there = ", ".join(known for known, other in VIEWS.items() if other.has(config))
        raise HeedfulError(f"view {request.view!r} is for {view.whose}; {name} ({config.kind}) has {there}")
    _check_inputs(config, request, view)
    for option in request.given():
        if option not in view.takes:
            raise HeedfulError(f"{option} has no effect on view {request.view!r}; leave it out")
    if request.target is not None:
        _check_target(config, request, name)
    elif request.decoding and not writes(config):
        raise HeedfulError(f"{', '.join(request.decoding)}: {name} ({config.kind}) generates nothing; leave it out")
    elif request.decoding and not translates(config) and request.view != "steps":
        raise HeedfulError(f"{', '.join(request.decoding)}: view {request.view!r} generates nothing here; leave it out")
    elif "target" in view.takes and translates(config) and not writes(config):
        raise HeedfulError(f"{name} has no head to write with; say what its decoder is to read with --target TEXT")
    for what, most in (("layer", "depth"), ("head", "heads")):
        _check_numbers(getattr(request, f"{what}s"), what, max(getattr(s, most) for s in stacks_of(config).values()))
    return request


def _check_inputs(config: ModelConfig, request: Request, view: View) -> None:
    what, number = "an image" if sees(config) else "a text", len(request.inputs)
    if number < view.least:
        wanted = what if view.least == 1 else f"{view.least} inputs or more"
        raise HeedfulError(f"view {request.view!r} shows {view.shows}; give {wanted}, not {number or 'nothing'}")
    if view.most is not None and number > view.most:
        wanted = what if view.most else "no input"
        takes_pairs = view.most and not sees(config) and not writes(config)
        pair = ", or give a pair of texts as one input with a tab between" if takes_pairs else ""
        raise HeedfulError(f"view {request.view!r} takes {wanted}, not {number} inputs; leave the others out{pair}")
    if any(one == "" for one in request.inputs if isinstance(one, str)):
        raise HeedfulError(f"the input is empty; give {what}")
    if not sees(config):  # whose inputs are names of files, in any bytes
        texts = [text for one in request.inputs for text in (one if isinstance(one, tuple) else (one,))]
        for text in (*texts, request.target):
            if isinstance(text, str) and BROKEN.search(text):
                raise HeedfulError(f"{text!r:.60} is not UTF-8; convert it first")


def _check_target(config: ModelConfig, request: Request, name: str) -> None:
    explains = request.view in ("gradient", "importance") and classifies(config)
    goes_on = request.view == "gradient" and writes(config)
    if not (translates(config) or explains or goes_on):
        raise HeedfulError(f"{name} ({config.kind}) has no target to be told here; leave target out")
    if request.decoding:
        raise HeedfulError(f"{', '.join(request.decoding)}: with a target nothing is generated; leave one out")
    if translates(config) and len(request.inputs) > 1:
        raise HeedfulError(f"one target for {len(request.inputs)} inputs; leave it out, or give one input")
    if not request.target:
        raise HeedfulError("the target is empty; give its text, or leave it out")


def _check_numbers(given: Sequence[int] | None, what: str, most: int) -> None:
    for number in given or ():
        if not 0 <= number < most:
            raise HeedfulError(f"{what} {number} is not there: the model's {what}s are 0 to {most - 1}")
    if given is not None and not given:
        raise HeedfulError(f"{what}s is empty; give numbers from 0 to {most - 1}, or leave it out")
    if given and len(set(given)) < len(given):
        raise HeedfulError(f"{what}s {', '.join(map(str, given))} name one twice; give each once")


def default_view(config: ModelConfig) -> str:
    """Returns the view of a model where nobody says: images for image classifiers, heads for all others."""
    return "image" if VIEWS["image"].has(config) else "heads"
