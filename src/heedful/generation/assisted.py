"""Assisted (speculative) decoding: tokens are proposed cheaply; the model checks several proposals in a forward pass.

The model accepts proposed tokens as long as they are its own choice, so that greedy tokens are those that it would
choose without proposals. (If two tokens have equal scores up to rounding, the model may choose the other token, since
several rows are summed in another order.) Sampled tokens keep their distribution by the rule of Leviathan et al. 2023
(section 2.3): a token sampled from the assistant's q is accepted with probability min(1, p / q); otherwise a token is
sampled from max(p − q, 0), normalised. All rows advance together, up to the first proposal that any row rejects. A
row's tokens depend on this row alone, so that they are the same in any batch.

Shapes: R running rows, K tokens of a round, N columns of ids, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from heedful.config import patches_of
from heedful.errors import HeedfulError
from heedful.generation.decoder_state import DecoderState, EncoderDecoderState, learned_positions
from heedful.generation.method import Method, MethodInput, Steps, decoding_mode
from heedful.generation.processors import process
from heedful.generation.sampling import choose_next, decode_stepwise
from heedful.generation.token_choice import choose
from heedful.util.exact import exact_dtype

if TYPE_CHECKING:
    from heedful.generation.options import Options

NGRAM = 2  # prompt lookup searches the last two tokens; if they did not occur before, the last


class Proposer(Protocol):
    """Interface of an object that proposes tokens, which the model then accepts or rejects."""

    numbers_per_token: int  # uniform numbers that a sampled token needs

    def propose(self, history: Tensor, count: int, numbers: Tensor | None) -> Tensor:
        """Returns at most ``count`` − 1 proposed tokens (R, k), to follow ``history`` (R, N)."""

    def choose_tokens(self, scores: Tensor, history: Tensor, numbers: Tensor | None, index: int) -> Tensor:
        """Returns the tokens (R,) chosen by the model's ``scores`` (R, V) at the position of proposal ``index``."""

    def select(self, rows: Tensor) -> None:
        """Keeps the rows with the indices ``rows``, in this order."""

    def crop(self, length: int) -> None:
        """Drops the tokens after the first ``length`` columns."""

    def start(self, history: Tensor | None, starts: Tensor) -> None:
        """Reads the prompt, or ``history`` (R, N) from the columns ``starts`` on."""


class LookaheadState:
    """State of a decoder that reads proposed tokens before they are chosen."""

    def __init__(self, inputs: MethodInput, proposer: Proposer, count: int) -> None:
        self.state, self.proposer, self.count = inputs.state, proposer, count
        self.prompt, self.prompt_lengths = inputs.state.prompt, inputs.state.prompt_lengths
        self.limits, self.width = inputs.limits, inputs.width
        self.next_limit = int(inputs.limits.min())  # read once: each reading makes the host wait for a GPU
        self.context = inputs.context or inputs.width + inputs.max_steps
        self.state.keeps_all = True
        self.make_cache = self.state.make_cache

    def prefill(self) -> Tensor:
        """Returns the logits (B, V) after the prompt."""
        return self._start(self.state.prefill(), None, self.width - self.prompt_lengths)

    def reread(self, history: Tensor, starts: Tensor) -> Tensor:
        """Returns the logits (R, V) after ``history`` (R, N), each row from its column ``starts`` (R,)."""
        return self._start(self.state.reread(history, starts), history, starts)

    def _start(self, logits: Tensor, history: Tensor | None, starts: Tensor) -> Tensor:
        self.proposer.start(history, starts)
        self.full = self.context + int(starts.min())
        # logits (R, K, V) of a token and the proposals (R, K − 1) after it, and the place in them
        self.logits, self.index = logits[:, None], 0
        self.proposals = torch.empty(len(logits), 0, dtype=torch.int64, device=logits.device)
        return logits

    def choose_tokens(self, scores: Tensor, history: Tensor, numbers: Tensor | None) -> Tensor:
        """Returns a token (R,) for each row of ``scores`` (R, V)."""
        self.history, self.numbers = history, None if numbers is None else numbers[:, 1:]
        return self.proposer.choose_tokens(scores, history, numbers, self.index)

    def step(self, tokens: Tensor) -> Tensor:
        """Returns the logits (R, V) after ``tokens`` (R,); already computed if every row's token was proposed."""
        if self.index < self.proposals.size(1) and bool((tokens == self.proposals[:, self.index]).all()):
            self.index += 1
            return self.logits[:, self.index]
        accepted = self.state.cache.length - self.proposals.size(1) + self.index
        self.state.cache.crop(accepted)
        self.proposer.crop(accepted)
        history = torch.cat((self.history, tokens[:, None]), 1)
        last = history.size(1)
        count = min(self.count, self.width + self.next_limit - last, self.full - last + 1)
        self.proposals, self.index = self.proposer.propose(history, count, self.numbers), 0
        self.logits = self.state.all_logits(self.state.read(torch.cat((tokens[:, None], self.proposals), 1)))
        return self.logits[:, 0]

    def select(self, rows: Tensor) -> None:
        """Keeps the rows with the indices ``rows``, in this order."""
        self.state.select(rows)
        self.proposer.select(rows)
        self.limits, self.logits, self.proposals = self.limits[rows], self.logits[rows], self.proposals[rows]
        self.next_limit = int(self.limits.min())
        if hasattr(self, "history"):
            self.history = self.history[rows]
            self.numbers = None if self.numbers is None else self.numbers[rows]


class Assistant:
    """Proposals of a smaller model, chosen from its own scores after the same processors."""

    numbers_per_token = 3

    def __init__(self, inputs: MethodInput) -> None:
        self.processors, self.state = inputs.processors, assistant_state(inputs)
        self.tokens: list[Tensor] = []
        self.scores: list[Tensor] = []

    def start(self, history: Tensor | None, starts: Tensor) -> None:
        """Reads the prompt, or ``history`` from the columns ``starts`` on."""
        self.state.make_cache(None)
        self.logits = self.state.prefill() if history is None else self.state.reread(history, starts)
        self.tokens, self.scores = [], []

    def propose(self, history: Tensor, count: int, numbers: Tensor | None) -> Tensor:
        """Returns ``count`` − 1 proposed tokens. Stores their scores, and those of one more token, for the position
        after the proposed tokens.
        """
        self.tokens, self.scores = [], []
        for step in range(count):
            self.logits = self.state.step(history[:, -1].clamp(min=0))
            self._add(history, None if numbers is None else numbers[:, step, 0])
            history = torch.cat((history, self.tokens[-1][:, None]), 1)
        return torch.stack(self.tokens, 1)[:, :-1]

    def _add(self, history: Tensor, uniform: Tensor | None) -> None:
        self.scores.append(process(self.processors, history, self.logits.clone()))
        self.tokens.append(choose(self.scores[-1], uniform))

    def choose_tokens(self, scores: Tensor, history: Tensor, numbers: Tensor | None, index: int) -> Tensor:
        """Returns the best tokens (R,); in sampling, the assistant's tokens with probability min(1, p / q)."""
        if numbers is None:
            return choose(scores)
        if not self.tokens:  # before the first token nothing is proposed
            self._add(history, numbers[:, 0, 0])
        return accept_or_resample(scores, self.scores[index], self.tokens[index], numbers[:, 0, 1], numbers[:, 0, 2])

    def select(self, rows: Tensor) -> None:
        """Keeps the rows with the indices ``rows``, in this order."""
        self.state.select(rows)
        self.logits = self.logits[rows]
        self.tokens = [tokens[rows] for tokens in self.tokens]
        self.scores = [scores[rows] for scores in self.scores]

    def crop(self, length: int) -> None:
        """Drops the tokens after the first ``length`` columns."""
        self.state.cache.crop(length)


class PromptLookup:
    """Proposals copied from the source, the prompt and the new tokens: those that followed an earlier occurrence of the
    last tokens.
    """

    numbers_per_token = 1

    def __init__(self, inputs: MethodInput) -> None:
        self.state, self.vocab_size = inputs.state, inputs.state.vocab_size

    def propose(self, history: Tensor, count: int, numbers: Tensor | None) -> Tensor:
        """Returns ``count`` − 1 tokens, or no tokens if no row has an earlier occurrence."""
        ids = history if not isinstance(self.state, EncoderDecoderState) else self._after_sources(history)
        start = ids.new_full((len(ids),), ids.size(1))
        for size in range(1, min(NGRAM, ids.size(1) - 1) + 1):
            windows = ids.unfold(1, size, 1)[:, :-1]  # (R, N − size, size)
            is_same = (windows == ids[:, None, -size:]).all(-1) & (ids[:, -size] >= 0)[:, None]
            last = (is_same * torch.arange(1, is_same.size(1) + 1, device=ids.device)).amax(1)  # from 1; 0 is nowhere
            start = torch.where(last > 0, last - 1 + size, start)
        if bool((start == ids.size(1)).all()):
            return ids[:, :0]
        columns = (start[:, None] + torch.arange(count - 1, device=ids.device)).clamp(max=ids.size(1) - 1)
        tokens = ids.gather(1, columns)
        return tokens.where((tokens >= 0) & (tokens < self.vocab_size), 0)

    def _after_sources(self, history: Tensor) -> Tensor:
        return torch.cat((self.state.given_ids[self.state.prompt_index], history), 1)

    def choose_tokens(self, scores: Tensor, history: Tensor, numbers: Tensor | None, index: int) -> Tensor:
        """Returns the tokens (R,) that the model would choose without proposals."""
        return choose_next(scores, history, numbers)

    def select(self, rows: Tensor) -> None:
        """Does nothing, because proposals are looked up again at each step."""

    def crop(self, length: int) -> None:
        """Does nothing, because proposals are looked up again at each step."""

    def start(self, history: Tensor | None, starts: Tensor) -> None:
        """Does nothing, because there is no assistant model."""


def accept_or_resample(
    scores: Tensor, assistant_scores: Tensor, proposed: Tensor, accept: Tensor, resample: Tensor
) -> Tensor:
    """Returns tokens (R,) distributed as p = softmax(``scores``), where the ``proposed`` (R,) are distributed as
    q = softmax(``assistant_scores``), (R, V) both.

    A proposed token t is accepted if ``accept`` < p(t) / q(t); otherwise a token is sampled from max(p − q, 0),
    normalised. ``accept`` and ``resample`` (R,) are uniform in [0, 1).

    >>> p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log()
    >>> [int(accept_or_resample(p, q, torch.tensor([0]), torch.tensor([u]), torch.tensor([0.3]))) for u in (0.5, 0.6)]
    [0, 1]
    """
    dtype = exact_dtype(scores.device)
    p, q = scores.softmax(1, dtype=dtype), assistant_scores.softmax(1, dtype=dtype)
    index = proposed[:, None]
    is_accepted = (accept.to(dtype)[:, None] * q.gather(1, index) < p.gather(1, index))[:, 0]
    rest = (p - q).clamp(min=0)
    rest = torch.where(rest.sum(1, keepdim=True) > 0, rest, p)  # zero if p and q are equal up to rounding
    return torch.where(is_accepted, proposed, choose(rest.log(), resample))


def assisted(inputs: MethodInput) -> Steps:
    """Decodes greedily or by sampling, with proposed tokens (see the module's docstring)."""
    assistant, options = inputs.options.assistant_model, inputs.options
    if any(model.observers for model in (inputs.state.model, assistant) if model is not None):
        proposer = "an assistant" if assistant is not None else "prompt_lookup_num_tokens"
        raise HeedfulError(
            f"record() does not work with {proposer}, because it computes several tokens in one forward pass; generate "
            "without it"
        )
    if assistant is None:
        state = LookaheadState(inputs, PromptLookup(inputs), options.prompt_lookup_num_tokens + 1)
        return (yield from decode_stepwise(inputs, state.choose_tokens, PromptLookup.numbers_per_token, state))
    with decoding_mode(assistant):
        state = LookaheadState(inputs, Assistant(inputs), options.num_assistant_tokens)
        return (yield from decode_stepwise(inputs, state.choose_tokens, Assistant.numbers_per_token, state))


def assistant_state(inputs: MethodInput) -> DecoderState:
    """Returns the assistant's decoder state for the same prompts; raises ``HeedfulError`` if the assistant does not fit
    the model.
    """
    main, model = inputs.state, inputs.options.assistant_model
    same_source = (patches_of(model.config) is None) == (patches_of(main.model.config) is None)
    if hasattr(model, "encode") != isinstance(main, EncoderDecoderState) or not same_source:
        kinds = [
            f"{each.config.kind!r}" + (" of images" if patches_of(each.config) is not None else "")
            for each in (model, main.model)
        ]
        raise HeedfulError(
            f"the assistant is of kind {kinds[0]}, the model of kind {kinds[1]}; give an assistant of the same kind"
        )
    if model.device != main.given_ids.device:
        raise HeedfulError(
            f"the assistant is on {model.device}, the model on {main.given_ids.device}; move the assistant"
        )
    state = main.state_of(model)
    if state.vocab_size != main.vocab_size:
        raise HeedfulError(
            f"the assistant's vocabulary has {state.vocab_size} tokens, the model's {main.vocab_size}; give an "
            "assistant with the same vocabulary"
        )
    state.prompt, state.prompt_lengths, state.whole_mask = main.prompt, main.prompt_lengths, main.whole_mask
    state.keeps_all, state.prefill_chunk_size = True, main.prefill_chunk_size
    positions = learned_positions(state.stack)
    longest = min(inputs.context or 10**18, int((main.prompt_lengths + inputs.limits).max()) - 1)
    if positions is not None and positions < longest:
        raise HeedfulError(
            f"the assistant has {positions} learned positions, but {longest} may be needed; lower max_new_tokens"
        )
    return state


def _check(options: Options) -> None:
    if options.assistant_model is not None and options.prompt_lookup_num_tokens:
        raise HeedfulError("assistant_model and prompt_lookup_num_tokens both propose tokens; give only one")


ASSISTED = Method(
    name="assisted",
    steps=assisted,
    options=("assistant_model", "num_assistant_tokens", "prompt_lookup_num_tokens"),
    switches=("assistant_model", "prompt_lookup_num_tokens"),
    extends=("greedy", "sampling"),
    remedy="num_beams=1",
    check=_check,
    is_static=False,
)
