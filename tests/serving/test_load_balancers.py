"""Two servers behind nginx and HAProxy, configured as docs/serving.md says: no request fails while one of them ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_serve_command import Stream, process
from test_serving_docs import blocks
from test_serving_limits import request

from answering_folders import saved
from fresh_process import Started

BALANCERS = ("nginx", "haproxy")
PLACES = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
LONG: dict[str, Any] = {"prompt": "a", "max_tokens": 400, "min_new_tokens": 400}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@dataclass
class Replicas:
    """Two servers, "one" and "two", whose steps are slow, and the addresses of the balancers before them."""

    processes: dict[str, Started] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    balancers: dict[str, str] = field(default_factory=dict)

    def metric(self, name: str, metric: str) -> float:
        text = httpx.get(f"{self.addresses[name]}/metrics", timeout=60).text
        return float(re.search(rf"^{metric} (\S+)$", text, re.M)[1])  # type: ignore[index]

    def taken(self, name: str) -> float:
        """Answers that a server generates, or that wait there."""
        return self.metric(name, "heedful_live_rows") + self.metric(name, "heedful_queue_requests")

    @property
    def live(self) -> float:
        return sum(self.metric(name, "heedful_live_rows") for name in self.addresses)

    def balancer(self, kind: str) -> str:
        if kind not in self.balancers:
            pytest.skip(f"{kind} is not installed: apt-get install {kind}")
        return self.balancers[kind]


def command_of(kind: str, binary: str, folder: Path, ports: dict[str, str]) -> list[str]:
    """The command that runs a balancer with the configuration of the docs, on other ports."""
    (text,) = blocks(kind)
    for before, after in ports.items():
        assert before in text
        text = text.replace(before, after)
    if kind == "haproxy":
        (folder / "haproxy.cfg").write_text(text, "utf-8")
        return [binary, "-db", "-f", str(folder / "haproxy.cfg")]
    paths = [f"{name}_temp_path {folder / name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")]
    text = text.replace("http {", "http {\n  access_log off;\n  " + "\n  ".join(paths), 1)
    (folder / "nginx.conf").write_text(text, "utf-8")
    own = f"daemon off; pid {folder / 'pid'}; error_log stderr;"
    return [binary, "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", own]


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    found = {kind: shutil.which(kind, path=PLACES) for kind in BALANCERS}
    if not any(found.values()):
        pytest.skip("neither nginx nor HAProxy is installed: apt-get install nginx haproxy")
    made, place = Replicas(), tmp_path_factory.mktemp("behind")
    saved("text-generation", place / "one", length=1000)
    shutil.copytree(place / "one", place / "two")
    with ExitStack() as stack:
        for name in ("one", "two"):
            server = process(str(place / name), "--slots", "2", "--queue", "2", "--drain", "20")
            made.processes[name], made.addresses[name] = stack.enter_context(server)
        for kind, binary in found.items():
            if binary is None:
                continue
            port = free_port()
            own = zip(("8001", "8002", "8080"), (*made.addresses.values(), f":{port}"), strict=True)
            ports = {before: after.rpartition(":")[2] for before, after in own}
            (folder := place / kind).mkdir()
            command = command_of(kind, binary, folder, ports)
            running = stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            stack.callback(running.terminate)
            made.balancers[kind] = f"http://127.0.0.1:{port}"
            until(lambda at=made.balancers[kind]: is_ready(at))  # type: ignore[misc]
        yield made


def is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/ready", timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def completed(address: str, **more: Any) -> Any:
    response = httpx.post(f"{address}/v1/completions", json={"prompt": "a", "max_tokens": 2, **more}, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("kind", BALANCERS)
def test_requests_are_spread_and_streams_are_not_held_back(replicas: Replicas, kind: str) -> None:
    address = replicas.balancer(kind)
    streams = [Stream(address, 40), Stream(address, 40)]  # each has its first tokens
    assert [replicas.metric(name, "heedful_live_rows") for name in replicas.addresses] == [1.0, 1.0]
    for stream in streams:
        stream.join()
        assert stream.lines[-1] == "data: [DONE]"
    assert {completed(address)["model"] for _ in range(6)} == {"one", "two"}


@pytest.mark.parametrize("kind", BALANCERS)
def test_a_client_that_goes_frees_its_slot(replicas: Replicas, kind: str) -> None:
    address = f"{replicas.balancer(kind)}/v1/completions"
    with httpx.stream("POST", address, json={**LONG, "stream": True}, timeout=60) as response:
        assert response.status_code == 200
        lines = response.iter_lines()  # held: the connection is closed with it
        next(lines)
        assert replicas.live == 1
    until(lambda: replicas.live == 0)


def test_requests_that_a_full_server_refuses_go_to_the_other(replicas: Replicas) -> None:
    address, one = replicas.balancer("nginx"), replicas.addresses["one"]
    with ExitStack() as stack:
        for number in range(4):  # two are generated, two wait
            connection = socket.create_connection(("127.0.0.1", int(one.rpartition(":")[2])))
            stack.enter_context(connection).sendall(request("/v1/completions", LONG))
            until(lambda: replicas.taken("one") > number)  # noqa: B023 (called in this turn alone)
        assert httpx.post(f"{one}/v1/completions", json={"prompt": "a"}, timeout=60).status_code == 429
        assert [completed(address)["model"] for _ in range(4)] == ["two"] * 4
    until(lambda: replicas.taken("one") == 0)


def test_a_server_ends_and_no_request_fails(replicas: Replicas) -> None:
    """The last test: one server is left."""
    addresses = list(replicas.balancers.values())
    streams = [Stream(address, 60) for address in addresses]
    ending = json.loads(streams[0].lines[0].removeprefix("data: "))["model"]
    (other,) = replicas.addresses.keys() - {ending}
    models: list[str] = []
    errors: list[BaseException] = []
    has_ended = threading.Event()

    def ask(address: str) -> None:
        try:
            while not has_ended.is_set():
                models.append(completed(address)["model"])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(address,)) for address in addresses]
    for thread in threads:
        thread.start()
    replicas.processes[ending].send_signal(signal.SIGTERM)
    until(lambda: not is_ready(replicas.addresses[ending]))
    before = len(models)
    assert replicas.processes[ending].wait(30) == 0
    until(lambda: len(models) > before + 2)  # both balancers have met the closed port
    has_ended.set()
    for thread in (*threads, *streams):
        thread.join()
    assert errors == []
    assert all(stream.lines[-1] == "data: [DONE]" for stream in streams)
    assert [completed(address)["model"] for address in addresses for _ in range(3)] == [other] * 3 * len(addresses)
