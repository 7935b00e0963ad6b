"""Connections of a server: their number, their deadlines, and errors of the protocol in the shape of all errors.

A connection waits while its client is to act: to send the TLS handshake, a header or a body, or to read a response.
One that waits is closed after a deadline, or earlier to make room for another.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from heedful.serving.admission import RequestError, ServiceLimits
from heedful.serving.responses import HEADERS, UNREAD, error_response

GRACE = 0.25  # seconds in which a connection makes no room yet: its request may be on the way
HEADER_BYTES = 1 << 16  # of a request
CHUNKS, CHUNK = 1024, 256  # of a body: chunks of any size, and bytes that each of the others has on average


@dataclass(eq=False)
class _Open:
    """An open connection, and the time since which it waits; None while a request of it is computed."""

    socket: socket.socket
    address: str
    since: float | None


class Connections:
    """Table of the open connections of a server."""

    def __init__(self, limits: ServiceLimits) -> None:
        self.limits = limits
        self._open: dict[int, _Open] = {}  # by file descriptor

    @property
    def is_full(self) -> bool:
        """True if only the reserve is left, for requests about the server's state."""
        return len(self._open) > self.limits.connections

    def admit(self, accepted: socket.socket, address: str) -> bool:
        """Adds a connection and returns True; returns False if there is no room.

        Of one address, or of all, the connection that waits longest makes room; among all, it is one of the address
        with the most that wait. A proxy, one address for all its clients, sends whole requests, which do not wait. Nor
        does a client whose bytes have arrived while a busy server has not read them yet.
        """
        limits, group, now = self.limits, _network(address), time.monotonic()
        self._open = {number: one for number, one in self._open.items() if one.socket.fileno() == number}
        waiting = [one for one in self._open.values() if one.since is not None and one.since <= now - GRACE]
        oldest = None
        if sum(one.address == group for one in waiting) >= limits.address_connections:
            oldest = _oldest(waiting, group)
        elif waiting and len(self._open) >= limits.connections:
            ((most, _),) = Counter(one.address for one in waiting).most_common(1)
            oldest = _oldest(waiting, most)
        if oldest is not None:
            self._close(oldest)
        elif len(self._open) >= limits.connections + limits.reserve:
            return False
        self._open[accepted.fileno()] = _Open(accepted, group, now)
        return True

    def set_waiting(self, number: int, waits: bool) -> None:
        """Notes whether a connection waits."""
        if number in self._open:
            one = self._open[number]
            one.since = None if not waits else one.since or time.monotonic()

    def remove(self, number: int) -> None:
        """Removes a connection that is closed."""
        self._open.pop(number, None)

    def _close(self, one: _Open) -> None:
        """Ends a connection; its transport, which owns the socket, then closes it."""
        self.remove(one.socket.fileno())
        with suppress(OSError):  # the client has gone
            one.socket.shutdown(socket.SHUT_RDWR)


def _oldest(waiting: list[_Open], address: str) -> _Open | None:
    """Returns the connection of an address whose client has been silent longest; None if all have sent something."""
    own = sorted((one for one in waiting if one.address == address), key=lambda one: one.since or 0.0)
    return next((one for one in own if not _has_unread(one.socket)), None)


def _has_unread(connection: socket.socket) -> bool:
    """Returns True if bytes have arrived that the server has not read."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except OSError:  # nothing is there, or the client has gone
        return False


def _network(address: str) -> str:
    """Returns an IPv4 address, or the network of an IPv6 address (64 bits), all of which one client has."""
    ip = ip_address(address.partition("%")[0])
    if ip.version == 6 and ip.ipv4_mapped is None:
        return ip.exploded[:19]
    return str(getattr(ip, "ipv4_mapped", None) or ip)


class Listener(socket.socket):
    """Socket that listens; with ``connections``, it accepts as many as they admit."""

    connections: Connections | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        """Returns a connection and its address; raises ``ConnectionAbortedError`` for one too many."""
        accepted, address = super().accept()
        if self.connections is not None and not self.connections.admit(accepted, address[0]):
            accepted.close()
            raise ConnectionAbortedError
        return accepted, address


class _Protocol(h11.Connection):
    """h11's state of a connection, which refuses a body in chunks that are many and small.

    A chunk takes as long as a small request, and all of them that have arrived are read before anything else is done.
    """

    _missing = 0  # bytes that the chunks of the body would need to be large enough

    def next_event(self) -> Any:
        """Returns the next event; raises ``h11.RemoteProtocolError`` for what is not to be answered."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._missing = 0
        elif isinstance(event, h11.Data):
            self._missing = max(0, self._missing + event.chunk_start * CHUNK - len(event.data))
            if self._missing > CHUNKS * CHUNK:
                raise h11.RemoteProtocolError("the chunks of the body are too small")
        return event


class Connection(H11Protocol):
    """uvicorn's protocol of a connection, with a deadline for each header and for a response that nobody reads.

    Args:
        connections: the table in which the server has put the connection.
        given: what uvicorn gives to its protocols.
    """

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self.conn = _Protocol(h11.SERVER, HEADER_BYTES)
        self._connections, self._unsent = connections, 0
        self._deadline: asyncio.TimerHandle | None = None
        self.app_state = {**self.app_state, "connections": connections}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts the deadline of the first header."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self._number: int = transport.get_extra_info("socket").fileno()
        self._update()

    def connection_lost(self, exc: Exception | None) -> None:
        """Removes the connection from the table."""
        self._connections.remove(self._number)
        self._stop()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Handles what has arrived."""
        super().handle_events()
        self._update()

    def on_response_complete(self) -> None:
        """Starts the deadline of the next header, and of the client's reading."""
        super().on_response_complete()
        self._update()

    def pause_writing(self) -> None:
        """Starts the deadline of a client that does not read."""
        super().pause_writing()
        self._update()

    def resume_writing(self) -> None:
        """Stops the deadline of a client that does not read."""
        super().resume_writing()
        self._update()

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP with an error of our shape, unless a response has begun, and closes."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = error_response(RequestError(400, "the request is not HTTP/1.1; correct it", "http"))
            headers = [*response.raw_headers, *((a.encode(), b.encode()) for a, b in HEADERS.items())]
            headers.append((b"connection", b"close"))
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
            if self.cycle is not None:  # of the application, whose own response would be a second one
                self.cycle.disconnected = True
                self.cycle.message_event.set()
        self.transport.close()

    def _update(self) -> None:
        """Notes whether the connection waits, and starts or stops its deadline."""
        is_answered = self.cycle is None or self.cycle.response_complete
        is_unread = self.flow.write_paused
        self._connections.set_waiting(self._number, is_answered or is_unread or self.cycle.more_body)
        if not (is_answered or is_unread):
            self._stop()  # the application has its own deadlines, that of a body too
        elif self._deadline is None:
            self._start()

    def _start(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        seconds = UNREAD if self._unsent else self._connections.limits.header_seconds
        self._deadline = self.loop.call_later(seconds, self._expire)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        """Closes the connection, unless its client has read more of a long response meanwhile."""
        if 0 < self.transport.get_write_buffer_size() < self._unsent:
            self._start()
        else:
            self.transport.abort()
