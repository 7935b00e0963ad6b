"""Mixture of experts: a router sends each token to a few of several feed-forward networks.

.. math:: y = \\sum_{e \\in top_k(p)} w_e \\, expert_e(x), \\quad p = softmax(W x), \\quad
   w_e = p_e \\; \\text{or} \\; p_e / \\sum_{i \\in top_k(p)} p_i

Shazeer et al. 2017; Fedus et al. 2021 (Switch Transformers), where k is 1; Jiang et al. 2024 (Mixtral), where the
weights sum to 1. Shapes: B sequences, T tokens, D model width, E experts, N tokens of a batch, P pairs of a token and
one of its experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.config import ExpertsConfig
from heedful.layers.feedforward import FeedForward


class Expert(FeedForward):
    """One of the feed-forward networks of ``Experts``; it is called with some tokens of a batch, (tokens, D)."""


class RouterLoad(NamedTuple):
    """Sums over the non-padding tokens of a call, of which the router's losses are made."""

    chosen: Tensor  # (E,) tokens that chose each expert
    probability: Tensor  # (E,) Σ p
    squared_log_z: Tensor  # () Σ (log Σ exp W x)²
    tokens: Tensor  # ()


class Router(nn.Linear):
    """Router: weights of the experts for each token, 0 for experts that do not compute it. In float32 or wider.

    Attributes:
        loads: while it is a list, each call in training adds its ``RouterLoad`` (``heedful.training.router_loss``).

    >>> import torch
    >>> weights = Router(8, ExpertsConfig(number=4, per_token=2))(torch.randn(2, 5, 8))
    >>> weights.shape, weights.count_nonzero().item()
    (torch.Size([2, 5, 4]), 20)
    """

    def __init__(self, dim: int, config: ExpertsConfig) -> None:
        super().__init__(dim, config.number, bias=config.router_bias)
        self.config = config
        self.loads: list[RouterLoad] | None = None

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Returns weights (B, T, E) for ``x`` (B, T, D); ``real`` (B, T) is False for padding.

        Padding takes no part of an expert's capacity and does not count in the losses.
        """
        dtype = torch.promote_types(x.dtype, torch.float32)
        with nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.to(dtype), self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))
        p = logits.softmax(-1)
        chosen = torch.zeros_like(p).scatter(-1, p.topk(self.config.per_token).indices, 1.0)
        weights = p * chosen
        if self.config.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        counted = chosen if real is None else chosen * real[..., None]
        if self.training:  # with ``loads`` or without, so that activations are recomputed as they were computed
            load = router_load(logits, p, counted, real)
            if self.loads is not None:
                self.loads.append(load)
        if self.config.capacity:
            weights = weights * (counted.cumsum(-2) <= self.config.capacity)
        return weights


def router_load(logits: Tensor, p: Tensor, chosen: Tensor, real: Tensor | None) -> RouterLoad:
    """Returns the sums over tokens of logits, probabilities and choices (B, T, E); ``chosen`` is 0 at padding."""
    counts = p.new_ones(p.shape[:-1]) if real is None else real.to(p.dtype)  # (B, T)
    tokens = tuple(range(p.ndim - 1))
    squared_log_z = (logits.logsumexp(-1).square() * counts).sum()
    return RouterLoad(chosen.sum(tokens), (p * counts[..., None]).sum(tokens), squared_log_z, counts.sum())


def over_chosen(experts: Sequence[nn.Module], x: Tensor, weights: Tensor, per_token: int) -> Tensor:
    """Returns Σ w_e expert_e(x) for ``x`` (N, D) and ``weights`` (N, E); each expert computes its tokens in one call.

    An expert without tokens is called too while gradients are computed: its gradients are zeros, which all ranks of
    data-parallel training need.
    """
    if weights.is_meta:  # no values: the tokens are spread evenly
        expert, token = weights.new_empty(2, len(x) * per_token, dtype=torch.long)
        sizes = [len(part) for part in token.tensor_split(len(experts))]
    else:
        expert, token = weights.detach().mT.nonzero().unbind(1)  # (P,) each, ordered by expert
        sizes = expert.bincount(minlength=len(experts)).tolist()
    groups = zip(experts, x[token].split(sizes), strict=True)
    needs_all = torch.is_grad_enabled() or not len(token)
    outputs = torch.cat([network(group) for network, group in groups if len(group) or needs_all])  # (P, D)
    weighted = outputs * weights[token, expert][:, None]
    return weighted.new_zeros(x.shape).index_add(0, token, weighted).to(x.dtype)


def over_all(experts: Sequence[nn.Module], x: Tensor, weights: Tensor) -> Tensor:
    """Computes ``over_chosen`` with every expert for every token, without sizes that depend on values."""
    weighted = [expert(x) * weights[:, e, None] for e, expert in enumerate(experts)]
    return torch.stack(weighted).sum(0).to(x.dtype)


class Experts(nn.Module):
    """Mixture of experts: the sum of the outputs of a token's experts, weighted by the router.

    Each expert computes the tokens that chose it. A graph that is traced or compiled cannot depend on the choice: there
    every expert computes every token.

    Args:
        dim: width of inputs and outputs.
        config: the router.
        experts: the networks, as many as the configuration says.

    >>> import torch
    >>> experts = Experts(8, ExpertsConfig(number=4, per_token=2), [Expert(8, 16) for _ in range(4)])
    >>> experts(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, dim: int, config: ExpertsConfig, experts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.config = config
        self.router = Router(dim, config)
        self.expert = nn.ModuleList(experts)

    def forward(self, x: Tensor, counted: Tensor | None = None) -> Tensor:
        """Maps ``x`` (B, T, D) to (B, T, D); ``counted`` (B, T) is False for padding; None: there is none."""
        if self.training and self.config.jitter:
            x = x * torch.empty_like(x).uniform_(1 - self.config.jitter, 1 + self.config.jitter)
        rows, weights = x.flatten(0, -2), self.router(x, counted).flatten(0, -2)
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            y = over_all(list(self.expert), rows, weights)
        else:
            y = over_chosen(list(self.expert), rows, weights, self.config.per_token)
        return y.view(x.shape)
