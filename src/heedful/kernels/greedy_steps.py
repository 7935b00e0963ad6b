"""Greedy decoding of several tokens in one call of compiled code: embedding, stack, head and choice.

Around the compiled step of a small model PyTorch's operations and Python take as long as the step itself. Here a call
has them once for several steps.

Shapes: R rows, D model width, V vocabulary, E head size.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from heedful.cache import Cache
from heedful.heads import LanguageModel
from heedful.kernels.compiled_step import STREAM, CompiledStep, compiled_layout, step_of
from heedful.kernels.few_rows import CHOOSE, EMBED, Call, CompiledLinear, KeyValues, Operation, pointer, run
from heedful.kernels.fixed_cache import SlotCache
from heedful.layers.embedding import TokenEmbedding
from heedful.layers.norm import Identity
from heedful.layers.position import Learned, PositionScheme, Rotary, Rotation, Sinusoidal

POSITIONS = (PositionScheme, Sinusoidal, Learned, Rotary)  # without a bias
STEPS = 8  # in a call
DECODERS = "heedful.models.decoder"  # not imported: models import this room by their ``generate``
MOST_ENDS = 16  # as in the source


class GreedySteps:
    """Program of a decoder: the embedding of a token, its compiled step, the head, and the best token.

    Args:
        model: an optimised decoder.
        step: the compiled step of its stack.
    """

    def __init__(self, model: Any, step: CompiledStep) -> None:
        self.step, self.stack = step, model.decoder
        output: Any = model.head.output
        self.vocabulary = output.out_features
        self.logits, self.width = step.width, step.width + self.vocabulary
        self.table = model.embedding.token.weight.detach()
        operations = [
            Operation(kind=EMBED, y=STREAM, inputs=step.dim, weight=pointer(self.table), factor=model.embedding.factor),
            *step.norm_operations(model.decoder.embedding_norm, STREAM, STREAM),
            *step.operations,
            output.operation(STREAM, self.logits),
            Operation(kind=CHOOSE, x=self.logits, inputs=self.vocabulary),
        ]
        self.operations = (Operation * len(operations))(*operations)
        self.most_rows = min(step.most_rows, output.most_rows)
        self.parts = _parts(model)
        self.observed = (model.embedding, model.embedding.token, model.head, output)

    def fits(self, model: Any, cache: Any, rows: int) -> bool:
        """Returns True if nothing is changed or observed, and the cache has keys of ``rows`` rows without padding."""
        is_growing = type(cache) is Cache and cache.real is None and cache.length > 0
        return (
            (is_growing or type(cache) is SlotCache)
            and 0 < rows <= self.most_rows
            and all(before is now for before, now in zip(self.parts, _parts(model), strict=True))
            and self.table.data_ptr() == model.embedding.token.weight.data_ptr()
            and not any(
                part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part) for part in self.observed
            )
            and not self.step.is_changed()
            and self.step.fits(cache, rows)
        )

    def __call__(
        self,
        cache: Cache,
        tokens: Tensor,
        count: int,
        *,
        ends: Tensor,
        without_end: int,
        has_ended: Tensor,
        with_log_p: bool,
    ) -> list[tuple[Tensor, Tensor | None]]:
        """Reads ``tokens`` (R,) and chooses ``count`` more for each row, or fewer if all rows have ended before.

        ``ends`` are the tokens that end a row; the first ``without_end`` are none of them. ``has_ended`` (R,) is True
        for rows that have ended already.

        Returns the chosen tokens (R,) of each step, and their log p (R,), None without ``with_log_p``. All but the last
        are in the cache then.
        """
        rows, past = len(tokens), cache.length
        keys = (KeyValues * (2 * self.step.depth))()
        for layer, (own, _) in enumerate(cache.pairs):
            buffers, first = own.reserve(count)
            keys[2 * layer].columns = own.length + 1 - first  # of the first step
            self.step.set_addresses(keys[2 * layer], buffers, first)
        log_p = _numbers(count, rows) if with_log_p else None
        call = Call(bfloat16_keys=_are_bfloat16(cache), log_p=pointer(log_p), without_end=without_end, enough=rows)
        positions = torch.arange(past, past + count, device="cpu")[:, None]
        chosen = self._run(call, keys, tokens, positions, ends, has_ended)
        for own, _ in cache.pairs:
            own.length += len(chosen)
        cache.length, cache.rows = past + len(chosen), rows
        return [(own, None if log_p is None else log_p[step]) for step, own in enumerate(chosen)]

    def in_slots(self, cache: SlotCache, tokens: Tensor, lengths: Tensor, count: int, ends: Tensor) -> Tensor:
        """Reads ``tokens`` (R,) in the first R slots, which have ``lengths`` (R,), and chooses up to ``count`` more for
        each, fewer if a row ends before.

        Returns the chosen tokens (steps, R). All but the last are in the cache then.
        """
        keys = (KeyValues * (2 * self.step.depth))()
        for layer, (own, _) in enumerate(cache.pairs):
            self.step.set_addresses(keys[2 * layer], own.buffers, 0)
            keys[2 * layer].slots, keys[2 * layer].in_order = lengths.data_ptr(), True
        positions = torch.arange(count, device="cpu")[:, None] + lengths
        call = Call(bfloat16_keys=_are_bfloat16(cache), enough=1)
        return self._run(call, keys, tokens, positions, ends, torch.zeros(len(tokens), dtype=torch.bool, device="cpu"))

    def _run(self, call: Call, keys: Any, tokens: Tensor, positions: Tensor, ends: Tensor, has_ended: Tensor) -> Tensor:
        """Runs a ``call`` with these ``keys``; returns the chosen tokens (steps, R).

        ``positions`` (count, R or 1) are those of the tokens that are read.
        """
        rows, (count, position_rows) = len(tokens), positions.shape
        end, threads = int(positions[-1].max()) + 1, torch.get_num_threads()
        chosen = torch.empty(count + 1, rows, dtype=torch.int64, device="cpu")
        chosen[0] = tokens
        ended = torch.zeros(count + 1, rows, dtype=torch.uint8, device="cpu")
        ended[0] = has_ended
        for own in keys:
            own.queries_per_source = 1
        scratch, scores = _numbers(rows * self.width), _numbers(threads * end)
        zeros = _numbers(count, position_rows, self.step.dim).zero_()
        added = self.stack.position.embed(zeros, positions, end).float().contiguous()
        call.rows, call.threads, call.keys, call.max_keys = rows, threads, keys, end
        call.scratch, call.scores, call.tokens = scratch.data_ptr(), scores.data_ptr(), chosen.data_ptr()
        call.positions, call.position_rows = added.data_ptr(), position_rows
        call.ends, call.end_count, call.has_ended = ends.data_ptr(), len(ends), ended.data_ptr()
        encoding = self.stack.encoding(positions, positions, None)
        if isinstance(encoding, Rotation):
            cosine, sine = (table.float().contiguous() for table in (encoding.cos, encoding.sin))
            call.cosine, call.sine = cosine.data_ptr(), sine.data_ptr()
            call.rotation_stride = self.step.size if position_rows > 1 else 0
            call.step_rotation = position_rows * self.step.size
        done = run(self.operations, call, count)
        return chosen[1 : 1 + done]


def _numbers(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device="cpu")  # whatever the defaults are


def _are_bfloat16(cache: Cache | SlotCache) -> bool:
    """Returns True if keys and values are stored in bfloat16."""
    return cache.pairs[0][0].buffers[0].dtype is torch.bfloat16


def _parts(model: Any) -> tuple[Any, ...]:
    """Returns the parts besides the stack, and what the program has of them."""
    embedding, head = model.embedding, model.head
    return embedding, embedding.token, embedding.token.weight, head, head.output, model.decoder


def greedy_steps_of(model: Any, ends: Tensor) -> GreedySteps | None:
    """Returns the program of a model, made once; None if the compiled code lacks one of its parts.

    ``ends`` are the tokens that will end a row. The step of the stack must be computed in float32: rounded to bfloat16
    two logits are often equal.
    """
    if type(model).__module__ != DECODERS or model.decoder.layout is not compiled_layout or len(ends) > MOST_ENDS:
        return None
    if model not in PROGRAMS:
        step = step_of(model.decoder)
        PROGRAMS[model] = None if step is None or not _is_supported(model) else GreedySteps(model, step)
    program = PROGRAMS[model]
    return program if program is None or all(0 <= end < program.vocabulary for end in ends.tolist()) else None


def _is_supported(model: Any) -> bool:
    embedding, head, stack = model.embedding, model.head, model.decoder
    others = (embedding.segment, embedding.bigram, embedding.query)
    return (
        type(embedding) is TokenEmbedding
        and all(part is None for part in others)
        and embedding.token.weight.dtype is torch.float32
        and embedding.token.weight.is_contiguous()
        and type(head) is LanguageModel
        and head.factor == 1.0
        and head.cap is None
        and type(head.output) is CompiledLinear
        and head.output.weights is not None
        and type(stack.position) in POSITIONS
        and type(stack.projection) is Identity
        and set(stack.windows) == {None}
        and not any(map(itemgetter("training"), (vars(embedding), vars(head))))
        and not any("forward" in vars(part) for part in (embedding, embedding.token, head, head.output))
    )


PROGRAMS: WeakKeyDictionary[Any, GreedySteps | None] = WeakKeyDictionary()
