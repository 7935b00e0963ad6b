"""Limits, cancellation and the end of a server: nothing works on for a client that has gone, nothing ends falsely."""

from __future__ import annotations

import base64
import io
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageFile
from running_server import Running, slow

import heedful
from heedful.generation.method import MethodInput
from heedful.generation.slots import SlotDecoder
from heedful.inference.pipeline import Pipeline
from heedful.serving import app, generation, requests
from heedful.serving.admission import Admission, RequestError, ServiceLimits
from heedful.serving.service import Service
from tolerances import approx

LONG: dict[str, Any] = {"prompt": "the fig", "max_tokens": 400, "seed": 1, "min_new_tokens": 400}


def request(path: str, body: Any, headers: str = "") -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


@pytest.fixture(scope="module")
def server(serving: Callable[..., Running], talking: Pipeline) -> Running:
    return serving(talking, slots=2, queue=6, backlog=20)


@pytest.fixture(scope="module")
def served(
    serving: Callable[..., Running], folder_of: Callable[[str], Path], talking: Pipeline
) -> Callable[[str], Running]:
    """A server of a task, started once."""
    made: dict[str, Running] = {}

    def server(task: str) -> Running:
        if task not in made:
            made[task] = serving(talking if task == "text-generation" else heedful.pipeline(None, folder_of(task)))
        return made[task]

    return server


@pytest.fixture(autouse=True)
def _free_afterwards(server: Running) -> Iterator[None]:
    yield
    server.until(lambda: server.service.is_idle)
    assert server.service.admission.tokens == 0
    assert server.service.decoder is not None
    assert server.service.decoder.free == 2


def steps_of(service: Service) -> Callable[[], int]:
    """Counts the steps of the slots."""
    assert service.decoder is not None
    own, count = service.decoder.step, [0]

    def step(most: int) -> Any:
        count[0] += 1
        return own(most)

    service.decoder.step = step  # type: ignore[method-assign]
    return lambda: count[0]


@contextmanager
def filled(server: Running, count: int) -> Iterator[None]:
    """``count`` answers are being generated or wait, for clients that go at the end."""
    with slow(server.service):
        connections = []
        for number in range(count):
            connections.append(server.raw(request("/v1/completions", LONG)))
            server.until(lambda: len(server.service._live) + len(server.service._rows) > number)  # noqa: B023
        yield
        for connection in connections:
            connection.close()
        server.until(lambda: server.service.is_idle)


def test_a_full_queue_is_refused_at_once(server: Running) -> None:
    with filled(server, 8):
        response = server.http.post("/v1/completions", json={"prompt": "a"})
        assert response.status_code == 429
        assert 1 <= int(response.headers["Retry-After"]) <= 60
        assert response.json()["error"]["code"] == "queue_full"
        assert server.http.get("/health").status_code == 200
        assert re.search(r"^heedful_queue_requests 6.0$", server.http.get("/metrics").text, re.M)
    assert server.post("/v1/completions", prompt="a", max_tokens=2)["choices"]


def test_answers_and_tokens_count_not_requests(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server.refused("/v1/completions", prompt="a", n=7)[0] == 413
    assert server.refused("/v1/completions", prompt=["a"] * 7)[0] == 413
    assert server.refused("/v1/completions", prompt="a", n=6, max_tokens=5000)[0] == 413
    assert server.refused("/v1/completions", prompt="long " * 9000)[0] == 413
    created = []
    monkeypatch.setattr(generation, "Answer", lambda *given: created.append(given))
    assert server.refused("/predict", inputs=["a"] * 10, options={"num_return_sequences": 9999})[0] == 413
    assert not created  # they would fill the memory
    monkeypatch.undo()
    with filled(server, 5):
        assert server.refused("/v1/completions", prompt="a", n=4)[0] == 429


@pytest.mark.parametrize(
    ("route", "body", "rows"),
    [
        ("/v1/completions", {"prompt": "a" * 30, "max_tokens": 2}, {"num_beams": 150}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 2, "penalty_alpha": 0.5}, {"top_k": 150}),
        ("/v1/completions", {"prompt": "long " * 80, "max_tokens": 1}, {"num_beams": 15}),
        ("/predict", {"inputs": "a" * 30}, {"options": {"max_new_tokens": 2, "num_beams": 150}}),
        ("/", {"inputs": "a" * 30}, {"parameters": {"max_new_tokens": 2, "num_beams": 150}}),
    ],
)
def test_a_search_counts_the_prompt_for_each_of_its_rows(
    server: Running, route: str, body: dict[str, Any], rows: dict[str, Any]
) -> None:
    status, error = server.refused(route, **body, **rows)
    assert status == 413
    assert "fewer beams" in error["message"]
    few = json.loads(re.sub(r"150?", "2", json.dumps(rows)))
    assert server.post(route, **body, **few)


@pytest.mark.parametrize("strings", [["x"] * 17, ["x" * 257]])
@pytest.mark.parametrize("route", ["/v1/completions", "/predict", "/"])
def test_stop_strings_are_bounded(server: Running, route: str, strings: list[str]) -> None:
    bodies: dict[str, Callable[[list[str]], dict[str, Any]]] = {
        "/v1/completions": lambda given: {"prompt": "a", "max_tokens": 2, "stop_strings": given},
        "/predict": lambda given: {"inputs": "a", "options": {"max_new_tokens": 2, "stop_strings": given}},
        "/": lambda given: {"inputs": "a", "parameters": {"max_new_tokens": 2, "stop": given}},
    }
    status, error = server.refused(route, **bodies[route](strings))
    assert status == 400
    assert "at most 16 stop strings of 256 characters" in error["message"]
    assert server.post(route, **bodies[route](["x" * 256] * 16))


@pytest.mark.parametrize("more", [{}, {"stream": True}])
def test_a_client_that_goes_frees_its_slot_within_two_steps(server: Running, more: dict[str, Any]) -> None:
    service = server.service
    with slow(service):
        connection = server.raw(request("/v1/completions", {**LONG, **more}))
        server.until(lambda: any(row.text.count > 3 for row in service._live.values()))
        gone = threading.Event()
        after, own = [0], service.decoder.step  # type: ignore[union-attr]

        def step(most: int) -> Any:
            after[0] += gone.is_set()
            return own(most)

        service.decoder.step = step  # type: ignore[union-attr, method-assign]
        own_cancel = service.cancel

        def cancel(*given: Any) -> None:
            gone.set()
            own_cancel(*given)

        service.cancel = cancel  # type: ignore[method-assign]
        connection.close()
        server.until(lambda: not service._live)
        del service.cancel
        assert gone.is_set()
        assert after[0] <= 2
    text = server.http.get("/metrics").text
    assert re.search(r'^heedful_cancellations_total\{where="decoding"\} [1-9]', text, re.M)


def test_a_client_that_goes_while_it_waits_or_is_read(server: Running) -> None:
    service = server.service
    with filled(server, 2):
        waiting = server.raw(request("/v1/completions", LONG))
        server.until(lambda: len(service._live) == 2 and len(service._rows) == 1)
        waiting.close()
        server.until(lambda: not service._rows and service.admission.inputs == 0)
        assert len(service._live) == 2  # the others go on
    assert service.decoder is not None
    own = service.decoder.step

    def step(most: int) -> Any:
        """The server reads a part of the prompt only when it knows that the client has gone."""
        server.until(lambda: all(row.generation.cancelled for row in service._live.values()))
        return own(most)

    service.decoder.step = step  # type: ignore[method-assign]
    try:
        reading = server.raw(request("/v1/completions", {"prompt": "fig " * 100, "max_tokens": 20}))
        server.until(lambda: len(service._live) == 1)
        reading.close()
        server.until(lambda: not service._live)
    finally:
        del service.decoder.step
    text = server.http.get("/metrics").text
    for where in ("queue", "prefill"):
        assert re.search(rf'^heedful_cancellations_total{{where="{where}"}} [1-9]', text, re.M), where


def test_one_that_goes_ends_no_other(server: Running) -> None:
    alone = server.post("/v1/completions", **LONG)["choices"][0]["text"]
    with slow(server.service, 0.002):
        connection = server.raw(request("/v1/completions", {**LONG, "seed": 2}))
        server.until(lambda: len(server.service._live) == 1)
        found: list[str] = []
        other = threading.Thread(
            target=lambda: found.append(server.post("/v1/completions", **LONG)["choices"][0]["text"])
        )
        other.start()
        server.until(lambda: len(server.service._live) == 2)
        connection.close()
        other.join()
    assert found == [alone]


@contextmanager
def counted_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Counts the steps of methods that compute a whole batch; each takes a while."""
    own, count = MethodInput.steps, [0]

    def steps(self: MethodInput) -> Iterator[int]:
        for step in own(self):
            count[0] += 1
            time.sleep(0.02)
            yield step

    with monkeypatch.context() as patched:
        patched.setattr(MethodInput, "steps", steps)
        yield count


SEARCHES: dict[str, dict[str, Any]] = {
    "beam": {"num_beams": 3},
    "diverse": {"num_beams": 2, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "contrastive": {"penalty_alpha": 0.6, "top_k": 3},
    "lookup": {"prompt_lookup_num_tokens": 3},
}


@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_ends_within_two_steps_when_its_client_goes(
    server: Running, monkeypatch: pytest.MonkeyPatch, search: str
) -> None:
    service = server.service
    body = {**{name: value for name, value in LONG.items() if name != "seed"}, "do_sample": False, **SEARCHES[search]}
    with counted_steps(monkeypatch) as count:
        connection = server.raw(request("/v1/completions", body))
        server.until(lambda: count[0] > 3)
        (batch,) = service._running
        connection.close()
        server.until(lambda: batch.is_cancelled)
        gone_at = count[0]
        server.until(lambda: service.is_idle)
        assert count[0] - gone_at <= 2
    text = server.http.get("/metrics").text
    assert re.search(r'^heedful_cancellations_total\{where="batch"\} [1-9]', text, re.M)
    assert server.post("/v1/completions", prompt="the fig", max_tokens=2)["choices"]


def test_a_batch_of_several_clients_ends_with_the_last(
    serving: Callable[..., Running], folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serving(heedful.pipeline(None, folder_of("translation")))
    service, options = server.service, {"num_beams": 2, "max_new_tokens": 100, "min_new_tokens": 100}
    alone = server.post("/predict", inputs="1 May 2020", options=options)
    found: list[Any] = []

    def together() -> tuple[list[socket.socket], threading.Thread]:
        """Three requests that are computed as one batch, after one that holds the thread."""
        held = threading.Event()
        own = service._compute_batch
        service._compute_batch = lambda: held.wait(20) and own()  # type: ignore[method-assign]
        bodies = [{"inputs": text, "options": options} for text in ("2 June 2021", "3 July 1999")]
        connections = [server.raw(request("/predict", body)) for body in bodies]
        other = threading.Thread(
            target=lambda: found.append(server.post("/predict", inputs="1 May 2020", options=options))
        )
        other.start()
        server.until(lambda: len(service._batches) == 3)
        del service._compute_batch
        held.set()
        return connections, other

    with counted_steps(monkeypatch) as count:
        connections, other = together()
        server.until(lambda: count[0] > 3)
        batches = list(service._running)
        assert len(batches) == 3
        for connection in connections:
            connection.close()
        server.until(lambda: sum(batch.is_cancelled for batch in batches) == 2)
        assert count[0] < 100
        other.join()
        assert count[0] == 100
    score = approx(alone.pop("score"))  # a product of more rows may round otherwise
    assert [row.pop("score") for row in found] == [score]
    assert found == [alone]
    server.until(lambda: service.is_idle)


def test_a_search_ends_at_its_deadline(
    serving: Callable[..., Running], talking: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serving(talking, timeout=0.3)
    with counted_steps(monkeypatch) as count:
        body = {"prompt": "the fig", "max_tokens": 400, "min_new_tokens": 400, "do_sample": False, "num_beams": 2}
        status, error = server.refused("/v1/completions", **body)
        assert (status, error["code"]) == (504, "timeout")
        ended_at = count[0]
        server.until(lambda: server.service.is_idle)
        assert 3 < count[0] <= ended_at + 2


def test_a_search_ends_with_the_server(
    serving: Callable[..., Running], talking: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serving(talking)
    with counted_steps(monkeypatch) as count:
        connection = server.raw(request("/v1/completions", {**LONG, "seed": None, "do_sample": False, "num_beams": 2}))
        server.until(lambda: count[0] > 3)
        server.service.close()
        assert server.service.join(10)
        assert count[0] < 400
        assert b"503" in connection.recv(1 << 16).partition(b"\r\n")[0]
        connection.close()


def test_a_reader_that_is_too_slow_loses_its_answer(server: Running) -> None:
    """The buffers of the connection are small, the log-probabilities of a token many."""
    body = {**LONG, "stream": True, "logprobs": 20, "max_tokens": 480, "min_new_tokens": 480}
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # connections inherit it
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.settimeout(20)
        connection.connect(server.socket.getsockname()[:2])
        connection.sendall(request("/v1/completions", body))
        server.until(lambda: bool(server.service._live))
        server.until(lambda: server.service.is_idle)
        received = b""
        while part := connection.recv(1 << 16):
            received += part
            if b"slow_reader" in received or b"[DONE]" in received:
                break
    assert b'"code":"slow_reader"' in received
    assert received.count(b"data: ") < 400


def test_a_step_that_fails_ends_its_answers_alone(server: Running, capfd: pytest.CaptureFixture[str]) -> None:
    service = server.service
    assert service.decoder is not None
    own = service.decoder.step

    def broken(most: int) -> Any:
        raise RuntimeError("the fig is secret\nTraceback")

    service.decoder.step = broken  # type: ignore[method-assign]
    status, error = server.refused("/v1/completions", prompt="the fig")
    streamed = server.http.post("/v1/completions", json={"prompt": "the fig", "stream": True})
    service.decoder.step = own  # type: ignore[method-assign]
    assert (status, error["type"], error["code"]) == (500, "server_error", "internal")
    assert streamed.status_code == 500
    assert "secret" not in error["message"] + streamed.text + capfd.readouterr().err
    assert server.post("/v1/completions", prompt="the fig", max_tokens=2)["choices"]


def test_a_prompt_that_cannot_join_ends_alone(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **options: Any) -> Any:
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(server.service.decoder, "join", broken)
        status, error = server.refused("/v1/completions", prompt="the fig")
    assert (status, error["code"]) == (500, "internal")
    assert server.post("/v1/completions", prompt="the fig", max_tokens=2)["choices"]


def test_an_unexpected_error_of_a_route_has_the_shape_of_all_errors(
    server: Running, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*given: Any) -> Any:
        raise RuntimeError("the fig is secret")

    monkeypatch.setattr(server.service.admission, "admit", broken)
    status, error = server.refused("/v1/completions", prompt="the fig")
    assert (status, error["type"], error["code"]) == (500, "server_error", "internal")
    printed = [""]

    def is_reported() -> bool:  # after the response
        printed[0] += capfd.readouterr().err
        return printed[0].endswith("\n")

    server.until(is_reported)
    (line,) = printed[0].splitlines()
    assert "RuntimeError at test_serving_limits.py" in line


def test_an_answer_that_breaks_off_is_no_success(server: Running) -> None:
    service = server.service
    assert service.decoder is not None
    own, count = service.decoder.step, [0]

    def breaking(most: int) -> Any:
        count[0] += 1
        if count[0] > 5:
            raise RuntimeError
        return own(most)

    service.decoder.step = breaking  # type: ignore[method-assign]
    text = server.http.post("/v1/completions", json={**LONG, "stream": True}).text
    service.decoder.step = own  # type: ignore[method-assign]
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert "error" in events[-1]
    assert not any(event["choices"][0]["finish_reason"] for event in events[:-1])
    assert "[DONE]" not in text


def test_large_bodies_are_not_read(serving: Callable[..., Running], talking: Pipeline) -> None:
    server = serving(talking, body=1000, body_seconds=0.5)
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    declared = server.raw(f"{head}Content-Length: 999999999\r\n\r\n".encode())
    assert declared.recv(1 << 16).startswith(b"HTTP/1.1 413 ")
    chunk = b"190\r\n" + b'"' * 400 + b"\r\n"
    chunked = server.raw(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 3)
    assert chunked.recv(1 << 16).startswith(b"HTTP/1.1 413 ")
    idle = server.raw(f"{head}Content-Length: 500\r\n\r\n".encode() + b"{")
    assert idle.recv(1 << 16).startswith(b"HTTP/1.1 408 ")
    for connection in (declared, chunked, idle):
        assert connection.recv(1 << 16) in (b"",) or connection.recv(1 << 16) == b""  # closed
        connection.close()


def test_deadlines(serving: Callable[..., Running], talking: Pipeline, folder_of: Callable[[str], Path]) -> None:
    server = serving(talking, timeout=0.5)
    with slow(server.service):
        status, error = server.refused("/v1/completions", **LONG)
        assert (status, error["code"]) == (504, "timeout")
        server.until(lambda: server.service.is_idle)
        text = server.http.post("/v1/completions", json={**LONG, "stream": True}).text
        assert '"code":"timeout"' in text
        assert "[DONE]" not in text
    labels = serving(heedful.pipeline(None, folder_of("text-classification")), timeout=0.2)
    own = labels.service.pipe.predict_block
    labels.service.pipe.predict_block = lambda *given: (time.sleep(1), own(*given))[1]  # type: ignore[method-assign]
    assert labels.refused("/predict", inputs="one fig")[0] == 504
    del labels.service.pipe.predict_block
    labels.until(lambda: labels.service.is_idle)
    assert labels.post("/predict", inputs="one fig")["output"]


def test_a_dead_thread_is_unhealthy(serving: Callable[..., Running], talking: Pipeline) -> None:
    server = serving(talking)

    def dying() -> None:
        raise SystemExit

    server.service._drop_cancelled = dying  # type: ignore[method-assign]
    assert server.refused("/v1/completions", prompt="a")[0] == 503
    server.until(lambda: not server.service.is_alive)
    assert server.http.get("/health").status_code == 503
    assert server.http.get("/ready").status_code == 503
    assert server.refused("/v1/completions", prompt="a")[0] == 503


def test_a_server_that_drains_takes_nothing_new(serving: Callable[..., Running], talking: Pipeline) -> None:
    server = serving(talking)
    assert server.http.get("/ready").status_code == 200
    server.service.draining = True
    assert server.http.get("/ready").status_code == 503
    assert server.http.get("/health").status_code == 200
    response = server.http.post("/v1/completions", json={"prompt": "a"})
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")


def image_in_base64(width: int, height: int, form: str = "PNG") -> str:
    stream = io.BytesIO()
    Image.new("L", (width, height)).save(stream, form)
    return base64.b64encode(stream.getvalue()).decode()


@pytest.fixture(scope="module")
def few_pixels(serving: Callable[..., Running], folder_of: Callable[[str], Path]) -> Running:
    return serving(heedful.pipeline(None, folder_of("image-classification")), pixels=10_000)


@pytest.mark.parametrize("path", ["/predict", "/v1/attention"])
def test_pixels_are_bounded_before_images_are_decoded(
    few_pixels: Running, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    server = few_pixels
    field = "inputs" if path == "/predict" else "input"
    many = [image_in_base64(100, 100), *[image_in_base64(100, 91)] * 4]
    with monkeypatch.context() as patched:
        patched.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("it was decoded"))
        for form in ("PNG", "TIFF"):
            status, error = server.refused(path, **{field: image_in_base64(100, 101, form)})
            assert (status, "100 × 101 pixels" in error["message"]) == (413, True)
        assert server.refused(path, **{field: image_in_base64(1, 1 << 17)})[0] == 413
        status, error = server.refused(path, **{field: many})
        assert (status, "46,400 pixels, more than 40,000" in error["message"]) == (413, True)
    assert server.post(path, **{field: many[0]})


def test_pixels_of_all_requests_are_bounded() -> None:
    admission = Admission(ServiceLimits(pixels=100))
    tickets = [admission.admit(2, 2, 400) for _ in range(4)]
    with pytest.raises(RequestError) as refused:
        admission.admit(1, 1, 1)
    assert refused.value.status == 429
    tickets[0].release(1)
    assert admission.pixels == 1400
    admission.admit(1, 1, 200).release()
    for ticket in tickets:
        ticket.release()
    assert (admission.inputs, admission.tokens, admission.pixels) == (0, 0, 0)
    with pytest.raises(RequestError) as never:
        admission.admit(1, 1, 401)
    assert never.value.status == 413


@pytest.mark.parametrize("path", ["/predict", "/", "/v1/attention"])
@pytest.mark.parametrize("value", ["é", "AAA", "A\udc80", "data:image/png;base64,é"])
def test_text_that_is_no_base64_is_the_clients_error(served: Callable[[str], Running], path: str, value: str) -> None:
    server = served("image-classification")
    body = json.dumps({"input" if path == "/v1/attention" else "inputs": value})
    response = server.http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_bodies_of_all_requests_are_bounded(serving: Callable[..., Running], talking: Pipeline) -> None:
    server = serving(talking, bodies=3000, body=1000)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    guard: Any = server.server.config.app
    halves = []
    for number in range(1, 4):
        halves.append(server.raw(head + b"Content-Length: 1000\r\n\r\n" + b" " * 900))
        server.until(lambda: guard.received == 900 * number)  # noqa: B023
    large = {"prompt": "the fig " * 50, "max_tokens": 2}
    status, error = server.refused("/v1/completions", **large)
    assert (status, "bodies of other requests" in error["message"]) == (503, True)
    for half in halves:
        half.close()
    server.until(lambda: guard.received == 0)
    assert server.post("/v1/completions", **large)["choices"]


BROKEN = "a\udc80"
TEXT_FIELDS: list[tuple[str, str, Any]] = [
    ("text-generation", "/v1/completions", {"prompt": BROKEN}),
    ("text-generation", "/v1/completions", {"prompt": ["a", BROKEN]}),
    ("text-generation", "/v1/completions", {"prompt": "a", "stop": BROKEN}),
    ("text-generation", "/v1/completions", {"prompt": "a", "stop_strings": [BROKEN]}),
    ("text-generation", "/v1/completions", {"prompt": "a", "model": BROKEN}),
    ("text-generation", "/v1/completions", {"prompt": "a", BROKEN: 1}),
    ("text-generation", "/v1/chat/completions", {"messages": [{"role": "user", "content": BROKEN}]}),
    ("text-generation", "/v1/chat/completions", {"messages": [{"role": BROKEN, "content": "a"}]}),
    ("text-generation", "/predict", {"inputs": BROKEN}),
    ("text-generation", "/predict", {"inputs": "a", "options": {"stop_strings": [BROKEN]}}),
    ("text-generation", "/predict", {"inputs": "a", "options": {BROKEN: 1}}),
    ("text-generation", "/", {"inputs": "a", "parameters": {"stop": [BROKEN]}}),
    ("text-classification", "/v1/attention", {"input": BROKEN}),
    ("text-classification", "/v1/attention", {"input": "a", "view": BROKEN}),
    ("feature-extraction", "/embed", {"inputs": BROKEN}),
    ("feature-extraction", "/v1/embeddings", {"input": ["a", BROKEN]}),
    ("feature-extraction", "/rerank", {"query": BROKEN, "texts": ["a"]}),
    ("feature-extraction", "/rerank", {"query": "a", "texts": [BROKEN]}),
    ("feature-extraction", "/", {"inputs": {"source_sentence": "a", "sentences": [BROKEN]}}),
    ("feature-extraction", "/", {"inputs": BROKEN}),
    ("question-answering", "/predict", {"inputs": {"question": "a", "context": BROKEN}}),
]


@pytest.mark.parametrize(("task", "path", "body"), TEXT_FIELDS)
def test_half_characters_are_the_clients_error(
    served: Callable[[str], Running], task: str, path: str, body: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    server = served(task)
    capfd.readouterr()
    response = server.http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert response.status_code == 400, response.text
    assert set(response.json()["error"]) == {"message", "type", "code", "param"}
    assert capfd.readouterr().err == ""


WRONG: list[tuple[str, str, Any, Any]] = [  # what is repeated, or the names of fields
    ("text-generation", "/v1/completions", lambda many: {"prompt": many}, {}),
    ("text-generation", "/v1/completions", lambda many: {"prompt": [many]}, "a"),
    ("text-generation", "/v1/completions", lambda many: {"prompt": "a", "stop": many}, 1),
    ("text-generation", "/v1/completions", lambda many: {"prompt": "a", "stop_strings": many}, 1),
    ("text-generation", "/v1/completions", lambda many: {"prompt": "a", **{str(i): 0 for i in range(len(many))}}, 1),
    ("text-generation", "/v1/chat/completions", lambda many: {"messages": many}, 1),
    ("text-generation", "/v1/chat/completions", lambda many: {"messages": [{"role": "user", "content": many}]}, 1),
    ("text-generation", "/predict", lambda many: {"inputs": "a", "options": {"stop_strings": many}}, 1),
    ("feature-extraction", "/embed", lambda many: {"inputs": many}, 1),
    ("feature-extraction", "/v1/embeddings", lambda many: {"input": many}, 1),
    ("feature-extraction", "/rerank", lambda many: {"query": "a", "texts": many}, 1),
    ("feature-extraction", "/", lambda many: {"inputs": {"source_sentence": "a", "sentences": many}}, 1),
]


@pytest.mark.parametrize(("task", "path", "body", "value"), WRONG)
def test_an_error_is_made_for_the_first_of_many_wrong_values(
    served: Callable[[str], Running],
    task: str,
    path: str,
    body: Callable[[list[Any]], Any],
    value: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = []
    shown = app.invalid_request

    def counted(error: Any) -> RequestError:
        counts.append(len(error.errors()))
        return shown(error)

    monkeypatch.setattr(app, "invalid_request", counted)
    status, error = served(task).refused(path, **body([value] * 10_000))
    assert status == 400
    assert error["message"]
    assert sum(counts) < 30  # each takes a kilobyte or two


def test_options_are_resolved_once_for_many_prompts(
    served: Callable[[str], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    own = SlotDecoder.takes
    monkeypatch.setattr(SlotDecoder, "takes", lambda options: calls.append(options) or own(options))
    for prompts in (["a"] * 5000, [[1]] * 5000):
        assert served("text-generation").refused("/v1/completions", prompt=prompts)[0] == 413
    assert 0 < len(calls) < 10  # all else waits meanwhile


MANY: list[tuple[str, str, str]] = [
    ("text-generation", "/v1/completions", "prompt"),
    ("text-generation", "/v1/chat/completions", "messages"),
    ("text-generation", "/predict", "inputs"),
    ("text-generation", "/predict", "unknown"),
    ("text-generation", "/", "inputs"),
    ("feature-extraction", "/embed", "inputs"),
    ("feature-extraction", "/rerank", "texts"),
    ("feature-extraction", "/v1/embeddings", "input"),
    ("feature-extraction", "/", "inputs"),
    ("text-classification", "/pipeline/text-classification", "inputs"),
    ("text-classification", "/v1/attention", "unknown"),
]


@pytest.mark.parametrize(
    "values", ["[" * 1001, "[" + "0," * 1001 + "0]", '{"a":' * 501 + "0" + "}" * 501, '"a,:"' * 501]
)
@pytest.mark.parametrize(("task", "path", "name"), MANY)
def test_a_body_of_too_many_values_is_not_parsed(
    served: Callable[[str], Running], monkeypatch: pytest.MonkeyPatch, task: str, path: str, name: str, values: str
) -> None:
    parsed: list[bytes] = []
    monkeypatch.setattr(requests, "MAX_VALUES", 1000)
    monkeypatch.setattr(requests, "from_json", parsed.append)
    response = served(task).http.post(
        path, content=f'{{"{name}":{values}}}', headers={"Content-Type": "application/json"}
    )
    error = response.json()["error"]
    assert (response.status_code, error["code"], parsed) == (413, "too_large", [])
    assert error["message"].startswith("the body has more than 1,000 commas, colons and opening brackets; ")


def test_a_body_of_as_many_values_as_may_be_is_parsed(
    served: Callable[[str], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_VALUES", 100)
    content = json.dumps({"prompt": "a" + "," * 96, "max_tokens": 2}).encode()
    assert sum(map(content.count, (b",", b":", b"[", b"{"))) == 100
    for more, status in ((b"", 200), (b",", 413)):
        sent = content.replace(b'"a', b'"a' + more)
        response = served("text-generation").http.post(
            "/v1/completions", content=sent, headers={"Content-Type": "application/json"}
        )
        assert response.status_code == status


def test_the_bytes_of_an_image_are_no_values(served: Callable[[str], Running], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_VALUES", 1000)
    server = served("image-classification")
    stream = io.BytesIO()
    Image.new("RGB", (64, 64), (44, 44, 44)).save(stream, "BMP")  # of commas
    assert stream.getvalue().count(b",") > 1000
    response = server.http.post("/", content=stream.getvalue(), headers={"Content-Type": "image/bmp"})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"prompt": "a"}x', b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "\xff"}', b"[" * 999, b"1" * 5000],
)
@pytest.mark.parametrize(("task", "path"), sorted({(task, path) for task, path, _ in MANY}))
def test_a_body_that_is_not_json_is_the_clients_error(
    served: Callable[[str], Running], task: str, path: str, content: bytes
) -> None:
    response = served(task).http.post(path, content=content, headers={"Content-Type": "application/json"})
    error = response.json()["error"]
    assert response.status_code == 400
    assert content == b"" or (error["code"], error["message"].startswith("the body is not JSON (")) == ("json", True)
