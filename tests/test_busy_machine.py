"""The way that threads wait follows the load unless it was chosen: before torch is imported, and after it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import heedful
from heedful.cli import processes
from heedful.cli.processes import wait_passively
from heedful.training.determinism import threads_restored, use_threads
from heedful.util import busy_machine
from heedful.util.busy_machine import THREAD_VARIABLES, cores_in_use, processor_times, sleep_while_waiting


@pytest.fixture(autouse=True)
def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before torch is imported, on four cores of which others use three."""
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(processes, "cores_in_use", lambda before: 3.0)
    monkeypatch.setattr(busy_machine, "usable_cores", lambda: 4)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_threads_sleep_on_a_busy_machine() -> None:
    environ: dict[str, str] = {}
    line = wait_passively(["train", "translation"], environ)
    assert environ == {"OMP_WAIT_POLICY": "PASSIVE"}
    assert line is not None
    assert "3.0 of 4 cores" in line
    assert "OMP_WAIT_POLICY=PASSIVE" in line


def test_only_long_work_says_so() -> None:
    environ: dict[str, str] = {}
    assert wait_passively(["predict", "runs/dates", "2040-10-30"], environ) is None
    assert environ == {"OMP_WAIT_POLICY": "PASSIVE"}


@pytest.mark.parametrize("tokens", [[], ["tasks"], ["summary", "gpt2"], ["train", "--help"], ["--version"]])
def test_commands_that_do_not_compute_change_nothing(tokens: list[str]) -> None:
    environ: dict[str, str] = {}
    assert wait_passively(tokens, environ) is None
    assert environ == {}


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_an_environment_that_says_how_is_left_alone(name: str) -> None:
    environ = {name: "1"}
    assert wait_passively(["train"], environ) is None
    assert environ == {name: "1"}


def test_a_process_of_several_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert wait_passively(["train"], {}) is None


def test_it_is_too_late_after_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert wait_passively(["train"], {}) is None


@pytest.mark.parametrize("used", [None, 0.0, 0.4])
def test_a_quiet_machine_changes_nothing(monkeypatch: pytest.MonkeyPatch, used: float | None) -> None:
    monkeypatch.setattr(processes, "cores_in_use", lambda before: used)
    assert wait_passively(["train"], {}) is None


def test_cores_to_spare_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert wait_passively(["train"], {}) is None


# user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice: before, and what each adds in half a second
TICKS = (1000, 20, 300, 9000, 60, 7, 8, 900, 50, 0)


def stat(file: Path, *added: int) -> Path:
    """A file as ``/proc/stat``, in ticks of 10 ms."""
    ticks = [before + more for before, more in zip(TICKS, (*added, *[0] * len(TICKS)), strict=False)]
    file.write_text(f"cpu  {' '.join(map(str, ticks))}\ncpu0 1 2 3\n", encoding="ascii")
    return file


def at(monkeypatch: pytest.MonkeyPatch, clock: float, own: float) -> None:
    """Sets the clocks, of the machine and of this process."""
    times = {"monotonic": lambda: clock, "process_time": lambda: own, "sleep": lambda seconds: None}
    monkeypatch.setattr(busy_machine, "time", SimpleNamespace(**times))
    monkeypatch.setattr(os, "sysconf", lambda name: 100, raising=False)


@pytest.mark.parametrize(
    ("added", "own", "used"),
    [
        ((60,), 0.1, 1.0),
        ((20, 10, 30), 0.1, 1.0),
        ((0, 0, 0, 0, 0, 20, 40), 0.1, 1.0),
        ((40,), 0.4, 0.0),
        ((40,), 0.45, 0.0),  # ticks are coarser than the own time
        ((40, 0, 0, 60, 50, 0, 0, 90, 40, 40), 0.4, 0.0),  # idle, waiting, of others on the host, counted as user
        ((-500,), 0.1, 0.0),  # some containers' times go back
        ((9000,), 0.1, 4.0),  # of four cores
    ],
)
def test_the_cores_in_use_are_those_of_now(
    added: tuple[int, ...], own: float, used: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ran in the minute before, this process's own earlier commands among it."""
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 9.0, 9.0), raising=False)
    at(monkeypatch, 100.0, 3.0)
    before = processor_times(stat(tmp_path / "stat"))
    at(monkeypatch, 100.5, 3.0 + own)
    assert cores_in_use(before, stat(tmp_path / "stat", *added)) == pytest.approx(used)


def test_a_clock_that_stands_still_is_no_division_by_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, 100.0, 3.0)
    file = stat(tmp_path / "stat")
    assert cores_in_use(processor_times(file), file) == 0


@pytest.mark.parametrize("content", [None, "", "nonsense", "cpu 1 2", "cpu a b c d e f g h"])
def test_where_the_system_does_not_say_it_is_the_load(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (tmp_path / "stat").write_text(content, encoding="ascii")
    assert processor_times(tmp_path / "stat") is None
    monkeypatch.setattr(os, "getloadavg", lambda: (5.0, 0.1, 0.1), raising=False)
    assert cores_in_use(None, tmp_path / "stat") == 5, "as on macOS"
    monkeypatch.delattr(os, "getloadavg")
    assert cores_in_use(None, tmp_path / "stat") is None, "as on Windows"


def test_a_busy_program_is_seen() -> None:
    first = processor_times()
    if first is None or not first.busy:
        pytest.skip("this system does not report processor times")
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            assert any((cores_in_use(processor_times()) or 0) > 0.5 for _ in range(100))
        finally:
            child.kill()


def test_the_command_counts_from_its_start() -> None:
    code = "from heedful.cli import command, command_line, processes\n"
    code += "command_line.run_process = lambda: int(processes.at_start is None)\ncommand()"
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == int(processor_times() is None)


def test_all_cores_are_usable_where_the_system_has_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert busy_machine.usable_cores() == os.cpu_count()


def test_the_library_changes_nothing() -> None:
    code = "import os, sys, heedful, heedful.cli; sys.exit('OMP_WAIT_POLICY' in os.environ)"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)


# --------------------------------------------------------------------------------------- from Python, with torch loaded


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two threads on all cores of this machine, of which others use as many."""
    monkeypatch.undo()
    if not busy_machine._has_gcc_openmp():
        pytest.skip("this PyTorch has another OpenMP than GCC's")
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(busy_machine, "cores_in_use", lambda before: float(os.cpu_count() or 1))
    with threads_restored():
        torch.set_num_threads(2)
        torch.ones(2**20).add_(1)  # starts the second
        yield


def threads_now() -> int:
    """Threads of this process, as the system counts them."""
    return len(os.listdir("/proc/self/task"))


def until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@pytest.mark.usefixtures("loaded")
def test_there_are_more_threads_than_cores_while_others_use_them() -> None:
    """Then GCC's OpenMP lets those that wait sleep. They end with the context."""
    before, said = threads_now(), list[str]()
    idle = (
        2 * busy_machine.usable_cores() + 1
    )  # for each core one of Python and one of OpenMP, and the one that watches
    with sleep_while_waiting(said.append):
        assert until(lambda: threads_now() == before + idle)
        assert torch.get_num_threads() == 2
    assert until(lambda: threads_now() == before)
    cores = os.cpu_count() or 1
    assert said == [f"threads    sleep while they wait: other programs use {cores:.1f} of {cores} cores"]


@pytest.mark.usefixtures("loaded")
def test_a_machine_that_becomes_busy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter([0.0, 0.1, 99.0])
    monkeypatch.setattr(busy_machine, "cores_in_use", lambda before: next(used))
    monkeypatch.setattr(busy_machine, "PERIOD", 0.01)
    before, said = threads_now(), list[str]()
    with sleep_while_waiting(said.append):
        assert until(lambda: threads_now() > before + 1)
    assert until(lambda: threads_now() == before)
    assert said == []


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("kind", ["environment", "one thread", "other library"])
def test_where_it_has_no_effect_nothing_is_done(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "environment":
        monkeypatch.setenv("GOMP_SPINCOUNT", "0")
    elif kind == "one thread":
        torch.set_num_threads(1)
    else:
        monkeypatch.setattr(busy_machine, "MAPS", Path("absent"))
    before, said = threading.active_count(), list[str]()
    with sleep_while_waiting(said.append):
        assert threading.active_count() == before
    assert said == []


@pytest.mark.usefixtures("loaded")
def test_a_run_has_the_same_bits_beside_other_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Trained and evaluated from Python; its head says how the threads wait."""
    rows = [{"text": f"{word} {number}", "label": word} for word in ("sun", "moon") for number in range(20)]
    results = []
    for used in (0.0, 99.0):
        monkeypatch.setattr(busy_machine, "cores_in_use", lambda before, used=used: used)
        options = {"preset": "bert-tiny", "max_steps": 3, "max_epochs": None, "training": {"threads": 2}}
        run = heedful.train("text-classification", rows, out=tmp_path / str(used), **options)
        assert ("sleep while they wait" in "".join(capfd.readouterr())) == (used > 0)
        weights = (tmp_path / str(used) / "model.safetensors").read_bytes()
        results.append((weights, heedful.evaluate(run.folder, rows)["loss"], torch.get_num_threads()))
    assert results[0] == results[1]


def test_a_run_uses_the_threads_it_was_begun_with(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    before = torch.get_num_threads()
    with threads_restored():
        use_threads(before, said.append)
        assert said == []
        use_threads(before + 1, said.append)
        assert torch.get_num_threads() == before + 1
        assert f"{before + 1} (--training.threads)" in said[0]
        monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
        use_threads(before + 2, said.append)
        assert said[1].startswith("!")
        assert "bit-identical" in said[1]
        monkeypatch.undo()
    assert torch.get_num_threads() == before
