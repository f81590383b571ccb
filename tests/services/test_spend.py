import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.basics.errors import InputError, InsufficientCapacity, NotPermitted
from broker.domain.basics.money import ZERO
from broker.domain.basics.window import Window
from broker.domain.market.offer import CancelRule
from broker.domain.planning.transfer import Transfer, TransferKind
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.spend import GROUPS, ChargeBasis, Interval
from broker.services.spend.spend import Projection, SpendService
from tests.depth import examples
from tests.fakes.clock import NOON
from tests.fakes.examples import (
    ADMIN,
    ALICE,
    BOB,
    READER,
    a_placement,
    a_plan,
    a_segment,
    an_offer,
    listed_terms,
    slot_terms,
)
from tests.fakes.provider import Fault
from tests.services.conftest import House

SERVING = WorkloadKind.SERVING


def _projected_usd(view: Projection) -> Decimal:
    return view.total_usd - view.actual_usd


def spend_of(house: House) -> SpendService:
    return SpendService(house.tables.unit_of_work, house.clock)


def mixed_plan(house: House) -> Decimal:
    """A run, a fleet that breathes, and a window, with prices that do not divide by anything."""
    run, fleet = an_offer("run", "10.333333"), an_offer("fleet", "3.777777", increment_s=1)
    block = an_offer("block", "1", window=listed_terms(NOON + timedelta(hours=1), 23.5), upfront="1000.01")
    house.sell(run, fleet, block)
    plan = a_plan(
        a_placement(run, [a_segment(0, 30.25, 3)]),
        a_placement(fleet, [a_segment(0, 4), a_segment(4, 8, 3), a_segment(8, 20, 2)], "chat", SERVING),
        a_placement(block, [a_segment(1, 24.5, 1)], "tune"),
    )
    house.store_plan(plan)
    return plan.cost_usd


@pytest.mark.parametrize("group_by", GROUPS)
@pytest.mark.parametrize("interval", list(Interval))
async def test_every_view_of_a_plan_sums_to_its_cost(house: House, group_by: str, interval: Interval) -> None:
    cost = mixed_plan(house)
    view = await spend_of(house).projection(ALICE, None, interval, group_by)
    assert sum((row.usd for row in view.rows), ZERO) == view.total_usd == cost
    assert view.actual_usd == 0


async def test_a_plan_that_is_held_as_planned_costs_what_it_said(house: House) -> None:
    cost = mixed_plan(house)
    spend = spend_of(house)
    before = await spend.charges(ALICE)
    await house.reservations.reserve_plan(ALICE, "plan-1")
    assert (await spend.projection(ALICE)).total_usd == cost
    after = await spend.charges(ALICE)
    assert {c.kind for c in after} == {c.kind for c in before}
    assert all(charge.reservation_id for charge in after)
    house.clock.advance(hours=4)
    await house.reconcile.run_once()
    house.clock.advance(hours=36)
    await house.reconcile.run_once()
    view = await spend.projection(ALICE)
    assert view.total_usd == view.actual_usd


async def test_data_that_leaves_a_provider_is_expected_until_its_day_and_never_actual(house: House) -> None:
    offer = an_offer("run", "10")
    house.sell(offer)
    begin = a_placement(offer, [a_segment(5, 15)])
    copy = Transfer(TransferKind.DATASET, 100.0, "aws", "us-east-1", Decimal("9.00"), 0.1)
    house.store_plan(a_plan(replace(begin, cost_usd=begin.cost_usd + copy.usd, transfers=(copy,))))
    spend = spend_of(house)
    by_provider = (await spend.projection(ALICE, None, Interval.MONTH, "provider")).rows
    assert {(row.group, row.usd) for row in by_provider} == {
        (offer.provider, Decimal("100.00")),
        ("aws", Decimal("9.00")),
    }
    await house.reservations.reserve_plan(ALICE, "plan-1")
    assert _projected_usd(await spend.projection(ALICE)) == Decimal("109.00")
    for hours in (5, 10):
        house.clock.advance(hours=hours)
        await house.reconcile.run_once()
    after = await spend.projection(ALICE)
    assert (after.actual_usd, _projected_usd(after)) == (Decimal("100.00"), ZERO)


async def test_a_window_is_owed_from_its_purchase_and_the_rest_as_time_goes(house: House) -> None:
    mixed_plan(house)
    await house.reservations.reserve_plan(ALICE, "plan-1")
    owed = await spend_of(house).projection(ALICE)
    assert owed.actual_usd == Decimal("500.00")
    house.clock.advance(hours=10)
    later = await spend_of(house).projection(ALICE)
    assert later.actual_usd > owed.actual_usd
    assert _projected_usd(later) > 0


async def test_release_ends_the_spend(house: House) -> None:
    house.sell(an_offer("o-1", "10"))
    row = await house.reservations.reserve_offer(ALICE, "o-1", 2)
    house.clock.advance(hours=2, minutes=30)
    running = await spend_of(house).projection(ALICE)
    await house.reservations.release(ALICE, row.reservation_id)
    house.clock.advance(hours=10)
    ended = await spend_of(house).projection(ALICE)
    assert running.actual_usd == ended.total_usd == ended.actual_usd == Decimal(60)


async def test_a_refused_plan_stays_a_plan_beside_what_the_attempt_cost(house: House) -> None:
    cost = mixed_plan(house)
    house.provider.fail("reserve", Fault.NONE, Fault.NONE, Fault.NO_CAPACITY)
    with pytest.raises(InsufficientCapacity):
        await house.reservations.reserve_plan(ALICE, "plan-1")
    view = await spend_of(house).projection(ALICE)
    assert _projected_usd(view) == cost
    assert view.actual_usd > 0


async def test_a_workload_that_an_older_plan_holds_is_counted_once(house: House) -> None:
    cost = mixed_plan(house)
    await house.reservations.reserve_plan(ALICE, "plan-1")
    plan = house.tables.plans["plan-1"].plan
    assert plan is not None
    house.store_plan(a_plan(*plan.placements, plan_id="plan-2"))
    assert (await spend_of(house).projection(ALICE)).total_usd == cost


async def test_a_slot_left_before_it_starts_costs_nothing_where_that_is_the_rule(house: House) -> None:
    house.sell(an_offer("slots", window=slot_terms(NOON, 24, cancel=CancelRule.ANY_TIME), stock=None))
    begin = NOON + timedelta(hours=2)
    row = await house.reservations.reserve_offer(ALICE, "slots", 1, begin, begin + timedelta(hours=2))
    assert (await spend_of(house).projection(ALICE)).actual_usd == Decimal(20)
    await house.reservations.release(ALICE, row.reservation_id)
    assert (await spend_of(house).projection(ALICE)).total_usd == 0


async def test_a_window_of_time_cuts_the_view(house: House) -> None:
    cost = mixed_plan(house)
    first = Window(datetime(2026, 11, 23, tzinfo=UTC), datetime(2026, 11, 24, tzinfo=UTC))
    rest = Window(first.end, first.end + timedelta(days=30))
    spend = spend_of(house)
    parts = [(await spend.projection(ALICE, window)).total_usd for window in (first, rest)]
    assert sum(parts, ZERO) == cost
    assert all(part > 0 for part in parts)


async def test_teams_scopes_and_bad_groups(house: House) -> None:
    cost = mixed_plan(house)
    spend = spend_of(house)
    assert (await spend.projection(BOB)).rows == ()
    assert (await spend.projection(ADMIN)).total_usd == cost
    with pytest.raises(NotPermitted):
        await spend.projection(READER)
    with pytest.raises(InputError, match="group_by"):
        await spend.projection(ALICE, group_by="colour")
    assert {charge.basis for charge in await spend.charges(ALICE)} == {ChargeBasis.PROJECTED}


@settings(max_examples=examples(25), deadline=None, derandomize=True)
@given(
    price=st.decimals("0.01", "99", places=6),
    steps=st.lists(st.tuples(st.integers(1, 600), st.integers(1, 5)), min_size=1, max_size=5),
    increment_s=st.sampled_from([1, 60, 3600]),
)
def test_reserved_spend_equals_plan_cost(
    price: Decimal, steps: list[tuple[int, int]], increment_s: int
) -> None:
    async def live() -> tuple[Decimal, Decimal]:
        house = House()
        offer = an_offer("o", str(price), increment_s=increment_s)
        house.sell(offer)
        segments, at = [], 0.0
        for minutes, nodes in steps:
            segments.append(a_segment(at, at + minutes / 60, nodes))
            at += minutes / 60
        plan = a_plan(a_placement(offer, segments, "chat", SERVING))
        house.store_plan(plan)
        await house.reservations.reserve_plan(ALICE, "plan-1")
        return plan.cost_usd, (await spend_of(house).projection(ALICE)).total_usd

    planned, charged = asyncio.run(live())
    assert planned == charged
