"""The only module that uses httpx: one client per provider, with retries, pace and circuit breakers.

A call is *repeatable* (reads, and releases: repeating them changes nothing) or not (orders). Repeatable
calls are retried with back-off and finally raise ``ProviderUnavailable``. An order is sent at most once. If
it may have reached the provider but the answer was lost, it raises ``OutcomeUnknown``; if no connection was
made, ``ProviderUnavailable``. After too many failed calls in a row, the circuit breaker holds back calls
for a while. The size of an unpacked body and the time to read it are limited. A large file is read line by
line (``read_lines``): it is retried until the first line has arrived, and skipped when the caller already
has this version. Known secrets are removed from error bodies before anything reads them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx
import structlog

from broker.domain.basics.errors import (
    OutcomeUnknown,
    PayloadUnreadable,
    ProviderError,
    ProviderUnavailable,
    RateLimited,
)
from providers import body as bodies
from providers.pacing import Breaker, Pace
from providers.reply import Classify, Operation, Reply, classify_by_status

__all__ = [
    "Classify",
    "FileVersion",
    "HttpFactory",
    "HttpPolicy",
    "NotModified",
    "Operation",
    "ProviderHttp",
    "Reply",
    "classify_by_status",
    "is_loopback",
]

log = structlog.get_logger(__name__)

HEARD_LINES = 2000
"""How many lines of a large file are passed to a listener."""
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


@dataclass(frozen=True, slots=True)
class HttpPolicy:
    """Limits of a provider's calls.

    ``interval_s``: least seconds between two calls of one operation; ``any_interval_s``: between any two
    calls. ``total_s`` limits one attempt including its body. ``attempts`` includes the first try.
    """

    connect_s: float = 5.0
    read_s: float = 20.0
    total_s: float = 60.0
    max_bytes: int = 32 * 1024 * 1024
    concurrency: int = 8
    interval_s: Mapping[Operation, float] = field(default_factory=dict)
    any_interval_s: float = 0.0
    attempts: int = 3
    backoff_s: float = 0.25
    longest_wait_s: float = 10.0
    breaker_failures: int = 5
    breaker_open_s: float = 20.0

    def with_interval(self, seconds: float) -> HttpPolicy:
        """The policy with each interval that it has changed to ``seconds``."""
        paced = dict.fromkeys(self.interval_s, seconds)
        return replace(self, interval_s=paced, any_interval_s=min(self.any_interval_s, seconds))

    def with_timeout(self, seconds: float) -> HttpPolicy:
        """The policy with ``seconds`` as the limit of connecting, of each read and of a whole attempt."""
        return replace(self, connect_s=min(self.connect_s, seconds), read_s=seconds, total_s=seconds)


class NotModified(Exception):
    """The file still has the version that the caller knows."""


@dataclass(slots=True)
class FileVersion:
    """The ``ETag`` of the file that was read; empty: none read yet, or the server sends no ETag."""

    etag: str = ""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call and its answer.

    ``sent``: query, action and body, to distinguish calls of one path. Of a file that is read line by line,
    the answer holds the first lines.
    """

    sent: str
    reply: Reply


class Hears(Protocol):
    """A listener to calls."""

    def __call__(self, exchange: Exchange) -> Reply:
        """Receives an exchange; returns the reply to use in its place (``Reply.noted``)."""
        ...


class HttpFactory(Protocol):
    """Creates the client of one provider; in production this is ``ProviderHttp``."""

    def __call__(
        self,
        provider: str,
        base_url: str,
        classify: Classify,
        policy: HttpPolicy,
        *,
        headers: Mapping[str, str] | None = None,
        secrets: tuple[str, ...] = (),
    ) -> ProviderHttp:
        """A client whose relative paths start at ``base_url`` (a host's root, or a path of a sandbox)."""
        ...


def is_loopback(url: str) -> bool:
    """Whether ``url`` is on this machine: then calls are not paced and use no proxy."""
    host = urlsplit(url).hostname or ""
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


class ProviderHttp:
    """One provider's client.

    It belongs to one event loop; ``aclose`` ends it.
    """

    def __init__(
        self,
        provider: str,
        base_url: str,
        classify: Classify,
        policy: HttpPolicy | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        secrets: tuple[str, ...] = (),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        hears: Hears | None = None,
    ) -> None:
        self._policy = policy or HttpPolicy()
        self._provider, self._base_url, self._classify = provider, base_url.rstrip("/"), classify
        self._secrets = {secret for secret in secrets if secret}
        self._sleep, self._monotonic, self._jitter, self._wall = sleep, monotonic, jitter, wall
        self._slots = asyncio.Semaphore(self._policy.concurrency)
        self._pace = {operation: Pace(self._policy.interval_s.get(operation, 0)) for operation in Operation}
        self._any_pace = Pace(self._policy.any_interval_s)
        failures, open_s = self._policy.breaker_failures, self._policy.breaker_open_s
        self._breakers = {operation: Breaker(failures, open_s) for operation in Operation}
        self._client = httpx.AsyncClient(
            headers={"Accept-Encoding": bodies.ENCODINGS, **(headers or {})},
            timeout=httpx.Timeout(self._policy.read_s, connect=self._policy.connect_s),
            trust_env=not is_loopback(base_url),
            follow_redirects=False,
        )
        self._hears = hears
        self._retirements: set[tuple[object, ...]] = set()

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    def paused_until(self) -> Mapping[str, datetime]:
        """Until when open circuit breakers hold back calls, by kind of call.

        This does not change their state.
        """
        now, wall = self._monotonic(), self._wall()
        left = {str(operation): breaker.left_s(now) for operation, breaker in self._breakers.items()}
        return {name: wall + timedelta(seconds=wait_s) for name, wait_s in left.items() if wait_s > 0}

    def add_secret(self, secret: str) -> None:
        """Adds a secret learnt at run time (a token), which must not appear in errors."""
        self._secrets.add(secret)

    async def request(
        self,
        method: str,
        path: str,
        *,
        operation: Operation,
        repeatable: bool | None = None,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        max_bytes: int | None = None,
        total_s: float | None = None,
    ) -> Reply:
        """Sends one call; ``path`` is relative to the base URL, or an absolute URL.

        ``repeatable`` defaults to True for GET and HEAD only. Raises the typed error of every answer with
        status 300 and above, and of every transport failure.
        """
        safe = method in {"GET", "HEAD"} if repeatable is None else repeatable
        built = self._client.build_request(
            method, self._url(path), params=params, json=json, content=content, headers=dict(headers or {})
        )
        limits = (max_bytes or self._policy.max_bytes, total_s or self._policy.total_s)
        with self._breaker(operation):
            return await self._with_retries(built, operation, safe, limits)

    def error(self, reply: Reply) -> ProviderError:
        """The typed error of an answer, including one that a status of 200 hides."""
        cleaned = replace(reply, body=self._redacted(reply.body))
        error = self._classify(cleaned)
        if isinstance(error, ProviderUnavailable) and not reply.repeatable:
            error = OutcomeUnknown(self._provider, f"no clear answer to an order (HTTP {reply.status})")
        error.request_id = error.request_id or reply.request_id
        return reply.named(error)

    def _url(self, path: str) -> str:
        return path if path.startswith(("http://", "https://")) else f"{self._base_url}{path}"

    async def read_lines(
        self,
        path: str,
        *,
        operation: Operation = Operation.OFFERS,
        params: Mapping[str, Any] | None = None,
        max_bytes: int | None = None,
        total_s: float | None = None,
        version: FileVersion | None = None,
    ) -> AsyncGenerator[str, None]:
        """The lines of a large text file as they arrive, so that the whole file is never in memory.

        Retried until the first line has arrived; after that, the caller has to start again. ``version`` is
        the version that the caller knows. NotModified when the file still has it; otherwise ``version`` is
        updated. Raises the typed errors of ``request``.
        """
        headers = {"If-None-Match": version.etag} if version is not None and version.etag else {}
        request = self._client.build_request("GET", self._url(path), params=params, headers=headers)
        limits = (max_bytes or self._policy.max_bytes, total_s or self._policy.total_s)
        attempt, begun = 1, False
        with self._breaker(operation):
            while True:
                await self._keep_pace(operation)
                try:
                    async with contextlib.aclosing(self._lines(request, operation, limits, version)) as lines:
                        async for line in lines:
                            begun = True
                            yield line
                    return
                except (ProviderUnavailable, RateLimited) as error:
                    wait_s = self._wait_s(error, attempt)
                    if begun or self._gives_up(attempt, wait_s):
                        raise
                    log.info("provider_retry", provider=self._provider, operation=operation, wait_s=wait_s)
                await self._sleep(wait_s)
                attempt += 1

    async def _lines(
        self,
        request: httpx.Request,
        operation: Operation,
        limits: tuple[int, float],
        version: FileVersion | None,
    ) -> AsyncGenerator[str, None]:
        most_bytes, total_s = limits
        try:
            async with self._slots, asyncio.timeout(total_s):
                response = await self._client.send(request, stream=True)
                try:
                    if response.status_code == 304 and "if-none-match" in request.headers:
                        raise NotModified
                    if response.status_code >= 300:
                        reply = await self._reply(response, operation, True, self._policy.max_bytes)
                        raise self.error(self._heard(request, reply))
                    if version is not None:
                        version.etag = response.headers.get("etag", "")
                    first: list[str] = []
                    async for line in bodies.lines(_body_of(response), most_bytes):
                        if self._hears is not None and len(first) <= HEARD_LINES:
                            first.append(line)
                            if len(first) == HEARD_LINES:
                                self._hear_lines(response, operation, first)
                        yield line
                    if len(first) < HEARD_LINES:
                        self._hear_lines(response, operation, first)
                finally:
                    await response.aclose()
        except bodies.BodyRefused as error:
            raise PayloadUnreadable(self._provider, str(error)) from None
        except (httpx.HTTPError, TimeoutError) as error:
            raise self._fault(error, repeatable=True) from None

    @contextlib.contextmanager
    def _breaker(self, operation: Operation) -> Iterator[None]:
        """Runs a call under the circuit breaker, which refuses it after too many failures."""
        breaker = self._breakers[operation]
        if wait_s := breaker.wait_s(self._monotonic()):
            until = self._wall() + timedelta(seconds=wait_s)
            words = f"too many failed calls in a row, nothing is sent until {until:%Y-%m-%d %H:%M:%S} UTC"
            raise ProviderUnavailable(self._provider, words, until=until)
        try:
            yield
        except NotModified:
            breaker.note(False, self._monotonic())
            raise
        except ProviderError as error:
            breaker.note(isinstance(error, ProviderUnavailable | OutcomeUnknown), self._monotonic())
            raise
        breaker.note(False, self._monotonic())

    async def _with_retries(
        self, request: httpx.Request, operation: Operation, safe: bool, limits: tuple[int, float]
    ) -> Reply:
        attempt = 1
        while True:
            await self._keep_pace(operation)
            try:
                return await self._attempt(request, operation, safe, limits)
            except (ProviderUnavailable, RateLimited) as error:
                wait_s = self._wait_s(error, attempt)
                if not safe or self._gives_up(attempt, wait_s):
                    raise
                log.info("provider_retry", provider=self._provider, operation=operation, wait_s=wait_s)
            await self._sleep(wait_s)
            attempt += 1

    async def _keep_pace(self, operation: Operation) -> None:
        """Reserves the next free start time before waiting for it, so that callers queue."""
        now, paces = self._monotonic(), (self._pace[operation], self._any_pace)
        start = max(now, *(pace.free_at for pace in paces))
        for pace in paces:
            pace.take(start)
        if start > now:
            await self._sleep(start - now)

    async def _attempt(
        self, request: httpx.Request, operation: Operation, safe: bool, limits: tuple[int, float]
    ) -> Reply:
        max_bytes, total_s = limits
        try:
            async with self._slots, asyncio.timeout(total_s):
                response = await self._client.send(request, stream=True)
                try:
                    reply = await self._reply(response, operation, safe, max_bytes)
                finally:
                    await response.aclose()
        except (httpx.HTTPError, TimeoutError) as error:
            # The cause is cut: httpx puts the URL, and so query strings, into its messages.
            raise self._fault(error, repeatable=safe) from None
        reply = self._heard(request, reply)
        if reply.status >= 300:
            raise self.error(reply)
        return reply

    async def _reply(
        self, response: httpx.Response, operation: Operation, safe: bool, max_bytes: int
    ) -> Reply:
        reply = self._made(response, operation, safe)
        self._note_retirement(reply)
        try:
            return replace(reply, body=await bodies.whole(_body_of(response), max_bytes))
        except bodies.BodyRefused as error:
            raise reply.unreadable(str(error)) from None

    def _made(self, response: httpx.Response, operation: Operation, safe: bool) -> Reply:
        """The reply without its body."""
        path = self._redacted(response.request.url.path.encode()).decode()
        return Reply(
            provider=self._provider,
            operation=operation,
            status=response.status_code,
            headers={name.lower(): value for name, value in response.headers.items()},
            body=b"",
            repeatable=safe,
            endpoint=f"{response.request.method} {path}",
        )

    def _heard(self, request: httpx.Request, reply: Reply) -> Reply:
        if self._hears is None:
            return reply
        action = request.headers.get("x-amz-target", "")
        body = request.content.decode("utf-8", "replace")
        return self._hears(Exchange(f"{request.url.query.decode()} {action} {body}", reply))

    def _hear_lines(self, response: httpx.Response, operation: Operation, lines: list[str]) -> None:
        if self._hears is not None:
            reply = self._made(response, operation, True)
            body = "\n".join(line.rstrip("\r\n") for line in lines).encode()
            self._heard(response.request, replace(reply, body=body))

    def _note_retirement(self, reply: Reply) -> None:
        """Logs a warning, once per endpoint, when it is to be retired (``Deprecation``, ``Sunset``) or is
        gone (410)."""
        told = reply.retirement
        news = (reply.operation, reply.status if reply.is_gone else 0, *told.values())
        if (told or reply.is_gone) and news not in self._retirements:
            self._retirements.add(news)
            log.warning(
                "provider_endpoint_retires",
                provider=self._provider,
                endpoint=reply.endpoint,
                status=reply.status,
                link=reply.headers.get("link", "")[:300],
                **told,
            )

    def _fault(self, error: Exception, *, repeatable: bool) -> ProviderError:
        kind = type(error).__name__
        if repeatable or isinstance(error, _UNSENT):
            return ProviderUnavailable(self._provider, f"no answer ({kind})")
        return OutcomeUnknown(self._provider, f"the order was sent and its answer was lost ({kind})")

    def _wait_s(self, error: ProviderError, attempt: int) -> float:
        """Seconds to wait: the provider's ``Retry-After``, else exponential back-off with jitter (up to 50
        %)."""
        if isinstance(error, RateLimited) and error.retry_after_s is not None:
            return error.retry_after_s
        return self._policy.backoff_s * float(2 ** (attempt - 1)) * (1 + 0.5 * self._jitter())

    def _gives_up(self, attempt: int, wait_s: float) -> bool:
        return attempt >= self._policy.attempts or wait_s > self._policy.longest_wait_s

    def _redacted(self, body: bytes) -> bytes:
        for secret in self._secrets:
            body = body.replace(secret.encode(), b"***")
        return body


def _body_of(response: httpx.Response) -> AsyncIterator[bytes]:
    return bodies.unpacked(response.aiter_raw(), response.headers.get("content-encoding", ""))
