"""Reservations leave behind what their launches taught, and offers say it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from broker.catalogue import load_launch_table
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import InsufficientCapacity
from broker.domain.basics.node_launch import LaunchBasis, NodeLaunch
from broker.domain.holding.launches import LaunchOutcome
from broker.domain.market.launch_statistics import StatisticsLevel
from broker.services.market.offers import OffersService
from broker.services.market.usable_offers import OfferRules, usable_offers
from tests.fakes.clock import NOON
from tests.fakes.examples import ALICE, an_offer
from tests.fakes.provider import Fault
from tests.services.conftest import House


def outcomes(house: House) -> list[LaunchOutcome]:
    return [attempt.outcome for attempt in house.tables.launches.values()]


async def test_a_launch_teaches_how_long_it_took(house: House) -> None:
    house.provider.provision_s = 300
    house.sell(an_offer(), an_offer("o-2"))
    await house.reservations.reserve_offer(ALICE, "o-1", 2)
    assert outcomes(house) == []
    await house.settle(3)
    (attempt,) = house.tables.launches.values()
    assert (attempt.outcome, attempt.offer_id, attempt.minutes) == (LaunchOutcome.USABLE, "o-1", 6)

    offers = OffersService(house.tables.unit_of_work, {}, house.clock)
    told = {offer.offer_id: offer.learned for offer in await offers.find_offers()}
    assert {name: one.basis for name, one in told.items() if one} == {
        "o-1": StatisticsLevel.OFFER,
        "o-2": StatisticsLevel.PROVIDER,
    }
    assert (await offers.find_offer("o-1")).learned == told["o-1"]


async def test_a_sold_out_provider_asked_again_and_again_is_one_failure(house: House) -> None:
    house.sell(an_offer())
    start = NOON + timedelta(hours=1)
    await house.reservations.reserve_offer(ALICE, "o-1", 1, start, start + timedelta(hours=4))
    house.provider.fail("reserve", *[Fault.NO_CAPACITY] * 3)
    house.clock.advance(hours=1)
    await house.settle(6)
    assert outcomes(house) == [LaunchOutcome.NO_CAPACITY, LaunchOutcome.USABLE]


async def test_capacity_that_fails_after_the_order_is_a_failed_launch(house: House) -> None:
    house.provider.provision_s = 300
    house.sell(an_offer())
    house.provider.fail("reserve", Fault.NO_CAPACITY_LATER)
    await house.reservations.reserve_offer(ALICE, "o-1", 1)
    await house.settle()
    assert outcomes(house) == [LaunchOutcome.FAILED]


async def test_what_is_given_back_by_wish_teaches_nothing(house: House) -> None:
    house.provider.provision_s = 3000
    house.sell(an_offer())
    row = await house.reservations.reserve_offer(ALICE, "o-1", 1)
    await house.reservations.release(ALICE, row.reservation_id)
    await house.settle(3)
    assert outcomes(house) == []


async def test_a_refusal_at_once(house: House) -> None:
    house.sell(an_offer())
    house.provider.fail("reserve", Fault.NO_CAPACITY)
    with pytest.raises(InsufficientCapacity):
        await house.reservations.reserve_offer(ALICE, "o-1", 1)
    assert outcomes(house) == [LaunchOutcome.NO_CAPACITY]


async def test_three_launches_take_the_place_of_what_is_assumed(house: House) -> None:
    """The market takes 300 s, and each look at it is two minutes after the last: 360 s until it is seen."""
    house.provider.provision_s = 300
    house.sell(an_offer(), an_offer("o-2"))
    rules = OfferRules(timedelta(hours=2), launch_times=load_launch_table())

    async def planned_with() -> dict[str, NodeLaunch | None]:
        async with house.tables.unit_of_work(EVERY_TEAM) as uow:
            found = await usable_offers(uow, house.clock.now(), rules)
        return {offer.offer_id: offer.launch for offer in found}

    for number in range(3):
        assert {one.basis for one in (await planned_with()).values() if one} == {LaunchBasis.ASSUMED}, number
        await house.reservations.reserve_offer(ALICE, "o-1", 1)
        await house.settle(3)
    measured = await planned_with()
    assert [(one.launch_s, one.basis) for one in measured.values() if one] == [
        (360, LaunchBasis.MEASURED)
    ] * 2
