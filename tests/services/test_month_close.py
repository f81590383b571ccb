"""A closed month keeps what it said; what its bills come to later is a correction of the next."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from broker.domain.basics.access import ALL_TEAMS_SCOPES, EVERY_TEAM
from broker.domain.basics.account import Caller
from broker.domain.basics.errors import Conflict, InputError, NotPermitted
from broker.domain.basics.money import ZERO
from broker.domain.basics.webhook import ALL_TEAMS
from broker.domain.basics.window import Window
from broker.domain.focus.check import check_focus
from broker.domain.focus.columns import FocusRow, FocusVersion, focus_columns
from broker.domain.focus.corrections import costs_of
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.spend.month_close import Unconfirmed, find_unconfirmed
from broker.domain.spend.spend import ChargeBasis, Interval
from broker.services.spend.spend import SpendService
from tests.fakes.examples import ADMIN, ALICE, an_offer
from tests.services.conftest import House

FINANCE = Caller("key-finance", ALL_TEAMS, ALL_TEAMS_SCOPES)
NOVEMBER, DECEMBER = date(2026, 11, 1), date(2026, 12, 1)


def month(first: date, last: date) -> Window:
    start, end = (datetime(day.year, day.month, 1, tzinfo=UTC) for day in (first, last))
    return Window(start, end)


IN_NOVEMBER, IN_DECEMBER = month(NOVEMBER, DECEMBER), month(DECEMBER, date(2027, 1, 1))


async def usd(spend: SpendService, window: Window) -> Decimal:
    return (await spend.projection(ADMIN, window, Interval.MONTH)).actual_usd


async def focus(spend: SpendService, window: Window | None = None) -> list[FocusRow]:
    return [row async for row in spend.focus(ADMIN, window).rows]


async def credit(house: House, amount: str) -> None:
    """The seller gives back something for a unit that ended in November."""
    row = house.rows()[0]
    async with house.tables.unit_of_work(EVERY_TEAM) as uow:
        await uow.reservations.update(row.with_unit(replace(row.units[0], credit_usd=Decimal(amount))))
        await uow.commit()


async def ended_in_november(house: House, *, released: bool = True) -> SpendService:
    house.sell(an_offer("o", "10"))
    row = await house.reservations.reserve_offer(ALICE, "o", 2)
    house.clock.advance(hours=10)
    if released:
        await house.reservations.release(ALICE, row.reservation_id)
        await house.settle(2)
    house.clock.advance(days=10)
    return SpendService(house.tables.unit_of_work, house.clock)


def written(rows: list[FocusRow]) -> list[dict[str, str]]:
    """As a CSV has them."""

    def text(cell: Any) -> str:
        if cell is None:
            return ""
        return cell.strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(cell, datetime) else str(cell)

    return [{name: text(row.get(name)) for name in focus_columns(FocusVersion.V1_2)} for row in rows]


@pytest.mark.parametrize("rolled_up", [True, False])
async def test_a_late_credit_is_a_correction_of_the_open_month(house: House, rolled_up: bool) -> None:
    spend = await ended_in_november(house)
    if rolled_up:
        assert await spend.roll_up() == 1
    done = await spend.close(ADMIN, NOVEMBER, "books of November")
    before, rows = await usd(spend, IN_NOVEMBER), await focus(spend, IN_NOVEMBER)
    assert (done.closed.usd, done.closed.rows) == (before, len(rows))
    await credit(house, "7.50")
    for _ in range(2):
        assert await usd(spend, IN_NOVEMBER) == before
        assert await usd(spend, IN_DECEMBER) == Decimal("-7.50")
        assert await focus(spend, IN_NOVEMBER) == rows
        (row,) = await focus(spend, IN_DECEMBER)
        assert (row["ChargeClass"], row["ChargeCategory"]) == ("Correction", "Adjustment")
        assert (row["BilledCost"], row["EffectiveCost"]) == (Decimal("-7.50"), Decimal("-7.50"))
        assert row["ChargePeriodStart"] == IN_DECEMBER.start
        columns = list(focus_columns(FocusVersion.V1_2))
        assert list(check_focus(columns, written(await focus(spend)))) == []
        await spend.roll_up()
    house.clock.advance(days=31)
    await spend.close(ADMIN, DECEMBER)
    await credit(house, "8.00")
    assert await usd(spend, IN_DECEMBER) == Decimal("-7.50")
    assert await usd(spend, month(date(2027, 1, 1), date(2027, 2, 1))) == Decimal("-0.50")
    assert sum((costs_of(row)[0] for row in await focus(spend)), ZERO) == before - 8


async def test_what_runs_on_is_cut_at_the_month_s_edge(house: House) -> None:
    spend = await ended_in_november(house, released=False)
    await spend.close(ADMIN, NOVEMBER)
    said = await usd(spend, IN_NOVEMBER)
    assert said == Decimal(20) * (7 * 24 + 12)
    house.clock.advance(days=3)
    assert await usd(spend, IN_NOVEMBER) == said
    charges = await spend.charges(ADMIN)
    assert await usd(spend, IN_NOVEMBER) + await usd(spend, IN_DECEMBER) == sum(
        (c.usd for c in charges if c.basis is ChargeBasis.ACTUAL), ZERO
    )
    assert not [row for row in await focus(spend, IN_DECEMBER) if row.get("ChargeClass")]


async def test_months_close_in_turn_once_and_when_they_are_over(house: House) -> None:
    spend = await ended_in_november(house)
    with pytest.raises(InputError, match="has ended"):
        await spend.close(ADMIN, DECEMBER)
    house.clock.advance(days=60)
    with pytest.raises(Conflict, match="close 2026-11 before"):
        await spend.close(ADMIN, DECEMBER)
    await spend.close(ADMIN, NOVEMBER)
    with pytest.raises(Conflict, match="already closed"):
        await spend.close(ADMIN, NOVEMBER)
    with pytest.raises(NotPermitted):
        await spend.close(replace(FINANCE, team="research"), DECEMBER)
    assert [one.month for one in await spend.find_closed(ALICE)] == [NOVEMBER]
    assert house.tables.audit[-1].action == "spend.close"


async def test_a_team_reads_of_a_closed_month_what_it_cost_that_team(house: House) -> None:
    spend = await ended_in_november(house)
    done = (await spend.close(ADMIN, NOVEMBER)).closed
    assert done.usd > 0
    assert await spend.find_closed(FINANCE) == (done,)
    (own,) = await spend.find_closed(ALICE)
    assert (own.usd, own.rows) == (done.usd, None)
    (other,) = await spend.find_closed(replace(ALICE, team="another"))
    assert (other.month, other.usd, other.rows) == (NOVEMBER, ZERO, None)


async def test_finance_closes_a_month_with_a_key_of_all_teams(house: House) -> None:
    """It reads and decides for every team, and needs no administrator."""
    spend = await ended_in_november(house)
    done = await spend.close(FINANCE, NOVEMBER)
    assert (done.closed.closed_by, done.unconfirmed) == (FINANCE.key_id, ())
    with pytest.raises(NotPermitted, match="of all teams"):
        await spend.close(replace(FINANCE, team="research"), DECEMBER)


async def test_a_close_names_the_sellers_that_did_not_confirm_their_leases_since(house: House) -> None:
    house.sell(an_offer("o", "10"))
    await house.reservations.reserve_offer(ALICE, "o", 2)
    await house.settle(2)
    row = house.rows()[0]
    seen = row.units[0].seen_at
    assert seen is not None
    house.clock.advance(days=10)
    spend = SpendService(house.tables.unit_of_work, house.clock)
    (one,) = (await spend.close(FINANCE, NOVEMBER)).unconfirmed
    assert (one.provider, one.confirmed_at) == (row.offer.provider, seen)
    assert "not confirmed since by fake" in house.tables.audit[-1].detail


@pytest.mark.parametrize(("seen_at", "named"), [(-1, True), (0, False), (1, False), (None, True)])
def test_a_lease_that_was_seen_after_the_month_is_confirmed(seen_at: int | None, named: bool) -> None:
    at = None if seen_at is None else IN_NOVEMBER.end + seen_at * timedelta(seconds=1)
    offer = an_offer("o", "10")
    unit = Unit(0, "t", 1, UnitState.HELD, "i", IN_NOVEMBER.start, seen_at=at)
    begun = IN_NOVEMBER.start
    row = Reservation("r", "research", ReservationState.ACTIVE, offer, 1, begun, None, (unit,), begun)
    assert find_unconfirmed([row], IN_NOVEMBER) == ((Unconfirmed(offer.provider, at),) if named else ())
    later = replace(row, start=IN_NOVEMBER.end)
    assert find_unconfirmed([later], IN_NOVEMBER) == (), "it began after the month"


async def test_a_plan_that_nobody_reserved_is_not_expected_in_a_closed_month(house: House) -> None:
    spend = await ended_in_november(house)
    await spend.close(ADMIN, NOVEMBER)
    november = await spend.projection(ADMIN, IN_NOVEMBER)
    assert november.total_usd == november.actual_usd
