"""Responses: JSON, server-sent events, and work that ends when its client goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable
from contextlib import suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from heedful.serving.admission import RequestError

T = TypeVar("T")
UNREAD = 60.0  # seconds after which a stream that nobody reads is closed
DONE = "[DONE]"  # the last event of OpenAI's streams
HEADERS = {  # of every response
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def ascii_json(value: Any) -> str:
    """Returns a value as JSON in ASCII, whose events no reader of lines divides; raises for NaN and infinity."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Returns a response with JSON."""
    return Response(ascii_json(value), status, headers, "application/json")


def error_response(error: RequestError) -> Response:
    """Returns the response to a request that failed."""
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if error.status in (408, 413, 503):  # the rest of the body is not read
        headers["Connection"] = "close"
    return json_response(error.as_dict(), error.status, headers)


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """Returns the result of ``work``, which is cancelled when the client goes; then raises ``RequestError`` (499).

    The request's body must have been read.
    """
    running, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise RequestError(499, "the client has gone")
        return running.result()
    finally:
        gone.cancel()
        running.cancel()
        await asyncio.gather(running, gone, return_exceptions=True)  # its own cleaning up comes first


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events of an asynchronous iterator over texts, which is closed when the client goes.

    An error before the first event gets its own status. A later one is sent as an event, and nothing after it, so that
    no reader takes the stream for complete.
    """

    def __init__(self, events: AsyncGenerator[Any]) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self.events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events."""
        try:
            first = await while_connected(receive, anext(self.events))
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            with suppress(RequestError, TimeoutError):  # the client has gone, or reads nothing
                await while_connected(receive, self._send_all(first, send))
        finally:
            await self.events.aclose()

    async def _send_all(self, first: Any, send: Send) -> None:
        async def write(data: Any, more: bool = True) -> None:
            body = b"" if data is None else f"data: {data if data == DONE else ascii_json(data)}\n\n".encode()
            async with asyncio.timeout(UNREAD):
                await send({"type": "http.response.body", "body": body, "more_body": more})

        await write(first)
        try:
            async for event in self.events:
                await write(event)
        except RequestError as error:
            await write(error.as_dict())
        await write(None, more=False)
