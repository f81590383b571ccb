"""When a draft is billed: as its reservations would be, by the seller's tariff added up apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.basics.window import Segment
from broker.domain.focus.projection_rows import projection_rows
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.billing import billed_ahead
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Plan
from broker.domain.spend.charging import plan_charges, reservation_charges
from broker.domain.spend.spend import Charge, CostView
from providers.sandbox.ledger import Tariff
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_segment, an_offer

CENT = Decimal("0.01")
HOUR = timedelta(hours=1)


def drafted(offer: Offer, *segments: Segment) -> Plan:
    """A plan of ``segments`` on ``offer``, as the planner writes it."""
    placement = a_placement(offer, segments)
    blocks = billed_ahead(offer, segments, placement.cost_usd)
    return a_plan(replace(placement, billed_ahead=blocks))


def by_day(charges: Iterable[Charge], view: CostView) -> dict[date, Decimal]:
    days: defaultdict[date, Decimal] = defaultdict(Decimal)
    for charge in charges:
        days[charge.at(view).date()] += charge.usd
    return {day: usd for day, usd in days.items() if usd}


def reserved(offer: Offer, segment: Segment) -> Reservation:
    """``segment`` reserved, and not ordered yet."""
    return Reservation(
        reservation_id="r-1",
        team="research",
        state=ReservationState.SCHEDULED,
        offer=offer,
        nodes=segment.nodes,
        start=segment.start,
        end=segment.end,
        units=(Unit(0, "tag-1", segment.nodes, UnitState.PLANNED),),
        created_at=NOON,
        workload="train",
        plan_id="plan-1",
    )


def test_a_month_that_is_billed_ahead_counts_on_its_first_day() -> None:
    """Two nodes for 100 hours at $3, of which 720 each are billed with the lease: 2 × 720 × $3 = $4,320."""
    plan = drafted(an_offer(price="3", min_hours=720), a_segment(6, 106, 2))
    charges = plan_charges(plan, "research", "plan-1")
    assert by_day(charges, CostView.CASH) == {date(2026, 11, 23): Decimal(4320)}
    spread = by_day(charges, CostView.AMORTIZED)
    assert [str(usd) for usd in spread.values()] == ["259.20", "1036.80", "1036.80", "1036.80", "950.40"]
    rows = list(projection_rows(charges, NOON))
    assert [row["ProjectedBilledCost"] for row in rows] == [Decimal(4320), 0, 0, 0, 0]


def test_a_day_that_is_billed_ahead_and_the_hours_after_it() -> None:
    """A minimum of 24 hours at $2 from 18:00, then 30 hours as they begin: $48, then 6, 24 of them a day."""
    plan = drafted(an_offer(price="2", min_hours=24), a_segment(6, 60))
    cash = by_day(plan_charges(plan, "research", "plan-1"), CostView.CASH)
    assert cash == {
        date(2026, 11, 23): Decimal(48),
        date(2026, 11, 24): Decimal(12),
        date(2026, 11, 25): Decimal(48),
    }


@pytest.mark.parametrize("min_hours", [24.0, 100.0, 720.0])
def test_reserving_a_draft_changes_no_day_of_its_bills(min_hours: float) -> None:
    offer = an_offer(price="3.37", min_hours=min_hours, upfront="5")
    segment = a_segment(30, 130, 2)
    draft = plan_charges(drafted(offer, segment), "research", "plan-1")
    held = reservation_charges([reserved(offer, segment)], {}, NOON)
    assert by_day(draft, CostView.CASH) == by_day(held, CostView.CASH)


@given(
    price=st.decimals("0.05", "90", places=4),
    fee=st.decimals("0", "90", places=2),
    increment_s=st.sampled_from([60, 3600, 86_400, 730 * 3600]),
    min_hours=st.sampled_from([0.0, 1.0, 24.0, 50.0, 720.0]),
    sizes=st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any),
    hours=st.integers(1, 70),
)
def test_a_draft_is_billed_by_then_as_the_tariff_bills(
    price: Decimal, fee: Decimal, increment_s: int, min_hours: float, sizes: list[int], hours: int
) -> None:
    """Nodes that step up and down: each is a lease from its step up to its step down. Fees go with terms."""
    fee = fee if max(min_hours, increment_s / 3600) > 1 else Decimal(0)
    offer = an_offer(price=str(price), increment_s=increment_s, min_hours=min_hours, upfront=str(fee))
    tariff = Tariff(price, increment_s, round(min_hours * 3600), fee)
    segments = [a_segment(n * hours, (n + 1) * hours, size) for n, size in enumerate(sizes) if size]
    plan = drafted(offer, *segments)
    charges = plan_charges(plan, "research", "plan-1")
    assert sum(charge.usd for charge in charges) == plan.cost_usd
    assert all(charge.idle_usd <= charge.usd for charge in charges)
    cash = by_day(charges, CostView.CASH)
    leases = list(leases_of(sizes, hours))
    for day in sorted({NOON.date(), *cash}):
        midnight = NOON.replace(hour=0) + (day - NOON.date() + timedelta(days=1))
        billed = sum(
            (tariff.billed_usd(min(midnight, end) - start) for start, end in leases if start < midnight),
            Decimal(0),
        )
        told = sum((usd for at, usd in cash.items() if at <= day), Decimal(0))
        assert abs(told - billed) <= len(leases) * (price * min(increment_s, 3600) / 3600 + CENT)


def leases_of(sizes: list[int], hours: int) -> Iterable[tuple[datetime, datetime]]:
    """When each node of a fleet that steps every ``hours`` begins and ends: the last to come goes first."""
    begun: list[int] = []
    for step, (before, after) in enumerate(pairwise([0, *sizes, 0])):
        begun += [step] * (after - before)
        for _ in range(before - after):
            yield NOON + begun.pop() * hours * HOUR, NOON + step * hours * HOUR
