"""Logit lens: predictions of a model if its stream ended after each block.

Shapes: L streams (the embedding and each block's), B sequences, T tokens, D width, V what the head chooses from.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.heads import ImageClassifier, LanguageModel, MaskedLanguageModel, SequenceClassifier, TokenClassifier
from heedful.inspection.attention_maps import precise
from heedful.inspection.eval_mode import evaluating, plain
from heedful.inspection.record import record
from heedful.models.base import Model
from heedful.stack import Stack

EVERY_TOKEN = (LanguageModel, MaskedLanguageModel, TokenClassifier)  # heads that speak at each token
ONCE = (SequenceClassifier, ImageClassifier)  # heads that speak once, for all of them
AT_ONCE = 2**25  # logits computed at a time: 128 MB in float32


@dataclass(frozen=True, kw_only=True)
class LogitLens:
    """Predictions after each layer. T is missing from every shape where the head has one output for the whole input."""

    layers: Sequence[str]  # L names: "embedding", "block 0", "block 1", ...
    ids: Tensor  # (L, B, T, top): the likeliest tokens or classes, best first
    probabilities: Tensor  # (L, B, T, top): theirs
    divergence: Tensor  # (L, B, T): KL(what the model says ‖ what this layer says), in nats; 0 in the last row
    target_probability: Tensor | None = None  # (L, B, T): of the target that was given; NaN where there is none
    target_rank: Tensor | None = None  # (L, B, T): 0 where the target is likeliest; −1 where there is none


@torch.no_grad()
def logit_lens(
    model: Model,
    *inputs: Tensor,
    top: int = 5,
    target: Tensor | None = None,
    queries: Sequence[int] | None = None,
    **named: Any,
) -> LogitLens:
    """Applies the model's own head to the stream after each block: softmax(head(norm(x_l))).

    The stream is read where a block hands it on, through the final norm of the stack (none in post-norm, where blocks
    end with theirs) and the head, its scale and bias included. The last layer is the model's own answer. nostalgebraist
    2020, "interpreting GPT: the logit lens"; Belrose et al. 2023 on what it misses.

    Args:
        model: of any family with a head of logits; of an encoder-decoder the decoder is read.
        inputs: what the model is called with: ids, or source and target, or pixels.
        top: how many of the likeliest to keep.
        target: ids (B, T) that really came (or classes (B,)); negative: none. Their probabilities and ranks are kept.
        queries: only these positions, from the end where negative; the others' logits are never computed. ``target``
            stays that of all T.
        named: what the model is called with by name: ``mask=``, ``source_mask=`` ...

    Raises:
        HeedfulError: where the head has no logits, or for a ``top``, target or position that does not fit.

    >>> import heedful
    >>> model = heedful.create("gpt-micro", seed=0)
    >>> lens = logit_lens(model, torch.tensor([[1, 2, 3]]), top=2)
    >>> lens.layers[:2], tuple(lens.ids.shape)
    (['embedding', 'block 0'], (5, 1, 3, 2))
    """
    model = plain(model)
    once = _speaks_once(model)
    if once and queries is not None:
        raise HeedfulError("this head speaks once for the whole input; leave queries out")
    if target is not None and target.dim() != (1 if once else 2):
        raise HeedfulError(f"a target of shape {tuple(target.shape)}; give {'(B,) classes' if once else '(B, T) ids'}")
    name, stack = stack_of(model)
    paths = [f"{name}.stream", *(f"{name}.block.{layer}.stream" for layer in range(len(stack.block)))]
    with evaluating(model), record(model, paths, queries=queries) as seen:
        real = real_of(model, *inputs, **named)
        model(*inputs, **named)
        streams = [seen[path] for path in paths]
        if queries is not None:
            real, target = (None if given is None else given[:, list(queries)] for given in (real, target))
        parts = [slice(None)] if once else _parts(model, streams[0])
        said = [_read(model, streams, real, part, top, target) for part in parts]
    ids, probabilities, divergence, *own = said[0] if once else (torch.cat(each, 2) for each in zip(*said, strict=True))
    chance, rank = own or (None, None)
    return LogitLens(
        layers=["embedding", *(f"block {layer}" for layer in range(len(stack.block)))],
        ids=ids,
        probabilities=probabilities,
        divergence=divergence,
        target_probability=chance,
        target_rank=rank,
    )


def lens_logits(model: Model, stream: Tensor, real: Tensor | None = None) -> Tensor:
    """head(norm(x)): what ``model`` would say, were ``stream`` (B, T, D) the one that left its last block.

    ``real`` (B, T), where there is padding, is the mask of the tokens of the stream.

    >>> import heedful
    >>> model, ids = heedful.create("gpt-micro", seed=0).eval(), torch.tensor([[1, 2, 3]])
    >>> with heedful.record(model, "decoder.block.3.stream") as seen:
    ...     logits = model(ids)
    >>> torch.equal(lens_logits(model, seen["decoder.block.3.stream"]), logits)
    True
    """
    head: Any = model.head
    return head(stack_of(model)[1].norm(stream, real), real)


def stack_of(model: Model) -> tuple[str, Stack]:
    """The stack that the head stands on, with its name: the decoder where there is one."""
    name = "decoder" if hasattr(model, "decoder") else "encoder"
    return name, getattr(model, name)


def real_of(model: Model, *inputs: Tensor, **named: Any) -> Tensor | None:
    """The mask (B, T) of the tokens that the head sees, from what the model is called with."""
    try:
        given = inspect.signature(model.forward).bind(*inputs, **named).arguments
    except TypeError as error:
        raise HeedfulError(f"the model cannot be called so: {error}") from None
    return given.get("target_mask", given.get("mask"))


def _speaks_once(model: Model) -> bool:
    if not isinstance(model.head, EVERY_TOKEN + ONCE):
        raise HeedfulError(
            f"a {model.config.head.kind!r} head gives no probabilities of tokens or classes; "
            "load the model with a head that does, such as head='language-model'"
        )
    return isinstance(model.head, ONCE)


def _parts(model: Model, stream: Tensor) -> list[slice]:
    """The T tokens in parts whose logits fit in memory."""
    head: Any = model.head
    size = max(1, AT_ONCE // (len(stream) * head.output.out_features))
    return [slice(first, first + size) for first in range(0, stream.size(1), size)]


def _read(
    model: Model, streams: Sequence[Tensor], real: Tensor | None, part: slice, top: int, target: Tensor | None
) -> tuple[Tensor, ...]:
    """Ids, probabilities, divergence, and of the target probability and rank, of some of the tokens: (L, B, ...)."""
    mask = None if real is None else real[:, part]

    def say(stream: Tensor) -> Tensor:
        return precise(lens_logits(model, stream[:, part], mask)).log_softmax(-1)

    final = say(streams[-1])
    if not 1 <= top <= final.size(-1):
        raise HeedfulError(f"top is {top}; give a whole number from 1 to {final.size(-1)}, what the head chooses from")
    wanted = None if target is None else _fitting(target[:, part] if final.dim() == 3 else target, final)
    rows: list[tuple[Tensor, ...]] = []
    for stream in streams:
        log = say(stream)
        best = log.topk(top)
        apart = (final.exp() * (final - log)).sum(-1).clamp(min=0)
        rows.append((best.indices, best.values.exp(), apart, *(() if wanted is None else _of_target(log, wanted))))
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def _fitting(target: Tensor, said: Tensor) -> Tensor:
    if target.shape != said.shape[:-1] or int(target.max()) >= said.size(-1):
        raise HeedfulError(
            f"a target of shape {tuple(target.shape)} up to {int(target.max())}; give ids of shape "
            f"{tuple(said.shape[:-1])} below {said.size(-1)}"
        )
    return target.to(said.device)


def _of_target(log: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    own = log.gather(-1, target.clamp(min=0)[..., None])
    none = target < 0
    chance = own.squeeze(-1).exp().masked_fill(none, float("nan"))
    return chance, (log > own).sum(-1).masked_fill(none, -1)
