"""Memory that is kept: a tensor made again takes pages that are there already."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

import fresh_process
import heedful
from heedful.kernels.allocator import CAPACITIES, MAX_KERNELS, keep_few_kernels
from heedful.kernels.plan import apply_training_plan
from heedful.optimize_model import optimize

PROGRAM = """
import resource, sys, torch
from heedful.kernels.allocator import keep_memory
if not keep_memory(any_size=sys.argv[1] == "any"):
    sys.exit(3)
size = int(sys.argv[2]) * 2**18
torch.ones(size + 2**14)  # an aligned tensor does not fit into the place of one as large, if that has neighbours
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(size)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


GAPS = """
import resource, sys, torch
from heedful.kernels.allocator import FreeMemory, keep_memory
if not keep_memory(any_size=True):
    sys.exit(3)
def held():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20
def gaps(count):
    both = [(torch.ones(2**21), torch.ones(10)) for _ in range(count)]  # 8 MiB each, and what keeps them apart
    return [small for _, small in both]
def check(holds, said=""):
    if not holds:
        raise AssertionError(said)
before = held()
much, little = FreeMemory(2**30), FreeMemory(2**27)
check(not much.release_if_grown() and not little.release_if_grown())  # so much is free as a step leaves
pinned = gaps(20)
check(held() - before > 100)
check(not much.release_if_grown())
check(held() - before > 100)
check(little.release_if_grown())
check(held() - before < 60, held() - before)
check(not little.release_if_grown())
torch.ones(2**26)  # 256 MiB that a step takes and frees are no gaps
check(not FreeMemory(2**27).release_if_grown())
"""


def test_much_free_memory_is_returned() -> None:
    done = fresh_process.run(GAPS)
    if done.returncode == 3:
        pytest.skip("no glibc here, whose memory could be kept")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("kind", "mebibytes"), [("some", 16), ("any", 16), ("any", 64), ("any", 200)])
@pytest.mark.full(keep=2)
def test_a_tensor_takes_the_pages_of_the_one_before(kind: str, mebibytes: int) -> None:
    done = fresh_process.run(PROGRAM, kind, str(mebibytes))
    if done.returncode == 3:
        pytest.skip("no glibc here, whose memory could be kept")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < mebibytes * 2**20 // 4096 // 4


SHAPES = """
import resource, sys, torch
from heedful.kernels.onednn_linear import has_onednn, onednn_product
from heedful.kernels.allocator import keep_few_kernels
if sys.argv[1] == "few":
    keep_few_kernels(16)
if not has_onednn(torch.float32):
    sys.exit(3)
def held():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20
weight, x = torch.randn(256, 256), torch.randn(700, 256)
onednn_product(x, weight, None)
before = held()
for count in range(100, 600):
    onednn_product(x[:count], weight, None)
print(held() - before)
"""


def test_kernels_of_shapes_that_do_not_come_again_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.platform != "linux":
        pytest.skip("what a process holds is read from Linux's /proc")
    for name in CAPACITIES:
        monkeypatch.delenv(name, raising=False)
    held = {}
    for kind in ("few", "all"):
        done = fresh_process.run(SHAPES, kind)
        if done.returncode == 3:
            pytest.skip("this PyTorch has no oneDNN")
        assert done.returncode == 0, done.stderr
        held[kind] = float(done.stdout)
    assert held["few"] < 0.5 * held["all"], held


def test_an_environment_that_says_how_many_kernels_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = CAPACITIES
    monkeypatch.setenv(first, "7")
    monkeypatch.setenv(second, "")
    monkeypatch.delenv(second)
    keep_few_kernels()
    assert (os.environ[first], os.environ[second]) == ("7", str(MAX_KERNELS))


@pytest.mark.parametrize("ready", [apply_training_plan, optimize])
def test_models_that_learn_or_answer_on_a_cpu_keep_few_kernels(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CAPACITIES:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    ready(heedful.create("gpt-micro", seed=0))
    assert [os.environ[name] for name in CAPACITIES] == [str(MAX_KERNELS)] * 2
