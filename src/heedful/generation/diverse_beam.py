"""Diverse beam search: groups of beams are penalised for choosing each other's tokens (Vijayakumar et al. 2018).

The groups of a sentence take turns at each step. ``diversity_penalty`` is subtracted from log p of a token for each
beam of an earlier group that has just chosen it; the penalty stays in the sum, as with every processor. Each group runs
a separate beam search, and the best beams of all groups are returned.

Shapes: B prompts, S sentences still searched, G groups, k beams of each, C candidates, V vocabulary, N columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from heedful.errors import HeedfulError
from heedful.generation.beam import NEVER, Beams, FinishedBeams, candidates, ended_beams, prompt_beams
from heedful.generation.method import Decoded, Method, MethodInput, as_steps
from heedful.generation.processors import process
from heedful.generation.token_choice import log_sum_exp

if TYPE_CHECKING:
    from heedful.generation.options import Options


def diverse(inputs: MethodInput) -> Decoded:
    """Returns the best ``num_return_sequences`` finished beams of all groups of each prompt: see ``beam_search``."""
    state, options, limits = inputs.reader, inputs.options, inputs.limits
    groups, count = options.num_beam_groups, options.num_beams // options.num_beam_groups
    logits = state.prefill()
    prompts = prompt_beams(inputs, logits)
    results = [FinishedBeams(options, count, prompts, logits) for _ in range(groups)]
    sentences, next_limit = torch.arange(len(limits), device=limits.device), int(limits.min())
    finished = [result.part(sentences) for result in results]
    beams, sums = [prompts] * groups, [logits.new_zeros(len(limits), 1)] * groups  # of each group

    for step in inputs.steps():
        column = inputs.width + step - 1
        model_log_p = logits - log_sum_exp(logits)
        read = beams if step > 1 else beams[:1]  # the prompt is read once for all groups
        ids = torch.stack([group.ids for group in read], 1)[..., :column]  # (S, G or 1, k, N)
        log_p = process(inputs.processors, ids.flatten(0, 2), model_log_p.clone())
        log_p, model_log_p = (x.unflatten(0, ids.shape[:3]).expand(-1, groups, -1, -1) for x in (log_p, model_log_p))
        times_chosen = log_p.new_zeros(len(limits), log_p.size(3))  # (S, V) at this step
        all_parents = []
        index = torch.arange(len(limits), device=limits.device)[:, None]
        for g in range(groups):
            penalised = (log_p[:, g] - options.diversity_penalty * times_chosen[:, None]).flatten(0, 1)
            new_sums, parents, tokens = candidates(penalised, sums[g], (1 + max(1, len(inputs.end_ids))) * count)
            token_log_p = model_log_p[index, g, parents, tokens] if inputs.with_logprobs else None
            extended = beams[g].extend(parents, tokens, column, token_log_p)
            ended = ended_beams(inputs, extended, tokens, limits, column)
            is_first = torch.arange(ended.size(1), device=ended.device) < count
            finished[g].add(new_sums, extended, ended & is_first, step)
            sums[g], indices = new_sums.masked_fill(ended, NEVER).topk(min(count, new_sums.size(1)))
            beams[g] = extended.select(indices)
            all_parents.append(parents.gather(1, indices))
            runs_on = (sums[g] > NEVER) & ~finished[g].done[:, None]
            times_chosen.scatter_add_(1, tokens.gather(1, indices), runs_on.to(times_chosen))
            finished[g].update_done(sums[g][:, 0], limits, step)

        done = torch.stack([group.done for group in finished]).all(0)
        live = len(done) - int(done.sum())
        if not live:
            break
        before = ids.size(1) * ids.size(2)  # rows of a sentence
        offsets = torch.arange(groups, device=limits.device)[:, None] * (before // groups)
        rows = (torch.stack(all_parents, 1) + offsets).flatten(1) + index * before
        if inputs.static is None and (2 * live <= len(done) or step == next_limit):
            for result, group in zip(results, finished, strict=True):
                result.put(group, sentences)
            remaining = (~done).nonzero()[:, 0]
            state.select(rows[remaining].flatten(), remaining)
            finished = [group.part(remaining) for group in finished]
            beams, sums = [group.sentences(remaining) for group in beams], [total[remaining] for total in sums]
            limits, sentences = limits[remaining], sentences[remaining]
            next_limit = int(limits.min())
        else:
            state.reorder(rows.flatten())
        logits = state.step(torch.stack([group.ids[:, :, column] for group in beams], 1).flatten())

    for result, group in zip(results, finished, strict=True):
        result.put(group, sentences)
    scores, indices = torch.cat([result.scores for result in results], 1).topk(options.num_return_sequences)
    beams_of_all = Beams(*(torch.cat(parts, 1) for parts in zip(*(result.beams for result in results), strict=True)))
    ids, log_p = (x.flatten(0, 1) for x in beams_of_all.select(indices))
    return ids, scores.flatten(), log_p


def _check(options: Options) -> None:
    beams, groups = options.num_beams, options.num_beam_groups
    if beams % groups:
        raise HeedfulError(f"num_beams={beams} is not a multiple of num_beam_groups={groups}; change one of them")
    if not options.diversity_penalty:
        raise HeedfulError(
            f"the groups of num_beam_groups={groups} would all choose the same tokens; give diversity_penalty above 0"
        )
    if options.force_words_ids:
        raise HeedfulError(f"force_words_ids and num_beam_groups={groups} cannot be used together; remove one of them")


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
