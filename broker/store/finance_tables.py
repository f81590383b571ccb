"""The tables of finance: budgets, and which of their thresholds were told."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy.orm import Mapped, mapped_column

from broker.store.columns import Identifier
from broker.store.tables import Row


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
