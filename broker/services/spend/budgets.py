"""Budgets: their limits, their status against actual and projected spend, and alerts at thresholds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime

from broker.domain.basics.access import EVERY_TEAM, require_scope, scope_of
from broker.domain.basics.account import AuditEntry, Caller, Scope
from broker.domain.basics.money import usd_words
from broker.domain.basics.webhook import ALL_TEAMS
from broker.domain.spend.budgets import (
    WHOLE,
    Budget,
    BudgetAlert,
    BudgetPeriod,
    BudgetStatus,
    Reach,
    alerts,
    budget_outlook,
    require_valid,
)
from broker.domain.spend.month_close import month_window
from broker.domain.spend.spend import Charge, ChargeBasis
from broker.ports.unit_of_work import Clock, UnitOfWorkFactory
from broker.services.spend.budget_gate import find_budget_charges
from broker.services.spend.summaries import Summaries, is_whole_days

ACTOR = "budgets"


class BudgetsService:
    """Use cases of budgets."""

    def __init__(self, units: UnitOfWorkFactory, clock: Clock, summaries: Summaries | None = None) -> None:
        self._units = units
        self._clock = clock
        self._summaries = summaries or Summaries(units, clock)

    async def put(self, caller: Caller, budget: Budget) -> BudgetStatus:
        """Sets a budget; replaces that of the same team and period.

        Thresholds that were alerted are not alerted again, unless spend is below them under the new limit.
        Raises InputError, and NotFound for a team that the caller does not see.
        """
        require_scope(caller, Scope.SPEND_APPROVE)
        now = self._clock.now()
        require_valid(budget)
        scope_of(caller).require(budget.team)
        found = (await self._statuses((budget,), now))[0]
        async with self._units(scope_of(caller)) as uow:
            await uow.budgets.put(budget)
            past = {(one.window, one.percent, one.basis) for one in alerts(found)}
            for alert in _every_alert(found):
                if (alert.window, alert.percent, alert.basis) not in past:
                    await uow.budgets.take_back(alert)
            detail = (
                f"{usd_words(budget.limit_usd)} per {budget.period}, "
                f"alerts at {', '.join(map(str, budget.thresholds))} %"
            )
            await uow.accounts.add_audit(_entry(budget, now, caller.key_id, "budget.set", detail))
            await uow.commit()
        return found

    async def remove(self, caller: Caller, team: str, period: BudgetPeriod) -> None:
        """Removes a budget. Raises NotFound."""
        require_scope(caller, Scope.SPEND_APPROVE)
        async with self._units(scope_of(caller)) as uow:
            budget = await uow.budgets.find(team, period)
            await uow.budgets.remove(team, period)
            detail = f"was {usd_words(budget.limit_usd)} per {period}"
            entry = _entry(budget, self._clock.now(), caller.key_id, "budget.delete", detail)
            await uow.accounts.add_audit(entry)
            await uow.commit()

    async def find_statuses(
        self, caller: Caller, team: str | None = None, month: date | None = None
    ) -> tuple[BudgetStatus, ...]:
        """The status of every budget that the caller sees, now or in the period that contains ``month``.

        A budget with a span of its own is left out where ``month`` does not touch it. The limits are those of
        now.
        """
        require_scope(caller, Scope.SPEND_READ)
        async with self._units(scope_of(caller, team)) as uow:
            budgets = await uow.budgets.find_all()
        if month is None:
            return await self._statuses(budgets, self._clock.now())
        asked = month_window(month)
        touched = [one for one in budgets if one.horizon is None or one.horizon.overlaps(asked)]
        return tuple(replace(one, later=()) for one in await self._statuses(touched, asked.start))

    async def find_status(self, caller: Caller, team: str, period: BudgetPeriod) -> BudgetStatus:
        """The status of one budget. Raises NotFound."""
        require_scope(caller, Scope.SPEND_READ)
        async with self._units(scope_of(caller)) as uow:
            budget = await uow.budgets.find(team, period)
        return (await self._statuses((budget,), self._clock.now()))[0]

    async def watch(self) -> tuple[BudgetAlert, ...]:
        """Sends an alert for each exceeded threshold, and for the expected overrun of each later period, once
        per period, and returns the new alerts."""
        now = self._clock.now()
        told = []
        async with self._units(EVERY_TEAM) as uow:
            budgets = await uow.budgets.find_all()
        statuses = await self._statuses(budgets, now)
        async with self._units(EVERY_TEAM) as uow:
            for found in statuses:
                for alert in alerts(found):
                    if await uow.budgets.tell(alert):
                        entry = _entry(alert.budget, now, ACTOR, "budget.threshold", str(alert))
                        await uow.accounts.add_audit(entry)
                        told.append(alert)
            await uow.commit()
        return tuple(told)

    async def _statuses(self, budgets: Sequence[Budget], at: datetime) -> tuple[BudgetStatus, ...]:
        """The statuses of ``budgets`` in the periods that contain ``at``, with the later periods of each."""
        if not budgets:
            return ()
        charges, reach = await find_budget_charges(
            self._units,
            self._summaries,
            budgets,
            Reach.at(at),
            by_day=all(is_whole_days(budget.window_at(at)) for budget in budgets),
        )
        by_team: defaultdict[str, list[Charge]] = defaultdict(list)
        for charge in charges:
            by_team[charge.team].append(charge)
        found = []
        for budget in budgets:
            mine = charges if budget.team == ALL_TEAMS else by_team[budget.team]
            present, *later = budget_outlook(budget, mine, reach)
            found.append(replace(present, later=tuple(later)))
        return tuple(found)


def _every_alert(found: BudgetStatus) -> tuple[BudgetAlert, ...]:
    """All possible alerts of a budget in this period, and in later ones."""
    return tuple(
        BudgetAlert(found.budget, one.window, percent, basis, found.owed_usd)
        for one in (found, *found.later)
        for percent in {threshold.percent for threshold in found.thresholds} | {WHOLE}
        for basis in ChargeBasis
    )


def _entry(budget: Budget, at: datetime, actor: str, action: str, detail: str) -> AuditEntry:
    return AuditEntry(at, actor, action, "budget", budget.budget_id, budget.team, detail)
