"""Webhooks: addresses, events, signatures and retries.

Form and signature follow Standard Webhooks 1.0 (standardwebhooks.com). Delivery is at least once;
``webhook-id`` is the same for all attempts at one event.
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
    "ssh_key",
    "lease",
    "network",
    "offer",
    "person",
    "plan",
    "provider",
    "reoptimization",
    "reservation",
    "spend",
    "webhook",
)
"""The part of an event's name before the dot."""
TRIES_AFTER = tuple(
    timedelta(seconds=seconds) for seconds in (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
)
"""Waits before the second attempt and each later one. After the last attempt the event is given up."""


TEST = "webhook.test"
"""The event of a test, which goes to the tested webhook alone, whatever its patterns are."""


class WebhookFormat(StrEnum):
    """Form of a webhook's messages: this product's JSON, or what the incoming webhooks of a chat take."""

    JSON = "json"
    SLACK = "slack"
    MATTERMOST = "mattermost"
    TEAMS = "teams"


def can_match(pattern: str) -> bool:
    """Whether ``pattern`` can match the name of any event."""
    head = pattern.split(".", 1)[0]
    return any(fnmatchcase(family, head) for family in FAMILIES)


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook of a team. An administrator's webhook has the team ALL_TEAMS.

    ``events`` are name patterns such as ``plan.*``. ``disabled_at`` is when the address answered 410 (gone).
    """

    webhook_id: str
    team: str
    url: str
    events: tuple[str, ...]
    secret: str
    created_at: datetime
    created_by: str
    disabled_at: datetime | None = None
    format: WebhookFormat = WebhookFormat.JSON

    def wants(self, event: OutboxEvent) -> bool:
        """Whether to send ``event``: its name matches, and the webhook existed and was not disabled.

        A test names the webhook, which therefore existed, even if the clock of the process that stored the
        test is behind the clock of the process that made the webhook.
        """
        if self.disabled_at is not None:
            return False
        if event.event == TEST:
            return event.object_id == self.webhook_id
        return event.at >= self.created_at and any(fnmatchcase(event.event, one) for one in self.events)


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """One change of an object, stored in the same transaction as the change. ``event_id`` increases."""

    event_id: int
    at: datetime
    event: str
    team: str
    object_kind: str
    object_id: str
    actor: str
    detail: str


class DeliveryState(StrEnum):
    """State of the delivery of one event to one webhook."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Delivery:
    """The delivery of one event to one webhook: the text to sign and send, and when to try next."""

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
    """The expected total cost of an object before and after a change.

    ``owed_usd`` is the cost that has accrued so far.
    """

    before_usd: Decimal | None
    after_usd: Decimal
    owed_usd: Decimal

    @property
    def change_usd(self) -> Decimal:
        """``after_usd`` minus ``before_usd``; a missing ``before_usd`` counts as zero."""
        return self.after_usd - (self.before_usd or Decimal(0))


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """The result of one attempt: the HTTP status (None without an answer), and the error (empty if none)."""

    status: int | None
    error: str


def make_secret(entropy: bytes) -> str:
    """The text form of a signing secret. ``entropy`` is SECRET_BYTES random bytes."""
    return SECRET_PREFIX + base64.b64encode(entropy).decode()


def sign(secret: str, message_id: str, at: datetime, body: str) -> dict[str, str]:
    """The three headers of a message: id, seconds since 1970, and ``v1,`` HMAC-SHA256 in base64."""
    seconds = str(int(at.timestamp()))
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = f"{message_id}.{seconds}.{body}".encode()
    digest = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {"webhook-id": message_id, "webhook-timestamp": seconds, "webhook-signature": f"v1,{digest}"}


def next_try(attempts: int, now: datetime) -> datetime | None:
    """When to try again after ``attempts`` failures; None if the delivery is given up."""
    return now + TRIES_AFTER[attempts - 1] if attempts <= len(TRIES_AFTER) else None
