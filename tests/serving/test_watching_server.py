"""The server of ``heedful watch``: real requests over a socket, and everything that it refuses."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from heedful import cli
from heedful.errors import HeedfulError
from heedful.serving import server as serving
from heedful.serving.runs import Runs, SavedModel
from heedful.serving.server import LARGEST, Server, open_in_browser


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "runs" / "one"
    made.mkdir(parents=True)
    (made / "run.toml").write_text('task = "translation"\ntrain = ["a"]\nout = "one"\n', encoding="utf-8")
    (made / "metrics.jsonl").write_text('{"step": 5, "loss": 2.0}\n', encoding="utf-8")
    (made / "watch.html").write_text("<p>é</p>", encoding="utf-8")
    (tmp_path / "secret.html").write_text("secret", encoding="utf-8")
    return made


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    made = Server(Runs([str(folder.parent)]))
    thread = threading.Thread(target=made.serve_forever, args=(0.005,))
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def asked(
    server: Server, path: str, method: str = "GET", host: str | None = None, site: str = "none"
) -> tuple[int, dict[str, str], bytes]:
    """The answer to a path exactly as it is written here."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.putheader("Sec-Fetch-Site", site)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return found


def test_the_page_the_runs_and_a_run_s_own_page(server: Server) -> None:
    with urllib.request.urlopen(server.address) as answer:
        assert b"<h1>Runs</h1>" in answer.read()
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    with urllib.request.urlopen(f"{server.address}runs.json") as answer:
        told = json.load(answer)
    (run,) = told["runs"]
    assert (run["name"], run["loss"], run["pages"]) == ("one", 2.0, ["watch.html"])
    with urllib.request.urlopen(f"{server.address}runs.json?version={told['version']}") as answer:
        assert "curves" not in json.load(answer)["runs"][0]
    status, headers, content = asked(server, f"/run/{run['id']}/watch.html")
    assert (status, content.decode()) == (200, "<p>é</p>")
    assert headers["content-security-policy"] == "sandbox allow-scripts"
    assert headers["x-content-type-options"] == "nosniff"
    status, headers, content = asked(server, f"/run/{run['id']}/watch.html", "HEAD")
    assert (status, headers["content-length"], content) == (200, str(len("<p>é</p>".encode())), b"")


@pytest.mark.parametrize(
    "path",
    [
        *("/run/0/../../secret.html", "/run/0/..%2f..%2fsecret.html", "/run/0/%2e%2e/%2e%2e/secret.html"),
        *("/run/0//etc/hostname", "/run/0/%2fetc%2fhostname", "/run/0/..", "/run/0/", "/run/0", "/run//watch.html"),
        *("/run/0/watch.html%00", "/run/0/watch.html/", "/run/-1/watch.html", "/run/1/watch.html"),
        *("/run/0/metrics.jsonl", "/run/0/run.toml", "/../secret.html", "//secret.html", "/secret.html", "/runs"),
        *(
            "/run/0/..\\..\\secret.html",
            "/run/0/link.html",
            "/run/0/%zz",
            "/run/%D9%A0/watch.html",
            "/run/0/?name=watch.html",
        ),
    ],
)
def test_nothing_else_is_opened(server: Server, folder: Path, path: str) -> None:
    (folder / "link.html").symlink_to(folder.parents[1] / "secret.html")
    assert server.runs.as_dict()["runs"][0]["id"] == 0
    status, _, content = asked(server, path)
    assert status == 404
    assert b"secret" not in content


def test_nothing_is_written_and_no_other_site_reads(server: Server) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert asked(server, "/runs.json", method)[0] == 501
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", f"localhost.evil:{server.server_port}"):
        assert asked(server, "/runs.json", host=host)[0] == 403
    for host in ("localhost", "localhost:9000", f"127.0.0.1:{server.server_port}"):  # a tunnel has a port of its own
        assert asked(server, "/runs.json", host=host)[0] == 200
    assert "access-control-allow-origin" not in asked(server, "/runs.json")[1]


@pytest.mark.parametrize("count", ["9" * 5000, "-1", "x", "", "\u0661", "1-1"])
def test_a_version_that_is_none_is_unknown(server: Server, count: str) -> None:
    version = quote(f"{server.runs.server_id}-{count}")
    status, _, content = asked(server, f"/runs.json?version={version}")
    assert status == 200
    assert "curves" in json.loads(content)["runs"][0]


def test_attention_is_drawn_on_demand(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def entry() -> dict[str, Any]:
        return dict(server.runs.as_dict()["runs"][0])

    def view(name: str, saved: SavedModel, example: int, view: str) -> dict[str, Any]:
        if view == "lens":
            raise HeedfulError("no lens")
        if view == "broken":
            raise ValueError("a secret text")
        return {"page": "<p>é</p>", "asked": [name, saved.folder.name, saved.time, example, view]}

    monkeypatch.setattr(server.attention, "view", view)
    number = entry()["id"]
    assert entry()["saved"] is None
    assert asked(server, f"/run/{number}/attention")[0] == 404
    (folder / "last").mkdir()
    (folder / "last" / "model.safetensors").write_bytes(b"")
    os.utime(folder / "last" / "model.safetensors", ns=(5_000_000, 5_000_000))
    assert entry()["saved"] == 5
    status, headers, content = asked(server, f"/run/{number}/attention?example=3&view=heads")
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(content) == {"page": "<p>é</p>", "asked": ["one", "last", 5_000_000, 3, "heads"]}
    (folder / "model.safetensors").write_bytes(b"")  # the best weights
    os.utime(folder / "model.safetensors", ns=(4_000_000, 4_000_000))
    assert json.loads(asked(server, f"/run/{number}/attention?example=x")[2])["asked"] == [
        "one",
        "one",
        4_000_000,
        0,
        "",
    ]
    assert json.loads(asked(server, f"/run/{number}/attention?example={'9' * 5000}")[2])["asked"][3] == 0
    for wrong, status, said in (("lens", 422, "no lens"), ("broken", 500, "the view failed (ValueError); try again")):
        found, _, content = asked(server, f"/run/{number}/attention?view={wrong}")
        assert (found, json.loads(content)) == (status, {"error": said})
    assert asked(server, f"/run/{number + 1}/attention")[0] == 404
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        assert asked(server, f"/run/{number}/attention", site=site)[0] == status


def until(condition: Callable[[], bool]) -> None:
    """Waits until something holds."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def threads() -> int:
    """The number of threads that serve connections."""
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


@pytest.mark.parametrize("sent", ["", "GET /runs.json HT", "GET /runs.json HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_connections_that_wait_leave_room(server: Server, monkeypatch: pytest.MonkeyPatch, sent: str) -> None:
    monkeypatch.setattr(serving, "CONNECTIONS", 8)
    address = ("127.0.0.1", server.server_port)
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(40)]
        for one in opened:
            with suppress(OSError):  # closed by now
                one.sendall(sent.encode())
        assert asked(server, "/runs.json")[0] == 200
        until(lambda: threads() <= 8)
        last = stack.enter_context(socket.create_connection(address, timeout=10))
        last.setblocking(False)
        with pytest.raises(BlockingIOError):  # the last one waits, while others are closed for it
            last.recv(1)


def test_a_request_in_progress_makes_no_room(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CONNECTIONS", 2)
    (folder / "model.safetensors").write_bytes(b"")
    number, go, answers = server.runs.as_dict()["runs"][0]["id"], threading.Event(), list[int]()
    monkeypatch.setattr(server.attention, "view", lambda *given: {"page": str(go.wait(10))})

    def ask(path: str) -> None:
        answers.append(asked(server, path)[0])

    slow = [threading.Thread(target=ask, args=(f"/run/{number}/attention",)) for _ in range(2)]
    for thread in slow:
        thread.start()
    until(lambda: list(server._waiting.values()) == [False, False])
    late = threading.Thread(target=ask, args=("/",))
    late.start()
    late.join(0.2)
    assert answers == []
    go.set()
    for thread in (*slow, late):
        thread.join(10)
    assert answers == [200, 200, 200]


def test_it_listens_on_this_machine_alone(server: Server) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_port}/"


def test_a_page_beyond_all_measure_is_not_read(server: Server, folder: Path) -> None:
    with (folder / "large.html").open("wb") as file:
        file.truncate(LARGEST + 1)  # of holes: it takes no room
    assert "large.html" in server.runs.as_dict()["runs"][0]["pages"]
    assert asked(server, "/run/0/large.html")[0] == 404


def test_errors_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parents[1])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for arguments, said in (
            (["runs", "--port", str(port)], f"port {port} is taken; give another --port"),
            (["runs", "--port", "70000"], "--port is 70000; give a number from 1 to 65535"),
            (["nowhere"], "nowhere: no such folder; name the folder of your runs: heedful watch FOLDER"),
            (["runs/one/run.toml"], "runs/one/run.toml: is a file; name the folder"),
            (["runs", "--json", "--no-open"], "--json serves no page"),
        ):
            assert cli.main(["watch", *arguments]) == 2
            out, err = capsys.readouterr()
            assert out == ""
            assert err.startswith(f"heedful: {said}"), err
            assert len(err.splitlines()) == 1


def test_a_browser_is_opened_where_there_is_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(serving.webbrowser, "open", lambda address: bool(seen.append(address)) or True)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not open_in_browser("http://a/")
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert open_in_browser("http://b/")
    assert seen == ["http://b/"]


@pytest.mark.skipif(os.name == "nt", reason="signals are otherwise there")
def test_ctrl_c_ends_it_with_one_line(folder: Path) -> None:
    command = [sys.executable, "-m", "heedful", "watch", "--no-open"]  # runs, the folder it looks in by default
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder.parents[1],
        env=environment,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # it may be ignored where the tests run
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = line.split()[0]
        assert line == f"{address} shows the runs in runs (Ctrl-C ends it)\n"
        with urllib.request.urlopen(f"{address}runs.json") as answer:
            assert len(json.load(answer)["runs"]) == 1
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20) == ("", "stopped\n")
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["GET / HTTP/1.1", "Host: {host}"], 200),
        (["GET / HTTP/1.1", "Host: {host}", "Content-Length: 0"], 200),
        (["GET / HTTP/1.1", "Host: {host}", "Host: {host}"], 400),
        (["GET / HTTP/1.1", "Host: {host}", "Host: evil.example"], 400),
        (["GET / HTTP/1.1", "Host: evil.example", "Host: {host}"], 400),
        (["GET / HTTP/1.1"], 400),
        (["GET http://{host}/ HTTP/1.1", "Host: {host}"], 400),
        (["GET http://evil.example/runs.json HTTP/1.1", "Host: {host}"], 400),
        (["HEAD http://{host}/ HTTP/1.1", "Host: {host}"], 400),
        (["GET * HTTP/1.1", "Host: {host}"], 400),
        (["GET / HTTP/1.1", "Host: {host}", "Content-Length: 5"], 400),
        (["GET / HTTP/1.1", "Host: {host}", "Transfer-Encoding: chunked"], 400),
        (["GET / HTTP/1.1", "Host: {host}", "no colon"], 400),
        (["GET / HTTP/1.1", "Host: evil.example"], 403),
    ],
    ids=lambda value: " | ".join(value) if isinstance(value, list) else None,
)
def test_requests_that_servers_may_read_differently_are_refused(server: Server, lines: list[str], status: int) -> None:
    host = f"127.0.0.1:{server.server_port}"
    text = "\r\n".join([*(line.replace("{host}", host) for line in lines), "", ""])
    hidden = f"GET /runs.json HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        connection.sendall((text + (hidden if status == 400 else hidden.replace("/runs.json", "/none"))).encode())
        with connection.makefile("rb") as stream:
            answer = stream.read()
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    if status == 400:
        assert answer.count(b"HTTP/1.1 ") == 1, "what follows is no request"
