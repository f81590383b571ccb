"""What sellers charge is billed and held against the limit, by the fake seller's own ledger."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import Conflict, InsufficientCapacity, PriceAboveLimit, ProviderError
from broker.domain.holding.lease_money import is_kept_above_limit, price_basis, rate_usd_per_node_hour
from broker.domain.holding.reservation import PriceBasis, Reservation, ReservationState
from broker.domain.market.offer import ContractTerms
from broker.domain.reconciling.shortfalls import find_shortfalls
from broker.domain.spend.charging import owed_usd
from broker.services.market.usable_offers import OfferRules, usable_offers
from tests.fakes.clock import NOON
from tests.fakes.examples import ALICE, a_placement, a_plan, a_segment, an_offer, plan_on_cheapest, slot_terms
from tests.fakes.provider import Fault
from tests.services.conftest import House

S = ReservationState
HOUR = timedelta(hours=1)


def billed_usd(house: House) -> Decimal:
    """The ledger added up apart: whole hours of every instance, at what it was charged."""
    total = Decimal(0)
    for instance in house.provider.ledger:
        end = instance.released_at or house.clock.now()
        hours = max(1, -(-(end - instance.created_at) // HOUR))
        total += instance.usd_per_node_hour * instance.nodes * hours
    return total


async def ordered(house: House, most: str | None = None, nodes: int = 1) -> Reservation:
    limit = None if most is None else Decimal(most)
    return await house.reservations.reserve_offer(ALICE, "o-1", nodes, most_usd_per_node_hour=limit)


@given(factor=st.integers(1, 400), nodes=st.integers(1, 3), hours=st.integers(1, 30))
async def test_the_bill_is_the_ledgers(factor: int, nodes: int, hours: int) -> None:
    house = House()
    house.sell(an_offer())
    house.provider.price_factor = Decimal(factor) / 100
    row = await ordered(house, "40", nodes=nodes)
    house.clock.advance(hours=hours)
    await house.reservations.release(ALICE, row.reservation_id)
    assert owed_usd(house.rows(), house.clock.now()) == billed_usd(house)
    assert billed_usd(house) == Decimal(factor) / 100 * 10 * nodes * hours


async def test_what_is_charged_above_the_limit_is_given_back_at_once(house: House) -> None:
    house.sell(an_offer())
    house.provider.price_factor, house.provider.quoted_usd = Decimal(3), Decimal(10)
    words = (
        r"charges \$30\.00 per node-hour; the limit was \$10\.50, 5\.0% above the \$10\.00 of the offer\. "
        r"Everything was given back; cost \$30\.00"
    )
    with pytest.raises(PriceAboveLimit, match=words):
        await ordered(house, "10.5", nodes=3)
    assert house.provider.open_instances() == []
    assert len(house.provider.ledger) == 1
    assert owed_usd(house.rows(), house.clock.now()) == billed_usd(house)


async def test_a_price_that_is_told_later_is_held_against_the_limit_later() -> None:
    house = House()
    house.sell(an_offer())
    house.provider.price_factor, house.provider.quoted_usd = Decimal(3), Decimal(10)
    house.provider.tells_price_at_once = False
    house.provider.fail("find", Fault.DOWN)
    row = await ordered(house, "10.5")
    assert price_basis(row) is PriceBasis.ESTIMATED
    await house.settle()
    assert house.provider.open_instances() == []
    assert house.states() == [S.RELEASED]
    assert "charges $30.00 per node-hour; the limit was $10.50" in house.rows()[0].reason
    assert owed_usd(house.rows(), house.clock.now()) == billed_usd(house)


async def test_an_order_without_a_limit_takes_the_price_and_its_tolerance(house: House) -> None:
    house.sell(an_offer(price="1.712"))
    house.provider.price_factor = Decimal("2.60") / Decimal("1.712")
    words = (
        r"asks \$2\.60 per node-hour; the limit was \$1\.746, 2\.0% above the \$1\.712 of the offer\. Nothing"
    )
    with pytest.raises(PriceAboveLimit, match=words):
        await ordered(house)
    assert house.provider.ledger == []
    house.provider.price_factor = Decimal("1.02")
    row = await ordered(house)
    assert (row.limit_usd_per_node_hour, rate_usd_per_node_hour(row)) == (
        Decimal("1.74624"),
        Decimal("1.74624"),
    )


async def test_a_window_that_became_dearer_than_its_limit_is_not_bought(house: House) -> None:
    house.sell(an_offer(window=slot_terms(NOON, 48)))
    house.provider.price_factor = Decimal("1.03")
    with pytest.raises(PriceAboveLimit, match=r"asks \$10\.30 per node-hour"):
        await house.reservations.reserve_offer(ALICE, "o-1", 1, NOON + 4 * HOUR, NOON + 8 * HOUR)
    assert house.provider.ledger == []
    house.provider.price_factor = Decimal("1.01")
    row = await house.reservations.reserve_offer(ALICE, "o-1", 1, NOON + 4 * HOUR, NOON + 8 * HOUR)
    assert owed_usd((row,), house.clock.now()) == Decimal("40.40")


@pytest.mark.parametrize(("billed", "is_above"), [("42.00", False), ("42.01", True)])
async def test_a_window_that_is_billed_above_its_limit_is_kept_and_says_so(
    house: House, billed: str, is_above: bool
) -> None:
    house.sell(an_offer(window=slot_terms(NOON, 48)))
    house.provider.billed_usd = Decimal(billed)
    row = await house.reservations.reserve_offer(
        ALICE, "o-1", 1, NOON + 4 * HOUR, NOON + 8 * HOUR, most_usd_per_node_hour=Decimal("10.5")
    )
    assert (row.state, is_kept_above_limit(row)) == (S.SCHEDULED, is_above)


async def test_an_answer_without_a_price_is_looked_up(house: House) -> None:
    house.sell(an_offer())
    house.provider.price_factor = Decimal("1.01")
    house.provider.tells_price_at_once = False
    row = await ordered(house, "10.5")
    assert (rate_usd_per_node_hour(row), price_basis(row)) == (Decimal("10.1"), PriceBasis.CONFIRMED)


async def test_the_next_best_takes_the_place_of_what_is_too_dear() -> None:
    house = House(plan_call=plan_on_cheapest)
    run, other = an_offer("run", "10"), an_offer("other", "10.1", provider="fake")
    house.sell(run, other)
    house.store_plan(a_plan(a_placement(run, [a_segment(0, 10)])))
    house.provider.dear = {"run": Decimal(3)}
    rows = await house.reservations.reserve_plan(ALICE, "plan-1")
    assert [row.offer.offer_id for row in rows] == ["other"]
    assert [i.sku for i in house.provider.open_instances()] == ["sku-other"]


async def test_a_plan_allows_what_it_planned_and_its_tolerance(house: House) -> None:
    run = an_offer("run", "10")
    house.sell(run)
    house.store_plan(a_plan(a_placement(run, [a_segment(0, 10)])))
    house.provider.price_factor = Decimal("1.03")
    with pytest.raises(PriceAboveLimit, match=r"\$10\.30 per node-hour; the limit was \$10\.20"):
        await house.reservations.reserve_plan(ALICE, "plan-1")
    assert house.provider.open_instances() == []


async def planned_for_later(house: House) -> None:
    """Five hours on, a node at $10 is wanted for ten."""
    run = an_offer("run", "10")
    house.sell(run)
    house.store_plan(a_plan(a_placement(run, [a_segment(5, 15)])))
    await house.reservations.reserve_plan(ALICE, "plan-1")


async def test_what_is_too_dear_when_its_time_comes_is_asked_for_until_it_is_not(house: House) -> None:
    await planned_for_later(house)
    house.provider.price_factor = Decimal("1.03")
    house.clock.advance(hours=5)
    await house.reconcile.run_once()
    (row,) = house.rows()
    assert (row.state, row.tries, house.provider.ledger) == (S.SCHEDULED, 1, [])
    (short,) = find_shortfalls(house.rows(), house.clock.now())
    assert "asks $10.30 per node-hour; the limit was $10.20" in str(short)
    house.provider.price_factor = Decimal("1.02")
    await house.settle(1)
    (row,) = house.rows()
    assert (row.state, rate_usd_per_node_hour(row)) == (S.ACTIVE, Decimal("10.2"))
    house.clock.advance(hours=2)
    assert owed_usd(house.rows(), house.clock.now()) == billed_usd(house)


async def test_what_is_charged_above_its_quote_later_is_given_back_and_told_as_missing(house: House) -> None:
    await planned_for_later(house)
    house.provider.price_factor, house.provider.quoted_usd = Decimal(3), Decimal(10)
    house.clock.advance(hours=5)
    report = await house.reconcile.run_once()
    await house.settle(3)
    assert house.provider.open_instances() == []
    assert len(house.provider.ledger) == 1, "it is not bought and given back again and again"
    assert [change.offer_id for change in report.sold_out] == ["run"]
    (told,) = [entry.detail for entry in house.tables.audit if entry.action == "reservation.short"]
    assert "short of 1 of 1 nodes from 23 Nov 17:00 UTC" in told
    assert "charges $30.00 per node-hour; the limit was $10.20" in told
    assert owed_usd(house.rows(), house.clock.now()) == billed_usd(house)


async def test_what_is_bought_again_after_a_loss_keeps_its_limit(house: House) -> None:
    house.sell(an_offer())
    row = await ordered(house, "10.5")
    house.provider.preempt(row.provider_references[0])
    house.provider.price_factor = Decimal(2)
    await house.settle(3)
    lost, wanted = house.rows()
    assert lost.reservation_id == row.reservation_id
    assert (wanted.state, wanted.limit_usd_per_node_hour) == (S.SCHEDULED, Decimal("10.5"))
    assert house.provider.open_instances() == []


async def test_a_contracts_price_stands_against_what_is_charged(house: House) -> None:
    house.sell(replace(an_offer(price="8"), contract=ContractTerms("ours", Decimal(10))))
    house.provider.price_factor = Decimal(3)
    row = await ordered(house, "8.4")
    house.clock.advance(hours=2)
    assert price_basis(row) is PriceBasis.CONTRACT
    assert owed_usd((row,), house.clock.now()) == Decimal(16)


async def test_what_is_owed_for_its_term_anyway_is_kept_and_shows_its_price(house: House) -> None:
    house.sell(an_offer(min_hours=720))
    house.provider.price_factor, house.provider.quoted_usd = Decimal(2), Decimal(10)
    row = await ordered(house, "10.5")
    assert row.state is S.ACTIVE
    assert rate_usd_per_node_hour(row) == Decimal(20)
    assert row.limit_usd_per_node_hour == Decimal("10.5")


async def test_what_a_death_left_above_its_limit_is_given_back(house: House) -> None:
    house.sell(an_offer())
    house.provider.price_factor = Decimal(3)
    row = await ordered(house, "30")
    limited = replace(row, limit_usd_per_node_hour=Decimal("10.5"))
    house.tables.reservations[row.reservation_id] = limited
    await house.settle()
    assert house.provider.open_instances() == []
    assert house.states() == [S.RELEASED]


@pytest.mark.parametrize(
    ("fault", "error", "left"),
    [
        (Fault.TOO_DEAR, PriceAboveLimit, [("14.87", NOON, NOON + 48 * HOUR)]),
        (
            Fault.NO_CAPACITY,
            InsufficientCapacity,
            [("10", NOON, NOON + 4 * HOUR), ("10", NOON + 8 * HOUR, NOON + 48 * HOUR)],
        ),
    ],
)
async def test_a_refused_window_is_another_one_in_the_next_plan(
    house: House, fault: Fault, error: type[ProviderError], left: list[tuple[str, datetime, datetime]]
) -> None:
    house.sell(an_offer(window=slot_terms(NOON, 48)))
    house.provider.fail("reserve", fault)
    with pytest.raises(error, match=r"Nothing was bought; cost \$0\.00"):
        await house.reservations.reserve_offer(ALICE, "o-1", 1, NOON + 4 * HOUR, NOON + 8 * HOUR)
    assert await on_offer(house) == left
    house.clock.advance(minutes=61)
    house.set_time(an_offer(window=slot_terms(NOON, 48)), house.clock.now())
    assert await on_offer(house) == [("10", NOON, NOON + 48 * HOUR)]


async def on_offer(house: House) -> list[tuple[str, datetime, datetime]]:
    """What the next plan may be made of: prices and free times."""
    async with house.tables.unit_of_work(EVERY_TEAM) as uow:
        offers = await usable_offers(uow, house.clock.now(), OfferRules())
    return [
        (f"{offer.price_usd_per_node_hour:f}", segment.start, segment.end)
        for offer in offers
        if offer.window is not None
        for segment in offer.window.segments
    ]


class TestSellersWhoseLeasesTellNoPrice:
    """Their offer is asked for once more just before the order."""

    async def test_a_quote_above_the_limit_buys_nothing(self, house: House) -> None:
        self._on_sale(house, "3")
        words = (
            r"asks \$30\.00 per node-hour; the limit was \$10\.50, 5\.0% above the \$10\.00 of the offer\. "
            r"Nothing was bought; cost \$0\.00\. Plan"
        )
        with pytest.raises(PriceAboveLimit, match=words):
            await ordered(house, "10.5")
        assert house.provider.ledger == []
        assert house.states() == [S.FAILED]

    async def test_a_quote_is_what_it_costs_and_is_an_estimate(self, house: House) -> None:
        self._on_sale(house, "3")
        row = await ordered(house, "30")
        house.clock.advance(hours=4)
        assert price_basis(row) is PriceBasis.ESTIMATED
        assert owed_usd((row,), house.clock.now()) == billed_usd(house) == Decimal(120)

    async def test_what_is_no_longer_on_sale_is_not_ordered(self, house: House) -> None:
        self._on_sale(house, "1")
        house.provider.offers = (an_offer("other"),)
        with pytest.raises(InsufficientCapacity, match="no longer on sale"):
            await ordered(house)
        assert house.provider.ledger == []

    async def test_a_seller_that_cannot_be_asked_is_asked_again_later(self, house: House) -> None:
        self._on_sale(house, "1")
        house.provider.fail("list_offers", Fault.DOWN)
        row = await ordered(house, "10.5")
        assert (row.state, house.provider.ledger) == (S.PENDING, [])
        await house.settle()
        assert house.states() == [S.ACTIVE]

    @staticmethod
    def _on_sale(house: House, factor: str) -> None:
        house.sell(an_offer())
        house.provider.offers = (an_offer(),)
        house.provider.tells_price = False
        house.provider.price_factor = Decimal(factor)


async def test_an_offer_above_the_limit_is_not_even_ordered(house: House) -> None:
    house.sell(an_offer(observed_at=NOON))
    with pytest.raises(Conflict, match=r"costs \$10\.00"):
        await ordered(house, "9")
