"""Attaches readers and editors to a model's tensors, and detaches them.

A module's input or output is tapped by a hook; a tensor inside attention by an ``AttentionProbe``, which
``Attention.forward`` calls in place of ``attend`` (``heedful.inspection.probe``). The fused kernel keeps no attention
weights: ``ObservedAttention`` computes them again from the same q and k, only for the heads and queries of each
observer. If scores or weights are edited, it computes the output from the edited weights. Weights are in float32 at
least, as they are inside the kernel, whatever the model or autocast computes in.

Shapes: B sequences, H heads, K key-value heads, T queries, t queries of a block, S keys, E head size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.inspection.attention_maps import precise
from heedful.inspection.probe import AttentionProbe, Edit, Hooked, Read, Tap
from heedful.inspection.tensor_paths import HookPoint
from heedful.kernels.plan import KERNELS
from heedful.kernels.registered_attention import RegisteredAttention
from heedful.layers.attention import Attention
from heedful.layers.attention_kernels import Bias, attention_scores, repeat_shared_rows, weights_of
from heedful.layers.mask import Mask, mask_rows
from heedful.layers.relative import TERMS, ScoreTerms
from heedful.layers.row_layout import BATCH, add_value_rows

SharedInput = tuple[Tensor, Tensor, Mask, Bias]  # keys, values, mask and bias

_hooks: WeakKeyDictionary[nn.Module, dict[str, Hooked]] = WeakKeyDictionary()
_eager_users: list[object] = []  # contexts that need compiled code to run as it is written
_compiler_stance = ExitStack()  # set until the last of them has left


# ---------------------------------------------------------------------------------------------------- attention weights


class WeightsObserver(NamedTuple):
    """Observer of an attention's scores or weights: ``receive(weights (B, heads, t, S), first)`` at every call.

    Attributes:
        kind: "scores" (−∞ where masked), "pattern" (weights, before dropout), or one of ``TERMS`` of the scores.
        heads: numbers of heads, in this order; None is all.
        queries: given T, returns the positions of the observed queries, in order; None is all.
        block_size: queries at a time; None is all at once. ``first`` is the number of queries before the block.
        receive: called with each block.
    """

    kind: str
    heads: Sequence[int] | None
    queries: Callable[[int], Sequence[int]] | None
    block_size: int | None
    receive: Callable[[Tensor, int], None]

    def blocks(self, length: int) -> Iterator[tuple[int, Tensor]]:
        """Yields the positions of the observed queries, of ``length`` in all, in blocks.

        Before each block stands the number of observed queries before it.
        """
        queries = torch.as_tensor(list(range(length) if self.queries is None else self.queries(length)))
        size = self.block_size or max(1, len(queries))
        for first in range(0, len(queries), size):
            yield first, queries[first : first + size]


class ObservedAttention:
    """Attention function that shows the scores or weights to observers and lets edits change them."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        self.taps = {"scores": Tap(), "pattern": Tap()}
        self.observers: list[WeightsObserver] = []

    def __bool__(self) -> bool:
        """Returns True if anything observes or edits the weights."""
        return bool(self.observers or any(self.taps.values()))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias, scale: float, dropout: float) -> Tensor:
        """Returns the output of ``attend`` (B, H, T, E), or the values weighted by the edited weights."""
        shared = (k, v, mask, bias)
        k, v, mask, bias = repeat_shared_rows(q, k, v, mask, bias)
        cap = getattr(self.attention.attend, "cap", None)  # of ``SoftCappedAttention``
        if cap is None and self.attention.attend not in KERNELS["attend"]:  # no softmax
            return self._custom(q, shared, (k, v, mask, bias), scale, dropout)
        if not any(self.taps.values()):
            for observer in self.observers:
                _recompute(observer, q.detach(), k.detach(), mask, bias, scale, cap)
            return BATCH.attend(self.attention.attend, q, *shared, scale, dropout)
        scores = self.taps["scores"](_precise_scores(q, k, mask, bias, scale, cap))
        pattern = self.taps["pattern"](weights_of(scores))
        for observer in self.observers:
            if observer.kind in TERMS:
                _recompute(observer, q.detach(), k.detach(), mask, bias, scale, cap)
            else:
                _select(observer, (scores if observer.kind == "scores" else pattern).detach())
        return _mix(pattern, v, q.size(1), bias, dropout)

    def _custom(self, q: Tensor, shared: SharedInput, own: SharedInput, scale: float, dropout: float) -> Tensor:
        """Attends as a custom function does; its own weights are shown and edited, or ``HeedfulError`` is raised.

        ``shared`` are keys, values, mask and bias, ``own`` these for each row of queries.
        """
        attend = self.attention.attend
        if not self:  # queries, keys, values or the mixed values alone are observed
            return BATCH.attend(attend, q, *shared, scale, dropout)
        k, v, mask, bias = own
        if isinstance(bias, ScoreTerms):
            mask, bias = None, bias.bias(q, k, scale, mask)
            shared = (*shared[:2], mask, bias)
        name = getattr(attend, "__name__", type(attend).__name__)
        if self.taps["scores"] or any(observer.kind != "pattern" for observer in self.observers):
            raise HeedfulError(
                f"the attention {name!r} does not use softmax, so it has no scores; record or edit 'pattern' instead"
            )
        if not isinstance(attend, RegisteredAttention):
            raise HeedfulError(
                f"the attention function {name!r} is not registered, so its weights are not known; register it "
                "with its weights: heedful.register('attention', ...)"
            )
        weights = attend.weights(q, k, mask, bias, scale)
        output = BATCH.attend(attend, q, *shared, scale, dropout)
        if not dropout:
            _check_weights(name, output, _mix(weights, v, q.size(1), None, 0.0))
        pattern = self.taps["pattern"](weights)
        for observer in self.observers:
            _select(observer, pattern.detach())
        return _mix(pattern, v, q.size(1), None, dropout) if self.taps["pattern"] else output


def _check_weights(name: str, output: Tensor, mixed: Tensor) -> None:
    """Raises ``HeedfulError`` if the weights of a custom attention do not give its output."""
    tolerance = torch.finfo(output.dtype).eps ** 0.5  # far above rounding: 3e-4 in float32
    if not torch.allclose(output, mixed, rtol=tolerance, atol=tolerance, equal_nan=True):
        raise HeedfulError(
            f"the weights of the attention {name!r} do not give its output: weights @ v differs from it by up to "
            f"{(output - mixed).abs().max():.2g}; correct function.weights, or remove it"
        )


def _mix(pattern: Tensor, v: Tensor, heads: int, bias: Bias, dropout: float) -> Tensor:
    """Returns the values (B, K, S, E), mixed by weights (B, H, T, S): (B, H, T, E)."""
    weights = F.dropout(pattern, dropout)
    mixed = weights @ precise(v).repeat_interleave(heads // v.size(1), dim=1)
    return add_value_rows(mixed, weights, bias).to(v.dtype)


def _precise_scores(q: Tensor, k: Tensor, mask: Mask, bias: Bias, scale: float, cap: float | None) -> Tensor:
    with torch.autocast(q.device.type, enabled=False):
        return attention_scores(precise(q), precise(k), mask, bias, scale, cap)


@torch.inference_mode(False)  # recorded tensors may be used in autograd
@torch.no_grad()
def _recompute(
    observer: WeightsObserver, q: Tensor, k: Tensor, mask: Mask, bias: Bias, scale: float, cap: float | None
) -> None:
    """Computes the weights of the observer's heads and queries, block by block."""
    heads = torch.as_tensor(range(q.size(1)) if observer.heads is None else observer.heads, device=q.device)
    keys = precise(k[:, heads // (q.size(1) // k.size(1))])
    for first, queries in observer.blocks(q.size(2)):
        queries = queries.to(q.device)
        block_q = precise(q[:, heads[:, None], queries])
        if observer.kind in TERMS:
            assert isinstance(bias, ScoreTerms)  # the paths of terms exist for these alone
            with torch.autocast(q.device.type, enabled=False):
                observer.receive(bias.term(observer.kind, block_q, keys, scale, queries, heads), first)
            continue
        if isinstance(bias, ScoreTerms):
            with torch.autocast(q.device.type, enabled=False):
                block_bias: Tensor | None = bias.bias(block_q, keys, scale, mask, queries=queries, heads=heads)
            block_mask = None
        else:
            block_mask, block_bias = (mask_rows(x, queries, q.size(2), k.size(2), heads) for x in (mask, bias))
        scores = _precise_scores(block_q, keys, block_mask, block_bias, scale, cap)
        observer.receive(scores if observer.kind == "scores" else weights_of(scores), first)


def _select(observer: WeightsObserver, weights: Tensor) -> None:
    """Shows the observer its heads and queries of computed weights (B, H, T, S)."""
    heads = torch.as_tensor(range(weights.size(1)) if observer.heads is None else observer.heads, device=weights.device)
    for first, queries in observer.blocks(weights.size(2)):
        observer.receive(weights[:, heads[:, None], queries.to(weights.device)], first)


# ---------------------------------------------------------------------------------------------- attaching and detaching


@contextmanager
def _attention_probe(attention: Attention) -> Iterator[tuple[AttentionProbe, ObservedAttention]]:
    """Sets ``attention.probe`` while it is in use: taps around ``attend``, and the observed weights beside it.

    Raises ``HeedfulError`` if another probe is set.
    """
    if attention.probe is None:
        attention.probe = AttentionProbe(ObservedAttention(attention))
    probe = attention.probe
    if not isinstance(probe, AttentionProbe) or not isinstance(observed := probe.attend, ObservedAttention):
        raise HeedfulError(
            f"the attention has a probe of its own ({type(probe).__name__}), which would take no part; set "
            "attention.probe = None first"
        )
    try:
        yield probe, observed
    finally:
        if not observed and not any(probe.taps.values()):
            attention.probe = None


@contextmanager
def _tap(point: HookPoint) -> Iterator[Tap]:
    """Yields the tap of a tensor. All contexts share one tap, so that edits come before reads."""
    if point.kind.side == "inside":
        assert isinstance(point.module, Attention)
        if point.kind.name in TERMS:
            raise HeedfulError(f"{point.path} can be recorded, but not changed; change 'scores' instead")
        with _attention_probe(point.module) as (probe, observed):
            yield (probe.taps | observed.taps)[point.kind.name]
        return
    module, side = point.kind.module_of(point.module), point.kind.side
    hooks = _hooks.setdefault(module, {})
    if side not in hooks:
        hooks[side] = Hooked(module, side)
    try:
        yield hooks[side].tap
    finally:
        if not hooks[side].tap:
            hooks.pop(side).handle.remove()


@contextmanager
def reading(point: HookPoint, read: Read) -> Iterator[None]:
    """Context manager that calls ``read`` with the detached tensor of a hook point at every call of its module."""
    with _tap(point) as tap:
        tap.reads.append(read)
        try:
            yield
        finally:
            tap.reads.remove(read)


@contextmanager
def editing(point: HookPoint, edit: Edit) -> Iterator[None]:
    """Context manager that replaces the tensor of a hook point by ``edit(tensor)``, after earlier edits."""
    with _tap(point) as tap:
        tap.edits.append(edit)
        try:
            yield
        finally:
            tap.edits.remove(edit)


@contextmanager
def observing(point: HookPoint, observer: WeightsObserver) -> Iterator[None]:
    """Context manager that passes the scores or weights of an attention to an observer at every call."""
    assert isinstance(point.module, Attention)
    with _attention_probe(point.module) as (_, observed):
        observed.observers.append(observer)
        try:
            yield
        finally:
            observed.observers.remove(observer)


@contextmanager
def eager() -> Iterator[None]:
    """Context manager in which code compiled by ``torch.compile`` runs uncompiled, since it would skip the probes."""
    if "torch._dynamo" not in sys.modules:  # nothing was ever compiled, and it takes a second to import
        yield
        return
    user = object()
    if not _eager_users:
        _compiler_stance.enter_context(torch.compiler.set_stance("force_eager"))
    _eager_users.append(user)
    try:
        yield
    finally:
        _eager_users.remove(user)
        if not _eager_users:
            _compiler_stance.close()
