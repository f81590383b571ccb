"""What wraps every request: a trace id, limits, security headers, metrics, and the handling of unexpected
errors."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from urllib.parse import unquote_plus

import structlog
from fastapi import HTTPException, Request, Response
from prometheus_client import Counter, Histogram
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.errors import PAUSED, SEE_THE_LOG, TOO_LARGE, UNEXPECTED, Kind, log_unexpected
from broker.unseen import find_unseen, name_of

log = structlog.get_logger()

TRACE_HEADER = "X-Request-Id"
LARGEST_BODY_BYTES = 8 * 1024 * 1024
CLIENT_LEFT = 499
"""In the figures alone, as nginx has it: who asked did not wait for the whole answer."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self' data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
READING = frozenset({"GET", "HEAD", "OPTIONS"})
ALLOWED_WHILE_PAUSED = ("/release", "/signin", "/signout")
BAD_ADDRESS = Kind(400, "invalid-input", "The address cannot be used")
TWO_LENGTHS = Kind(400, "invalid-input", "The length of the body is told twice")

REQUESTS = Counter("broker_http_requests", "Requests answered", ["method", "route", "status"])
SECONDS = Histogram("broker_http_request_seconds", "Time to the end of an answer", ["route"])


class RequestMiddleware:
    """The outermost ASGI middleware of the product. Streams pass through it unchanged.

    ``tell`` makes the answer to an error here: a page or a problem document. While ``paused``, only requests
    that read, release or sign in are let through.
    """

    def __init__(
        self, app: ASGIApp, tell: Callable[[Request, Kind, str], Response], *, paused: bool = False
    ) -> None:
        self._app = app
        self._tell = tell
        self._paused = paused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})["trace_id"] = trace_id = secrets.token_hex(8)
        caller = _Caller(receive)
        answer = _Answer(scope, send)
        began = time.monotonic()
        with structlog.contextvars.bound_contextvars(trace_id=trace_id):
            await self._answer(scope, caller, answer)
        route = str(getattr(scope.get("route"), "path", "unmatched"))
        method = scope["method"] if scope["method"] in METHODS else "other"
        status = CLIENT_LEFT if caller.left and not answer.is_whole else answer.status
        REQUESTS.labels(method, route, str(status)).inc()
        SECONDS.labels(route).observe(time.monotonic() - began)

    async def _answer(self, scope: Scope, caller: _Caller, answer: _Answer) -> None:
        receive = caller.receive
        request = Request(scope, receive)
        refusal = _refusal(request) or (_held_back(request) if self._paused else None)
        if refusal is not None:
            await self._tell(request, *refusal)(scope, receive, answer.send)
            return
        try:
            await self._app(scope, receive, answer.send)
        except Exception as error:
            if _is_departure(error):
                caller.left = True
                log.debug("the client left", path=request.url.path)
                return
            log_unexpected(request, error)
            if answer.status is not None:
                raise  # half an answer is out: the server has to break the connection
            await self._tell(request, UNEXPECTED, SEE_THE_LOG)(scope, receive, answer.send)


class _Caller:
    """Passes the received body on, at most LARGEST_BODY_BYTES of it, and notices when the client
    disconnects."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._taken = 0
        self.left = False

    async def receive(self) -> Message:
        """The next ASGI message."""
        message = await self._receive()
        self.left = self.left or message["type"] == "http.disconnect"
        self._taken += len(message.get("body", b""))
        if self._taken > LARGEST_BODY_BYTES:
            raise HTTPException(TOO_LARGE.status, f"more than {LARGEST_BODY_BYTES} bytes")
        return message


class _Answer:
    """Sends the answer with the product's headers, and remembers its status."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self.status: int | None = None
        self.is_whole = False

    async def send(self, message: Message) -> None:
        """One ASGI message of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers[TRACE_HEADER] = self._scope["state"]["trace_id"]
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
            static = self._scope["path"].startswith("/static/")
            headers.setdefault("Cache-Control", "no-cache" if static else "private, no-store")
        try:
            await self._send(message)
        except OSError as error:
            raise ClientDisconnect from error
        self.is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)


def _refusal(request: Request) -> tuple[Kind, str] | None:
    length = request.headers.get("Content-Length", "0")
    if length.isdigit() and int(length) > LARGEST_BODY_BYTES:
        return TOO_LARGE, f"{length} bytes; at most {LARGEST_BODY_BYTES}"
    if "Content-Length" in request.headers and "Transfer-Encoding" in request.headers:
        # A proxy that goes by the other one sees two requests where we see one.
        return TWO_LENGTHS, "a body has a Content-Length or a Transfer-Encoding, never both"
    unseen = find_unseen(request.scope["path"] + unquote_plus(request.url.query))
    if unseen is not None:
        return BAD_ADDRESS, f"{name_of(unseen)} can be part of no name"
    return None


def _held_back(request: Request) -> tuple[Kind, str] | None:
    """The refusal of a request that could buy or change something while the broker is paused."""
    path = request.url.path.rstrip("/")
    if request.method in READING | {"DELETE"} or path.endswith(ALLOWED_WHILE_PAUSED):
        return None
    return PAUSED, "BROKER_PAUSED is set: reading and releasing go on, nothing is bought or changed"


def _is_departure(error: BaseException) -> bool:
    """Whether an exception only says that the client has disconnected."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_departure(one) for one in error.exceptions)
    return isinstance(error, ClientDisconnect) or isinstance(error.__cause__, ClientDisconnect)
