"""The thin client of the EC2 query API: signs, posts, pages, and names errors by their XML code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from broker.domain.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    PayloadUnreadable,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
)
from providers.aws.query import CONTENT_TYPE, Params, form_body
from providers.aws.signing import AwsKeys, Scope, signed_headers
from providers.aws.xml import PROVIDER, Node, next_token, parse_answer, parse_xml
from providers.http import Operation, ProviderHttp, Reply, classify_by_status

REAL_ROOT = "https://amazonaws.com"
"""Stands for all of AWS's hosts; any other base URL takes the place of every one of them."""
_MOST_PAGES = 100

_CREDENTIALS = frozenset(
    {
        "AuthFailure",
        "UnauthorizedOperation",
        "SignatureDoesNotMatch",
        "InvalidClientTokenId",
        "UnrecognizedClientException",
        "MissingAuthenticationToken",
        "IncompleteSignature",
        "ExpiredToken",
        "RequestExpired",
        "OptInRequired",
        "AccessDenied",
        "Blocked",
    }
)
_THROTTLED = frozenset({"RequestLimitExceeded", "Throttling", "ThrottlingException", "SlowDown"})
_NO_CAPACITY = frozenset({"ReservationCapacityExceeded", "Unsupported", "SpotMaxPriceTooLow"})
"""``Unsupported``: this zone does not have the type at all, so another zone may."""
_QUOTA = frozenset({"MaxSpotInstanceCountExceeded", "PendingVerification"})
_OUTAGE = frozenset({"InternalError", "InternalFailure", "Unavailable", "ServiceUnavailable"})


class CallRefused(PayloadUnreadable):
    """EC2 understood a read and refuses it with a code of its own."""


def classify(reply: Reply) -> ProviderError:
    """The error of an answer, by its XML code; an answer that is no error XML goes by its status."""
    code, message = _code_and_message(reply)
    if code is None:
        return classify_by_status(reply)
    text = f"{code}: {message}" if message else code
    if code in _THROTTLED:
        return RateLimited(PROVIDER, text, reply.retry_after_s)
    kind = _kind(code, reply)
    return kind(PROVIDER, text)


def _kind(code: str, reply: Reply) -> type[ProviderError]:
    if code in _CREDENTIALS:
        return CredentialsRejected
    if code in _QUOTA or code.endswith("LimitExceeded"):
        return QuotaExceeded
    if code in _NO_CAPACITY or (code.startswith("Insufficient") and code.endswith("Capacity")):
        return CallRefused if reply.operation is Operation.OFFERS else InsufficientCapacity
    if code in _OUTAGE or reply.status >= 500:
        return ProviderUnavailable
    if reply.operation is Operation.OFFERS:
        return CallRefused
    is_missing = code.endswith((".NotFound", ".Malformed"))
    return LeaseNotFound if is_missing and reply.operation is not Operation.ORDER else OrderRejected


def _code_and_message(reply: Reply) -> tuple[str | None, str]:
    try:
        root = parse_xml(reply.body)
    except PayloadUnreadable:
        return None, ""
    errors = root.child("Errors") or root
    error = errors.child("Error")
    if error is None:
        return None, ""
    return error.text("Code"), error.text("Message") or ""


@dataclass(slots=True)
class CallBudget:
    """How many calls are left."""

    left: int

    def take(self) -> bool:
        """Takes one call; False when none is left."""
        if self.left <= 0:
            return False
        self.left -= 1
        return True


def utc_now() -> datetime:
    """This machine's time, which AWS wants within minutes of its own."""
    return datetime.now(UTC)


class Ec2:
    """EC2 in any region, over one connection pool. ``now`` dates the signatures."""

    def __init__(
        self, http: ProviderHttp, base_url: str, keys: AwsKeys, now: Callable[[], datetime] = utc_now
    ) -> None:
        self._http, self._base_url, self._keys, self._now = http, base_url, keys, now

    async def call(
        self, region: str, action: str, params: Params, operation: Operation, *, repeatable: bool = True
    ) -> Node:
        """One call's answer; an order (``repeatable`` False) is sent at most once."""
        url = self._url(region)
        body = form_body(action, params)
        headers = signed_headers(
            "POST", url, {"content-type": CONTENT_TYPE}, body, self._keys, Scope(region), self._now()
        )
        reply = await self._http.request(
            "POST", url, operation=operation, repeatable=repeatable, content=body, headers=headers
        )
        try:
            return parse_answer(reply.body, action)
        except PayloadUnreadable as error:
            raise reply.unreadable(str(error)) from error

    async def pages(
        self, region: str, action: str, params: Params, operation: Operation, budget: CallBudget | None = None
    ) -> tuple[tuple[Node, ...], bool]:
        """All pages of a read, and whether they are all: False when the budget ended first."""
        budget = budget or CallBudget(_MOST_PAGES)
        found: list[Node] = []
        token: str | None = None
        while budget.take():
            page_params = params if token is None else {**params, "NextToken": token}
            found.append(await self.call(region, action, page_params, operation))
            before, token = token, next_token(found[-1])
            if token is None:
                return tuple(found), True
            if token == before:
                raise PayloadUnreadable(PROVIDER, f"{action} in {region} pages in a circle")
        return tuple(found), False

    async def every_page(
        self, region: str, action: str, params: Params, operation: Operation
    ) -> tuple[Node, ...]:
        """All pages of a read; PayloadUnreadable when they do not end."""
        found, complete = await self.pages(region, action, params, operation)
        if not complete:
            raise PayloadUnreadable(PROVIDER, f"{action} in {region} does not end")
        return found

    def _url(self, region: str) -> str:
        if self._base_url == REAL_ROOT:
            return f"https://ec2.{region}.amazonaws.com/"
        return f"{self._base_url}/"
