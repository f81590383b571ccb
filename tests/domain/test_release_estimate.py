"""What a release gives back, said before: it is what the books say afterwards."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from api.release_words import estimate_words, released_words
from broker.domain.basics.money import ZERO
from broker.domain.holding.holding_orders import Intent, unplaced_order
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.offer import CancelRule, Offer
from broker.domain.spend.order_quote import quote_of
from broker.domain.spend.release_estimate import (
    OwedAt,
    ReleaseEstimate,
    Resale,
    ResaleShares,
    estimate_planned_release,
    estimate_release,
    resales_of,
    saves_money,
)
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_segment, an_offer, listed_terms, slot_terms

HOUR = timedelta(hours=1)
NO_BUYER = ResaleShares({}, ZERO)
HALF = ResaleShares({}, Decimal("0.5"))


def held(offer: Offer, begins: float, hours: float, name: str = "r-1") -> Reservation:
    """One node, ordered at noon."""
    start = NOON + begins * HOUR
    return Reservation(
        reservation_id=name,
        team="research",
        state=ReservationState.HELD,
        offer=offer,
        nodes=1,
        start=start,
        end=start + hours * HOUR,
        units=(Unit(0, f"tag-{name}", 1, UnitState.HELD, f"i-{name}", NOON),),
        created_at=NOON,
        workload="train",
    )


def window(cancel: CancelRule) -> Offer:
    return an_offer("w", "10", window=slot_terms(NOON, 2000, cancel=cancel))


def sold(begins: float, hours: float, left: float, credit: str, name: str) -> Reservation:
    row = held(window(CancelRule.RESELL), begins, hours, name)
    at = NOON + left * HOUR
    unit = replace(row.units[0], state=UnitState.GONE, gone_at=at, credit_usd=Decimal(credit))
    return replace(row, state=ReservationState.RELEASED, units=(unit,), released_at=at)


@pytest.mark.parametrize(
    ("cancel", "after_h", "back", "stays"),
    [
        (CancelRule.NEVER, 1, "0", "100"),
        (CancelRule.UNTIL, 1, "100", "0"),
        (CancelRule.UNTIL, 5, "0", "100"),
        (CancelRule.ANY_TIME, 1, "100", "0"),
        (CancelRule.ANY_TIME, 5, "70", "30"),
        (CancelRule.RESELL, 1, "50", "50"),
        (CancelRule.RESELL, 7, "25", "75"),
    ],
)
def test_a_window_gives_back_what_its_terms_say(
    cancel: CancelRule, after_h: float, back: str, stays: str
) -> None:
    """Ten hours at 10 USD, two hours after noon; a buyer is expected to pay half of what is left."""
    found = estimate_release([held(window(cancel), 2, 10)], NOON + after_h * HOUR, HALF)
    assert (found.back_usd, found.stays_usd) == (Decimal(back), Decimal(stays))
    assert bool(found.resales) == (cancel is CancelRule.RESELL)


def test_hours_end_at_once_and_a_minimum_term_stays_owed() -> None:
    hourly, term = held(an_offer("h", "3"), 0, 100), held(an_offer("t", "2", min_hours=50), 0, 100, "r-2")
    found = estimate_release([hourly, term], NOON + 4.5 * HOUR, NO_BUYER)
    assert (found.back_usd, found.stays_usd) == (ZERO, Decimal(5 * 3 + 50 * 2))


def test_what_was_sold_before_says_what_a_buyer_pays() -> None:
    """One sale of all ten hours for 80 USD, and one of the last five for 30 USD: 110 of 150 USD."""
    rows = [
        sold(10, 10, 1, "80", "s-1"),
        sold(0, 10, 5, "30", "s-2"),
        held(window(CancelRule.RESELL), 2, 10),
    ]
    shares = resales_of(rows, Decimal("0.1"))
    assert shares.of("fake") == Resale("fake", Decimal(110) / Decimal(150), 2)
    assert shares.of("other") == Resale("other", Decimal("0.1"), 0)
    found = estimate_release(rows[2:], NOON + HOUR, shares)
    assert (found.back_usd, found.stays_usd) == (Decimal("73.33"), Decimal("26.67"))


def test_a_plan_that_is_not_bought_yet() -> None:
    term, hourly = an_offer("a/term", "10", min_hours=720), an_offer("b/hourly", "3")
    block = an_offer("c/block", "1", window=listed_terms(NOON, 24), upfront="500")
    resold = an_offer("e/resold", "2", window=listed_terms(NOON, 24, 1, CancelRule.RESELL), upfront="48")
    plan = a_plan(
        a_placement(term, [a_segment(0, 1000, 2)], "train"),
        a_placement(hourly, [a_segment(0, 4), a_segment(4, 8, 3)], "chat"),
        a_placement(block, [a_segment(0, 24, 2)], "tune"),
        a_placement(resold, [a_segment(0, 24)], "more"),
        a_placement(an_offer("d/gone", "7"), [a_segment(0, 1)], "lost"),
    )
    offers = {offer.offer_id: offer for offer in (term, hourly, block, resold)}
    found = estimate_planned_release(plan, offers, NOON, HALF)
    assert (found.back_usd, found.stays_usd) == (Decimal(24), Decimal(2 * 720 * 10 + 3 + 500 + 24))
    assert (found.min_hours, found.unknown) == ({"a/term": 720}, 1)
    assert found.resales == (Resale("fake", Decimal("0.5"), 0),)
    assert (found.coming_usd, found.first_start, found.last_start) == (
        Decimal(2 * 3),
        NOON + 4 * HOUR,
        NOON + 4 * HOUR,
    ), "two nodes of the hourly offer start later"


@pytest.mark.parametrize("begins", [0, 30])
@pytest.mark.parametrize(
    "offer", [an_offer("t", "28", min_hours=8), an_offer("h", "3"), an_offer("i", "2", increment_s=7200)]
)
def test_an_order_says_of_its_release_what_its_reservation_says(offer: Offer, begins: float) -> None:
    """Both follow the same books, before and after the start, whether it is bought at once or scheduled."""
    start = NOON + begins * HOUR
    intent = Intent(offer, 2, start, start + 100 * HOUR, "train")
    quoted = quote_of(intent, "research", NOON, NO_BUYER).on_release
    stored = unplaced_order(intent, "research", NOON)
    if not begins:
        stored = bought(stored)
    assert estimate_release([stored], NOON, NO_BUYER) == replace(
        quoted, min_hours=quoted.min_hours if begins else {}
    )
    later = estimate_release([bought(stored)], start, NO_BUYER)
    assert later.stays_usd == (quoted.coming_usd if begins else quoted.stays_usd) > 0


def bought(row: Reservation) -> Reservation:
    (unit,) = row.units
    unit = replace(unit, state=UnitState.HELD, reference="i-1", ordered_at=row.start)
    return replace(row, state=ReservationState.HELD, units=(unit,))


def test_a_later_release_owes_what_has_run_by_then() -> None:
    """200 hours at 2 USD from noon tomorrow, and 10 hours at 3 USD that begin 196 hours later."""
    long = unplaced_order(
        Intent(an_offer("l", "2"), 1, NOON + 24 * HOUR, NOON + 224 * HOUR), "research", NOON
    )
    short = unplaced_order(
        Intent(an_offer("s", "3"), 1, NOON + 220 * HOUR, NOON + 230 * HOUR), "research", NOON
    )
    found = estimate_release([long, short], NOON, NO_BUYER)
    assert (found.stays_usd, found.last_start) == (ZERO, NOON + 220 * HOUR)
    assert found.coming_usd == 196 * 2 + 3, "by the last start, most of the first has run"
    assert found.later == (
        OwedAt(NOON + 48 * HOUR, Decimal(24 * 2)),
        OwedAt(NOON + 192 * HOUR, Decimal(168 * 2)),
    )
    assert estimate_words(found) == (
        "Released before the first of it starts on 2026-11-24 12:00 UTC: nothing is owed. "
        "Released right after the last of it has started, 2026-12-02 16:00 UTC: $395.00. "
        "Released later, it has cost in all $48.00 on 2026-11-25 12:00 UTC, "
        "and $336.00 on 2026-12-01 12:00 UTC."
    )


def test_a_later_release_counts_what_is_bought_with_what_is_coming() -> None:
    """A minimum term that runs, a node by the hour until tomorrow, and one that comes tomorrow."""
    rows = [
        held(an_offer("t", "2", min_hours=50), 0, 300),
        held(an_offer("h", "3"), 0, 20, "r-2"),
        unplaced_order(Intent(an_offer("c", "1"), 1, NOON + 20 * HOUR, NOON + 400 * HOUR), "research", NOON),
    ]
    found = estimate_release(rows, NOON + HOUR, NO_BUYER)
    assert [one.usd for one in found.later] == [
        Decimal(50 * 2 + 20 * 3 + 5),
        Decimal(169 * 2 + 20 * 3 + 149),
    ]


def test_a_later_release_of_a_plan_counts_its_windows_by_their_terms() -> None:
    """48 hours at 10 USD that can be left at any time, beside 100 hours at 3 USD."""
    leave = an_offer("w", "10", window=slot_terms(NOON, 96, cancel=CancelRule.ANY_TIME))
    hourly = an_offer("b/hourly", "3")
    plan = a_plan(
        a_placement(leave, [a_segment(0, 48)], "tune"), a_placement(hourly, [a_segment(0, 100)], "chat")
    )
    found = estimate_planned_release(plan, {"w": leave, "b/hourly": hourly}, NOON, NO_BUYER)
    assert [(one.at, one.usd) for one in found.later] == [(NOON + 24 * HOUR, Decimal(240 + 72))]


def test_what_is_due_and_not_bought_may_be_bought_at_any_moment() -> None:
    row = replace(
        unplaced_order(Intent(an_offer("t", "2", min_hours=50), 1, NOON, None), "research", NOON),
        tries=3,
    )
    found = estimate_release([row], NOON + HOUR, NO_BUYER)
    assert (found.stays_usd, found.coming_usd, found.first_start) == (ZERO, Decimal(100), None)
    assert not estimate_release([replace(row, state=ReservationState.RELEASED)], NOON, NO_BUYER).has_coming


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (("87.18", "21.80", ()), "You get $87.18 back, $21.80 stays owed."),
        (("0", "21.80", ()), "Nothing comes back, $21.80 stays owed."),
        (("0", "0", ()), "Nothing stays owed."),
        (
            ("87.18", "21.80", (Resale("x", Decimal("0.8"), 3),)),
            "You get about $87.18 back, about $21.80 stays owed."
            " X pays for what is left: your last 3 releases there brought 80% of its price.",
        ),
        (
            ("0", "108.98", (Resale("x", ZERO, 0),)),
            "Nothing is sure to come back, at most $108.98 stays owed."
            " What X pays for what is left comes back too, and is known after the release.",
        ),
    ],
)
def test_the_estimate_in_words(found: tuple[str, str, tuple[Resale, ...]], said: str) -> None:
    back, stays, resales = found
    assert estimate_words(ReleaseEstimate(Decimal(back), Decimal(stays), resales), str.upper) == said


@pytest.mark.parametrize(
    ("stays", "coming", "starts", "said"),
    [
        (
            "0",
            "67.29",
            (30, 30),
            "Released before it starts on 2026-11-24 18:00 UTC: nothing is owed. "
            "Released right after the start: $67.29.",
        ),
        (
            "0",
            "0",
            (30, 30),
            "Released before it starts on 2026-11-24 18:00 UTC: nothing is owed. "
            "Released right after the start: the time it has run.",
        ),
        (
            "0",
            "9",
            (12, 36),
            "Released before the first of it starts on 2026-11-24 00:00 UTC: nothing is owed. "
            "Released right after the last of it has started, 2026-11-25 00:00 UTC: $9.00.",
        ),
        (
            "0",
            "9",
            (None, None),
            "Released before it is bought: nothing is owed. Released right after the purchase: $9.00.",
        ),
        (
            "5",
            "9",
            (12, 12),
            "Nothing comes back, $5.00 stays owed. What starts on 2026-11-24 00:00 UTC owes nothing if it is "
            "released before, and $9.00 right after.",
        ),
        (
            "5",
            "9",
            (12, 36),
            "Nothing comes back, $5.00 stays owed. What starts later, 2026-11-24 00:00 UTC to "
            "2026-11-25 00:00 UTC, owes nothing if it is released before, and $9.00 right after the last "
            "of it has started.",
        ),
        (
            "5",
            "9",
            (None, 36),
            "Nothing comes back, $5.00 stays owed. What is not bought yet owes nothing if it is released "
            "before, and $9.00 right after its purchase.",
        ),
    ],
)
def test_what_starts_later_in_words(
    stays: str, coming: str, starts: tuple[float | None, float | None], said: str
) -> None:
    first, last = (None if at is None else NOON + at * HOUR for at in starts)
    found = ReleaseEstimate(
        ZERO, Decimal(stays), has_coming=True, coming_usd=Decimal(coming), first_start=first, last_start=last
    )
    assert estimate_words(found) == said


def test_what_came_back_in_words() -> None:
    assert released_words(Decimal("87.18"), Decimal("21.80")) == "$87.18 came back, $21.80 stays owed."
    assert released_words(Decimal(-5), Decimal(45)) == "Leaving cost $5.00, $45.00 stays owed."
    assert released_words(ZERO, Decimal(45)) == "Nothing came back, $45.00 stays owed."
    assert released_words(ZERO, ZERO) == "Nothing is owed."


@pytest.mark.parametrize("active_after_h", [None, -0.5, 0.0, 0.5])
def test_a_release_saves_what_is_not_held_yet_whether_or_not_the_node_has_started(
    active_after_h: float | None,
) -> None:
    """By the hour for a day, at noon: the node runs already, begins now, or is still to start."""
    row = held(an_offer("o", "10"), 0, 24)
    if active_after_h is not None:
        row = replace(row, active_at=NOON + active_after_h * HOUR)
    estimate = estimate_release([row], NOON, NO_BUYER)
    assert saves_money(row, estimate, NOON)


def test_no_release_saves_money_in_the_last_billed_hour_or_in_a_window_that_is_paid() -> None:
    row = replace(held(an_offer("o", "10"), 0, 2), active_at=NOON)
    late = NOON + 1.5 * HOUR
    assert not saves_money(row, estimate_release([row], late, NO_BUYER), late)
    paid = held(window(CancelRule.NEVER), 2, 10)
    assert not saves_money(paid, estimate_release([paid], NOON, NO_BUYER), NOON)
