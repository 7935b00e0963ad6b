"""Commands on several processes: ranks_commands.py FILE, which holds a list of
commands. All are given to the same processes, one after the other, which start once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from heedful import cli
from heedful.util.ranks import join_ranks

if __name__ == "__main__":
    torch.set_num_threads(1)
    with join_ranks():
        for command in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
            if status := cli.main(command):
                sys.exit(status)
