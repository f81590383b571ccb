"""When a unit's bill begins and ends, at its edges; what waits for capacity, and windows that are left."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from math import ceil

import pytest

from broker.domain.basics.window import Window, Wish
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.offer import CancelRule
from broker.domain.spend.billed_spans import (
    BilledSpan,
    cents_until,
    prepaid_block,
    reduced_days,
    rounded_spans,
    used_part,
)
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer, listed_terms, slot_terms, waiting_terms

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
START, END = NOON + 4 * HOUR, NOON + 8 * HOUR


def window(cancel: CancelRule, nodes: int = 2) -> Reservation:
    """A bought window of four hours at $10, from four hours after noon."""
    make = listed_terms if cancel is CancelRule.NEVER else slot_terms
    return Reservation(
        reservation_id="r-1",
        team="research",
        state=ReservationState.SCHEDULED,
        offer=an_offer(window=make(START, 4, nodes, cancel)),
        nodes=nodes,
        start=START,
        end=END,
        units=(Unit(0, "t", nodes, UnitState.HELD, "i-1", NOON),),
        created_at=NOON,
    )


def left(row: Reservation, gone_at: datetime) -> Reservation:
    unit = replace(row.units[0], state=UnitState.GONE, gone_at=gone_at)
    return replace(row, state=ReservationState.RELEASED, units=(unit,), released_at=gone_at)


WHOLE = Window(START, END)


@pytest.mark.parametrize(
    ("cancel", "gone_at", "billed"),
    [
        (CancelRule.NEVER, START - HOUR, WHOLE),
        (CancelRule.NEVER, START + HOUR, WHOLE),
        (CancelRule.RESELL, START - HOUR, WHOLE),
        (CancelRule.RESELL, START + HOUR, WHOLE),
        (CancelRule.UNTIL, START - SECOND, None),
        (CancelRule.UNTIL, START, WHOLE),
        (CancelRule.UNTIL, START + SECOND, WHOLE),
        (CancelRule.ANY_TIME, START - SECOND, None),
        (CancelRule.ANY_TIME, START, Window(START, START + SECOND)),
        (CancelRule.ANY_TIME, START + HOUR, Window(START, START + HOUR)),
        (CancelRule.ANY_TIME, END - SECOND, Window(START, END - SECOND)),
        (CancelRule.ANY_TIME, END, WHOLE),
        (CancelRule.ANY_TIME, END + HOUR, WHOLE),
    ],
)
def test_a_window_that_is_left_is_billed_by_its_sellers_rule(
    cancel: CancelRule, gone_at: datetime, billed: Window | None
) -> None:
    found = rounded_spans([left(window(cancel), gone_at)], END + 2 * HOUR)
    assert [(span.segment.window, span.owed) for span, _ in found] == (
        [] if billed is None else [(billed, True)]
    )
    hours = 0 if billed is None else ceil(billed.duration / HOUR)
    assert sum(usd for _, usd in found) == 2 * 10 * hours, "each hour as it begins, of both nodes"


def waiting(granted: Window | None) -> Reservation:
    """Two nodes that begin when capacity appears, asked for at noon for six hours."""
    return Reservation(
        reservation_id="r-1",
        team="research",
        state=ReservationState.SCHEDULED,
        offer=an_offer(window=waiting_terms(2.0)),
        nodes=2,
        start=NOON,
        end=NOON + 6 * HOUR,
        units=(Unit(0, "t", 2, UnitState.HELD, "i-1", NOON),),
        created_at=NOON,
        granted=granted,
    )


@pytest.mark.parametrize(("hours", "begins"), [(-1.0, 0.0), (0.0, 0.0), (0.5, 0.5), (2.0, 2.0)])
def test_what_still_waits_is_expected_from_now_on_and_owes_nothing(hours: float, begins: float) -> None:
    """Its start has passed, but no seller has granted anything yet."""
    ((span, usd),) = rounded_spans([waiting(None)], NOON + hours * HOUR)
    assert span.segment.window == Window(NOON + begins * HOUR, NOON + (begins + 6) * HOUR)
    assert (span.owed, usd) == (False, Decimal(120))


def test_what_began_late_is_billed_from_when_it_began() -> None:
    granted = Window(NOON + HOUR, NOON + 7 * HOUR)
    ((span, usd),) = rounded_spans([waiting(granted)], NOON + 3 * HOUR)
    assert (span.segment.window, usd) == (granted, Decimal(120))
    gone = left(waiting(granted), NOON + 4 * HOUR)
    ((span, usd),) = rounded_spans([gone], NOON + 5 * HOUR)
    assert (span.segment.window, usd) == (Window(NOON + HOUR, NOON + 4 * HOUR), Decimal(60))
    never = left(waiting(None), NOON + HOUR)
    assert rounded_spans([never], NOON + 5 * HOUR) == ()


@pytest.mark.parametrize("end", [None, NOON + 3 * HOUR])
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_fee_is_paid_for_each_node(nodes: int, end: datetime | None) -> None:
    row = Reservation(
        reservation_id="r-1",
        team="research",
        state=ReservationState.ACTIVE,
        offer=an_offer(price="10", upfront="7.01"),
        nodes=nodes,
        start=NOON,
        end=end,
        units=(Unit(0, "t", nodes, UnitState.HELD, "i-1", NOON),),
        created_at=NOON,
    )
    ((_, usd),) = rounded_spans([row], NOON + HOUR, NOON + 3 * HOUR)
    assert usd == nodes * Decimal("37.01")


@pytest.mark.parametrize("count", [2, 3, 7])
def test_cents_of_one_placement_are_rounded_together_and_the_past_keeps_its_own(count: int) -> None:
    """Each node costs a third of a cent more than whole cents: together they are rounded once."""
    rows = [
        Reservation(
            reservation_id=f"r-{index}",
            team="research",
            state=ReservationState.ACTIVE,
            offer=an_offer(price="0.01", increment_s=1),
            nodes=1,
            start=NOON,
            end=NOON + (index + 1) * HOUR + 1200 * SECOND,
            units=(Unit(0, f"t-{index}", 1, UnitState.HELD, f"i-{index}", NOON),),
            created_at=NOON,
            workload="chat",
            plan_id="plan-1",
        )
        for index in range(count)
    ]
    exact = sum((Decimal(index + 1) + Decimal(1) / 3 for index in range(count)), Decimal(0)) / 100
    for order in (rows, rows[::-1]):
        shares = {s.reservation.reservation_id: usd for s, usd in rounded_spans(order, NOON)}
        assert sum(shares.values()) == round(exact, 2)
        fewer = rounded_spans(order[1:] if order is not rows else order[:-1], NOON)
        assert all(shares[s.reservation.reservation_id] == usd for s, usd in fewer)


def hourly(hours: float | None = 3, *, start: datetime = NOON, **unit: object) -> Reservation:
    """One node at $10 an hour, bought at noon."""
    bought = Unit(0, "t", 1, UnitState.HELD, "i-1", NOON)
    return Reservation(
        reservation_id="r-1",
        team="research",
        state=ReservationState.ACTIVE,
        offer=an_offer(),
        nodes=1,
        start=start,
        end=None if hours is None else NOON + hours * HOUR,
        units=(replace(bought, **unit),),  # type: ignore[arg-type]
        created_at=NOON,
    )


def only(row: Reservation, now: datetime, until: datetime | None = None) -> tuple[BilledSpan, Decimal]:
    (found,) = rounded_spans([row], now, until)
    return found


@pytest.mark.parametrize("until", [None, NOON + HOUR])
def test_a_lease_without_an_end_can_be_looked_at_as_it_begins(until: datetime | None) -> None:
    span, usd = only(hourly(None), NOON, until)
    assert (span.held.start, span.is_open_ended) == (NOON, True)
    assert usd == 10, "the hour that begins is billed whole"


@pytest.mark.parametrize(
    ("start_h", "ordered_h", "began_h", "billed_h"),
    [
        (0, 1, None, 1),  # ordered late: nobody bills before
        (0, -1, None, 0),
        (0, None, None, 0),
        (0, 1, 1.5, 1.5),  # the provider says when
        (0, -1, -0.5, -0.5),
    ],
)
def test_an_hourly_bill_begins_with_the_order_unless_the_provider_says_when(
    start_h: float, ordered_h: float | None, began_h: float | None, billed_h: float
) -> None:
    row = hourly(
        start=NOON + start_h * HOUR,
        ordered_at=None if ordered_h is None else NOON + ordered_h * HOUR,
        began_at=None if began_h is None else NOON + began_h * HOUR,
    )
    span, _ = only(row, NOON + 2 * HOUR)
    assert span.held == Window(NOON + billed_h * HOUR, NOON + 3 * HOUR)


@pytest.mark.parametrize("ordered_h", [None, 0, 5])
def test_a_window_is_billed_for_its_own_time_whenever_it_was_ordered(ordered_h: float | None) -> None:
    row = window(CancelRule.NEVER)
    at = None if ordered_h is None else NOON + ordered_h * HOUR
    span, _ = only(replace(row, units=(replace(row.units[0], ordered_at=at),)), NOON)
    assert span.held == WHOLE


@pytest.mark.parametrize("gone_h", [-1, 0])
def test_what_is_left_before_it_was_granted_is_billed_its_first_second(gone_h: float) -> None:
    granted = Window(NOON + HOUR, NOON + 7 * HOUR)
    span, usd = only(left(waiting(granted), granted.start + gone_h * HOUR), NOON + 8 * HOUR)
    assert (span.held, usd) == (Window(granted.start, granted.start + SECOND), Decimal(20))


@pytest.mark.parametrize(("plan", "shares"), [("plan-1", [3, 4, 3]), (None, [3, 3, 3])])
def test_what_belongs_to_no_plan_is_rounded_on_its_own(plan: str | None, shares: list[int]) -> None:
    """Three nodes of three and a third cents: a cent of ten is nobody's if each is rounded alone."""
    rows = [
        replace(
            hourly(3 + 1 / 3),
            reservation_id=f"r-{index}",
            offer=an_offer(price="0.01", increment_s=1),
            plan_id=plan,
        )
        for index in range(3)
    ]
    assert [usd * 100 for _, usd in rounded_spans(rows, NOON)] == shares


def test_at_its_end_a_span_has_cost_all_of_its_rounded_cents() -> None:
    """Two thirds of a cent more than two cents are three; until then they are rounded down."""
    span, usd = only(replace(hourly(2 + 2 / 3), offer=an_offer(price="0.01", increment_s=1)), NOON)
    assert usd == Decimal("0.03")
    end = span.segment.end
    cents = [cents_until(span, usd, at) for at in (NOON, NOON + HOUR, end - SECOND, end, end + HOUR)]
    assert cents == [0, 1, 2, 3, 3]
    bought, whole = only(replace(window(CancelRule.NEVER, 1), offer=an_offer("w", "0.01")), NOON)
    assert [cents_until(bought, whole, bought.segment.start + h * HOUR) for h in range(5)] == [0, 1, 2, 3, 4]


def test_blocks_that_are_paid_ahead_follow_one_another() -> None:
    """Billed by the day, after a first term of two days."""
    offer = an_offer(increment_s=86_400, min_hours=48)
    span, _ = only(replace(hourly(100), offer=offer), NOON)
    for hour, block in ((0, (0, 48)), (47.9, (0, 48)), (48, (48, 72)), (72, (72, 96)), (99, (96, 120))):
        expected = Window(NOON + block[0] * HOUR, NOON + block[1] * HOUR)
        assert prepaid_block(span, NOON + hour * HOUR) == expected
    assert prepaid_block(only(hourly(3), NOON)[0], NOON) is None
    assert prepaid_block(only(window(CancelRule.NEVER), NOON)[0], START) is None


@pytest.mark.parametrize(
    ("wished", "gone_h", "used"),
    [
        (None, None, (0, 4)),
        ((1, 3), None, (1, 3)),
        ((1, 3), 2, (1, 2)),
        ((1, 3), 4, (1, 3)),
        ((1, 3), 1, None),  # left as its use began
        ((1, 3), 0.5, None),
        ((-2, -1), None, None),  # nothing of it was wanted
        ((-2, -1), 2, None),
    ],
)
def test_the_used_part_of_a_window_was_wanted_and_not_given_back(
    wished: tuple[float, float] | None, gone_h: float | None, used: tuple[float, float] | None
) -> None:
    row = window(CancelRule.RESELL)
    if wished is not None:
        row = replace(row, requested=Wish(START + wished[0] * HOUR, START + wished[1] * HOUR))
    if gone_h is not None:
        row = left(row, START + gone_h * HOUR)
    span, _ = only(row, END)
    assert used_part(span) == (
        None if used is None else Window(START + used[0] * HOUR, START + used[1] * HOUR)
    )


@pytest.mark.parametrize(
    ("gone_h", "credit_usd", "reduced"),
    [
        (-1, 75, []),
        (0, 75, []),  # no time had passed
        (1, 60, []),  # it pays back the three hours that were given up
        (1, 75, [(Window(START, START + HOUR), 15_00)]),  # and $15 of the first one
        (1, 90, [(Window(START, START + HOUR), 20_00)]),  # a seller that gives back more than it took
    ],
)
def test_a_credit_above_the_time_given_up_reduces_what_was_used(
    gone_h: int, credit_usd: int, reduced: list[tuple[Window, int]]
) -> None:
    """Two nodes for four hours at $10, resold."""
    row = left(window(CancelRule.RESELL), START + gone_h * HOUR)
    span, usd = only(replace(row, units=(replace(row.units[0], credit_usd=Decimal(credit_usd)),)), END)
    assert list(reduced_days(span, usd)) == reduced
