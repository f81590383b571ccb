"""When a unit's bill begins and ends, at its edges; what waits for capacity, and windows that are left."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from math import ceil

import pytest

from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.offer import CancelRule
from broker.domain.spend.billed_spans import rounded_spans
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
