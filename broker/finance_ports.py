"""Ports of finance: budgets and what was told of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.domain.budgets import Budget, BudgetAlert, BudgetPeriod
from broker.ports import UnitOfWork


class BudgetRepository(Protocol):
    """Budgets, and which of their thresholds were told."""

    async def put(self, budget: Budget) -> None:
        """Stores one, over the one of the same team and period."""
        ...

    async def find(self, team: str, period: BudgetPeriod) -> Budget:
        """One; NotFound."""
        ...

    async def find_all(self, team: str | None) -> tuple[Budget, ...]:
        """Those of ``team`` (None: all), by team and period."""
        ...

    async def remove(self, team: str, period: BudgetPeriod) -> None:
        """Forgets one, with what was told of it."""
        ...

    async def tell(self, alert: BudgetAlert) -> bool:
        """Notes that an alert is told, in this transaction; False where it was told before in its period."""
        ...

    async def take_back(self, alert: BudgetAlert) -> None:
        """Forgets that an alert was told, so that it may be once more."""
        ...


class FinanceUnitOfWork(UnitOfWork, Protocol):
    """A transaction that reaches what finance keeps."""

    budgets: BudgetRepository


FinanceUnits = Callable[[], FinanceUnitOfWork]
