"""Set-up of all tests: the same random numbers, one thread, and the data that lies beside the project."""

from __future__ import annotations

import logging
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path

import pytest

# Before torch, for this process and for those that tests start: the suite's own processes make the machine busy, and on
# tensors this small two threads wait for each other, so that a test takes several times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
if (
    signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):  # of a suite in the background: programs that tests start inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Saved files reach the disk only before a power cut, which no test has: each wait for it takes about as long as a step
# of training, and a short run has twenty-five. test_files.py has the order in which a save calls it.
os.fsync = lambda descriptor: None

TESTS = Path(__file__).parent
HELPERS = Counter(path.stem for path in TESTS.rglob("*.py") if path.stem != "conftest")
if twice := [name for name, times in HELPERS.items() if times > 1]:  # only one of them can be imported
    raise pytest.UsageError(f"two modules under tests/ are called {twice[0]}.py; rename one")
# The asserts of helper modules are rewritten as those of tests are: their failures show values, and stay under -O.
pytest.register_assert_rewrite(*(name for name in HELPERS if not name.startswith("test_")))

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _compiled_kernels() -> None:
    """Kernels are compiled before the first test, not in the background of the tests that decode."""
    from heedful.kernels import few_rows

    if few_rows.compiler() is not None:
        few_rows.library()


@pytest.fixture(autouse=True, scope="module")
def _log() -> Iterator[None]:
    """The tests of a module leave no filter on the log, which would hide the warnings of later tests."""
    yield
    assert not logging.getLogger("heedful").filters


@pytest.fixture
def shared_data() -> Callable[[str], Path]:
    """The path of a file or folder under ../shared/data; the test is skipped, saying so, where it is absent."""

    def find(name: str) -> Path:
        if not (DATA / name).exists():
            pytest.skip(f"../shared/data/{name} is absent")
        return DATA / name

    return find


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="also grids, notebooks, long kills and fuzzing (make test-full)"
    )


def kept_cases(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Returns the cases of a test that run without ``--full``: the first few, or those whose names have one of several
    words, or with ``keep="pairs"`` enough for every pair of values of two parameters that any case has, each time the
    case with most pairs that no earlier one has.
    """
    mark = cases[0].get_closest_marker("full")
    keep = mark.kwargs.get("keep", 0)
    if isinstance(keep, tuple):
        return [case for case in cases if any(word in case.name for word in keep)]
    if keep != "pairs":
        return cases[:keep]
    values = [[(name, id(value)) for name, value in case.callspec.params.items()] for case in cases]
    pairs = [set(combinations(own, 2)) for own in values]
    missing, kept = set().union(*pairs), []
    while missing:
        best = max(range(len(cases)), key=lambda number: len(pairs[number] & missing))
        kept.append(cases[best])
        missing -= pairs[best]
    return kept


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is marked ``full`` without ``--full``: a whole test, or its cases but ``keep``."""
    if config.getoption("--full"):
        return
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("full") is not None:
            cases[item.nodeid.partition("[")[0]].append(item)
    marked = {item for own in cases.values() for item in own}
    kept = {item for own in cases.values() for item in kept_cases(own)}
    short = [item for item in items if item not in marked or item in kept]
    left_out = [item for item in items if item in marked - kept]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = short
