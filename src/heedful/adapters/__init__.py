"""Low-rank adapters (LoRA): small trained matrices added to frozen linear maps, or merged into their weights.

    low_rank   the linear map with its adapter
    adapter    adds adapters to a model, merges and removes them

This package reads and writes no files: ``heedful.pretrained.peft`` reads and writes PEFT's files.
"""

from heedful.adapters.adapter import (
    Adapter,
    LoraConfig,
    adapter_of,
    add_adapter,
    attach,
    fresh_head,
    low_rank_parts,
    merge,
    remove,
    train_whole,
)
from heedful.adapters.low_rank import LowRank

__all__ = [
    "Adapter",
    "LoraConfig",
    "LowRank",
    "adapter_of",
    "add_adapter",
    "attach",
    "fresh_head",
    "low_rank_parts",
    "merge",
    "remove",
    "train_whole",
]
