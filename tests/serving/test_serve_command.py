"""``heedful serve`` as a process: its head, its options, SIGTERM and Ctrl-C."""

from __future__ import annotations

import gc
import json
import os
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from running_server import certificate

import fresh_process
import heedful
from answering_folders import saved
from heedful import cli
from heedful.cli.serve import _head
from heedful.serving import run
from heedful.serving.openai_routes import model_entry
from heedful.serving.service import Service

SLOW = """
import time
from heedful.generation.slots import SlotDecoder
own = SlotDecoder.step
def step(self, most):
    time.sleep(0.05)
    return own(self, most)
SlotDecoder.step = step
from heedful.cli import command
command()
"""

STUCK = SLOW.replace("import time", "import itertools, time\nsteps = itertools.count()")
STUCK = STUCK.replace("sleep(0.05)", "sleep(0.05 if next(steps) < 2 else 60)")


@contextmanager
def process(*tokens: str, code: str = SLOW) -> Iterator[tuple[fresh_process.Started, str]]:
    """A server whose steps are slow, and its address."""
    with closing(fresh_process.Started(code, "serve", *tokens, "--port", "0", env=os.environ)) as running:
        end = time.monotonic() + 60
        while (written := running.written)[0].count("\n") < 5:
            assert time.monotonic() < end
            assert running.poll() is None, written
            time.sleep(0.02)
        head = written[0].splitlines()[:5]
        assert [line.split()[0] for line in head] == ["model", "task", "open", "clients", "limits"]
        address = head[2].split()[1].rstrip("/")
        while True:
            try:
                httpx.get(f"{address}/ready", verify=False)
                break
            except httpx.TransportError:
                assert time.monotonic() < end
                time.sleep(0.05)
        yield running, address


class Stream(threading.Thread):
    """A stream that is read until it ends."""

    def __init__(self, address: str, tokens: int) -> None:
        super().__init__()
        self.address, self.body = (
            address,
            {"prompt": "a", "max_tokens": tokens, "min_new_tokens": tokens, "temperature": 0, "stream": True},
        )
        self.lines: list[str] = []
        self.broken = False
        self.start()
        end = time.monotonic() + 20
        while len(self.lines) < 2:
            assert time.monotonic() < end
            time.sleep(0.02)

    def run(self) -> None:
        try:
            with httpx.stream("POST", f"{self.address}/v1/completions", json=self.body, timeout=60) as response:
                self.lines.extend(line for line in response.iter_lines() if line)
        except httpx.TransportError:
            self.broken = True


@pytest.fixture(scope="module")
def folder(folder_of: Callable[[str], Path]) -> str:
    return str(folder_of("text-generation"))


def test_sigterm_lets_running_answers_finish(folder: str) -> None:
    with process(folder) as (running, address):
        stream = Stream(address, 14)
        running.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        assert httpx.get(f"{address}/ready").status_code == 503
        assert httpx.post(f"{address}/v1/completions", json={"prompt": "a"}).status_code == 503
        stream.join(20)
        assert stream.lines[-1] == "data: [DONE]"
        assert running.wait(20) == 0
        assert running.written[1] == ""


def test_an_answer_that_takes_longer_ends_with_an_error(folder: str) -> None:
    with process(folder, "--drain", "0.1") as (running, address):
        stream = Stream(address, 14)
        running.send_signal(signal.SIGTERM)
        stream.join(20)
        assert json.loads(stream.lines[-1][6:])["error"]["code"] == "unavailable"
        assert "data: [DONE]" not in stream.lines
        assert running.wait(20) == 0


@pytest.mark.parametrize("code", [SLOW, STUCK], ids=["between steps", "in a long step"])
def test_ctrl_c_ends_at_once_with_open_streams(folder: str, code: str) -> None:
    with process(folder, code=code) as (running, address):
        stream = Stream(address, 14)
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 130
        stream.join(20)
        assert "data: [DONE]" not in stream.lines
        assert running.written[1].splitlines() == ["heedful: stopped"]


def test_https(folder: str, tmp_path: Path) -> None:
    names = certificate(tmp_path)
    with process(folder, "--cert", names[0], "--key", names[1]) as (_, address):
        assert address.startswith("https://")
        trusted = ssl.create_default_context(cafile=names[0])
        assert httpx.get(f"{address}/health", verify=trusted).status_code == 200


@pytest.mark.parametrize(
    ("tokens", "part"),
    [
        (["--host", "0.0.0.0"], "needs a token"),
        (["--host", "nowhere.invalid", "--token-file", "good"], "is no address of this machine"),
        (["--token-file", "none"], "no such file"),
        (["--token-file", "short"], "at least 16 characters"),
        (["--cert", "good"], "belong together"),
        (["--cert", "good", "--key", "good"], "two PEM files"),
        (["--slots", "0"], "--slots is 0"),
        (["--queue", "-1"], "--queue is -1"),
        (["--timeout", "-1"], "--timeout is -1"),
        (["--port", "99999"], "--port is 99999"),
        (["--slot", "1"], "--slots"),
    ],
)
def test_options_that_do_not_fit(
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tokens: list[str],
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good").write_text("a-token-of-this-server\n", encoding="utf-8")
    (tmp_path / "short").write_text("secret\n", encoding="utf-8")
    assert cli.main(["serve", folder, *tokens]) == 2
    error = capsys.readouterr().err
    assert part in error
    assert len(error.splitlines()) == 1


def test_a_port_that_is_taken(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert cli.main(["serve", folder, "--port", str(other.getsockname()[1])]) == 2
    assert "is taken; give another --port" in capsys.readouterr().err


def test_without_the_extra(folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("heedful.cli.serve.EXTRA", ("a_package_that_is_not_there",))
    assert cli.main(["serve", folder]) == 2
    assert capsys.readouterr().err.strip().endswith("pip install 'heedful[serve]'")


def test_a_collection_of_garbage_leaves_out_what_the_start_made() -> None:
    """A full one would stop all answers while it searches the libraries: longer than many steps."""
    before, frozen = gc.get_freeze_count(), list[int]()

    class Server:
        config = SimpleNamespace()

        async def serve(self, sockets: Any) -> None:
            frozen.append(gc.get_freeze_count())

    service: Any = SimpleNamespace(start=lambda loop: None, close=lambda: None, join=lambda timeout: True)
    stub: Any = Server()
    bound: Any = None
    assert run.serve(service, stub, bound) is False
    assert frozen[0] > before + 50_000
    assert gc.get_freeze_count() <= before


@pytest.mark.parametrize(
    ("task", "read"),
    [("text-classification", 48), ("summarization", 48), ("text-generation", 48), ("question-answering", 2048)],
)
def test_the_printed_length_is_what_the_model_reads(task: str, read: int, tmp_path: Path) -> None:
    """A context that is split into windows has no limit but the server's."""
    service = Service(heedful.pipeline(None, saved(task, tmp_path / "model", length=48)), "model")
    assert f" {read:,} tokens each" in _head(service, "http://host", has_token=False)
    assert model_entry(service)["heedful"]["max_tokens"] == read
    if service.decoder is not None:
        assert service.decoder.capacity == read


def test_a_context_shorter_than_the_positions_is_what_is_served(tmp_path: Path) -> None:
    folder = saved("text-generation", tmp_path / "model", length=48)
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**tokenizer, "model_max_length": 20}), encoding="utf-8")
    service = Service(heedful.pipeline(None, folder), "model")
    assert service.decoder is not None
    assert service.decoder.capacity == service.tokens_read == 20
