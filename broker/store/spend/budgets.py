"""Stored budgets, and the alerts that were sent for them."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, delete, select

from broker.domain.basics.errors import NotFound
from broker.domain.basics.money import from_micro_usd, to_cents, to_micro_usd
from broker.domain.basics.window import Window
from broker.domain.spend.budgets import Budget, BudgetAlert, BudgetPeriod
from broker.store.spend.finance_tables import BudgetAlertRow, BudgetRow
from broker.store.tables import Row
from broker.store.team_session import TeamSession
from broker.store.writes import Values, change, column_of, insert_or_keep, upsert_one


class SqlBudgetRepository:
    """Budgets, and the alerts that were sent."""

    def __init__(self, session: TeamSession) -> None:
        self._session = session

    async def put(self, budget: Budget) -> None:
        """Stores a budget; replaces that of the same team and period."""
        await upsert_one(self._session, BudgetRow, _values(budget))

    async def find(self, team: str, period: BudgetPeriod) -> Budget:
        """One budget. Raises NotFound."""
        row = await self._session.find_row(BudgetRow, team=team, period=period.value)
        if row is None:
            raise NotFound("budget", f"{team}/{period}")
        return _budget(row)

    async def find_all(self) -> tuple[Budget, ...]:
        """Budgets of all teams in scope, by team and period."""
        statement = select(BudgetRow).order_by(BudgetRow.team, BudgetRow.period)
        rows = await self._session.scalars(statement.execution_options(populate_existing=True))
        return tuple(_budget(row) for row in rows)

    async def remove(self, team: str, period: BudgetPeriod) -> None:
        """Deletes a budget and its alerts."""
        for row in (BudgetAlertRow, BudgetRow):
            await change(self._session, delete(row).where(_of(row, team, period)))

    async def tell(self, alert: BudgetAlert) -> bool:
        """Stores an alert that is sent with this transaction; False if it was sent before in its period."""
        return await insert_or_keep(self._session, BudgetAlertRow, _alert_values(alert))

    async def take_back(self, alert: BudgetAlert) -> None:
        """Deletes an alert, so that it can be sent again."""
        key = and_(
            *(column_of(BudgetAlertRow, name) == value for name, value in _alert_values(alert).items())
        )
        await change(self._session, delete(BudgetAlertRow).where(key))


def _of(row: type[Row], team: str, period: BudgetPeriod) -> ColumnElement[bool]:
    return and_(column_of(row, "team") == team, column_of(row, "period") == period.value)


def _alert_values(alert: BudgetAlert) -> Values:
    return {
        "team": alert.budget.team,
        "period": alert.budget.period.value,
        "starts_at": alert.window.start,
        "percent": alert.percent,
        "basis": alert.basis.value,
    }


def _values(budget: Budget) -> Values:
    return {
        "team": budget.team,
        "period": budget.period.value,
        "limit_micro_usd": to_micro_usd(budget.limit_usd),
        "thresholds": list(budget.thresholds),
        "starts_at": None if budget.horizon is None else budget.horizon.start,
        "ends_at": None if budget.horizon is None else budget.horizon.end,
        "set_by": budget.set_by,
        "set_at": budget.set_at,
        "confidence": budget.confidence,
    }


def _budget(row: BudgetRow) -> Budget:
    span = None
    if row.starts_at is not None and row.ends_at is not None:
        span = Window(row.starts_at, row.ends_at)
    return Budget(
        team=row.team,
        period=BudgetPeriod(row.period),
        limit_usd=to_cents(from_micro_usd(row.limit_micro_usd)),
        thresholds=tuple(row.thresholds),
        horizon=span,
        set_by=row.set_by,
        set_at=row.set_at,
        confidence=row.confidence,
    )
