"""Local HTTP server of ``heedful watch``: the dashboard, its data, pages of the runs, views of their models.

It only reads.
"""

from __future__ import annotations

import errno
import mimetypes
import os
import re
import secrets
import socket
import sys
import threading
import webbrowser
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from heedful.errors import HeedfulError
from heedful.serving.run_attention import RunAttention
from heedful.serving.runs import NUMBER, Runs
from heedful.util.values import to_json
from heedful.views.runs_html import runs_page

HOST = "127.0.0.1"  # other machines cannot connect
NAMES = {HOST, "localhost"}  # accepted in the Host header
LARGEST = 64 << 20  # maximum bytes of a run's page
CONNECTIONS = 64  # that are open; each has a thread


class Server(ThreadingHTTPServer):
    """HTTP server on 127.0.0.1 with ``/``, ``/runs.json``, ``/run/NUMBER/FILE`` and ``/run/NUMBER/attention``.

    Args:
        runs: the runs to show.
        port: 0 takes a free port; ``address`` contains its number.

    Raises:
        HeedfulError: the port is in use or not allowed.
    """

    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, runs: Runs, port: int = 0) -> None:
        self.runs, self.attention = runs, RunAttention()
        self._waiting: dict[socket.socket, bool] = {}  # of each connection, for a request; the longest first
        self._changed = threading.Condition()
        if not 0 <= port < 1 << 16:
            raise HeedfulError(f"--port is {port}; give a number from 1 to 65535, or leave it out for a free port")
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            problem = "taken" if error.errno == errno.EADDRINUSE else f"not available ({error.strerror})"
            raise HeedfulError(
                f"port {port} is {problem}; give another --port, or leave it out for a free port"
            ) from None

    @property
    def address(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts the thread of a connection; of too many, the one that waits longest for a request makes room."""
        with self._changed:
            while len(self._waiting) >= CONNECTIONS:
                oldest = next((one for one, waits in self._waiting.items() if waits), None)
                if oldest is not None:
                    self._waiting[oldest] = False
                    with suppress(OSError):  # the client has gone
                        oldest.shutdown(socket.SHUT_RDWR)
                self._changed.wait()
            self._waiting[request] = True
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Ends a connection."""
        super().shutdown_request(request)
        with self._changed:
            self._waiting.pop(request, None)
            self._changed.notify()

    def set_waiting(self, connection: socket.socket, waits: bool) -> None:
        """Notes whether a connection waits for its client's next request."""
        with self._changed:
            self._waiting.pop(connection)
            self._waiting[connection] = waits
            self._changed.notify()

    def handle_error(self, request: object, client_address: object) -> None:
        """Does nothing: a browser that leaves during a response is no error."""


def open_in_browser(address: str) -> bool:
    """Opens a page in a browser, and returns True if one was opened.

    Without a screen nothing is opened, because a text browser would take over the terminal.
    """
    has_screen = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    return has_screen and webbrowser.open(address)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "heedful", ""
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds that an idle connection is kept

    def do_GET(self) -> None:
        """Answers a request."""
        self.server.set_waiting(self.connection, False)
        self._answer()
        self.server.set_waiting(self.connection, True)

    do_HEAD = do_GET

    def _answer(self) -> None:
        """Sends a page, JSON, or a file of a run."""
        if not self._is_plain():
            self.close_connection = True  # the rest may be a body, not a request
            self._fail(HTTPStatus.BAD_REQUEST)
            return
        address = urlsplit(self.path)
        host = re.sub(r":\d+$", "", self.headers["Host"])
        if host not in NAMES:  # another site's name that resolves here; its scripts must not read the data
            self._fail(HTTPStatus.FORBIDDEN)
        elif address.path == "/":
            html = runs_page(self.server.runs.folders, nonce=secrets.token_urlsafe(16))
            self._send(html.encode(), "text/html; charset=utf-8")
        elif address.path == "/runs.json":
            version = parse_qs(address.query).get("version", [""])[0]
            runs = to_json(self.server.runs.as_dict(version))
            self._send(runs.encode("utf-8", "replace"), "application/json")
        elif match := re.fullmatch(r"/run/([0-9]{1,9})/attention", address.path):
            self._attention(int(match[1]), parse_qs(address.query))
        elif match := re.fullmatch(r"/run/([0-9]{1,9})/([^/]+)", address.path):
            self._file(int(match[1]), unquote(match[2]))
        else:
            self._fail(HTTPStatus.NOT_FOUND)

    def _is_plain(self) -> bool:
        """Returns True for an unambiguous request: a path, one Host, no body, and well-formed headers.

        Proxies and this server read such a request in the same way (RFC 9112, sections 3.2 and 6).
        """
        body = self.headers.get("Content-Length", "0").strip() != "0" or "Transfer-Encoding" in self.headers
        hosts = self.headers.get_all("Host", [])
        return self.path.startswith("/") and len(hosts) == 1 and not body and not self.headers.defects

    def _file(self, number: int, name: str) -> None:
        """Sends a page of a run; opens only files in the run's list of pages."""
        path = self.server.runs.file(number, name)
        try:
            if path is None or path.stat().st_size > LARGEST:
                raise FileNotFoundError
            content = path.read_bytes()
        except OSError:
            self._fail(HTTPStatus.NOT_FOUND)
            return
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        # sandboxed: its scripts run, but cannot request anything of this server
        self._send(content, kind, {"Content-Security-Policy": "sandbox allow-scripts"})

    def _attention(self, number: int, query: dict[str, list[str]]) -> None:
        """Sends an attention view of a run's saved model, as JSON; an error as ``{"error": LINE}``."""
        if self.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            self._fail(HTTPStatus.FORBIDDEN)  # pages of other sites cannot make this machine compute
            return
        run = self.server.runs.run(number)
        saved = None if run is None else run.saved_model()
        if run is None or saved is None:
            self._fail(HTTPStatus.NOT_FOUND)
            return
        example, view = query.get("example", ["0"])[0], query.get("view", [""])[0]
        status = HTTPStatus.OK
        try:
            answer = self.server.attention.view(run.name, saved, int(example) if NUMBER.fullmatch(example) else 0, view)
        except HeedfulError as error:
            answer, status = {"error": str(error)}, HTTPStatus.UNPROCESSABLE_ENTITY
        except Exception as error:  # such as weights that training is just replacing
            answer = {"error": f"the view failed ({type(error).__name__}); try again"}
            status = HTTPStatus.INTERNAL_SERVER_ERROR
        self._send(to_json(answer).encode("utf-8", "replace"), "application/json", status=status)

    def _send(
        self,
        content: bytes,
        kind: str,
        more: dict[str, str] | None = None,
        status: HTTPStatus = HTTPStatus.OK,
    ) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            **(more or {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _fail(self, status: HTTPStatus) -> None:
        self._send(f"{status.value} {status.phrase}\n".encode(), "text/plain", status=status)

    def log_message(self, format: str, *args: object) -> None:
        """Does nothing, so that requests are not logged."""
