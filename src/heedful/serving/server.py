"""The server behind ``heedful watch``: one page, what it asks for, and the pages of the runs themselves. Reads only."""

from __future__ import annotations

import errno
import mimetypes
import os
import re
import sys
import webbrowser
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from heedful.errors import HeedfulError
from heedful.serving.runs import Runs
from heedful.util.values import to_json
from heedful.views.runs_html import runs_page

HOST = "127.0.0.1"  # no other machine is answered
NAMES = {HOST, "localhost"}  # by which a browser may know it
LARGEST = 64 << 20  # bytes of a run's page


class Server(ThreadingHTTPServer):
    """Answers on 127.0.0.1 until it is shut down: ``/``, ``/runs.json`` and ``/run/NUMBER/FILE``.

    Args:
        runs: what is shown.
        port: 0 takes a free one; ``address`` says which.

    Raises:
        HeedfulError: the port is taken, or is none that may be had.
    """

    daemon_threads = True

    def __init__(self, runs: Runs, port: int = 0) -> None:
        self.runs = runs
        if not 0 <= port < 1 << 16:
            raise HeedfulError(f"--port is {port}; give a number from 1 to 65535, or leave it out for a free one")
        try:
            super().__init__((HOST, port), _Answer)
        except OSError as error:
            what = "taken" if error.errno == errno.EADDRINUSE else f"not to be had ({error.strerror})"
            raise HeedfulError(f"port {port} is {what}; give another --port, or leave it out for a free one") from None

    @property
    def address(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: a browser that leaves in the middle of an answer is no fault."""


def opened(address: str) -> bool:
    """Open a page where there is a screen to show it on: no browser of a terminal is begun in the place of this one."""
    screen = sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return screen and webbrowser.open(address)


class _Answer(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "heedful", ""
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds that an idle connection is kept

    def do_GET(self) -> None:
        """Answers with a page, with JSON, or with a file of a run."""
        if not self._is_plain():
            self.close_connection = True  # what follows may be a body, and is no request
            self._fail(HTTPStatus.BAD_REQUEST)
            return
        address = urlsplit(self.path)
        host = re.sub(r":\d+$", "", self.headers["Host"])
        if host not in NAMES:  # another site's name that leads here: its scripts are not to read along
            self._fail(HTTPStatus.FORBIDDEN)
        elif address.path == "/":
            self._send(runs_page(self.server.runs.folders).encode(), "text/html; charset=utf-8")
        elif address.path == "/runs.json":
            known = parse_qs(address.query).get("known", [""])[0]
            told = to_json(self.server.runs.told(known))
            self._send(told.encode("utf-8", "replace"), "application/json")
        elif found := re.fullmatch(r"/run/([0-9]{1,9})/([^/]+)", address.path):
            self._file(int(found[1]), unquote(found[2]))
        else:
            self._fail(HTTPStatus.NOT_FOUND)

    do_HEAD = do_GET

    def _is_plain(self) -> bool:
        """Returns True if a request is one that all servers on its way read alike (RFC 9112, sections 3.2 and 6): it
        names a
        path of this server, has one Host and no body, and its headers are well-formed.
        """
        body = self.headers.get("Content-Length", "0").strip() != "0" or "Transfer-Encoding" in self.headers
        hosts = self.headers.get_all("Host", [])
        return self.path.startswith("/") and len(hosts) == 1 and not body and not self.headers.defects

    def _file(self, number: int, name: str) -> None:
        """A page of a run, by its name in the list of them: nothing else is ever opened."""
        path = self.server.runs.file(number, name)
        try:
            if path is None or path.stat().st_size > LARGEST:
                raise FileNotFoundError
            content = path.read_bytes()
        except OSError:
            self._fail(HTTPStatus.NOT_FOUND)
            return
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        # its scripts run, but as those of a stranger: they cannot ask this server for anything
        self._send(content, kind, {"Content-Security-Policy": "sandbox allow-scripts"})

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
        """Nothing: who asked for what is of no interest here."""
