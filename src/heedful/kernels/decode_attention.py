"""Attention of one query a row, and the storing of its key and value, for NVIDIA GPUs: written in Triton.

A step of decoding with keys of fixed shape spends a third of its time in PyTorch's kernels for these: attention under a
mask tensor is made for many queries, and takes three more kernels to turn the mask into a bias; each indexed store is a
kernel too. Here attention is one kernel, or two for long texts, whose keys are divided among programs (Dao et al.
2023, flash-decoding), and the store of key and value is one.

Shapes: R rows, H query heads, K key-value heads, C columns of keys, E head size, P parts of the columns.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from heedful.cache import Stored
from heedful.kernels.fixed_cache import Store, store_columns
from heedful.kernels.vocabulary_loss import runs_triton
from heedful.layers.mask import Mask

TILE = 8192  # numbers of keys that a program reads at a time
LEAST_COLUMNS = 512  # of a part, so that its work is worth a second kernel
WARPS = 4
MANY_QUERIES, MANY_COLUMNS = 128, 2048  # of grouped heads, from which on PyTorch's kernel is faster
PROGRAMS = 264  # wanted on the device: two for each multiprocessor of a large one


def takes_one_query(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> bool:
    """Returns True if ``decode_attention`` computes the attention of q (R, H, 1, E): one query a row, a boolean mask of
    the keys, no gradient, on an NVIDIA GPU with Triton.
    """
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool or torch.compiler.is_compiling():
        return False
    if not _fits(q, k, v, mask):
        return False
    if q.size(1) > k.size(1) and q.size(0) * q.size(1) >= MANY_QUERIES and k.size(2) >= MANY_COLUMNS:
        return False  # PyTorch's kernel reads the keys once for the heads that share them, this one for each
    has_gradient = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    has_one_type = q.dtype == k.dtype == v.dtype and q.dtype is not torch.float64
    return has_one_type and not has_gradient and runs_triton(q.device)


def _fits(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> bool:
    """Returns True for shapes and strides that ``decode_attention`` takes."""
    if not q.numel() or not k.numel() or k.shape != v.shape or q.shape[2:] != (1, k.size(3)):
        return False
    if q.size(0) % k.size(0) or q.size(1) % k.size(1) or mask.dim() != 4:
        return False
    has_mask_of_keys = mask.shape[1:] == (1, 1, k.size(2)) and mask.size(0) in (1, k.size(0), q.size(0))
    return has_mask_of_keys and q.stride(3) == k.stride(3) == v.stride(3) == mask.stride(3) == 1


def decode_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Computes softmax(scale · q kᵀ + mask) v in float32; zeros for a query that may attend to nothing.

    Args:
        q: (R, H, 1, E).
        k: (R', K, C, E); R' divides R, as in ``Attend``, and K divides H.
        v: as k.
        mask: (R, 1, 1, C), (R', 1, 1, C) or (1, 1, 1, C), True where attention is allowed.
        scale: factor of q kᵀ.

    Returns:
        (R, H, 1, E) in the dtype of q.
    """
    rows, heads, _, size = q.shape
    columns = k.size(2)
    parts = _parts(rows * heads, columns)
    output = q.new_empty(rows, heads, 1, size)
    width = _power_of_two(size)
    mixed = output if parts == 1 else q.new_empty(rows * heads, parts, size, dtype=torch.float32)
    log_sums = mixed if parts == 1 else q.new_empty(rows * heads, parts, dtype=torch.float32)
    shared = rows // len(k)
    mask_shared = rows if len(mask) == 1 else rows // len(mask)
    tile = max(16, TILE // width)
    part_columns = -(-columns // (parts * tile)) * tile
    attend, join = _attend_kernels()
    with torch.cuda.device_of(q):  # Triton launches on the current device
        attend[(rows * heads, parts)](
            *(q, k, v, mask, mixed, log_sums),
            *(heads, heads // k.size(1), shared, mask_shared, columns, parts, part_columns, float(scale)),
            *(q.stride(0), q.stride(1), *k.stride()[:3], *v.stride()[:3], mask.stride(0)),
            SIZE=size,
            WIDTH=width,
            TILE=tile,
            IS_PART=parts > 1,
            num_warps=WARPS,
        )
        if parts > 1:
            widths = {"SIZE": size, "WIDTH": width, "PARTS_WIDTH": _power_of_two(parts)}
            join[(rows * heads,)](mixed, log_sums, output, parts, **widths, num_warps=WARPS)
    return output


def _parts(queries: int, columns: int) -> int:
    """Returns into how many parts the columns are divided: few queries and many columns make several.

    >>> _parts(12, 192), _parts(32, 4096), _parts(768, 4096)
    (1, 8, 1)
    """
    return max(1, min(PROGRAMS // queries, columns // LEAST_COLUMNS))


def _power_of_two(size: int) -> int:
    """Returns the smallest power of two from ``size`` on, as Triton's ranges need it."""
    return 1 << (size - 1).bit_length()


def store_for(device: torch.device) -> Store:
    """Returns the function that stores a token of each row in a cache of fixed shape on ``device``."""
    return store_in_one_kernel if runs_triton(device) else store_columns


def store_in_one_kernel(buffers: Stored, new: Stored, rows: Tensor, columns: Tensor) -> None:
    """Computes ``store_columns``: a program copies the key and the value of a head of a row."""
    (keys, values), (k, v) = buffers, new
    if torch.compiler.is_compiling() or keys.dtype is torch.float64 or not k.stride(3) == v.stride(3) == 1:
        store_columns(buffers, new, rows, columns)
        return
    size = keys.size(3)
    store = _store_kernel()
    with torch.cuda.device_of(keys):
        store[(len(rows), keys.size(1))](
            *(keys, values, k, v, rows, columns),
            *(*keys.stride()[:3], *values.stride()[:3], *k.stride()[:2], *v.stride()[:2]),
            SIZE=size,
            WIDTH=_power_of_two(size),
            num_warps=1,
        )


@cache
def _attend_kernels():  # type: ignore[no-untyped-def]  # triton has no types
    """Returns the kernels that attend, and that join parts of the columns."""
    import triton
    import triton.language as tl

    @triton.jit
    def attend(  # type: ignore[no-untyped-def]
        q, k, v, mask, mixed, log_sums,
        heads, group, shared, mask_shared, columns, parts, part_columns, scale,
        q_row, q_head, k_row, k_head, k_column, v_row, v_head, v_column, mask_row,
        SIZE: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, IS_PART: tl.constexpr,
    ):  # fmt: skip
        query, part = tl.program_id(0), tl.program_id(1)
        row, head = (query // heads).to(tl.int64), (query % heads).to(tl.int64)
        units = tl.arange(0, WIDTH)
        inside = units < SIZE
        own_q = tl.load(q + row * q_row + head * q_head + units, mask=inside, other=0.0).to(tl.float32) * scale
        keys = k + (row // shared) * k_row + (head // group) * k_head
        values = v + (row // shared) * v_row + (head // group) * v_head
        allowed_row = mask + (row // mask_shared) * mask_row
        largest = float("-inf")
        total = 0.0  # Σ exp(score − largest)
        sums = tl.zeros([WIDTH], tl.float32)  # Σ exp(score − largest) v
        for first in range(0, part_columns, TILE):
            tile = part * part_columns + first + tl.arange(0, TILE)
            allowed = tl.load(allowed_row + tile, mask=tile < columns, other=0) != 0
            if tl.max(allowed.to(tl.int32), 0) > 0:  # empty columns are not read
                read = allowed[:, None] & inside[None, :]
                x = tl.load(keys + tile[:, None] * k_column + units[None, :], mask=read, other=0.0).to(tl.float32)
                y = tl.load(values + tile[:, None] * v_column + units[None, :], mask=read, other=0.0).to(tl.float32)
                scores = tl.where(allowed, tl.sum(x * own_q[None, :], 1), float("-inf"))
                larger = tl.maximum(largest, tl.max(scores, 0))
                weights = tl.exp(scores - larger)
                factor = tl.exp(largest - larger)
                sums = sums * factor + tl.sum(weights[:, None] * y, 0)
                total = total * factor + tl.sum(weights, 0)
                largest = larger
        divisor = tl.where(total > 0.0, total, 1.0)  # without keys the sums are zeros
        result = sums / divisor
        place = query.to(tl.int64) * parts + part
        tl.store(mixed + place * SIZE + units, result.to(mixed.dtype.element_ty), mask=inside)
        if IS_PART:
            tl.store(log_sums + place, tl.where(total > 0.0, largest + tl.log(divisor), float("-inf")))

    @triton.jit
    def join(  # type: ignore[no-untyped-def]
        mixed, log_sums, output, parts,
        SIZE: tl.constexpr, WIDTH: tl.constexpr, PARTS_WIDTH: tl.constexpr,
    ):  # fmt: skip
        query = tl.program_id(0).to(tl.int64)
        units, part = tl.arange(0, WIDTH), tl.arange(0, PARTS_WIDTH)
        own = tl.load(log_sums + query * parts + part, mask=part < parts, other=float("-inf"))
        largest = tl.max(own, 0)
        weights = tl.where(own > float("-inf"), tl.exp(own - largest), 0.0)
        total = tl.sum(weights, 0)
        read = (part < parts)[:, None] & (units < SIZE)[None, :]
        x = tl.load(mixed + (query * parts + part[:, None]) * SIZE + units[None, :], mask=read, other=0.0)
        result = tl.sum(weights[:, None] * x, 0) / tl.where(total > 0.0, total, 1.0)
        tl.store(output + query * SIZE + units, result.to(output.dtype.element_ty), mask=units < SIZE)

    return attend, join


@cache
def _store_kernel():  # type: ignore[no-untyped-def]  # triton has no types
    """Returns the kernel that stores: a program copies the key and the value of a head of a row."""
    import triton
    import triton.language as tl

    @triton.jit
    def store(  # type: ignore[no-untyped-def]
        keys, values, k, v, rows, columns,
        keys_row, keys_head, keys_column, values_row, values_head, values_column, k_row, k_head, v_row, v_head,
        SIZE: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        new, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
        row, column = tl.load(rows + new), tl.load(columns + new)
        units = tl.arange(0, WIDTH)
        inside = units < SIZE
        x = tl.load(k + new * k_row + head * k_head + units, mask=inside)
        tl.store(keys + row * keys_row + head * keys_head + column * keys_column + units, x, mask=inside)
        y = tl.load(v + new * v_row + head * v_head + units, mask=inside)
        tl.store(values + row * values_row + head * values_head + column * values_column + units, y, mask=inside)

    return store
