"""The tables of webhooks: addresses, the outbox of events, deliveries, and the last amounts sent."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Index
from sqlalchemy.orm import Mapped, mapped_column

from broker.domain.basics.account import AuditEntry
from broker.store.columns import Identifier, Prose, Serial
from broker.store.tables import INSERT, Row


class WebhookRow(Row):
    """An address of a team."""

    __tablename__ = "webhooks"
    __table_args__ = (Index(None, "created_at", "webhook_id"),)

    webhook_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    team: Mapped[str] = mapped_column(Identifier, index=True)
    url: Mapped[str] = mapped_column(Prose)
    events: Mapped[list[Any]]
    secret: Mapped[str]
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    disabled_at: Mapped[datetime | None]
    format: Mapped[str] = mapped_column(server_default="json")


class OutboxRow(Row):
    """An event of the outbox: written with its change, and deleted when its deliveries are stored."""

    __tablename__ = "outbox"
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012  read once by SQLAlchemy
    decisions_may = frozenset({INSERT})

    event_id: Mapped[int] = mapped_column(Serial, primary_key=True)
    at: Mapped[datetime]
    event: Mapped[str]
    team: Mapped[str] = mapped_column(Identifier)
    object_kind: Mapped[str]
    object_id: Mapped[str] = mapped_column(Identifier)
    actor: Mapped[str]
    detail: Mapped[str] = mapped_column(Prose)


def outbox_values(entry: AuditEntry) -> dict[str, Any]:
    """The event of an entry of the audit trail."""
    return {
        "at": entry.at,
        "event": entry.action,
        "team": entry.team,
        "object_kind": entry.object_kind,
        "object_id": entry.object_id,
        "actor": entry.actor,
        "detail": entry.detail,
    }


class DeliveryRow(Row):
    """One event for one webhook."""

    __tablename__ = "deliveries"
    owner = ("webhook_id", WebhookRow)
    __table_args__ = (Index(None, "state", "next_at"), Index(None, "webhook_id", "event_id"))

    event_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    webhook_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    message_id: Mapped[str] = mapped_column(Identifier)
    body: Mapped[str] = mapped_column(Prose)
    state: Mapped[str]
    attempts: Mapped[int]
    next_at: Mapped[datetime]
    error: Mapped[str] = mapped_column(Prose)


class ToldMoneyRow(Row):
    """The cost of an object in the last event about it."""

    __tablename__ = "told_money"
    is_the_installations = True

    object_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    expected_micro_usd: Mapped[int] = mapped_column(BigInteger)
    owed_micro_usd: Mapped[int] = mapped_column(BigInteger)
