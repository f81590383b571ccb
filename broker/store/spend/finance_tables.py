"""The tables of finance: budgets, spend by day, closed months and exports."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from sqlalchemy import BigInteger, Index
from sqlalchemy.orm import Mapped, mapped_column

from broker.store.columns import Identifier, Prose
from broker.store.tables import EVERY_WRITE, ReservationRow, Row


class BudgetRow(Row):
    """A team's budget per period. Only a horizon budget has ``starts_at`` and ``ends_at``."""

    __tablename__ = "budgets"
    decisions_may = EVERY_WRITE

    team: Mapped[str] = mapped_column(Identifier, primary_key=True)
    period: Mapped[str] = mapped_column(Identifier, primary_key=True)
    limit_micro_usd: Mapped[int] = mapped_column(BigInteger)
    thresholds: Mapped[list[Any]]
    starts_at: Mapped[datetime | None]
    ends_at: Mapped[datetime | None]
    set_by: Mapped[str]
    set_at: Mapped[datetime]
    confidence: Mapped[float | None]


class BudgetAlertRow(Row):
    """An alert that was sent in one period of a budget. The primary key prevents sending it twice."""

    __tablename__ = "budget_alerts"
    decisions_may = EVERY_WRITE

    team: Mapped[str] = mapped_column(Identifier, primary_key=True)
    period: Mapped[str] = mapped_column(Identifier, primary_key=True)
    starts_at: Mapped[datetime] = mapped_column(primary_key=True)
    percent: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    basis: Mapped[str] = mapped_column(Identifier, primary_key=True)


class SpendDayRow(Row):
    """Settled bills summed by day and cell key; ``cell`` is a hash of the key."""

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
    """The part of ``spend_days`` that comes from one bill (a plan, or a reservation without one)."""

    __tablename__ = "spend_bills"

    bill_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    team: Mapped[str] = mapped_column(Identifier)
    cells: Mapped[list[Any]]


class ClosedMonthRow(Row):
    """A closed month (its first day), and its amounts when it was closed."""

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
    """Sums of a reservation's FOCUS rows of a closed month."""

    __tablename__ = "closed_costs"
    owner = ("reservation_id", ReservationRow)

    month: Mapped[date] = mapped_column(primary_key=True)
    reservation_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    billed_cents: Mapped[int] = mapped_column(BigInteger)
    effective_cents: Mapped[int] = mapped_column(BigInteger)


class ClosedWorkRow(Row):
    """What a workload of a plan did on a day of a closed month (``unit_costs.DayWork``)."""

    __tablename__ = "closed_work"

    day: Mapped[date] = mapped_column(primary_key=True)
    plan_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    workload: Mapped[str] = mapped_column(Identifier, primary_key=True)
    month: Mapped[date] = mapped_column(index=True)
    team: Mapped[str] = mapped_column(Identifier)
    kind: Mapped[str | None]
    cents: Mapped[int] = mapped_column(BigInteger)
    used_gpu_seconds: Mapped[int] = mapped_column(BigInteger)
    planned_gpu_seconds: Mapped[int] = mapped_column(BigInteger)
    tokens: Mapped[float | None]
    is_used: Mapped[bool]


class ExportRow(Row):
    """A spend export; ``content`` is its file once it is written."""

    __tablename__ = "exports"
    decisions_may = EVERY_WRITE

    export_id: Mapped[str] = mapped_column(Identifier, primary_key=True)
    team: Mapped[str] = mapped_column(Identifier)
    file_name: Mapped[str]
    media_type: Mapped[str]
    started_at: Mapped[datetime]
    state: Mapped[str]
    manifest: Mapped[str | None] = mapped_column(Prose)
    problem: Mapped[str | None] = mapped_column(Prose)
    content: Mapped[bytes | None]
