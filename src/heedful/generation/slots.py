"""Continuous batching: a batch of slots, whose rows join and leave between any two tokens.

Each row is decoded greedily or sampled with its own options, seed and limit. A row's result does not depend on the
other rows: with ``exact`` its log-probabilities are the same to the bit.

Shapes: R rows of a step, V vocabulary.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation.decoder_state import DecoderState, EncoderDecoderState, create_state, learned_positions
from heedful.generation.decoding import limits_of
from heedful.generation.exact_rows import EACH, exact_row_counts
from heedful.generation.options import FIELDS, Options
from heedful.generation.processors import (
    MinP,
    Processor,
    Temperature,
    TopK,
    TopP,
    TypicalP,
    process,
    processors_of,
)
from heedful.generation.token_choice import choose, top, uniform_numbers
from heedful.kernels import captured
from heedful.kernels.compiled_step import has_compiled_steps, reads_prompts
from heedful.kernels.decode_attention import store_for
from heedful.kernels.few_rows import CompiledLinear
from heedful.kernels.fixed_cache import SlotCache
from heedful.kernels.greedy_steps import STEPS, greedy_steps_of
from heedful.kernels.plan import attending, decoding_kernels, two_query_attention
from heedful.layers.attention import Attention
from heedful.util.exact import exact_dtype

Logprobs = dict["SlotRow", tuple[float, list[tuple[int, float]]]]
ALIGNED_SLOTS = 16  # kernels work in blocks of rows, and may round the rest of a block otherwise
WARPERS = (Temperature, TopK, TopP, MinP, TypicalP)  # processors that do not read the history


@dataclass(eq=False, kw_only=True)
class SlotRow:
    """A row of a ``SlotDecoder``.

    Attributes:
        ids: the prompt.
        limit: maximum number of new tokens.
        tokens: new tokens so far.
        is_live: True once the prompt has been read, until the row ends or leaves.
        prompt_logprobs: if requested, of each token of the prompt that has been read but the first, its
            log-probability and the most probable tokens at its place.
    """

    ids: list[int]
    limit: int
    tokens: list[int] = field(default_factory=list)
    is_live: bool = False
    top_logprobs: int | None = None
    prompt_logprobs: list[tuple[float, list[tuple[int, float]]]] | None = None
    state: DecoderState  # of the prompt
    prompt: Iterator[Tensor]  # reads the prompt's next chunk, without its last token
    read: int = 0  # tokens of the prompt that have been read
    processors: list[Processor]  # those that read the history
    warpers: tuple[Processor, ...]  # the others, which come after them
    history: Tensor | None  # (1, length of the prompt + limit), if a processor reads it
    numbers: list[float] | None  # uniform numbers, if tokens are sampled

    @property
    def length(self) -> int:
        """Number of tokens that have been read: all but the newest."""
        return len(self.ids) + len(self.tokens) - 1

    @property
    def newest(self) -> int:
        """The last token, which the next step reads."""
        return self.tokens[-1] if self.tokens else self.ids[-1]

    @property
    def chooser(self) -> tuple[Any, ...]:
        """Key of the rows whose tokens are chosen together."""
        return self.numbers is not None, *self.warpers

    def scores(self, scores: Tensor) -> Tensor:
        """Returns the scores (1, V) of the next token after the processors that read the history."""
        history = None if self.history is None else self.history[:, : self.length + 1]
        return process(self.processors, history, scores)  # type: ignore[arg-type]  # there is one if they read it

    def forget(self) -> None:
        """Frees the keys and values with which the prompt was read."""
        self.prompt = iter(())
        vars(self.state).pop("cache", None)

    def append(self, token: int) -> None:
        """Appends a new token."""
        self.tokens.append(token)
        if self.history is not None:
            self.history[0, self.length] = token


class SlotToken(NamedTuple):
    """New token of a row.

    Attributes:
        logprob: its log-probability under the model itself, before any processor; None unless the row asked for it.
        top: the most probable tokens with their log-probabilities, best first, as many as the row asked for.
        is_last: True if the row has ended, by an end token or its limit; it has then left its slot.
    """

    row: SlotRow
    token: int
    logprob: float | None
    top: list[tuple[int, float]]
    is_last: bool


class SlotGraph:
    """A captured step of all slots: maps tokens (R,) to the logits (R, V), at the positions of the cache.

    Attributes:
        busy: locked while it lives: it has the memory of one decoder.
    """

    def __init__(self, reader: DecoderState, tokens: Tensor) -> None:
        self.busy, self._tokens = Lock(), tokens
        self._replay = captured.capture(lambda: reader.last_logits(reader.read(tokens[:, None])), tokens.device)
        self._tables = list(reader.model.buffers())  # a longer text replaces a table of positions that the graph reads

    def __call__(self, tokens: Tensor) -> Tensor:
        """Returns the logits, which the next call overwrites."""
        self._tokens.copy_(tokens)
        return self._replay()


class SlotDecoder:
    """Decodes rows that join and leave at any step, one token of every row a step.

    A row that joins waits until its prompt has been read: each step, before the tokens of the live rows, reads a part
    of the prompts, so that a long prompt delays the other rows by no more than that. Calls must come from one thread.

    Args:
        model: a decoder with a language-model head; it is put in evaluation mode.
        slots: number of rows that fit.
        capacity: maximum number of tokens of a row, prompt and new tokens.
        chunk: number of tokens of prompts that are read in a step, by default 64, or 128 for 16 slots and more, whose
            steps take longer. A longer prompt is read in equal parts, each of at most one and a half times as many.
        exact: computes the same bits for a row whatever the other rows are (on a GPU always: a step there computes all
            slots). The price depends on the kernels: see docs/decoding.md. The number of threads must not change
            afterwards.

    Raises:
        HeedfulError: for a model that is no decoder with a language-model head, and for ``exact`` if a row's bits
            depend on its place in the batch with this model and processor.

    >>> import heedful
    >>> from heedful.generation import resolve
    >>> decoder = SlotDecoder(heedful.create("gpt-micro", seed=0), slots=2, capacity=64)
    >>> row = decoder.join([1, 2, 3], resolve({}), limit=5)
    >>> while decoder.rows:
    ...     tokens = decoder.step()
    >>> len(row.tokens), tokens[0].is_last, decoder.free
    (5, True, 2)
    """

    def __init__(self, model: Any, *, slots: int, capacity: int, chunk: int | None = None, exact: bool = False) -> None:
        chunk = (64 if slots < 16 else 128) if chunk is None else chunk
        for name, value in {"slots": slots, "capacity": capacity, "chunk": chunk}.items():
            if value < 1:
                raise HeedfulError(f"{name} is {value}; give 1 or more")
        self.model, self.slots, self.chunk = model, slots, chunk
        with torch.inference_mode(), decoding_kernels(model):
            self._reader = create_state(model, torch.zeros(1, 1, dtype=torch.int64), None)
            if isinstance(self._reader, EncoderDecoderState):
                raise HeedfulError("slots are for decoders; an encoder-decoder decodes whole batches with generate")
            stack, model = self._reader.stack, model.eval()
            self._is_joint = reads_prompts(model.decoder)
            self.capacity = min(capacity, learned_positions(stack) or capacity)
            self._reader.make_cache(None)
            self._reader.prefill()  # the cache then has the shapes and the dtype of keys and values
            self._prefix, self._attend, self._graph = self._reader.cache, None, None
            is_fixed = model.device.type != "cpu" or captured.can_capture(model.device)
            if exact and not is_fixed:
                self._make_exact()
            else:
                self._make_cache(slots, is_fixed)
                self._row_counts, self._head_rows = [slots] if is_fixed else list(range(1, slots + 1)), slots
                self._graph = self._captured_step() if is_fixed else None
        self._live: list[SlotRow] = []  # row i is in slot i
        self._waiting: list[SlotRow] = []  # the first one is being read
        self._end = frozenset(model.config.special.end)
        self._ends, self._may_choose_several = torch.tensor(sorted(self._end), dtype=torch.int64), not exact

    def _make_cache(self, slots: int, is_fixed: bool = False) -> None:
        self._cache = SlotCache(
            self._prefix,
            slots,
            capacity=self.capacity,
            windows=self._reader.stack.windows,
            is_fixed=is_fixed,
            together=self.chunk if self._is_joint else 1,
            store=store_for(self.model.device),
        )
        self._reader.cache = self._cache  # type: ignore[assignment]  # it has all that a step uses

    def _make_exact(self) -> None:
        """Chooses the numbers of rows that steps compute, and the kernel of attention, so that a row has the same bits
        in each of them.
        """
        aligned = -(-self.slots // ALIGNED_SLOTS) * ALIGNED_SLOTS
        limits = [part.most_rows for part in self.model.head.modules() if isinstance(part, CompiledLinear)]
        stack = self.model.decoder
        parts = [] if has_compiled_steps(stack) else [p.out for p in stack.modules() if isinstance(p, Attention)]
        for slots, attend in product(dict.fromkeys((self.slots, aligned)), (None, two_query_attention)):
            self._make_cache(slots)
            self._cache.compiled_rows, self._head_rows, self._attend = slots, min([slots, *limits]), attend
            with attending(self.model, attend):
                self._row_counts = exact_row_counts(self._logits, self._cache, self.capacity, parts)
            if self._row_counts:
                break
        else:
            raise HeedfulError(
                "exact is not possible: with this model, processor and number of threads "
                f"({torch.get_num_threads()}) the bits of a row depend on its place in the batch; leave exact out, or "
                "try one thread (OMP_NUM_THREADS=1), compiled kernels or bfloat16 weights"
            )
        any_number = range(1, min(slots, EACH) + 1)
        self._is_joint = self._is_joint and self._row_counts[: len(any_number)] == list(any_number)

    @staticmethod
    def takes(options: Options) -> bool:
        """Returns True if rows can have these options, False if they need ``generate``."""
        return refused_option(options) is None

    @property
    def free(self) -> int:
        """Number of free slots."""
        return self.slots - len(self._live) - len(self._waiting)

    @property
    def rows(self) -> list[SlotRow]:
        """Rows that have joined and not ended: those that decode, then those that wait for their prompt."""
        return [*self._live, *self._waiting]

    def join(
        self,
        ids: Sequence[int],
        options: Options,
        *,
        limit: int,
        sample: int = 0,
        top_logprobs: int | None = None,
        prompt_logprobs: bool = False,
    ) -> SlotRow:
        """Gives a free slot to a new row.

        Args:
            ids: the prompt.
            options: of greedy decoding or sampling, resolved. Stop strings are left to the caller, who sees the texts.
            limit: maximum number of new tokens, in place of ``max_new_tokens`` and ``max_length``; fewer if the model
                has learned positions for fewer.
            sample: index among samples of the same prompt and seed, as among those of ``num_return_sequences``.
            top_logprobs: None: no log-probabilities; 0: those of the new tokens; k: those of the k most probable
                tokens too.
            prompt_logprobs: computes those of the prompt's tokens too, given the tokens before them. A part of the
                prompt at a time: its logits are (``chunk``, V).

        Raises:
            HeedfulError: for a limit below 1, without a free slot, for options that ``takes`` refuses, and if prompt
                and limit do not fit.
        """
        if limit < 1:
            raise HeedfulError(f"limit is {limit}; give 1 or more")
        refused = refused_option(options)
        if refused is not None:
            value = getattr(options, refused)
            raise HeedfulError(f"{refused}={value} does not work in slots; decode this prompt with generate")
        if not self.free:
            raise HeedfulError(f"all {self.slots} slots are taken; wait until a row has ended")
        with torch.inference_mode():
            row = self._row(list(ids), options, limit, sample, top_logprobs)
        row.prompt_logprobs = [] if prompt_logprobs else None
        self._waiting.append(row)
        return row

    def _row(self, ids: list[int], options: Options, limit: int, sample: int, top_logprobs: int | None) -> SlotRow:
        state = create_state(self.model, torch.tensor([ids], dtype=torch.int64), None)
        positions = learned_positions(state.stack)
        if positions is not None:
            limit = max(1, min(limit, positions + 1 - len(ids)))
        limits = limits_of(state, replace(options, max_new_tokens=limit, max_length=None))
        if len(ids) + limit - 1 > self.capacity:
            raise HeedfulError(
                f"the prompt has {len(ids)} tokens and may get {limit} more, but a slot has room for {self.capacity}; "
                "shorten the prompt, or lower max_new_tokens"
            )
        unread = len(ids) - 1
        state.ids = state.ids[:, :unread]
        state.make_cache(0)
        parts = max(1, round(unread / self.chunk))
        state.prefill_chunk_size = min(-(-unread // parts), options.prefill_chunk_size or unread)
        processors = processors_of(options, state, limits, self.model.config.special.end)
        readers = [processor for processor in processors if not isinstance(processor, WARPERS)]
        history = torch.full((1, len(ids) + limit), -1, device=self.model.device) if readers else None
        if history is not None:
            history[:, : len(ids)] = state.prompt
        numbers = None
        if options.do_sample:
            numbers = uniform_numbers(state.given_ids, sample + 1, limit, options.seed)[sample].tolist()
        return SlotRow(
            ids=ids,
            limit=limit,
            top_logprobs=top_logprobs,
            state=state,
            prompt=state.prefill_hidden(),
            processors=readers,
            warpers=tuple(processor for processor in processors if isinstance(processor, WARPERS)),
            history=history,
            numbers=numbers,
        )

    def leave(self, row: SlotRow) -> None:
        """Frees the slot of a row at once, also while its prompt is being read; a row that has ended has left."""
        if row in self._waiting:
            self._waiting.remove(row)
            row.forget()
        elif row.is_live:
            slot, last = self._live.index(row), self._live.pop()
            row.is_live = False
            if last is not row:
                with torch.inference_mode():
                    self._cache.move(len(self._live), slot)
                self._live[slot] = last
            if (
                self._is_joint and self._waiting and self._waiting[0].read
            ):  # it is read into the slot after the live ones
                with torch.inference_mode():
                    self._cache.move(len(self._live) + 1, len(self._live))

    @torch.inference_mode()
    def step(self, most: int = 1) -> list[SlotToken]:
        """Reads about ``chunk`` tokens of prompts, then decodes one token of every live row.

        A row whose prompt has been read gets its first token in the same step. While no prompt waits, up to ``most``
        tokens of every row come at once where compiled code can choose them: all rows are greedy, and without
        processors, log-probabilities and ``exact``. They end with the first row that ends.
        """
        if self.model.observers:
            raise HeedfulError("record() and intervene() do not work in slots; leave them before the next step")
        if self.model.training:
            self.model.eval()
        with decoding_kernels(self.model), attending(self.model, self._attend):
            if self._waiting and self._is_joint:
                return self._read_and_decode()
            if self._waiting:
                self._read()
            if not self._live:
                return []
            return self._decode_several(min(most, STEPS)) or self._decode()

    def _read_and_decode(self) -> list[SlotToken]:
        """Reads tokens of waiting prompts and decodes one token of every live row, in one call."""
        live, ends = list(self._live), list(range(len(self._live)))  # rows, and those of the call with their logits
        tokens, lengths, slots = [row.newest for row in live], [row.length for row in live], list(ends)
        room, wanted = self.chunk, []  # wanted: rows with log-probabilities of the prompt, and where they begin
        for row in self._waiting:
            count = min(len(row.ids) - row.read, room)
            if not count:
                break
            if not row.read:
                self._cache.clear(len(ends))
            if row.prompt_logprobs is not None:
                wanted.append((row, row.read, len(tokens), count))
            places = range(row.read, row.read + count)
            tokens += row.ids[row.read : row.read + count]
            lengths += places
            slots += [len(ends)] * count
            row.read, room = row.read + count, room - count
            if row.read < len(row.ids):
                break
            ends.append(len(tokens) - 1)
        new = self._waiting[: len(ends) - len(live)]
        del self._waiting[: len(new)]
        self._cache.begin(lengths, slots)
        hidden = self._reader.read(torch.tensor(tokens)[:, None])
        for row, first, place, count in wanted:
            self._add_prompt_logprobs(row, hidden[place : place + count].transpose(0, 1), first)
        for row in new:
            self._start(row)
        return self._choose(live + new, self._last_logits(hidden[ends])) if ends else []

    def _start(self, row: SlotRow) -> None:
        """Makes a row whose prompt has been read live."""
        row.is_live = True
        self._live.append(row)
        row.forget()

    def _decode(self) -> list[SlotToken]:
        """Decodes one token of every live row."""
        rows = list(self._live)
        count = self._row_counts[bisect_left(self._row_counts, len(rows))]
        padding = [0] * (count - len(rows))  # rows that nobody reads
        logits = self._logits([row.newest for row in rows] + padding, [row.length for row in rows] + padding)
        return self._choose(rows, logits[: len(rows)])

    def _decode_several(self, most: int) -> list[SlotToken]:
        """Decodes up to ``most`` tokens of every live row in one call; none if compiled code does not choose them."""
        rows = list(self._live)
        count = min(most, *(row.limit - len(row.tokens) for row in rows))
        if count < 2 or self._waiting or not self._may_choose_several or not all(map(_is_plain, rows)):
            return []
        program = greedy_steps_of(self.model, self._ends)
        if program is None or len(rows) > program.most_rows:
            return []
        lengths = [row.length for row in rows]
        self._cache.begin(lengths, steps=count)
        if not program.fits(self.model, self._cache, len(rows)):
            return []
        tokens = torch.tensor([row.newest for row in rows])
        chosen = program.in_slots(self._cache, tokens, torch.tensor(lengths), count, self._ends)
        return [token for own in chosen.tolist() for token in self._append(rows, own, {})]

    def _logits(self, tokens: list[int], lengths: list[int]) -> Tensor:
        """Returns the logits (R, V) after a token in each of the first R slots, which hold ``lengths`` tokens."""
        self._cache.begin(lengths)
        if self._graph is not None:
            return self._graph(torch.tensor(tokens))
        hidden = self._reader.read(torch.tensor(tokens, device=self.model.device)[:, None])
        return self._last_logits(hidden)

    def _last_logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits (R, V) of hidden states (R, 1, D)."""
        if len(hidden) <= self._head_rows:
            return self._reader.last_logits(hidden)
        return torch.cat([self._reader.last_logits(part) for part in hidden.split(self._head_rows)])

    def _captured_step(self) -> SlotGraph | None:
        """Returns the captured step of all slots, if the model has any (``heedful.optimize``)."""
        model, device = self.model, self.model.device
        if model.captured is None or model.captured.refused or not captured.can_capture(device):
            return None
        self._cache.begin([0] * self.slots)
        graph: SlotGraph | None = model.captured.claim(
            model,
            self._cache,
            lambda: SlotGraph(self._reader, torch.zeros(self.slots, dtype=torch.int64, device=device)),
        )
        return graph

    def _read(self) -> None:
        """Reads chunks of waiting prompts: one, then more as long as all have at most ``chunk`` tokens together."""
        read = 0
        while self._waiting:
            row = self._waiting[0]
            unread = len(row.ids) - 1 - row.read
            count = min(unread, row.state.prefill_chunk_size)
            if read and count and read + count > self.chunk:
                break
            if count:
                hidden = next(row.prompt)
                if row.prompt_logprobs is not None:
                    self._add_prompt_logprobs(row, hidden, row.read)
            read, row.read = read + count, row.read + count
            if count < unread:
                break
            self._waiting.pop(0)
            self._cache.fill(len(self._live), row.state.cache, len(row.ids) - 1)
            self._start(row)

    def _add_prompt_logprobs(self, row: SlotRow, hidden: Tensor, first: int) -> None:
        """Adds the log-probabilities of the tokens after those from ``first`` on, with ``hidden`` states (1, t, D)."""
        assert row.prompt_logprobs is not None
        ids = row.ids[first + 1 : first + 1 + hidden.size(1)]
        if not ids:
            return
        logits = row.state.all_logits(hidden[:, : len(ids)])[0]
        totals = logits.logsumexp(1, keepdim=True)
        chosen = (logits.gather(1, torch.tensor(ids, device=logits.device)[:, None]) - totals)[:, 0].tolist()
        best: list[list[tuple[int, float]]] = [[] for _ in ids]
        if row.top_logprobs:
            values, tokens = top(logits, min(row.top_logprobs, logits.size(1)))
            pairs = zip(tokens.tolist(), (values - totals).tolist(), strict=True)
            best = [list(zip(*pair, strict=True)) for pair in pairs]
        row.prompt_logprobs += zip(chosen, best, strict=True)

    # ------------------------------------------------------------------------------------------------------- tokens

    def _choose(self, rows: list[SlotRow], logits: Tensor) -> list[SlotToken]:
        """Returns the next token of each of the ``rows``, whose ``logits`` are (R, V); rows that end leave."""
        choices = self._choices(rows, logits)
        return self._append(rows, choices, token_logprobs(rows, logits, choices))

    def _append(self, rows: list[SlotRow], choices: list[int], logprobs: Logprobs) -> list[SlotToken]:
        """Appends the chosen token of each of the ``rows``; rows that end leave."""
        tokens = []
        for row, choice in zip(rows, choices, strict=True):
            row.append(choice)
            is_last = choice in self._end or len(row.tokens) == row.limit
            if is_last:
                self.leave(row)
            logprob, best = logprobs.get(row, (None, []))
            tokens.append(SlotToken(row, choice, logprob, best, is_last))
        return tokens

    def _choices(self, rows: list[SlotRow], logits: Tensor) -> list[int]:
        processed = [(index, row) for index, row in enumerate(rows) if row.processors]
        wants_logits = processed and any(row.top_logprobs is not None for row in rows)
        scores = logits.clone() if wants_logits else logits  # processors may overwrite them
        for index, row in processed:
            part = scores[index : index + 1]
            new = row.scores(part)
            if new is not part:
                part.copy_(new)
        groups: dict[tuple[Any, ...], list[int]] = {}
        for index, row in enumerate(rows):
            groups.setdefault(row.chooser, []).append(index)
        choices = [0] * len(rows)
        for (is_sampled, *warpers), indices in groups.items():
            # a sum of a single row may be split over threads, and rounds otherwise; log_sum_exp takes 16 rows at a time
            several = indices + indices[-1:] if warpers and len(indices) % 16 == 1 else indices
            group = scores if several == list(range(len(rows))) else scores[several]
            numbers = None
            if is_sampled:
                drawn = [rows[index].numbers[len(rows[index].tokens)] for index in several]  # type: ignore[index]  # sampled rows have them
                numbers = torch.tensor(drawn, dtype=exact_dtype(scores.device), device=scores.device)
            tokens = choose(process(warpers, group[:, :0], group), numbers)  # warpers do not read the history
            for index, token in zip(indices, tokens.tolist(), strict=False):
                choices[index] = token
        return choices


def _is_plain(row: SlotRow) -> bool:
    """Returns True for a greedy row without processors and log-probabilities."""
    return row.numbers is None and row.top_logprobs is None and not row.processors and not row.warpers


def token_logprobs(rows: list[SlotRow], logits: Tensor, tokens: list[int]) -> Logprobs:
    """Returns the log-probabilities of the ``tokens`` and of the most probable tokens, for rows that want them."""
    wanted = [index for index, row in enumerate(rows) if row.top_logprobs is not None]
    if not wanted:
        return {}
    several = wanted * 2 if len(wanted) == 1 else wanted  # a sum of a single row may be split over threads
    group = logits if several == list(range(len(rows))) else logits[several]
    totals = group.logsumexp(1, keepdim=True)
    chosen = torch.tensor([tokens[index] for index in several], device=logits.device)
    logprobs = (group.gather(1, chosen[:, None]) - totals)[:, 0].tolist()
    result: dict[SlotRow, tuple[float, list[tuple[int, float]]]] = {}
    for place, index in enumerate(wanted):
        row, best = rows[index], []
        if row.top_logprobs:
            values, ids = top(group[place : place + 1], min(row.top_logprobs, group.size(1)))
            best = list(zip(ids[0].tolist(), (values - totals[place])[0].tolist(), strict=True))
        result[row] = logprobs[place], best
    return result


def refused_option(options: Options) -> str | None:
    """Returns the name of an option that needs a whole batch of its own, or None."""
    method = options.variant
    if method.name not in ("greedy", "sampling"):
        return next(name for name in method.switches if getattr(options, name) != FIELDS[name].default)
    if options.context_keep:
        return "context_keep"
    return "num_return_sequences" if options.num_return_sequences > 1 else None
