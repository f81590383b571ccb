"""Make before break: the old goes when the new can be used, and stays when it cannot be had."""

import asyncio
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.basics.errors import Conflict, InsufficientCapacity, ProviderError, StalePlan
from broker.domain.holding.reservation import Idempotency, Reservation, ReservationState, UnitState
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import WorkloadKind
from tests.depth import examples
from tests.fakes.clock import NOON
from tests.fakes.examples import ALICE, a_placement, a_plan, a_segment, an_offer, slot_terms
from tests.fakes.provider import Crash, Fault
from tests.services.conftest import House

S = ReservationState
SERVING = WorkloadKind.SERVING


def plan_on(offer_id: str, price: str, plan_id: str) -> Plan:
    """A service of one node, two from hour 20 to 30."""
    segments = [a_segment(0, 20, 1), a_segment(20, 30, 2), a_segment(30, 48, 1)]
    return a_plan(a_placement(an_offer(offer_id, price), segments, "chat", SERVING), plan_id=plan_id)


async def held(house: House) -> tuple[Reservation, ...]:
    """The service on ``old`` for two hours; ``new`` is cheaper now."""
    house.sell(an_offer("old", "10"), an_offer("new", "5"))
    house.store_plan(plan_on("old", "10", "plan-1"))
    rows = await house.reservations.reserve_plan(ALICE, "plan-1")
    house.clock.advance(hours=2)
    return rows


def nodes_in_use(house: House) -> int:
    """Nodes that the ledger shows usable now."""
    now, start = house.clock.now(), timedelta(seconds=house.provider.provision_s)
    return sum(i.nodes for i in house.provider.open_instances() if i.created_at + start <= now)


async def move(house: House, rows: tuple[Reservation, ...]) -> tuple[Reservation, ...]:
    ids = [row.reservation_id for row in rows]
    return await house.moves.move("reoptimizer", plan_on("new", "5", "plan-2"), ids)


async def test_the_old_stays_until_the_new_is_usable() -> None:
    house = House()
    house.provider.provision_s = 600
    rows = await held(house)
    await house.settle(1)
    new = await move(house, rows)
    assert {row.replaces for row in new} == {tuple(row.reservation_id for row in rows)}
    seen = []
    for _ in range(7):
        await house.settle(1)
        seen.append((nodes_in_use(house), len(house.provider.open_instances())))
    assert min(usable for usable, _ in seen) == 1, "never a gap"
    assert seen[0][1] == 2, "an overlap while the new comes up"
    assert seen[-1] == (1, 1)
    old = [house.tables.reservations[row.reservation_id] for row in rows]
    assert {row.state for row in old} == {S.RELEASED}
    assert any("both were held for" in row.reason for row in old)
    (bought,) = [row for row in old if row.active_at is not None]
    assert "min, $2." in bought.reason or "min, $1." in bought.reason, bought.reason
    house.assert_agreement()


async def test_a_refused_move_leaves_the_old_and_says_its_cost() -> None:
    house = House()
    rows = await held(house)
    house.provider.fail("reserve", Fault.NO_CAPACITY)
    with pytest.raises(InsufficientCapacity, match=r"cost \$0\.00"):
        await move(house, rows)
    await house.settle(3)
    assert [house.tables.reservations[r.reservation_id].state for r in rows].count(S.ACTIVE) == 1
    assert len(house.provider.open_instances()) == 1
    assert "reservation.move_failed" in house.notifier.events()
    assert len(await move(house, rows)) == 2, "and it may be tried again"


async def test_capacity_that_fails_after_the_order_leaves_the_old() -> None:
    house = House()
    house.provider.provision_s = 600
    rows = await held(house)
    await house.settle(1)
    house.provider.fail("reserve", Fault.NO_CAPACITY_LATER)
    new = await move(house, rows)
    await house.settle(5)
    assert {house.tables.reservations[r.reservation_id].state for r in new} == {S.FAILED}
    assert {house.tables.reservations[r.reservation_id].state for r in rows} == {S.ACTIVE, S.SCHEDULED}
    house.assert_agreement()


async def test_a_new_part_that_vanishes_meanwhile_keeps_the_old() -> None:
    house = House()
    rows = await held(house)
    new = await move(house, rows)
    (running,) = [row for row in new if row.provider_references]
    house.provider.preempt(running.provider_references[0])
    house.provider.fail("reserve", *[Fault.NO_CAPACITY] * 2)
    for _ in range(12):
        await house.settle(1)
        assert nodes_in_use(house) >= 1
    assert {i.sku for i in house.provider.open_instances()} == {"sku-new"}
    house.assert_agreement()


async def test_what_stays_is_not_bought_again() -> None:
    house = House()
    rows = await held(house)
    same = plan_on("old", "10", "plan-2")
    assert await house.moves.move("reoptimizer", same, [r.reservation_id for r in rows]) == ()
    assert len(house.provider.ledger) == 1


async def test_what_cannot_move_is_said() -> None:
    house = House()
    rows = await held(house)
    await move(house, rows)
    with pytest.raises(Conflict, match="already"):
        await move(house, rows)
    await house.settle(2)
    with pytest.raises(Conflict, match="so it cannot be moved"):
        await move(house, rows)
    with pytest.raises(Conflict, match="no reservation"):
        await house.moves.move("reoptimizer", plan_on("new", "5", "plan-3"), [])


async def test_a_dearer_market_is_no_move() -> None:
    house = House()
    rows = await held(house)
    house.sell(an_offer("new", "6"))
    with pytest.raises(StalePlan, match="costs"):
        await move(house, rows)
    assert len(house.tables.reservations) == len(rows)


async def test_a_move_to_a_later_window_waits_for_it() -> None:
    house = House()
    house.sell(an_offer("old", "10"), an_offer("w", "4", window=slot_terms(NOON, 48), stock=None))
    house.store_plan(a_plan(a_placement(an_offer("old", "10"), [a_segment(0, 40)], "chat", SERVING)))
    rows = await house.reservations.reserve_plan(ALICE, "plan-1")
    window = an_offer("w", "4", window=slot_terms(NOON, 48), stock=None)
    plan = a_plan(a_placement(window, [a_segment(3, 40)], "chat"), plan_id="plan-2")
    await house.moves.move("reoptimizer", plan, [rows[0].reservation_id])
    await house.settle(5)
    assert sorted(house.states()) == sorted([S.ACTIVE, S.SCHEDULED])
    house.clock.advance(hours=3)
    await house.settle(2)
    assert house.states() == [S.RELEASED, S.ACTIVE]


@pytest.mark.parametrize("idempotency", [Idempotency.TAG, Idempotency.TOKEN])
@given(st.lists(st.sampled_from(["reserve", "release"]), max_size=2), st.sampled_from(list(Fault)))
@settings(max_examples=examples(20), deadline=None)
def test_any_fault_ends_in_one_of_both_and_never_in_a_gap(
    idempotency: Idempotency, operations: list[str], fault: Fault
) -> None:
    async def run() -> None:
        house = House(idempotency=idempotency)
        rows = await held(house)
        for operation in operations:
            house.provider.fail(operation, fault)
        try:
            await move(house, rows)
        except Crash:
            house.restart()
        except ProviderError:
            house.restart()
        for _ in range(14):
            try:
                await house.settle(1)
            except Crash:
                house.restart()
            assert nodes_in_use(house) >= 1
        house.assert_agreement()
        live = {i.sku for i in house.provider.open_instances()}
        assert len(live) == 1
        units = [u for r in house.rows() for u in r.units if u.state is UnitState.HELD]
        assert len(units) == 1

    asyncio.run(run())
