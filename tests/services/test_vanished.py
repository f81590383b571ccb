"""Capacity that its provider took away, and capacity whose time is over."""

from dataclasses import replace
from datetime import timedelta

import pytest

from broker.domain.basics.errors import ReleaseRefused
from broker.domain.holding.reservation import Lease, Reservation, ReservationState
from broker.domain.market.offer import CancelRule
from broker.domain.planning.workload import WorkloadKind
from tests.fakes.clock import NOON
from tests.fakes.examples import (
    ALICE,
    a_placement,
    a_plan,
    a_segment,
    an_offer,
    listed_terms,
    plan_on_cheapest,
    slot_terms,
)
from tests.fakes.provider import Crash, Fault
from tests.services.conftest import House

S = ReservationState


async def hold(house: House, nodes: int = 2) -> Reservation:
    house.sell(an_offer())
    return await house.reservations.reserve_offer(ALICE, "o-1", nodes)


async def test_what_a_single_pass_misses_is_not_lost(house: House) -> None:
    row = await hold(house)
    hidden = house.provider.ledger.pop(0)
    assert (await house.reconcile.run_once()).actions == ()
    house.provider.ledger.insert(0, hidden)
    await house.settle(3)
    assert (house.states(), house.rows()[0].units) == ([S.ACTIVE], row.units)
    house.assert_agreement()


async def test_two_looks_show_a_loss_and_a_replacement_takes_its_place(house: House) -> None:
    row = await hold(house)
    house.provider.preempt(row.provider_references[0])
    first_look = NOON + timedelta(minutes=3)
    await house.settle(1)
    assert house.states() == [S.ACTIVE]
    assert house.rows()[0].reason == ""
    await house.settle(1)
    old, new = house.rows()
    assert (old.state, old.units[0].gone_at) == (S.ACTIVE, first_look), "billed to the first look"
    assert "ended at the provider" in old.reason
    assert (new.nodes, new.end, new.state) == (1, None, S.SCHEDULED)
    await house.settle(1)
    assert house.states() == [S.ACTIVE, S.ACTIVE]
    assert len(house.provider.open_instances()) == 2
    assert "reservation.lost" in house.notifier.events()
    (line,) = [e for e in house.tables.audit if "in place of" in e.detail]
    assert row.reservation_id in line.detail
    house.assert_agreement()


async def test_a_row_that_loses_all_ends_and_is_replaced_whole(house: House) -> None:
    row = await hold(house)
    for reference in row.provider_references:
        house.provider.preempt(reference)
    await house.settle(3)
    assert house.states() == [S.RELEASED, S.ACTIVE]
    assert house.rows()[1].nodes == 2
    house.assert_agreement()


async def test_a_crash_between_loss_and_replacement_loses_neither(house: House) -> None:
    row = await hold(house, 1)
    house.provider.preempt(row.provider_references[0])
    await house.settle(2)
    assert house.states() == [S.RELEASED, S.SCHEDULED], "both are in one transaction"
    house.provider.fail("reserve", Fault.CRASH)
    with pytest.raises(Crash):
        await house.settle(1)
    house.restart()
    await house.settle(4)
    assert house.states() == [S.RELEASED, S.ACTIVE]
    house.assert_agreement()


async def test_a_replacement_is_asked_for_until_there_is_some(house: House) -> None:
    house.sell(an_offer())
    house.store_plan(
        a_plan(
            a_placement(an_offer(), [a_segment(0, 40)]),
            a_placement(an_offer(), [a_segment(0, 40)], "chat", WorkloadKind.SERVING),
        )
    )
    rows = await house.reservations.reserve_plan(ALICE, "plan-1")
    house.provider.preempt(rows[0].provider_references[0])
    house.provider.fail("reserve", *[Fault.NO_CAPACITY] * 3)
    await house.settle(4)
    assert sorted(house.states()) == sorted([S.RELEASED, S.ACTIVE, S.SCHEDULED]), "the plan is not given back"
    await house.settle(3)
    assert sorted(house.states()) == sorted([S.RELEASED, S.ACTIVE, S.ACTIVE])
    house.assert_agreement()


async def test_a_service_is_replaced_elsewhere_when_its_own_offer_has_none() -> None:
    house = House(plan_call=plan_on_cheapest)
    offer = an_offer("spot", "10")
    house.sell(offer, an_offer("next", "10.1"))
    house.store_plan(a_plan(a_placement(offer, [a_segment(0, 48)], "chat", WorkloadKind.SERVING)))
    (row,) = await house.reservations.reserve_plan(ALICE, "plan-1")
    house.clock.advance(hours=5)
    house.provider.preempt(row.provider_references[0])
    house.provider.fail("reserve", *[Fault.NO_CAPACITY] * 2)
    house.set_time(offer, house.clock.now())
    house.set_time(an_offer("next", "10.1"), house.clock.now())
    await house.settle(6)
    held = [r for r in house.rows() if r.state is S.ACTIVE]
    assert [(r.offer.offer_id, r.end) for r in held] == [("next", NOON + timedelta(hours=48))]
    house.assert_agreement()


async def test_what_is_on_its_way_out_or_bought_as_a_window_is_not_replaced(house: House) -> None:
    row = await hold(house, 1)
    house.provider.fail("release", Fault.DOWN)
    await house.reservations.release(ALICE, row.reservation_id)
    house.provider.preempt(row.provider_references[0])
    house.sell(an_offer("slots", window=slot_terms(NOON, 24), stock=None))
    window = await house.reservations.reserve_offer(ALICE, "slots", 1, NOON, NOON + timedelta(hours=5))
    house.provider.preempt(window.provider_references[0])
    await house.settle(4)
    assert house.states() == [S.RELEASED, S.RELEASED]
    lost = house.rows()[1]
    assert "the provider owes the rest of a paid window" in lost.reason
    assert "POST /v1/plans" in lost.reason
    assert house.notifier.events().count("reservation.lost") == 1


async def test_a_block_is_over_when_its_seller_takes_it_back_and_nobody_asks(house: House) -> None:
    house.provider.per_order = None
    terms = replace(listed_terms(NOON + timedelta(hours=1), 4), teardown_s=1800)
    house.sell(an_offer("block", window=terms, stock=None))
    row = await house.reservations.reserve_offer(ALICE, "block", 2)
    house.clock.advance(hours=4, minutes=32)
    await house.settle(1)
    assert house.states() == [S.ACTIVE]
    house.provider.preempt(row.provider_references[0])
    await house.settle(2)
    assert (house.states(), house.rows()[0].reason) == ([S.RELEASED], "its time is over")
    assert "release" not in house.provider.calls


async def test_a_block_that_its_seller_forgets_is_ended_an_hour_late(house: House) -> None:
    house.provider.per_order = None
    house.sell(an_offer("block", window=listed_terms(NOON + timedelta(hours=1), 4), stock=None))
    await house.reservations.reserve_offer(ALICE, "block", 2)
    house.clock.advance(hours=2)
    await house.settle(1)
    stuck = house.provider.ledger[0]
    house.provider.ledger[0] = replace(stuck, window=None)
    house.clock.advance(hours=3, minutes=30)
    await house.settle(2)
    assert (house.states(), "release" in house.provider.calls) == ([S.ACTIVE], False)
    house.clock.advance(hours=1)
    await house.settle(2)
    assert house.states() == [S.RELEASED]
    assert house.provider.open_instances() == []


async def test_what_has_no_end_at_its_provider_is_ended_at_its_time(house: House) -> None:
    house.sell(an_offer())
    house.provider.provision_s = 3600
    await house.reservations.reserve_offer(ALICE, "o-1", 1, NOON, NOON + timedelta(minutes=30))
    house.clock.advance(minutes=30)
    await house.settle(3)
    assert house.states() == [S.RELEASING], "refused while it is still provisioning"
    house.clock.advance(minutes=30)
    await house.settle(3)
    assert house.states() == [S.RELEASED]
    assert house.provider.open_instances() == []


async def test_what_is_refused_for_good_is_not_asked_again_before_its_end(house: House) -> None:
    house.sell(an_offer("slots", window=slot_terms(NOON, 24, cancel=CancelRule.UNTIL), stock=None))
    row = await house.reservations.reserve_offer(
        ALICE, "slots", 1, NOON + timedelta(hours=1), NOON + timedelta(hours=3)
    )
    real, asked = house.provider.release, []

    async def locked(lease: Lease) -> None:
        asked.append(house.clock.now())
        raise ReleaseRefused("fake", "locked", forever=True)

    house.provider.release = locked  # type: ignore[method-assign]
    await house.reservations.release(ALICE, row.reservation_id)
    await house.settle(6)
    assert len(asked) == 2
    assert "locked" in house.rows()[0].reason
    house.provider.release = real  # type: ignore[method-assign]
    house.clock.advance(hours=3)
    await house.settle(2)
    assert house.states() == [S.RELEASED]


async def test_a_release_is_over_when_neither_look_shows_the_lease(house: House) -> None:
    row = await hold(house, 1)
    real = house.provider.list_leases
    lease = (await real())[0]

    async def still_listed() -> list[Lease]:
        return [lease]

    house.provider.list_leases = still_listed  # type: ignore[method-assign]
    assert (await house.reservations.release(ALICE, row.reservation_id)).state is S.RELEASING
    house.provider.list_leases = real  # type: ignore[method-assign]
    await house.settle(2)
    assert house.states() == [S.RELEASED]


@pytest.mark.parametrize(("min_hours", "replaced"), [(1.0, True), (4.0, True), (24.0, False)])
async def test_no_minimum_term_is_bought_for_a_shorter_rest(min_hours: float, replaced: bool) -> None:
    house = House()
    house.sell(an_offer(min_hours=min_hours))
    row = await house.reservations.reserve_offer(ALICE, "o-1", 1, NOON, NOON + timedelta(hours=6))
    house.provider.preempt(row.provider_references[0])
    await house.settle(3)
    assert len(house.provider.open_instances()) == replaced
