"""EC2's query protocol (2016-11-15): signed form in, XML out.

Lists are ``Name.1``. The signature's form is checked and its credential scope read (that is where the region
comes from); its value is not, the sandbox knows no secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from xml.sax.saxutils import escape

from providers.sandbox.protocol import Call, Refusal, Reply

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
OWNER_ID = "123456789012"
_TAGS_IN_THE_PLURAL = {"CreateCapacityReservation"}
"""Actions whose parameter is ``TagSpecifications``; it is ``TagSpecification`` elsewhere."""
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/,\s]+)/(?P<day>\d{8})/(?P<region>[a-z0-9-]+)"
    r"/(?P<service>[a-z0-9-]+)/aws4_request,\s*SignedHeaders=(?P<signed>[a-z0-9;-]+),\s*Signature=(?P<signature>[0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True)
class Ec2Call:
    """One action with its parameters, in one region."""

    action: str
    region: str
    params: Mapping[str, str]
    loses_capacity: bool = False

    def required(self, name: str) -> str:
        """A parameter; MissingParameter without it."""
        value = self.params.get(name, "")
        if not value:
            raise ec2_error(
                "MissingParameter", f"The request must contain the parameter {name[0].lower()}{name[1:]}"
            )
        return value

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number in [low, high]; InvalidParameterValue for others, MissingParameter without it."""
        if default is not None and name not in self.params:
            return default
        text = self.required(name)
        if not text.isdecimal() or not low <= int(text) <= high:
            raise ec2_error(
                "InvalidParameterValue", f"Value ({text}) for parameter {name} must be {low} to {high}."
            )
        return int(text)

    def instant(self, name: str) -> datetime | None:
        """A time, or None; a time without a zone counts as UTC."""
        text = self.params.get(name, "")
        if not text:
            return None
        try:
            found = datetime.fromisoformat(text.replace("Z", "+00:00"))
        except ValueError as error:
            raise ec2_error(
                "InvalidParameterValue", f"Value ({text}) for parameter {name} is invalid."
            ) from error
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)

    def values(self, prefix: str) -> list[str]:
        """Values of a list, in order."""
        found: list[str] = []
        while (value := self.params.get(f"{prefix}.{len(found) + 1}")) is not None:
            found.append(value)
        return found

    def tags(self, resource_type: str) -> list[dict[str, str]]:
        """Tags that the call puts on what it makes."""
        found: list[dict[str, str]] = []
        name = "TagSpecifications" if self.action in _TAGS_IN_THE_PLURAL else "TagSpecification"
        number = 1
        while (kind := self.params.get(f"{name}.{number}.ResourceType")) is not None:
            if kind == resource_type:
                found.extend(self._tags(f"{name}.{number}.Tag"))
            number += 1
        return found

    def _tags(self, prefix: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = []
        while (key := self.params.get(f"{prefix}.{len(found) + 1}.Key")) is not None:
            found.append({"key": key, "value": self.params.get(f"{prefix}.{len(found) + 1}.Value", "")})
        return found

    def page(self, rows: Sequence[Any], default: int = 1000) -> tuple[list[Any], str]:
        """A page of ``rows`` and the token of the next one ("" at the end, as EC2 often sends it)."""
        size = self.integer("MaxResults", 1, 1000, default)
        token = self.params.get("NextToken") or "0"
        if not token.isdecimal():
            raise ec2_error("InvalidNextToken", "The token is not valid.")
        start = int(token)
        following = start + size
        return list(rows[start:following]), str(following) if following < len(rows) else ""


def ec2_call(call: Call, scope_region: str) -> Ec2Call:
    """The action of a form body."""
    params = call.form()
    return Ec2Call(params.get("Action", ""), scope_region, params, call.loses_capacity)


def signature(call: Call) -> Mapping[str, str] | None:
    """The parts of a call's signature; None when it has none of the right form."""
    found = _AUTHORIZATION.fullmatch(call.headers.get("authorization", ""))
    return found.groupdict() if found is not None and "host" in found["signed"].split(";") else None


def signed_region(call: Call) -> str:
    """Region of the credential scope; AuthFailure when the call is not signed for EC2."""
    found = signature(call)
    if found is None:
        raise ec2_error(
            "AuthFailure", "AWS was not able to validate the provided access credentials", status=401
        )
    if found["service"] != "ec2":
        raise ec2_error(
            "SignatureDoesNotMatch",
            f"Credential should be scoped to correct service: 'ec2', found '{found['service']}'.",
            status=403,
        )
    return found["region"]


def ec2_reply(action: str, request_id: str, payload: Mapping[str, Any]) -> Reply:
    """``<ActionResponse>`` with ``requestId`` first."""
    inner = render({"requestId": request_id, **payload})
    return _xml(200, f'<{action}Response xmlns="{NAMESPACE}">{inner}</{action}Response>')


def ec2_error(code: str, message: str, *, status: int = 400) -> Refusal:
    """EC2's error body, as an exception."""
    return Refusal(ec2_error_reply(code, message, status=status))


def ec2_error_reply(code: str, message: str, *, status: int = 400) -> Reply:
    """EC2's error body."""
    body = render({"Errors": [], "RequestID": "00000000-0000-4000-8000-000000000000"})
    error = f"<Error><Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error>"
    return _xml(status, f"<Response>{body.replace('<Errors/>', f'<Errors>{error}</Errors>')}</Response>")


def render(payload: Mapping[str, Any]) -> str:
    """A mapping as XML elements: lists become ``<item>``s, None is left out, booleans are lower case."""
    return "".join(_element(name, value) for name, value in payload.items() if value is not None)


def _element(name: str, value: Any) -> str:
    inner = _inner(value)
    return f"<{name}>{inner}</{name}>" if inner else f"<{name}/>"


def _inner(value: Any) -> str:
    if isinstance(value, Mapping):
        return render(value)
    if isinstance(value, list):
        return "".join(_element("item", item) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return escape(str(value))


def _xml(status: int, text: str) -> Reply:
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'
    return Reply(status, body.encode(), "text/xml;charset=UTF-8")
