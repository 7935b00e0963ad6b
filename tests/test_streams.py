"""The process: standard streams that are closed or full, a reader that leaves, and Ctrl-C from the first moment on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the shell of these tests is POSIX's")
HEEDFUL = f"'{sys.executable}' -m heedful"
TRAIN = (
    "train text-classification --train labels.csv --out run --preset=bert-tiny --model.dim=8 --model.heads=2 "
    "--model.depth=1 --tokenizer.size=60 --max-steps=2"
)


def shell(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "80"}
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    words = ["one", "two", "three", "four", "five", "six"]
    lines = [f"{a} {b},{'even' if i % 2 else 'odd'}\n" for i, a in enumerate(words) for b in words]
    (tmp_path / "labels.csv").write_text("text,label\n" + "".join(lines), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_stop_nothing(tmp_path: Path, closed: str) -> None:
    done = shell(tmp_path, f"{HEEDFUL} tasks {closed}")
    assert (done.returncode, done.stderr) == (0, "")
    assert ("translation" in done.stdout) == (">&-" not in closed.replace("2>&-", ""))


@pytest.mark.parametrize(
    ("streams", "status"),
    [("2>&-", 0), ("<&- >&- 2>&-", 0), (">/dev/full 2>/dev/full", 2)],
)
@pytest.mark.full(keep=1)
def test_a_run_without_streams_saves_its_model(data: Path, streams: str, status: int) -> None:
    if "full" in streams and not os.path.exists("/dev/full"):
        pytest.skip("this system has no device that is always full")
    done = shell(data, f"{HEEDFUL} {TRAIN} {streams}")
    assert done.returncode == status
    assert (data / "run" / "model.safetensors").is_file()
    assert (data / "run" / "last" / "model.safetensors").is_file()
    assert done.stderr == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no device that is always full")
@pytest.mark.parametrize("command", ["tasks", "--help"])
def test_a_full_disk_is_one_line(tmp_path: Path, command: str) -> None:
    done = shell(tmp_path, f"{HEEDFUL} {command} >/dev/full")
    assert done.returncode == 2
    assert done.stderr == "heedful: No space left on device; free some space or use another folder\n"


@pytest.mark.parametrize("command", ["tasks", "--help"])
def test_a_reader_that_has_left_ends_it_quietly(tmp_path: Path, command: str) -> None:
    done = shell(tmp_path, f"(sleep 0.2; {HEEDFUL} {command}; echo $? >status) | true")
    assert done.stderr == ""
    assert (tmp_path / "status").read_text(encoding="utf-8") == "141\n"


INTERRUPTED = """
import os, signal, sys
wanted = sys.argv.pop(1)
def hook(event, given):
    global wanted
    if event == "import" and given[0] == wanted:
        wanted = None
        os.kill(os.getpid(), signal.SIGINT)
from heedful.cli import command
sys.addaudithook(hook)
command()
"""


@pytest.mark.parametrize(
    ("module", "statuses"),
    [
        ("heedful.cli.command_line", [-signal.SIGINT]),
        ("cyclopts", [-signal.SIGINT]),
        ("heedful.cli.parser", [-signal.SIGINT]),
        ("heedful.settings", [-signal.SIGINT]),
        ("heedful.training.run", [130]),
        ("torch", [130]),
        ("torch.nn", [130]),
    ],
)
def test_ctrl_c_is_quiet_from_the_first_moment(data: Path, module: str, statuses: list[int]) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", INTERRUPTED, module, *TRAIN.split()]
    done = subprocess.run(command, cwd=data, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode in statuses, done.stderr
    assert done.stderr.strip() in ("", "heedful: stopped")
    assert not (data / "run" / "model.safetensors").exists()


def test_an_ignored_ctrl_c_stays_ignored(data: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    code = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{INTERRUPTED}"
    command = [sys.executable, "-c", code, "cyclopts", "tasks"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_little_is_imported_before_ctrl_c_is_handled() -> None:
    code = "import sys; before = {*sys.modules}; import heedful.cli.entry; print(*({*sys.modules} - before))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    others = {
        name for name in done.stdout.split() if name.partition(".")[0] not in ("__future__", "importlib", "warnings")
    }
    assert others == {"heedful", "heedful.cli", "heedful.cli.entry"}
