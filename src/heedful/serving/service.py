"""Service: one model and the thread that computes, with continuous batching of answers and dynamic batches of the rest.

The event loop admits requests, tokenises in a thread of its own, and waits. The inference thread repeats: drop what was
cancelled, join prompts to free slots, compute one batch of other inputs, take one step of all slots. A batch that
generates, such as a beam search, ends between two of its steps when nobody waits for any of its outputs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from heedful.errors import HeedfulError
from heedful.generation.options import Options
from heedful.generation.slots import SlotDecoder, SlotRow, SlotToken
from heedful.generation.stopping import Interrupted, interruptible
from heedful.inference.pipeline import Pipeline
from heedful.serving.admission import Admission, RequestError, ServiceLimits, Ticket
from heedful.serving.answer_text import AnswerPiece, AnswerText
from heedful.serving.metrics import Metrics
from heedful.tasks.task import Continues, Embeds
from heedful.util.out_of_memory import is_out_of_memory

Compute = Callable[[list[Any], dict[str, Any]], Sequence[Any]]
CALL_SECONDS = 0.02  # that several steps in one call may take: neither a reader nor a new request notices
# the service for which a thread or a task of the event loop works; asyncio hands it on to what they start
WORKING_FOR: ContextVar[Service | None] = ContextVar("working_for", default=None)


@dataclass(eq=False)
class AnswerRow:
    """One answer of a generation, for the inference thread."""

    generation: GenerationRequest
    index: int
    ids: list[int]
    options: Options
    limit: int  # new tokens
    text: AnswerText
    sample: int = 0  # index among the answers to one prompt
    top_logprobs: int | None = None  # log-probabilities of so many tokens at each position; None for none
    with_prompt: bool = False  # log-probabilities of the prompt's tokens too
    slot: SlotRow | None = None
    last: float = 0.0  # time of the last token


class GenerationRequest:
    """Answers of one request, generated together; ``pieces`` yields them as they come.

    Args:
        ticket: what was admitted.
        backlog: pieces that may wait for a slow reader; None without a limit.
    """

    def __init__(self, ticket: Ticket, backlog: int | None = None) -> None:
        self.ticket, self.backlog, self.arrived = ticket, backlog, time.monotonic()
        self.rows: list[AnswerRow] = []
        self.cancelled: str | None = None  # reason; set by the event loop, read between steps
        self.sent = self.taken = 0  # pieces; the first is written by the inference thread alone
        self._events: asyncio.Queue[tuple[int, AnswerPiece | RequestError]] = asyncio.Queue()

    def deliver(self, index: int, event: AnswerPiece | RequestError) -> None:
        """Adds a piece or an error, on the event loop."""
        self._events.put_nowait((index, event))

    async def pieces(self) -> AsyncGenerator[tuple[int, AnswerPiece]]:
        """Yields (index of the answer, piece) until all answers have ended; raises an answer's error."""
        running = len(self.rows)
        while running:
            index, event = await self._events.get()
            self.taken += 1
            if isinstance(event, RequestError):
                raise event
            running -= event.finish is not None
            yield index, event


@dataclass(eq=False)
class Batch:
    """Inputs of one request that are computed at once, together with those of other requests with equal options."""

    inputs: list[Any]
    options: dict[str, Any]
    compute: Compute
    ticket: Ticket
    tokens: int
    may_merge: bool = True
    future: asyncio.Future[list[Any]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    is_cancelled: bool = False  # set by the event loop, read between the steps of a generation


class Service:
    """Model, task, queue and inference thread of a server.

    Args:
        pipe: the model with its task.
        name: the model's name for clients.
        limits: limits of the server.
        exact: computes the same bits for an answer whatever else is computed (``SlotDecoder``).
    """

    def __init__(self, pipe: Pipeline, name: str, limits: ServiceLimits | None = None, exact: bool = False) -> None:
        self.pipe, self.name, self.limits = pipe, name, limits or ServiceLimits()
        self.admission, self.metrics, self.created = Admission(self.limits), Metrics(), int(time.time())
        self.draining = False
        self.decoder: SlotDecoder | None = None
        self._is_exact = exact
        if isinstance(pipe.task, Continues):
            capacity = min(self.limits.max_tokens, pipe.task.reads or self.limits.max_tokens)
            self._make_decoder = partial(
                SlotDecoder, pipe.model, slots=self.limits.slots, capacity=capacity, exact=exact
            )
            self.decoder = self._make_decoder()
        elif exact:
            raise HeedfulError(
                f"exact is for models that continue texts, not for {pipe.task.name}, whose batches may round otherwise "
                "than an input alone; leave --exact out"
            )
        self.max_tokens = self.limits.max_tokens if self.decoder is None else self.decoder.capacity
        special = getattr(pipe.model.config, "special", None)
        self._ends = frozenset(special.end) if special is not None else frozenset()
        self._rows: deque[AnswerRow] = deque()
        self._live: dict[SlotRow, AnswerRow] = {}
        self._batches: deque[Batch] = deque()
        self._running: list[Batch] = []
        self._outbox: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._closing = self._has_ended = False
        self._tokens, self._busy = 0, 0.0  # computed, and the seconds that it took
        self._seconds_a_step = 0.0  # of the slots, in the last call
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="heedful-inference", daemon=True)
        watch = self.metrics.watch
        watch("heedful_queue_requests", "Inputs that wait.", lambda: self.admission.inputs)
        watch(
            "heedful_queue_tokens", "Tokens that wait, those to be generated included.", lambda: self.admission.tokens
        )
        watch("heedful_live_rows", "Answers that are being generated.", lambda: len(self._live))
        watch("heedful_slots", "Answers that can be generated together.", lambda: self.limits.slots)

    # ---------------------------------------------------------------------------------------------------- event loop

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the inference thread; results are delivered on ``loop``."""
        logging.getLogger("heedful").addFilter(self._hide_warning)
        self._loop = loop
        self._thread.start()

    def close(self) -> None:
        """Ends the inference thread after its current step; what runs or waits fails with 503."""
        with self._changed:
            self._closing = self.draining = True
            self._changed.notify()
        self._show_warnings()

    def join(self, timeout: float) -> bool:
        """Waits for the inference thread; returns True if it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def tokens_read(self) -> int:
        """Maximum number of tokens of an input that the model reads; with an answer, both together."""
        return min(self.max_tokens, self.pipe.task.reads or self.max_tokens)

    @property
    def is_alive(self) -> bool:
        """True while the inference thread runs."""
        return self._thread.is_alive()

    @property
    def is_idle(self) -> bool:
        """True if nothing runs or waits."""
        return not (self.admission.inputs or self._rows or self._live or self._batches or self._running)

    def check_accepting(self) -> None:
        """Raises ``RequestError``: 503 while the server ends or if its thread is dead, 429 if its queue is full."""
        if self.draining:
            raise RequestError(503, "the server is shutting down; send the request to another", retry_after=1)
        self._check_thread()
        if self.admission.is_full:
            raise self.admission.refusal()

    def _check_thread(self) -> None:
        if self._has_ended:
            raise RequestError(503, "the inference thread has ended; restart the server")

    def submit(self, generation: GenerationRequest) -> None:
        """Queues the answers of a generation."""
        with self._changed:
            self._check_thread()
            self._rows.extend(generation.rows)
            self._changed.notify()

    def cancel(self, generation: GenerationRequest, reason: str = "client") -> None:
        """Ends the answers of a generation that have not ended; the inference thread frees their slots."""
        generation.ticket.release()
        generation.cancelled = generation.cancelled or reason
        with self._changed:
            self._changed.notify()

    def expire(self, generation: GenerationRequest) -> None:
        """Ends a generation that has taken too long, with an error."""
        generation.deliver(0, self._timeout())
        self.cancel(generation, "deadline")

    def _timeout(self) -> RequestError:
        return RequestError(504, f"no answer within {self.limits.timeout:g} seconds; ask for less", "timeout")

    async def compute(self, batch: Batch) -> list[Any]:
        """Queues a batch and returns its outputs; cancels it if the waiting task is cancelled."""
        try:
            with self._changed:
                self._check_thread()
                self._batches.append(batch)
                self._changed.notify()
            async with asyncio.timeout(self.limits.timeout):
                return await batch.future
        except TimeoutError:
            raise self._timeout() from None
        finally:
            batch.is_cancelled = True  # without effect on a batch that is done
            batch.ticket.release()

    def vectors(self, texts: Sequence[str], options: dict[str, Any]) -> list[Any]:
        """Returns a vector for each text; for ``Batch``."""
        assert isinstance(self.pipe.task, Embeds)
        return list(self.pipe.task.vectors(self.pipe.model, texts))

    def relevance(self, texts: Sequence[str], options: dict[str, Any]) -> list[Any]:
        """Returns a score of each text for a query; for ``Batch``."""
        return list(self.pipe.task.relevance(self.pipe.model, options["query"], texts))

    # ---------------------------------------------------------------------------------------------- inference thread

    def _run(self) -> None:
        WORKING_FOR.set(self)
        try:
            while self._wait():
                started = time.monotonic()
                self._drop_cancelled()
                self._begin_call()
                self._join_rows()
                self._compute_batch()
                self._step()
                self._busy += time.monotonic() - started
                self.admission.tokens_per_second = self._tokens / self._busy
                self._send()
        except BaseException as error:  # nothing below is expected to fail: the server is then of no use
            report_error(error, "the inference thread")
        finally:
            reason = "the server is shutting down" if self._closing else "the inference thread has ended"
            self._fail_all(RequestError(503, f"{reason}; send the request again"))
            self._send()
            self._show_warnings()

    def _wait(self) -> bool:
        """Waits for work; returns False to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._rows or self._live or self._batches)
        return not self._closing

    def _begin_call(self) -> None:
        """Uses compiled kernels that have been made since the server started, as soon as no answer is being decoded.

        Not with ``exact``: the numbers of rows that give the same bits are those of the first kernels.
        """
        if self._live or self._is_exact or not self.pipe.model.begin_call() or self.decoder is None:
            return
        try:
            self.decoder = self._make_decoder()
        except Exception as error:  # such as no memory: the decoder that is there works with the new kernels too
            report_error(error, "new slots")

    def _drop_cancelled(self) -> None:
        """Removes cancelled answers and batches; frees their slots."""
        with self._changed:
            count = len(self._rows) + len(self._batches)
            self._rows = deque(row for row in self._rows if not row.generation.cancelled)
            self._batches = deque(batch for batch in self._batches if not batch.is_cancelled)
            count -= len(self._rows) + len(self._batches)
        self.metrics.cancellations.labels("queue").inc(count)
        for slot, row in [(slot, row) for slot, row in self._live.items() if row.generation.cancelled]:
            self._leave(slot)
            self.metrics.cancellations.labels("decoding" if row.text.count else "prefill").inc()

    def _leave(self, slot: SlotRow) -> None:
        """Frees a slot."""
        del self._live[slot]
        assert self.decoder is not None
        self.decoder.leave(slot)

    def _join_rows(self) -> None:
        """Joins waiting prompts to free slots, in the order of their arrival."""
        while self._rows and self.decoder is not None and self.decoder.free:
            row = self._rows.popleft()
            try:
                row.slot = slot = self.decoder.join(
                    row.ids,
                    row.options,
                    limit=row.limit,
                    sample=row.sample,
                    top_logprobs=row.top_logprobs,
                    prompt_logprobs=row.with_prompt,
                )
            except HeedfulError as error:
                self._deliver(row, RequestError(400, str(error)))
            except Exception as error:
                self.metrics.failures.inc()
                self._deliver(row, reported_failure(error, "the start of an answer"))
            else:
                self._live[slot] = row
                self._count(self.metrics.prompt_tokens, len(row.ids))
            row.generation.ticket.release(1)  # last: until then `is_idle` reads the ticket

    def _step(self) -> None:
        """Takes one step of all slots; an error ends the answers of all of them."""
        if not self._live or self.decoder is None:
            return
        started = time.monotonic()
        try:
            tokens = self.decoder.step(self._most_steps())
        except Exception as error:
            failure = reported_failure(error, "a step of generation")
            for slot, row in list(self._live.items()):
                self._leave(slot)
                self.metrics.failures.inc()
                self._deliver(row, failure)
            return
        if tokens:
            self._seconds_a_step = (time.monotonic() - started) * len({token.row for token in tokens}) / len(tokens)
        for token in tokens:
            if token.row in self._live:  # a stop string may have ended it within the call
                self._add(self._live[token.row], token)

    def _most_steps(self) -> int:
        """Returns the number of tokens of each row to decode before anybody is heard: as many as ``CALL_SECONDS`` allow
        at the rate of the last step, and one while inputs wait.
        """
        if self._rows or self._batches or not self._seconds_a_step:
            return 1
        return max(1, int(CALL_SECONDS / self._seconds_a_step))

    def _add(self, row: AnswerRow, token: SlotToken) -> None:
        """Delivers what a token adds to an answer, and frees the slot after the last one."""
        now, metrics = time.monotonic(), self.metrics
        if row.last:
            metrics.between_tokens.observe(now - row.last)
        else:
            metrics.first_token.observe(now - row.generation.arrived)
        row.last = now
        self._count(metrics.generated_tokens, 1)
        piece = row.text.add(token.token, token.logprob or 0.0, token.top, token.is_last, token.token in self._ends)
        if piece.finish is not None or token.is_last:
            self._live.pop(token.row)
            if not token.is_last and self.decoder is not None:
                self.decoder.leave(token.row)
        if piece.text or piece.tokens or piece.finish:
            self._deliver(row, piece)

    def _deliver(self, row: AnswerRow, event: AnswerPiece | RequestError) -> None:
        """Sends an event to the event loop, and cancels an answer whose reader is too slow."""
        generation = row.generation
        if generation.cancelled:
            return
        generation.sent += 1
        if generation.backlog is not None and generation.sent - generation.taken > generation.backlog:
            event = RequestError(400, "the answer was not read for too long, and was ended", "slow_reader")
            generation.cancelled = "slow reader"
        self._outbox.append(partial(generation.deliver, row.index, event))

    def _compute_batch(self) -> None:
        """Computes the batch that waits longest, together with those of equal options, up to the token budget."""
        chosen: list[Batch] = []
        with self._changed:
            tokens = 0
            for batch in list(self._batches):
                fits = tokens + batch.tokens <= self.limits.batch_tokens and batch.may_merge
                same = chosen and batch.compute == chosen[0].compute and batch.options == chosen[0].options
                if not chosen or (same and fits and chosen[0].may_merge):
                    self._batches.remove(batch)
                    chosen.append(batch)
                    tokens += batch.tokens
            self._running = chosen
        for batch in chosen:
            batch.ticket.release()
        if chosen:
            self._compute(chosen)
            self._running = []

    def _compute(self, batches: Sequence[Batch]) -> None:
        """Computes the inputs of several requests at once; if one has an error of its own, each on its own."""
        inputs = [value for batch in batches for value in batch.inputs]
        try:
            with interruptible(lambda: self._closing or all(batch.is_cancelled for batch in batches)):
                outputs = list(batches[0].compute(inputs, batches[0].options))
        except Interrupted:
            self.metrics.cancellations.labels("batch").inc(len(batches))
            for batch in batches:
                self._finish(batch, RequestError(503, "the server is shutting down; send the request again"))
            return
        except HeedfulError as error:
            if len(batches) > 1:
                for batch in batches:
                    self._compute([batch])
            else:
                self._finish(batches[0], RequestError(400, str(error)))
            return
        except RequestError as error:
            for batch in batches:
                self._finish(batch, error)
            return
        except Exception as error:
            failure = reported_failure(error, "a prediction")
            for batch in batches:
                self.metrics.failures.inc()
                self._finish(batch, failure)
            return
        self.metrics.batch_inputs.observe(len(inputs))
        for batch in batches:
            self._count(self.metrics.prompt_tokens, batch.tokens)
            self._finish(batch, outputs[: len(batch.inputs)])
            outputs = outputs[len(batch.inputs) :]

    def _finish(self, batch: Batch, result: list[Any] | RequestError) -> None:
        def deliver() -> None:
            if batch.future.done():
                return
            if isinstance(result, RequestError):
                batch.future.set_exception(result)
            else:
                batch.future.set_result(result)

        self._outbox.append(deliver)

    def _fail_all(self, error: RequestError) -> None:
        """Ends everything that runs or waits with an error."""
        with self._changed:
            self._has_ended = True
            for row in (*self._live.values(), *self._rows):
                self._deliver(row, error)
            for batch in (*self._running, *self._batches):
                self._finish(batch, error)
            self._live.clear()
            self._rows.clear()
            self._batches.clear()
            self._running = []

    def _count(self, counter: Any, tokens: int) -> None:
        self._tokens += tokens
        counter.inc(tokens)

    def _send(self) -> None:
        """Delivers the events of this turn on the event loop, in one call."""
        events, self._outbox = self._outbox, []
        if not events or self._loop is None:
            return

        def deliver() -> None:
            for event in events:
                event()

        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(deliver)

    def _hide_warning(self, record: logging.LogRecord) -> bool:
        """Counts a warning about a request's input instead of logging it: it may quote the input.

        Warnings of work that is not the service's, elsewhere in the process, are logged.
        """
        if WORKING_FOR.get() is not self:
            return True
        self.metrics.warnings.inc()
        return False

    def _show_warnings(self) -> None:
        """Removes the filter of the log after the last work of the service."""
        if self._closing and self._has_ended:
            logging.getLogger("heedful").removeFilter(self._hide_warning)


def failure_of(error: BaseException, where: str) -> RequestError:
    """Returns the error 500 that clients get for an unexpected error; it does not quote the error's message."""
    if is_out_of_memory(error):
        return RequestError(500, "out of memory; send fewer or shorter inputs", "out_of_memory")
    return RequestError(500, f"{where} failed ({type(error).__name__}); the server's log has the place", "internal")


def reported_failure(error: BaseException, where: str) -> RequestError:
    """Prints an unexpected error as ``report_error`` does, and returns ``failure_of`` it."""
    report_error(error, where)
    return failure_of(error, where)


def report_error(error: BaseException, where: str) -> None:
    """Prints an unexpected error in one line without its message, which may quote an input."""
    if os.environ.get("HEEDFUL_DEBUG") == "1":
        traceback.print_exception(error)
        return
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    print(
        f"heedful: {where} failed: {type(error).__name__}{place} (HEEDFUL_DEBUG=1 shows the traceback)", file=sys.stderr
    )
