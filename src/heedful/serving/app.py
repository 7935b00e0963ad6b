"""The application: routes, and what stands before them (names, tokens, origins, sizes, headers of responses)."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from html import escape
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heedful import __version__
from heedful.serving.admission import RequestError
from heedful.serving.attention_routes import attention_routes
from heedful.serving.examples import input_examples
from heedful.serving.openai_routes import has_template, model_entry, openai_routes
from heedful.serving.responses import HEADERS, error_response, json_response
from heedful.serving.service import WORKING_FOR, Service, failure_of, report_error
from heedful.serving.task_routes import task_routes
from heedful.views.serve_html import serving_page

COOKIE = "heedful"
STATE = ("/health", "/ready")  # routes about the server's state, which has a reserve of connections
OPEN = (*STATE, "/login")  # routes without a token
LOGIN_BYTES = 4096  # of a request without a token
LOCAL = frozenset({"127.0.0.1", "localhost", "[::1]"})  # names of this machine in the Host header
PAGE_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'nonce-{nonce}'",
        "style-src 'nonce-{nonce}'",
        "connect-src 'self'",
        "img-src data: blob:",
        "frame-src 'self' blob:",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
LOGIN = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>heedful</title>
<style nonce="{nonce}">
:root {{ color-scheme: light dark; font: 1rem system-ui }}
form {{ max-width: 24rem; margin: 20vh auto }}
input, button {{ font: inherit; padding: .4em; width: 100%; box-sizing: border-box; margin-top: .5em }}
</style>
<form method="post" action="/login">
<label>Token of this server
<input name="token" type="password" required autofocus autocomplete="current-password"></label>
<button>Open</button><p>{message}</p>
</form></html>
"""


def create_app(service: Service, *, token: str | None = None, local_names_only: bool = True) -> ASGIApp:
    """Returns the ASGI application of a service.

    Args:
        service: model and queue.
        token: what clients must send; None for none.
        local_names_only: refuses requests to other names than this machine's own in the Host header, so that no other
            site's name that resolves here can read answers.
    """
    app = FastAPI(title="heedful", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    _add_error_handlers(app, service.pipe.task.name)
    guard = Guard(app, service, token, local_names_only)
    app.include_router(openai_routes(service))
    app.include_router(task_routes(service))
    if service.pipe.model.folder.source:  # else no folder has its tokenizer
        app.include_router(attention_routes(service))
    _add_state_routes(app, service)
    _add_page(app, service, guard)
    return guard


def _add_state_routes(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> Response:
        if not service.is_alive:
            return error_response(RequestError(503, "the inference thread has ended; restart the server"))
        return json_response({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        if service.draining or not service.is_alive:
            return error_response(RequestError(503, "the server takes no requests", retry_after=1))
        return json_response({"status": "ready"})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=service.metrics.content_type)


def _add_page(app: FastAPI, service: Service, guard: Guard) -> None:
    model, templated = service.pipe.model, has_template(service)
    examples = input_examples(service.pipe.task, model.folder.source or "", templated)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        nonce = secrets.token_urlsafe(16)
        own = {"model": service.name, "nonce": nonce, "has_token": guard.token is not None, "examples": examples}
        html = serving_page({**model_entry(service)["heedful"], **own})
        return HTMLResponse(html, headers={"Content-Security-Policy": PAGE_POLICY.format(nonce=nonce)})

    @app.post("/login", include_in_schema=False)
    async def login(request: Request) -> Response:
        given = parse_qs((await request.body()).decode("utf-8", "replace")).get("token", [""])[0]
        if not guard.is_token(given):
            return guard.login_page("That is not the token.")
        response = RedirectResponse("/", 303)
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, guard.cookie, httponly=True, samesite="strict", secure=secure)
        return response


# -------------------------------------------------------------------------------------------------------------- errors


def _add_error_handlers(app: FastAPI, task: str) -> None:
    """Answers every error in OpenAI's shape, with a message of one line."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        return error_response(error)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError | ValidationError)
        return error_response(invalid_request(error))

    async def plain(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{error.detail}: {request.method} {request.url.path}"
        if error.status_code == 404 and request.method == "POST":
            routes = sorted(path for path, methods in app.openapi()["paths"].items() if "post" in methods)
            message += f"; this model ({task}) has {', '.join(routes)}"
            message += "; chat needs a model with a chat template" if "/chat/" in request.url.path else ""
        return error_response(RequestError(error.status_code, message))

    async def unexpected(request: Request, error: Exception) -> Response:
        return error_response(failure_of(error, "the request"))  # raised again afterwards, and then reported

    app.add_exception_handler(RequestError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(ValidationError, invalid)
    app.add_exception_handler(HTTPException, plain)
    app.add_exception_handler(Exception, unexpected)


def invalid_request(error: RequestValidationError | ValidationError) -> RequestError:
    """Returns an error that names the field at fault."""
    first = error.errors()[0]
    # of a union, the place names its branches too; the body itself has no name
    path = [str(part) for part in first["loc"] if part != "body" and not re.search(r"[\[\]()A-Z]", str(part))]
    field = ".".join(path[:1])
    if first["type"] == "extra_forbidden":
        return RequestError(400, f"{field} is not supported; leave it out", "unsupported_field", field)
    if not field and first["type"] == "model_attributes_type":
        return RequestError(400, "the body is not JSON; send an object, with Content-Type: application/json", "json")
    text = first["msg"][:1].lower() + first["msg"][1:]
    return RequestError(400, f"{field or 'the body'}: {text}", param=field or None)


# --------------------------------------------------------------------------------------------------- before the routes


class Guard:
    """ASGI middleware: checks a request's name, token, origin and size, and adds the headers of its response.

    A request that fails is refused before its body is read.
    """

    def __init__(self, app: ASGIApp, service: Service, token: str | None, local_names_only: bool) -> None:
        self.app, self.service, self.token, self.local_names_only = app, service, token, local_names_only
        secret = secrets.token_bytes(32)
        self.received = 0  # bytes of the bodies of all requests in progress
        self.cookie = hmac.new(secret, (token or "").encode(), hashlib.sha256).hexdigest()  # of this process alone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request; an unexpected error is answered with 500 in one line."""
        if scope["type"] != "http":
            return
        if scope["method"] == "HEAD":  # the connection leaves the body out
            scope = {**scope, "method": "GET"}
        started, status, metrics = time.monotonic(), 0, self.service.metrics
        before = WORKING_FOR.set(self.service)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        limited = LimitedBody(self, scope, receive)
        try:
            self._check(scope)
            await self.app(scope, limited, send_with_headers)
        except RequestError as error:
            if not status:
                await self._refuse(error, scope, receive, send_with_headers)
        except Exception as error:
            report_error(error, "the request")
            if not status:
                await error_response(failure_of(error, "the request"))(scope, receive, send_with_headers)
        finally:
            WORKING_FOR.reset(before)
            self.received -= limited.size
        route = getattr(scope.get("route"), "path", "other")
        metrics.requests.labels(route, str(status or 499)).inc()
        metrics.seconds.labels(route).observe(time.monotonic() - started)

    async def _refuse(self, error: RequestError, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request that was refused, and closes its connection, since its body may not have been read."""
        if error.status == 499:
            return
        self.service.metrics.refusals.labels(str(error.status)).inc()
        is_page = error.status == 401 and scope["method"] == "GET" and scope["path"] == "/"
        response = self.login_page("") if is_page else error_response(error)
        response.headers["Connection"] = "close"
        if error.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        await response(scope, receive, send)

    def login_page(self, message: str) -> Response:
        """Returns the page that asks for the token."""
        nonce = secrets.token_urlsafe(16)
        html = LOGIN.format(nonce=nonce, message=escape(message))
        return HTMLResponse(html, 401, {"Content-Security-Policy": PAGE_POLICY.format(nonce=nonce)})

    def is_token(self, given: str) -> bool:
        """Returns True for the server's token, in a time that does not depend on what is given."""
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def _check(self, scope: Scope) -> None:
        """Raises ``RequestError`` for a request that is refused by its headers alone."""
        headers, connections = Headers(scope=scope), scope.get("state", {}).get("connections")
        if connections is not None and connections.is_full and scope["path"] not in STATE:
            raise RequestError(503, "too many connections are open; try again later", retry_after=1)
        if "transfer-encoding" in headers and "content-length" in headers:  # a proxy may see another end of the body
            raise RequestError(400, "a request has Transfer-Encoding or Content-Length, not both", "http")
        hosts = headers.getlist("host")
        if len(hosts) != 1:
            raise RequestError(400, "a request has one Host header", "host")
        if self.local_names_only and re.sub(r":\d+$", "", hosts[0]) not in LOCAL:
            raise RequestError(403, "this server answers under this machine's own name alone (localhost)", "host")
        if self.token is not None and scope["path"] not in OPEN and not self._is_known(headers):
            raise RequestError(401, "a token is needed: Authorization: Bearer TOKEN", "no_token")
        if scope["method"] == "GET":
            return
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        if site not in ("same-origin", "none") or (origin is not None and origin.partition("://")[2] != hosts[0]):
            raise RequestError(403, "a page of another site sent this request", "other_origin")
        length, limit = headers.get("content-length", "0"), self.size_limit(scope)
        if not length.isascii() or not length.isdigit() or int(length) > limit:
            raise _too_large(limit)
        if scope["path"] != "/login":
            self.service.check_accepting()

    def _is_known(self, headers: Headers) -> bool:
        """Returns True for a request with the token, or with the cookie that the page got for it."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        cookies = dict(part.strip().partition("=")[::2] for part in headers.get("cookie", "").split(";"))
        is_session = hmac.compare_digest(cookies.get(COOKIE, "").encode(), self.cookie.encode())
        return is_session or (scheme.lower() == "bearer" and self.is_token(given.strip()))

    def size_limit(self, scope: Scope) -> int:
        """Returns the number of bytes that the body of a request may have."""
        return LOGIN_BYTES if scope["path"] in OPEN else self.service.limits.body


class LimitedBody:
    """A request's ``receive`` that raises for a body that is too large, or takes too long.

    Args:
        guard: counts the bytes of all requests.
        scope: the request's.
        receive: the server's.
    """

    def __init__(self, guard: Guard, scope: Scope, receive: Receive) -> None:
        self.guard, self.receive = guard, receive
        self.size, self.is_complete, self.limit = 0, False, guard.size_limit(scope)
        self.deadline = time.monotonic() + guard.service.limits.body_seconds

    async def __call__(self) -> Message:
        """Returns the next message; after the body, waits for the client to go."""
        if self.is_complete:
            return await self.receive()
        try:
            async with asyncio.timeout(max(0.0, self.deadline - time.monotonic())):
                message = await self.receive()
        except TimeoutError:
            raise RequestError(408, "the body did not arrive in time; send it again", "timeout") from None
        count = len(message.get("body", b""))
        self.size, self.guard.received = self.size + count, self.guard.received + count
        self.is_complete = not message.get("more_body", False)
        if self.size > self.limit:
            raise _too_large(self.limit)
        if self.guard.received > self.guard.service.limits.bodies:
            raise RequestError(503, "the bodies of other requests take all room; try again later", retry_after=1)
        return message


def _too_large(limit: int) -> RequestError:
    return RequestError(413, f"the body is larger than {limit:,} bytes; send less")
