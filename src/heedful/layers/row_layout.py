"""Layouts of the tokens of queries and keys in memory, and attention in each of them by a kernel for batches.

Here is the layout of a batch. Those without padding are in ``heedful.kernels.unpadded`` and ``heedful.kernels.varlen``.

Shapes: B sequences, T queries, S keys, H query heads, K key-value heads (K divides H), E head size.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from heedful.layers.attention_kernels import Attend, Bias, attention_weights, is_registered
from heedful.layers.mask import Mask
from heedful.layers.relative import STORED, ScoreTerms, block_sizes


class AttendWithTerms(Protocol):
    """As ``Attend``, but the bias may be ``ScoreTerms``: a layout with its kernel, or a probe."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias, scale: float, dropout: float) -> Tensor:
        """Returns softmax(scale · q kᵀ + bias) v over the keys that ``mask`` allows."""


class RowLayout(Protocol):
    """Layout of the tokens of queries and keys in memory."""

    def attend(
        self, kernel: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias, scale: float, dropout: float
    ) -> Tensor:
        """Returns attention by a kernel for batches, in the layout of ``q``."""


class BatchRows:
    """Layout of a batch: every sequence has T queries and S keys; q (B, H, T, E), k and v (B, K, S, E)."""

    def attend(
        self, kernel: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias, scale: float, dropout: float
    ) -> Tensor:
        """Calls the kernel; with ``ScoreTerms``, for some sequences and some of their queries at a time, with all keys.

        The terms of such a part become a bias tensor of its scores. So every kernel that takes a bias takes positions
        that depend on the queries and keys, and the scores of all queries are never in memory at once. For the backward
        pass the scores of up to ``STORED`` queries are stored; those of more queries are computed again.
        """
        if not isinstance(bias, ScoreTerms):
            return kernel(q, k, v, mask, bias, scale, dropout)
        sequences, queries = block_sizes(q, k)
        attend = partial(attend_block, kernel, mask=mask, terms=bias, scale=scale, dropout=dropout)
        if (sequences, queries) == (q.size(0), q.size(2)) or is_registered(kernel):
            return attend(q, k, v, sequences=slice(None), queries=slice(None))
        if torch.is_grad_enabled() and q.size(2) > STORED:
            attend = partial(checkpoint, attend, use_reentrant=False)
        outputs = []
        parts = zip(*(x.split(sequences) for x in (q, k, v)), strict=True)  # ``split``: the gradient is one ``cat``
        for first_row, (row_q, row_k, row_v) in zip(range(0, q.size(0), sequences), parts, strict=True):
            rows = slice(first_row, first_row + sequences)
            blocks = []
            for first, block_q in zip(range(0, q.size(2), queries), row_q.split(queries, 2), strict=True):
                block = slice(first, first + queries)
                blocks.append(attend(block_q, row_k, row_v, sequences=rows, queries=block))
            outputs.append(torch.cat(blocks, 2))
        return torch.cat(outputs)


BATCH = BatchRows()


def attend_block(
    kernel: Attend,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask,
    terms: ScoreTerms,
    scale: float,
    dropout: float,
    sequences: slice,
    queries: slice,
) -> Tensor:
    """Returns attention of a block (b, H, t, E): the ``queries`` q of the ``sequences``, whose keys are k.

    ``mask`` and ``terms`` are those of the whole batch. A scheme with value rows (Shaw) needs the weights, so that
    these are written out in place of the kernel.
    """
    bias = terms.bias(q, k, scale, mask, sequences=sequences, queries=queries)  # −∞ where the mask forbids attention
    if terms.terms.value_rows is None:
        return kernel(q, k, v, None, bias, scale, dropout)
    weights = F.dropout(attention_weights(q, k, None, bias, scale), dropout)
    y = weights @ v.repeat_interleave(q.size(1) // v.size(1), dim=1)
    return y + terms.values(weights, sequences, queries)


def add_value_rows(y: Tensor, weights: Tensor, bias: Bias) -> Tensor:
    """Adds the value rows of ``ScoreTerms``, if they have any, to mixed values ``y`` (B, H, T, E): for probes."""
    return y + bias.values(weights) if isinstance(bias, ScoreTerms) and bias.terms.value_rows is not None else y
