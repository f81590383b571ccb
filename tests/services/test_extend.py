from datetime import timedelta
from decimal import Decimal

import pytest

from api.release_words import estimate_words
from broker.domain.basics.errors import Conflict, InputError, NotFound, NotPermitted
from broker.domain.basics.money import to_cents
from broker.domain.holding.reservation import ReservationState
from broker.domain.spend.charging import owed_usd, reservation_charges
from providers.sandbox.ledger import Tariff
from tests.fakes.clock import NOON
from tests.fakes.examples import ALICE, BOB, READER, an_offer, slot_terms
from tests.services.conftest import House

HOUR = timedelta(hours=1)


async def test_a_holding_lasts_until_its_later_end(house: House) -> None:
    house.sell(an_offer())
    row = await house.reservations.reserve_offer(ALICE, "o-1", 1, NOON, NOON + 2 * HOUR)
    for _ in range(2):
        longer = await house.reservations.extend(ALICE, row.reservation_id, NOON + 5 * HOUR)
        assert (longer.end, longer.wish.end) == (NOON + 5 * HOUR, NOON + 5 * HOUR)
    house.clock.advance(hours=3)
    await house.settle(1)
    assert house.states() == [ReservationState.ACTIVE]
    house.clock.advance(hours=2)
    await house.settle(1)
    assert house.states() == [ReservationState.RELEASED]
    (line,) = [entry for entry in house.tables.audit if entry.action == "reservation.extend"]
    assert (line.actor, line.object_id) == ("key-alice", row.reservation_id)
    assert line.detail == "active: until 23 Nov 2026 17:00 UTC"


@pytest.mark.parametrize("increment_s", [1, 60, 3600])
@pytest.mark.parametrize("longer_h", [2.1, 4.75, 30.0])
async def test_the_quote_of_an_extension_is_what_the_seller_bills_for_it(
    house: House, increment_s: int, longer_h: float
) -> None:
    """Two nodes from noon for two hours, by the increments of the sandbox's ledger, to the cent."""
    tariff = Tariff(Decimal("20.74"), increment_s)
    house.sell(an_offer(price="10.37", increment_s=increment_s))
    row = await house.reservations.reserve_offer(ALICE, "o-1", 2, NOON, NOON + 2 * HOUR)
    await house.settle(1)
    end = NOON + longer_h * HOUR
    quote = await house.reservations.quote_extension(ALICE, row.reservation_id, end)
    billed = tariff.billed_usd(longer_h * HOUR) - tariff.billed_usd(2 * HOUR)
    assert quote.usd == to_cents(billed)
    assert quote.usd_per_hour == tariff.usd_per_hour
    before = await house.reservations.find_reservation(ALICE, row.reservation_id)
    assert before.end == NOON + 2 * HOUR, "a quote changes nothing"
    (charged,) = house.rows()
    projected = sum(charge.usd for charge in reservation_charges((charged,), {}, house.clock.now()))
    await house.reservations.extend(ALICE, row.reservation_id, end)
    house.clock.advance(hours=longer_h)
    assert owed_usd(house.rows(), end) - projected == quote.usd


async def test_the_quote_of_an_extension_is_refused_as_the_extension_is(house: House) -> None:
    house.sell(an_offer())
    row = await house.reservations.reserve_offer(ALICE, "o-1", 1, NOON, NOON + 2 * HOUR)
    with pytest.raises(InputError, match=r"/end: .*a time after .*release it"):
        await house.reservations.quote_extension(ALICE, row.reservation_id, NOON + HOUR)
    with pytest.raises(NotFound):
        await house.reservations.quote_extension(BOB, row.reservation_id, NOON + 3 * HOUR)
    same = await house.reservations.quote_extension(ALICE, row.reservation_id, NOON + 2 * HOUR)
    assert same.usd == 0


async def test_a_release_is_told_with_what_it_saves(house: House) -> None:
    """By the hour: 2 of 24 hours are owed at the release, and the ledger bills no more."""
    house.sell(an_offer(price="10.37"))
    row = await house.reservations.reserve_offer(ALICE, "o-1", 1, NOON, NOON + 24 * HOUR)
    house.clock.advance(hours=1.5)
    found = await house.reservations.estimate_release(ALICE, row.reservation_id)
    assert (found.stays_usd, found.saves_usd) == (Decimal("20.74"), Decimal("228.14"))
    whole = Tariff(Decimal("10.37"), 3600)
    assert found.saves_usd == whole.billed_usd(24 * HOUR) - whole.billed_usd(1.5 * HOUR)
    told = "$20.74 stays owed. A release now saves $228.14 against holding it until its end."
    assert told in estimate_words(found)
    house.clock.advance(hours=22.3)
    late = await house.reservations.estimate_release(ALICE, row.reservation_id)
    assert late.saves_usd == 0
    assert "saves nothing" in estimate_words(late)
    endless = await house.reservations.reserve_offer(ALICE, "o-1", 1)
    assert (await house.reservations.estimate_release(ALICE, endless.reservation_id)).saves_usd is None


async def test_what_cannot_last_longer_says_the_way_out(house: House) -> None:
    house.sell(an_offer(), an_offer("w", window=slot_terms(NOON, 24), stock=None))
    row = await house.reservations.reserve_offer(ALICE, "o-1", 1, NOON, NOON + 2 * HOUR)
    with pytest.raises(InputError, match=r"/end: .*a time after .*release it"):
        await house.reservations.extend(ALICE, row.reservation_id, NOON + HOUR)
    with pytest.raises(NotFound):
        await house.reservations.extend(BOB, row.reservation_id, NOON + 3 * HOUR)
    with pytest.raises(NotPermitted):
        await house.reservations.extend(READER, row.reservation_id, NOON + 3 * HOUR)
    await house.reservations.release(ALICE, row.reservation_id)
    with pytest.raises(Conflict, match="reserve offer o-1 again"):
        await house.reservations.extend(ALICE, row.reservation_id, NOON + 3 * HOUR)
    endless = await house.reservations.reserve_offer(ALICE, "o-1", 1)
    with pytest.raises(Conflict, match="lasts until it is released"):
        await house.reservations.extend(ALICE, endless.reservation_id, NOON + 3 * HOUR)
    window = await house.reservations.reserve_offer(ALICE, "w", 1, NOON + HOUR, NOON + 3 * HOUR)
    with pytest.raises(Conflict, match=r"second reservation of offer w from 2026-11-23T15:00:00Z on"):
        await house.reservations.extend(ALICE, window.reservation_id, NOON + 5 * HOUR)


async def test_a_window_costs_what_its_seller_says_last(house: House) -> None:
    """A window that is lengthened at its seller has a larger bill there, which replaces the first."""
    house.sell(an_offer("w", window=slot_terms(NOON, 24), stock=None))
    house.provider.billed_usd = Decimal("40.25")
    row = await house.reservations.reserve_offer(ALICE, "w", 1, NOON + HOUR, NOON + 5 * HOUR)
    assert owed_usd(house.rows(), house.clock.now()) == Decimal("40.25")
    house.provider.billed_usd = Decimal("61.75")
    await house.settle(2)
    (row,) = house.rows()
    assert (row.units[0].paid_usd, owed_usd([row], house.clock.now())) == (Decimal("61.75"), Decimal("61.75"))


async def test_an_extension_that_the_reconciler_overtakes_is_tried_again(house: House) -> None:
    house.provider.provision_s = 60
    house.sell(an_offer())
    row = await house.reservations.reserve_offer(ALICE, "o-1", 1, NOON, NOON + 2 * HOUR)
    real = house.reservations.find_reservation

    async def stale(*args: object) -> object:
        found = await real(ALICE, row.reservation_id)
        house.clock.advance(minutes=2)
        await house.reconcile.run_once()
        return found

    house.reservations.find_reservation = stale  # type: ignore[method-assign, assignment]
    longer = await house.reservations.extend(ALICE, row.reservation_id, NOON + 5 * HOUR)
    assert (longer.end, longer.state) == (NOON + 5 * HOUR, ReservationState.ACTIVE)


async def test_an_extension_that_a_longer_one_overtakes_shortens_nothing(house: House) -> None:
    house.sell(an_offer())
    row = await house.reservations.reserve_offer(ALICE, "o-1", 1, NOON, NOON + 2 * HOUR)
    real = house.reservations.find_reservation

    async def overtaken(*args: object) -> object:
        found = await real(ALICE, row.reservation_id)
        house.reservations.find_reservation = real  # type: ignore[method-assign]
        await house.reservations.extend(ALICE, row.reservation_id, NOON + 5 * HOUR)
        return found

    house.reservations.find_reservation = overtaken  # type: ignore[method-assign, assignment]
    with pytest.raises(InputError, match=r"/end: .*a time after 2026-11-23T17:00"):
        await house.reservations.extend(ALICE, row.reservation_id, NOON + 3 * HOUR)
    assert [one.end for one in house.rows()] == [NOON + 5 * HOUR]
