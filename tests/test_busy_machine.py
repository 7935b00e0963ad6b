"""How threads wait is chosen by the load, before torch is imported, where nobody chose it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from heedful.cli import processes
from heedful.cli.processes import cores_in_use, wait_passively
from heedful.training.determinism import threads_restored, use_threads


@pytest.fixture(autouse=True)
def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before torch is imported, on four cores of which others use three."""
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(processes, "cores_in_use", lambda: 3.0)
    monkeypatch.setattr(processes, "usable_cores", lambda: 4)
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


@pytest.mark.parametrize("used", [None, 0.0, 0.5])
def test_a_quiet_machine_changes_nothing(monkeypatch: pytest.MonkeyPatch, used: float | None) -> None:
    monkeypatch.setattr(processes, "cores_in_use", lambda: used)
    assert wait_passively(["train"], {}) is None


def test_cores_to_spare_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert wait_passively(["train"], {}) is None


def test_the_load_is_that_of_the_minute_or_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "loadavg"
    file.write_text("0.50 0.11 0.07 3/123 4567\n")
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.1, 0.1), raising=False)
    assert cores_in_use(file) == 2, "two besides this process"
    monkeypatch.setattr(os, "getloadavg", lambda: (5.0, 0.1, 0.1), raising=False)
    assert cores_in_use(file) == 5
    assert cores_in_use(tmp_path / "none") == 5, "as on macOS"
    monkeypatch.delattr(os, "getloadavg")
    assert cores_in_use(tmp_path / "none") is None, "as on Windows"
    file.write_text("nonsense")
    assert cores_in_use(file) is None


def test_all_cores_are_usable_where_the_system_has_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert processes.usable_cores() == os.cpu_count()


def test_the_library_changes_nothing() -> None:
    code = "import os, sys, heedful, heedful.cli; sys.exit('OMP_WAIT_POLICY' in os.environ)"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)


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
