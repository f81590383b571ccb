"""Checks whether a plan would exceed a budget of its team; such a plan needs approval at any cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from broker.domain.basics.access import EVERY_TEAM, TeamScope
from broker.domain.holding.cost_of_keeping import held_of
from broker.domain.holding.reservation import Reservation
from broker.domain.moving.move_charges import charges_with_moves
from broker.domain.moving.reoptimization import ProposalState, Reoptimization
from broker.domain.planning.plan import Plan
from broker.domain.spend.budgets import Budget, BudgetEffect, budget_status, furthest_end
from broker.domain.spend.charging import plan_charges, reservation_charges
from broker.domain.spend.spend import Charge
from broker.ports.planning import PlanRecord, PlanState
from broker.ports.spend import FinanceUnitOfWork, FinanceUnits
from broker.ports.unit_of_work import Clock
from broker.services.spend.summaries import Summaries


async def find_budget_charges(
    units: FinanceUnits, summaries: Summaries, scope: TeamScope, now: datetime, plans: Iterable[Plan] = ()
) -> tuple[Charge, ...]:
    """Charges of ``scope``. Leases without an end are projected to the end of the last budget period that one
    of ``plans`` touches.
    """
    async with units(scope) as uow:
        budgets = await uow.budgets.find_all(None)
    ends = [one.end for plan in plans for placement in plan.placements for one in placement.segments]
    return await summaries.find_charges(scope, furthest_end(budgets, max((now, *ends))))


async def find_effects(
    uow: FinanceUnitOfWork, record: PlanRecord, plan: Plan, charges: Iterable[Charge], now: datetime
) -> tuple[BudgetEffect, ...]:
    """What the plan does to each budget of its team if it replaces the spend that it would replace: in the
    present period, and in each later one to whose spend it adds.

    For the plan of a proposal: after its moves.
    """
    budgets = await uow.budgets.find_all(record.team)
    if not budgets:
        return ()
    mine = tuple(charge for charge in charges if charge.team == record.team)
    look = await _proposing(uow, record)
    if look is not None:
        return _effects(budgets, mine, await _charges_after(uow, look, plan, mine, now), now)
    workloads = {placement.workload for placement in plan.placements}
    kept = tuple(
        charge
        for charge in mine
        if charge.plan_id != record.plan_id
        and (charge.reservation_id is not None or charge.workload not in workloads)
    )
    return _effects(budgets, kept, (*kept, *plan_charges(plan, record.team, record.plan_id)), now)


def _effects(
    budgets: Iterable[Budget], before: Iterable[Charge], after: Iterable[Charge], now: datetime
) -> tuple[BudgetEffect, ...]:
    first, then = tuple(before), tuple(after)
    found = (
        (at, BudgetEffect(budget_status(budget, first, at), budget_status(budget, then, at)))
        for budget in budgets
        for at in _periods(budget, then, now)
    )
    return tuple(effect for at, effect in found if at == now or effect.added_usd > 0)


def _periods(budget: Budget, charges: Iterable[Charge], now: datetime) -> Iterator[datetime]:
    """``now``, and the start of each later period of the budget in which something is charged."""
    yield now
    present = budget.window_at(now)
    later = {budget.window_at(c.window.start) for c in charges if c.window.start >= present.end}
    yield from sorted(window.start for window in later - {present})


async def _proposing(uow: FinanceUnitOfWork, record: PlanRecord) -> Reoptimization | None:
    """The open proposal to which a plan belongs, if any."""
    if record.state is not PlanState.PROPOSED:
        return None
    found = await uow.reoptimizations.find_in({ProposalState.PROPOSED})
    return next((look for look in found if look.new_plan_id == record.plan_id), None)


async def _charges_after(
    uow: FinanceUnitOfWork, look: Reoptimization, new: Plan, charges: Iterable[Charge], now: datetime
) -> tuple[Charge, ...]:
    """The team's charges after the moves of a proposal."""
    keys = dict.fromkeys(key for move in look.moves for key in move.leaves)
    leaving = [held_of(await uow.reservations.find(key)) for key in keys]
    mine = (charge for charge in charges if charge.team == look.team)
    return charges_with_moves(mine, look, new, (one for one in leaving if one is not None), now)


class BudgetGate:
    """Checks budgets before money is committed."""

    def __init__(self, units: FinanceUnits, clock: Clock, summaries: Summaries) -> None:
        self._units = units
        self._clock = clock
        self._summaries = summaries

    async def find_overruns(self, record: PlanRecord, plan: Plan) -> tuple[str, ...]:
        """A text for each budget that would be exceeded and to which the plan contributes."""
        now = self._clock.now()
        scope = EVERY_TEAM.narrowed_to(record.team)
        charges = await find_budget_charges(self._units, self._summaries, scope, now, (plan,))
        async with self._units(scope) as uow:
            effects = await find_effects(uow, record, plan, charges, now)
        mine = plan_charges(plan, record.team, record.plan_id)
        return tuple(
            str(one)
            for one in effects
            if one.left_usd < 0 and any(one.after.window.contains(charge.window.start) for charge in mine)
        )

    async def find_overruns_of_order(self, order: Reservation) -> tuple[str, ...]:
        """A text for each budget that would be exceeded and to which ``order`` contributes.

        An order without an end counts up to the end of the last budget period.
        """
        now = self._clock.now()
        scope = EVERY_TEAM.narrowed_to(order.team)
        async with self._units(scope) as uow:
            budgets = await uow.budgets.find_all(order.team)
        if not budgets:
            return ()
        until = furthest_end(budgets, max(now, order.end or now))
        mine = reservation_charges((order,), {}, now, until=until)
        before = await self._summaries.find_charges(scope, until)
        return tuple(
            one.told_of("this order")
            for one in _effects(budgets, before, (*before, *mine), now)
            if one.left_usd < 0 and one.added_usd > 0
        )

    async def find_overruns_of_extension(self, row: Reservation, end: datetime) -> tuple[str, ...]:
        """A text for each budget that would be exceeded if ``row``, which is stored, ended at ``end``.

        The reservations of its bill are charged together, as they are rounded together.
        """
        now = self._clock.now()
        scope = EVERY_TEAM.narrowed_to(row.team)
        async with self._units(scope) as uow:
            budgets = await uow.budgets.find_all(row.team)
            bill = await uow.reservations.find_of_bills({row.plan_id or row.reservation_id})
        if not budgets:
            return ()
        until = furthest_end(budgets, max(now, end))
        longer = [replace(one, end=end) if one.reservation_id == row.reservation_id else one for one in bill]
        names = {one.reservation_id for one in bill}
        charges = await self._summaries.find_charges(scope, until)
        kept = tuple(charge for charge in charges if charge.reservation_id not in names)
        before, after = (reservation_charges(rows, {}, now, until=until) for rows in (bill, longer))
        return tuple(
            one.told_of("this extension")
            for one in _effects(budgets, (*kept, *before), (*kept, *after), now)
            if one.left_usd < 0 and one.added_usd > 0
        )

    async def find_overruns_of_moves(self, look: Reoptimization, new: Plan) -> tuple[str, ...]:
        """A text for each budget that would be exceeded, by more than without the moves.

        ``new`` is the plan after the moves. Savings in an exceeded budget need no approval.
        """
        now = self._clock.now()
        scope = EVERY_TEAM.narrowed_to(look.team)
        async with self._units(scope) as uow:
            budgets = await uow.budgets.find_all(None)
        if not budgets or not look.moves:
            return ()
        ends = [one.end for placement in new.placements for one in placement.segments]
        charges = await self._summaries.find_charges(scope, furthest_end(budgets, max((now, *ends))))
        async with self._units(scope) as uow:
            after = await _charges_after(uow, look, new, charges, now)
        effects = _effects(budgets, charges, after, now)
        return tuple(str(one) for one in effects if one.left_usd < 0 and one.added_usd > 0)
