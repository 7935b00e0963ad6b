"""Processes that begin as a new one does, without importing PyTorch again: forks of one that imported it.

``huggingface_hub`` reads its environment when it is imported, registered parts live as long as the process: such tests
need a process of their own, and all but a tenth of its time was the import of PyTorch. The first process has imported
that and ``heedful`` alone; each run is a fork of it with its own environment, arguments, folder and streams. It ends as
a process does, but for the removal of all modules, which takes 50 times as long as the fork. The ranks of a training
run are forks of a second process, which has also imported the libraries that a run needs besides. What is to begin with
other modules names them (``imports``).
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src"
SERVER = """
import atexit, json, os, sys, threading
while line := sys.stdin.readline():
    asked, children = json.loads(line), []
    if isinstance(asked, dict):  # for the status of a child
        ended, status = os.waitpid(asked["child"], 0 if asked["waits"] else os.WNOHANG)
        print(json.dumps(os.waitstatus_to_exitcode(status) if ended else None), flush=True)
        continue
    for request in asked:
        if not (child := os.fork()):
            break
        children.append(child)
    else:
        print(json.dumps(children), flush=True)
        continue
    break
else:
    sys.exit()
code, sys.argv, environment, folder, *streams = request
for number, stream in enumerate((os.devnull, *streams)):
    os.dup2(os.open(stream, os.O_RDWR), number)
os.environ.clear()
os.environ.update(environment)
os.chdir(folder)
status = 0
try:
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
except SystemExit as end:
    status = end.code if isinstance(end.code, int) else int(end.code is not None)
    if end.code is not None and not isinstance(end.code, int):
        print(end.code, file=sys.stderr)
except BaseException:
    status = 1
    sys.excepthook(*sys.exc_info())
threading._shutdown()
atexit._run_exitfuncs()
sys.stdout.flush()
sys.stderr.flush()
os._exit(status)
"""
PYTORCH = "import heedful, torch"
TRAINING = f"{PYTORCH}, sklearn.feature_extraction.text"  # by the baselines of a verdict
PROGRAM = """
import os, runpy, signal, sys
signal.alarm(240)  # a rank that waits for ever ends
del sys.argv[0]
if sys.argv[0] == "-m":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
elif sys.argv[0] == "-c":
    exec(compile(sys.argv.pop(1), "<string>", "exec"), {"__name__": "__main__"})
else:
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@cache
def _server(imports: str) -> subprocess.Popen[str]:
    """The process that forks; it ends before this one."""
    hub = ("HF_", "HUGGINGFACE_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hub)}
    environment["PYTHONPATH"] = str(SOURCE)
    command = [sys.executable, "-c", f"{imports}\n{SERVER}"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    atexit.register(server.communicate)  # the end of its standard input ends it
    return server


def _answer(server: subprocess.Popen[str], asked: Any) -> Any:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(asked) + "\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())


def _forked(
    server: subprocess.Popen[str],
    code: str,
    arguments: Sequence[str],
    environments: Sequence[Mapping[str, str]],
    folder: str | Path,
) -> list[subprocess.CompletedProcess[str]]:
    """Runs code in one fork for each environment, all at once."""
    with ExitStack() as stack:
        streams = [[stack.enter_context(tempfile.NamedTemporaryFile()) for _ in range(2)] for _ in environments]
        requests = [
            (code, ["-c", *arguments], dict(environment), os.path.abspath(folder), out.name, err.name)
            for environment, (out, err) in zip(environments, streams, strict=True)
        ]
        children = _answer(server, requests)
        statuses = [_answer(server, {"child": child, "waits": True}) for child in children]
        written = [[Path(file.name).read_text(encoding="utf-8") for file in pair] for pair in streams]
    return [
        subprocess.CompletedProcess(["-c", *arguments], status, *texts)
        for status, texts in zip(statuses, written, strict=True)
    ]


def run(
    code: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: str | Path = ".",
    imports: str = PYTORCH,
) -> subprocess.CompletedProcess[str]:
    """Runs code as ``python -c CODE ARGUMENTS`` does, and returns its status and what it wrote."""
    (ended,) = _forked(_server(imports), code, arguments, [os.environ if env is None else env], cwd)
    return ended


class Started:
    """A fork that runs beside the test, as a ``Popen`` of ``python -c CODE ARGUMENTS`` does."""

    def __init__(self, code: str, *arguments: str, env: Mapping[str, str], imports: str = PYTORCH) -> None:
        self._server = _server(imports)
        with ExitStack() as stack:
            self._streams = [stack.enter_context(tempfile.NamedTemporaryFile()) for _ in range(2)]
            self._files = stack.pop_all()
        request = (code, ["-c", *arguments], dict(env), os.getcwd(), *(stream.name for stream in self._streams))
        (self.pid,) = _answer(self._server, [request])
        self._status: int | None = None

    @property
    def written(self) -> list[str]:
        """Returns the standard output and the standard error so far."""
        return [Path(stream.name).read_text(encoding="utf-8") for stream in self._streams]

    def poll(self) -> int | None:
        """The status of a fork that has ended; None of one that runs."""
        if self._status is None:
            self._status = _answer(self._server, {"child": self.pid, "waits": False})
        return self._status

    def wait(self, seconds: float) -> int:
        """Waits for its end and returns its status."""
        end = time.monotonic() + seconds
        while (status := self.poll()) is None:
            assert time.monotonic() < end, f"the process {self.pid} does not end"
            time.sleep(0.01)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def close(self) -> None:
        """Ends it if it runs, and removes what it wrote."""
        self.send_signal(signal.SIGKILL)
        self.wait(20)
        self._files.close()


def _rank_environments(ranks: int) -> list[dict[str, str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def run_ranks(ranks: int, *arguments: object) -> list[subprocess.CompletedProcess[str]]:
    """Runs ``python ARGUMENTS`` (a script, ``-m MODULE`` or ``-c CODE``) as so many processes of one training run."""
    return _forked(_server(TRAINING), PROGRAM, [*map(str, arguments)], _rank_environments(ranks), ".")


def start_ranks(ranks: int, *arguments: object) -> list[Started]:
    """Starts what ``run_ranks`` runs, beside the test."""
    environments = _rank_environments(ranks)
    return [Started(PROGRAM, *map(str, arguments), env=env, imports=TRAINING) for env in environments]
