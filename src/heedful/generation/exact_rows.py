"""Numbers of rows with which a step gives a row the same bits, found by trying.

Kernels choose how to sum by the shape of a product, the alignment of its memory and the thread that computes it. So the
bits of a row can depend on the number of rows, on the row's place among them, and on the number of columns of keys. No
name of a processor tells which kernels it has; a few steps of the model do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from heedful.kernels.fixed_cache import SlotCache

LENGTHS = (5, 20, 70, 300, 560)  # of the rows that are tried; fused attention reads 512 columns at a time
EACH = 64  # up to this number each number of rows is tried, above it every fourth
ALONE = 2  # numbers of rows up to which rows of each length are also tried without longer ones

Step = Callable[[list[int], list[int]], Tensor]  # tokens and lengths of the first R slots → logits (R, V)


def exact_row_counts(step: Step, cache: SlotCache, capacity: int, parts: Sequence[nn.Module] = ()) -> list[int]:
    """Returns the numbers of rows with which a row has the same bits in any slot, ascending; empty if there are none.

    A row of the same tokens, keys and values is computed in all slots of the ``cache``, among rows of other lengths up
    to ``capacity``. The largest number of rows is always the number of slots. Afterwards the cache is empty. The inputs
    (R, 1, D) of ``parts`` must agree too: a part that rounds them, to int8 say, hides most last bits from the logits.
    """
    lengths = list(dict.fromkeys(min(length, capacity - 1) for length in LENGTHS))
    slots = len(cache.used)
    counts = [rows for rows in range(slots, 0, -1) if rows <= EACH or rows % 4 == 0 or rows == slots]
    fill_alike(cache, lengths[-1] + 1)
    new_columns = _columns(cache, lengths)
    expected: dict[int, list[Tensor]] = {}  # logits and inputs of the parts, by length
    observed: list[Tensor] = []

    def is_same(row_lengths: list[int]) -> bool:
        observed.clear()
        logits = step([0] * len(row_lengths), row_lengths)
        for column, stored in new_columns:
            column.copy_(stored)
        for length, *row in zip(row_lengths, logits, *observed, strict=True):
            first = expected.setdefault(length, [numbers.clone() for numbers in row])
            if not all(map(torch.equal, first, row)):
                return False
        return True

    found: list[int] = []
    with ExitStack() as hooks:
        for part in parts:
            hooks.enter_context(part.register_forward_pre_hook(lambda _, inputs: observed.append(inputs[0])))
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
