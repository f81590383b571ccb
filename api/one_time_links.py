"""Links that sign in once, within minutes: for a browser on the machine where the broker was started.

They are kept in the memory of the process that made them.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta

LINK_TIME = timedelta(minutes=10)
TOKEN_BYTES = 32


class OneTimeLinks:
    """Tokens by their hash, each with the key that it signs in with."""

    def __init__(self) -> None:
        self._links: dict[str, tuple[str, datetime]] = {}

    def make(self, key: str, now: datetime) -> str:
        """A new token that signs in with ``key`` until ``LINK_TIME`` is over."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._links[_sha256(token)] = (key, now + LINK_TIME)
        return token

    def take(self, token: str, now: datetime) -> str | None:
        """The key of ``token``, which is used up then; None for one that is unknown, used or over."""
        key, expires_at = self._links.pop(_sha256(token), (None, now))
        return key if now < expires_at else None


def _sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
