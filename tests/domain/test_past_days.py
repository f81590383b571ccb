"""What a day that is over has cost does not change any more."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from broker.domain.focus.rows import focus_rows
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.offer import Tier, WindowTerms
from broker.domain.spend.charging import Movement, owed_usd, reservation_charges
from broker.domain.spend.spend import ChargeBasis
from tests.depth import examples
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer, listed_terms, slot_terms, waiting_terms

HOURS = st.floats(0.001, 300).map(lambda hours: round(hours, 4))


def _held(offer: str, begun: float, nodes: int, until: float | None, left: float | None) -> Reservation:
    """One of a plan's placement, from ``begun`` hours after noon on; left after ``left`` hours."""
    start = NOON + timedelta(hours=begun)
    gone_at = None if left is None else NOON + timedelta(hours=max(left, begun))
    state = UnitState.HELD if gone_at is None else UnitState.GONE
    name = f"r-{begun}-{nodes}"
    return Reservation(
        reservation_id=name,
        team="research",
        state=ReservationState.ACTIVE if gone_at is None else ReservationState.RELEASED,
        offer=an_offer(price=offer),
        nodes=nodes,
        start=start,
        end=None if until is None else start + timedelta(hours=until),
        units=(Unit(0, f"tag-{name}", nodes, state, f"i-{name}", start, gone_at),),
        created_at=start,
        plan_id="plan-1",
        workload="train",
        released_at=gone_at,
    )


def _charges_before(rows: list[Reservation], now: datetime, day: datetime) -> Counter[object]:
    return Counter(
        (c.window, c.reservation_id, c.usd, c.gpu_seconds, c.idle_gpu_seconds, c.idle_usd)
        for c in reservation_charges(rows, {}, now)
        if c.basis is ChargeBasis.ACTUAL and c.window.end <= day
    )


def _rows_before(rows: list[Reservation], now: datetime, day: datetime) -> Counter[object]:
    return Counter(
        tuple(sorted((name, str(cell)) for name, cell in row.items()))
        for row in focus_rows(rows, now, "install")
        if row["ChargeCategory"] == "Usage" and row["ChargePeriodEnd"] <= day  # type: ignore[operator]
    )


@example(Decimal("0.05"), Tier.COMMITTED, 1, 0.0, None, 13.0, 1.0, False)
@given(
    price=st.decimals("0.05", "90", places=6),
    tier=st.sampled_from([Tier.ON_DEMAND, Tier.SPOT, Tier.COMMITTED]),
    increment_s=st.sampled_from([1, 60, 3600, 86_400]),
    min_hours=st.sampled_from([0.0, 1.0, 50.0, 720.0]),
    until=st.none() | HOURS,
    looked=HOURS,
    later=HOURS,
    is_left=st.booleans(),
)
def test_a_day_that_is_over_stays_as_it_was(
    price: Decimal,
    tier: Tier,
    increment_s: int,
    min_hours: float,
    until: float | None,
    looked: float,
    later: float,
    is_left: bool,
) -> None:
    offer = replace(an_offer(price=str(price), increment_s=increment_s, min_hours=min_hours), tier=tier)
    now = NOON + timedelta(hours=looked)
    then = now + timedelta(hours=later)
    left = looked + later / 2 if is_left else None
    before = [replace(_held("1", begun, n, until, None), offer=offer) for begun, n in ((0, 3), (0.7, 1))]
    after = [replace(_held("1", begun, n, until, left), offer=offer) for begun, n in ((0, 3), (0.7, 1))]
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    assume(now > midnight)
    assert _charges_before(before, now, midnight) == _charges_before(after, then, midnight)
    assert _rows_before(before, now, midnight) == _rows_before(after, then, midnight)
    charges = reservation_charges(after, {}, then)
    assert all(charge.usd >= 0 for charge in charges), "rounding never takes money back"
    assert owed_usd(after, then) == sum(c.usd for c in charges if c.basis is ChargeBasis.ACTUAL)


@settings(max_examples=examples(200))
@given(
    price=st.decimals("0.05", "90", places=6),
    tier=st.sampled_from([Tier.ON_DEMAND, Tier.COMMITTED, Tier.WINDOW]),
    terms=st.sampled_from(["slot", "listed", "waits"]),
    increment_s=st.sampled_from([1, 3600, 86_400]),
    min_hours=st.sampled_from([0.0, 50.0]),
    until=st.none() | HOURS,
    states=st.tuples(*[st.sampled_from(["wanted", "held", "gone", "lost"])] * 2),
    looked=HOURS,
    share=st.floats(0, 1),
)
def test_what_is_steady_holds_until_midnight(
    price: Decimal,
    tier: Tier,
    terms: str,
    increment_s: int,
    min_hours: float,
    until: float | None,
    states: tuple[str, str],
    looked: float,
    share: float,
) -> None:
    offer = an_offer(price=str(price), increment_s=increment_s, min_hours=min_hours)
    if tier is Tier.WINDOW:
        kinds = {
            "slot": slot_terms(NOON, 1000),
            "listed": listed_terms(NOON, 200, nodes=3),
            "waits": waiting_terms(),
        }
        offer, until = replace(offer, window=kinds[terms]), until or 48.0
    now = NOON + timedelta(hours=looked)
    then = now + share * (now.replace(hour=23, minute=59, second=59, microsecond=999_999) - now)
    rows = [
        _in_state(replace(_held("1", begun, nodes, until, None), offer=replace(offer, tier=tier)), state, now)
        for begun, nodes, state in ((0, 3, states[0]), (0.7, 1, states[1]))
    ]
    steady = reservation_charges(rows, {}, now, Movement.STEADY)
    moving = reservation_charges(rows, {}, then, Movement.MOVING)
    assert Counter((*steady, *moving)) == Counter(reservation_charges(rows, {}, then))


@pytest.mark.parametrize("state", ["wanted", "held", "gone", "lost"])
@pytest.mark.parametrize("terms", [None, slot_terms(NOON, 1000)])
@pytest.mark.parametrize(
    ("begun", "increment_s", "looked"),
    [
        (-30.0, 1, 0.2),
        (0.0, 1, 0.2),
        (30.0, 1, 0.2),
        (-70.0, 72 * 3600, 0.2),  # its second three days begin at 14:00
        (-84.0, 72 * 3600, -12.0),  # they begin at midnight, at which it is looked at
    ],
)
def test_what_is_not_bought_and_what_is_lost_moves_with_the_time(
    state: str, terms: WindowTerms | None, begun: float, increment_s: int, looked: float
) -> None:
    """A node for 1.3 cents an hour over four days and a half: 31.2 cents a day, so that the whole cents of
    each day depend on when it begins. It is looked at so many hours after noon, and until midnight."""
    offer = an_offer(price="0.013", increment_s=increment_s, window=terms)
    now = NOON + timedelta(hours=looked)
    row = _in_state(replace(_held("1", begun, 1, 108.0, None), offer=offer), state, now)
    steady = reservation_charges([row], {}, now, Movement.STEADY)
    for hours in range(1, 12):
        then = NOON + timedelta(hours=hours)
        moving = reservation_charges([row], {}, then, Movement.MOVING)
        assert Counter((*steady, *moving)) == Counter(reservation_charges([row], {}, then))


def _in_state(row: Reservation, state: str, now: datetime) -> Reservation:
    """Not ordered yet, held, gone a while ago, or gone nobody knows when."""
    (unit,) = row.units
    if state == "wanted":
        return replace(row, units=(replace(unit, state=UnitState.PLANNED, reference=None, ordered_at=None),))
    if state == "held":
        return row
    gone_at = row.start + (now - row.start) / 2 if state == "gone" and now > row.start else None
    gone = replace(unit, state=UnitState.GONE, gone_at=gone_at)
    return replace(row, state=ReservationState.RELEASED, units=(gone,))


def _slot(number: int, price: Decimal, hours: float, *, is_over: bool) -> Reservation:
    """An hour or more of a fleet, with one node; what is not over is not bought yet."""
    row = _held("1", float(number), 1, hours, number + hours if is_over else None)
    row = replace(row, reservation_id=f"slot-{number}", offer=an_offer(price=str(price), increment_s=1))
    if is_over:
        return row
    planned = replace(row.units[0], state=UnitState.PLANNED, reference=None, ordered_at=None)
    return replace(row, state=ReservationState.SCHEDULED, active_at=None, units=(planned,))


def _usd_of(rows: list[Reservation], now: datetime, names: set[str]) -> Counter[str]:
    usd = Counter[str]()
    for charge in reservation_charges(rows, {}, now):
        if charge.reservation_id in names:
            usd[str(charge.reservation_id)] += int(charge.usd * 100)
    return usd


@example([Decimal("0.335")] * 5, 2, 4, 1.0, False)
@given(
    prices=st.lists(st.decimals("0.05", "9", places=3), min_size=3, max_size=8),
    over=st.integers(1, 7),
    kept=st.integers(1, 8),
    hours=st.floats(0.1, 9).map(lambda value: round(value, 3)),
    turned=st.booleans(),
)
def test_what_is_over_keeps_its_share_whatever_the_rest_becomes(
    prices: list[Decimal], over: int, kept: int, hours: float, turned: bool
) -> None:
    """Slots of a fleet that are dropped, or become longer, move no cent of those that are over; nor does the
    order in which they are read."""
    over = min(over, len(prices) - 1)
    now = NOON + timedelta(hours=over)
    past = [_slot(n, prices[n], 1.0, is_over=True) for n in range(over)]
    coming = [_slot(n, prices[n], 1.0, is_over=False) for n in range(over, len(prices))]
    changed = [_slot(n, prices[n], hours, is_over=False) for n in range(over, min(kept, len(prices)))]
    names = {row.reservation_id for row in past}
    before = _usd_of([*past, *coming], now, names)
    after = [*past, *changed]
    assert _usd_of(after[::-1] if turned else after, now, names) == before
