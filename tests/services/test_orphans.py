"""Machines without a name that an order with a lost answer left running."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from broker.domain.holding.reservation import Idempotency, Lease, Order, ReservationState
from broker.domain.reconciling.orphaned_leases import orphaned_leases
from broker.domain.spend.charging import reservation_charges
from broker.domain.spend.spend import ChargeBasis
from tests.fakes.examples import ADMIN, ALICE, an_offer
from tests.fakes.provider import Fault
from tests.services.conftest import House

S = ReservationState


def nameless_house() -> House:
    """A house whose seller takes no name with an order, nor says what a machine is."""
    house = House(idempotency=Idempotency.NEITHER)
    listed, found = house.provider.list_leases, house.provider.find_lease

    async def list_leases() -> Sequence[Lease]:
        return [replace(lease, tag=None, sku="") for lease in await listed()]

    async def find_lease(reference: str, region: str) -> Lease:
        return replace(await found(reference, region), tag=None, sku="")

    house.provider.list_leases = list_leases  # type: ignore[method-assign]
    house.provider.find_lease = find_lease  # type: ignore[method-assign]
    house.sell(an_offer(price="2.50"))
    return house


def owed(house: House) -> Decimal:
    charges = reservation_charges(house.rows(), {}, house.clock.now())
    return sum((c.usd for c in charges if c.basis is ChargeBasis.ACTUAL), Decimal(0))


def ledger_usd(house: House) -> Decimal:
    """The seller's bill: hours begun, of every machine."""
    total = Decimal(0)
    for machine in house.provider.ledger:
        seconds = ((machine.released_at or house.clock.now()) - machine.created_at).total_seconds()
        total += Decimal("2.50") * -(-int(seconds) // 3600)
    return total


async def test_what_a_lost_answer_left_is_booked_for_nobody_until_somebody_releases_it() -> None:
    house = nameless_house()
    house.provider.fail("reserve", Fault.LOST_AFTER)
    lost = await house.reservations.reserve_offer(ALICE, "o-1", 1)
    await house.settle(41)
    assert len(house.provider.open_instances()) == 1, "nobody may end what may be a colleague's"
    failed, orphan = house.rows()
    assert (failed.state, orphan.state, orphan.team) == (S.FAILED, S.ACTIVE, "unattributed")
    assert f"an order for {lost.reservation_id} of team research" in orphan.reason
    assert owed(house) == ledger_usd(house) == Decimal("7.50"), "two hours and the one begun"
    (told,) = orphaned_leases(house.rows(), house.clock.now())
    assert (told.provider, told.owed_usd, told.usd_per_hour) == ("fake", Decimal("7.50"), Decimal("2.50"))
    assert house.notifier.events().count("lease.orphaned") == 1
    await house.reservations.release(ADMIN, orphan.reservation_id)
    await house.settle(2)
    assert house.provider.open_instances() == []
    assert orphaned_leases(house.rows(), house.clock.now()) == ()
    assert owed(house) == ledger_usd(house)


async def test_an_orphan_that_shows_late_or_after_a_restart_is_found_once() -> None:
    house = nameless_house()
    house.provider.visible_after_s = 1200
    house.provider.fail("reserve", Fault.LOST_AFTER)
    await house.reservations.reserve_offer(ALICE, "o-1", 1)
    await house.settle(4)
    assert house.states() == [S.FAILED]
    house.restart()
    await house.settle(4)
    house.restart()
    await house.settle(4)
    assert house.states() == [S.FAILED, S.ACTIVE]


async def test_what_was_there_before_the_order_and_what_comes_later_is_a_colleagues() -> None:
    house = nameless_house()
    await house.provider.reserve(Order("colleague", an_offer(price="2.50"), 1))
    await house.reconcile.run_once()
    house.clock.advance(minutes=1)
    house.provider.fail("reserve", Fault.LOST_BEFORE)
    await house.reservations.reserve_offer(ALICE, "o-1", 1)
    await house.settle(4)
    assert house.states() == [S.FAILED]
    house.provider.fail("reserve", Fault.LOST_AFTER)
    await house.reservations.reserve_offer(ALICE, "o-1", 1)
    await house.settle(4)
    booked = [row.provider_references for row in house.rows() if row.team == "unattributed"]
    assert booked == [(house.provider.ledger[1].reference,)]


async def test_an_orphan_that_its_seller_ends_is_not_bought_again() -> None:
    house = nameless_house()
    house.provider.fail("reserve", Fault.LOST_AFTER)
    await house.reservations.reserve_offer(ALICE, "o-1", 1)
    await house.settle(3)
    house.provider.preempt(house.provider.ledger[0].reference)
    await house.settle(4)
    assert house.states() == [S.FAILED, S.RELEASED]
    assert len(house.provider.ledger) == 1


async def test_an_orphan_is_of_the_latest_order_before_it() -> None:
    """The first order had no effect; the second is still in doubt when its machine shows."""
    house = nameless_house()
    house.provider.fail("reserve", Fault.LOST_BEFORE, Fault.LOST_AFTER)
    await house.reservations.reserve_offer(ALICE, "o-1", 1)
    await house.settle(20)
    second = await house.reservations.reserve_offer(ALICE, "o-1", 1)
    house.clock.advance(seconds=30)
    await house.reconcile.run_once()
    await house.settle(4)
    (orphan,) = [row for row in house.rows() if row.team == "unattributed"]
    assert orphan.start == second.units[0].ordered_at == house.provider.ledger[0].created_at
    assert owed(house) == ledger_usd(house)


async def test_what_shows_days_after_a_lost_order_is_not_of_it() -> None:
    house = nameless_house()
    house.provider.fail("reserve", Fault.LOST_BEFORE)
    await house.reservations.reserve_offer(ALICE, "o-1", 1)
    await house.settle(4)
    house.clock.advance(days=2)
    await house.provider.reserve(Order("colleague", an_offer(price="2.50"), 1))
    await house.settle(4)
    assert house.states() == [S.FAILED]
