"""Until when what is gone is billed, and who pays for what nobody asked for."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from broker.domain.basics.identity import make_id, make_tag, next_tag
from broker.domain.holding.reservation import Idempotency, Order, Reservation, ReservationState
from broker.domain.reconciling.orphaned_leases import UNATTRIBUTED
from broker.domain.spend.charging import owed_usd
from tests.fakes.clock import NOON
from tests.fakes.examples import ALICE, an_offer
from tests.fakes.provider import Crash, Fault
from tests.services.conftest import House

S = ReservationState
BY_THE_SECOND = an_offer(price="36", increment_s=1)
"""One cent a second."""


async def held(house: House) -> Reservation:
    house.sell(BY_THE_SECOND)
    return await house.reservations.reserve_offer(ALICE, "o-1", 1)


def owed(house: House, row: Reservation) -> Decimal:
    return owed_usd((house.tables.reservations[row.reservation_id],), house.clock.now())


def gone_at(house: House) -> datetime | None:
    return house.rows()[0].units[0].gone_at


async def test_what_was_taken_while_nobody_looked_is_billed_until_it_was_last_seen(house: House) -> None:
    row = await held(house)
    house.clock.advance(minutes=10)
    await house.reconcile.run_once()
    house.provider.preempt(row.provider_references[0])
    house.clock.advance(hours=5)  # in which the broker was dead
    house.restart()
    await house.settle(2)
    assert gone_at(house) == NOON + timedelta(minutes=10)
    assert owed(house, row) == 6


async def test_the_seller_s_own_word_counts_for_more(house: House) -> None:
    house.provider.tells_times = True
    row = await held(house)
    house.clock.advance(minutes=10)
    await house.reconcile.run_once()
    house.clock.advance(minutes=7)
    house.provider.preempt(row.provider_references[0])
    house.clock.advance(hours=5)
    await house.settle(2)
    assert gone_at(house) == NOON + timedelta(minutes=17)


@pytest.mark.parametrize("fault", [Fault.CRASH, Fault.LOST_AFTER])
async def test_a_release_whose_answer_was_lost_is_billed_until_it_was_asked_for(
    house: House, fault: Fault
) -> None:
    row = await held(house)
    house.clock.advance(minutes=10)
    house.provider.fail("release", fault)
    try:
        await house.reservations.release(ALICE, row.reservation_id)
    except Crash:
        house.restart()
    house.clock.advance(hours=5)
    await house.settle(3)
    assert (house.states(), gone_at(house)) == ([S.RELEASED], NOON + timedelta(minutes=10))
    assert owed(house, row) == 6


async def test_a_release_that_never_arrived_is_billed_until_it_was_asked_for_again(house: House) -> None:
    row = await held(house)
    house.provider.fail("release", Fault.CRASH_BEFORE)
    with pytest.raises(Crash):
        await house.reservations.release(ALICE, row.reservation_id)
    house.restart()
    house.clock.advance(hours=1)
    await house.reconcile.run_once()
    house.clock.advance(hours=5)
    await house.settle(3)
    assert gone_at(house) == NOON + timedelta(hours=1)


async def test_an_order_that_was_sent_again_counts_from_when_its_seller_says(house: House) -> None:
    house.provider.idempotency, house.provider.tells_times = Idempotency.TOKEN, True
    house.provider.fail("reserve", Fault.LOST_BEFORE, Fault.LOST_BEFORE)
    row = await held(house)
    assert house.states() == [S.UNKNOWN]
    house.clock.advance(minutes=30)
    await house.reconcile.run_once()
    house.clock.advance(minutes=10)
    await house.reservations.release(ALICE, row.reservation_id)
    assert owed(house, row) == 6


async def test_what_never_came_up_for_want_of_capacity_costs_nothing(house: House) -> None:
    house.provider.tells_times = True
    house.provider.fail("reserve", Fault.NO_CAPACITY_LATER)
    row = await held(house)
    await house.settle(3)
    assert house.states() == [S.FAILED]
    assert owed(house, row) == 0


async def test_a_stray_is_paid_for_by_the_team_whose_tag_it_carries(house: House) -> None:
    row = await held(house)
    house.clock.advance(minutes=1)
    await house.provider.reserve(Order(house.provider.ledger[0].tag, BY_THE_SECOND, 1))  # a double
    await house.settle(10)
    house.assert_agreement()
    _, stray = house.rows()
    assert (stray.team, stray.state, stray.offer) == (row.team, S.RELEASED, BY_THE_SECOND)
    assert stray.reason.startswith(f"stray: it was bought for {row.reservation_id}")
    ended = house.provider.ledger[1].released_at
    assert ended is not None
    assert owed(house, stray) == Decimal((ended - NOON) // timedelta(seconds=1)) / 100, "from its order on"


@pytest.mark.parametrize("on_sale", [True, False])
async def test_a_stray_of_nobody_is_booked_where_its_price_is_known(house: House, on_sale: bool) -> None:
    if on_sale:
        house.sell(BY_THE_SECOND)
    house.clock.advance(hours=1)
    tag = make_tag("test", make_id("rsv", house.clock.now(), bytes(10)), 0)
    await house.provider.reserve(Order(tag, BY_THE_SECOND, 1))
    house.clock.advance(minutes=5)
    await house.settle(10)
    assert house.provider.open_instances() == []
    (line,) = [e for e in house.tables.audit if e.action == "lease.release_stray"]
    if on_sale:
        (stray,) = house.rows()
        assert (stray.team, stray.start, stray.state) == (UNATTRIBUTED, NOON + timedelta(hours=1), S.RELEASED)
        assert stray.reservation_id in line.detail
    else:
        assert house.rows() == []
        assert "its price is not known" in line.detail


async def test_the_end_of_a_stray_is_asked_for_until_it_is_gone(house: House) -> None:
    house.sell(BY_THE_SECOND)
    await house.provider.reserve(Order(make_tag("test", "rsv-lost", 0), BY_THE_SECOND, 1))
    house.provider.fail("release", Fault.DOWN, Fault.DOWN)
    await house.settle(7)
    assert house.states() == [S.RELEASING]
    await house.settle(4)
    assert house.states() == [S.RELEASED]
    assert house.provider.open_instances() == []


async def test_what_was_asked_to_end_later_than_its_sibling_is_billed_for_longer(house: House) -> None:
    house.sell(BY_THE_SECOND)
    row = await house.reservations.reserve_offer(ALICE, "o-1", 2)
    house.provider.fail("release", Fault.CRASH)
    with pytest.raises(Crash):
        await house.reservations.release(ALICE, row.reservation_id)
    house.restart()
    house.clock.advance(hours=1)
    await house.settle(4)
    (ended,) = house.rows()
    billed = sum(((i.released_at or NOON) - NOON).total_seconds() for i in house.provider.ledger)
    assert billed > 3600
    assert owed(house, ended) == Decimal(billed) / 100 + Decimal("0.01")


async def test_a_stray_with_a_short_name_is_booked_to_whom_it_was_bought_for(house: House) -> None:
    house.provider.longest_tag = 32
    house.sell(BY_THE_SECOND)
    row = await house.reservations.reserve_offer(ALICE, BY_THE_SECOND.offer_id, 1)
    (unit,) = row.units
    assert len(unit.tag) <= 32
    await house.provider.reserve(Order(next_tag(unit.tag), BY_THE_SECOND, 1))
    await house.settle(10)
    (stray,) = [one for one in house.rows() if one.reservation_id != row.reservation_id]
    assert (stray.team, stray.state) == (row.team, S.RELEASED)
    assert stray.reason.startswith(f"stray: it was bought for {row.reservation_id}")
