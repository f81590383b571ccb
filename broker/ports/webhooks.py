"""Ports of webhooks: their store, and the outside that is told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from broker.domain.basics.access import TeamScope
from broker.domain.basics.page import Page
from broker.domain.basics.webhook import Delivery, MoneyChange, OutboxEvent, SendOutcome, Webhook
from broker.ports.unit_of_work import UnitOfWork


class WebhookRepository(Protocol):
    """Webhooks, the outbox, and deliveries."""

    async def add(self, webhook: Webhook) -> None:
        """Stores a new one."""
        ...

    async def find(self, webhook_id: str) -> Webhook:
        """One; NotFound."""
        ...

    async def find_page(self, limit: int, cursor: str | None) -> Page[Webhook]:
        """Newest first."""
        ...

    async def remove(self, webhook_id: str) -> None:
        """Forgets one, with what was to be sent to it."""
        ...

    async def disable(self, webhook: Webhook) -> None:
        """Stores ``disabled_at``."""
        ...

    async def find_of_team(self, team: str) -> tuple[Webhook, ...]:
        """Those that are told of a team's events."""
        ...

    async def take_events(self, limit: int) -> tuple[OutboxEvent, ...]:
        """The oldest events of the outbox, which leave it with this transaction."""
        ...

    async def last_expected(self, object_id: str) -> MoneyChange | None:
        """The money that was last told of an object."""
        ...

    async def put_expected(self, object_id: str, money: MoneyChange) -> None:
        """Remembers the money that is told of an object."""
        ...

    async def add_deliveries(self, deliveries: list[Delivery]) -> None:
        """Stores what is to be sent."""
        ...

    async def claim_due(self, now: datetime, until: datetime, limit: int, each: int) -> tuple[Delivery, ...]:
        """Pending deliveries that are due, at most ``each`` of every webhook, the oldest.

        They are put off to ``until``, so that nobody else sends them meanwhile.
        """
        ...

    async def put_off(self, webhook_id: str, until: datetime) -> None:
        """Lets all that is still to be sent to a webhook wait until ``until`` at least."""
        ...

    async def finish(self, delivery: Delivery) -> None:
        """Stores what came of a try."""
        ...

    async def find_deliveries(self, webhook_id: str, limit: int) -> tuple[Delivery, ...]:
        """The newest ones of a webhook."""
        ...


class WebhookUnitOfWork(UnitOfWork, Protocol):
    """A transaction that reaches webhooks too; every audit entry of any transaction enters the outbox."""

    webhooks: WebhookRepository


WebhookUnits = Callable[[TeamScope], WebhookUnitOfWork]


class WebhookSender(Protocol):
    """The outside."""

    async def require_allowed(self, url: str) -> None:
        """InputError where the address is none of a public HTTPS server."""
        ...

    async def send(self, url: str, headers: dict[str, str], body: str) -> SendOutcome:
        """Posts, unless the address is not allowed any more; never raises for what the outside does."""
        ...
