"""Assisted decoding: tokens are proposed cheaply, and the model reads several at once instead of one after the other.

It keeps them as far as they are its own, so that greedy tokens are those that it would choose alone (of two that are
equal but for rounding it may take the other, since several rows are summed in another order). Drawn tokens keep
their distribution by the rule of Leviathan et al. 2023 (section 2.3): a token drawn from the assistant's q stays with
probability min(1, p / q), and otherwise one is drawn from max(p − q, 0), normalised. All rows go on together, as far as
every proposal was kept; a row's tokens depend on its own alone, so that it has the same in any batch.

Shapes: R rows at work, K tokens of a round, N columns of the history, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation.decoder_state import NONE, CrossSource, Source, learned, source_of
from heedful.generation.method import Method, Run, Steps, answering
from heedful.generation.processors import process
from heedful.generation.sampling import one_by_one, picked
from heedful.generation.token_choice import choose

if TYPE_CHECKING:
    from heedful.generation.options import Options

MATCHED = 2  # prompt lookup goes by the last two tokens; where they stood nowhere before, by the last


class Drafts(Protocol):
    """Proposes tokens for the model to verify."""

    each: int  # numbers that a drawn token needs

    def propose(self, history: Tensor, count: int, numbers: Tensor | None) -> Tensor:
        """At most ``count`` − 1 tokens (R, k) that may follow ``history`` (R, N)."""

    def pick(self, scores: Tensor, history: Tensor, numbers: Tensor | None, place: int) -> Tensor:
        """The tokens (R,) of the model's ``scores`` (R, V), at this ``place`` of those proposed."""

    def select(self, rows: Tensor) -> None:
        """Work on ``rows`` from now on."""

    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` columns."""

    def start(self, history: Tensor | None, begins: Tensor) -> None:
        """Read the prompt, or ``history`` (R, N) from the columns ``begins`` (R,) on."""


class Ahead:
    """A source that reads tokens before they are asked for."""

    def __init__(self, run: Run, drafts: Drafts, count: int) -> None:
        self.source, self.drafts, self.count = run.source, drafts, count
        self.prompt, self.counts, self.given = run.source.prompt, run.source.counts, run.source.given
        self.limits, self.width, self.context = run.limits, run.width, run.context or run.width + run.most
        self.source.whole = True
        self.remember = self.source.remember

    def prefill(self) -> Tensor:
        """Logits (B, V) after the prompt."""
        return self._begun(self.source.prefill(), None, self.width - self.counts)

    def reread(self, history: Tensor, begins: Tensor) -> Tensor:
        """Logits (R, V) after ``history`` (R, N), each row from its column ``begins`` (R,)."""
        return self._begun(self.source.reread(history, begins), history, begins)

    def _begun(self, logits: Tensor, history: Tensor | None, begins: Tensor) -> Tensor:
        self.drafts.start(history, begins)
        self.full = self.context + int(begins.min())
        self.place, self.next = 0, logits[:, None]  # (R, K, V): what was read, and the place in it
        self.read = torch.empty(
            len(logits), 0, dtype=torch.int64, device=logits.device
        )  # (R, K − 1) ahead of the first
        return logits

    def pick(self, scores: Tensor, history: Tensor, numbers: Tensor | None) -> Tensor:
        """The token (R,) of each row of ``scores`` (R, V)."""
        self.history, self.numbers = history, None if numbers is None else numbers[:, 1:]
        return self.drafts.pick(scores, history, numbers, self.place)

    def step(self, tokens: Tensor) -> Tensor:
        """Logits (R, V) after ``tokens`` (R,): there already, where they were proposed in every row."""
        if self.place < self.read.size(1) and bool((tokens == self.read[:, self.place]).all()):
            self.place += 1
            return self.next[:, self.place]
        kept = self.source.cache.length - self.read.size(1) + self.place
        self.source.cache.crop(kept)
        self.drafts.crop(kept)
        history = torch.cat((self.history, tokens[:, None]), 1)
        last = history.size(1)
        count = min(self.count, self.width + int(self.limits.min()) - last, self.full - last + 1)
        self.read, self.place = self.drafts.propose(history, count, self.numbers), 0
        self.next = self.source.scores(self.source.read(torch.cat((tokens[:, None], self.read), 1)))
        return self.next[:, 0]

    def select(self, rows: Tensor) -> None:
        """Work on ``rows`` from now on."""
        self.source.select(rows)
        self.drafts.select(rows)
        self.limits, self.next, self.read = self.limits[rows], self.next[rows], self.read[rows]
        if hasattr(self, "history"):
            self.history = self.history[rows]
            self.numbers = None if self.numbers is None else self.numbers[rows]


class Assistant:
    """Proposals of a smaller model, drawn from its own scores after the same processors."""

    each = 3

    def __init__(self, run: Run) -> None:
        self.processors, self.source = run.processors, _beside(run)
        self.tokens: list[Tensor] = []
        self.scores: list[Tensor] = []

    def start(self, history: Tensor | None, begins: Tensor) -> None:
        """Read the prompt, or ``history`` from the columns ``begins`` on."""
        self.source.remember(None)
        self.logits = self.source.prefill() if history is None else self.source.reread(history, begins)
        self.tokens, self.scores = [], []

    def propose(self, history: Tensor, count: int, numbers: Tensor | None) -> Tensor:
        """``count`` − 1 tokens; one more is kept for the place behind them, with the scores of all."""
        self.tokens, self.scores = [], []
        for step in range(count):
            self.logits = self.source.step(history[:, -1].clamp(min=0))
            self._draft(history, None if numbers is None else numbers[:, step, 0])
            history = torch.cat((history, self.tokens[-1][:, None]), 1)
        return torch.stack(self.tokens, 1)[:, :-1]

    def _draft(self, history: Tensor, draw: Tensor | None) -> None:
        self.scores.append(process(self.processors, history, self.logits.clone()))
        self.tokens.append(choose(self.scores[-1], draw))

    def pick(self, scores: Tensor, history: Tensor, numbers: Tensor | None, place: int) -> Tensor:
        """The best; or, where it is drawn, the assistant's with probability min(1, p / q)."""
        if numbers is None:
            return choose(scores)
        if not self.tokens:  # of the first token nothing was proposed yet
            self._draft(history, numbers[:, 0, 0])
        return kept_or_drawn(scores, self.scores[place], self.tokens[place], numbers[:, 0, 1], numbers[:, 0, 2])

    def select(self, rows: Tensor) -> None:
        """Work on ``rows`` from now on."""
        self.source.select(rows)
        self.logits = self.logits[rows]
        self.tokens = [tokens[rows] for tokens in self.tokens]
        self.scores = [scores[rows] for scores in self.scores]

    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` columns."""
        self.source.cache.crop(length)


class Lookup:
    """Proposals from what was given and generated: the tokens that followed the last ones when they stood before."""

    each = 1

    def __init__(self, run: Run) -> None:
        self.source, self.size = run.source, run.source.vocabulary

    def propose(self, history: Tensor, count: int, numbers: Tensor | None) -> Tensor:
        """``count`` − 1 tokens, or none where no row has any."""
        said = history if not isinstance(self.source, CrossSource) else self._after_sources(history)
        start = said.new_full((len(said),), said.size(1))
        for size in range(1, min(MATCHED, said.size(1) - 1) + 1):
            windows = said.unfold(1, size, 1)[:, :-1]  # (R, N − size, size)
            same = (windows == said[:, None, -size:]).all(-1) & (said[:, -size] >= 0)[:, None]
            last = (same * torch.arange(1, same.size(1) + 1, device=said.device)).amax(1)  # counted from 1; 0: nowhere
            start = torch.where(last > 0, last - 1 + size, start)
        if bool((start == said.size(1)).all()):
            return said[:, :0]
        places = (start[:, None] + torch.arange(count - 1, device=said.device)).clamp(max=said.size(1) - 1)
        tokens = said.gather(1, places)
        return tokens.where((tokens >= 0) & (tokens < self.size), 0)

    def _after_sources(self, history: Tensor) -> Tensor:
        return torch.cat((self.source.given[self.source.origin], history), 1)

    def pick(self, scores: Tensor, history: Tensor, numbers: Tensor | None, place: int) -> Tensor:
        """The tokens (R,) that the model would choose without proposals."""
        return picked(scores, history, numbers)

    def select(self, rows: Tensor) -> None:
        """Nothing is kept."""

    def crop(self, length: int) -> None:
        """Nothing is kept."""

    def start(self, history: Tensor | None, begins: Tensor) -> None:
        """Nothing is read."""


def kept_or_drawn(scores: Tensor, own: Tensor, proposed: Tensor, keep: Tensor, draw: Tensor) -> Tensor:
    """Tokens (R,) distributed as p = softmax(``scores``), where ``proposed`` (R,) are as q = softmax(``own``), (R, V).

    A proposed token t stays where ``keep`` < p(t) / q(t); another is drawn from max(p − q, 0), normalised. ``keep`` and
    ``draw`` (R,) are uniform in [0, 1).

    >>> p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log()
    >>> [int(kept_or_drawn(p, q, torch.tensor([0]), torch.tensor([u]), torch.tensor([0.3]))) for u in (0.5, 0.6)]
    [0, 1]
    """
    exact = torch.float32 if scores.device.type == "mps" else torch.float64
    p, q = scores.softmax(1, dtype=exact), own.softmax(1, dtype=exact)
    at = proposed[:, None]
    stays = (keep.to(exact)[:, None] * q.gather(1, at) < p.gather(1, at))[:, 0]
    rest = (p - q).clamp(min=0)
    rest = torch.where(rest.sum(1, keepdim=True) > 0, rest, p)  # equal but for rounding
    return torch.where(stays, proposed, choose(rest.log(), draw))


def assisted(run: Run) -> Steps:
    """Greedy decoding or sampling with tokens that are proposed: see the head of this file."""
    model, options = run.options.assistant_model, run.options
    if any(one.watchers for one in (run.source.model, model) if one is not None):
        what = "an assistant" if model is not None else "prompt_lookup_num_tokens"
        raise HeedfulError(f"tokens that are read at once cannot be recorded; generate without {what}")
    if model is None:
        ahead = Ahead(run, Lookup(run), options.prompt_lookup_num_tokens + 1)
        return (yield from one_by_one(run, ahead.pick, source=ahead))
    with answering(model):
        ahead = Ahead(run, Assistant(run), options.num_assistant_tokens)
        return (yield from one_by_one(run, ahead.pick, Assistant.each, ahead))


def _beside(run: Run) -> Source:
    """The assistant's source for the same prompts; raises ``HeedfulError`` where it does not fit the model."""
    source, model = run.source, run.options.assistant_model
    if hasattr(model, "encode") != isinstance(source, CrossSource):
        raise HeedfulError(
            f"the assistant is of kind {model.config.kind!r}, the model of kind {source.model.config.kind!r}; "
            "give one of the same kind"
        )
    if model.device != source.given.device:
        raise HeedfulError(f"the assistant is on {model.device}, the model on {source.given.device}; move one of them")
    made = source_of(model, source.given.clamp(min=0), source.given != NONE)
    if made.vocabulary != source.vocabulary:
        raise HeedfulError(
            f"the assistant has {made.vocabulary} tokens, the model {source.vocabulary}; give one with the same"
        )
    made.prompt, made.counts, made.whole, made.chunk = source.prompt, source.counts, True, source.chunk
    positions = learned(made.stack)
    longest = min(run.context or 10**18, int((source.counts + run.limits).max()) - 1)
    if positions is not None and positions < longest:
        raise HeedfulError(
            f"the assistant has {positions} learned positions, and {longest} may be needed; lower max_new_tokens"
        )
    return made


def _check(options: Options) -> None:
    if options.assistant_model is not None and options.prompt_lookup_num_tokens:
        raise HeedfulError("assistant_model and prompt_lookup_num_tokens both propose tokens; give one")


ASSISTED = Method(
    name="assisted",
    steps=assisted,
    options=("assistant_model", "num_assistant_tokens", "prompt_lookup_num_tokens"),
    switches=("assistant_model", "prompt_lookup_num_tokens"),
    extends=("greedy", "sampling"),
    remedy="num_beams=1",
    check=_check,
)
