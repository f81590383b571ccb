"""When a lease that is gone ended, which units run, and which never came up: one table for each question."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import permutations

import pytest

from broker.domain.basics.window import Window
from broker.domain.holding.reservation import (
    Lease,
    LeaseState,
    Reservation,
    ReservationState,
    Unit,
    UnitState,
)
from broker.domain.market.offer import CancelRule, Offer
from broker.domain.reconciling.ending import end_times, never_came_up, running_units
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer, listed_terms, slot_terms

HOUR = timedelta(hours=1)
HOURLY = an_offer()
BLOCK = an_offer("block", window=listed_terms(NOON, 4))
SLOTS = an_offer("slots", window=slot_terms(NOON, 4, cancel=CancelRule.ANY_TIME))


def after(hours: float | None) -> datetime | None:
    return None if hours is None else NOON + hours * HOUR


def a_unit(ordinal: int = 0, *, leaving: float | None = None, seen: float | None = None) -> Unit:
    return Unit(
        ordinal,
        f"t-{ordinal}",
        1,
        UnitState.HELD,
        f"i-{ordinal}",
        NOON,
        leaving_at=after(leaving),
        seen_at=after(seen),
    )


def a_row(*units: Unit, offer: Offer = HOURLY, active: bool = False, granted: bool = False) -> Reservation:
    return Reservation(
        "rsv",
        "research",
        ReservationState.RELEASING,
        offer,
        len(units),
        NOON,
        NOON + 4 * HOUR,
        units,
        NOON,
        active_at=NOON if active else None,
        granted=Window(NOON, NOON + HOUR) if granted else None,
    )


def a_lease(ordinal: int = 0, state: LeaseState = LeaseState.ENDED, *, ended: float | None = None) -> Lease:
    return Lease("fake", f"i-{ordinal}", state, f"t-{ordinal}", ended_at=after(ended))


@pytest.mark.parametrize(
    ("offer", "told", "leaving", "seen", "missed", "ended"),
    [
        (HOURLY, 1.0, 2.0, 3.0, 4.0, 1.0),  # the provider's own time
        (HOURLY, None, 2.0, 3.0, 4.0, 3.0),  # it still ran after the request
        (HOURLY, None, 3.0, 2.0, 4.0, 3.0),  # the request came after it was seen
        (HOURLY, None, 2.0, None, 4.0, 2.0),
        (HOURLY, None, None, 3.0, 4.0, 3.0),
        (HOURLY, None, None, None, 4.0, 4.0),
        (HOURLY, None, None, None, None, None),
        (SLOTS, None, 2.0, 3.0, 4.0, 3.0),  # it may be ended early
        (BLOCK, 1.0, 2.0, 3.0, 4.0, 1.0),
        (BLOCK, None, 2.0, 3.0, 4.0, 4.0),  # a request ends nothing of it
        (BLOCK, None, 2.0, 3.0, None, None),
    ],
)
def test_the_first_time_that_is_known_counts(
    offer: Offer,
    told: float | None,
    leaving: float | None,
    seen: float | None,
    missed: float | None,
    ended: float | None,
) -> None:
    row = a_row(a_unit(leaving=leaving, seen=seen), offer=offer)
    lost = {0: NOON + missed * HOUR} if missed is not None else {}
    expected = {} if ended is None else {0: after(ended)}
    assert end_times(row, [0], [a_lease(ended=told)], lost) == expected


def test_each_unit_that_is_gone_has_its_own_end_and_no_other_has_one() -> None:
    row = a_row(a_unit(0, seen=1.0), a_unit(1, seen=2.0), a_unit(2, seen=3.0))
    leases = [a_lease(0), a_lease(1), a_lease(2, ended=2.5)]
    for order in permutations(leases):
        assert end_times(row, [0, 2], order, {}) == {0: after(1.0), 2: after(2.5)}
    unknown = replace(row, units=(replace(row.units[0], reference=None),))
    assert end_times(unknown, [0], leases, {}) == {0: after(1.0)}
    assert end_times(row, [], leases, {}) == {}


@pytest.mark.parametrize("state", list(LeaseState))
def test_a_unit_runs_while_its_lease_neither_ends_nor_has_ended(state: LeaseState) -> None:
    over = state in (LeaseState.ENDING, LeaseState.ENDED, LeaseState.FAILED)
    row = a_row(a_unit(0), a_unit(1))
    assert running_units(row, [a_lease(0, state)]) == (() if over else (("rsv", 0),))


def test_a_unit_that_is_not_held_or_not_shown_does_not_run() -> None:
    gone, planned = (replace(a_unit(), state=state) for state in (UnitState.GONE, UnitState.PLANNED))
    shown = [a_lease(0, LeaseState.ACTIVE), a_lease(7, LeaseState.ACTIVE)]
    assert running_units(a_row(gone), shown) == running_units(a_row(planned), shown) == ()
    assert running_units(a_row(a_unit(0), a_unit(1)), shown) == (("rsv", 0),)


NO_LEASE: list[Lease] = []
OTHER = [a_lease(7, LeaseState.FAILED)]


@pytest.mark.parametrize(
    ("row", "leases", "never"),
    [
        (a_row(a_unit()), [a_lease(state=LeaseState.FAILED)], True),
        (a_row(a_unit()), [a_lease(state=LeaseState.FAILED, ended=1.0)], True),
        (a_row(a_unit(leaving=1.0)), [a_lease(state=LeaseState.FAILED)], True),
        (a_row(a_unit(), offer=BLOCK), [a_lease(state=LeaseState.FAILED)], True),
        (a_row(a_unit(), active=True), [a_lease(state=LeaseState.FAILED)], False),  # it was in use
        (a_row(a_unit(), granted=True), [a_lease(state=LeaseState.FAILED)], False),
        (a_row(a_unit()), [a_lease(ended=1.0)], False),  # it ended, and the provider says when
        (a_row(a_unit()), [a_lease()], True),  # it ended before it was usable, nobody knows when
        (a_row(a_unit()), NO_LEASE, True),  # it disappeared
        (a_row(a_unit()), OTHER, True),
        (a_row(a_unit(leaving=1.0)), NO_LEASE, False),  # it was released
        (a_row(a_unit(leaving=1.0)), OTHER, False),  # another one failed
        (a_row(a_unit(), offer=SLOTS), NO_LEASE, False),  # a window is paid for when it is ordered
        (a_row(a_unit(), active=True), NO_LEASE, False),
    ],
)
def test_what_never_came_up_costs_nothing(row: Reservation, leases: list[Lease], never: bool) -> None:
    assert never_came_up(row, row.units[0], leases) is never
