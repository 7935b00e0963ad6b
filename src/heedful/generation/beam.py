"""Beam search over all sentences of a batch at once.

A finished beam scores Σ log p / length^length_penalty: the end token counts, the prompt does not. A sentence
stops independently of the others, and its result is the same alone and in any batch.

Shapes: B prompts, S sentences still searched, K beams, C candidates, V vocabulary, N columns of ids.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from heedful.generation.decoder_state import NONE
from heedful.generation.method import Decoded, Method, MethodInput, as_steps
from heedful.generation.processors import process
from heedful.generation.token_choice import is_any, log_sum_exp, top

if TYPE_CHECKING:
    from heedful.generation.options import Options

NEVER = float("-inf")


class Beams(NamedTuple):
    """Beams of each sentence.

    Attributes:
        ids: (S, K, N) prompt and new tokens, ``NONE`` where there is no token.
        log_p: (S, K, N) the model's own log p of each new token; (S, K, 0) without ``with_logprobs``.
    """

    ids: Tensor
    log_p: Tensor

    def select(self, indices: Tensor) -> Beams:
        """Returns the beams with the ``indices`` (S, k) in each sentence."""
        ids, log_p, index = self.ids, self.log_p, indices[:, :, None]
        index_of_ids, index_of_log_p = index.expand(-1, -1, ids.size(2)), index.expand(-1, -1, log_p.size(2))
        return Beams(ids.gather(1, index_of_ids), log_p.gather(1, index_of_log_p))

    def extend(self, parents: Tensor, tokens: Tensor, column: int, token_log_p: Tensor | None) -> Beams:
        """Returns the beams with the indices ``parents`` (S, C), extended at ``column`` by ``tokens`` (S, C) and their
        log p.
        """
        extended = self.select(parents)
        extended.ids[:, :, column] = tokens
        if token_log_p is not None:
            extended.log_p[:, :, column] = token_log_p
        return extended

    def join(self, other: Beams) -> Beams:
        """Returns the beams of ``self`` and ``other``, joined for each sentence."""
        return Beams(torch.cat((self.ids, other.ids), 1), torch.cat((self.log_p, other.log_p), 1))

    def sentences(self, index: Tensor) -> Beams:
        """Returns the beams of the sentences ``index`` (S',)."""
        return Beams(self.ids[index], self.log_p[index])


def prompt_beams(inputs: MethodInput, logits: Tensor) -> Beams:
    """Returns one beam for each sentence: its prompt, and columns for all new tokens."""
    prompt = inputs.state.prompt
    ids = prompt.new_full((len(prompt), 1, inputs.width + inputs.max_steps), NONE)
    ids[:, 0, : inputs.width] = prompt
    return Beams(ids, logits.new_zeros(len(prompt), 1, ids.size(2) if inputs.with_logprobs else 0))


class FinishedBeams:
    """The ``count`` best finished beams of each sentence; at first copies of ``prompts``, without a score.

    Attributes:
        beams: K beams per sentence, best first.
        scores: (S, K); −∞ until K are finished.
        done: (S,) True if the search of the sentence is over.
    """

    def __init__(self, options: Options, count: int, prompts: Beams, logits: Tensor) -> None:
        self.options = options
        self.beams = Beams(*(x.repeat(1, count, 1) for x in prompts))
        self.scores = logits.new_full((len(prompts.ids), count), NEVER)
        self.done = torch.zeros(len(prompts.ids), dtype=torch.bool, device=prompts.ids.device)

    def add(self, sums: Tensor, beams: Beams, ended: Tensor, step: int) -> None:
        """Adds the ``beams`` that ``ended`` (S, C) marks: ``sums`` (S, C) is their Σ log p, ``step`` their number of
        new tokens.
        """
        scores = (sums / step**self.options.length_penalty).masked_fill(~ended | self.done[:, None], NEVER)
        self.scores, indices = torch.cat((self.scores, scores), 1).topk(self.scores.size(1))
        self.beams = self.beams.join(beams).select(indices)

    def update_done(self, best_sum: Tensor, limits: Tensor, step: int) -> None:
        """Marks sentences as done whose best running beam, with Σ log p ``best_sum`` (S,), cannot become one of the
        best finished beams (``early_stopping``).
        """
        worst, penalty = self.scores[:, -1], self.options.length_penalty
        if self.options.early_stopping is True:
            best_score = torch.where(worst > NEVER, NEVER, best_sum)
        else:
            length = limits if self.options.early_stopping == "never" and penalty > 0 else step
            best_score = best_sum / length**penalty
        self.done = self.done | (best_score <= worst)

    def put(self, other: FinishedBeams, sentences: Tensor) -> None:
        """Writes the results of ``other`` to ``sentences`` (S',)."""
        self.beams.ids[sentences], self.beams.log_p[sentences] = other.beams
        self.scores[sentences] = other.scores

    def part(self, sentences: Tensor) -> FinishedBeams:
        """Returns the results of only the ``sentences`` (S',)."""
        part = copy(self)
        part.beams = self.beams.sentences(sentences)
        part.scores, part.done = self.scores[sentences], self.done[sentences]
        return part

    def best(self, count: int) -> Decoded:
        """Returns the ``count`` best finished beams of each sentence."""
        ids, log_p = (x[:, :count].flatten(0, 1) for x in self.beams)
        return ids, self.scores[:, :count].flatten(), log_p


def candidates(
    scores: Tensor, sums: Tensor, count: int, log_total: Tensor | float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the ``count`` best continuations of each sentence, best first: sums of log p, parents and tokens (S, C).

    ``scores`` − ``log_total`` are log p, (S · K, V) and (S · K, 1); ``sums`` (S, K) are those of the beams so far. The
    best continuations of a sentence are among the best of each beam, so sums are computed only for these.
    """
    values, tokens = top(scores, min(count, scores.size(1)))  # (S · K, c)
    totals = (values - log_total + sums.view(-1, 1)).view(len(sums), -1)  # (S, K · c)
    best, indices = totals.topk(min(count, totals.size(1)))
    return best, indices // values.size(1), tokens.view(len(sums), -1).gather(1, indices)


def ended_beams(inputs: MethodInput, beams: Beams, tokens: Tensor, limits: Tensor, column: int) -> Tensor:
    """Returns a mask (S, C) of the beams that end with their last ``tokens`` (S, C), at ``column``: by end id, limit
    or stop string.
    """
    ended = is_any(tokens, inputs.end_ids) | (limits == column + 1 - inputs.width)[:, None]
    if inputs.stop_strings is not None:
        ended |= inputs.stop_strings.ended(beams.ids[:, :, : column + 1].flatten(0, 1)).view_as(ended)
    return ended


def order_by_parent(parents: Tensor) -> Tensor:
    """Returns a permutation (S, K) of the new beams that puts one child of each parent at its parent's index.

    Further children take the indices of beams without children. ``parents`` (S, K) has the parent of each new beam.

    >>> parents = torch.tensor([[2, 0, 2]])  # new beam 2 goes to index 1: old beam 1 has no child
    >>> parents.gather(1, order_by_parent(parents))
    tensor([[0, 2, 2]])
    """
    is_later_child = (parents[:, :, None] == parents[:, None]).tril(-1).any(2)
    childless = torch.ones_like(parents).scatter(1, parents, 0).argsort(dim=1, descending=True, stable=True)
    indices = childless.gather(1, (is_later_child.cumsum(1) - 1).clamp(min=0)).where(is_later_child, parents)
    return indices.argsort(1)


def beam_search(inputs: MethodInput) -> Decoded:
    """Returns the best ``num_return_sequences`` finished beams of each prompt.

    A step takes the (1 + end tokens) · K best continuations of a sentence, so that at least K of them are unfinished.
    A finished continuation counts only if it is among the first K. A sentence is done when K beams are finished and
    ``early_stopping`` allows it, or when no beam can continue. Stop strings may end more continuations than end
    tokens do; then fewer than K beams continue, as in transformers.

    The options are ``num_beams``, ``num_return_sequences``, ``length_penalty`` and ``early_stopping``; processors are
    called with log-probabilities. Where fewer beams than ``num_return_sequences`` exist, the others score −∞.
    """
    state, limits, count = inputs.reader, inputs.limits, inputs.options.num_beams
    logits = state.prefill()
    beams, sums = prompt_beams(inputs, logits), logits.new_zeros(len(limits), 1)
    sentences, next_limit = torch.arange(len(limits), device=limits.device), int(limits.min())
    results = FinishedBeams(inputs.options, count, beams, logits)
    finished = results.part(sentences)

    for step in inputs.steps():
        column = inputs.width + step - 1
        new_sums, parents, tokens, token_log_p = _continuations(inputs, beams.ids[:, :, :column], sums, logits)
        extended = beams.extend(parents, tokens, column, token_log_p)
        ended = ended_beams(inputs, extended, tokens, limits, column)
        is_first = torch.arange(ended.size(1), device=ended.device) < count
        finished.add(new_sums, extended, ended & is_first, step)

        # the first K others run on, each where its parent stood, so that little moves
        before = sums.size(1)
        sums, indices = new_sums.masked_fill(ended, NEVER).topk(min(count, new_sums.size(1)))
        if sums.size(1) == before:
            order = order_by_parent(parents.gather(1, indices))
            sums, indices = sums.gather(1, order), indices.gather(1, order)
        beams, parents = extended.select(indices), parents.gather(1, indices)
        finished.update_done(sums.amax(1), limits, step)

        live = len(limits) - int(finished.done.sum())
        if not live:
            break
        rows = parents + before * torch.arange(len(parents), device=parents.device)[:, None]
        if inputs.static is None and (2 * live <= len(limits) or step == next_limit):
            results.put(finished, sentences)
            remaining = (~finished.done).nonzero()[:, 0]
            state.select(rows[remaining].flatten(), remaining)
            finished, beams, sums = finished.part(remaining), beams.sentences(remaining), sums[remaining]
            limits, sentences = limits[remaining], sentences[remaining]
            next_limit = int(limits.min())
        else:
            state.reorder(rows.flatten())
        logits = state.step(beams.ids[:, :, column].flatten())

    results.put(finished, sentences)
    return results.best(inputs.options.num_return_sequences)


def _continuations(
    inputs: MethodInput, ids: Tensor, sums: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Returns the ``candidates`` of beams with ``ids`` (S, K, N), and log p of their tokens if requested."""
    log_total, processors = log_sum_exp(logits), inputs.processors
    count = (1 + max(1, len(inputs.end_ids))) * inputs.options.num_beams
    model_logits = logits.clone() if inputs.with_logprobs and processors else logits
    if processors:  # in place: a second tensor of that size would be of fresh memory at each step
        log_p = process(processors, ids.flatten(0, 1), logits.sub_(log_total))
        new_sums, parents, tokens = candidates(log_p, sums, count)
    else:
        new_sums, parents, tokens = candidates(logits, sums, count, log_total)
    if not inputs.with_logprobs:
        return new_sums, parents, tokens, None
    sentences = torch.arange(len(tokens), device=tokens.device)[:, None]
    token_logits = model_logits.unflatten(0, (len(tokens), -1))[sentences, parents, tokens]
    return new_sums, parents, tokens, token_logits - log_total.view(len(tokens), -1).gather(1, parents)


BEAM = Method(
    name="beam",
    steps=as_steps(beam_search),
    options=("num_beams", "length_penalty", "early_stopping", "renormalize_logits", "num_return_sequences"),
    switches=("num_beams",),
    remedy="num_beams",
    streams=False,
    needs_whole_text="a beam search",
    alternative="num_beams=1",
)
