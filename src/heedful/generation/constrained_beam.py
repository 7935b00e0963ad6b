"""Constrained beam search: given words must occur; beams are allocated by how many of their tokens they contain.

Hokamp and Liu 2017; the sharing out of one beam's places among the banks: Post and Vilar 2018. A beam may end only with
all words. Besides the best continuations of a sentence, each beam's best and those that begin or go on a word it lacks
are considered; of each bank the best runs on, the fullest first, then the second best of each, and so on.

Shapes: B prompts, S sentences still searched, K beams, C candidates, R rows, W words and their alternatives, V
vocabulary, N columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation.beam import NEVER, Finished, candidates, pick
from heedful.generation.decoder_state import NONE
from heedful.generation.method import Made, Method, Run, as_steps
from heedful.generation.processors import process
from heedful.generation.token_choice import log_sums


class Progress(NamedTuple):
    """Number of forced tokens that each row contains."""

    bank: Tensor  # (R,) tokens of the words that are there, and of the one that is begun
    whole: Tensor  # (R,) boolean: all are there
    wanted: Tensor  # (R, W) the token that begins or goes on each; −1: it is there


class Words:
    """Words that must occur, each given by its tokens or as a list of alternatives, of which one must.

    >>> Words([[4, 6], [[7], [8, 9]]], end=[2], size=10).progress(torch.tensor([[3, 4], [7, 3]]))
    Progress(bank=tensor([1, 2]), whole=tensor([False, False]), wanted=tensor([[ 6,  7,  8],
            [ 4, -1, -1]]))
    """

    def __init__(self, words: Sequence[Sequence[Any]], end: Sequence[int], size: int) -> None:
        self.words = [one if isinstance(one[0], list | tuple) else [one] for one in words]
        for token in (token for one in self.words for tokens in one for token in tokens):
            if token >= size:
                raise HeedfulError(f"force_words_ids has {token}, but the model has {size} tokens; take it out")
            if token in end:
                raise HeedfulError(
                    f"force_words_ids has the end token {token}, which no text goes on after; take it out"
                )

    def progress(self, made: Tensor) -> Progress:
        """Of rows ``made`` (R, n) of new tokens."""
        bank = begun = made.new_zeros(len(made))
        whole = torch.ones_like(bank, dtype=torch.bool)
        wanted = []
        for alternatives in self.words:
            there, following, most = torch.zeros_like(whole), [], torch.zeros_like(begun)
            for word in (torch.tensor(tokens, device=made.device) for tokens in alternatives):
                if made.size(1) >= len(word):
                    there |= (made.unfold(1, len(word), 1) == word).all(2).any(1)
                part = torch.zeros_like(begun)
                for length in range(1, min(len(word) - 1, made.size(1)) + 1):
                    part = torch.where((made[:, -length:] == word[:length]).all(1), length, part)
                most = most.maximum(part)
                following.append(word[part])
            wanted += [one.masked_fill(there, -1) for one in following]
            bank = bank + there * max(map(len, alternatives))
            begun = begun.maximum(most.masked_fill(there, 0))
            whole = whole & there
        return Progress(bank + begun, whole, torch.stack(wanted, 1))


def proposed(log_p: Tensor, running: Tensor, wanted: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sums, parents and tokens (S, C), best first: the ``count`` best of a sentence, the best of each beam, and what
    each beam wants, each once.
    """
    sums, parents, tokens = candidates(log_p, running, count)
    own = log_p.argmax(1, keepdim=True)
    more = torch.cat((own, torch.where(wanted < 0, own, wanted)), 1)  # (S · K, 1 + W)
    values = (log_p.gather(1, more) + running.view(-1, 1)).view(len(running), -1)
    beams = torch.arange(running.size(1), device=log_p.device).repeat_interleave(more.size(1))
    sums = torch.cat((sums, values), 1)
    parents = torch.cat((parents, beams.expand(len(running), -1)), 1)
    tokens = torch.cat((tokens, more.view(len(running), -1)), 1)
    keys, order = (parents * log_p.size(1) + tokens).sort(dim=1, stable=True)
    twice = torch.zeros_like(keys, dtype=torch.bool)
    twice[:, 1:] = keys[:, 1:] == keys[:, :-1]
    sums, place = sums.masked_fill(torch.zeros_like(twice).scatter(1, order, twice), NEVER).sort(1, descending=True)
    return sums, parents.gather(1, place), tokens.gather(1, place)


def shared(sums: Tensor, bank: Tensor, count: int) -> Tensor:
    """The ``count`` places (S, count) of ``sums`` (S, C), best first, that run on: of each ``bank`` (S, C) the best,
    the fullest bank first, then the second best of each.

    >>> shared(torch.tensor([[-1.0, -2.0, -3.0, -4.0]]), torch.tensor([[0, 0, 0, 2]]), 3)
    tensor([[3, 0, 1]])
    """
    places = sums.size(1)
    before = torch.ones(places, places, dtype=torch.bool, device=sums.device).tril(-1)
    rank = ((bank[:, :, None] == bank[:, None]) & before).sum(2)  # (S, C) in its bank
    turn = rank * (int(bank.max()) + 1) - bank
    return turn.masked_fill(sums == NEVER, torch.iinfo(turn.dtype).max).argsort(dim=1, stable=True)[:, :count]


def constrained(run: Run) -> Made:
    """The best ``num_return_sequences`` finished beams of each prompt in which all ``force_words_ids`` occur.

    Returns what ``beam_search`` returns. Raises ``HeedfulError`` where none was found.
    """
    source, options, width, limits, beams = run.source, run.options, run.width, run.limits, run.options.num_beams
    words = Words(options.force_words_ids, run.end.tolist(), source.vocabulary)
    logits = source.prefill()
    history = source.prompt.new_full((len(limits), 1, width + run.most), NONE)
    history[:, 0, :width] = source.prompt
    said = logits.new_zeros(len(limits), 1, width + run.most if run.logprobs else 0)
    running, at_work = logits.new_zeros(len(limits), 1), torch.arange(len(limits), device=limits.device)
    results = Finished(options, beams, history, said, logits)
    found = results.part(at_work)

    for step in range(1, run.most + 1):
        last = width + step
        own = logits - log_sums(logits)
        rows = history[:, :, : last - 1].flatten(0, 1)
        log_p = process(run.processors, rows, own.clone())
        now = words.progress(rows[:, width:])
        log_p = torch.where(now.whole[:, None], log_p, log_p.index_fill(1, run.end, NEVER))
        sums, parents, tokens = proposed(log_p, running, now.wanted, (1 + max(1, len(run.end))) * beams)
        made, told = pick(history, parents), pick(said, parents)
        made[:, :, last - 1] = tokens
        if run.logprobs:
            sentences = torch.arange(len(tokens), device=tokens.device)[:, None]
            told[:, :, last - 1] = own.unflatten(0, (len(tokens), -1))[sentences, parents, tokens]
        stopping = torch.isin(tokens, run.end) | (limits == step)[:, None]
        if run.stops is not None:
            stopping |= run.stops.ended(made[:, :, :last].flatten(0, 1)).view_as(stopping)
        then = words.progress(made[:, :, width:last].flatten(0, 1))
        whole = then.whole.view_as(stopping)
        found.add(sums, made, told, stopping & whole & (whole.cumsum(1) <= beams), step)

        before = running.size(1)
        left = sums.masked_fill(stopping, NEVER)
        place = shared(left, then.bank.view_as(stopping), min(beams, sums.size(1)))
        running, history, said = left.gather(1, place), pick(made, place), pick(told, place)
        found.settle(running.amax(1), limits, step)
        alive = int((~found.done).sum())
        if not alive:
            break
        places = parents.gather(1, place) + before * torch.arange(len(place), device=place.device)[:, None]
        if 2 * alive <= len(limits) or int(limits.min()) == step:
            results.put(found, at_work)
            kept = (~found.done).nonzero()[:, 0]
            source.select(places[kept].flatten(), kept)
            found, running, history, said = found.part(kept), running[kept], history[kept], said[kept]
            limits, at_work = limits[kept], at_work[kept]
        else:
            source.reorder(places.flatten())
        logits = source.step(history[:, :, last - 1].flatten())

    results.put(found, at_work)
    lost = (results.scores[:, 0] == NEVER).nonzero()[:, 0].tolist()
    if lost:
        raise HeedfulError(
            f"prompt {lost[0]}: no text of {int(run.limits[lost[0]])} tokens with all force_words_ids was found; raise "
            "max_new_tokens, or num_beams"
        )
    best = options.num_return_sequences
    return results.ids[:, :best].flatten(0, 1), results.scores[:, :best].flatten(), results.said[:, :best].flatten(0, 1)


CONSTRAINED_BEAM = Method(
    name="constrained beam",
    steps=as_steps(constrained),
    options=("force_words_ids",),
    switches=("force_words_ids",),
    extends=("beam",),
    remedy="num_beams",
    streams=False,
)
