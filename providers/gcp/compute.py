"""Calls of the Compute Engine API: bearer tokens, pages, operations, and what its errors mean.

Every change answers with an Operation at HTTP 200 that may fail, at once or later: no capacity is an
operation's error, not a status. Errors that come at once are ``{"error": {"code", "message", "errors":
[{"reason"}], "status", "details"}}``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from broker.domain.basics.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    OutcomeUnknown,
    PayloadUnreadable,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
    ReleaseRefused,
)
from providers.gcp.auth import TokenSource
from providers.gcp.prices import PROVIDER
from providers.http import Operation, ProviderHttp, Reply, classify_by_status
from providers.payload import Name, PayloadModel

REAL_ROOT = "https://compute.googleapis.com"
MOST_PAGES = 200
POLL_WAITS_S = (0.2, 0.4, 0.8)
"""Seconds to wait before each check of an operation; later polls watch what is undecided by then."""
FINISH_WAITS_S = (0.2, 0.8, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Likewise for changes that nothing watches later."""


class NameTaken(OrderRejected):
    """A resource of this name exists: from an earlier attempt of the same order."""


class TokenRefused(CredentialsRejected):
    """The token itself was refused (401)."""


_BY_CODE: Mapping[str, type[ProviderError]] = {
    "quotaexceeded": QuotaExceeded,
    "limitexceeded": QuotaExceeded,
    "dailylimitexceeded": QuotaExceeded,
    "ratelimitexceeded": RateLimited,
    "userratelimitexceeded": RateLimited,
    "resourceoperationrateexceeded": RateLimited,
    "resourceexhausted": RateLimited,
    "autherror": TokenRefused,
    "unauthenticated": TokenRefused,
    "accesstokenexpired": TokenRefused,
    "forbidden": CredentialsRejected,
    "permissiondenied": CredentialsRejected,
    "permissionserror": CredentialsRejected,
    "insufficientpermissions": CredentialsRejected,
    "accessnotconfigured": CredentialsRejected,
    "servicedisabled": CredentialsRejected,
    "apikeyinvalid": CredentialsRejected,
    "billingnotenabled": CredentialsRejected,
    "alreadyexists": NameTaken,
    "resourcealreadyexists": NameTaken,
    "backenderror": ProviderUnavailable,
    "internalerror": ProviderUnavailable,
    "serviceunavailable": ProviderUnavailable,
}
"""Reasons and codes in lower case without underscores: ``quotaExceeded`` equals ``QUOTA_EXCEEDED``."""
_CAPACITY = ("resourcepoolexhausted", "stockout")
_GONE = frozenset({"notfound", "resourcenotfound"})
_NOT_NOW = frozenset(
    {
        "resourcenotready",
        "resourceinusebyanotherresource",
        "conditionnotmet",
        "failedprecondition",
        "preconditionfailed",
        "unsupportedoperation",
    }
)


class OperationError(PayloadModel):
    """One error of an operation."""

    code: str = ""
    message: str = ""


class _Errors(PayloadModel):
    errors: tuple[OperationError, ...] = ()


class ZoneOperation(PayloadModel):
    """An operation in progress.

    ``zone`` and ``targetLink`` are URLs.
    """

    name: Name
    status: str = ""
    operationType: str = ""
    targetLink: str = ""
    zone: str = ""
    error: _Errors | None = None

    @property
    def problem(self) -> OperationError | None:
        """The first error."""
        return self.error.errors[0] if self.error is not None and self.error.errors else None


class ListPage(PayloadModel):
    """The pagination fields of every list."""

    nextPageToken: str = ""
    unreachables: tuple[str, ...] = ()


class OperationPage(ListPage):
    """``zoneOperations.list``."""

    items: tuple[ZoneOperation, ...] = ()


def classify(reply: Reply) -> ProviderError:
    """The typed error of an answer, by the codes in its body; also of a failed operation at HTTP 200."""
    body = reply.json_or_none()
    if not isinstance(body, dict):
        return classify_by_status(reply)
    error = body.get("error")
    if isinstance(error, str) and reply.operation is Operation.TOKEN:
        text = f"{error}: {body.get('error_description', '')}"
        kind = CredentialsRejected if reply.status < 500 else ProviderUnavailable
        return kind(PROVIDER, text[:300])
    if not isinstance(error, dict):
        return classify_by_status(reply)
    codes, message = _codes(error), str(error.get("message") or _first_message(error))
    text = f"{codes[0] if codes else reply.status}: {message}"[:300]
    for code in codes:
        found = error_of(code, text, reply.operation, reply.retry_after_s)
        if found is not None:
            return found
    if reply.status < 300:
        return _refused(reply.operation, text)
    return classify_by_status(reply, text)


def error_of(
    code: str, text: str, operation: Operation, retry_after_s: float | None = None
) -> ProviderError | None:
    """The error that a reason or code means; None for a code that says no more than the status."""
    key = code.replace("_", "").lower()
    if any(word in key for word in _CAPACITY):
        return InsufficientCapacity(PROVIDER, text)
    if key in _GONE:
        gone = operation in {Operation.LEASES, Operation.RELEASE}
        return LeaseNotFound(PROVIDER, text) if gone else None
    if key in _NOT_NOW and operation is Operation.RELEASE:
        return ReleaseRefused(PROVIDER, text, forever=False)
    kind = _BY_CODE.get(key)
    if kind is RateLimited:
        return RateLimited(PROVIDER, text, retry_after_s)
    return kind(PROVIDER, text) if kind is not None else None


def _refused(operation: Operation, text: str) -> ProviderError:
    if operation is Operation.RELEASE:
        return ReleaseRefused(PROVIDER, text, forever=False)
    return OrderRejected(PROVIDER, text)


def _codes(error: Mapping[str, Any]) -> list[str]:
    """Every code of an error, the most specific first: details, reasons, then the status word."""
    found: list[str] = []
    for name, keys in (("details", ("reason",)), ("errors", ("code", "reason"))):
        rows = error.get(name)
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict):
                found += [row[key] for key in keys if isinstance(row.get(key), str)]
    status = error.get("status")
    return [*found, status] if isinstance(status, str) else found


def _first_message(error: Mapping[str, Any]) -> str:
    rows = error.get("errors")
    first = rows[0] if isinstance(rows, list) and rows else None
    return str(first.get("message", "")) if isinstance(first, dict) else ""


def request_id(tag: str, act: str) -> str:
    """The idempotency token of one step of an order; the same for every attempt."""
    return str(uuid5(NAMESPACE_URL, f"gpu-capacity-broker/{act}/{tag}"))


class Compute:
    """One project."""

    def __init__(
        self,
        http: ProviderHttp,
        tokens: TokenSource,
        project: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.http, self._tokens, self._sleep = http, tokens, sleep
        self.project = project
        self._root = f"/compute/v1/projects/{project}"

    async def call(
        self,
        method: str,
        path: str,
        operation: Operation,
        *,
        repeatable: bool | None = None,
        params: Mapping[str, str] | None = None,
        json: Any = None,
    ) -> Reply:
        """Sends one call; with a refused token it fetches a new one and tries once more.

        ``path`` is below the project, or absolute. An answer of 200 with a failed operation raises that
        operation's error.
        """
        url = path if path.startswith("http") else f"{self._root}/{path}"
        reply = await self._authorised(method, url, operation, repeatable, params, json)
        if method == "GET":
            return reply
        body = reply.json_or_none()
        if isinstance(body, dict) and body.get("error"):
            raise self.http.error(reply)
        return reply

    async def _authorised(
        self,
        method: str,
        url: str,
        operation: Operation,
        repeatable: bool | None,
        params: Mapping[str, str] | None,
        json: Any,
    ) -> Reply:
        renew = False
        while True:
            headers = {"Authorization": f"Bearer {await self._tokens.token(renew=renew)}"}
            try:
                return await self.http.request(
                    method,
                    url,
                    operation=operation,
                    repeatable=repeatable,
                    params=params,
                    json=json,
                    headers=headers,
                )
            except TokenRefused:
                if renew or not self._tokens.renews:
                    raise
                renew = True

    async def pages(
        self, path: str, operation: Operation, params: Mapping[str, str] | None = None
    ) -> list[Reply]:
        """Every page of a list; PayloadUnreadable when it does not end."""
        found: list[Reply] = []
        token = ""
        for _ in range(MOST_PAGES):
            query = {**(params or {}), "maxResults": "500", **({"pageToken": token} if token else {})}
            reply = await self.call("GET", path, operation, params=query)
            found.append(reply)
            page = reply.read(ListPage)
            if page.unreachables and operation is not Operation.OFFERS:
                raise ProviderUnavailable(PROVIDER, f"no answer from {', '.join(page.unreachables)[:200]}")
            if not page.nextPageToken:
                return found
            token = page.nextPageToken
        raise PayloadUnreadable(PROVIDER, f"more than {MOST_PAGES} pages of {path}")

    async def settled(self, reply: Reply, zone: str, operation: Operation) -> None:
        """Watches an answer's operation briefly; raises the error of a failure.

        A failed check is ignored: the change was accepted.
        """
        change = reply.read(ZoneOperation)
        for wait_s in POLL_WAITS_S:
            if change.status == "DONE":
                break
            await self._sleep(wait_s)
            try:
                look = await self.call("GET", f"zones/{zone}/operations/{change.name}", Operation.LEASES)
                change = look.read(ZoneOperation)
            except ProviderError:
                return
        if change.problem is not None:
            raise _failure(change.problem, operation)

    async def finished(self, reply: Reply) -> None:
        """Waits for an operation that is no zone's; raises the error of a failure.

        ProviderUnavailable when it has not ended in about a minute.
        """
        change = reply.read(ZoneOperation)
        for wait_s in FINISH_WAITS_S:
            if change.status == "DONE":
                break
            await self._sleep(wait_s)
            look = await self.call("GET", f"global/operations/{change.name}", Operation.LEASES)
            change = look.read(ZoneOperation)
        if change.problem is not None:
            raise _failure(change.problem, Operation.LEASES)
        if change.status != "DONE":
            raise ProviderUnavailable(PROVIDER, f"{change.name} is still {change.status}; repeat the command")


def _failure(problem: OperationError, operation: Operation) -> ProviderError:
    text = f"{problem.code}: {problem.message}"[:300]
    found = error_of(problem.code, text, operation) or _refused(operation, text)
    if isinstance(found, ProviderUnavailable) and operation is Operation.ORDER:
        return OutcomeUnknown(PROVIDER, text)
    return found
