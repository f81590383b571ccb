"""Holdings of a plan in force, for tests without reservations."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from broker.domain.holding.cost_of_keeping import HeldCapacity
from broker.domain.market.billing import holdings
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Plan


def held_as_planned(plan: Plan, offers: Mapping[str, Offer], now: datetime) -> tuple[HeldCapacity, ...]:
    """The holdings of ``plan`` at ``now`` if everything went as planned.

    ``offers`` are those of the plan as ordered. Windows are bought in advance, other capacity at its start.
    """
    return tuple(
        HeldCapacity(
            workload=placement.workload,
            offer=placement.ordered(offers[placement.offer_id]),
            nodes=holding.nodes,
            start=holding.window.start,
            end=holding.window.end,
            is_bought=offers[placement.offer_id].window is not None or holding.window.start <= now,
            active_since=holding.window.start if holding.window.start <= now else None,
        )
        for placement in plan.placements
        for holding in holdings(placement.segments)
        if holding.window.end > now
    )
