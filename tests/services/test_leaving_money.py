"""What leaving early costs, by each seller's terms: as ``broker spend`` and the trail say it."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from broker.domain.focus.corrections import costs_of, start_of
from broker.domain.holding.reservation import Reservation
from broker.domain.market.offer import CancelRule
from broker.domain.spend.spend import Charge, CostView, Interval
from broker.services.spend.spend import SpendService
from tests.fakes.clock import NOON
from tests.fakes.examples import ADMIN, ALICE, an_offer, slot_terms
from tests.services.conftest import House


async def window_of(house: House, cancel: CancelRule) -> Reservation:
    """A window of four hours of one node at 10 USD, an hour from now."""
    house.sell(an_offer("w", "10", window=slot_terms(NOON, 24, cancel=cancel), stock=None))
    begin = NOON + timedelta(hours=1)
    return await house.reservations.reserve_offer(ALICE, "w", 1, begin, begin + timedelta(hours=4))


async def charges(house: House) -> tuple[Charge, ...]:
    return await SpendService(house.tables.unit_of_work, house.clock).charges(ALICE)


@pytest.mark.parametrize(
    ("cancel", "after_h", "billed", "credit", "owed"),
    [
        (CancelRule.UNTIL, 0.5, None, None, "0"),  # refunded in full before its start
        (CancelRule.ANY_TIME, 0.5, None, None, "0"),
        (CancelRule.ANY_TIME, 3, None, None, "20.00"),  # the hours that were used
        (CancelRule.UNTIL, 3, None, "-5.00", "45.00"),  # a charge for winding down
        (CancelRule.RESELL, 3, None, "12.34", "27.66"),  # what a buyer paid for the rest
        (CancelRule.RESELL, 3, "39.50", "12.34", "27.16"),  # and it was bought a little cheaper
        (CancelRule.NEVER, 3, None, None, "40.00"),
    ],
)
async def test_each_term_has_its_money(
    house: House, cancel: CancelRule, after_h: float, billed: str | None, credit: str | None, owed: str
) -> None:
    house.provider.billed_usd = None if billed is None else Decimal(billed)
    house.provider.credit_usd = None if credit is None else Decimal(credit)
    row = await window_of(house, cancel)
    house.clock.advance(hours=after_h)
    await house.reconcile.run_once()
    await house.reservations.release(ALICE, row.reservation_id)
    found = await charges(house)
    assert sum((charge.usd for charge in found), Decimal(0)) == Decimal(owed)
    given_back = [charge for charge in found if charge.usd < 0]
    if credit is not None and Decimal(credit) > 0:
        (line,) = given_back
        assert line.usd == -Decimal(credit)
        assert line.window.start == house.clock.now()
    else:
        assert given_back == []


async def test_a_bill_that_the_seller_shows_later_is_booked(house: House) -> None:
    await window_of(house, CancelRule.RESELL)
    assert sum(charge.usd for charge in await charges(house)) == Decimal(40)
    house.provider.billed_usd = Decimal("38.75")
    await house.reconcile.run_once()
    assert sum(charge.usd for charge in await charges(house)) == Decimal("38.75")
    assert (await house.reconcile.run_once()).actions == ()


async def test_a_credit_that_only_the_reconciler_sees_is_booked(house: House) -> None:
    row = await window_of(house, CancelRule.RESELL)
    house.provider.credit_usd = Decimal("7.50")
    house.provider.preempt(row.provider_references[0])
    await house.settle(2)
    assert sum(charge.usd for charge in await charges(house)) == Decimal("32.50")


@pytest.mark.parametrize("rolled_up", [True, False])
async def test_a_december_window_sold_in_november_is_a_cost_of_november_alone(
    house: House, rolled_up: bool
) -> None:
    """It is bought for 3 December on, released on 25 November, and four fifths of it come back."""
    house.sell(an_offer("w", "10", window=slot_terms(NOON, 2000, cancel=CancelRule.RESELL), stock=None))
    house.provider.credit_usd = Decimal(384)
    begin = datetime(2026, 12, 3, tzinfo=UTC)
    row = await house.reservations.reserve_offer(ALICE, "w", 1, begin, begin + timedelta(hours=48))
    spend = SpendService(house.tables.unit_of_work, house.clock)
    assert await by_month(spend, CostView.AMORTIZED) == {12: Decimal(480)}
    house.clock.advance(days=2)
    await house.reservations.release(ALICE, row.reservation_id)
    await house.settle(2)
    house.clock.advance(days=7)
    if rolled_up:
        assert await spend.roll_up() == 1
    for _ in range(2):
        for view in CostView:
            assert await by_month(spend, view) == {11: Decimal(96)}
        days = await spend.projection(ADMIN, None, Interval.DAY)
        assert {line.period.day: line.usd for line in days.rows} == {25: Decimal(96)}
        closed = await spend.find_closed(ADMIN) or ((await spend.close(ADMIN, date(2026, 11, 1))).closed,)
        assert closed[0].usd == Decimal(96)
        rows = [row async for row in spend.focus(ADMIN).rows]
        assert sum((costs_of(line)[1] for line in rows), Decimal(0)) == Decimal(96)
        assert {start_of(line).month for line in rows} == {11}


async def by_month(spend: SpendService, view: CostView) -> dict[int, Decimal]:
    found = await spend.projection(ADMIN, None, Interval.MONTH, view=view)
    return {line.period.month: line.usd for line in found.rows}
