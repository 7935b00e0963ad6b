"""Gradient × input: first-order contribution of each embedded input token to the model's output.

Shapes: B sequences, T tokens, D width, C what the head chooses from (vocabulary or classes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.config import DecoderConfig, EncoderDecoderConfig
from heedful.errors import HeedfulError
from heedful.heads import SpanFinder
from heedful.inspection.attention_maps import precise
from heedful.inspection.eval_mode import evaluating, plain
from heedful.inspection.intervene import intervene
from heedful.inspection.logit_lens import EVERY_TOKEN, ONCE, real_of
from heedful.models.base import Model

Place = int | Tensor


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """Contribution of each token to the explained number, positive or negative."""

    input: Tensor  # (B, T): of the ids, of an encoder-decoder's source, or of an image's tokens, prefix first
    target: Tensor | None  # (B, T): of an encoder-decoder's target
    output: Tensor  # (B,): the number that is explained


def gradient_x_input(
    model: Model,
    *inputs: Tensor,
    label: Place | None = None,
    query: Place | None = None,
    of: Callable[[Tensor], Tensor] | None = None,
    **named: Any,
) -> Attribution:
    """Σ_d e_td · ∂y/∂e_td for each token t, e its embedding before positions and y a logit of the model.

    It is the first-order change of y were the token's embedding a little larger, relative to its size. Shrikumar et al.
    2017, section 3; for text, Denil et al. 2014. Padding that is masked gets 0. The model keeps its weights, their
    gradients and its mode; dropout is off.

    Args:
        model: of any family, with any head.
        inputs: what the model is called with: ids, or source and target, or pixels.
        label: which logit: a token or class, or one for each sequence (B,); of a span, 0 start and 1 end. By default
            the largest.
        query: of a head that speaks at each token, at which one: a position, from the end where negative, or one for
            each sequence (B,). By default a language model's last real token, which chooses the next. A span's default
            is the best start plus the best end.
        of: instead of both, a function of the model's output that gives the number to explain, (B,).
        named: what the model is called with by name: ``mask=``, ``source_mask=`` ...

    Raises:
        HeedfulError: for a position or label that is not there, or where one must be chosen and is not.

    >>> import heedful
    >>> model, ids = heedful.create("gpt-micro", seed=0), torch.tensor([[1, 2, 3]])
    >>> gradient_x_input(model, ids, label=7).input.shape
    torch.Size([1, 3])
    """
    if of is not None and (label is not None or query is not None):
        raise HeedfulError("of chooses the number by itself; leave label and query out")
    model, embedded = plain(model), list[Tensor]()

    def leaf(old: Tensor) -> Tensor:
        embedded.append(old.detach().requires_grad_())
        return embedded[-1]

    real = real_of(model, *inputs, **named)
    with evaluating(model), torch.inference_mode(False), torch.enable_grad():
        inputs = tuple(map(_usable, inputs))
        named = {name: _usable(given) for name, given in named.items()}
        with intervene(model, "embedded", leaf):
            output = model(*inputs, **named)
        number = _explained(model, output, real, label, query) if of is None else of(output)
        if number.shape != output.shape[:1]:
            raise HeedfulError(
                f"of gave shape {tuple(number.shape)}; one number for each of {len(output)} sequences is wanted"
            )
        slopes = torch.autograd.grad(number.sum(), embedded)  # a sequence's number depends on its own tokens alone
    products = [(precise(slope) * x.detach()).sum(-1) for slope, x in zip(slopes, embedded, strict=True)]
    return Attribution(
        input=products[0],  # the source is embedded before the target, by the same table or not
        target=products[1] if len(products) > 1 else None,
        output=number.detach(),
    )


def _usable(given: Any) -> Any:
    """An input for autograd, which takes none that was made in inference mode."""
    return given.clone() if isinstance(given, Tensor) else given


def _explained(model: Model, output: Tensor, real: Tensor | None, label: Place | None, query: Place | None) -> Tensor:
    """The number (B,) that ``label`` and ``query`` choose of the head's output."""
    if isinstance(model.head, ONCE):
        if query is not None:
            raise HeedfulError("this head speaks once for the whole input; leave query out")
        return _labelled(output, label)
    if not isinstance(model.head, (*EVERY_TOKEN, SpanFinder)):
        raise HeedfulError("this head gives a vector, not logits; say with of= which number of it is to be explained")
    real = output.new_ones(output.shape[:2]).bool() if real is None else real.bool()
    if query is None and label is None and isinstance(model.head, SpanFinder):
        return output.masked_fill(~real[..., None], float("-inf")).amax(1).sum(-1)
    if query is None:
        if not isinstance(model.config, DecoderConfig | EncoderDecoderConfig):
            raise HeedfulError("this head speaks at each token; say with query= at which one it is to be explained")
        query = real.size(1) - 1 - real.flip(1).int().argmax(1)
    rows = _each(query, output, 1, "query", "token", lowest=-output.size(1))
    return _labelled(output.take_along_dim(rows[:, None, None], 1)[:, 0], label)


def _labelled(logits: Tensor, label: Place | None) -> Tensor:
    if label is None:
        return logits.amax(-1)
    return logits.take_along_dim(_each(label, logits, -1, "label", "label")[:, None], -1)[:, 0]


def _each(given: Place, output: Tensor, axis: int, name: str, what: str, lowest: int = 0) -> Tensor:
    """One number a sequence (B,), along ``axis`` of the output, counted from the start."""
    size = output.size(axis)
    numbers = torch.as_tensor(given, device=output.device)
    if numbers.shape not in ((), output.shape[:1]):
        raise HeedfulError(f"{name} has shape {tuple(numbers.shape)}; give one, or one for each of {len(output)}")
    for wrong in numbers[(numbers < lowest) | (numbers >= size)].flatten().tolist()[:1]:
        raise HeedfulError(f"{name} is {wrong}, but there are {size} {what}s; number them from 0")
    return numbers.expand(len(output)) % size
