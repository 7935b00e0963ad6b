"""Generated answers: the prompts and options of a request become rows of the slots, or inputs of a search."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from heedful.errors import HeedfulError, plural
from heedful.generation.options import Options
from heedful.generation.slots import SlotDecoder
from heedful.inference.input_blocks import input_size
from heedful.serving.admission import RequestError, Ticket
from heedful.serving.answer_text import AnswerPiece, AnswerText, HeldText, TokenText, prompt_tokens
from heedful.serving.requests import CHARACTERS, rows_of, tokens_of_rows
from heedful.serving.service import AnswerRow, Batch, GenerationRequest, Service
from heedful.tasks.task import Continues
from heedful.tasks.token_batches import seed_of_repeat
from heedful.text.chat_template import last_turns

NEW_TOKENS = 256  # maximum of an answer, if neither the request nor the model's folder says


NOTHING: dict[str, Any] = {"text": "", "score": None, "logprobs": []}  # output of a beam that was not found


@dataclass(frozen=True, kw_only=True)
class Question:
    """Prompts of a request and how they are answered."""

    prompts: Sequence[Any]  # texts, lists of messages, or lists of token ids
    decoding: Options
    count: int = 1  # answers to each prompt
    top_logprobs: int | None = None  # None: no log-probabilities; k: of the tokens, and of the k most likely ones
    with_prompt: bool = False  # the log-probabilities of the prompt's tokens too
    generates: bool = True  # False for a prompt that is only scored
    stream: bool = False
    leaves_out_turns: bool = False  # the oldest of a conversation, as many as do not fit
    field: str = "prompt"  # of the request

    @cached_property
    def in_slots(self) -> bool:
        """True if the slots decode it, False for a search."""
        return SlotDecoder.takes(replace(self.decoding, stop_strings=(), num_return_sequences=1))


@dataclass
class Answer:
    """An answer so far."""

    index: int
    prompt: int  # index of its prompt
    text: str = ""
    tokens: list[TokenText] = field(default_factory=list)
    finish: str | None = None  # "stop" or "length"
    stopped_by: str = ""  # the stop string, which is left out
    count: int = 0  # generated tokens, those of the end and of a stop string included
    logprobs: list[float] = field(default_factory=list)  # of all tokens, if requested
    score: float | None = None  # of a search
    prompt_tokens: list[TokenText] = field(default_factory=list)  # with their log-probabilities, if requested

    def add(self, piece: AnswerPiece) -> None:
        """Adds a piece."""
        self.text, self.finish = self.text + piece.text, piece.finish
        self.tokens += piece.tokens


class Answers:
    """Answers to a question, which ``pieces`` yields as they come. ``close`` frees what they hold."""

    def __init__(self, service: Service, question: Question) -> None:
        assert isinstance(service.pipe.task, Continues)
        self.service, self.question, self.task = service, question, service.pipe.task
        self.prompts: list[list[int]] = []  # token ids
        self.all: list[Answer] = []  # once the request is admitted
        self.left_out = 0  # messages of a conversation, at its beginning
        self._generation: GenerationRequest | None = None
        self._ticket: Ticket | None = None
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def usage(self) -> dict[str, int]:
        """Numbers of tokens, under OpenAI's names."""
        read, generated = sum(map(len, self.prompts)), sum(answer.count for answer in self.all)
        return {"prompt_tokens": read, "completion_tokens": generated, "total_tokens": read + generated}

    async def start(self) -> None:
        """Admits the request, tokenises its prompts, and queues them."""
        question, service = self.question, self.service
        length = question.decoding.max_new_tokens or question.decoding.max_length or NEW_TOKENS
        sizes = [
            input_size(prompt) // CHARACTERS + 1 if _is_text(prompt) else len(prompt) for prompt in question.prompts
        ]
        count = question.count
        tokens = sum(self._tokens(size + length) for size in sizes)
        self._ticket = service.admission.admit(len(question.prompts) * count, tokens)
        self.all = [Answer(i * count + k, i) for i in range(len(question.prompts)) for k in range(count)]
        try:
            self.prompts = await asyncio.to_thread(self._encode)
            if question.in_slots:
                self._start_rows(self._ticket)
        except BaseException:
            self.close()
            raise

    def _tokens(self, tokens: int) -> int:
        """Returns the tokens of all answers to a prompt and of all beams, of which each has these tokens."""
        question = self.question
        if question.in_slots:
            return question.count * tokens
        return tokens_of_rows(max(question.count, rows_of(question.decoding)), tokens)

    async def pieces(self) -> AsyncGenerator[tuple[Answer, AnswerPiece]]:
        """Yields each piece with its answer, to which it has been added."""
        try:
            if self._generation is None:
                for answer, piece in zip(self.all, await self._search(), strict=True):
                    answer.add(piece)
                    yield answer, piece
                return
            async for index, piece in self._generation.pieces():
                answer, row = self.all[index], self._generation.rows[index]
                if row.with_prompt and not answer.prompt_tokens and row.slot is not None:
                    answer.prompt_tokens = await asyncio.to_thread(
                        prompt_tokens, self.task.tokenizer, row.ids, row.slot.prompt_logprobs or []
                    )
                if self.question.generates:
                    text = row.text
                    answer.count, answer.logprobs, answer.stopped_by = text.count, text.logprobs, text.stopped_by
                else:
                    piece = AnswerPiece("", [], "length")
                answer.add(piece)
                yield answer, piece
        finally:
            self.close()

    async def complete(self) -> list[Answer]:
        """Returns all answers when they are complete."""
        async for _ in self.pieces():
            pass
        return self.all

    def close(self) -> None:
        """Cancels what has not ended, and frees what is reserved."""
        if self._expiry is not None:
            self._expiry.cancel()
        if self._generation is not None:
            self.service.cancel(self._generation)
        if self._ticket is not None:
            self._ticket.release()

    # ------------------------------------------------------------------------------------------------------- prompts

    def _encode(self) -> list[list[int]]:
        """Returns the token ids of the prompts, in a thread of its own."""
        question, name = self.question, self.question.field
        if not all(map(_is_text, question.prompts)):
            size = self.task.tokenizer.vocab_size
            if any(not 0 <= number < size for ids in question.prompts for number in ids):
                raise RequestError(400, f"a token id is not from 0 to {size - 1:,}; give ids of this model", param=name)
            if not all(question.prompts):
                raise RequestError(400, "a prompt has no tokens; give at least one", param=name)
            return [list(ids) for ids in question.prompts]
        try:
            if question.leaves_out_turns:
                self._leave_out_turns()
            return self.task.prompt_ids(self.question.prompts)
        except HeedfulError as error:
            raise RequestError(400, str(error), param=name) from None

    def _leave_out_turns(self) -> None:
        """Leaves out the oldest turns that do not fit beside an answer."""
        decoding, capacity = self.question.decoding, self.service.max_tokens
        length = decoding.max_new_tokens or NEW_TOKENS
        room = length if "max_new_tokens" in decoding.given else min(length, capacity // 2)
        if "max_length" in decoding.given:  # of prompt and answer, which has at least one token
            capacity, room = min(capacity, decoding.max_length or capacity), 1

        def fits(messages: list[dict[str, Any]]) -> bool:
            return len(self.task.prompt_ids([messages])[0]) + room <= capacity

        (messages,) = self.question.prompts
        read = last_turns(messages, fits)
        self.question, self.left_out = replace(self.question, prompts=[read]), len(messages) - len(read)

    def _start_rows(self, ticket: Ticket) -> None:
        question, service = self.question, self.service
        decoding = replace(question.decoding, stop_strings=(), num_return_sequences=1)
        generation = GenerationRequest(ticket, service.limits.backlog if question.stream else None)
        for answer in self.all:
            ids = self.prompts[answer.prompt]
            options = decoding
            if isinstance(decoding.seed, int):  # as in a pipeline, where a repeated prompt gets a seed of its own
                repeated = self.prompts[: answer.prompt].count(ids)
                options = replace(decoding, seed=seed_of_repeat(decoding.seed, repeated))
            text = AnswerText(
                self.task.tokenizer, ids, question.decoding.stop_strings, question.top_logprobs is not None
            )
            row = AnswerRow(generation, answer.index, ids, options, self._limit(ids), text)
            row.sample, row.top_logprobs = answer.index % question.count, question.top_logprobs
            row.with_prompt = question.with_prompt
            generation.rows.append(row)
        ticket.resize(sum(len(row.ids) + row.limit for row in generation.rows))
        self._generation = generation
        self._expiry = asyncio.get_running_loop().call_later(service.limits.timeout, service.expire, generation)
        service.submit(generation)

    def _limit(self, ids: Sequence[int]) -> int:
        """Returns the maximum number of new tokens; raises ``RequestError`` if they do not fit beside the prompt."""
        decoding, capacity = self.question.decoding, self.service.max_tokens
        limit = decoding.max_new_tokens or NEW_TOKENS
        if not decoding.max_new_tokens and decoding.max_length:
            limit = decoding.max_length - len(ids)
            if limit < 1:
                raise RequestError(
                    400,
                    f"the prompt has {plural(len(ids), 'token')}, but max_length is {decoding.max_length} with "
                    "the answer; shorten the prompt, or raise max_length",
                    "context_length_exceeded",
                    self.question.field,
                )
        room = capacity - len(ids) + (0 if self.question.generates else 1)  # the token that is dropped is not read
        is_given = {"max_new_tokens", "max_length"} & decoding.given
        if room < 1 or (is_given and limit > room):
            generated, remedy = f"at most {limit:,}", ", or lower max_tokens"
            if not self.question.generates:
                generated, remedy = "none", ""
            raise RequestError(
                400,
                f"the prompt has {len(ids):,} tokens and {generated} are to be generated, but the server's limit is "
                f"{capacity:,}, both together; shorten the prompt{remedy}",
                "context_length_exceeded",
                self.question.field,
            )
        return min(limit, room)

    # -------------------------------------------------------------------------------------------------------- search

    async def _search(self) -> list[AnswerPiece]:
        """Returns the outputs of a method that the slots do not take, such as a beam search, as one piece each."""
        question, service = self.question, self.service
        if question.stream or question.top_logprobs is not None or not all(map(_is_text, question.prompts)):
            name = "stream" if question.stream else "logprobs" if question.top_logprobs is not None else question.field
            raise RequestError(
                400, f"{question.decoding.variant.name} decoding takes no {name} of this kind; leave it out", param=name
            )
        tokens = sum(self._tokens(len(ids) + self._limit(ids)) for ids in self.prompts)
        service.admission.check_size(len(self.prompts), tokens)
        decoding = replace(question.decoding, num_return_sequences=question.count)
        decoding = replace(decoding, given=decoding.given | {"num_return_sequences"})
        assert self._ticket is not None
        batch = Batch(
            list(question.prompts),
            {"decoding": decoding, "logprobs": True},
            service.pipe.predict_block,
            self._ticket,
            tokens,
        )
        predictions = await service.compute(batch)
        pieces = []
        for answer in self.all:
            prediction, number = predictions[answer.prompt], answer.index % question.count
            output = {"text": prediction.output, "score": prediction.score, "logprobs": prediction.logprobs}
            if question.count > 1:  # a search may find fewer
                output = prediction.output[number] if number < len(prediction.output) else {**NOTHING}
            pieces.append(self._searched(answer, output))
        return pieces

    def _searched(self, answer: Answer, output: Any) -> AnswerPiece:
        prompt = self.question.prompts[answer.prompt]
        answer.count, answer.score = len(output["logprobs"]), output["score"]
        held = HeldText(self.question.decoding.stop_strings)
        text = held.add(output["text"].removeprefix(prompt) if isinstance(prompt, str) else output["text"])
        answer.stopped_by = held.stopped_by
        is_full = answer.count >= self._limit(self.prompts[answer.prompt]) and not held.stopped_by
        return AnswerPiece(text if held.stopped_by else text + held.end(), [], "length" if is_full else "stop")


def _is_text(prompt: Any) -> bool:
    """Returns True for a text or a list of messages, False for a list of token ids."""
    return isinstance(prompt, str) or bool(prompt and not isinstance(prompt[0], int))
