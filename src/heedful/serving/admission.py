"""Admission: how much may wait, counted in inputs and tokens, and errors as an HTTP client gets them."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any, ClassVar

from starlette.exceptions import HTTPException

from heedful.errors import shorten

TOKENS = 512  # that wait, for each input that may wait


class RequestError(HTTPException):
    """Error of one request: HTTP status, code and a message of one line, in the shape of OpenAI's errors.

    Args:
        status: HTTP status.
        message: what happened and what to do.
        code: name of the error for programs; by default that of the status.
        param: name of the field at fault.
        retry_after: seconds after which the client may try again.
    """

    TYPES: ClassVar[dict[int, str]] = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        429: "rate_limit_error",
    }
    CODES: ClassVar[dict[int, str]] = {
        400: "invalid_value",
        413: "too_large",
        429: "queue_full",
        499: "client_gone",
        503: "unavailable",
    }

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(status, message)
        self.message, self.status, self.code = message, status, code or self.CODES.get(status)
        self.param, self.retry_after = param, retry_after

    def as_dict(self) -> dict[str, Any]:
        """Returns ``{"error": {"message", "type", "code", "param"}}``."""
        kind = self.TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        error = {"message": shorten(self.message), "type": kind, "code": self.code, "param": self.param}
        return {"error": error}


@dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    """Limits of a server."""

    slots: int = 8  #: answers that are generated together
    queue: int = 128  #: inputs that wait
    max_tokens: int = 2048  #: tokens of an input with its answer
    batch_tokens: int = 16_384  #: tokens of inputs that are computed together
    timeout: float = 300.0  #: seconds from a request to the end of its answer
    drain: float = 30.0  #: seconds that running requests have after SIGTERM
    body: int = 16 << 20  #: bytes of a request
    bodies: int = 256 << 20  #: bytes of all requests in progress
    body_seconds: float = 30.0  #: to receive a request
    pixels: int = 1 << 24  #: of an image
    backlog: int = 512  #: pieces of an answer that wait for a slow reader
    connections: int = 1024  #: that are open
    reserve: int = 64  #: further connections, for requests about the server's state; others get 503
    address_connections: int = 256  #: of one address that have not sent a whole request
    header_seconds: float = 20.0  #: to receive a request's header, from the start or the last response on

    @property
    def queue_tokens(self) -> int:
        """Tokens that wait, those to be generated included."""
        return max(TOKENS * self.queue, 2 * self.max_tokens)

    @property
    def request_pixels(self) -> int:
        """Pixels of all images of a request."""
        return 4 * self.pixels

    @property
    def queue_pixels(self) -> int:
        """Pixels of all images that wait."""
        return 4 * self.request_pixels


class Admission:
    """Counts the inputs, tokens and pixels that wait, and refuses what would exceed the limits.

    >>> admission = Admission(ServiceLimits(queue=2))
    >>> ticket = admission.admit(2, 10)
    >>> admission.is_full, ticket.release(), admission.is_full
    (True, None, False)
    """

    def __init__(self, limits: ServiceLimits) -> None:
        self.limits, self.inputs, self.tokens, self.pixels = limits, 0, 0, 0
        self.tokens_per_second = 0.0  # 0 until known
        self.lock = threading.Lock()

    @property
    def is_full(self) -> bool:
        """True if not even one more input may wait."""
        return self.inputs >= self.limits.queue or self.tokens >= self.limits.queue_tokens

    def admit(self, inputs: int, tokens: int, pixels: int = 0) -> Ticket:
        """Returns a ticket for a request's inputs and tokens, and the pixels of its images.

        Raises ``RequestError``: 413 for a request that never fits, 429 for one that does not fit now.
        """
        limits = self.limits
        self.check_size(inputs, tokens)
        if pixels > limits.request_pixels:
            raise RequestError(
                413,
                f"the images of the request have {pixels:,} pixels, more than {limits.request_pixels:,}; send them in "
                "parts, or smaller",
            )
        with self.lock:
            if (
                self.inputs + inputs > limits.queue
                or self.tokens + tokens > limits.queue_tokens
                or self.pixels + pixels > limits.queue_pixels
            ):
                raise self.refusal()
            self.inputs, self.tokens, self.pixels = self.inputs + inputs, self.tokens + tokens, self.pixels + pixels
        return Ticket(self, inputs, tokens, pixels)

    def check_size(self, inputs: int, tokens: int) -> None:
        """Raises ``RequestError`` for a request that never fits."""
        limits = self.limits
        if inputs > limits.queue or tokens > limits.queue_tokens:
            raise RequestError(
                413,
                f"the request has {inputs:,} inputs and about {tokens:,} tokens, those to be generated and those of "
                f"all beams included; at most {limits.queue:,} inputs and {limits.queue_tokens:,} tokens may wait: "
                "send it in parts, or with fewer beams",
            )

    def refusal(self) -> RequestError:
        """Returns the error 429, with the seconds after which the queue should be shorter."""
        seconds = self.tokens / self.tokens_per_second if self.tokens_per_second else 1.0
        retry_after = min(60, max(1, math.ceil(seconds)))
        message = f"{self.inputs:,} inputs with about {self.tokens:,} tokens wait already; try again later"
        return RequestError(429, message, retry_after=retry_after)


class Ticket:
    """A request's part of what waits; its inputs are released one by one when they start, or all at once."""

    def __init__(self, admission: Admission, inputs: int, tokens: int, pixels: int = 0) -> None:
        self._admission, self._inputs, self._tokens, self._pixels = admission, inputs, tokens, pixels

    def release(self, inputs: int | None = None) -> None:
        """Releases some inputs with their share of the tokens and pixels; by default all that are left."""
        with self._admission.lock:
            count = self._inputs if inputs is None else min(inputs, self._inputs)
            tokens, pixels = (
                total if count == self._inputs else total * count // self._inputs
                for total in (self._tokens, self._pixels)
            )
            self._change(-count, -tokens, -pixels)

    def resize(self, tokens: int) -> None:
        """Replaces the estimated number of tokens by the true one."""
        with self._admission.lock:
            self._change(0, tokens - self._tokens if self._inputs else 0, 0)

    def _change(self, inputs: int, tokens: int, pixels: int) -> None:
        self._inputs, self._tokens, self._pixels = self._inputs + inputs, self._tokens + tokens, self._pixels + pixels
        whole = self._admission
        whole.inputs, whole.tokens, whole.pixels = whole.inputs + inputs, whole.tokens + tokens, whole.pixels + pixels
