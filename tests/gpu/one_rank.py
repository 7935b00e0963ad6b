"""One rank that takes the way of several: ``torchrun --nproc-per-node 1 one_rank.py FILE``, where FILE holds a list of
commands of heedful.

One GPU holds no two ranks of NCCL. So the size of the group is a 1 that no comparison calls 1: the engine is DDP or
``fully_shard``, and every collective is called, over NCCL on a GPU and gloo on a CPU. Prints the name of each engine.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from heedful import cli
from heedful.training.engine import Alone
from heedful.util.ranks import Ranks, own_device


class SeveralRanks(int):
    """A size that counts as more than one, whatever its value."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return False if other == 1 else int(self) == other

    def __gt__(self, other: int) -> bool:
        return True if other == 1 else int(self) > other


def main(commands: list[list[str]]) -> int:
    join, begin = Ranks.__init__, Alone.__init__

    def several(self: Ranks, rank: int = 0, size: int = 1, *groups: Any) -> None:
        join(self, rank, SeveralRanks(size), *groups)

    def named(self: Alone, ranks: Ranks | None = None) -> None:
        print(type(self).__name__, flush=True)
        begin(self, ranks)

    Ranks.__init__, Alone.__init__ = several, named  # type: ignore[method-assign]
    own_device()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    status = next(filter(None, map(cli.main, commands)), 0)
    dist.destroy_process_group()
    return status


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
