"""Crusoe's signature of a call, version 1.0.

HMAC-SHA256 with the decoded secret over path (with the API's version), sorted query, method and timestamp,
each with a line end; base64url without padding.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import urlencode

SIGNATURE_VERSION = "1.0"


def signed_headers(
    access_key: str,
    secret_key: str,
    method: str,
    path: str,
    at: datetime,
    query: Mapping[str, str] | None = None,
) -> Mapping[str, str]:
    """Headers of a call. ValueError when the secret is no base64url."""
    timestamp = at.astimezone(UTC).replace(microsecond=0).isoformat()
    sent = urlencode(sorted((query or {}).items()))
    signature = sign(secret_key, f"{path}\n{sent}\n{method}\n{timestamp}\n")
    return {
        "X-Crusoe-Timestamp": timestamp,
        "Authorization": f"Bearer {SIGNATURE_VERSION}:{access_key}:{signature}",
    }


def sign(secret_key: str, text: str) -> str:
    """The signature of ``text``."""
    try:
        secret = base64.urlsafe_b64decode(secret_key + "=" * (-len(secret_key) % 4))
    except binascii.Error:
        raise ValueError("the secret key is not base64url") from None
    digest = hmac.new(secret, text.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
