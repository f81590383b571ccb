"""Ports of finance: budgets and what was told of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from broker.domain.budgets import Budget, BudgetAlert, BudgetPeriod
from broker.domain.intervals import IntervalRules, RiskLine, Simulated
from broker.price_ports import PriceUnitOfWork


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


class SpendSimulator(Protocol):
    """Draws futures of projected money. Pure: equal seeds give equal answers."""

    def simulate(
        self,
        lines: Sequence[RiskLine],
        futures: Mapping[str, Sequence[Sequence[float]]],
        periods: Sequence[int],
        rules: IntervalRules,
        seed: int,
    ) -> Simulated:
        """Quantiles of what ``lines`` come to, in USD.

        ``futures``: by offer, prices as factors of today's after 0, 1, … days, one row a future; an offer
        without any keeps its price. ``periods``: for each day from today on the number of its period (from 0
        on), -1 for a day that is not asked for.
        """
        ...


class FinanceUnitOfWork(PriceUnitOfWork, Protocol):
    """A transaction that reaches what finance keeps, and the history of prices."""

    budgets: BudgetRepository


FinanceUnits = Callable[[], FinanceUnitOfWork]
