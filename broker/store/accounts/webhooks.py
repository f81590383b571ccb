"""Stored webhooks, the outbox of events, and deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, select

from broker.domain.basics.account import AuditEntry
from broker.domain.basics.errors import NotFound
from broker.domain.basics.money import from_micro_usd, to_micro_usd
from broker.domain.basics.page import Page
from broker.domain.basics.webhook import (
    ALL_TEAMS,
    Delivery,
    DeliveryState,
    MoneyChange,
    OutboxEvent,
    Webhook,
    WebhookFormat,
)
from broker.store.accounts.sealing import Seal
from broker.store.accounts.webhook_tables import (
    DeliveryRow,
    OutboxRow,
    ToldMoneyRow,
    WebhookRow,
    outbox_values,
)
from broker.store.columns import row_as
from broker.store.pages import fetch_page
from broker.store.team_session import TeamSession
from broker.store.writes import (
    change,
    insert_new,
    insert_numbered,
    insert_or_keep,
    update_one,
    upsert_many,
)

_NEWEST_FIRST = (WebhookRow.created_at, WebhookRow.webhook_id)


class SqlWebhookRepository:
    """Webhooks, the outbox, and deliveries."""

    def __init__(self, session: TeamSession, seal: Seal) -> None:
        self._session = session
        self._seal = seal

    async def add(self, webhook: Webhook) -> None:
        """Stores a new webhook. Raises Conflict if its id is taken."""
        values = {
            "webhook_id": webhook.webhook_id,
            "team": webhook.team,
            "url": webhook.url,
            "events": list(webhook.events),
            "secret": self._seal.close(webhook.secret),
            "created_at": webhook.created_at,
            "created_by": webhook.created_by,
            "disabled_at": webhook.disabled_at,
            "format": webhook.format.value,
        }
        await insert_new(self._session, WebhookRow, values, f"webhook {webhook.webhook_id}")

    async def find(self, webhook_id: str) -> Webhook:
        """One webhook. Raises NotFound."""
        row = await self._session.find_row(WebhookRow, webhook_id=webhook_id)
        if row is None:
            raise NotFound("webhook", webhook_id)
        return self._webhook(row)

    async def find_page(self, limit: int, cursor: str | None) -> Page[Webhook]:
        """Newest first."""
        return await fetch_page(
            self._session, select(WebhookRow), _NEWEST_FIRST, limit, cursor, self._webhook
        )

    def _webhook(self, row: WebhookRow) -> Webhook:
        return Webhook(
            webhook_id=row.webhook_id,
            team=row.team,
            url=row.url,
            events=tuple(row.events),
            secret=self._seal.open(row.secret),
            created_at=row.created_at,
            created_by=row.created_by,
            disabled_at=row.disabled_at,
            format=WebhookFormat(row.format),
        )

    async def remove(self, webhook_id: str) -> None:
        """Deletes a webhook and its deliveries."""
        await change(self._session, delete(DeliveryRow).where(DeliveryRow.webhook_id == webhook_id))
        await change(self._session, delete(WebhookRow).where(WebhookRow.webhook_id == webhook_id))

    async def disable(self, webhook: Webhook) -> None:
        """Stores ``disabled_at``."""
        mine = WebhookRow.webhook_id == webhook.webhook_id
        await update_one(self._session, WebhookRow, mine, {"disabled_at": webhook.disabled_at})

    async def find_of_team(self, team: str) -> tuple[Webhook, ...]:
        """Webhooks that get a team's events, including those of administrators, oldest first."""
        told = WebhookRow.team.in_((team, ALL_TEAMS))
        chosen = select(WebhookRow).where(told).order_by(WebhookRow.webhook_id)
        return tuple(self._webhook(row) for row in await self._session.scalars(chosen))

    async def add_event(self, entry: AuditEntry) -> int:
        """Appends an event to the outbox that is no entry of the audit trail; its ``event_id``.

        NotPermitted for a scope that only decides.
        """
        self._session.scope.require_writing()
        return await insert_numbered(self._session, OutboxRow, outbox_values(entry), "event_id")

    async def take_events(self, limit: int) -> tuple[OutboxEvent, ...]:
        """Removes the oldest events from the outbox and returns them.

        They are locked, so that a second process that does the same waits, without a deadlock.
        """
        oldest = select(OutboxRow).order_by(OutboxRow.event_id).limit(limit).with_for_update()
        rows = await self._session.scalars(oldest)
        events = tuple(row_as(OutboxEvent, row) for row in rows)
        taken = [event.event_id for event in events]
        await change(self._session, delete(OutboxRow).where(OutboxRow.event_id.in_(taken)))
        return events

    async def last_expected(self, object_id: str) -> MoneyChange | None:
        """The expected cost of an object that was sent last; None if none was sent."""
        row = await self._session.find_row(ToldMoneyRow, object_id=object_id)
        if row is None:
            return None
        owed, expected = from_micro_usd(row.owed_micro_usd), from_micro_usd(row.expected_micro_usd)
        return MoneyChange(None, expected, owed)

    async def put_expected(self, object_id: str, money: MoneyChange) -> None:
        """Stores the expected cost of an object that is sent now."""
        values = {
            "object_id": object_id,
            "expected_micro_usd": to_micro_usd(money.after_usd),
            "owed_micro_usd": to_micro_usd(money.owed_usd),
        }
        await upsert_many(self._session, ToldMoneyRow, [values])

    async def add_deliveries(self, deliveries: list[Delivery]) -> None:
        """Stores deliveries; those that another process stored already do not change."""
        for one in deliveries:
            values = {
                "event_id": one.event_id,
                "webhook_id": one.webhook_id,
                "message_id": one.message_id,
                "body": one.body,
                "state": one.state.value,
                "attempts": one.attempts,
                "next_at": one.next_at,
                "error": one.error,
            }
            await insert_or_keep(self._session, DeliveryRow, values)

    async def claim_due(self, now: datetime, until: datetime, limit: int, each: int) -> tuple[Delivery, ...]:
        """Claims due deliveries by postponing them to ``until``; concurrent claims get different ones.

        It takes at most ``each`` per webhook, oldest first, so that none uses all of ``limit``.
        """
        place = func.row_number().over(partition_by=DeliveryRow.webhook_id, order_by=DeliveryRow.event_id)
        waiting = (
            select(DeliveryRow.event_id, DeliveryRow.webhook_id, place.label("place"))
            .where(DeliveryRow.state == DeliveryState.PENDING.value, DeliveryRow.next_at <= now)
            .subquery()
        )
        is_waiting = and_(
            DeliveryRow.event_id == waiting.c.event_id, DeliveryRow.webhook_id == waiting.c.webhook_id
        )
        due = (
            select(DeliveryRow)
            .join(waiting, is_waiting)
            .where(waiting.c.place <= each)
            .order_by(waiting.c.place, DeliveryRow.event_id)
            .limit(limit)
            .execution_options(populate_existing=True)
        )
        claimed = []
        for one in [_delivery(row) for row in await self._session.scalars(due)]:
            same = DeliveryRow.next_at == one.next_at, DeliveryRow.state == one.state.value
            if await update_one(self._session, DeliveryRow, and_(_key(one), *same), {"next_at": until}):
                claimed.append(one)
        return tuple(claimed)

    async def finish(self, delivery: Delivery) -> None:
        """Stores the result of an attempt."""
        values: dict[str, Any] = {
            "state": delivery.state.value,
            "attempts": delivery.attempts,
            "next_at": delivery.next_at,
            "error": delivery.error,
        }
        await update_one(self._session, DeliveryRow, _key(delivery), values)

    async def put_off(self, webhook_id: str, until: datetime) -> None:
        """Postpones all pending deliveries to a webhook to ``until`` at least."""
        waits = and_(
            DeliveryRow.webhook_id == webhook_id,
            DeliveryRow.state == DeliveryState.PENDING.value,
            DeliveryRow.next_at < until,
        )
        await update_one(self._session, DeliveryRow, waits, {"next_at": until})

    async def find_deliveries(self, webhook_id: str, limit: int) -> tuple[Delivery, ...]:
        """The newest deliveries to a webhook."""
        newest = (
            select(DeliveryRow)
            .where(DeliveryRow.webhook_id == webhook_id)
            .order_by(DeliveryRow.event_id.desc())
            .limit(limit)
        )
        return tuple(_delivery(row) for row in await self._session.scalars(newest))


def _key(delivery: Delivery) -> ColumnElement[bool]:
    row = DeliveryRow
    return and_(row.event_id == delivery.event_id, row.webhook_id == delivery.webhook_id)


def _delivery(row: DeliveryRow) -> Delivery:
    return Delivery(
        event_id=row.event_id,
        webhook_id=row.webhook_id,
        message_id=row.message_id,
        body=row.body,
        state=DeliveryState(row.state),
        attempts=row.attempts,
        next_at=row.next_at,
        error=row.error,
    )
