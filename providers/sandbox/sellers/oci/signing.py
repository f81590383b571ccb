"""Checks OCI request signatures, version 1, as OCI's documentation "Request Signatures" describes them.

The form is checked: the headers that must be signed, a date within five minutes of this machine's time, and
the body against its hash. The RSA signature itself is not: no key is known here.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from providers.sandbox.protocol import Call

MOST_SKEW = timedelta(minutes=5)
_FIELD = re.compile(r'(\w+)="([^"]*)"')
_ALWAYS = ("(request-target)", "host")
_WITH_BODY = ("content-length", "content-type", "x-content-sha256")


class BadSignature(Exception):
    """The call is not signed as it must be; the text says why."""


def check(call: Call) -> None:
    """Raises BadSignature for a call that is not well signed."""
    scheme, _, rest = call.headers.get("authorization", "").partition(" ")
    given: dict[str, str] = dict(_FIELD.findall(rest))
    key_id, names = given.get("keyId", ""), given.get("headers", "").lower().split()
    if scheme.lower() != "signature" or not given.get("signature") or given.get("version") != "1":
        raise BadSignature("no version 1 signature in the Authorization header")
    if given.get("algorithm") != "rsa-sha256" or len([part for part in key_id.split("/") if part]) != 3:
        raise BadSignature("algorithm or keyId is not valid")
    needed = _ALWAYS + (_WITH_BODY if call.method in {"POST", "PUT", "PATCH"} else ())
    missing = [name for name in needed if name not in names]
    if missing or not {"date", "x-date"} & set(names):
        raise BadSignature(f"not signed: {', '.join(missing) or 'date'}")
    _check_date(call.headers)
    if "x-content-sha256" in names:
        digest = base64.b64encode(hashlib.sha256(call.body).digest()).decode()
        if call.headers.get("x-content-sha256") != digest:
            raise BadSignature("x-content-sha256 is not the body's")


def _check_date(headers: Mapping[str, str]) -> None:
    try:
        at = parsedate_to_datetime(headers.get("x-date") or headers.get("date", ""))
    except ValueError:
        raise BadSignature("no date") from None
    if abs(datetime.now(UTC) - at.astimezone(UTC)) > MOST_SKEW:
        raise BadSignature("the date is more than five minutes off")
