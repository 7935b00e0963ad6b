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
from heedful.util.exact import exact_dtype

BLOCK = 128


def top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the ``count`` best of each row of ``scores`` (R, V), best first: values and tokens, (R, count) each.

    The best tokens are in the ``count`` blocks of the vocabulary with the highest maxima. Computing the maxima reads
    the scores once at memory speed; a plain ``topk`` or ``argmax`` over a large vocabulary is several times slower.
    """
    blocks = scores.size(1) // BLOCK
    if blocks <= 2 * count:
        values, tokens = scores.topk(count)
        return values, tokens
    blocked, rest = scores[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK)), scores[:, blocks * BLOCK :]
    chosen = blocked.amax(2).topk(count).indices  # (R, count)
    block_scores = blocked.gather(1, chosen[:, :, None].expand(-1, -1, BLOCK)).flatten(1)
    tokens = (chosen[:, :, None] * BLOCK + torch.arange(BLOCK, device=scores.device)).flatten(1)
    rest_tokens = torch.arange(blocks * BLOCK, scores.size(1), device=scores.device).expand(len(scores), -1)
    values, indices = torch.cat((block_scores, rest), 1).topk(count)
    return values, torch.cat((tokens, rest_tokens), 1).gather(1, indices)


def is_any(tokens: Tensor, ids: Tensor) -> Tensor:
    """Returns a mask of the ``tokens`` that are one of the few ``ids``; a GPU need not wait, as ``isin`` may.

    >>> is_any(torch.tensor([[5, 2], [2, 7]]), torch.tensor([2, 3]))
    tensor([[False,  True],
            [ True, False]])
    """
    return tokens == ids[0] if len(ids) == 1 else (tokens[..., None] == ids).any(-1)


def log_sum_exp(logits: Tensor) -> Tensor:
    """Returns log Σ exp of each row of ``logits`` (R, V): (R, 1). A few rows at a time, to save memory."""
    return torch.cat([rows.logsumexp(1, keepdim=True) for rows in logits.split(16)])


def choose(scores: Tensor, uniform: Tensor | None = None) -> Tensor:
    """Returns the best token of each row of ``scores`` (R, V), or one sampled with ``uniform`` numbers (R,) in [0, 1).

    The sampled token is the first at which the cumulative softmax of the scores exceeds the number. A row needs one
    number per token, whatever the other rows of the batch are.

    >>> choose(torch.tensor([[1.0, 3.0, 2.0]])), choose(torch.zeros(1, 4), torch.tensor([0.6]))
    (tensor([1]), tensor([2]))
    """
    if uniform is None:
        # a GPU finds the best of a large vocabulary in one kernel, and ``top`` takes fifteen
        return top(scores, 1)[1][:, 0] if scores.device.type == "cpu" else scores.argmax(1)
    cumulative = scores.softmax(1, dtype=exact_dtype(scores.device)).cumsum(1)  # float32 is short for a vocabulary
    target = uniform.to(cumulative.dtype)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=scores.size(1) - 1)


def uniform_numbers(given_ids: Tensor, copies: int, steps: int, seed: int | Sequence[int] | None) -> Tensor:
    """Returns uniform numbers for ``copies`` samples of ``steps`` tokens from each prompt (or source).

    A row's numbers depend on its seed, its tokens without padding, and the number of earlier rows with the same seed
    and tokens, not on its index in the batch, its padding or the other rows.

    Args:
        given_ids: (B, T) prompts or sources, −1 for padding.
        copies: samples of each.
        steps: numbers of each sample.
        seed: one seed for all prompts, or a list of B seeds; None uses torch's own random state.

    Returns:
        (B · copies, steps) in [0, 1), float64, or float32 on a device without it.
    """
    resolved = int(torch.randint(2**63 - 1, ())) if seed is None else seed
    seeds = [resolved] * len(given_ids) if isinstance(resolved, int) else resolved
    if len(seeds) != len(given_ids):
        raise HeedfulError(
            f"seed has {len(seeds)} numbers, but there are {len(given_ids)} prompts; give one seed for each"
        )
    repeats: Counter[tuple[bytes, int]] = Counter()
    rows = []
    for tokens, row_seed in zip(given_ids.cpu().unbind(0), seeds, strict=True):
        key = tokens[tokens >= 0].numpy().tobytes()
        for _ in range(copies):
            salt = repeats[key, row_seed].to_bytes(8, "little")
            digest = hashlib.blake2b(key, digest_size=8, person=b"draw", salt=salt)
            digest.update(row_seed.to_bytes(8, "little", signed=False))
            repeats[key, row_seed] += 1
            generator = torch.Generator().manual_seed(int.from_bytes(digest.digest(), "little"))
            # drawn one by one: fewer steps are the beginning of more steps
            rows.append(torch.rand(steps, generator=generator, dtype=torch.float64))
    dtype = exact_dtype(given_ids.device)
    below_one = 1 - torch.finfo(dtype).eps / 2  # rounding to float32 may give 1
    return torch.stack(rows).to(dtype).clamp(max=below_one).to(given_ids.device)
