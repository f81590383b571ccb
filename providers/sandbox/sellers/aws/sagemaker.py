"""SageMaker's JSON 1.1 protocol: the operation stands in a header, times are seconds since 1970.

Errors are ``{"__type": code, "message": …}``. As for EC2, the signature's form is checked and its region
read, its value is not. Source: SageMaker API model 2017-07-24; which common errors come with which status
is that of the "Common errors" page of the API reference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from providers.sandbox.faults import FaultKind
from providers.sandbox.protocol import Call, Refusal, Reply
from providers.sandbox.sellers.aws.query import signature

SERVICE = "sagemaker"
MEDIA_TYPE = "application/x-amz-json-1.1"
_TARGET = "x-amz-target"
_PREFIX = "SageMaker."
_FAULTS = {
    FaultKind.HTTP_500: ("InternalFailure", "The request processing has failed.", 500),
    FaultKind.RATE_LIMITED: ("ThrottlingException", "Rate exceeded", 400),
    FaultKind.OUT_OF_CAPACITY: (
        "ResourceNotFound",
        "The training plan offering is no longer available.",
        400,
    ),
}


@dataclass(frozen=True, slots=True)
class SageMakerCall:
    """One operation with its body, in one region."""

    action: str
    region: str
    body: Mapping[str, Any]
    loses_capacity: bool = False

    def text(self, name: str) -> str:
        """A text that must be there."""
        value = self.body.get(name)
        if not isinstance(value, str) or not value:
            raise refused(f"1 validation error detected: Value at '{name}' failed to satisfy constraint:"
                          " Member must not be null")  # fmt: skip
        return value

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number in [low, high]."""
        value = self.body.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise refused(f"1 validation error detected: Value '{value}' at '{name}' failed to satisfy"
                          f" constraint: Member must be between {low} and {high}")  # fmt: skip
        return value

    def instant(self, name: str) -> datetime | None:
        """A time, or None."""
        value = self.body.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
            raise refused(f"Value '{value}' at '{name}' is not a timestamp")
        return datetime.fromtimestamp(value, UTC)


def action_of(call: Call) -> str | None:
    """The SageMaker operation that a call names; None for calls of another service."""
    target = call.headers.get(_TARGET, "")
    return target.removeprefix(_PREFIX) if target.startswith(_PREFIX) else None


def authorise(call: Call) -> None:
    """MissingAuthenticationTokenException or InvalidSignatureException for a call that is not signed so."""
    found = signature(call)
    if found is None:
        raise failed("MissingAuthenticationTokenException", "Missing Authentication Token", 403)
    if found["service"] != SERVICE:
        words = f"Credential should be scoped to correct service: '{SERVICE}'."
        raise failed("InvalidSignatureException", words, 403)


def sagemaker_call(call: Call) -> SageMakerCall:
    """The call with its body read; SerializationException for a body that is no JSON object."""
    found = signature(call)
    try:
        body = call.json_object()
    except ValueError:
        raise failed("SerializationException", "The body is not a JSON object.") from None
    region = found["region"] if found is not None else ""
    return SageMakerCall(action_of(call) or "", region, body, call.loses_capacity)


def answered(payload: Mapping[str, Any]) -> Reply:
    """An answer; what is None is left out."""
    kept = {name: value for name, value in payload.items() if value is not None}
    return Reply(200, json.dumps(kept).encode(), MEDIA_TYPE)


def error_reply(code: str, message: str, status: int = 400) -> Reply:
    """An error document."""
    body = json.dumps({"__type": code, "message": message}).encode()
    return Reply(status, body, MEDIA_TYPE, {"x-amzn-errortype": code})


def failed(code: str, message: str, status: int = 400) -> Refusal:
    """An error to raise."""
    return Refusal(error_reply(code, message, status))


def refused(message: str) -> Refusal:
    """ValidationException."""
    return failed("ValidationException", message)


def fault_reply(kind: FaultKind) -> Reply:
    """SageMaker's form of a fault."""
    code, message, status = _FAULTS[kind]
    return error_reply(code, message, status)


def epoch(instant: datetime) -> float:
    """A time as the wire has it."""
    return instant.timestamp()
