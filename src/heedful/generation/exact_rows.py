"""Numbers of rows with which a step gives a row the same bits, found by trying.

Kernels choose how to sum by the shape of a product, the alignment of its memory and the thread that computes it. So the
bits of a row can depend on the number of rows, on the row's place among them, and on the number of columns of keys. No
name of a processor tells which kernels it has; a few steps of the model do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from heedful.cache import SlotCache

LENGTHS = (5, 20, 70, 300, 560)  # of the rows that are tried; fused attention reads 512 columns at a time
EACH = 64  # up to this number each number of rows is tried, above it every fourth
ALONE = 2  # numbers of rows up to which rows of each length are also tried without longer ones

Step = Callable[[list[int], list[int]], Tensor]  # tokens and lengths of the first R slots → logits (R, V)


def exact_row_counts(step: Step, cache: SlotCache, capacity: int) -> list[int]:
    """Returns the numbers of rows with which a row has the same bits in any slot, ascending; empty if there are none.

    A row of the same tokens, keys and values is computed in all slots of the ``cache``, among rows of other lengths up
    to ``capacity``. The largest number of rows is always the number of slots. Afterwards the cache is empty.
    """
    lengths = list(dict.fromkeys(min(length, capacity - 1) for length in LENGTHS))
    slots = len(cache.used)
    counts = [rows for rows in range(slots, 0, -1) if rows <= EACH or rows % 4 == 0 or rows == slots]
    fill_alike(cache, lengths[-1] + 1)
    new_columns = _columns(cache, lengths)
    expected: dict[int, Tensor] = {}  # logits by length

    def is_same(row_lengths: list[int]) -> bool:
        logits = step([0] * len(row_lengths), row_lengths)
        for column, stored in new_columns:
            column.copy_(stored)
        pairs = zip(row_lengths, logits, strict=True)
        return all(torch.equal(expected.setdefault(length, row.clone()), row) for length, row in pairs)

    found: list[int] = []
    for rows in counts:
        trials = [[lengths[(slot + rows) % len(lengths)] for slot in range(rows)]]
        if rows <= ALONE or rows == slots:
            trials += [[length] * rows for length in lengths]
        if all(map(is_same, trials)):
            found.append(rows)
        elif rows == slots:
            break  # its bits are those that the others are compared with
    for slot in range(slots):
        cache.clear(slot)
    return found[::-1]


def fill_alike(cache: SlotCache, length: int) -> None:
    """Fills the first ``length`` columns of all slots with the same random keys and values."""
    generator = torch.Generator().manual_seed(0)
    for own in cache.buffers:
        for buffer in own:
            columns = min(length, buffer.size(2))
            numbers = torch.randn(buffer.size(1), columns, buffer.size(3), generator=generator)
            buffer[:, :, :columns] = numbers.to(buffer)
    cache.used = [min(length, cache.capacity)] * len(cache.used)


def _columns(cache: SlotCache, lengths: list[int]) -> list[tuple[Tensor, Tensor]]:
    """Returns the columns that rows of these lengths write, as views of the buffers, with copies of them."""
    buffers = [buffer for own in cache.buffers for buffer in own]
    columns = [buffer[:, :, length % buffer.size(2)] for buffer in buffers for length in lengths]
    return [(column, column[:1].clone()) for column in columns]
