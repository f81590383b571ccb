"""What a move buys and lets go: what is wanted all the time is not held by what comes later."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.holding.cost_of_keeping import HeldCapacity
from broker.domain.holding.holding_orders import Intent
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.moving.moving import OpenRows, find_change, handover, overlap, successors_of
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.moving.remaining import remaining
from broker.domain.planning.workload import WorkloadKind
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_request, a_segment, an_offer
from tests.fakes.planned import held_as_planned

HOUR = timedelta(hours=1)
OFFER = an_offer("a", "10")

spans = st.lists(
    st.tuples(st.integers(-5, 20), st.integers(1, 20), st.integers(1, 2)).map(
        lambda row: (row[0], row[0] + row[1], row[2])
    ),
    max_size=5,
)


def nodes_at(rows: list[tuple[int, int, int]], hour: int) -> int:
    return sum(nodes for start, end, nodes in rows if start <= hour < end)


def _hours(row: HeldCapacity | Intent) -> tuple[int, int, int]:
    assert row.end is not None
    return (row.start - NOON) // HOUR, (row.end - NOON) // HOUR, row.nodes


@given(spans, spans)
def test_what_stays_and_what_is_bought_is_all_that_is_wanted(
    held: list[tuple[int, int, int]], wanted: list[tuple[int, int, int]]
) -> None:
    wanted = [(max(0, a), b, n) for a, b, n in wanted if b > 0]
    rows = [
        HeldCapacity("chat", OFFER, n, NOON + a * HOUR, NOON + b * HOUR, reservation_id=str(i))
        for i, (a, b, n) in enumerate(held)
        if b > 0
    ]
    change = find_change(rows, [Intent(OFFER, n, NOON + a * HOUR, NOON + b * HOUR) for a, b, n in wanted])

    kept = [row for row in rows if row not in change.leaving]
    after = [_hours(row) for row in kept] + [_hours(intent) for intent in change.wanted]
    assert all(nodes_at(after, hour) >= nodes_at(wanted, hour) for hour in range(41))


def test_a_later_start_is_not_the_same_as_one_now() -> None:
    later = HeldCapacity("chat", OFFER, 2, NOON + 100 * HOUR, NOON + 168 * HOUR, is_bought=False)
    running = HeldCapacity("chat", OFFER, 1, NOON - HOUR, NOON + 168 * HOUR)
    wanted = [Intent(OFFER, nodes, NOON, NOON + 168 * HOUR) for nodes in (1, 2)]

    change = find_change([later, running], wanted)
    assert change.leaving == (later,)
    assert change.wanted == (wanted[1],)


def test_a_run_that_is_over_is_not_asked_for_again() -> None:
    request = a_request()
    plan = a_plan(
        a_placement(OFFER, [a_segment(0, 10)], "train", WorkloadKind.TRAINING),
        a_placement(OFFER, [a_segment(0, 48)], "chat", WorkloadKind.SERVING),
    )
    for hour, asked in ((9, {"chat"}), (10, {"chat"}), (47, {"chat"})):
        now = NOON + hour * HOUR
        left = remaining(request, plan, held_as_planned(plan, {"a": OFFER}, now), now, MovingTerms())
        assert {workload.name for workload in left.request.workloads} == asked
        assert left.fixed == {"train": NOON + 10 * HOUR}


def a_row(name: str, state: ReservationState, start_h: float = -1, *, replaces: str = "") -> Reservation:
    """Two nodes at $10; what takes another's place was ordered half an hour ago."""
    ordered = NOON - HOUR / 2 if replaces else NOON - 2 * HOUR
    kind = UnitState.PLANNED if state is ReservationState.SCHEDULED else UnitState.HELD
    units = (Unit(0, f"t-{name}", 2, kind, f"i-{name}", ordered),)
    return Reservation(
        name, "research", state, OFFER, 2, NOON + start_h * HOUR, NOON + 9 * HOUR, units, NOON,
        replaces=(replaces,) if replaces else (),
    )  # fmt: skip


R = ReservationState
OLD = a_row("old", R.ACTIVE)


def successor(name: str, state: ReservationState, start_h: float = -0.5) -> Reservation:
    return a_row(name, state, start_h, replaces="old")


READY, BEHIND_IT = successor("one", R.ACTIVE), successor("two", R.HELD)
LATER = successor("later", R.SCHEDULED, 5)


@pytest.mark.parametrize(
    ("rows", "goes"),
    [
        ((), False),
        ((READY,), True),
        ((BEHIND_IT,), False),
        ((READY, BEHIND_IT), False),
        ((BEHIND_IT, READY), False),
        ((READY, replace(BEHIND_IT, state=R.ACTIVE)), True),
        ((READY, LATER), True),
        ((READY, replace(LATER, state=R.PENDING)), False),
        ((READY, replace(LATER, state=R.UNKNOWN)), False),
        ((LATER,), False),
        ((READY, successor("now", R.SCHEDULED, 0)), False),
    ],
)
def test_the_old_goes_when_all_that_is_due_is_usable(rows: tuple[Reservation, ...], goes: bool) -> None:
    assert (handover(OLD, rows, rows, NOON) is not None) is goes


def test_a_successor_that_its_seller_does_not_show_is_not_usable() -> None:
    other = replace(BEHIND_IT, state=R.ACTIVE)
    for seen in ((), (READY,), (other,)):
        assert handover(OLD, (READY, other), seen, NOON) is None
    assert handover(replace(OLD, state=R.RELEASING), (READY,), (READY,), NOON) is None
    assert handover(replace(OLD, state=R.RELEASED), (READY,), (READY,), NOON) is None


def test_what_is_not_in_use_yet_goes_once_what_comes_is_bought() -> None:
    ahead = a_row("old", R.SCHEDULED, 5)
    assert handover(ahead, (LATER,), (LATER,), NOON) is not None


def test_both_were_held_since_the_first_of_the_new_was_bought() -> None:
    """Two nodes at $10 an hour, for the half hour since."""
    gone = handover(OLD, (READY, replace(BEHIND_IT, state=R.ACTIVE)), (READY,), NOON)
    assert gone is None
    both, usd = overlap(OLD, (READY, replace(BEHIND_IT, state=R.ACTIVE)), NOON)
    assert (both, usd) == (HOUR / 2, Decimal("10.00"))
    assert overlap(OLD, (LATER,), NOON) == (timedelta(0), Decimal(0))


def test_capacity_that_begins_this_instant_is_in_use() -> None:
    """Nobody takes over before the fifth hour."""
    assert handover(a_row("old", R.ACTIVE, 0), (LATER,), (LATER,), NOON) is None
    assert handover(a_row("old", R.HELD, 0), (LATER,), (LATER,), NOON) is None


def test_what_runs_stands_for_the_intent_that_begins_first_and_for_no_later_one() -> None:
    """One that begins at this instant has begun as well."""
    first, second = (Intent(OFFER, 1, NOON + hours * HOUR, NOON + 9 * HOUR) for hours in (0, 5))
    for begun in (-1, 0):
        running = HeldCapacity("chat", OFFER, 1, NOON + begun * HOUR, NOON + 9 * HOUR)
        change = find_change([running], [second, first])
        assert (change.wanted, change.leaving) == ((second,), ())
    ahead = HeldCapacity("chat", OFFER, 1, NOON + 5 * HOUR, NOON + 9 * HOUR)
    assert find_change([ahead], [second, first]).wanted == (first,)
    assert find_change([ahead], [first]).leaving == (ahead,)


def test_the_overlap_begins_with_the_first_purchase_and_not_before_the_old_did() -> None:
    """Two nodes at $10 an hour."""
    early, late = (
        replace(READY, units=(replace(READY.units[0], ordered_at=NOON - hours * HOUR),)) for hours in (2, 0.5)
    )
    for old_start, expected in ((-3.0, 2.0), (-1.0, 1.0), (0.0, 0.0)):
        both, usd = overlap(a_row("old", R.ACTIVE, old_start), (late, early), NOON)
        assert (both, usd) == (expected * HOUR, Decimal(20) * Decimal(expected))


def test_open_rows_are_found_by_id_by_plan_and_by_what_they_replace() -> None:
    """Two plans, and two moves of the first one."""

    def row(name: str, plan: str | None, replaces: str = "") -> Reservation:
        return replace(a_row(name, R.HELD, replaces=replaces), plan_id=plan)

    a, b, moved, other, loose = (
        row("a", "p"), row("b", "p"), row("m", "p", "a"), row("o", "q"), row("l", None),
    )  # fmt: skip
    leaving = replace(row("n", "p", "a"), state=R.RELEASING)
    rows = OpenRows([a, b, moved, other, loose, leaving, row("l2", None)])
    assert (rows.find("a"), rows.find("x")) == (a, None)
    assert rows.siblings(a) == (b,)
    assert rows.siblings(b) == (a,)
    assert rows.siblings(moved) == (leaving,)
    assert rows.siblings(other) == rows.siblings(loose) == ()
    assert rows.successors(a) == (moved,), "one that is let go again takes nothing over"
    assert rows.successors(b) == ()
    assert successors_of(a, [a, b, moved, leaving]) == (moved,)
    assert successors_of(b, [moved]) == ()
