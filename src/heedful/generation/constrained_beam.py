"""Constrained beam search: given words must occur; beams are grouped by the number of forced tokens they contain.

Hokamp and Liu 2017; the allocation of the K beams to banks: Post and Vilar 2018. A beam's bank is the number of word
tokens that it contains. A beam may end only if it contains all words. The candidates are the best continuations of a
sentence, the best continuation of each beam, and continuations that begin or continue a missing word. The best
candidate of each bank is kept, the fullest bank first, then the second best of each bank, and so on.

Shapes: B prompts, S sentences still searched, K beams, C candidates, R rows, W words and their alternatives, V
vocabulary, N columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation.beam import NEVER, FinishedBeams, candidates, ended_beams, prompt_beams
from heedful.generation.method import Decoded, Method, MethodInput, as_steps
from heedful.generation.processors import process
from heedful.generation.token_choice import log_sum_exp


class WordProgress(NamedTuple):
    """Progress of each row: how many tokens of forced words it contains, and which tokens may come next."""

    bank: Tensor  # (R,) number of tokens of the complete words and of the one that the row ends with
    is_complete: Tensor  # (R,) True if all words occur
    next_tokens: Tensor  # (R, W) the token that begins or continues each word; −1 if it occurs


class ForcedWords:
    """Words that must occur, each given by its tokens, or as a list of alternatives: one of them must occur.

    >>> ForcedWords([[4, 6], [[7], [8, 9]]], end=[2], size=10).progress(torch.tensor([[3, 4], [7, 3]]))
    WordProgress(bank=tensor([1, 2]), is_complete=tensor([False, False]), next_tokens=tensor([[ 6,  7,  8],
            [ 4, -1, -1]]))
    """

    def __init__(self, words: Sequence[Sequence[Any]], end: Sequence[int], size: int) -> None:
        self.words = [word if isinstance(word[0], list | tuple) else [word] for word in words]
        self._tensors: dict[Any, Tensor] = {}
        for token in (token for alternatives in self.words for tokens in alternatives for token in tokens):
            if token >= size:
                raise HeedfulError(f"force_words_ids has id {token}, but the model has {size} tokens; remove the id")
            if token in end:
                raise HeedfulError(f"force_words_ids has the end token {token}, which ends every text; remove it")

    def _tensor(self, tokens: Sequence[int], device: torch.device) -> Tensor:
        """Returns the ``tokens`` of a word, which are copied to the device once."""
        key = tuple(tokens), device
        if key not in self._tensors:
            self._tensors[key] = torch.tensor(tokens, device=device)
        return self._tensors[key]

    def progress(self, new_tokens: Tensor) -> WordProgress:
        """Returns the progress of rows of ``new_tokens`` (R, n)."""
        bank = begun_tokens = new_tokens.new_zeros(len(new_tokens))
        is_complete = torch.ones_like(bank, dtype=torch.bool)
        next_tokens = []
        for alternatives in self.words:
            occurs, following = torch.zeros_like(is_complete), []
            longest_prefix = torch.zeros_like(bank)
            for word in (self._tensor(tokens, new_tokens.device) for tokens in alternatives):
                if new_tokens.size(1) >= len(word):
                    occurs |= (new_tokens.unfold(1, len(word), 1) == word).all(2).any(1)
                prefix = torch.zeros_like(bank)  # tokens of the word that the row ends with
                for length in range(1, min(len(word) - 1, new_tokens.size(1)) + 1):
                    prefix = torch.where((new_tokens[:, -length:] == word[:length]).all(1), length, prefix)
                longest_prefix = longest_prefix.maximum(prefix)
                following.append(word[prefix])
            next_tokens += [tokens.masked_fill(occurs, -1) for tokens in following]
            bank = bank + occurs * max(map(len, alternatives))
            begun_tokens = begun_tokens.maximum(longest_prefix.masked_fill(occurs, 0))
            is_complete = is_complete & occurs
        return WordProgress(bank + begun_tokens, is_complete, torch.stack(next_tokens, 1))


def constrained_candidates(
    log_p: Tensor, sums: Tensor, next_tokens: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns sums, parents and tokens (S, C), best first and each pair once: the ``count`` best of a sentence, the
    best of each beam, and the ``next_tokens`` of each beam.
    """
    totals, parents, tokens = candidates(log_p, sums, count)
    best = log_p.argmax(1, keepdim=True)
    added = torch.cat((best, torch.where(next_tokens < 0, best, next_tokens)), 1)  # (S · K, 1 + W)
    added_totals = (log_p.gather(1, added) + sums.view(-1, 1)).view(len(sums), -1)
    beams = torch.arange(sums.size(1), device=log_p.device).repeat_interleave(added.size(1))
    totals = torch.cat((totals, added_totals), 1)
    parents = torch.cat((parents, beams.expand(len(sums), -1)), 1)
    tokens = torch.cat((tokens, added.view(len(sums), -1)), 1)
    keys, order = (parents * log_p.size(1) + tokens).sort(dim=1, stable=True)
    is_repeated = torch.zeros_like(keys, dtype=torch.bool)
    is_repeated[:, 1:] = keys[:, 1:] == keys[:, :-1]
    is_repeated = torch.zeros_like(is_repeated).scatter(1, order, is_repeated)
    totals, indices = totals.masked_fill(is_repeated, NEVER).sort(1, descending=True)
    return totals, parents.gather(1, indices), tokens.gather(1, indices)


def allocate(sums: Tensor, bank: Tensor, count: int) -> Tensor:
    """Returns the indices (S, count) of the candidates to continue, of those with ``sums`` (S, C), sorted best first:
    the best candidate of each ``bank`` (S, C), the fullest bank first, then the second best of each bank.

    >>> allocate(torch.tensor([[-1.0, -2.0, -3.0, -4.0]]), torch.tensor([[0, 0, 0, 2]]), 3)
    tensor([[3, 0, 1]])
    """
    size = sums.size(1)
    is_before = torch.ones(size, size, dtype=torch.bool, device=sums.device).tril(-1)
    rank = ((bank[:, :, None] == bank[:, None]) & is_before).sum(2)  # (S, C) in its bank
    priority = rank * (bank.amax() + 1) - bank
    return priority.masked_fill(sums == NEVER, torch.iinfo(priority.dtype).max).argsort(dim=1, stable=True)[:, :count]


def constrained(inputs: MethodInput) -> Decoded:
    """Returns the best ``num_return_sequences`` finished beams of each prompt in which all ``force_words_ids`` occur.

    See ``beam_search``. Raises ``HeedfulError`` if no finished beam of a prompt contains all words.
    """
    state, limits, count = inputs.reader, inputs.limits, inputs.options.num_beams
    words = ForcedWords(inputs.options.force_words_ids, inputs.end_ids.tolist(), inputs.state.vocab_size)
    logits = state.prefill()
    beams, sums = prompt_beams(inputs, logits), logits.new_zeros(len(limits), 1)
    sentences, next_limit = torch.arange(len(limits), device=limits.device), int(limits.min())
    results = FinishedBeams(inputs.options, count, beams, logits)
    finished = results.part(sentences)

    for step in inputs.steps():
        column = inputs.width + step - 1
        new_sums, parents, tokens, token_log_p = _continuations(inputs, words, beams.ids[:, :, :column], sums, logits)
        extended = beams.extend(parents, tokens, column, token_log_p)
        ended = ended_beams(inputs, extended, tokens, limits, column)
        progress = words.progress(extended.ids[:, :, inputs.width : column + 1].flatten(0, 1))
        is_complete = progress.is_complete.view_as(ended)
        finished.add(new_sums, extended, ended & is_complete & (is_complete.cumsum(1) <= count), step)

        before = sums.size(1)
        running = new_sums.masked_fill(ended, NEVER)
        indices = allocate(running, progress.bank.view_as(ended), min(count, new_sums.size(1)))
        sums, beams, parents = running.gather(1, indices), extended.select(indices), parents.gather(1, indices)
        finished.update_done(sums.amax(1), limits, step)
        live = int((~finished.done).sum())
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
    _check_all_finished(results.scores, inputs.limits)
    return results.best(inputs.options.num_return_sequences)


def _continuations(
    inputs: MethodInput, words: ForcedWords, ids: Tensor, sums: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Returns the candidates of beams with ``ids`` (S, K, N), and log p of their tokens if requested."""
    model_log_p, rows = logits - log_sum_exp(logits), ids.flatten(0, 1)
    log_p = process(inputs.processors, rows, model_log_p.clone())
    progress = words.progress(rows[:, inputs.width :])
    log_p = torch.where(progress.is_complete[:, None], log_p, log_p.index_fill(1, inputs.end_ids, NEVER))
    count = (1 + max(1, len(inputs.end_ids))) * inputs.options.num_beams
    new_sums, parents, tokens = constrained_candidates(log_p, sums, progress.next_tokens, count)
    if not inputs.with_logprobs:
        return new_sums, parents, tokens, None
    sentences = torch.arange(len(tokens), device=tokens.device)[:, None]
    return new_sums, parents, tokens, model_log_p.unflatten(0, (len(tokens), -1))[sentences, parents, tokens]


def _check_all_finished(scores: Tensor, limits: Tensor) -> None:
    unfinished = (scores[:, 0] == NEVER).nonzero()[:, 0].tolist()
    if unfinished:
        raise HeedfulError(
            f"prompt {unfinished[0]}: no text of {int(limits[unfinished[0]])} tokens with all force_words_ids was "
            "found; raise max_new_tokens, or num_beams"
        )


CONSTRAINED_BEAM = Method(
    name="constrained beam",
    steps=as_steps(constrained),
    options=("force_words_ids",),
    switches=("force_words_ids",),
    extends=("beam",),
    remedy="num_beams",
    streams=False,
)
