"""Whether a plan would take its team past a budget: then it waits for finance, whatever it costs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from broker.domain.budgets import BudgetStanding, standing
from broker.domain.charging import plan_charges
from broker.domain.money import format_usd
from broker.domain.plan import Plan
from broker.domain.spend import Charge
from broker.finance_ports import FinanceUnitOfWork, FinanceUnits
from broker.plan_ports import PlanRecord
from broker.ports import Clock
from broker.summaries import Summaries


async def find_standings_with(
    uow: FinanceUnitOfWork, record: PlanRecord, plan: Plan, charges: Iterable[Charge], now: datetime
) -> tuple[BudgetStanding, ...]:
    """The budgets of a plan's team once it is spent instead of what it would replace."""
    budgets = await uow.budgets.find_all(record.team)
    if not budgets:
        return ()
    workloads = {placement.workload for placement in plan.placements}
    kept = [
        charge
        for charge in charges
        if charge.team == record.team
        and charge.plan_id != record.plan_id
        and (charge.reservation_id is not None or charge.workload not in workloads)
    ]
    whole = (*kept, *plan_charges(plan, record.team, record.plan_id))
    return tuple(standing(budget, whole, now) for budget in budgets)


class BudgetGate:
    """Looks at budgets before money is bound."""

    def __init__(self, units: FinanceUnits, clock: Clock, summaries: Summaries) -> None:
        self._units = units
        self._clock = clock
        self._summaries = summaries

    async def find_overruns(self, record: PlanRecord, plan: Plan) -> tuple[str, ...]:
        """Each budget of the plan's team that the plan has a part in passing, in words."""
        now = self._clock.now()
        charges = await self._summaries.find_charges(record.team)
        async with self._units() as uow:
            standings = await find_standings_with(uow, record, plan, charges, now)
        mine = plan_charges(plan, record.team, record.plan_id)
        return tuple(
            _told(one)
            for one in standings
            if one.left_usd < 0 and any(one.window.contains(charge.window.start) for charge in mine)
        )


def _told(one: BudgetStanding) -> str:
    budget, window = one.budget, one.window
    return (
        f"team {budget.team} would pass its budget of {format_usd(budget.limit_usd)} USD a {budget.period} "
        f"by {format_usd(-one.left_usd)} USD ({window.start:%Y-%m-%d} to {window.end:%Y-%m-%d})"
    )
