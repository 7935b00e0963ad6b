"""Attention on a GPU: PyTorch's ``varlen_attn`` for padded and packed batches; grouped queries under a mask.

A step of decoding has a kernel of its own (``heedful.kernels.decode_attention``).

``varlen_attn`` is the flash kernel for sequences concatenated in one row (as ``flash_attn_varlen_func``). In place of a
mask it takes each sequence's offset in the row (cumulative lengths), and computes attention within sequences only.

In training each row's padding is a sequence of its own. So every output is written, shapes are those of the padded
batch, and the host need not wait for the lengths. Only attention leaves padding out: norms and linear maps compute it.
In inference a large batch is worth the wait: then no part computes padding (``without_padding``).

Shapes: B sequences, T tokens with padding, M sequences in the row, N tokens in all, D model width, H query heads, K
key-value heads, E head size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.kernels.decode_attention import decode_attention, takes_one_query
from heedful.kernels.unpadded import TokenRow, attends_with, counts_by_sequence, is_observed
from heedful.layers.attention import Attention
from heedful.layers.attention_kernels import Attend, Bias, fused_attention
from heedful.layers.mask import Mask, causal
from heedful.layers.position import Learned, PositionScheme, Rotary, Sinusoidal, WindowedRotary
from heedful.layers.row_layout import BATCH, RowLayout
from heedful.stack import Stack, StackInput, padded

Condition = TypeVar("Condition", bound=Callable[..., bool])

PACKED_FROM = 4096  # tokens of a batch, with padding, whose computation takes far longer than the wait for its lengths
LARGEST_HEAD = 192  # whether the backward pass takes larger heads depends on the GPU
HALF_DTYPES = (torch.float16, torch.bfloat16)
UNBIASED = (
    PositionScheme,
    Sinusoidal,
    Learned,
    Rotary,
    WindowedRotary,
)  # position schemes without a bias on the scores
TOKEN_NORMS = ("layer", "rms", "rms-offset")  # norms of each token for itself; a registered norm may read the mask


# ------------------------------------------------------------------------------------------------------------ attention


@cache
def varlen_parameters() -> frozenset[str]:
    """Returns the names of the parameters of ``varlen_attn``; none if this PyTorch lacks it."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)


@cache
def runs_varlen(device: torch.device) -> bool:
    """Returns True if ``varlen_attn`` takes scale and window, and the device is an NVIDIA GPU that computes it."""
    if device.type != "cuda" or torch.version.hip is not None or not {"scale", "window_size"} <= varlen_parameters():
        return False
    return torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(device) >= (8, 0)


def _constant_in_graphs(function: Condition) -> Condition:
    """Marks a function as ``torch.compiler.assume_constant_result`` does, which imports the compiler: over a second."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@_constant_in_graphs
def has_varlen(device: torch.device) -> bool:
    """Returns True if ``varlen_attn`` runs on a device, and nobody has switched the flash kernel off."""
    return runs_varlen(device) and torch.backends.cuda.flash_sdp_enabled()


@_constant_in_graphs
def shares_heads() -> bool:
    """Returns True if several query heads of ``varlen_attn`` can share a key head: from PyTorch 2.12 on."""
    return "enable_gqa" in varlen_parameters()


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts_q: Tensor,
    starts_k: Tensor,
    longest_q: int,
    longest_k: int,
    scale: float,
    window: tuple[int, int],
) -> Tensor:
    """Computes attention within sequences by ``varlen_attn``: q (N, H, E), k and v (N', K, E) → (N, H, E).

    A sequence without keys gives zeros; the keys and values of a sequence without queries have zero gradients.

    Args:
        q: queries of all sequences, one after another, in float16 or bfloat16.
        k: keys.
        v: values.
        starts_q: (M + 1,) int32, the first query of each sequence, and N.
        starts_k: (M + 1,) int32, the first key of each sequence, and N'.
        longest_q: number of queries that no sequence exceeds, at least 2.
        longest_k: number of keys that no sequence exceeds.
        scale: factor of q kᵀ.
        window: numbers of keys before and after a query that it may attend to, −1 for all. (−1, −1) is bidirectional,
            (−1, 0) causal.
    """
    from torch.nn.attention.varlen import varlen_attn

    options: dict[str, Any] = {"scale": scale, "window_size": window}
    if q.size(1) != k.size(1):
        if shares_heads():
            options["enable_gqa"] = True
        else:
            k, v = (x.repeat_interleave(q.size(1) // x.size(1), 1) for x in (k, v))
    return cast(Tensor, varlen_attn(q, k, v, starts_q, starts_k, longest_q, longest_k, **options))


class Sequences(NamedTuple):
    """Sequences in a row, each of which attends to itself alone: without a mask, a bias or another kernel.

    Attributes:
        queries: (M + 1,) starts of their queries.
        keys: (M + 1,) starts of their keys.
        window: see ``varlen_attention``.
        longest: number of tokens that no sequence exceeds; default that of a row.
    """

    queries: Tensor
    keys: Tensor
    window: tuple[int, int]
    longest: int | None = None

    def attend(
        self, kernel: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias, scale: float, dropout: float
    ) -> Tensor:
        """Computes attention of q (B, H, T, E) to k and v (B, K, S, E) by ``varlen_attn``: (B, H, T, E)."""
        assert mask is None  # ``uses_varlen``
        assert bias is None
        assert not dropout
        dtype, shape = product_dtype(q), (q.size(0), q.size(2))
        q, k, v = (x.to(dtype).transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B, H, T, E) → (B · T, H, E)
        longest_q, longest_k = self.longest or shape[1], self.longest or k.size(0) // shape[0]
        y = varlen_attention(q, k, v, self.queries, self.keys, longest_q, longest_k, scale, self.window)
        return y.unflatten(0, shape).transpose(1, 2)


def gpu_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float, dropout: float = 0.0
) -> Tensor:
    """Computes ``fused_attention``, by other kernels where they are faster.

    Where query heads share keys, keys and values are repeated unless the flash kernel applies: of PyTorch's other
    kernels only the plain one, which stores all attention weights, takes shared heads.

    >>> q, k, v = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    >>> expected = fused_attention(q, k, v, None, None, 1.0)
    >>> torch.allclose(gpu_attention(q, k, v, None, None, 1.0), expected, atol=1e-6)
    True
    """
    if not dropout and bias is None and isinstance(mask, Tensor) and takes_one_query(q, k, v, mask):
        return decode_attention(q, k, v, mask, scale)
    several = q.size(2) > 1 or q.size(0) > k.size(0)  # the heads of a single query become queries of one head
    if q.size(1) != k.size(1) and several and not (bias is None and allows_flash(q, k, mask)):
        shape = (-1, -1, q.size(1) // k.size(1), -1, -1)
        k, v = (x[:, :, None].expand(shape).flatten(1, 2) for x in (k, v))  # (B, K, S, E) → (B, H, S, E)
    return fused_attention(q, k, v, mask, bias, scale, dropout)


def allows_flash(q: Tensor, k: Tensor, mask: Mask) -> bool:
    """Returns True if dtype and mask allow the flash kernel: half precision, no mask tensor."""
    has_tensor = q.size(2) != k.size(2) if isinstance(mask, str) else mask is not None
    return not has_tensor and product_dtype(q) in HALF_DTYPES


def product_dtype(x: Tensor) -> torch.dtype:
    """Returns the dtype in which products with ``x`` are computed: autocast's if it is on."""
    device = x.device.type
    uses_autocast = has_autocast(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if uses_autocast else x.dtype


@_constant_in_graphs  # `torch.compile` of PyTorch 2.11 cannot follow the call
def has_autocast(device: str) -> bool:
    """Returns True for types of devices with autocast: all but "meta"."""
    return torch.amp.is_autocast_available(device)


# --------------------------------------------------------------------------------------------------------------- layout


class FrontOrder:
    """Order of a padded batch in which every row begins with its tokens, and padding follows.

    Args:
        real: (B, T), False for padding.

    >>> order = FrontOrder(torch.tensor([[False, True, True]]))
    >>> moved = order.move(torch.tensor([[[7.0], [8.0], [9.0]]]))
    >>> moved.flatten().tolist(), order.restore(moved).flatten().tolist()
    ([8.0, 9.0, 7.0], [7.0, 8.0, 9.0])
    """

    def __init__(self, real: Tensor) -> None:
        columns, counts = torch.arange(real.size(1), device=real.device), real.cumsum(1)
        self.lengths = counts[:, -1:]  # (B, 1)
        self.real = columns < self.lengths  # (B, T) in the new order
        places = torch.where(real, counts - 1, self.lengths + columns - counts)  # (B, T) of each token in its row
        tokens = torch.arange(real.numel(), device=real.device)
        self.places = (places + tokens.view(real.shape)[:, :1]).flatten()  # (B · T,) counted along the rows
        self.origins = torch.empty_like(tokens).index_copy_(0, self.places, tokens)  # the inverse

    def move(self, x: Tensor) -> Tensor:
        """Moves the tokens of ``x`` (B, T, D) to the front of their rows."""
        return permuted(x, self.places)

    def restore(self, x: Tensor) -> Tensor:
        """Moves the tokens of ``x`` (B, T, D) back to where they were."""
        return permuted(x, self.origins)

    @property
    def starts(self) -> Tensor:
        """Starts (2 B + 1,) of two sequences a row: its tokens and its padding."""
        return row_starts(self.lengths, self.real.size(1))


def permuted(x: Tensor, places: Tensor) -> Tensor:
    """Returns ``x`` (B, T, D) with its tokens at the ``places`` (B · T,), a permutation.

    The gradient of ``index_copy_`` is a gather; that of indexing would be a slow scatter-add.
    """
    rows = x.flatten(0, 1)
    return torch.empty_like(rows).index_copy_(0, places, rows).view(x.shape)


def row_starts(lengths: Tensor, tokens: int) -> Tensor:
    """Returns the starts (2 B + 1,) of two sequences a row of ``tokens``: of ``lengths`` (B, 1), and of the rest.

    >>> row_starts(torch.tensor([[2], [3]]), 3)
    tensor([0, 2, 3, 6, 6], dtype=torch.int32)
    """
    return F.pad(torch.cat((lengths, tokens - lengths), 1).flatten().cumsum(0), (1, 0)).int()


def varlen_layout(stack: Stack, batch: StackInput) -> Tensor:
    """Layout that computes attention by ``varlen_attn``: equals ``padded`` at non-padding tokens.

    At padding the output is finite, otherwise undefined. Where ``uses_varlen`` is False, the mask is used.

    >>> from heedful.config import StackConfig
    >>> from heedful.kernels import apply_plan
    >>> stack, x = Stack(StackConfig(dim=16, depth=2, heads=4)), torch.randn(2, 3, 16)
    >>> real = torch.tensor([[True, True, True], [True, False, False]])
    >>> output = stack(x, real)[real]
    >>> torch.allclose(apply_plan(stack, "gpu")(x, real)[real], output, atol=1e-5)
    True
    """
    own, cross = uses_varlen(stack, batch)
    if own and can_pack(stack, batch):
        return without_padding(stack, batch)
    order: FrontOrder | None = None
    rows: dict[int | None, RowLayout] | None = None
    memory_rows: RowLayout = BATCH
    tokens = batch.x.size(1)
    if own:
        assert batch.mask is not None  # ``uses_varlen``
        starts = batch.text_starts
        if batch.mask.dtype == torch.bool:
            order = FrontOrder(batch.mask)
            batch, starts = batch._replace(x=order.move(batch.x), mask=order.real), order.starts
        assert starts is not None  # ``uses_varlen``
        rows = {window: Sequences(starts, starts, reach(stack, window)) for window in stack.mask_functions}
    if cross:
        assert batch.memory is not None  # ``uses_varlen``
        assert batch.memory_mask is not None
        source = FrontOrder(batch.memory_mask)
        every_query = row_starts(torch.full_like(source.lengths, tokens), tokens)
        memory_rows = Sequences(every_query, source.starts, (-1, -1))
        batch = batch._replace(memory=source.move(batch.memory), memory_mask=None)
    y = padded(stack, batch, rows, memory_rows)
    return y if order is None else order.restore(y)


def can_pack(stack: Stack, batch: StackInput) -> bool:
    """Returns True for an encoder's or a prompt's padded batch, in inference, of at least ``PACKED_FROM`` tokens.

    A compiled or captured function cannot wait for a number of tokens.
    """
    x, mask = batch.x, batch.mask
    assert mask is not None  # ``uses_varlen``
    if stack.training or torch.is_grad_enabled() or batch.memory is not None or mask.dtype != torch.bool:
        return False
    if len(x) == 1 or len(x) * x.size(1) < PACKED_FROM or stack.config.norm not in TOKEN_NORMS:
        return False
    return not (torch.compiler.is_compiling() or is_capturing() or counts_by_sequence(stack))


def is_capturing() -> bool:
    """Returns True while a CUDA graph is captured."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def without_padding(stack: Stack, batch: StackInput) -> Tensor:
    """Computes the tokens of a padded batch as one row, without padding; the output at padding is zero.

    The host waits for the device once, for the number of tokens.
    """
    assert batch.mask is not None  # ``uses_varlen``
    row, longest = TokenRow(batch.mask), batch.x.size(1)
    if not len(row.indices):
        return batch.x.new_zeros(*batch.x.shape[:2], stack.config.dim)
    starts = F.pad(batch.mask.sum(1).cumsum(0), (1, 0)).int()
    rows = {window: Sequences(starts, starts, reach(stack, window), longest) for window in stack.mask_functions}
    position = stack.encoding(row.positions, row.positions[:, :0])
    x = stack.embedded(stack.position.embed(row.gather(batch.x), row.positions, longest))
    for block, window in zip(stack.block, stack.windows, strict=True):
        x = block(x, position=position.of(window), rows=rows[window])
    return row.scatter(stack.norm(x))


def uses_varlen(stack: Stack, batch: StackInput) -> tuple[bool, bool]:
    """Returns whether ``varlen_attn`` computes self-attention, and whether it computes cross-attention.

    It needs all of: a boolean mask (B, T), or a packed batch with ``text_starts``; an NVIDIA GPU of compute capability
    8 or newer; float16 or bfloat16, also by autocast; head sizes that are multiples of 8, at most 192; more than one
    token. The mask is used instead with a bias on the scores (ALiBi, relative positions, registered schemes), dropout
    of attention weights, masks (B, T, T), a cache, an observed part (``heedful.record``, an intervention, any hook),
    and a custom block or attention.
    """
    x, mask, memory, memory_mask = batch.x, batch.mask, batch.memory, batch.memory_mask
    has_starts = mask is not None and mask.ndim == 2 and (mask.dtype == torch.bool or batch.text_starts is not None)
    own = has_starts and type(stack.position) in UNBIASED
    cross = memory is not None and memory_mask is not None and memory_mask.ndim == 2 and len(memory) == len(x)
    cross = cross and memory_mask is not None and memory_mask.dtype == torch.bool
    if not (own or cross) or batch.cache is not None or x.size(1) == 1:
        return False, False
    is_supported = (
        has_varlen(x.device)
        and product_dtype(x) in HALF_DTYPES
        and attends_with(stack, gpu_attention)
        and all(map(takes_heads, attentions(stack)))
        and not is_observed(stack)
    )
    return own and is_supported, cross and is_supported


def attentions(stack: Stack) -> list[Attention]:
    """Returns the attentions of a stack of standard blocks."""
    return [part for block in stack.block for part in block.children() if isinstance(part, Attention)]


def takes_heads(attention: Attention) -> bool:
    """Returns True if ``varlen_attn`` takes the size of an attention's heads, and no weights are dropped."""
    drops = attention.training and attention.dropout > 0
    return attention.head_dim % 8 == 0 and attention.head_dim <= LARGEST_HEAD and not drops


def reach(stack: Stack, window: int | None) -> tuple[int, int]:
    """Returns the window of a stack's own mask in the blocks with this ``window``, for ``varlen_attention``."""
    if not stack.config.causal:
        return (-1, -1) if window is None else (window // 2, window // 2)
    return (-1, 0) if window is None else (window - 1, 0)


def needs_mask_if_right_padded(stack: Stack) -> bool:
    """Returns True if ``stack`` needs a mask for a batch padded on the right only.

    A causal stack does not: no token attends to padding on its right, and without a mask the flash kernel applies. The
    caller must know that padding is on the right without reading the mask, and must not read outputs at padding. The
    mask is needed on a CPU, whose layout removes padding, and by registered norms and custom blocks, which may use it.
    """
    is_causal = {*stack.mask_functions.values()} == {causal} and stack.config.norm in TOKEN_NORMS
    return not (is_causal and stack.layout is varlen_layout and attends_with(stack, gpu_attention))
