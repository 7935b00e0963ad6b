"""Diverse beam search: groups of beams are penalised for choosing each other's tokens (Vijayakumar et al. 2018).

The groups of a sentence take turns at each step. From log p of a token ``diversity_penalty`` is taken for each beam of
an earlier group that has just gone on with it; the penalty stays in the sum, as with every processor. Each group is a
beam search of its own, and the best of all groups are returned.

Shapes: B prompts, S sentences still searched, G groups, k beams of each, C candidates, V vocabulary, N columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from heedful.errors import HeedfulError
from heedful.generation.beam import NEVER, Finished, candidates, pick
from heedful.generation.decoder_state import NONE
from heedful.generation.method import Made, Method, Run, as_steps
from heedful.generation.processors import process
from heedful.generation.token_choice import log_sums

if TYPE_CHECKING:
    from heedful.generation.options import Options


def diverse(run: Run) -> Made:
    """The best ``num_return_sequences`` finished beams of all groups of each prompt: see ``beam_search``."""
    source, options, width, limits = run.source, run.options, run.width, run.limits
    groups, beams = options.num_beam_groups, options.num_beams // options.num_beam_groups
    logits = source.prefill()
    prompts = source.prompt.new_full((len(limits), 1, width + run.most), NONE)
    prompts[:, 0, :width] = source.prompt
    blank = logits.new_zeros(len(limits), 1, width + run.most if run.logprobs else 0)
    results = [Finished(options, beams, prompts, blank, logits) for _ in range(groups)]
    at_work = torch.arange(len(limits), device=limits.device)
    found = [one.part(at_work) for one in results]
    history, said = [prompts] * groups, [blank] * groups  # of each group (S, k, N)
    running = [logits.new_zeros(len(limits), 1)] * groups
    logits = logits.repeat_interleave(groups, 0)

    for step in range(1, run.most + 1):
        last = width + step
        own = logits - log_sums(logits)
        rows = torch.stack(history, 1)[..., : last - 1]  # (S, G, k, N)
        log_p = process(run.processors, rows.flatten(0, 2), own.clone()).unflatten(0, rows.shape[:3])
        own = own.unflatten(0, rows.shape[:3])
        chosen = log_p.new_zeros(len(limits), log_p.size(3))  # (S, V) how often at this step
        parents = []
        sentences = torch.arange(len(limits), device=limits.device)[:, None]
        for g in range(groups):
            less = log_p[:, g] - options.diversity_penalty * chosen[:, None]
            sums, parent, tokens = candidates(less.flatten(0, 1), running[g], (1 + max(1, len(run.end))) * beams)
            made, told = pick(history[g], parent), pick(said[g], parent)
            made[:, :, last - 1] = tokens
            if run.logprobs:
                told[:, :, last - 1] = own[sentences, g, parent, tokens]
            stopping = torch.isin(tokens, run.end) | (limits == step)[:, None]
            if run.stops is not None:
                stopping |= run.stops.ended(made[:, :, :last].flatten(0, 1)).view_as(stopping)
            first = torch.arange(stopping.size(1), device=limits.device) < beams
            found[g].add(sums, made, told, stopping & first, step)
            running[g], place = sums.masked_fill(stopping, NEVER).topk(min(beams, sums.size(1)))
            history[g], said[g] = pick(made, place), pick(told, place)
            parents.append(parent.gather(1, place))
            goes_on = (running[g] > NEVER) & ~found[g].done[:, None]
            chosen.scatter_add_(1, tokens.gather(1, place), goes_on.to(chosen))
            found[g].settle(running[g][:, 0], limits, step)

        done = torch.stack([one.done for one in found]).all(0)
        if bool(done.all()):
            break
        read = groups * rows.size(2) if step > 1 else 1  # rows of a sentence: the prompt was read once for all groups
        offsets = torch.arange(groups, device=limits.device)[:, None] * (read // groups)
        places = (torch.stack(parents, 1) + offsets).flatten(1) + sentences * read
        if 2 * int((~done).sum()) <= len(done) or int(limits.min()) == step:
            for g in range(groups):
                results[g].put(found[g], at_work)
            kept = (~done).nonzero()[:, 0]
            source.select(places[kept].flatten(), kept)
            found = [one.part(kept) for one in found]
            running, history, said = ([one[kept] for one in state] for state in (running, history, said))
            limits, at_work = limits[kept], at_work[kept]
        else:
            source.reorder(places.flatten())
        logits = source.step(torch.stack([one[:, :, last - 1] for one in history], 1).flatten())

    for g in range(groups):
        results[g].put(found[g], at_work)
    scores, best = torch.cat([one.scores for one in results], 1).topk(options.num_return_sequences)
    ids, said_best = (
        pick(torch.cat([getattr(one, name) for one in results], 1), best).flatten(0, 1) for name in ("ids", "said")
    )
    return ids, scores.flatten(), said_best


def _check(options: Options) -> None:
    beams, groups = options.num_beams, options.num_beam_groups
    if beams % groups:
        raise HeedfulError(f"num_beams={beams} cannot be divided in num_beam_groups={groups}; give a multiple of it")
    if not options.diversity_penalty:
        raise HeedfulError(f"num_beam_groups={groups} would all find the same; give diversity_penalty above 0")
    if options.force_words_ids:
        raise HeedfulError(f"force_words_ids cannot be searched for in num_beam_groups={groups}; leave one out")


DIVERSE_BEAM = Method(
    name="diverse beam",
    steps=as_steps(diverse),
    options=("num_beam_groups", "diversity_penalty"),
    switches=("num_beam_groups",),
    extends=("beam",),
    remedy="num_beams",
    check=_check,
    streams=False,
)
