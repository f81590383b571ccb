"""Ports of webhooks: their store, and the sender."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from broker.domain.basics.access import TeamScope
from broker.domain.basics.account import AuditEntry
from broker.domain.basics.page import Page
from broker.domain.basics.webhook import Delivery, MoneyChange, OutboxEvent, SendOutcome, Webhook
from broker.ports.unit_of_work import UnitOfWork


class WebhookRepository(Protocol):
    """Webhooks, the outbox, and deliveries."""

    async def add(self, webhook: Webhook) -> None:
        """Stores a new webhook."""
        ...

    async def find(self, webhook_id: str) -> Webhook:
        """One webhook. Raises NotFound."""
        ...

    async def find_page(self, limit: int, cursor: str | None) -> Page[Webhook]:
        """Newest first."""
        ...

    async def remove(self, webhook_id: str) -> None:
        """Deletes a webhook and its pending deliveries."""
        ...

    async def disable(self, webhook: Webhook) -> None:
        """Stores ``disabled_at``."""
        ...

    async def find_of_team(self, team: str) -> tuple[Webhook, ...]:
        """Webhooks that get the events of ``team``."""
        ...

    async def add_event(self, entry: AuditEntry) -> int:
        """Appends an event to the outbox that is no entry of the audit trail; its ``event_id``."""
        ...

    async def take_events(self, limit: int) -> tuple[OutboxEvent, ...]:
        """The oldest events of the outbox; this transaction removes them from it."""
        ...

    async def last_expected(self, object_id: str) -> MoneyChange | None:
        """The expected cost of an object that was sent last; None if none was sent."""
        ...

    async def put_expected(self, object_id: str, money: MoneyChange) -> None:
        """Stores the expected cost of an object that is sent now."""
        ...

    async def add_deliveries(self, deliveries: list[Delivery]) -> None:
        """Stores new deliveries."""
        ...

    async def claim_due(self, now: datetime, until: datetime, limit: int, each: int) -> tuple[Delivery, ...]:
        """The oldest pending deliveries that are due, at most ``each`` per webhook.

        They are postponed to ``until``, so that no other process sends them meanwhile.
        """
        ...

    async def put_off(self, webhook_id: str, until: datetime) -> None:
        """Postpones all pending deliveries to a webhook to at least ``until``."""
        ...

    async def finish(self, delivery: Delivery) -> None:
        """Stores the result of an attempt."""
        ...

    async def find_deliveries(self, webhook_id: str, limit: int) -> tuple[Delivery, ...]:
        """The newest deliveries of a webhook."""
        ...


class WebhookUnitOfWork(UnitOfWork, Protocol):
    """A unit of work with the repository of webhooks.

    Every audit entry of any unit of work enters the outbox.
    """

    webhooks: WebhookRepository


WebhookUnits = Callable[[TeamScope], WebhookUnitOfWork]


class WebhookSender(Protocol):
    """Sends HTTP requests to webhooks."""

    async def require_allowed(self, url: str) -> None:
        """Raises InputError unless ``url`` is an address of a public HTTPS server."""
        ...

    async def send(self, url: str, headers: dict[str, str], body: str) -> SendOutcome:
        """Posts ``body``, if the address is still allowed. Failures of the receiver are in the result."""
        ...
