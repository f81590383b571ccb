"""What AWS's error answers mean: EC2's XML by its code, SageMaker's JSON by its type.

EC2: ``<Response><Errors><Error><Code/><Message/>``. SageMaker (JSON 1.1): ``{"__type": "…#ResourceInUse",
"message": "…"}``, also with ``Message``. Which code SageMaker gives for an offering that has gone is
unverified; ``ResourceNotFound`` is the one its model names.
"""

from __future__ import annotations

from typing import Any

from broker.domain.basics.errors import (
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
from providers.aws.query import PROVIDER, parse_xml
from providers.http import Operation, Reply, classify_by_status

_CREDENTIALS = frozenset(
    {
        "AuthFailure",
        "UnauthorizedOperation",
        "SignatureDoesNotMatch",
        "InvalidSignatureException",
        "InvalidClientTokenId",
        "UnrecognizedClientException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "IncompleteSignature",
        "IncompleteSignatureException",
        "ExpiredToken",
        "ExpiredTokenException",
        "RequestExpired",
        "OptInRequired",
        "AccessDenied",
        "Blocked",
    }
)
_NOT_ALLOWED = "AccessDeniedException"
"""Codes of a key that is valid but may not make this SageMaker call."""
_THROTTLED = frozenset(
    {"RequestLimitExceeded", "Throttling", "ThrottlingException", "SlowDown", "TooManyRequestsException"}
)
_NO_CAPACITY = frozenset({"ReservationCapacityExceeded", "Unsupported", "SpotMaxPriceTooLow"})
"""``Unsupported`` is among them: this zone does not have the type at all, so another zone may."""
_QUOTA = frozenset({"MaxSpotInstanceCountExceeded", "PendingVerification"})
_OUTAGE = frozenset(
    {
        "InternalError",
        "InternalFailure",
        "Unavailable",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "InternalServerError",
    }
)
_NOT_FOUND = "ResourceNotFound"
_DRY_RUN = "DryRunOperation"
ALREADY_THERE = "ResourceInUse"
"""SageMaker's codes for "a plan of this name exists"."""


class CallRefused(PayloadUnreadable):
    """AWS understood a read and refused it with a code of its own."""


class DryRunPassed(OrderRejected):
    """EC2 would have taken an order that was sent as a dry run."""


class NameTaken(OrderRejected):
    """SageMaker already has a training plan of this name."""


def classify(reply: Reply) -> ProviderError:
    """The typed error of an answer, by its code.

    An answer that is neither error XML nor JSON is classified by its status.
    """
    code, message = _code_and_message(reply)
    if code is None:
        return classify_by_status(reply)
    text = f"{code}: {message}" if message else code
    if code in _THROTTLED:
        return RateLimited(PROVIDER, text, reply.retry_after_s)
    kind = _kind(code, reply)
    return kind(PROVIDER, text)


def _kind(code: str, reply: Reply) -> type[ProviderError]:
    reads_offers = reply.operation is Operation.OFFERS
    if code == _NOT_ALLOWED:
        return CallRefused if reads_offers else CredentialsRejected
    if code in _CREDENTIALS:
        return CredentialsRejected
    if code in _QUOTA or code.endswith("LimitExceeded"):
        return CallRefused if reads_offers and code == "ResourceLimitExceeded" else QuotaExceeded
    if code in _NO_CAPACITY or (code.startswith("Insufficient") and code.endswith("Capacity")):
        return CallRefused if reads_offers else InsufficientCapacity
    if code in _OUTAGE or reply.status >= 500:
        return ProviderUnavailable
    if reads_offers:
        return CallRefused
    return _refusal(code, reply.operation)


def _refusal(code: str, operation: Operation) -> type[ProviderError]:
    if code == _DRY_RUN:
        return DryRunPassed
    if code == ALREADY_THERE:
        return NameTaken
    if code == _NOT_FOUND:
        return InsufficientCapacity if operation is Operation.ORDER else LeaseNotFound
    is_missing = code.endswith((".NotFound", ".Malformed"))
    return LeaseNotFound if is_missing and operation is not Operation.ORDER else OrderRejected


def _code_and_message(reply: Reply) -> tuple[str | None, str]:
    if reply.body.lstrip().startswith(b"{"):
        return _json_code(reply.json_or_none())
    try:
        root = parse_xml(reply.body)
    except PayloadUnreadable:
        return None, ""
    errors = root.child("Errors") or root
    error = errors.child("Error")
    if error is None:
        return None, ""
    return error.text("Code"), error.text("Message") or ""


def _json_code(body: Any) -> tuple[str | None, str]:
    """``com.amazonaws.sagemaker#ResourceInUse`` and ``ResourceInUse:http://…`` both mean ResourceInUse."""
    kind = body.get("__type") if isinstance(body, dict) else None
    if not isinstance(kind, str) or not kind:
        return None, ""
    message = body.get("message", body.get("Message", ""))
    return kind.partition(":")[0].rpartition("#")[2], message if isinstance(message, str) else ""
