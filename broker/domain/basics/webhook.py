"""Webhooks: where a team wants to be told, what is told, and how it is signed and tried again.

Form and signature: Standard Webhooks 1.0 (standardwebhooks.com). Delivery is at least once; ``webhook-id``
stays the same over all tries of an event.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from fnmatch import fnmatchcase

SECRET_PREFIX = "whsec_"  # noqa: S105  a marker, not a secret
SECRET_BYTES = 32
EVERYTHING = ("*",)
ALL_TEAMS = "*"
FAMILIES = (
    "budget",
    "key",
    "lease",
    "offer",
    "plan",
    "provider",
    "reoptimization",
    "reservation",
    "spend",
    "webhook",
)
"""What stands before the dot in the name of an event."""
TRIES_AFTER = tuple(
    timedelta(seconds=seconds) for seconds in (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
)
"""Waits before the second try and later ones; after the last the event is given up."""


def can_match(pattern: str) -> bool:
    """Whether some event may have a name of this pattern."""
    head = pattern.split(".", 1)[0]
    return any(fnmatchcase(family, head) for family in FAMILIES)


@dataclass(frozen=True, slots=True)
class Webhook:
    """An address of a team (an administrator's: of ALL_TEAMS).

    ``events``: patterns such as ``plan.*``. ``disabled_at``: it answered 410.
    """

    webhook_id: str
    team: str
    url: str
    events: tuple[str, ...]
    secret: str
    created_at: datetime
    created_by: str
    disabled_at: datetime | None = None

    def wants(self, event: OutboxEvent) -> bool:
        """Whether an event is to be sent: of a name that was asked for, and not of before."""
        if self.disabled_at is not None or event.at < self.created_at:
            return False
        return any(fnmatchcase(event.event, pattern) for pattern in self.events)


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """One change, stored with it. ``event_id`` counts up."""

    event_id: int
    at: datetime
    event: str
    team: str
    object_kind: str
    object_id: str
    actor: str
    detail: str


class DeliveryState(StrEnum):
    """Where the sending of one event to one webhook stands."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event for one webhook: the text that is signed and sent, and when it is tried next."""

    event_id: int
    webhook_id: str
    message_id: str
    body: str
    state: DeliveryState
    attempts: int
    next_at: datetime
    error: str = ""


@dataclass(frozen=True, slots=True)
class MoneyChange:
    """What an object is expected to cost altogether, before and after; ``owed_usd``: of it, so far."""

    before_usd: Decimal | None
    after_usd: Decimal
    owed_usd: Decimal

    @property
    def change_usd(self) -> Decimal:
        """After less before; all of it where there was nothing before."""
        return self.after_usd - (self.before_usd or Decimal(0))


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """What came of a try: the status (None: no answer), and what is wrong with it (empty: nothing)."""

    status: int | None
    error: str


def make_secret(entropy: bytes) -> str:
    """A signing secret of SECRET_BYTES random bytes."""
    return SECRET_PREFIX + base64.b64encode(entropy).decode()


def sign(secret: str, message_id: str, at: datetime, body: str) -> dict[str, str]:
    """The three headers of a message: id, seconds since 1970, and ``v1,`` HMAC-SHA256 in base64."""
    seconds = str(int(at.timestamp()))
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = f"{message_id}.{seconds}.{body}".encode()
    digest = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {"webhook-id": message_id, "webhook-timestamp": seconds, "webhook-signature": f"v1,{digest}"}


def next_try(attempts: int, now: datetime) -> datetime | None:
    """When to try again after ``attempts`` failures; None: given up."""
    return now + TRIES_AFTER[attempts - 1] if attempts <= len(TRIES_AFTER) else None
