"""Requests that a server refuses: other names, other origins, no token; and secrets that no answer or log shows."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from running_server import Running

from heedful.inference.pipeline import Pipeline

TOKEN = "a-token-of-this-server"
BODY = {"prompt": "the fig", "max_tokens": 2}
ROUTES = ["/", "/v1/models", "/metrics", "/openapi.json", "/v1/attention", "/nothing"]
POSTS = ["/", "/v1/completions", "/v1/chat/completions", "/predict", "/pipeline/x", "/v1/attention", "/nothing"]


@pytest.fixture(scope="module")
def server(serving: Callable[..., Running], talking: Pipeline) -> Running:
    return serving(talking)


@pytest.fixture(scope="module")
def locked(serving: Callable[..., Running], talking: Pipeline) -> Running:
    return serving(talking, token=TOKEN)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.", "", "10.0.0.1", "a@localhost"]
)
def test_other_names_are_refused(server: Running, host: str) -> None:
    for path in ("/", "/health", "/v1/models"):
        assert server.http.get(path, headers={"Host": host}).status_code in (400, 403)
    assert server.http.post("/predict", json={"inputs": "a"}, headers={"Host": host}).status_code in (400, 403)
    for name in ("localhost", "127.0.0.1:1", "[::1]:80"):
        assert server.http.get("/health", headers={"Host": name}).status_code == 200


def test_a_request_has_one_host(server: Running) -> None:
    for hosts in ("", "Host: localhost\r\nHost: evil.example\r\n"):
        connection = server.raw(f"GET /health HTTP/1.1\r\n{hosts}\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")
        connection.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_pages_of_other_sites_send_nothing(server: Running, headers: dict[str, str]) -> None:
    response = server.http.post("/v1/completions", json=BODY, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (403, "other_origin")
    options = server.http.request("OPTIONS", "/v1/completions", headers=headers)
    assert options.status_code == 403
    assert not any(name.lower().startswith("access-control") for name in (*response.headers, *options.headers))
    own = {"Origin": server.address, "Sec-Fetch-Site": "same-origin"}
    assert server.http.post("/v1/completions", json=BODY, headers=own).status_code == 200


def test_every_route_needs_the_token(locked: Running) -> None:
    for header in ({}, {"Authorization": "Bearer other"}, {"Authorization": TOKEN}, {"Cookie": f"heedful={TOKEN}"}):
        for path in ROUTES:
            assert locked.http.get(path, headers=header).status_code == 401, path
        for path in POSTS:
            response = locked.http.post(path, json=BODY, headers=header)
            assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert response.headers["Connection"] == "close"  # the body was not read
    for path in ("/health", "/ready"):
        assert locked.http.get(path).status_code == 200
    known = {"Authorization": f"Bearer {TOKEN}"}
    assert locked.http.post("/v1/completions", json=BODY, headers=known).status_code == 200
    assert locked.http.get("/metrics", headers=known).status_code == 200
    assert locked.http.post("/login", content=b"token=" + b"x" * 5000).status_code == 413


def test_the_page_asks_for_the_token_and_keeps_it_in_a_cookie(locked: Running) -> None:
    page = locked.http.get("/")
    assert page.status_code == 401
    assert 'type="password"' in page.text
    assert "heedful=" not in page.headers.get("set-cookie", "")
    form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": locked.address}
    assert locked.http.post("/login", content=b"token=wrong", headers=form).status_code == 401
    entered = locked.http.post("/login", content=f"token={TOKEN}".encode(), headers=form)
    cookie = entered.headers["set-cookie"]
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    session = {"Cookie": cookie.partition(";")[0]}
    assert locked.http.get("/", headers=session).status_code == 200
    assert locked.http.post("/v1/completions", json=BODY, headers=session).status_code == 200
    foreign = {**session, "Origin": "https://evil.example"}
    assert locked.http.post("/v1/completions", json=BODY, headers=foreign).status_code == 403
    locked.http.cookies.clear()


def test_headers_of_every_answer(locked: Running, server: Running) -> None:
    known = {"Authorization": f"Bearer {TOKEN}"}
    for response in (
        locked.http.get("/"),
        locked.http.get("/", headers=known),
        locked.http.get("/v1/models", headers=known),
        server.http.get("/nothing"),
        server.http.post("/v1/completions", json={**BODY, "stream": True}),
        server.http.post("/v1/completions", json={"prompt": 5}),
    ):
        headers = response.headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert "server" not in headers
        nonces = re.findall(r'nonce="([\w-]+)"', response.text)
        assert all(f"'nonce-{nonce}'" in headers["Content-Security-Policy"] for nonce in nonces)


def test_no_swagger_page(server: Running) -> None:
    for path in ("/docs", "/redoc"):
        assert server.http.get(path).status_code == 404
    schema = server.http.get("/openapi.json").json()
    assert {"/v1/completions", "/v1/chat/completions", "/predict", "/health"} <= set(schema["paths"])
    fields = schema["components"]["schemas"]["CompletionRequest"]["properties"]
    assert fields["top_k"]["description"]
    assert not {"batch_tokens", "assistant_model"} & set(fields)


def test_inputs_are_in_no_log(
    server: Running, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    secret = "Zq§ßecret"  # characters that the vocabulary lacks: the pipeline's warning quotes them
    server.post("/v1/completions", prompt=secret, max_tokens=2)
    server.refused("/v1/completions", prompt=secret, max_tokens=5000)
    server.refused("/predict", inputs={"text": secret})
    shown = capfd.readouterr()
    assert secret not in shown.out + shown.err + caplog.text
    text = server.http.get("/metrics").text
    assert secret not in text
    assert re.search(r"^heedful_input_warnings_total [1-9]", text, re.M)
    assert re.search(r'^heedful_requests_total\{route="/v1/completions",status="200"\} [1-9]', text, re.M)


def test_a_process_that_serves_keeps_its_own_warnings(
    serving: Callable[..., Running], talking: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    server, own = serving(talking), logging.getLogger("heedful")
    before = list(own.filters)
    server.post("/v1/completions", prompt="Zq§ßecret", max_tokens=2)
    own.warning("a warning of a run beside the server")
    with ThreadPoolExecutor() as pool:
        pool.submit(own.warning, "a warning of a thread beside the server").result()
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["a warning of a run beside the server", "a warning of a thread beside the server"]
    assert server.service._hide_warning in before
    server.service.close()
    assert server.service.join(10)
    assert server.service._hide_warning not in own.filters
    assert len(own.filters) == len(before) - 1
