"""Processes that begin as a new one does, without importing PyTorch again: forks of one that imported it.

``huggingface_hub`` reads its environment when it is imported, registered parts live as long as the process: such tests
need a process of their own, and all but a tenth of its time was the import of PyTorch. The first process has imported
that and ``heedful`` alone; each run is a fork of it with its own environment, arguments, folder and streams. It ends as
a process does, but for the removal of all modules, which takes 50 times as long as the fork.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
SERVER = """
import atexit, json, os, sys, threading
import heedful, torch
while line := sys.stdin.readline():
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
code, sys.argv, environment, folder, *streams = json.loads(line)
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


@cache
def _server() -> subprocess.Popen[str]:
    """The process that forks; it ends with this one, whose end closes its standard input."""
    hub = ("HF_", "HUGGINGFACE_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hub)}
    environment["PYTHONPATH"] = str(SOURCE)
    command = [sys.executable, "-c", SERVER]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def run(
    code: str, *arguments: str, env: Mapping[str, str] | None = None, cwd: str | Path = "."
) -> subprocess.CompletedProcess[str]:
    """Runs code as ``python -c CODE ARGUMENTS`` does, and returns its status and what it wrote."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        environment = dict(os.environ if env is None else env)
        request = (code, ["-c", *arguments], environment, os.path.abspath(cwd), out.name, err.name)
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        printed, told = (Path(file.name).read_text(encoding="utf-8") for file in (out, err))
    return subprocess.CompletedProcess(["-c", *arguments], status, printed, told)
