"""Beam search, all sentences of a batch at once.

A finished beam scores Σ log p / length^length_penalty: the end token counts, what stood before the first new token
does not. Every sentence stops by its own state, and its result is the same alone and in any batch.

Shapes: B prompts, S sentences still searched, K beams, C candidates, V vocabulary, N columns of the history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from heedful.generation.decoder_state import NONE, Source
from heedful.generation.method import Made, Method, Run, as_steps
from heedful.generation.processors import Processor, process
from heedful.generation.stopping import StopStrings
from heedful.generation.token_choice import log_sums, top

if TYPE_CHECKING:
    from heedful.generation.options import Options

NEVER = float("-inf")


def candidates(
    scores: Tensor, running: Tensor, count: int, less: Tensor | float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """The ``count`` best continuations of each sentence: sums of log p, parents and tokens, (S, C) each, best first.

    ``scores`` − ``less`` are log p, (S · K, V) and (S · K, 1), ``running`` (S, K) the sums so far. The best of a
    sentence are among the best of each beam, so that nothing need be written out for every token.
    """
    values, tokens = top(scores, min(count, scores.size(1)))  # (S · K, c)
    sums = (values - less + running.view(-1, 1)).view(len(running), -1)  # (S, K · c)
    best, place = sums.topk(min(count, sums.size(1)))
    return best, place // values.size(1), tokens.view(len(running), -1).gather(1, place)


def seated(parents: Tensor) -> Tensor:
    """The order (S, K) in which as many beams as can stand where their ``parents`` (S, K) stood: one child of each.

    >>> parents = torch.tensor([[2, 0, 2]])  # the third beam takes the place of 1, which has no children
    >>> parents.gather(1, seated(parents))
    tensor([[0, 2, 2]])
    """
    again = (parents[:, :, None] == parents[:, None]).tril(-1).any(2)  # a better beam has the same parent
    free = torch.ones_like(parents).scatter(1, parents, 0).argsort(dim=1, descending=True, stable=True)
    return free.gather(1, (again.cumsum(1) - 1).clamp(min=0)).where(again, parents).argsort(1)


def beam_search(
    source: Source,
    options: Options,
    processors: Sequence[Processor],
    limits: Tensor,
    end: Tensor,
    stops: StopStrings | None = None,
    logprobs: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The best ``num_return_sequences`` finished beams of each prompt.

    A step takes the (1 + end tokens) · K best continuations of a sentence, so that K unfinished ones are always among
    them; of the finished ones those count that are among the first K. A sentence is done when K beams are finished and
    (``early_stopping``) nothing more is waited for, or when nothing can run on.

    Args:
        source: not yet prefilled.
        options: ``num_beams``, ``num_return_sequences``, ``length_penalty``, ``early_stopping``.
        processors: called with log-probabilities.
        limits: (B,) new tokens each prompt may have.
        end: ids that end a sentence.
        stops: texts that end one, too. More continuations than end tokens may complete one, so that fewer than K
            unfinished ones are among the best: then fewer run on, as in transformers.
        logprobs: keep the model's own log p of each token.

    Returns:
        ids (B · n, N) with what stood before, −1 for none; scores (B · n,); log p of each new token (B · n, N), without
        ``logprobs`` (B · n, 0). Where fewer beams than n exist at all, the rest score −∞.
    """
    width, beams, penalty = source.prompt.size(1), options.num_beams, options.length_penalty
    logits, steps = source.prefill(), int(limits.max())
    history = source.prompt.new_full((len(limits), 1, width + steps), NONE)
    history[:, 0, :width] = source.prompt
    running = logits.new_zeros(len(limits), 1)
    said = logits.new_zeros(len(limits), 1, width + steps if logprobs else 0)
    found, found_said = history.repeat(1, beams, 1), said.repeat(1, beams, 1)
    scores = logits.new_full((len(limits), beams), NEVER)
    done = torch.zeros_like(limits, dtype=torch.bool)
    at_work, nearest = torch.arange(len(limits), device=limits.device), int(limits.min())
    results = (found.clone(), scores.clone(), found_said.clone())

    for step in range(1, steps + 1):
        less, count = log_sums(logits), (1 + max(1, len(end))) * beams
        own = logits.clone() if logprobs and processors else logits
        if processors:  # in place: a second tensor of that size would be of fresh memory at each step
            log_p = process(processors, history[:, :, : width + step - 1].flatten(0, 1), logits.sub_(less))
            sums, parents, tokens = candidates(log_p, running, count)
        else:
            sums, parents, tokens = candidates(logits, running, count, less)
        made, told = pick(history, parents), pick(said, parents)
        made[:, :, width + step - 1] = tokens
        if logprobs:
            sentences = torch.arange(len(tokens), device=tokens.device)[:, None]
            chosen = own.unflatten(0, (len(tokens), -1))[sentences, parents, tokens]
            told[:, :, width + step - 1] = chosen - less.view(len(tokens), -1).gather(1, parents)
        stopping = torch.isin(tokens, end) | (limits == step)[:, None]
        if stops is not None:
            stopping |= stops.ended(made[:, :, : width + step].flatten(0, 1)).view_as(stopping)

        # finished: those among the first K continuations, joined with what was found before
        ripe = stopping & (torch.arange(stopping.size(1), device=end.device) < beams) & ~done[:, None]
        scores, place = torch.cat((scores, (sums / step**penalty).masked_fill(~ripe, NEVER)), 1).topk(beams)
        found, found_said = pick(torch.cat((found, made), 1), place), pick(torch.cat((found_said, told), 1), place)

        # running: the first K others, each where its parent stood, so that little moves
        before = running.size(1)
        running, place = sums.masked_fill(stopping, NEVER).topk(min(beams, sums.size(1)))
        if running.size(1) == before:
            order = seated(parents.gather(1, place))
            running, place = running.gather(1, order), place.gather(1, order)
        history, said, parents = pick(made, place), pick(told, place), parents.gather(1, place)
        most = running.amax(1)

        worst = scores.amin(1)  # −∞ until K are found
        if options.early_stopping is True:
            hope = torch.where(worst > NEVER, NEVER, most)
        else:
            longest = limits if options.early_stopping == "never" and penalty > 0 else step
            hope = most / longest**penalty
        done = done | (hope <= worst)

        alive = len(done) - int(done.sum())
        if not alive:
            break
        kept = None
        if 2 * alive <= len(done) or step == nearest:
            results[0][at_work], results[1][at_work], results[2][at_work] = found, scores, found_said
            kept = (~done).nonzero()[:, 0]
        rows = parents + before * torch.arange(len(parents), device=parents.device)[:, None]
        if kept is not None:
            rows, running, history, said, found, found_said, scores, limits, done, at_work = (
                state[kept]
                for state in (rows, running, history, said, found, found_said, scores, limits, done, at_work)
            )
            nearest = int(limits.min())
        if kept is None:
            source.reorder(rows.flatten())
        else:
            source.select(rows.flatten(), kept)
        logits = source.step(history[:, :, width + step - 1].flatten())

    results[0][at_work], results[1][at_work], results[2][at_work] = found, scores, found_said
    best = options.num_return_sequences
    ids, scores, said = (result[:, :best].flatten(0, 1) for result in results)
    return ids, scores, said


def pick(tensor: Tensor, index: Tensor) -> Tensor:
    """Rows ``index`` (S, k) of ``tensor`` (S, K, N)."""
    return tensor.gather(1, index[:, :, None].expand(-1, -1, tensor.size(2)))


class Finished:
    """The ``count`` best finished rows of each sentence, of rows like ``ids`` (S, 1, N) and ``said`` (S, 1, N).

    Attributes:
        ids: (S, K, N).
        said: (S, K, N) log p of each token, or nothing.
        scores: (S, K), best first; −∞ until there are so many.
        done: (S,) no more is looked for.
    """

    def __init__(self, options: Options, count: int, ids: Tensor, said: Tensor, like: Tensor) -> None:
        self.options = options
        self.ids, self.said = ids.repeat(1, count, 1), said.repeat(1, count, 1)
        self.scores = like.new_full((len(ids), count), NEVER)
        self.done = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

    def add(self, sums: Tensor, ids: Tensor, said: Tensor, ripe: Tensor, step: int) -> None:
        """Continuations with ``sums`` (S, C), of which the ``ripe`` (S, C) have ended with token ``step``."""
        new = (sums / step**self.options.length_penalty).masked_fill(~ripe | self.done[:, None], NEVER)
        self.scores, place = torch.cat((self.scores, new), 1).topk(self.scores.size(1))
        self.ids, self.said = pick(torch.cat((self.ids, ids), 1), place), pick(torch.cat((self.said, said), 1), place)

    def settle(self, running: Tensor, limits: Tensor, step: int) -> None:
        """Marks sentences as done whose best ``running`` sum (S,) cannot enter any more, by ``early_stopping``."""
        worst, penalty = self.scores[:, -1], self.options.length_penalty
        if self.options.early_stopping is True:
            hope = torch.where(worst > NEVER, NEVER, running)
        else:
            longest = limits if self.options.early_stopping == "never" and penalty > 0 else step
            hope = running / longest**penalty
        self.done = self.done | (hope <= worst)

    def put(self, other: Finished, rows: Tensor) -> None:
        """Writes the results of ``other`` to ``rows`` (S',)."""
        self.ids[rows], self.said[rows], self.scores[rows] = other.ids, other.said, other.scores

    def part(self, rows: Tensor) -> Finished:
        """Of sentences ``rows`` alone."""
        made = Finished(self.options, 0, self.ids[rows, :1], self.said[rows, :1], self.scores)
        made.ids, made.said = self.ids[rows], self.said[rows]
        made.scores, made.done = self.scores[rows], self.done[rows]
        return made


def _search(run: Run) -> Made:
    return beam_search(run.source, run.options, run.processors, run.limits, run.end, run.stops, run.logprobs)


BEAM = Method(
    name="beam",
    steps=as_steps(_search),
    options=("num_beams", "length_penalty", "early_stopping", "renormalize_logits", "num_return_sequences"),
    switches=("num_beams",),
    remedy="num_beams",
    streams=False,
    needs_whole_text="a beam search",
    without="num_beams=1",
)
