"""Windows and macOS as far as Linux can play them: what they lack is taken away, what they refuse is refused."""

from __future__ import annotations

import ast
import ctypes
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from heedful.errors import HeedfulError
from heedful.util import files, machine
from heedful.verify import kills

SOURCES = sorted(Path(files.__file__).parents[1].rglob("*.py"))

# Runs before heedful is imported: other packages have seen the machine as it is, heedful sees no POSIX.
WINDOWS = """
import fcntl, os, platform, shutil, signal, sys, types, warnings
import babel, huggingface_hub, numpy, PIL.Image, rich.progress, sacrebleu, safetensors.torch, sklearn.linear_model
import tokenizers, torch, torch.distributed.checkpoint, torch.optim
from sklearn.feature_extraction import text

for name in ("register_at_fork", "sysconf", "killpg", "fork", "getloadavg", "getuid", "geteuid", "getpgid", "setsid",
             "sched_getaffinity", "mkfifo", "statvfs", "chown", "O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGPIPE", "SIGUSR1", "SIGALRM", "SIGSTOP"):
    delattr(signal, name)
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
sys.modules["msvcrt"] = types.SimpleNamespace(
    LK_NBLCK=2, locking=lambda file, mode, size, lock=fcntl.flock, how=fcntl.LOCK_EX | fcntl.LOCK_NB: lock(file, how)
)
warnings.filterwarnings("error", category=EncodingWarning, module="heedful")

platform.system = lambda: "Windows"


def held():
    # Real paths of the files that this process has open or mapped.
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            pass
    with open("/proc/self/maps", "rb") as maps:
        found |= {os.fsdecode(line.split(None, 5)[5].rstrip(b"\\n")) for line in maps if line.count(b"/")}
    return found


def refusing(function):
    def call(*paths, **options):
        if "dir_fd" in options:
            folder = os.readlink(f"/proc/self/fd/{options['dir_fd']}")
            places = [os.path.join(folder, path) for path in paths]
        else:
            places = [os.path.realpath(path) for path in paths if not isinstance(path, int)]
        for file in held():
            for place in places:
                if file == place or (file.startswith(place + os.sep) and os.path.isfile(file)):
                    raise PermissionError(13, "used by another process (WinError 32)", place)
        return function(*paths, **options)
    return call


for name in ("replace", "rename", "unlink", "remove"):
    setattr(os, name, refusing(getattr(os, name)))
sys.modules["posix"] = None
shutil._use_fd_functions = False  # as where `os` has no dir_fd

import heedful.util.files
heedful.util.files.WINDOWS = True
heedful.util.files.PATIENCE = 0.2
"""

TRAINED = """
from pathlib import Path
import heedful
import heedful.data.texts_on_disk
from heedful.cli import main

place = Path(sys.argv[1])
run, table, book = place / "run", place / "table.tsv", place / "book.txt"
table.write_text("text\\tlabel\\n" + "".join(f"un thé {n}\\tfr\\na tea {n}\\ten\\n" for n in range(20)), "utf-8")
book.write_text("a line of a café\\n" * 400, encoding="utf-8")
(place / "in.txt").write_text("un thé\\na tea\\n", encoding="utf-8")


def check(*words):
    status = main([str(word) for word in words])
    if status != 0:
        sys.exit(f"{words} ended with status {status}")


train = ["train", "text-classification", "--train", table, "--out", run, "--preset", "bert-tiny", "--averaging.last", 2]
check(*train, "--max-steps", 2)
check(*train, "--max-steps", 4, "--resume")
model = heedful.from_pretrained(run)
parameters = {name: tensor.clone() for name, tensor in model.state_dict().items()}
model.save_pretrained(run)  # over the file that it was read from
for name, tensor in heedful.from_pretrained(run).state_dict().items():
    if not torch.equal(tensor, parameters[name]):
        sys.exit(f"{name} has changed")
check(*train, "--max-steps", 2, "--overwrite")  # while the model is there
check("predict", run, "--in", place / "in.txt", "--out", place / "out.jsonl")
check("evaluate", run, "--data", table, "--baseline")
check("export", run, "--to", "hf", "--out", place / "exported")
check("inspect", run, "un thé", "--out", place / "page.html")
heedful.data.texts_on_disk.LARGE = 1  # tokens are mapped from files
generate = ["train", "text-generation", "--train", book, "--valid", book, "--out", place / "book"]
check(*generate, "--preset", "gpt-micro", "--max-steps", 2)
if not list((place / "cache").iterdir()):
    sys.exit("no tokens were mapped")
print("everything done", file=sys.stderr)
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc to see what is open and mapped")
def test_a_run_without_posix(tmp_path: Path) -> None:
    """Training, resuming, saving over the files that were read, predicting, exporting: all without what Windows lacks,
    with ASCII as the locale's encoding, and where no open or mapped file can be replaced.
    """
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONUTF8", "PYTHONIOENCODING")}
    environment |= {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONWARNDEFAULTENCODING": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HEEDFUL_CACHE": str(tmp_path / "cache"),
        "HEEDFUL_DEBUG": "1",
        "OMP_NUM_THREADS": "1",
    }
    script = tmp_path / "script.py"
    script.write_text(WINDOWS + TRAINED, encoding="utf-8")
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, encoding="utf-8")
    assert done.stderr.endswith("everything done\n"), done.stderr[-3000:]
    assert done.returncode == 0
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8").count("\n") == 2


# --------------------------------------------------------------------------------------------------- text and its files


def text_calls() -> list[tuple[str, str, dict[str, ast.expr]]]:
    """Where a text file is opened in the package: file and line, whether it is read or written, the keywords."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = node.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            owner = called.value.id if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) else ""
            keywords = {word.arg: word.value for word in node.keywords if word.arg}
            words = {value.value for value in node.args if isinstance(value, ast.Constant)}
            modes = [value for value in words if isinstance(value, str) and re.fullmatch(r"[rwax]?[bt+]*", value)]
            where = f"{path.name}:{node.lineno}"
            if name in ("read_text", "write_text"):
                encoding = keywords.get("encoding") or next(iter(node.args[:1] if name == "read_text" else []), None)
                found.append((where, name[:-5], keywords | ({"encoding": encoding} if encoding else {})))
            elif name in ("open", "fdopen") and owner not in ("webbrowser", "Image", "tokenize", "Index"):
                mode = modes[0] if modes else "r"
                binary = "b" in mode or (owner in ("gzip", "lzma") and "t" not in mode) or owner == "os"
                if not binary:
                    found.append((where, "write" if mode[0] in "wax" or "+" in mode else "read", keywords))
    return found


def test_text_files_have_one_encoding_and_one_end_of_line() -> None:
    """Whatever the locale says, and where the system would write two characters at the end of a line."""
    calls = text_calls()
    assert len(calls) >= 5
    assert [where for where, _, keywords in calls if "encoding" not in keywords] == []
    assert [where for where, kind, keywords in calls if kind == "write" and "newline" not in keywords] == []


# -------------------------------------------------------------------------------------------------------- single guards


def test_a_rename_is_tried_again_on_windows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [PermissionError(13, "in use")] * 2
    replace = os.replace

    def refused(*paths: Any) -> None:
        if refusals:
            raise refusals.pop()
        replace(*paths)

    monkeypatch.setattr(os, "replace", refused)
    monkeypatch.setattr(files, "PATIENCE", 0.4)
    monkeypatch.setattr(files, "WINDOWS", True)
    assert files.write(tmp_path / "a.txt", "two").read_text(encoding="utf-8") == "two"
    refusals += [PermissionError(13, "in use")] * 100
    with pytest.raises(HeedfulError, match=r"cannot write .*a\.txt: in use"):
        files.write(tmp_path / "a.txt", "three")
    monkeypatch.setattr(files, "WINDOWS", False)
    refusals[:] = [PermissionError(13, "in use")]
    with pytest.raises(HeedfulError, match=r"cannot write .*a\.txt"):
        files.write(tmp_path / "a.txt", "three")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "two"


@pytest.mark.parametrize("kill", [True, False])
def test_without_process_groups_the_process_alone_is_ended(monkeypatch: pytest.MonkeyPatch, kill: bool) -> None:
    monkeypatch.delattr(os, "killpg")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        kills._end(process, kill=kill)
        assert process.wait() == (kills.KILLED if kill else -signal.SIGTERM)
        kills._end(process, kill=kill)  # it has ended


def test_memory_is_known_without_sysconf(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Windows tells it: by a call of its own."""
    known = machine.total_memory()
    assert known is not None
    assert known > 0

    def fill(reference: Any) -> int:
        reference._obj.total, reference._obj.available = 16 << 30, 5 << 30
        return int(reference._obj.length == 64)  # as long as Microsoft's structure

    class Library:
        kernel32 = type("kernel32", (), {"GlobalMemoryStatusEx": staticmethod(fill)})

    for name in ("sysconf", "getloadavg", "sched_getaffinity"):
        monkeypatch.delattr(os, name, raising=False)
    for name in ("CPUINFO", "MEMINFO"):
        monkeypatch.setattr(machine, name, Path("nowhere"))
    monkeypatch.setattr(machine, "LIMITS", ())
    assert (machine.total_memory(), machine.available_memory(), machine.mean_load()) == (None, None, None)
    assert machine.cores() == os.cpu_count()
    monkeypatch.setattr(ctypes, "windll", Library, raising=False)
    assert (machine.total_memory(), machine.available_memory()) == (16 << 30, 5 << 30)


def test_memory_is_that_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "limit").write_text("1048576\n", encoding="utf-8")
    (tmp_path / "none").write_text("max\n", encoding="utf-8")
    monkeypatch.setattr(machine, "LIMITS", (tmp_path / "none", tmp_path / "limit"))
    assert machine.total_memory() == 1048576
