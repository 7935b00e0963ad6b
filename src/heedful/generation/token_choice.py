"""Token choice for each row: the most probable token, or one sampled by its probability.

Shapes: B prompts, R rows, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from heedful.errors import HeedfulError

BLOCK = 128


def top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` best of each row of ``scores`` (R, V), best first: values and tokens, (R, count) each.

    They lie in the ``count`` blocks of the vocabulary with the highest maxima. Finding those reads the scores once at
    the speed of memory; a plain ``topk`` or ``argmax`` over a large vocabulary is several times slower.
    """
    blocks = scores.size(1) // BLOCK
    if blocks <= 2 * count:
        values, tokens = scores.topk(count)
        return values, tokens
    whole, rest = scores[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK)), scores[:, blocks * BLOCK :]
    chosen = whole.amax(2).topk(count).indices  # (R, count)
    near = whole.gather(1, chosen[:, :, None].expand(-1, -1, BLOCK)).flatten(1)
    tokens = (chosen[:, :, None] * BLOCK + torch.arange(BLOCK, device=scores.device)).flatten(1)
    others = torch.arange(blocks * BLOCK, scores.size(1), device=scores.device).expand(len(scores), -1)
    values, place = torch.cat((near, rest), 1).topk(count)
    return values, torch.cat((tokens, others), 1).gather(1, place)


def log_sums(logits: Tensor) -> Tensor:
    """log Σ exp of each row of ``logits`` (R, V): (R, 1). A few rows at a time: no second tensor of that size."""
    return torch.cat([rows.logsumexp(1, keepdim=True) for rows in logits.split(16)])


def choose(scores: Tensor, draw: Tensor | None = None) -> Tensor:
    """The best token of each row of ``scores`` (R, V); or, with ``draw`` (R,) uniform in [0, 1), one by probability.

    The token drawn is the first at which the cumulated softmax of the scores exceeds the number drawn, so that a row
    needs one number a token, whatever stands beside it in the batch.

    >>> choose(torch.tensor([[1.0, 3.0, 2.0]])), choose(torch.zeros(1, 4), torch.tensor([0.6]))
    (tensor([1]), tensor([2]))
    """
    if draw is None:
        return top(scores, 1)[1][:, 0]
    # a sum over a whole vocabulary wants float64, which Apple's GPUs do not have
    exact = torch.float32 if scores.device.type == "mps" else torch.float64
    reached = scores.softmax(1, dtype=exact).cumsum(1)
    aim = draw.to(exact)[:, None] * reached[:, -1:]
    return torch.searchsorted(reached, aim, right=True)[:, 0].clamp(max=scores.size(1) - 1)


def draws(given: Tensor, copies: int, steps: int, seed: int | Sequence[int] | None) -> Tensor:
    """Uniform numbers for ``copies`` samples of ``steps`` tokens from each prompt (or source): (B · copies, steps).

    A row's numbers depend on the seed (its own of a list of B), its own real tokens, and on how many rows before it
    have the same of both: not on its place, its padding or its neighbours. ``given`` is (B, T) with −1 for padding.
    """
    drawn = int(torch.randint(2**63 - 1, ())) if seed is None else seed
    bases = [drawn] * len(given) if isinstance(drawn, int) else drawn
    if len(bases) != len(given):
        raise HeedfulError(f"seed has {len(bases)} numbers, but there are {len(given)} prompts; give one for each")
    met: Counter[tuple[bytes, int]] = Counter()
    rows = []
    for tokens, base in zip(given.cpu().unbind(0), bases, strict=True):
        key = tokens[tokens >= 0].numpy().tobytes()
        for _ in range(copies):
            digest = hashlib.blake2b(key, digest_size=8, person=b"draw", salt=met[key, base].to_bytes(8, "little"))
            digest.update(base.to_bytes(8, "little", signed=False))
            met[key, base] += 1
            own = torch.Generator().manual_seed(int.from_bytes(digest.digest(), "little"))
            rows.append(torch.rand(steps, generator=own, dtype=torch.float64))
    return torch.stack(rows).to(given.device)
