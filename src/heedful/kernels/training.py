"""What makes a step quicker on a CPU and changes nothing but the order of its sums, and which numbers are drawn."""

from __future__ import annotations

from torch import nn

from heedful.kernels.allocator import keep_few_kernels, keep_memory
from heedful.kernels.blocked_attention import attend_in_blocks
from heedful.kernels.dropout import drop_quickly
from heedful.kernels.training_linear import learn_directly
from heedful.kernels.unpadded_training import leave_padding_out


def quicken(model: nn.Module, rows_alike: bool = True, whole: bool = True) -> None:
    """On a CPU: cheap dropout, attention in blocks, no work on padding, float32 products by oneDNN, memory kept.

    Args:
        model: whose parameters say where it lies; elsewhere than on a CPU it is left as it is.
        rows_alike: whether nothing is drawn for whole sequences, so that they may stand in one row.
        whole: whether every weight lies whole in this process; products of shared ones stay as they are.

    >>> import heedful
    >>> model = heedful.create("bert-tiny", seed=0)
    >>> quicken(model)
    >>> type(model.encoder).__name__
    'Packed'
    """
    if next(model.parameters()).device.type != "cpu":
        return
    keep_few_kernels()
    keep_memory(any_size=True)
    drop_quickly(model)
    attend_in_blocks(model)
    if whole:
        learn_directly(model)
    if rows_alike:
        leave_padding_out(model)
