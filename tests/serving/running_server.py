"""A server that runs in a thread, for tests."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from heedful.inference.pipeline import Pipeline
from heedful.serving import run
from heedful.serving.admission import ServiceLimits
from heedful.serving.app import create_app
from heedful.serving.service import Service

# encoders whose scores depend on the distance of query and key in each layer, by task and preset
RELATIVE = [(task, name) for task in ("fill-mask", "text-classification") for name in ("xlnet-base", "deberta-v3-base")]


class Running:
    """A server in a thread of its own."""

    def __init__(
        self,
        pipe: Pipeline,
        limits: ServiceLimits,
        token: str | None = None,
        before: Any = None,
        exact: bool = False,
        certificate: Sequence[str] = (),
    ) -> None:
        self.service = Service(pipe, "tiny", limits, exact)
        if before is not None:
            before(self.service)
        self.socket = run.bound_socket("127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.server = run.server_of(create_app(self.service, token=token), limits, *certificate)
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        async def serve() -> None:
            self.service.start(asyncio.get_running_loop())
            await self.server.serve([self.socket])

        asyncio.run(serve())

    def __enter__(self) -> Running:
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        self.http = httpx.Client(base_url=self.address, timeout=60)
        return self

    def __exit__(self, *error: object) -> None:
        self.http.close()
        self.service.close()
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(20)
        assert self.service.join(10)

    def post(self, path: str, **body: Any) -> Any:
        """The JSON of an answer that succeeds."""
        response = self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def refused(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        """Status and error of a request that fails."""
        response = self.http.post(path, json=body)
        assert response.status_code >= 400, response.text
        error = response.json()["error"]
        assert set(error) == {"message", "type", "code", "param"}
        assert "\n" not in error["message"]
        return response.status_code, error

    def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        """Waits until something holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.01)

    def raw(self, content: bytes) -> socket.socket:
        """A connection on which something was sent."""
        connection = socket.create_connection(self.socket.getsockname()[:2], timeout=20)
        connection.sendall(content)
        return connection


@contextmanager
def slow(service: Service, seconds: float = 0.02) -> Iterator[None]:
    """Each step takes a while."""
    assert service.decoder is not None
    own = service.decoder.step

    def step(most: int) -> Any:
        time.sleep(seconds)
        return own(most)

    service.decoder.step = step  # type: ignore[method-assign]
    try:
        yield
    finally:
        del service.decoder.step


def certificate(folder: Path) -> list[str]:
    """Paths of a certificate for this machine, and of its key; skips the test without openssl."""
    names = [str(folder / name) for name in ("cert.pem", "key.pem")]
    command = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 2 -addext"
    made = subprocess.run(
        [*command.split(), "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", names[0], "-keyout", names[1]],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("no openssl makes a certificate")
    return names
