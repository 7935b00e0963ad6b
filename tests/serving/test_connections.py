"""Connections before any request: none is kept for long, many leave room, and errors of HTTP have the usual shape."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_server import Running, certificate, slow

from heedful.inference.pipeline import Pipeline
from heedful.serving import connections
from heedful.serving.admission import ServiceLimits
from heedful.serving.connections import Connections

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
HALF = {
    "nothing": b"",
    "half a header": HEAD[:30],
    "a header without its end": HEAD,
    "a request, and half a header": HEAD + b"\r\n" + HEAD[:30],
    "a body that never comes": HEAD + b"Content-Length: 10\r\n\r\n12345",
}


@pytest.fixture(scope="module")
def hasty(serving: Callable[..., Running], talking: Pipeline) -> Running:
    """A server with a short deadline."""
    return serving(talking, header_seconds=0.4, body_seconds=0.4)


@pytest.fixture(scope="module")
def narrow(serving: Callable[..., Running], talking: Pipeline) -> Running:
    """A server with few connections."""
    return serving(talking, connections=6, address_connections=4, reserve=2, slots=8)


@pytest.fixture
def opened(narrow: Running) -> Iterator[ExitStack]:
    """Connections that are closed after the test."""
    with ExitStack() as stack:
        yield stack
    narrow.until(lambda: count(narrow) == 0)


def count(server: Running) -> int:
    return len(server.server.server_state.connections)


def received(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    content = b""
    try:
        while part := connection.recv(1 << 16):
            content += part
    except ConnectionResetError:
        pass
    return content


@pytest.mark.parametrize("sent", HALF)
@pytest.mark.parametrize("drips", [False, True])
def test_a_connection_without_a_request_is_closed(hasty: Running, sent: str, drips: bool) -> None:
    with hasty.raw(HALF[sent]) as connection:
        ended = threading.Event()

        def drip() -> None:
            while not ended.wait(0.05):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        if drips:
            thread.start()
        try:
            content = received(connection)
        finally:
            ended.set()
        if drips:
            thread.join()
    assert (b'{"status":"ok"}' in content) == (sent in ("a request, and half a header", "a body that never comes"))
    hasty.until(lambda: count(hasty) == 0)


def test_requests_within_the_deadline_share_a_connection(hasty: Running) -> None:
    with hasty.raw(b"") as connection:
        for _ in range(4):  # together longer than the deadline of one
            time.sleep(0.15)
            connection.sendall(HEAD + b"\r\n")
            content = b""
            while not content.endswith(b"}"):
                content += connection.recv(1 << 16)
            assert content.startswith(b"HTTP/1.1 200 ")


def test_an_answer_may_take_longer_than_a_header(hasty: Running) -> None:
    with slow(hasty.service, 0.05):
        answer = hasty.post("/v1/completions", prompt="the fig", max_tokens=20, min_new_tokens=20)
    assert answer["usage"]["completion_tokens"] == 20


@pytest.mark.parametrize("requests", [1, 3])
def test_a_response_that_nobody_reads_is_not_kept(
    hasty: Running, monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    monkeypatch.setattr(connections, "UNREAD", 0.4)
    hasty.server.servers[0].sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(hasty.socket.getsockname()[:2])
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * requests)
        hasty.until(lambda: count(hasty) == 1)
        hasty.until(lambda: count(hasty) == 0)


def silent(server: Running, opened: ExitStack, content: bytes, number: int) -> list[socket.socket]:
    """Connections that send something once, one after the other, each read before the next comes."""
    made = []

    def is_read() -> bool:
        for one in list(server.server.connections._open.values()):
            with suppress(OSError):  # closed meanwhile
                if one.socket.getpeername() == made[-1].getsockname():
                    return not connections._has_unread(one.socket)
        return False

    for _ in range(number):
        made.append(opened.enter_context(server.raw(content)))
        server.until(is_read)
    return made


@pytest.mark.parametrize("content", [b"", HEAD])
def test_idle_connections_leave_room(
    narrow: Running, opened: ExitStack, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(connections, "GRACE", 0.0)
    idle = silent(narrow, opened, content, 30)
    for _ in range(3):
        assert httpx.get(f"{narrow.address}/health").status_code == 200
    body = {"prompt": "the fig", "max_tokens": 2}
    assert httpx.post(f"{narrow.address}/v1/completions", json=body).status_code == 200
    narrow.until(lambda: count(narrow) <= 6)
    assert idle[0].recv(1) == b""  # the oldest was closed, the newest was not
    idle[-1].setblocking(False)
    with pytest.raises(BlockingIOError):
        idle[-1].recv(1)


def test_a_full_server_tells_its_state(narrow: Running, opened: ExitStack) -> None:
    body = json.dumps({"prompt": "the fig", "max_tokens": 400, "min_new_tokens": 400}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    request = f"{head}Content-Type: application/json\r\n\r\n".encode() + body
    with slow(narrow.service):
        for _ in range(6):
            opened.enter_context(narrow.raw(request))
        narrow.until(lambda: len(narrow.service._live) == 6)
        assert httpx.get(f"{narrow.address}/health").status_code == 200
        response = httpx.post(f"{narrow.address}/v1/completions", json={"prompt": "a"})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "unavailable")
        assert response.headers["Retry-After"] == "1"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert len(narrow.service._live) == 6  # no answer was ended for it
        opened.close()
        narrow.until(lambda: narrow.service.is_idle)


def test_a_handshake_that_never_comes_leaves_room(
    talking: Pipeline, tmp_path: Path, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "GRACE", 0.0)
    names = certificate(tmp_path)
    limits = ServiceLimits(max_tokens=512, connections=6, address_connections=4, reserve=2, header_seconds=2.0)
    with Running(talking, limits, certificate=names) as server:
        idle = silent(server, opened, b"\x16\x03\x01", 20)  # the first bytes of a handshake
        assert received(idle[0]) == b""  # closed for a later one, or at its own deadline
        trusted = ssl.create_default_context(cafile=names[0])
        address = server.address.replace("http:", "https:")
        assert httpx.get(f"{address}/health", verify=trusted).status_code == 200
        assert received(idle[-1]) == b""  # its own deadline


class Socket:
    """A socket that records its end."""

    def __init__(self, number: int) -> None:
        self.number, self.is_closed = number, False

    def fileno(self) -> int:
        return -1 if self.is_closed else self.number

    def recv(self, size: int, flags: int) -> bytes:
        raise BlockingIOError

    def shutdown(self, how: int) -> None:
        self.is_closed = True


def test_one_address_does_not_drive_out_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "GRACE", 0.0)
    limits = ServiceLimits(connections=6, address_connections=4, reserve=1)
    table, made = Connections(limits), list[Any]()

    def admitted(address: str) -> bool:
        made.append(Socket(len(made)))
        return table.admit(made[-1], address)

    def closed() -> list[int]:
        return [one.number for one in made if one.is_closed]

    assert all(admitted(address) for address in ("10.0.0.1", "2001:db8::1", *["2001:db8:0:0:f::2"] * 2))
    assert closed() == []
    assert admitted("2001:db8::3")
    assert admitted("2001:db8::4")  # the fifth of a network
    assert closed() == [1]
    assert admitted("::ffff:10.0.0.1")
    assert admitted("10.0.0.2")  # the seventh: one of those with the most makes room
    assert closed() == [1, 2]
    for number in range(len(made)):
        table.set_waiting(number, waits=False)
    assert not table.is_full
    assert admitted("10.0.0.3")  # the reserve
    assert table.is_full
    table.set_waiting(8, waits=False)
    assert not admitted("10.0.0.3")
    made[0].is_closed = True
    assert admitted("10.0.0.3")
    assert closed() == [0, 1, 2]


def test_a_request_that_a_busy_server_has_not_read_makes_no_room(
    opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "GRACE", 0.0)
    table = Connections(ServiceLimits(connections=8, address_connections=3, reserve=1))

    def admitted() -> tuple[socket.socket, socket.socket]:
        ours, theirs = (opened.enter_context(one) for one in socket.socketpair())
        for one in (ours, theirs):
            one.setblocking(False)
        assert table.admit(ours, "10.0.0.1")
        return ours, theirs

    pairs = [admitted() for _ in range(3)]
    for _, client in pairs:
        client.sendall(HEAD)
    pairs.append(admitted())
    for _, client in pairs:  # nobody was driven out
        with pytest.raises(BlockingIOError):
            client.recv(1)
    assert pairs[1][0].recv(100) == HEAD  # read, and half a header: it waits for its client
    admitted()
    assert pairs[1][1].recv(1) == b""
    for _, client in (*pairs[:1], *pairs[2:]):
        with pytest.raises(BlockingIOError):
            client.recv(1)


def answer(server: Running, content: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the only response on a connection, which the server closes."""
    with server.raw(content) as connection:
        head, _, body = received(connection).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, body


@pytest.mark.parametrize(
    "content",
    [
        b"nonsense\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nA B: c\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 100_000,
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
        HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HEAD + b"\r\n",
    ],
)
def test_requests_that_are_no_http_have_an_error_of_the_usual_shape(hasty: Running, content: bytes) -> None:
    status, headers, body = answer(hasty, content)
    assert (status, headers["connection"], headers["content-type"]) == (400, "close", "application/json")
    assert headers["x-content-type-options"] == "nosniff"
    error = json.loads(body)["error"]  # one response: what follows is not read as a request
    assert (set(error), error["code"]) == ({"message", "type", "code", "param"}, "http")


def test_garbage_behind_a_request_is_in_no_log(hasty: Running, capfd: pytest.CaptureFixture[str]) -> None:
    body = b'{"prompt": "the fig", "stream": true, "max_tokens": 20, "min_new_tokens": 20}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with slow(hasty.service), hasty.raw(head + b"Content-Length: %d\r\n\r\n" % len(body) + body) as connection:
        assert connection.recv(1 << 16)
        connection.sendall(b"nonsense\r\n\r\n")
        received(connection)
    hasty.until(lambda: hasty.service.is_idle)
    assert capfd.readouterr().err == ""


def test_a_refused_body_is_in_no_log(hasty: Running, capfd: pytest.CaptureFixture[str]) -> None:
    head = b"POST /health HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert answer(hasty, head + b"no number\r\n")[0] == 400
    hasty.until(lambda: count(hasty) == 0)
    assert capfd.readouterr().err == ""


def chunked(content: bytes, size: int) -> bytes:
    chunks = [content[start : start + size] for start in range(0, len(content), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


@pytest.mark.parametrize("before", [b"", b"x" * 500_000])
@pytest.mark.parametrize("path", [b"/v1/completions", b"/health"])
def test_bodies_in_many_small_chunks_are_refused(
    hasty: Running, monkeypatch: pytest.MonkeyPatch, path: bytes, before: bytes
) -> None:
    events: list[Any] = []
    own = connections._Protocol.next_event
    monkeypatch.setattr(connections._Protocol, "next_event", lambda state: events.append(1) or own(state))
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % path
    with hasty.raw(head + (chunked(before, 500_000)[:-5] if before else b"")) as connection, suppress(OSError):
        connection.sendall(chunked(b"x" * 50_000, 1))
        received(connection)
    hasty.until(lambda: count(hasty) == 0)
    assert len(events) < 3000


@pytest.mark.parametrize(("length", "size"), [(1000, 1), (100_000, 80), (1_000_000, 256)])
def test_a_body_may_come_in_chunks(hasty: Running, length: int, size: int) -> None:
    body = json.dumps({"prompt": "the fig", "max_tokens": 1}).encode().ljust(length)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert answer(hasty, head + chunked(body, size))[0] == 200


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/nothing"])
def test_head_is_get_without_a_body(hasty: Running, path: str) -> None:
    full, head = hasty.http.get(path), hasty.http.head(path)
    assert head.status_code == full.status_code
    assert head.content == b""
    assert head.headers["Content-Type"] == full.headers["Content-Type"]
    assert hasty.http.head("/predict").status_code == 405
