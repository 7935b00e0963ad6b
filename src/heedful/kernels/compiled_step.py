"""Layout of a compiled model: all blocks of a stack in one call, for a decoding step of few rows or whole sequences.

Shapes: B sequences, T tokens of the longest, R rows (one token each), M rows that are read, D model width, H query
heads, G key-value heads, E head size, S keys.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import repeat
from operator import contains, itemgetter, ne
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules import module

from heedful.cache import Cache, Growing, Preallocated
from heedful.errors import HeedfulError
from heedful.kernels.few_rows import (
    ADD,
    APPEND,
    CROSS_ATTENTION,
    LAYER_NORM,
    MULTIPLY,
    RMS_NORM,
    SELF_ATTENTION,
    UNLIMITED,
    Call,
    CompiledLinear,
    KeyValues,
    Operation,
    has_tiles,
    is_interleaved,
    pointer,
    run,
    run_sequences,
)
from heedful.kernels.fixed_cache import RingCache, SlotCache, StaticAttention, StaticCache
from heedful.kernels.fused_projections import FusedAttention
from heedful.kernels.unpadded import SortedTokenRow, is_standard, real_tokens, tokens_needed, unpadded_inference
from heedful.layers.attention import Attention
from heedful.layers.attention_kernels import Bias, float_mask, fused_attention
from heedful.layers.block import Block, Residual, Skip
from heedful.layers.dropout import Dropout, DropPath
from heedful.layers.feedforward import FeedForward
from heedful.layers.mask import Mask
from heedful.layers.norm import Identity, LayerNorm, RMSNorm
from heedful.layers.position import (
    Alibi,
    Learned,
    LearnedRelative,
    PositionEncoding,
    PositionScheme,
    Relative,
    Rotary,
    Rotation,
    Sinusoidal,
)
from heedful.layers.relative import SharedTerms
from heedful.stack import ALL_TOKENS, Stack, StackInput, block_arguments, stack_embedding

StepCache = Cache | StaticCache | SlotCache
POSITIONS = (PositionScheme, Sinusoidal, Learned, LearnedRelative, Rotary, Alibi, Relative)
PROMPT_ROWS = 64  # compiled kernels that are the fastest up to so many rows read prompts too
STREAM = 0  # offset of the residual stream, the first buffer
WITHOUT_BIAS = (PositionScheme, Sinusoidal, Learned, Rotary)
GROWING = (Growing, Preallocated)
STORED = (None, torch.float32, torch.bfloat16)  # dtypes of keys and values
PROMPT_LEAST = 32  # tokens of prompts from which threads divide tokens among them, not outputs
HEAD_SIZES = 16  # whole sequences need a multiple


def compiled_layout(stack: Stack, batch: StackInput) -> Tensor:
    """Runs a decoding step of at most ``most_rows`` rows in one call of compiled code.

    On processors with AVX512-VNNI whole sequences run in one call, too, without padding: the inputs of an encoder, and
    texts and prompts of a decoder.

    Falls back to ``unpadded_inference``, with the same result, for other prompts and more rows, with gradients enabled,
    while a part is observed or drops activations, with unsupported parts, and for caches of unsupported shapes or
    dtypes.
    """
    x, cache = batch.x, batch.cache
    if torch.is_grad_enabled() or not x.is_cpu or not len(x):
        return unpadded_inference(stack, batch)
    step = step_of(stack)
    if step is None or step.is_changed():
        return unpadded_inference(stack, batch)
    if x.size(1) == 1 and isinstance(cache, StepCache):
        fits = len(x) <= step.most_rows_with(cache) and step.fits(cache, len(x))
        return step(stack, batch, cache) if fits else unpadded_inference(stack, batch)
    if not step.fits_sequences(batch):
        return unpadded_inference(stack, batch)
    return step.encoded(stack, batch) if cache is None else step.prompted(stack, batch)


def reads_prompts(stack: Stack) -> bool:
    """Returns True if a stack has a compiled step that is about as fast as other kernels also for prompts."""
    step = step_of(stack) if stack.layout is compiled_layout else None
    return step is not None and step.most_rows >= PROMPT_ROWS


def stored_dtype(stack: Stack, rows: int) -> torch.dtype | None:
    """Returns the dtype in which keys and values of ``rows`` prompts are best stored; None: in which they are computed.

    Beside weights of 8 or 4 bits it is bfloat16, which a compiled step reads in half the time. Other kernels would
    convert all keys in each step, so it is float32 where compiled ones take few rows, and beams or samples of a prompt
    may be too many. A memory is stored as it is computed, and all must be of one dtype.
    """
    step = step_of(stack) if stack.layout is compiled_layout else None
    if step is None or not step.attends_in_bfloat16 or step.most_rows < max(rows, PROMPT_ROWS):
        return None
    return torch.bfloat16 if all(len(heads) == 1 for heads in step.heads) else None


def has_compiled_steps(stack: Stack) -> bool:
    """Returns True if a stack decodes by a compiled step, which leaves its parts, and their hooks, uncalled."""
    return stack.layout is compiled_layout and step_of(stack) is not None


def step_of(stack: Stack) -> CompiledStep | None:
    """Returns the compiled step of a stack, made once; None if the stack has an unsupported part."""
    if stack not in STEPS:
        STEPS[stack] = CompiledStep(stack) if is_supported(stack) else None
    return STEPS[stack]


def is_supported(stack: Stack) -> bool:
    """Returns True if the compiled code has all parts of a stack."""
    norms = (Identity, LayerNorm, RMSNorm)
    return (
        type(stack.position) in POSITIONS
        and type(stack.norm) in norms
        and not any("forward" in vars(part) for part in stack.modules())  # of an instance
        and all(is_standard(block) and _has_parts(block, norms) for block in stack.block)
    )


def _has_parts(block: Block, norms: tuple[type, ...]) -> bool:
    residuals: list[Any] = [block.attention_residual, block.feed_forward_residual]
    attentions: list[Any] = [block.attention]
    linears: list[Any] = []
    if type(block.cross_attention) is Attention:
        residuals.append(block.cross_residual)
        attentions.append(block.cross_attention)
        linears += [block.cross_attention.query]
    elif type(block.cross_residual) is not Skip:
        return False
    feed_forward = block.feed_forward
    if type(block.attention) is not FusedAttention or type(feed_forward) is not FeedForward:
        return False
    linears += [block.attention.projections, feed_forward.up, feed_forward.down]
    linears += [part.out for part in attentions] + ([] if feed_forward.gate is None else [feed_forward.gate])
    slots = [getattr(residual, slot) for residual in residuals for slot in ("before", "out", "after")]
    head_norms = [norm for part in attentions for norm in (part.query_norm, part.key_norm)]
    return (
        all(type(linear) is CompiledLinear and linear.weights is not None for linear in linears)
        and all(type(slot) in norms for slot in slots)
        and all(type(norm) in (Identity, RMSNorm) for norm in head_norms)
        and all(part.attend is fused_attention for part in attentions)
    )


class CompiledStep:
    """Program of a stack: its blocks and its last norm as a list of operations, made once.

    Args:
        stack: with the parts of ``is_supported``.
    """

    def __init__(self, stack: Stack) -> None:
        self.depth, self.dim = len(stack.block), stack.config.dim
        blocks: list[Any] = list(stack.block)
        self.size: int = blocks[0].attention.head_dim
        attentions = [part for part in stack.modules() if isinstance(part, Attention)]
        mixed = max(part.heads for part in attentions) * self.size  # heads may be pruned
        inner = max(block.feed_forward.up.out_features for block in blocks)
        projected = max(block.attention.projections.out_features for block in blocks)
        self.projected = self.dim  # offsets of buffers
        self.mixed = self.projected + max(projected, mixed)  # cross-attention has its query alone there
        self.normed = self.shared = self.mixed + mixed  # of whole sequences only those before hold all rows at once
        self.temporary, self.inner = self.normed + self.dim, self.normed + 2 * self.dim
        self.gate, self.parallel = self.inner + inner, self.inner + 2 * inner
        self.width = self.parallel + (self.dim if blocks[0].is_parallel else 0)
        formats = {linear.weights.values.dtype for linear in _compiled_linears(stack) if linear.weights is not None}
        self.attends_in_bfloat16 = formats.isdisjoint((torch.float32, torch.float16))
        self.is_causal = stack.config.causal
        self.reads_sequences = has_sequences(stack) and is_interleaved()
        if torch.bfloat16 in formats and has_tiles():
            self.reads_sequences = False  # PyTorch multiplies in tiles, too
        self.float_copies: list[Tensor] = []  # tensors whose addresses the operations hold
        operations: list[Operation] = []
        for number, block in enumerate(blocks):
            operations += self._block(block, number)
        operations += self.norm_operations(stack.norm, STREAM, STREAM)
        self.operations = (Operation * len(operations))(*operations)
        self.most_rows = min(linear.most_rows for linear in _compiled_linears(stack))
        self.heads = [[part.heads for part in block.modules() if isinstance(part, Attention)] for block in blocks]
        self.kv_heads = [[part.kv_heads for part in block.modules() if isinstance(part, Attention)] for block in blocks]
        self.hooks = [hooks for part in stack.modules() for hooks in (part._forward_hooks, part._forward_pre_hooks)]
        self.hooks += [module._global_forward_hooks, module._global_forward_pre_hooks]
        empty = (Identity, Dropout, DropPath, nn.ModuleList)
        self.states = [vars(part) for part in stack.modules() if not isinstance(part, empty)]
        self.attentions = [vars(part) for part in attentions]
        self.fitting_caches: WeakSet[StepCache] = WeakSet()  # caches that fit
        self.dropouts = [vars(part) for part in stack.modules() if isinstance(part, Dropout | DropPath)]
        self.parts = [part._modules for part in stack.modules() if part._modules]
        self.parts_before = [dict(parts) for parts in self.parts]

    def most_rows_with(self, cache: StepCache) -> int:
        """Returns the number of rows up to which the program runs: it is the fastest, or ``cache`` needs its bits, or
        has rows that share a slot.
        """
        if not isinstance(cache, SlotCache):
            return self.most_rows
        return UNLIMITED if cache.is_shared else max(self.most_rows, cache.compiled_rows)

    def is_changed(self) -> bool:
        """Returns True if a part is observed, drops activations, or was replaced after the program was made."""
        if any(self.hooks) or any(map(contains, self.states, repeat("forward"))):
            return True
        for part in self.attentions:
            if part.get("probe") is not None or part["training"] or part["attend"] is not fused_attention:
                return True
        return any(map(itemgetter("training"), self.dropouts)) or any(map(ne, self.parts, self.parts_before))

    def fits(self, cache: StepCache, rows: int) -> bool:
        """Returns True if the cache has keys and values of ``rows`` rows, which the program can read and append to.

        All must be float32, or all bfloat16, with the stack's heads; those of a memory too, if the stack has
        cross-attention.
        """
        pairs: Any = cache.pairs
        if cache not in self.fitting_caches:  # its layers change their rows together, and nothing else
            if len(pairs) != self.depth or not all(map(self._fits_layer, pairs, self.kv_heads)):
                return False
            if len({own.buffers[0].dtype for own, _ in pairs}) != 1:
                return False
            self.fitting_caches.add(cache)
        own, cross = pairs[0]
        is_shared = isinstance(own, StaticAttention) and own.is_shared
        if not own.buffers or (len(own.buffers[0]) != rows and not is_shared):
            return False
        if isinstance(own, Growing) and own.read_only:
            return False
        return len(self.kv_heads[0]) == 1 or (bool(cross.pair) and rows % len(cross.pair[0]) == 0)

    def _fits_layer(self, pair: tuple[Any, Any], heads: list[int]) -> bool:
        """Returns True if the keys and values of a layer are as the program reads them."""
        own, cross = pair
        if isinstance(own, StaticAttention) and own.new_columns.dtype is not torch.int64:
            return False
        stored = (own.buffers, cross.pair)[: len(heads)]
        if any(len(tensors) != 2 or len(tensors[0]) == 0 for tensors in stored):
            return False
        dtype = own.buffers[0].dtype
        return (
            dtype in (torch.float32, torch.bfloat16)
            and all(tensor.dtype is dtype for tensors in stored for tensor in tensors)
            and all(tensor.stride()[2:] == (self.size, 1) for tensor in own.buffers)
            and all(
                key.shape == value.shape == (len(key), count, key.size(2), self.size)
                for (key, value), count in zip(stored, heads, strict=True)
            )
        )

    # ------------------------------------------------------------------------------------------------- the program

    def _block(self, block: Block, number: int) -> list[Operation]:
        def attention(part: Any, projection: Any, kind: int, x: int, y: int, accumulate: bool) -> list[Operation]:
            width, own_kinds = projection.out_features, [APPEND] if kind == SELF_ATTENTION else []
            return [
                projection.operation(x, self.projected),
                *(self._attention(part, kind, number, width) for kind in (*own_kinds, kind)),
                part.out.operation(self.mixed, y, accumulate),
            ]

        def feed_forward(x: int, y: int, accumulate: bool) -> list[Operation]:
            part: Any = block.feed_forward
            up = [part.up.operation(x, self.inner)]
            if part.gate is not None:
                inner = part.up.out_features
                up.insert(0, part.gate.operation(x, self.gate))
                up.append(Operation(kind=MULTIPLY, x=self.gate, y=self.inner, inputs=inner))
            return [*up, part.down.operation(self.inner, y, accumulate)]

        own: Any = block.attention
        operations = self._sublayer(block.attention_residual, partial(attention, own, own.projections, SELF_ATTENTION))
        if isinstance(cross := block.cross_attention, Attention):
            operations += self._sublayer(block.cross_residual, partial(attention, cross, cross.query, CROSS_ATTENTION))
        if not block.is_parallel:
            return operations + self._sublayer(block.feed_forward_residual, feed_forward)
        before = self.norm_operations(block.feed_forward_residual.before, STREAM, self.parallel)  # of the block's input
        return before + operations + self._sublayer(block.feed_forward_residual, feed_forward, self.parallel)

    def _sublayer(
        self, residual: Any, sublayer: Callable[[int, int, bool], list[Operation]], normed: int | None = None
    ) -> list[Operation]:
        """Returns after(x + out(f(before(x)))) for the stream x; ``normed`` is where before(x) is, if computed."""
        assert isinstance(residual, Residual)
        temporary, operations = self.temporary, list[Operation]()
        if normed is None:
            normed = STREAM if isinstance(residual.before, Identity) else self.normed
            operations = self.norm_operations(residual.before, STREAM, normed)
        if isinstance(residual.out, Identity):
            operations += sublayer(normed, STREAM, True)
        else:
            operations += sublayer(normed, temporary, False)
            operations += self.norm_operations(residual.out, temporary, temporary)
            operations.append(Operation(kind=ADD, x=temporary, y=STREAM, inputs=self.dim))
        return operations + self.norm_operations(residual.after, STREAM, STREAM)

    def norm_operations(self, norm: nn.Module, x: int, y: int) -> list[Operation]:
        """Returns the operations of a norm, whose weights live as long as the program: none for an empty slot."""
        if isinstance(norm, Identity):
            return []
        kind = LAYER_NORM if isinstance(norm, LayerNorm) else RMS_NORM
        weight, bias = (self._address_of_copy(getattr(norm, name, None)) for name in ("weight", "bias"))
        return [Operation(kind=kind, x=x, y=y, inputs=self.dim, weight=weight, bias=bias, epsilon=epsilon_of(norm))]

    def _attention(self, part: Attention, kind: int, layer: int, inputs: int) -> Operation:
        norms = (part.query_norm, part.key_norm)
        query_norm, key_norm = (self._address_of_copy(getattr(norm, "weight", None)) for norm in norms)
        return Operation(
            kind=kind,
            x=self.projected,
            y=self.mixed,
            inputs=inputs,
            layer=layer,
            heads=part.heads,
            kv_heads=part.kv_heads,
            head_size=part.head_dim,
            factor=part.scale,
            query_norm=query_norm,
            key_norm=key_norm,
            epsilon=epsilon_of(part.query_norm),
            key_epsilon=epsilon_of(part.key_norm),
        )

    def _address_of_copy(self, tensor: Tensor | None) -> int | None:
        """Returns the address of a float32 copy of ``tensor``, which lives as long as the program."""
        if tensor is None:
            return None
        self.float_copies.append(tensor.detach().float().contiguous())
        return self.float_copies[-1].data_ptr()

    # ---------------------------------------------------------------------------------------------------- a call

    def __call__(self, stack: Stack, batch: StackInput, cache: StepCache) -> Tensor:
        """Returns the final hidden states (R, 1, D) of a token of each row, which joins the cache."""
        tokens = cache.extend(batch.x, batch.mask)
        x, _ = stack_embedding(stack, batch, tokens)
        arguments = block_arguments(stack, batch, tokens)
        first = arguments[stack.windows[0]]
        rows, position = len(x), first["position"]  # rotates the queries, in every block alike
        scratch = torch.empty(rows * self.width, dtype=torch.float32, device="cpu")
        stream = scratch[: rows * self.dim]
        stream.view_as(x).copy_(x)
        biases = {window: bias_of(own["mask"], own["position"].bias) for window, own in arguments.items()}
        cross_bias = bias_of(first["memory_mask"])
        keys = (KeyValues * (2 * self.depth))()
        pairs: Any = cache.layers(self.depth)
        for layer, (own, cross) in enumerate(pairs):
            own_keys, window = keys[2 * layer], stack.windows[layer]
            self._own_keys(own_keys, own)
            own_keys.in_order = isinstance(cache, RingCache) and cache.end <= cache.rings[window].capacity
            add_bias(own_keys, biases[window], rows, self.heads[layer][0])
            if len(self.heads[layer]) > 1:
                self._cross_keys(keys[2 * layer + 1], cross, rows)
                add_bias(keys[2 * layer + 1], cross_bias, len(cross.pair[0]), self.heads[layer][1])
        max_keys = max(layer_keys.columns for layer_keys in keys)
        threads = torch.get_num_threads()
        scores = torch.empty(threads * max_keys, dtype=torch.float32, device="cpu")
        call = Call(
            rows=rows,
            threads=threads,
            bfloat16_keys=cache.pairs[0][0].buffers[0].dtype is torch.bfloat16,
            scratch=scratch.data_ptr(),
            scores=scores.data_ptr(),
            max_keys=max_keys,
            keys=keys,
        )
        if isinstance(position, Rotation):
            cosine, sine = (table.float().contiguous() for table in (position.cos, position.sin))
            call.cosine, call.sine = cosine.data_ptr(), sine.data_ptr()
            call.rotation_stride = 0 if len(cosine) == 1 else self.size
        run(self.operations, call)
        return stream.view(rows, 1, self.dim).to(x.dtype)

    def fits_sequences(self, batch: StackInput) -> bool:
        """Returns True if the program can compute whole sequences, without a cache or as the first tokens of one, and
        ``batch`` has no memory and no other mask than one of padding.
        """
        mask, cache = batch.mask, batch.cache
        if not self.reads_sequences or batch.memory is not None or batch.text_starts is not None:
            return False
        if batch.x.dtype not in (torch.float32, torch.bfloat16):  # a model may be cast after it was optimised
            return False
        if mask is not None:
            is_packed = mask.dtype is not torch.bool and bool((mask > 1).any())
            if mask.shape != batch.x.shape[:2] or is_packed:
                return False
        if cache is None:
            return not self.is_causal or batch.x.size(0) * batch.x.size(1) >= PROMPT_LEAST
        if type(cache) is not Cache or cache.length:
            return False
        if not all(type(own) in GROWING and own.dtype in STORED for own, _ in cache.pairs):
            return False
        return self.is_causal and batch.x.size(0) * batch.x.size(1) >= PROMPT_LEAST

    def encoded(self, stack: Stack, batch: StackInput) -> Tensor:
        """Returns the final hidden states (B, T, D) of sequences without a cache: zeros at padding, and at tokens not
        read.
        """
        row = SortedTokenRow(real_tokens(batch.x, batch.mask).bool())
        if not row.groups:
            return batch.x.new_zeros(*batch.x.shape[:2], self.dim)
        x = stack.position.embed(row.gather(batch.x), row.positions, row.groups[-1].length)
        x = stack.embedded(x)  # (1, R, D)
        lengths = [group.length for group in row.groups for _ in range(group.sequences)]
        tokens = tokens_needed(stack, batch)
        selected = None if tokens == ALL_TOKENS else row.select(tokens)
        rotation = stack.encoding(row.positions, row.positions[:, :0])
        return row.scatter(self.sequences(x[0], lengths, tokens, selected, rotation)[None].to(x.dtype), selected)

    def prompted(self, stack: Stack, batch: StackInput) -> Tensor:
        """Returns the final hidden states (B, T, D) of prompts, whose keys and values join the empty cache: zeros at
        padding, and at tokens not read.
        """
        cache: Any = batch.cache
        count, length, _ = batch.x.shape
        positions = cache.extend(batch.x, batch.mask)
        x, _ = stack_embedding(stack, batch, positions)
        real = real_tokens(x, batch.mask).bool()
        rows, columns = real.nonzero(as_tuple=True)  # of the tokens without padding, in the cache
        lengths = real.sum(1).tolist()
        keys = (KeyValues * (2 * self.depth))()
        for layer, ((own, _), heads) in enumerate(zip(cache.layers(self.depth), self.kv_heads, strict=True)):
            like = torch.empty((), dtype=batch.x.dtype, device="cpu").expand(count, heads[0], length, self.size)
            buffers = own.begin((like, like))
            if len(rows) < count * length:
                for buffer in buffers:
                    buffer[:, :, :length] = 0  # at padding
            self.set_addresses(keys[2 * layer], buffers, 0)
            keys[2 * layer].slots, keys[2 * layer].rows = columns.data_ptr(), rows.data_ptr()
        halves = buffers[0].dtype is torch.bfloat16
        tokens, places = tokens_needed(stack, batch), rows * length + columns
        selected = None
        if tokens != ALL_TOKENS:
            numbers = torch.arange(len(rows), device="cpu").split(lengths)
            selected = torch.cat([part[tokens] for part in numbers])
            places = places[selected]
        own_positions = positions.queries.expand(count, length)[real][None]
        rotation = stack.encoding(own_positions, own_positions[:, :0])
        y = self.sequences(x[real].to(batch.x.dtype), lengths, tokens, selected, rotation, keys, halves).to(x.dtype)
        return torch.zeros_like(x).flatten(0, 1).index_copy(0, places, y).view_as(x)

    def sequences(
        self,
        x: Tensor,
        lengths: list[int],
        tokens: slice,
        selected: Tensor | None,
        rotation: PositionEncoding,
        keys: Any = None,
        bfloat16_keys: bool = False,
    ) -> Tensor:
        """Returns the final hidden states (M, D) in float32 of sequences of these lengths, one after another.

        Args:
            x: (R, D), their embeddings.
            tokens: those of each sequence that are read.
            selected: (M,) their rows; None: all.
            rotation: the positions of the rows.
            keys: where new keys and values are stored; None: nowhere.
            bfloat16_keys: whether they are stored in bfloat16, else in float32.
        """
        rows = len(x)
        scratch = torch.empty(rows * self.shared, dtype=torch.float32, device="cpu")
        stream = scratch[: rows * self.dim].view(rows, self.dim)
        stream.copy_(x)
        starts = _starts(lengths)
        call = Call(
            rows=rows,
            threads=torch.get_num_threads(),
            bfloat16_keys=bfloat16_keys,
            scratch=scratch.data_ptr(),
            keys=keys,
            width=self.dim,
            bfloat16_attention=self.attends_in_bfloat16,
            causal=self.is_causal,
            sequences=len(lengths),
            shared=self.shared,
            starts=starts.data_ptr(),
            last_layer=self.depth - 1,
        )
        if isinstance(rotation, Rotation):
            cosine, sine = (table.float().view(rows, self.size).contiguous() for table in (rotation.cos, rotation.sin))
            call.cosine, call.sine, call.rotation_stride = cosine.data_ptr(), sine.data_ptr(), self.size
        if selected is not None:
            selected_starts = _starts([len(range(length)[tokens]) for length in lengths])
            call.selected, call.selected_starts = selected.data_ptr(), selected_starts.data_ptr()
        run_sequences(self.operations, call)
        return stream if selected is None else stream[: len(selected)]

    def _own_keys(self, keys: KeyValues, own: Any) -> None:
        if isinstance(own, Growing):
            buffers, columns = own.append_column()
            first, keys.columns = columns.start, columns.stop - columns.start
        else:
            buffers, first, keys.slots = own.buffers, 0, own.new_columns.data_ptr()
            keys.rows = own.rows.data_ptr() if own.is_shared else None
            keys.columns = buffers[0].size(2)
        self.set_addresses(keys, buffers, first)
        keys.queries_per_source = 1

    def _cross_keys(self, keys: KeyValues, cross: Any, rows: int) -> None:
        buffers = tuple(tensor.contiguous() for tensor in cross.pair)
        cross.pair = buffers  # kept while the call runs, and next time contiguous
        keys.columns, keys.queries_per_source = buffers[0].size(2), rows // len(buffers[0])
        self.set_addresses(keys, buffers, 0)

    def set_addresses(self, keys: KeyValues, buffers: tuple[Tensor, ...], first: int) -> None:
        """Sets the addresses of keys and values, of which the ``first`` columns are left out."""
        key, value = buffers
        skipped = first * self.size * key.element_size()
        keys.key, keys.value = key.data_ptr() + skipped, value.data_ptr() + skipped
        keys.row_stride, keys.head_stride = key.stride(0), key.stride(1)


def has_sequences(stack: Stack) -> bool:
    """Returns True if compiled code can compute whole sequences of a stack: each block attends to all tokens, or to all
    before, without a bias, and nothing else.
    """
    blocks: list[Any] = list(stack.block)
    return (
        type(stack.position) in WITHOUT_BIAS
        and set(stack.windows) == {None}
        and stack.config.sublayers == "sequential"
        and all(is_standard(block) and type(block.cross_residual) is Skip for block in blocks)
        and all(isinstance(block.attention, Attention) for block in blocks)
        and all(block.attention.head_dim % HEAD_SIZES == 0 and block.attention.scale > 0 for block in blocks)
    )


def _compiled_linears(stack: Stack) -> list[CompiledLinear]:
    return [part for part in stack.modules() if isinstance(part, CompiledLinear)]


def _starts(lengths: list[int]) -> Tensor:
    """Returns (len + 1,) the first row of each sequence, and the number of rows."""
    return torch.tensor([0, *lengths], device="cpu").cumsum(0)


def epsilon_of(norm: nn.Module) -> float:
    """Returns the ε of a norm; 0 of an absent one. That of an RMS norm is by default the float32 epsilon."""
    epsilon: float | None = getattr(norm, "eps", 0.0)
    return torch.finfo(torch.float32).eps if epsilon is None else epsilon


def bias_of(mask: Mask, bias: Bias | SharedTerms[Any] = None) -> Tensor | None:
    """Returns mask and bias of one query as a float32 bias (R or 1, H or 1, 1, S); None for None."""
    assert bias is None or isinstance(bias, Tensor)  # ``POSITIONS``
    if not isinstance(mask, Tensor):
        return None if bias is None else bias.float().contiguous()
    return float_mask(mask, torch.empty(1).expand(1, 1, 1, mask.size(-1)), bias).float().contiguous()


def add_bias(keys: KeyValues, bias: Tensor | None, rows: int, heads: int) -> None:
    """Sets the bias of ``keys``, which must stay in memory during the call.

    Raises ``HeedfulError`` unless it has a number for each key, and one row or head for all or for each.
    """
    if bias is None:
        return
    shape = bias.shape
    if shape[0] not in (1, rows) or shape[1] not in (1, heads) or shape[2:] != (1, keys.columns):
        raise HeedfulError(
            f"a mask of shape {tuple(shape)} does not fit {rows} rows, {heads} heads and {keys.columns} keys; give the "
            "mask of the tokens that were encoded"
        )
    keys.bias = pointer(bias)
    keys.bias_row_stride = 0 if shape[0] == 1 else bias.stride(0)
    keys.bias_head_stride = 0 if shape[1] == 1 else bias.stride(1)


STEPS: WeakKeyDictionary[Stack, CompiledStep | None] = WeakKeyDictionary()  # None: the stack has an unsupported part
