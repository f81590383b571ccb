"""The arithmetic of spending caps: what counts, when, and at which price."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from broker.domain.basics.errors import OverCap
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.offer import Offer
from broker.domain.spend.spending_caps import SpendingCap, SpendingCaps, require_within_caps
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer, listed_terms

HOUR = timedelta(hours=1)
DAY = 24 * HOUR


def cap(hour: str | None = None, day: str | None = None) -> SpendingCap:
    return SpendingCap(*(None if usd is None else Decimal(usd) for usd in (hour, day)))


def row(
    name: str,
    nodes: int = 1,
    start: datetime = NOON,
    end: datetime | None = None,
    *,
    offer: Offer | None = None,
    team: str = "research",
    limit: str | None = None,
    held: bool = False,
) -> Reservation:
    """An order of nodes at $10 an hour that is not sent yet, or a lease that is ``held``."""
    state = UnitState.HELD if held else UnitState.PLANNED
    unit = Unit(0, f"t-{name}", nodes, state, f"i-{name}" if held else None, NOON if held else None)
    return Reservation(
        name,
        team,
        ReservationState.ACTIVE if held else ReservationState.PENDING,
        offer or an_offer(f"o-{name}", "10"),
        nodes,
        start,
        end,
        (unit,),
        NOON,
        limit_usd_per_node_hour=None if limit is None else Decimal(limit),
    )


def refused(caps: SpendingCaps, wanted: Reservation, *known: Reservation) -> str:
    """What the refusal says; empty if the order is within the caps."""
    try:
        require_within_caps(caps, (wanted,), known, NOON)
    except OverCap as error:
        return str(error)
    return ""


def test_the_refusal_has_the_arithmetic_and_the_field() -> None:
    caps = SpendingCaps(cap("25"))
    with pytest.raises(OverCap) as raised:
        require_within_caps(caps, (row("b", 2),), (row("a", held=True, team="product"),), NOON)
    error = raised.value
    assert str(error) == (
        "BROKER_MAX_USD_PER_HOUR allows all teams $25.00 per hour, but $10.00 held and ordered + $20.00 of "
        "this order = $30.00 > $25.00 on 2026-11-23 12:00 UTC: order less, release something first, or have "
        "the cap raised"
    )
    assert error.facts == {
        "setting": "BROKER_MAX_USD_PER_HOUR",
        "team": None,
        "period": "hour",
        "held_usd": "10",
        "added_usd": "20",
        "cap_usd": "25",
    }
    (problem,) = error.problems
    assert (problem.pointer, problem.expected) == ("/nodes", "at most $15.00 per hour")


def test_exactly_the_cap_is_allowed() -> None:
    assert not refused(SpendingCaps(cap("30")), row("b", 2), row("a", held=True))


def test_a_team_s_cap_counts_that_team_alone() -> None:
    caps = SpendingCaps(teams={"research": cap("15")})
    assert not refused(caps, row("b"), row("a", team="product", held=True))
    assert not refused(caps, row("b", team="product"), row("a", held=True))
    assert "BROKER_TEAM_CAPS allows team research $15.00 per hour" in refused(
        caps, row("b"), row("a", held=True)
    )


def test_an_order_counts_at_its_limit_until_its_price_is_confirmed() -> None:
    caps = SpendingCaps(cap("10.10", None))
    assert "$10.20 of this order" in refused(caps, row("a", limit="10.20"))
    held = row("b", limit="10.20", held=True)
    known = replace(
        held, units=(replace(held.units[0], price_usd_per_node_hour=Decimal("9"), is_price_confirmed=True),)
    )
    assert "$10.20 held" in refused(SpendingCaps(cap("11")), row("c", offer=an_offer("c", "2")), held)
    assert not refused(SpendingCaps(cap("11")), row("c", offer=an_offer("c", "2")), known)


def test_only_what_is_held_at_one_time_counts_by_the_hour() -> None:
    caps = SpendingCaps(cap("10"))
    first = row("a", 1, NOON, NOON + HOUR, held=True)
    assert not refused(caps, row("b", 1, NOON + HOUR), first)
    assert "on 2026-11-23 12:30 UTC" in refused(caps, row("b", 1, NOON + HOUR / 2), first)


def test_what_is_overdue_or_being_released_is_still_held() -> None:
    caps = SpendingCaps(cap("10"))
    overdue = row("a", 1, NOON - 2 * HOUR, NOON - HOUR, held=True)
    leaving = replace(row("a", held=True), state=ReservationState.RELEASING)
    assert refused(caps, row("b"), overdue)
    assert refused(caps, row("b"), leaving)
    assert not refused(caps, row("b", 1, NOON + 2 * HOUR), leaving)


def test_a_day_counts_the_hours_of_that_day() -> None:
    caps = SpendingCaps(cap(day="120"))
    assert not refused(caps, row("a", 1, NOON, NOON + 12 * HOUR))
    assert not refused(caps, row("a", 1, NOON, NOON + 24 * HOUR)), "half of it is tomorrow's"
    open_end = refused(caps, row("a"))
    assert "= $240.00 > $120.00 on 2026-11-24 (UTC)" in open_end


def test_what_begins_later_counts_with_what_is_still_held_then() -> None:
    later = row("b", 1, NOON + 3 * DAY)
    told = refused(SpendingCaps(cap(day="400")), later, row("a", held=True))
    assert "$240.00 held and ordered + $240.00 of this order = $480.00 > $400.00 on 2026-11-27" in told


def test_a_window_counts_whole_on_the_day_of_its_order() -> None:
    window = an_offer("w", "10", window=listed_terms(NOON + 3 * DAY, 48, nodes=1), upfront="480")
    wanted = row("a", 1, NOON + 3 * DAY, NOON + 5 * DAY, offer=window)
    assert "$480.00 of this order = $480.00 > $300.00 on 2026-11-23 (UTC)" in refused(
        SpendingCaps(cap(day="300")), wanted
    )
    assert not refused(SpendingCaps(cap("10", "480")), wanted), "spread over its hours it is $10 an hour"


def test_a_minimum_term_counts_whole_on_its_first_day() -> None:
    committed = an_offer("m", "1", min_hours=720)
    assert "$720.00 of this order" in refused(SpendingCaps(cap(day="100")), row("a", offer=committed))


def test_what_was_released_today_still_counts_today() -> None:
    caps = SpendingCaps(cap(day="60"))
    gone = row("a", 5, NOON - 2 * HOUR, held=True)
    unit = replace(gone.units[0], state=UnitState.GONE, ordered_at=NOON - 2 * HOUR, gone_at=NOON - HOUR)
    gone = replace(gone, state=ReservationState.RELEASED, released_at=NOON - HOUR, units=(unit,))
    assert "$50.00 held and ordered + $20.00" in refused(caps, row("b", 1, NOON, NOON + 2 * HOUR), gone)
    assert not refused(caps, row("b", 1, NOON, NOON + HOUR), gone)
    assert not refused(SpendingCaps(cap("10")), row("b"), gone), "it costs nothing per hour any more"


def test_an_extension_does_not_count_what_it_extends_twice() -> None:
    caps = SpendingCaps(cap("10", "200"))
    held = row("a", 1, NOON, NOON + HOUR, held=True)
    assert not refused(caps, replace(held, end=NOON + 4 * HOUR), held)
    told = refused(caps, replace(held, end=NOON + 40 * HOUR), held)
    assert "of this extension = $240.00 > $200.00" in told


def test_what_is_replaced_counts_until_an_hour_after_its_replacement_begins() -> None:
    old = row("a", held=True)
    new = replace(row("b"), replaces=("a",))
    assert refused(SpendingCaps(cap("19")), new, old), "both are held for a while"
    assert not refused(SpendingCaps(cap("20", "250")), new, old), "tomorrow one of them is"
    later = row("c", 1, NOON + DAY)
    assert not refused(SpendingCaps(cap("20")), later, old, new)
