"""``varlen_attn`` in plain PyTorch, with the checks of its kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.layers.attention_kernels import explicit_attention


class Reference:
    """Stands in for ``heedful.kernels.varlen.varlen_attention``, and counts its calls.

    Tensors of a pretend GPU keep their numbers in ``held``; there nothing is read that a real host would wait for.
    """

    def __init__(self) -> None:
        self.calls = 0

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        starts_q: Tensor,
        starts_k: Tensor,
        longest_q: int,
        longest_k: int,
        scale: float,
        window: tuple[int, int],
    ) -> Tensor:
        self.calls += 1
        check(q, k, v, starts_q, starts_k)
        for starts, rows, longest in ((starts_q, q, longest_q), (starts_k, k, longest_k)):
            if not torch.compiler.is_compiling():
                check_starts(getattr(starts, "held", starts), len(rows), longest)
        (number_q, place_q, count_q), (number_k, place_k, count_k) = places(starts_q, len(q)), places(starts_k, len(k))
        aligned = place_q + (count_k[number_q] - count_q[number_q])  # bottom-right
        distance = place_k[None, :] - aligned[:, None]
        allowed = number_q[:, None] == number_k[None, :]
        before, after = window
        allowed = allowed & (distance >= -before) if before >= 0 else allowed
        allowed = allowed & (distance <= after) if after >= 0 else allowed
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        return explicit_attention(q, k, v, allowed[None, None], None, scale)[0].transpose(0, 1)


def check(q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor) -> None:
    """Fails where the kernel would refuse its arguments."""
    assert q.ndim == k.ndim == 3
    assert k.shape == v.shape
    assert q.size(2) == k.size(2) <= 256
    assert q.size(2) % 8 == 0
    assert q.size(1) % k.size(1) == 0
    assert q.dtype == k.dtype == v.dtype
    assert q.stride(2) == k.stride(2) == v.stride(2) == 1
    assert starts_q.dtype == starts_k.dtype == torch.int32
    assert starts_q.ndim == 1
    assert starts_q.shape == starts_k.shape
    assert starts_q.is_contiguous()
    assert starts_k.is_contiguous()


def check_starts(starts: Tensor, total: int, longest: int) -> None:
    """Fails unless every token is in a sequence: the kernel leaves others unwritten."""
    counts = starts.diff()
    assert starts[0] == 0
    assert starts[-1] == total
    assert (counts >= 0).all()
    assert (counts <= longest).all()
    assert longest > 1 or total == len(counts)


def places(starts: Tensor, total: int) -> tuple[Tensor, Tensor, Tensor]:
    """The number of each token's sequence, its place in it, and the number of tokens of each sequence."""
    tokens = torch.arange(total, device=starts.device)
    number = torch.searchsorted(starts[1:].long(), tokens, right=True)
    return number, tokens - starts.long()[number], starts.diff().long()
