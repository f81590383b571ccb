"""Signature Version 4 of a request, as a pure function of the request, the keys and the time.

Reference: AWS General Reference, "Create a signed AWS API request". Every header given is signed,
with ``host`` and ``x-amz-date`` (and the session token) added; the body is covered by its hash.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, urlsplit

ALGORITHM = "AWS4-HMAC-SHA256"
_UNRESERVED = "-_.~"
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """An access key; ``session_token`` belongs to a temporary one."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Scope:
    """The credential scope of a signature: one service in one region, for one day."""

    region: str
    service: str = "ec2"

    def on(self, at: datetime) -> str:
        """The credential scope of the day of ``at``."""
        return f"{at:%Y%m%d}/{self.region}/{self.service}/aws4_request"


def signed_headers(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    keys: AwsKeys,
    scope: Scope,
    at: datetime,
) -> dict[str, str]:
    """``headers`` with the date, the session token and the ``Authorization`` that cover the request."""
    at = at.astimezone(UTC)
    full = {name.lower(): value for name, value in headers.items()}
    full["host"] = _host(url)
    full["x-amz-date"] = f"{at:%Y%m%dT%H%M%SZ}"
    if keys.session_token:
        full["x-amz-security-token"] = keys.session_token
    names = ";".join(sorted(full))
    to_sign = "\n".join(
        (
            ALGORITHM,
            full["x-amz-date"],
            scope.on(at),
            hashlib.sha256(canonical_request(method, url, full, body).encode()).hexdigest(),
        )
    )
    signature = hmac.new(_signing_key(keys, scope, at), to_sign.encode(), hashlib.sha256).hexdigest()
    credential = f"{keys.access_key_id}/{scope.on(at)}"
    full["authorization"] = (
        f"{ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
    )
    return full


def canonical_request(method: str, url: str, headers: Mapping[str, str], body: bytes) -> str:
    """The canonical form that is hashed; ``headers`` must have lower-case names and hold ``host``."""
    parts = urlsplit(url)
    ordered = sorted(headers)
    lines = [
        method.upper(),
        quote(_normal_path(parts.path), safe="/" + _UNRESERVED),
        _canonical_query(parts.query),
        *(f"{name}:{' '.join(headers[name].split())}" for name in ordered),
        "",
        ";".join(ordered),
        hashlib.sha256(body).hexdigest(),
    ]
    return "\n".join(lines)


def _host(url: str) -> str:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    if parts.port is None or parts.port == _DEFAULT_PORTS.get(parts.scheme):
        return host
    return f"{host}:{parts.port}"


def _normal_path(path: str) -> str:
    kept: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del kept[-1:]
        elif part not in ("", "."):
            kept.append(part)
    trailing = "/" if kept and path.endswith("/") else ""
    return "/" + "/".join(kept) + trailing


def _canonical_query(query: str) -> str:
    pairs = sorted(
        (quote(name, safe=_UNRESERVED), quote(value, safe=_UNRESERVED))
        for name, value in parse_qsl(query, keep_blank_values=True)
    )
    return "&".join(f"{name}={value}" for name, value in pairs)


def _signing_key(keys: AwsKeys, scope: Scope, at: datetime) -> bytes:
    key = f"AWS4{keys.secret_access_key}".encode()
    for part in (f"{at:%Y%m%d}", scope.region, scope.service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
