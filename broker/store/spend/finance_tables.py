"""The tables of finance: budgets, spend by day, and months that are closed."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from sqlalchemy import BigInteger, Index
from sqlalchemy.orm import Mapped, mapped_column

from broker.store.columns import Identifier, Prose
from broker.store.tables import ReservationRow, Row


class BudgetRow(Row):
    """What a team may spend in each period; ``starts_at`` and ``ends_at`` of a horizon budget."""

    __tablename__ = "budgets"

    team: Mapped[str] = mapped_column(Identifier, primary_key=True)
    period: Mapped[str] = mapped_column(Identifier, primary_key=True)
    limit_micro_usd: Mapped[int] = mapped_column(BigInteger)
    thresholds: Mapped[list[Any]]
    starts_at: Mapped[datetime | None]
    ends_at: Mapped[datetime | None]
    set_by: Mapped[str]
    set_at: Mapped[datetime]


class BudgetAlertRow(Row):
    """A threshold that was told in one period of a budget; the primary key is the claim to tell it."""

    __tablename__ = "budget_alerts"

    team: Mapped[str] = mapped_column(Identifier, primary_key=True)
    period: Mapped[str] = mapped_column(Identifier, primary_key=True)
    starts_at: Mapped[datetime] = mapped_column(primary_key=True)
    percent: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    basis: Mapped[str] = mapped_column(Identifier, primary_key=True)


class SpendDayRow(Row):
    """Settled bills summed by day and words; ``cell`` is a hash of the words."""

    __tablename__ = "spend_days"
    __table_args__ = (Index(None, "team", "day"),)

    day: Mapped[date] = mapped_column(primary_key=True)
    cell: Mapped[str] = mapped_column(Identifier, primary_key=True)
    team: Mapped[str] = mapped_column(Identifier)
    workload: Mapped[str] = mapped_column(Identifier)
    kind: Mapped[str] = mapped_column(Identifier)
    provider: Mapped[str] = mapped_column(Identifier)
    sku: Mapped[str] = mapped_column(Identifier)
    tier: Mapped[str] = mapped_column(Identifier)
    offer_id: Mapped[str] = mapped_column(Identifier)
    gpu: Mapped[str] = mapped_column(Identifier)
    region: Mapped[str] = mapped_column(Identifier)
    correction: Mapped[bool]
    cents: Mapped[int] = mapped_column(BigInteger)
    cash_cents: Mapped[int] = mapped_column(BigInteger)
    gpu_seconds: Mapped[int] = mapped_column(BigInteger)
    idle_gpu_seconds: Mapped[int] = mapped_column(BigInteger)
    idle_cents: Mapped[int] = mapped_column(BigInteger)


class SpendBillRow(Row):
    """What of a bill (a plan, or a reservation without one) is in ``spend_days``."""

    __tablename__ = "spend_bills"

    bill_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    team: Mapped[str] = mapped_column(Identifier)
    cells: Mapped[list[Any]]


class ClosedMonthRow(Row):
    """A month that reports no longer change for (its first day), and its money when it was closed."""

    __tablename__ = "closed_months"

    month: Mapped[date] = mapped_column(primary_key=True)
    closed_at: Mapped[datetime]
    closed_by: Mapped[str]
    comment: Mapped[str] = mapped_column(Prose)
    cents: Mapped[int] = mapped_column(BigInteger)
    rows: Mapped[int] = mapped_column(BigInteger)


class ClosedRowsRow(Row):
    """FOCUS rows of a closed month, of one team, packed."""

    __tablename__ = "closed_rows"

    month: Mapped[date] = mapped_column(primary_key=True)
    ordinal: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    team: Mapped[str] = mapped_column(Identifier)
    content: Mapped[bytes]


class ClosedCostRow(Row):
    """What a reservation's FOCUS rows of a closed month sum to."""

    __tablename__ = "closed_costs"
    owner = ("reservation_id", ReservationRow)

    month: Mapped[date] = mapped_column(primary_key=True)
    reservation_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    billed_cents: Mapped[int] = mapped_column(BigInteger)
    effective_cents: Mapped[int] = mapped_column(BigInteger)


class ExportRow(Row):
    """A file of spend that somebody asked for; ``content`` once it is written."""

    __tablename__ = "exports"

    export_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    team: Mapped[str] = mapped_column(Identifier)
    file_name: Mapped[str]
    media_type: Mapped[str]
    started_at: Mapped[datetime]
    state: Mapped[str]
    manifest: Mapped[str | None] = mapped_column(Prose)
    problem: Mapped[str | None] = mapped_column(Prose)
    content: Mapped[bytes | None]
