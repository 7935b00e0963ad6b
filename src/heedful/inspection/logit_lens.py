"""Logit lens: predictions of a model from the stream after each block.

Shapes: L streams (the embedding and each block's), B sequences, T tokens, D width, V vocabulary or classes of the head.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.config import ImageHead, LanguageHead, MaskedHead, SequenceHead, TokenHead
from heedful.errors import HeedfulError
from heedful.inspection.attention_maps import precise
from heedful.inspection.eval_mode import evaluating, unwrap
from heedful.inspection.record import record
from heedful.models.base import Model
from heedful.stack import Stack

TOKEN_HEADS = (LanguageHead, MaskedHead, TokenHead)  # with an output at each token
INPUT_HEADS = (SequenceHead, ImageHead)  # with one output for the whole input
MAX_LOGITS = 2**25  # computed at a time: 128 MB in float32


@dataclass(frozen=True, kw_only=True)
class LogitLens:
    """Predictions of a model after each layer; the shapes have no T if the head has one output for the whole input."""

    layers: Sequence[str]  #: L names, "embedding", "block 0", "block 1", ...
    ids: Tensor  #: (L, B, T, top), the most probable tokens or classes, best first
    probabilities: Tensor  #: (L, B, T, top), of these tokens or classes
    divergence: Tensor  #: (L, B, T), KL(the model's prediction ‖ this layer's), in nats; 0 in the last row
    target_probability: Tensor | None = None  #: (L, B, T), of the given target; NaN without a target
    target_rank: Tensor | None = None  #: (L, B, T), 0 for the most probable; −1 without a target


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

    The stream after a block passes through the final norm of the stack (post-norm stacks have none) and the head with
    its scale and bias. The last layer is the model's own prediction. nostalgebraist 2020, "interpreting GPT: the logit
    lens"; Belrose et al. 2023 describe its limits.

    Args:
        model: a model of any family, with a head that returns logits; of an encoder-decoder the decoder is read.
        inputs: arguments of the model: ids, or source and target, or pixels.
        top: number of the most probable tokens or classes.
        target: the true ids (B, T) or classes (B,); a negative id is no target. The probabilities and ranks of
            the targets are returned.
        queries: positions; negative ones count from the end. Logits of other positions are not computed. ``target``
            must still have T columns.
        named: keyword arguments of the model: ``mask=``, ``source_mask=`` ...

    Raises:
        HeedfulError: for a head without logits, or a ``top``, target or position out of range.

    >>> import heedful
    >>> model = heedful.create("gpt-micro", seed=0)
    >>> lens = logit_lens(model, torch.tensor([[1, 2, 3]]), top=2)
    >>> lens.layers[:2], tuple(lens.ids.shape)
    (['embedding', 'block 0'], (5, 1, 3, 2))
    """
    model = unwrap(model)
    single = _has_single_output(model)
    if single and queries is not None:
        raise HeedfulError("this head has one output for the whole input; leave queries out")
    if target is not None and target.dim() != (1 if single else 2):
        expected = "(B,) classes" if single else "(B, T) ids"
        raise HeedfulError(f"the target has shape {tuple(target.shape)}; give {expected}")
    name, stack = head_stack(model)
    paths = [f"{name}.stream", *(f"{name}.block.{layer}.stream" for layer in range(len(stack.block)))]
    with evaluating(model), record(model, paths, queries=queries) as recorded:
        real = head_mask(model, *inputs, **named)
        model(*inputs, **named)
        streams = [recorded[path] for path in paths]
        if queries is not None:
            real, target = (None if value is None else value[:, list(queries)] for value in (real, target))
        parts = [slice(None)] if single else _parts(model, streams[0])
        results = [_predictions(model, streams, real, part, top, target) for part in parts]
    joined = results[0] if single else [torch.cat(tensors, 2) for tensors in zip(*results, strict=True)]
    ids, probabilities, divergence, *of_target = joined
    target_probability, target_rank = of_target or (None, None)
    return LogitLens(
        layers=["embedding", *(f"block {layer}" for layer in range(len(stack.block)))],
        ids=ids,
        probabilities=probabilities,
        divergence=divergence,
        target_probability=target_probability,
        target_rank=target_rank,
    )


def lens_logits(model: Model, stream: Tensor, real: Tensor | None = None) -> Tensor:
    """Returns head(norm(x)): the logits of ``model`` if ``stream`` (B, T, D) were the output of its last block.

    ``real`` (B, T) is the mask of the stream's tokens, where there is padding.

    >>> import heedful
    >>> model, ids = heedful.create("gpt-micro", seed=0).eval(), torch.tensor([[1, 2, 3]])
    >>> with heedful.record(model, "decoder.block.3.stream") as recorded:
    ...     logits = model(ids)
    >>> torch.equal(lens_logits(model, recorded["decoder.block.3.stream"]), logits)
    True
    """
    head: Any = model.head
    return head(head_stack(model)[1].norm(stream, real), real)


def head_stack(model: Model) -> tuple[str, Stack]:
    """Returns the stack whose output the head reads, the decoder if there is one, and before it its name."""
    name = "decoder" if hasattr(model, "decoder") else "encoder"
    return name, getattr(model, name)


def head_mask(model: Model, *inputs: Tensor, **named: Any) -> Tensor | None:
    """Returns the padding mask (B, T) of the tokens that the head reads, one of the arguments of the model."""
    try:
        arguments = inspect.signature(model.forward).bind(*inputs, **named).arguments
    except TypeError as error:
        raise HeedfulError(
            f"the model does not take these inputs: {error}; give the arguments of model.forward"
        ) from None
    return arguments.get("target_mask", arguments.get("mask"))


def _has_single_output(model: Model) -> bool:
    """Returns True for a head with one output for the whole input."""
    if not isinstance(model.config.head, TOKEN_HEADS + INPUT_HEADS):
        raise HeedfulError(
            f"a {model.config.head.kind!r} head returns no probabilities of tokens or classes; "
            "load the model with a head that does, such as head='language-model'"
        )
    return isinstance(model.config.head, INPUT_HEADS)


def _parts(model: Model, stream: Tensor) -> list[slice]:
    """Splits the T tokens into parts whose logits fit into ``MAX_LOGITS``."""
    outputs = lens_logits(model, stream[:1, :1]).size(-1)
    size = max(1, MAX_LOGITS // (len(stream) * outputs))
    return [slice(first, first + size) for first in range(0, stream.size(1), size)]


def _predictions(
    model: Model, streams: Sequence[Tensor], real: Tensor | None, part: slice, top: int, target: Tensor | None
) -> tuple[Tensor, ...]:
    """Returns ids, probabilities, divergence, and the target's probability and rank, for some tokens: (L, B, ...)."""
    mask = None if real is None else real[:, part]

    def log_p(stream: Tensor) -> Tensor:
        return precise(lens_logits(model, stream[:, part], mask)).log_softmax(-1)

    final = log_p(streams[-1])
    if not 1 <= top <= final.size(-1):
        raise HeedfulError(f"top is {top}; give a whole number from 1 to {final.size(-1)}, the outputs of the head")
    part_target = None if target is None else _checked(target[:, part] if final.dim() == 3 else target, final)
    rows: list[tuple[Tensor, ...]] = []
    for stream in streams:
        layer = log_p(stream)
        best = layer.topk(top)
        divergence = (final.exp() * (final - layer)).sum(-1).clamp(min=0)
        of_target = () if part_target is None else _of_target(layer, part_target)
        rows.append((best.indices, best.values.exp(), divergence, *of_target))
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def _checked(target: Tensor, log_p: Tensor) -> Tensor:
    """Returns the target on the device of ``log_p``; raises ``HeedfulError`` for another shape or an unknown id."""
    if target.shape != log_p.shape[:-1] or int(target.max()) >= log_p.size(-1):
        raise HeedfulError(
            f"the target has shape {tuple(target.shape)} and ids up to {int(target.max())}; give ids of shape "
            f"{tuple(log_p.shape[:-1])} below {log_p.size(-1)}"
        )
    return target.to(log_p.device)


def _of_target(log_p: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Returns probability and rank of the target."""
    target_log_p = log_p.gather(-1, target.clamp(min=0)[..., None])
    absent = target < 0
    probability = target_log_p.squeeze(-1).exp().masked_fill(absent, float("nan"))
    return probability, (log_p > target_log_p).sum(-1).masked_fill(absent, -1)
