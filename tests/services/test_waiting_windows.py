"""Windows that begin when capacity appears: ordered in time, followed as granted, billed as given."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from broker.domain.basics.errors import InputError
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import ReservationState
from broker.domain.spend.charging import owed_usd, reservation_charges
from tests.fakes.clock import NOON
from tests.fakes.examples import ALICE, an_offer, waiting_terms
from tests.services.conftest import House

S = ReservationState
HOUR = timedelta(hours=1)


async def reserve(house: House, start_h: float = 6.0, hours: float = 4.0) -> None:
    house.sell(an_offer("flex", price="10", window=waiting_terms(), stock=None))
    start = NOON + start_h * HOUR
    await house.reservations.reserve_offer(ALICE, "flex", 1, start, start + hours * HOUR)


async def test_it_is_ordered_its_longest_wait_before_its_start(house: House) -> None:
    house.provider.appears_after_s = 40 * 60
    await reserve(house)
    await house.settle(3)
    assert (house.states(), house.provider.ledger) == ([S.SCHEDULED], [])
    house.clock.advance(hours=4)
    await house.settle(1)
    begun = house.provider.ledger[0].created_at
    assert NOON + 4 * HOUR <= begun < NOON + 5 * HOUR
    assert (house.states(), house.rows()[0].granted) == ([S.SCHEDULED], None)
    assert owed_usd(house.rows(), house.clock.now()) == 0


async def test_what_is_granted_counts_for_its_end_and_its_bill(house: House) -> None:
    house.provider.appears_after_s = 40 * 60
    await reserve(house)
    house.clock.advance(hours=4)
    await house.reconcile.run_once()
    begin = house.provider.ledger[0].created_at + timedelta(minutes=40)
    house.clock.advance(minutes=41)
    await house.settle(3)
    (row,) = house.rows()
    assert (row.state, row.granted) == (S.ACTIVE, Window(begin, begin + 4 * HOUR))
    assert (row.usable, row.ends_at) == (row.granted, begin + 4 * HOUR)
    assert row.end == NOON + 10 * HOUR > begin + 4 * HOUR
    house.clock.advance(hours=4)
    await house.settle(3)
    assert house.states() == [S.RELEASED]
    assert house.provider.open_instances() == []
    assert owed_usd(house.rows(), house.clock.now()) == Decimal("40.00")


async def test_given_back_early_it_costs_what_was_held(house: House) -> None:
    await reserve(house, start_h=2)
    await house.settle(1)
    begin = house.provider.ledger[0].created_at
    house.clock.advance(hours=1)
    await house.settle(1)
    await house.reservations.release(ALICE, house.rows()[0].reservation_id)
    await house.settle(2)
    assert house.states() == [S.RELEASED]
    held = house.rows()[0].units[0].gone_at
    assert held is not None
    assert HOUR <= held - begin < 2 * HOUR
    assert owed_usd(house.rows(), house.clock.now()) == Decimal("20.00")


async def test_capacity_that_never_appears_costs_nothing(house: House) -> None:
    house.provider.appears_after_s = 3 * 3600
    await reserve(house)
    house.clock.advance(hours=4)
    await house.settle(1)
    assert house.states() == [S.SCHEDULED]
    (charge,) = reservation_charges(house.rows(), {}, house.clock.now())
    assert (charge.basis, charge.usd) == ("projected", Decimal("40.00"))
    house.clock.advance(hours=2)
    await house.settle(3)
    assert house.states() == [S.FAILED]
    assert owed_usd(house.rows(), house.clock.now()) == 0


async def test_a_start_sooner_than_the_wait_is_refused_and_none_given_is_the_first(house: House) -> None:
    with pytest.raises(InputError, match=r"at least 2\.0 h after now"):
        await reserve(house, start_h=1)
    row = await house.reservations.reserve_offer(ALICE, "flex", 1, None, NOON + 3 * HOUR)
    assert row.start == NOON + 2 * HOUR
