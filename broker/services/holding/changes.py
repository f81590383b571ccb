"""Variance of spend between two windows, and of cost between two plans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from itertools import chain

from broker.domain.basics.access import require_scope, scope_of
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import Conflict
from broker.domain.basics.money import ZERO, to_cents
from broker.domain.basics.window import INSTANT, Window
from broker.domain.holding.lease_money import rate_usd_per_node_hour
from broker.domain.market.market import PricePoint
from broker.domain.planning.plan import Plan
from broker.domain.spend.charging import plan_charges
from broker.domain.spend.spend import Charge, ChargeBasis, CostView
from broker.domain.spend.variance import (
    Changes,
    PlanChanges,
    Quantity,
    attribute,
    compare_plans,
    quantities_of,
)
from broker.ports.unit_of_work import Clock, UnitOfWork, UnitOfWorkFactory
from broker.services.spend.summaries import Summaries


class ChangesService:
    """Use cases of variance."""

    def __init__(self, units: UnitOfWorkFactory, clock: Clock, summaries: Summaries | None = None) -> None:
        self._units = units
        self._clock = clock
        self._summaries = summaries or Summaries(units, clock)

    async def between_windows(
        self,
        caller: Caller,
        before: Window,
        after: Window,
        *,
        team: str | None = None,
        view: CostView = CostView.AMORTIZED,
    ) -> Changes:
        """The variance between two windows, which begin and end at UTC midnights.

        Spend includes projected charges. Closed months have the figures with which they were closed.
        """
        require_scope(caller, Scope.SPEND_READ)
        scope, now = scope_of(caller, team), self._clock.now()
        charges = [await self._summaries.find_charges_in(scope, window, view) for window in (before, after)]
        old, new = [quantities_of(some) for some in charges]
        async with self._units(scope) as uow:
            then, later = before.start, min(max(after.start, before.start + INSTANT), now)
            prices = await _prices_then(uow, new, then, later)
            unmoved = await _unmoved(uow, (before, after)) - _planned(chain(*charges))
        return attribute(old, new, prices, unmoved)

    async def between_plans(self, caller: Caller, old_id: str, new_id: str) -> PlanChanges:
        """The variance from plan ``old_id`` to ``new_id``, separated into market prices and planning.

        Raises NotFound, also for plans of another team, and Conflict for an unfinished plan.
        """
        require_scope(caller, Scope.SPEND_READ)
        old, new = await self._plan(caller, old_id), await self._plan(caller, new_id)
        async with self._units(scope_of(caller)) as uow:
            after = quantities_of(plan_charges(new, new.team, new_id))
            prices = await _prices_then(uow, after, old.as_of, new.as_of)
            repriced = await _at_prices_of(uow, old, new.as_of)
            moved = await _moved(uow, {one.offer_id for one in after}, old.as_of, new.as_of)
        before = quantities_of(plan_charges(old, old.team, old_id))
        unmoved = {(one.workload, one.offer_id) for one in after if moved.get(one.offer_id) == 1}
        changes = attribute(before, after, prices, unmoved)
        return compare_plans(old, new, changes, repriced)

    async def _plan(self, caller: Caller, plan_id: str) -> Plan:
        async with self._units(scope_of(caller)) as uow:
            record = await uow.plans.find(plan_id)
        if record.plan is None:
            raise Conflict(f"plan {plan_id} is {record.state}; only a finished plan can be compared")
        return record.plan


async def _unmoved(uow: UnitOfWork, windows: Iterable[Window]) -> set[tuple[str, str]]:
    """Workload and offer of leases in ``windows`` or open now, of which all are at the same rate."""
    rates: defaultdict[tuple[str, str], set[Decimal]] = defaultdict(set)
    rows = list(await uow.reservations.find_open())
    for window in windows:
        rows += await uow.reservations.find_overlapping(window)
    for row in rows:
        rates[row.workload or "-", row.offer.offer_id].add(rate_usd_per_node_hour(row))
    return {key for key, found in rates.items() if len(found) == 1}


def _planned(charges: Iterable[Charge]) -> set[tuple[str, str]]:
    """Workload and offer of charges of capacity that is not bought yet, which has no rate."""
    drafts = (c for c in charges if c.basis is ChargeBasis.PROJECTED and c.reservation_id is None)
    return {(charge.workload, charge.offer_id or "") for charge in drafts}


async def _prices_then(
    uow: UnitOfWork, quantities: Iterable[Quantity], then: datetime, later: datetime
) -> dict[str, Fraction]:
    """USD per GPU-second of each offer at ``then``: its cost divided by its price change until ``later``."""
    used = [one for one in quantities if one.gpu_seconds]
    moved = await _moved(uow, {one.offer_id for one in used}, then, later)
    return {
        one.offer_id: Fraction(one.usd) / one.gpu_seconds / moved[one.offer_id]
        for one in reversed(used)
        if moved.get(one.offer_id)
    }


async def _at_prices_of(uow: UnitOfWork, plan: Plan, later: datetime) -> dict[str, Decimal]:
    """Cost of ``plan`` per offer at the prices of ``later``; offers without a known price are left out."""
    moved = await _moved(uow, {placement.offer_id for placement in plan.placements}, plan.as_of, later)
    found: dict[str, Decimal] = {}
    for placement in plan.placements:
        if placement.offer_id in moved:
            usd = Fraction(placement.capacity_usd) * moved[placement.offer_id]
            usd += Fraction(placement.transfer_usd)
            cents = to_cents(Decimal(usd.numerator) / Decimal(usd.denominator))
            found[placement.offer_id] = found.get(placement.offer_id, ZERO) + cents
    return found


async def _moved(
    uow: UnitOfWork, offer_ids: Collection[str], then: datetime, later: datetime
) -> dict[str, Fraction]:
    """Ratio of the price at ``later`` to the price at ``then``, for offers with both prices."""
    if later <= then:
        return dict.fromkeys(offer_ids, Fraction(1))
    points: defaultdict[str, list[PricePoint]] = defaultdict(list)
    for point in await uow.offers.find_prices_of(offer_ids, Window(then, later + INSTANT)):
        points[point.offer_id].append(point)
    return {
        offer_id: Fraction(mine[-1].price_usd_per_node_hour) / Fraction(mine[0].price_usd_per_node_hour)
        for offer_id, mine in points.items()
        if mine[0].at <= then and mine[0].price_usd_per_node_hour
    }
