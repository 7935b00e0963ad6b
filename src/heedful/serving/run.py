"""The process of a server: its socket, its signals, and its end."""

from __future__ import annotations

import asyncio
import errno
import gc
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from heedful.errors import HeedfulError
from heedful.serving.admission import ServiceLimits
from heedful.serving.connections import Connection, Connections, Listener
from heedful.serving.service import Service

FILES = 8192  # that the process may open: more than connections, those that are just being closed included
STOP_SECONDS = 0.5  # for the inference thread to end its step after Ctrl-C


def bound_socket(host: str, port: int) -> Listener:
    """Returns a socket that is bound and does not listen yet; raises ``HeedfulError`` if the port is taken."""
    if not 0 <= port < 1 << 16:
        raise HeedfulError(f"--port is {port}; give a number from 1 to 65535, or 0 for a free port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise HeedfulError(f"--host {host} is no address of this machine; give 127.0.0.1 or 0.0.0.0") from None
    bound = Listener(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise HeedfulError(f"port {port} is taken; give another --port, or 0 for a free one") from None
        raise HeedfulError(
            f"{host}:{port} is not available ({error.strerror}); give another --host or --port"
        ) from None
    return bound


def check_certificate(cert: str, key: str) -> None:
    """Raises ``HeedfulError`` unless a certificate and its key can be read."""
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or error.args[-1]
        raise HeedfulError(f"--cert {cert} with --key {key}: {reason}; give two PEM files that fit") from None


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers (``serve`` has its own), and with limits on its connections.

    Args:
        config: uvicorn's.
        limits: of the service.
    """

    def __init__(self, config: uvicorn.Config, limits: ServiceLimits) -> None:
        super().__init__(config)
        self.connections = Connections(limits)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to listen."""
        loop, config, self.servers = asyncio.get_running_loop(), self.config, []
        make = partial(
            Connection, self.connections, config=config, server_state=self.server_state, app_state=self.lifespan.state
        )
        deadline = self.connections.limits.header_seconds if config.ssl else None
        for listener in sockets or []:
            assert isinstance(listener, Listener)
            listener.connections = self.connections
            self.servers.append(
                await loop.create_server(
                    make, sock=listener, ssl=config.ssl, backlog=config.backlog, ssl_handshake_timeout=deadline
                )
            )
        self.started = True


def server_of(app: ASGIApp, limits: ServiceLimits, cert: str | None = None, key: str | None = None) -> uvicorn.Server:
    """Returns the HTTP server of an application."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ssl_certfile=cert,
        ssl_keyfile=key,
    )
    return _Server(config, limits)


def _raise_file_limit() -> None:
    """Lets the process open more files than a shell's default of 1,024, as far as the system allows it."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def serve(service: Service, server: uvicorn.Server, bound: socket.socket) -> bool:
    """Serves until SIGTERM or Ctrl-C; returns True for Ctrl-C.

    After SIGTERM, ``/ready`` and new requests get 503, and running ones have ``ServiceLimits.drain`` seconds. Ctrl-C
    ends at once.
    """
    _raise_file_limit()
    return asyncio.run(_serve(service, server, bound))


async def _serve(service: Service, server: uvicorn.Server, bound: socket.socket) -> bool:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        ended.set()

    async def drain() -> None:
        deadline = time.monotonic() + service.limits.drain
        while not service.is_idle and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        ended.set()

    def terminate() -> None:
        if not service.draining:
            service.draining = True
            tasks.append(asyncio.ensure_future(drain()))

    tasks: list[asyncio.Task[None]] = []  # kept, since the loop does not
    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGTERM, terminate)
    service.start(loop)
    gc.collect()
    gc.freeze()  # else Python now and then searches the libraries and the model too: 0.2 s in which nothing else runs
    serving = asyncio.ensure_future(server.serve([bound]))
    ending = asyncio.ensure_future(ended.wait())
    await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    server.force_exit = interrupted
    server.config.timeout_graceful_shutdown = 0 if interrupted else 5  # seconds to send the last events
    service.close()
    with suppress(asyncio.CancelledError):
        await serving
    ending.cancel()
    await asyncio.to_thread(service.join, STOP_SECONDS if interrupted else 10.0)
    gc.unfreeze()
    return interrupted
