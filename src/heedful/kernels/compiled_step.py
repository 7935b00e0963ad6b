"""Layout of a compiled model: a decoding step of few rows runs all blocks of a stack in one call.

Shapes: R rows (one token each), D model width, H query heads, G key-value heads, E head size, S keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from heedful.cache import Cache, Cross, Growing, NoCache, StaticAttention, StaticCache
from heedful.kernels.compiled import (
    ADD,
    CROSS_ATTENTION,
    LAYER_NORM,
    MULTIPLY,
    RMS_NORM,
    SELF_ATTENTION,
    Call,
    CompiledLinear,
    Keys,
    Operation,
    pointer,
    run,
)
from heedful.kernels.fused_projections import FusedAttention
from heedful.kernels.unpadded import fused_row_attention, is_standard, unpadded_inference
from heedful.layers.attention import Attention, float_mask
from heedful.layers.feedforward import FeedForward
from heedful.layers.mask import Mask
from heedful.layers.norm import Identity, LayerNorm, RMSNorm
from heedful.layers.position import Alibi, Learned, PositionScheme, Relative, Rotary, Rotation, Sinusoidal
from heedful.stack import Block, Residual, Skip, Stack, StackInput, block_input

POSITIONS = (PositionScheme, Sinusoidal, Learned, Rotary, Alibi, Relative)
STREAM, NORMED, TEMPORARY = 0, 1, 2  # buffers of D numbers a row, in this order; the others follow


def compiled_decoding(stack: Stack, batch: StackInput) -> Tensor:
    """Computes ``unpadded_inference``; a decoding step of a few rows is one call of compiled code.

    Falls back to PyTorch's kernels for the prompt, for more rows, while a gradient is computed or a part is observed,
    and for a stack with a part that the compiled code lacks.
    """
    x, cache = batch.x, batch.cache
    if x.size(1) != 1 or not len(x) or not isinstance(cache, Cache | StaticCache):
        return unpadded_inference(stack, batch)
    if torch.is_grad_enabled() or not x.is_cpu or not _has_keys(cache):
        return unpadded_inference(stack, batch)
    if stack not in STEPS:
        STEPS[stack] = CompiledStep(stack) if is_supported(stack) else None
    step = STEPS[stack]
    if step is None or len(x) > step.most_rows or step.is_changed():
        return unpadded_inference(stack, batch)
    return step(stack, batch, cache)


def _has_keys(cache: NoCache) -> bool:
    """Returns True if the cache holds keys that a call may write after."""
    own = cache.layers(len(cache.pairs))[0][0]  # type: ignore[attr-defined]
    if isinstance(own, Growing):
        return bool(own.buffers) and not own.read_only
    return isinstance(own, StaticAttention)


def is_supported(stack: Stack) -> bool:
    """Returns True if the compiled code has all parts of a stack."""
    norms = (Identity, LayerNorm, RMSNorm)
    return (
        type(stack.position) in POSITIONS
        and type(stack.norm) in norms
        and all(is_standard(block) and _has_parts(block, norms) for block in stack.block)
    )


def _has_parts(block: Block, norms: tuple[type, ...]) -> bool:
    residuals = [block.attention_residual, block.feed_forward_residual]
    attentions: list[Any] = [block.attention]
    linears: list[Any] = []
    if type(block.cross_attention) is Attention:
        residuals.append(block.cross_residual)  # type: ignore[arg-type]
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
        all(type(linear) is CompiledLinear for linear in linears)
        and all(type(slot) in norms for slot in slots)
        and all(type(norm) in (Identity, RMSNorm) for norm in head_norms)
        and all(part.attend is fused_row_attention for part in attentions)
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
        self.projected = 3 * self.dim
        self.mixed = self.projected + max(block.attention.projections.out_features for block in blocks)
        self.mixed = max(self.mixed, self.projected + mixed)  # cross-attention has its query alone there
        self.inner = self.mixed + mixed
        self.gate, self.width = self.inner + inner, self.inner + 2 * inner
        self.kept: list[Tensor] = []  # tensors whose addresses the operations hold
        operations: list[Operation] = []
        for number, block in enumerate(blocks):
            operations += self._block(block, number)
        operations += self._norm(stack.norm, STREAM, STREAM)
        self.operations = (Operation * len(operations))(*operations)
        self.most_rows = min(part.most_rows for part in stack.modules() if isinstance(part, CompiledLinear))
        self.hooks = [hooks for part in stack.modules() for hooks in (part._forward_hooks, part._forward_pre_hooks)]
        self.attentions = [vars(part) for part in attentions]
        self.parts = [(part._modules, dict(part._modules)) for part in stack.modules() if part._modules]

    def is_changed(self) -> bool:
        """Returns True if a part is observed, or was replaced after the program was made."""
        if any(self.hooks) or any(attention.get("probe") is not None for attention in self.attentions):
            return True
        return any(now != before for now, before in self.parts)

    # ------------------------------------------------------------------------------------------------- the program

    def _block(self, block: Block, number: int) -> list[Operation]:
        def attention(x: int, y: int, accumulate: bool) -> list[Operation]:
            part: Any = block.attention
            return [
                part.projections.operation(x, self.projected),
                self._attention(part, SELF_ATTENTION, number, part.projections.out_features),
                part.out.operation(self.mixed, y, accumulate),
            ]

        def cross_attention(x: int, y: int, accumulate: bool) -> list[Operation]:
            part: Any = block.cross_attention
            return [
                part.query.operation(x, self.projected),
                self._attention(part, CROSS_ATTENTION, number, part.query.out_features),
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

        operations = self._sublayer(block.attention_residual, attention)
        if isinstance(block.cross_attention, Attention):
            operations += self._sublayer(block.cross_residual, cross_attention)
        return operations + self._sublayer(block.feed_forward_residual, feed_forward)

    def _sublayer(self, residual: Any, sublayer: Callable[[int, int, bool], list[Operation]]) -> list[Operation]:
        """Returns after(x + out(f(before(x)))) for the stream x."""
        assert isinstance(residual, Residual)
        dim, stream, temporary = self.dim, STREAM * self.dim, TEMPORARY * self.dim
        normed = stream if isinstance(residual.before, Identity) else NORMED * dim
        operations = self._norm(residual.before, stream, normed)
        if isinstance(residual.out, Identity):
            operations += sublayer(normed, stream, True)
        else:
            operations += sublayer(normed, temporary, False)
            operations += self._norm(residual.out, temporary, temporary)
            operations.append(Operation(kind=ADD, x=temporary, y=stream, inputs=dim))
        return operations + self._norm(residual.after, stream, stream)

    def _norm(self, norm: nn.Module, x: int, y: int) -> list[Operation]:
        if isinstance(norm, Identity):
            return []
        kind = LAYER_NORM if isinstance(norm, LayerNorm) else RMS_NORM
        weight, bias = (self._numbers(getattr(norm, name, None)) for name in ("weight", "bias"))
        return [Operation(kind=kind, x=x, y=y, inputs=self.dim, weight=weight, bias=bias, epsilon=epsilon_of(norm))]

    def _attention(self, part: Attention, kind: int, layer: int, inputs: int) -> Operation:
        norms = (part.query_norm, part.key_norm)
        query_norm, key_norm = (self._numbers(getattr(norm, "weight", None)) for norm in norms)
        return Operation(
            kind=kind,
            x=self.projected,
            y=self.mixed,
            inputs=inputs,
            layer=layer,
            heads=part.heads,
            groups_of_heads=part.kv_heads,
            head_size=part.head_dim,
            factor=part.scale,
            query_norm=query_norm,
            key_norm=key_norm,
            epsilon=epsilon_of(part.query_norm),
            key_epsilon=epsilon_of(part.key_norm),
        )

    def _numbers(self, tensor: Tensor | None) -> int | None:
        """Returns the address of a copy of ``tensor`` in float32, which is kept."""
        if tensor is None:
            return None
        self.kept.append(tensor.detach().float().contiguous())
        return self.kept[-1].data_ptr()

    # ---------------------------------------------------------------------------------------------------- a call

    def __call__(self, stack: Stack, batch: StackInput, cache: Cache | StaticCache) -> Tensor:
        """Returns the final hidden states (R, 1, D) of a token of each row, which joins the cache."""
        x, _, context = block_input(stack, batch, cache)
        rows, position = len(x), context["position"]
        scratch = torch.empty(rows * self.width)
        stream = scratch[: rows * self.dim]
        stream.view_as(x).copy_(x)
        bias = bias_of(context["mask"])
        cross_bias = bias_of(context["memory_mask"])
        keys = (Keys * (2 * self.depth))()
        for layer, (own, cross) in enumerate(cache.layers(self.depth)):
            self._own_keys(keys[2 * layer], own, bias)
            if isinstance(cross, Cross) and cross.pair:
                self._cross_keys(keys[2 * layer + 1], cross, rows, cross_bias)
        longest = max(each.columns for each in keys)
        threads = torch.get_num_threads()
        scores = torch.empty(threads * longest)
        call = Call(
            rows=rows,
            threads=threads,
            bfloat16_cache=cache.pairs[0][0].buffers[0].dtype is torch.bfloat16,
            scratch=scratch.data_ptr(),
            scores=scores.data_ptr(),
            longest=longest,
            keys=keys,
        )
        if isinstance(position, Rotation):
            cosine, sine = (table.float().contiguous() for table in (position.cos, position.sin))
            call.cosine, call.sine = cosine.data_ptr(), sine.data_ptr()
            call.rotation_row = 0 if len(cosine) == 1 else self.size
        run(self.operations, call)
        return stream.view(rows, 1, self.dim).to(x.dtype)

    def _own_keys(self, keys: Keys, own: Any, bias: Tensor | None) -> None:
        if isinstance(own, Growing):
            buffers, columns = own.next_column()
            first, keys.columns = columns.start, columns.stop - columns.start
        else:
            buffers, first, keys.slots = own.buffers, 0, own.slots.data_ptr()
            keys.columns = buffers[0].size(2)
        self._addresses(keys, buffers, first)
        keys.shared = 1
        add_bias(keys, bias)

    def _cross_keys(self, keys: Keys, cross: Cross, rows: int, bias: Tensor | None) -> None:
        buffers = tuple(tensor.contiguous() for tensor in cross.pair)
        cross.pair = buffers  # kept while the call runs, and next time contiguous
        keys.columns, keys.shared = buffers[0].size(2), rows // len(buffers[0])
        self._addresses(keys, buffers, 0)
        add_bias(keys, bias)

    def _addresses(self, keys: Keys, buffers: tuple[Tensor, ...], first: int) -> None:
        key, value = buffers
        skipped = first * self.size * key.element_size()
        keys.key, keys.value = key.data_ptr() + skipped, value.data_ptr() + skipped
        keys.row, keys.head = key.stride(0), key.stride(1)


def epsilon_of(norm: nn.Module) -> float:
    """Returns the ε of a norm; 0 of an absent one. That of an RMS norm is by default the float32 epsilon."""
    epsilon: float | None = getattr(norm, "eps", 0.0)
    return torch.finfo(torch.float32).eps if epsilon is None else epsilon


def bias_of(mask: Mask) -> Tensor | None:
    """Returns a mask of one query as a float32 bias (R or 1, H or 1, 1, S); None for None."""
    if not isinstance(mask, Tensor):
        return None
    return float_mask(mask, torch.empty(0).expand(1, 1, 1, 0)).float().contiguous()


def add_bias(keys: Keys, bias: Tensor | None) -> None:
    """Sets the bias of ``keys``; it must stay in memory during the call."""
    if bias is None:
        return
    keys.bias = pointer(bias)
    keys.bias_row = 0 if bias.size(0) == 1 else bias.stride(0)
    keys.bias_head = 0 if bias.size(1) == 1 else bias.stride(1)


STEPS: WeakKeyDictionary[Stack, CompiledStep | None] = WeakKeyDictionary()  # None: the stack has an unsupported part
