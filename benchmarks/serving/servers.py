"""The servers that are measured: one class each, with how it is started and what it reads."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

ROOT = Path(__file__).resolve().parents[2]
START = 180.0  # seconds that a server may take to start
DTYPES = ("float32", "bfloat16", "int8")


class Absent(Exception):
    """A server cannot be run here, and why."""


@dataclass(frozen=True)
class Setting:
    """Settings that a server is started with."""

    folder: Path  # the model, Hugging Face's layout
    made: Path  # a folder for the model in other formats
    slots: int
    threads: int
    dtype: str  # of the weights: one of DTYPES
    context: int  # tokens of a prompt with its answer


class Server:
    """A server of one model. Subclasses say which packages it needs, and the command that starts it."""

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    ready: ClassVar[str] = "/v1/models"
    chat: ClassVar[bool] = False  # asks /v1/chat/completions
    dtypes: ClassVar[tuple[str, ...]] = DTYPES  # those of the weights that it has

    def command(self, at: Setting, port: int) -> list[str]:
        """Returns the command that serves on a port of 127.0.0.1."""
        raise NotImplementedError

    def model(self, at: Setting) -> str:
        """Returns the name of the model in requests."""
        return at.folder.name

    def is_idle(self, url: str) -> bool | None:
        """Returns True if nothing runs or waits a second after the last request; None: the server does not say."""
        return None

    @contextmanager
    def running(self, at: Setting) -> Iterator[tuple[str, int]]:
        """Starts the server; yields its address and the id of its process, and ends it."""
        if at.dtype not in self.dtypes:
            raise Absent(f"it has no {at.dtype} weights")
        for package in self.needs:
            if importlib.util.find_spec(package) is None:
                raise Absent(f"{package} is not installed (pip install {package.replace('_', '-')})")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = {**os.environ, "OMP_NUM_THREADS": str(at.threads), "HF_HUB_OFFLINE": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src"), *sys.path])
        log = at.made / f"{self.name}.log"
        with open(log, "w", encoding="utf-8") as out:
            process = subprocess.Popen(
                self.command(at, port), stdout=out, stderr=out, env=environment, start_new_session=True
            )
        url = f"http://127.0.0.1:{port}"
        try:
            self._wait(process, url, log)
            yield url, process.pid
        finally:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _wait(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        until = time.monotonic() + START
        while time.monotonic() < until:
            if process.poll() is not None:
                lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no message"]
                raise Absent(f"it ended with {process.returncode}: {lines[-1][:300]}")
            try:
                with urllib.request.urlopen(url + self.ready, timeout=2):
                    return
            except (OSError, urllib.error.URLError):
                time.sleep(0.2)
        raise Absent(f"it did not start within {START:.0f} s; see {log}")


class Ours(Server):
    """``heedful serve``. As many requests wait as run, so that none takes twice as long."""

    name, needs, ready = "ours", ("fastapi", "uvicorn", "prometheus_client"), "/ready"

    def command(self, at: Setting, port: int) -> list[str]:
        """Returns the command."""
        options = ["--slots", str(at.slots), "--queue", str(at.slots), "--max-tokens", str(at.context)]
        options += ["--dtype", at.dtype]
        return [sys.executable, "-m", "heedful", "serve", str(at.folder), "--port", str(port), *options]

    def is_idle(self, url: str) -> bool | None:
        """Returns True if nothing runs or waits a second after the last request."""
        time.sleep(1)
        with urllib.request.urlopen(url + "/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return {"heedful_live_rows 0.0", "heedful_queue_requests 0.0"} <= set(lines)


class Shell(Server):
    """A server of ``shells``."""

    def command(self, at: Setting, port: int) -> list[str]:
        """Returns the command."""
        settings = [str(number) for number in (port, at.slots, at.threads, at.context)]
        return [sys.executable, "-m", "benchmarks.serving.shells", self.name, str(self.read(at)), at.dtype, *settings]

    def read(self, at: Setting) -> Path:
        """Returns the folder or file that the engine reads."""
        return at.folder


class LlamaCpp(Shell):
    """llama.cpp's own server."""

    name, needs = "llama_cpp", ("xllamacpp", "gguf")

    def read(self, at: Setting) -> Path:
        """Returns the GGUF file, which it writes."""
        from heedful.export import export

        kind = {"float32": "f32", "bfloat16": "bf16", "int8": "q8_0"}[at.dtype]
        export(at.folder, "gguf", at.made / "model.gguf", quantization=kind, overwrite=True)
        return at.made / "model.gguf"


class CTranslate2(Shell):
    """CTranslate2 in batches of what waits."""

    name, needs = "ctranslate2", ("ctranslate2", "transformers")


class Naive(Shell):
    """transformers, one request at a time."""

    name, needs, dtypes = "naive", ("transformers",), DTYPES[:2]


class Transformers(Server):
    """``transformers serve`` with continuous batching. It only has conversations: the template is the bare text."""

    name, needs, chat, ready = "transformers", ("transformers", "fastapi", "uvicorn", "openai"), True, "/health"
    dtypes = DTYPES[:2]

    def command(self, at: Setting, port: int) -> list[str]:
        """Returns the command, on a copy of the folder with a template."""
        copy = at.made / "with_template"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(at.folder, copy)
        (copy / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
        options = ["--host", "127.0.0.1", "--port", str(port), "--dtype", at.dtype, "--continuous-batching"]
        return [str(Path(sys.executable).with_name("transformers")), "serve", *options]

    def model(self, at: Setting) -> str:
        """Returns the folder, which is the name."""
        return str(at.made / "with_template")


SERVERS: dict[str, Server] = {one.name: one for one in (Ours(), LlamaCpp(), CTranslate2(), Transformers(), Naive())}


def memory(process: int) -> float:
    """Returns the memory of a process and its children in MiB."""
    total, todo = 0.0, [process]
    while todo:
        one = Path("/proc") / str(todo.pop())
        try:
            lines = (one / "status").read_text(encoding="utf-8").splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024
            todo += [int(n) for task in (one / "task").iterdir() for n in (task / "children").read_text().split()]
        except (OSError, StopIteration):
            continue
    return total
