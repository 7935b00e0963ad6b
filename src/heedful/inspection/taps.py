"""Attaches readers and editors to a model's tensors, and detaches them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import nn

from heedful.inspection.attention_weights import Watched, Weights
from heedful.inspection.tensor_paths import Place
from heedful.layers.attention import Attention
from heedful.layers.probe import AttentionProbe, Edit, Hooked, Read, Tap

_hooked: WeakKeyDictionary[nn.Module, dict[str, Hooked]] = WeakKeyDictionary()
_looking: list[object] = []  # who wants compiled code to run as it is written
_stance = ExitStack()  # the compiler's, until the last of them has left


@contextmanager
def probing(part: Attention) -> Iterator[tuple[AttentionProbe, Weights]]:
    """Puts a probe before an attention's callable while it is in use: taps around it, weights beside it."""
    probe = part.probe
    if not isinstance(probe, AttentionProbe):
        part.probe = probe = AttentionProbe(Weights(part))
    weights = probe.attend
    assert isinstance(weights, Weights)
    try:
        yield probe, weights
    finally:
        if not weights and not any(probe.taps.values()):
            part.probe = None


@contextmanager
def _tap(place: Place) -> Iterator[Tap]:
    """The tap of a tensor; the same for all who ask while it lasts, so that changes come before what is seen."""
    if place.point.side == "inside":
        assert isinstance(place.part, Attention)
        with probing(place.part) as (probe, weights):
            yield (probe.taps | weights.taps)[place.point.name]
        return
    part, side = place.point.of(place.part), place.point.side
    hooks = _hooked.setdefault(part, {})
    if side not in hooks:
        hooks[side] = Hooked(part, side)
    try:
        yield hooks[side].tap
    finally:
        if not hooks[side].tap:
            hooks.pop(side).handle.remove()


@contextmanager
def reading(place: Place, read: Read) -> Iterator[None]:
    """``read`` sees the tensor, detached, at every call."""
    with _tap(place) as tap:
        tap.reads.append(read)
        try:
            yield
        finally:
            tap.reads.remove(read)


@contextmanager
def editing(place: Place, edit: Edit) -> Iterator[None]:
    """``edit`` changes the tensor, after those that were there before it."""
    with _tap(place) as tap:
        tap.edits.append(edit)
        try:
            yield
        finally:
            tap.edits.remove(edit)


@contextmanager
def watching(place: Place, watched: Watched) -> Iterator[None]:
    """Weights of an attention are computed beside it, and shown."""
    assert isinstance(place.part, Attention)
    with probing(place.part) as (_, weights):
        weights.watched.append(watched)
        try:
            yield
        finally:
            weights.watched.remove(watched)


@contextmanager
def eager() -> Iterator[None]:
    """Compiled code runs as it is written: it knows of no probe, and would pass it by in silence."""
    if "torch._dynamo" not in sys.modules:  # nothing was ever compiled, and it takes a second to import
        yield
        return
    here = object()
    if not _looking:
        _stance.enter_context(torch.compiler.set_stance("force_eager"))
    _looking.append(here)
    try:
        yield
    finally:
        _looking.remove(here)
        if not _looking:
            _stance.close()
