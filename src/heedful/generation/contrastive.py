"""Contrastive search: prefers probable tokens with hidden states unlike those before (Su et al. 2022).

Of the k most probable tokens v it takes the one with the largest (1 − α) p(v) − α max_j cos(h_v, h_j), where h_v is the
hidden state of v, for which the model reads each of the k, and h_j are those of all tokens before (an
encoder-decoder's: of its target).

Shapes: B prompts, R rows at work, k candidates of each, N columns of the history, V vocabulary, D model width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from heedful.errors import HeedfulError
from heedful.generation.decoder_state import NONE
from heedful.generation.method import Method, Run, Steps
from heedful.generation.processors import process
from heedful.generation.token_choice import log_sums, top

if TYPE_CHECKING:
    from heedful.generation.options import Options


def contrastive(run: Run) -> Steps:
    """A token a row a step; finished rows leave the batch when the live ones fall to half of it, or at their limit.

    Yields:
        (B,) each row's token of the step, −1 for none.

    Returns:
        ids (B, N) with what stood before, −1 for none; scores (B,) and log p of each new token (B, N), by the model.
    """
    source, alpha, width = run.source, run.options.penalty_alpha, run.width
    source.remember(None)
    pieces = list(source.opening())
    logits, real = source.logits(pieces[-1]), source.prompt != NONE
    source.tell(source.prompt[:, -1])
    before = torch.cat(
        [F.normalize(piece.float() if piece.dtype.itemsize < 4 else piece, dim=2) for piece in pieces], 1
    )
    before = before.where(real[:, :, None], 0.0)  # (R, N, D); of padding zeros, and its cosine is set aside below
    hidden = real
    rows, limits = torch.arange(len(real), device=real.device), run.limits
    ids = source.prompt.new_full((len(rows), width + run.most), NONE)
    ids[:, :width] = source.prompt
    said, lengths = logits.new_zeros(ids.shape), limits.clone()
    done = torch.zeros_like(rows, dtype=torch.bool)

    for step in range(1, run.most + 1):
        last = width + step
        scores = process(run.processors, ids[rows, : last - 1], logits.clone())
        p, candidates = top(scores.softmax(1), min(run.options.top_k, scores.size(1)))  # (R, k)
        k = candidates.size(1)
        source.select(torch.arange(len(rows), device=rows.device).repeat_interleave(k))
        stream = source.read(candidates.flatten()[:, None])  # (R · k, 1, D)
        following = source.logits(stream)  # of those not chosen, too: who watches is told of whole calls
        source.tell(candidates.flatten())
        states = F.normalize(stream[:, 0].to(before.dtype), dim=1).unflatten(0, (-1, k))  # (R, k, D)
        alike = (states @ before.mT).masked_fill(~hidden[:, None], -1.0).amax(2)  # (R, k)
        chosen = ((1 - alpha) * p - alpha * alike).where(p > 0, float("-inf")).argmax(1)  # (R,)

        tokens = candidates.gather(1, chosen[:, None])[:, 0]
        ids[rows, last - 1] = torch.where(done, NONE, tokens)
        yield ids[:, last - 1]
        log_p = (logits.gather(1, tokens[:, None]) - log_sums(logits))[:, 0]
        said[rows, last - 1] = torch.where(done, 0.0, log_p)
        ended = torch.isin(tokens, run.end) | (limits == step)
        if run.stops is not None:
            ended |= run.stops.ended(ids[rows, :last])
        lengths[rows] = torch.where(ended & ~done, step, lengths[rows])
        done = done | ended
        alive = len(done) - int(done.sum())
        if not alive:
            break
        kept = torch.arange(len(rows), device=rows.device)
        if 2 * alive <= len(done) or int(limits.min()) == step:
            kept = (~done).nonzero()[:, 0]
        places = kept * k + chosen[kept]
        source.select(places)
        logits = following[places]
        new = states[kept, chosen[kept]][:, None]
        before, hidden = torch.cat((before[kept], new), 1), F.pad(hidden[kept], (0, 1), value=True)
        rows, done, limits = rows[kept], done[kept], limits[kept]
    return ids, said.sum(1) / lengths, said


def _check(options: Options) -> None:
    if options.top_k < 2:
        raise HeedfulError(f"penalty_alpha={options.penalty_alpha} chooses among top_k tokens; give top_k of 2 or more")


CONTRASTIVE = Method(
    name="contrastive",
    steps=contrastive,
    options=("penalty_alpha", "top_k"),
    switches=("penalty_alpha",),
    remedy="penalty_alpha above 0 with top_k",
    check=_check,
    needs_whole_text="contrastive search",
    without="penalty_alpha=0",
)
