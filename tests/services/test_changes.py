"""What changed between two months: price is what prices did, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from broker.domain.basics.money import ZERO
from broker.domain.basics.window import Window
from broker.domain.spend.spend import CostView
from broker.services.holding.changes import ChangesService
from broker.services.spend.spend import SpendService
from tests.fakes.examples import ADMIN, ALICE, an_offer
from tests.services.conftest import House

NOVEMBER = Window(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC))
DECEMBER = Window(NOVEMBER.end, datetime(2027, 1, 1, tzinfo=UTC))


async def held(house: House, price: str, starts_h: float, ends_h: float) -> None:
    """A lease of two nodes, billed by hours that begin, from and to hours after 23 November 12:00."""
    now_h = (house.clock.now() - datetime(2026, 11, 23, 12, tzinfo=UTC)).total_seconds() / 3600
    house.clock.advance(hours=starts_h - now_h)
    house.sell(replace(an_offer("o", price, increment_s=3600), observed_at=house.clock.now()))
    row = await house.reservations.reserve_offer(ALICE, "o", 2)
    house.clock.advance(hours=ends_h - starts_h)
    await house.reservations.release(ALICE, row.reservation_id)
    await house.settle(2)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("view", list(CostView))
async def test_an_hour_over_the_end_of_the_month_is_no_price(
    house: House, view: CostView, *, closed: bool
) -> None:
    """At $1.712 an hour: 10 + 0.5 hours of November, of which the last is billed until 00:30 of December."""
    await held(house, "1.712", 0, 10)
    await held(house, "1.712", 179.5, 204.25)
    if closed:
        house.clock.advance(days=40)
        spend = SpendService(house.tables.unit_of_work, house.clock)
        await spend.close(ADMIN, date(2026, 11, 1))
        await spend.close(ADMIN, date(2026, 12, 1))
    found = await ChangesService(house.tables.unit_of_work, house.clock).between_windows(
        ADMIN, NOVEMBER, DECEMBER, view=view
    )
    assert abs(found.before_usd - 2 * 11 * Decimal("1.712")) < Decimal("0.02")
    assert abs(found.after_usd - 2 * 24 * Decimal("1.712")) < Decimal("0.02")
    assert (found.price_usd, found.mix_usd) == (ZERO, ZERO)
    assert found.volume_usd == found.after_usd - found.before_usd


async def test_a_price_that_moved_is_told(house: House) -> None:
    """10 hours at $2, then 10 hours at $3."""
    await held(house, "2", 0, 10)
    await held(house, "3", 240, 250)
    found = await ChangesService(house.tables.unit_of_work, house.clock).between_windows(
        ADMIN, NOVEMBER, DECEMBER
    )
    assert (found.price_usd, found.volume_usd, found.mix_usd) == (Decimal(20), ZERO, ZERO)
