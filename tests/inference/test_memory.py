"""Memory that is kept: a tensor made again takes pages that are there already."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, torch
from heedful.inference.memory import keep_memory
if not keep_memory(any_size=sys.argv[1] == "any"):
    sys.exit(3)
size = int(sys.argv[2]) * 2**18
torch.ones(size)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(size)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.parametrize(("kind", "mebibytes"), [("some", 16), ("any", 16), ("any", 64), ("any", 200)])
def test_a_tensor_takes_the_pages_of_the_one_before(kind: str, mebibytes: int) -> None:
    command = [sys.executable, "-c", PROGRAM, kind, str(mebibytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip("no glibc here, whose memory could be kept")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < mebibytes * 2**20 // 4096 // 4
