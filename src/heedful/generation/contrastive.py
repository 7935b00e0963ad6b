"""Contrastive search: prefers probable tokens whose hidden states differ from earlier ones (Su et al. 2022).

Of the k most probable tokens v it takes the token with the largest (1 − α) p(v) − α max_j cos(h_v, h_j). The model
reads each of the k tokens to compute its hidden state h_v; h_j are the hidden states of all earlier tokens (for an
encoder-decoder: of the target).

Shapes: B prompts, R running rows, k candidates of each, N columns of the history, V vocabulary, D model width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from heedful.errors import HeedfulError
from heedful.generation.decoded_rows import DecodedRows
from heedful.generation.decoder_state import NONE
from heedful.generation.method import Method, MethodInput, Steps
from heedful.generation.processors import process
from heedful.generation.token_choice import top

if TYPE_CHECKING:
    from heedful.generation.options import Options


def contrastive(inputs: MethodInput) -> Steps:
    """Decodes one token per row and step; finished rows leave the batch when half of it is finished, or at their limit.

    Yields:
        (B,) each row's token of the step, −1 for a finished row.

    Returns:
        ids (B, N) with the prompt, −1 for no token; scores (B,) and log p of each new token (B, N), by the model.
    """
    state, alpha = inputs.state, inputs.options.penalty_alpha
    state.make_cache(None)
    chunks = list(state.prefill_hidden())
    logits, is_token = state.last_logits(chunks[-1]), state.prompt != NONE
    state.notify(state.prompt[:, -1])
    units = torch.cat([F.normalize(x.float() if x.dtype.itemsize < 4 else x, dim=2) for x in chunks], 1)
    units = units.where(is_token[:, :, None], 0.0)  # (R, N, D) hidden states of length 1; padding is masked below
    rows = DecodedRows(inputs, state.prompt, inputs.limits, logits)

    for _ in inputs.steps():
        scores = process(inputs.processors, rows.history, logits.clone())
        p, candidates = top(scores.softmax(1), min(inputs.options.top_k, scores.size(1)))  # (R, k)
        k = candidates.size(1)
        state.select(torch.arange(len(candidates), device=candidates.device).repeat_interleave(k))
        hidden = state.read(candidates.flatten()[:, None])  # (R · k, 1, D)
        next_logits = state.last_logits(hidden)  # of those not chosen too: observers see whole calls
        state.notify(candidates.flatten())
        new_units = F.normalize(hidden[:, 0].to(units.dtype), dim=1).unflatten(0, (-1, k))  # (R, k, D)
        similarity = (new_units @ units.mT).masked_fill(~is_token[:, None], -1.0).amax(2)  # (R, k)
        chosen = ((1 - alpha) * p - alpha * similarity).where(p > 0, float("-inf")).argmax(1)  # (R,)

        tokens = candidates.gather(1, chosen[:, None])[:, 0]
        yield rows.append(tokens)
        rows.score(logits, tokens)
        if not rows.end(tokens):
            break
        remaining = rows.drop_ended()
        if remaining is None:
            remaining = torch.arange(len(tokens), device=tokens.device)
        indices = remaining * k + chosen[remaining]
        state.select(indices)
        logits = next_logits[indices]
        new_unit = new_units[remaining, chosen[remaining]][:, None]
        units, is_token = torch.cat((units[remaining], new_unit), 1), F.pad(is_token[remaining], (0, 1), value=True)
    return rows.ids, rows.log_p.sum(1) / rows.lengths, rows.log_p


def _check(options: Options) -> None:
    if options.top_k < 2:
        raise HeedfulError(f"penalty_alpha={options.penalty_alpha} chooses among top_k tokens; give top_k=2 or more")


CONTRASTIVE = Method(
    name="contrastive",
    steps=contrastive,
    options=("penalty_alpha", "top_k"),
    switches=("penalty_alpha",),
    remedy="penalty_alpha above 0 with top_k",
    check=_check,
    is_static=False,
    needs_whole_text="contrastive search",
    alternative="penalty_alpha=0",
)
