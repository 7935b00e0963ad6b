"""Gradient × input: first-order contribution of each embedded input token to the model's output.

Shapes: B sequences, T tokens, D width, C vocabulary or classes of the head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.config import DecoderConfig, EncoderDecoderConfig, SpanHead
from heedful.errors import HeedfulError
from heedful.inspection.attention_maps import precise
from heedful.inspection.eval_mode import evaluating, unwrap
from heedful.inspection.intervene import intervene
from heedful.inspection.logit_lens import INPUT_HEADS, TOKEN_HEADS, head_mask
from heedful.models.base import Model

Index = int | Tensor


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """Contribution of each token to an explained number, such as a logit; it is positive or negative."""

    input: Tensor  #: (B, T), the ids, an encoder-decoder's source, or an image's tokens, prefix first
    target: Tensor | None  #: (B, T), an encoder-decoder's target
    output: Tensor  #: (B,), the explained number


def gradient_x_input(
    model: Model,
    *inputs: Tensor,
    label: Index | None = None,
    query: Index | None = None,
    of: Callable[[Tensor], Tensor] | None = None,
    **named: Any,
) -> Attribution:
    """Returns gradient × input for each token t: Σ_d e_td · ∂y/∂e_td.

    y is a logit of the model, and e_t the embedding of token t before positions are added. To first order, y grows by ε
    times this number if the embedding is multiplied by 1 + ε. Shrikumar et al. 2017, section 3; for text, Denil et al.
    2014. Masked padding gets 0. Dropout is off; the model's weights, their gradients and its mode do not change.

    Args:
        model: a model of any family, with any head.
        inputs: arguments of the model: ids, or source and target, or pixels.
        label: index of the logit: a token id or class, or one index for each sequence (B,); for a span, 0 is the
            start and 1 the end. By default the largest logit.
        query: position of the logit, for a head with an output at each token; negative counts from the end; or one
            position for each sequence (B,). By default a language model's last non-padding token, which predicts the
            next token. The default for a span is the best start plus the best end.
        of: a function of the model's output that returns the number to explain, (B,), instead of ``label`` and
            ``query``.
        named: keyword arguments of the model: ``mask=``, ``source_mask=`` ...

    Raises:
        HeedfulError: for a position or label out of range, or a missing position that has no default.

    >>> import heedful
    >>> model, ids = heedful.create("gpt-micro", seed=0), torch.tensor([[1, 2, 3]])
    >>> gradient_x_input(model, ids, label=7).input.shape
    torch.Size([1, 3])
    """
    if of is not None and (label is not None or query is not None):
        raise HeedfulError("of= already chooses the number to explain; leave label and query out")
    model, embedded = unwrap(model), list[Tensor]()

    def leaf(old: Tensor) -> Tensor:
        embedded.append(old.detach().requires_grad_())
        return embedded[-1]

    real = head_mask(model, *inputs, **named)
    with evaluating(model), torch.inference_mode(False), torch.enable_grad():
        inputs = tuple(map(_differentiable, inputs))
        named = {name: _differentiable(value) for name, value in named.items()}
        with intervene(model, "embedded", leaf):
            output = model(*inputs, **named)
        number = _explained(model, output, real, label, query) if of is None else of(output)
        if number.shape != output.shape[:1]:
            raise HeedfulError(
                f"of returned shape {tuple(number.shape)}; return one number for each of {len(output)} sequences"
            )
        gradients = torch.autograd.grad(number.sum(), embedded)  # a sequence's number depends on its own tokens alone
    products = [(precise(slope) * x.detach()).sum(-1) for slope, x in zip(gradients, embedded, strict=True)]
    return Attribution(
        input=products[0],  # the source is embedded before the target, by the same table or not
        target=products[1] if len(products) > 1 else None,
        output=number.detach(),
    )


def _differentiable(value: Any) -> Any:
    """Returns a copy of a tensor: autograd accepts no tensor that was created in inference mode."""
    return value.clone() if isinstance(value, Tensor) else value


def _explained(model: Model, output: Tensor, real: Tensor | None, label: Index | None, query: Index | None) -> Tensor:
    """Returns the explained logit (B,) of the head's output, chosen by ``label`` and ``query``."""
    if isinstance(model.config.head, INPUT_HEADS):
        if query is not None:
            raise HeedfulError("this head has one output for the whole input; leave query out")
        return _logit(output, label)
    if not isinstance(model.config.head, (*TOKEN_HEADS, SpanHead)):
        raise HeedfulError("this head returns a vector, not logits; give of=, which returns the number to explain")
    real = output.new_ones(output.shape[:2]).bool() if real is None else real.bool()
    if query is None and label is None and isinstance(model.config.head, SpanHead):
        return output.masked_fill(~real[..., None], float("-inf")).amax(1).sum(-1)
    if query is None:
        if not isinstance(model.config, DecoderConfig | EncoderDecoderConfig):
            raise HeedfulError("this head has an output at each token; give query=, the position to explain")
        query = real.size(1) - 1 - real.flip(1).int().argmax(1)
    rows = _index(query, output, 1, "query", "token", lowest=-output.size(1))
    return _logit(output.take_along_dim(rows[:, None, None], 1)[:, 0], label)


def _logit(logits: Tensor, label: Index | None) -> Tensor:
    if label is None:
        return logits.amax(-1)
    return logits.take_along_dim(_index(label, logits, -1, "label", "label")[:, None], -1)[:, 0]


def _index(index: Index, output: Tensor, axis: int, name: str, noun: str, lowest: int = 0) -> Tensor:
    """Returns one index for each sequence (B,), along ``axis`` of the output, counted from the start."""
    size = output.size(axis)
    numbers = torch.as_tensor(index, device=output.device)
    if numbers.shape not in ((), output.shape[:1]):
        raise HeedfulError(
            f"{name} has shape {tuple(numbers.shape)}; give one number, or {len(output)}, one for each sequence"
        )
    for wrong in numbers[(numbers < lowest) | (numbers >= size)].flatten().tolist()[:1]:
        raise HeedfulError(f"{name} is {wrong}, but there are {size} {noun}s; give a number from 0 to {size - 1}")
    return numbers.expand(len(output)) % size
