"""What is held before it is needed: which nodes, from when, at which cost, and how it is called."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.basics.window import Segment, Wish
from broker.domain.holding.capacity_promise import CapacityPromise, promise_of
from broker.domain.holding.cost_of_keeping import held_of
from broker.domain.holding.early_holding import Hold, early_spans, held_early, plan_held_early, why_not_held
from broker.domain.holding.holding_orders import intents_of
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.billing import holding_cost_usd
from broker.domain.market.launch_statistics import LaunchStatistics, StatisticsLevel
from broker.domain.market.offer import Offer, Stock, StockLevel, Tier
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.moving.remaining import hours_done, is_fixed
from broker.domain.planning.workload import Training, WorkloadKind
from broker.domain.reconciling.replacing import replacement_of
from broker.domain.spend.charging import reservation_charges
from broker.domain.spend.order_quote import planned_promise, quote_of_hold, quote_of_plan
from broker.domain.spend.release_estimate import ReleaseEstimate
from tests.fakes.clock import NOON
from tests.fakes.examples import (
    a_placement,
    a_plan,
    a_request,
    a_segment,
    an_offer,
    slot_terms,
    waiting_terms,
)

HOUR = timedelta(hours=1)
PATIENCE = HOUR
S = ReservationState
BACK = ReleaseEstimate(Decimal(0), Decimal(0))


def held(start_h: float, needed_h: float, end_h: float | None, **changes: object) -> Reservation:
    """One active node by the hour at $10, held from ``start_h`` on and needed from ``needed_h`` on."""
    start, needed = NOON + start_h * HOUR, NOON + needed_h * HOUR
    end = None if end_h is None else NOON + end_h * HOUR
    unit = Unit(0, "broker-ab-r-0-1", 1, UnitState.HELD, "i-1", start)
    row = Reservation(
        reservation_id="r",
        team="research",
        state=S.ACTIVE,
        offer=an_offer(),
        nodes=1,
        start=start,
        end=end,
        units=(unit,),
        created_at=start,
        workload="train",
        plan_id="plan-1",
        active_at=start,
        requested=Wish(needed, end),
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def test_a_run_is_bought_now_and_kept_until_its_end() -> None:
    offer = an_offer("o", "10")
    plan = a_plan(a_placement(offer, [a_segment(6, 16, 2)]))
    (intent,) = intents_of(plan, {"o": offer}, NOON, PATIENCE, hold=Hold.NOW)
    assert (intent.start, intent.end, intent.nodes) == (NOON, NOON + 16 * HOUR, 2)
    assert intent.requested == Wish(NOON + 6 * HOUR, NOON + 16 * HOUR)
    (later,) = intents_of(plan, {"o": offer}, NOON, PATIENCE)
    assert later.start == NOON + 6 * HOUR
    assert plan_held_early(plan, {"o": offer}, NOON).cost_usd - plan.cost_usd == Decimal(6 * 2 * 10)


def test_a_node_of_a_fleet_is_kept_until_it_is_last_needed() -> None:
    """Two nodes all day and two more in two peaks: four orders and no more, the peaks' nodes held between."""
    offer = an_offer("o", "10")
    segments = [
        a_segment(0, 2, 2),
        a_segment(2, 4, 4),
        a_segment(4, 8, 2),
        a_segment(8, 9, 4),
        a_segment(9, 12, 2),
    ]
    placed = a_placement(offer, segments, "chat", WorkloadKind.SERVING)
    spans = [
        (span.window.start - NOON, span.window.end - NOON, span.nodes)
        for span in early_spans(placed, offer, NOON)
    ]
    assert spans == [(0 * HOUR, 12 * HOUR, 2), (2 * HOUR, 9 * HOUR, 2)]
    intents = intents_of(a_plan(placed), {"o": offer}, NOON, PATIENCE, hold=Hold.NOW)
    assert {(one.start, one.nodes) for one in intents} == {(NOON, 2)}
    after = held_early(placed, offer, NOON)
    assert after.segments == (a_segment(0, 9, 4), a_segment(9, 12, 2))
    assert after.cost_usd - placed.cost_usd == Decimal(2 * (9 - 3) * 10), "two nodes for six hours more"


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=6),
    st.integers(0, 8),
    st.sampled_from([0.0, 3.0, 24.0]),
    st.sampled_from([60, 3600, 86400]),
)
def test_what_is_held_early_covers_the_plan_and_costs_what_its_orders_do(
    steps: list[tuple[int, int, int]], now_h: int, min_hours: float, increment_s: int
) -> None:
    offer, now = an_offer("o", "7.31", min_hours=min_hours, increment_s=increment_s), NOON + now_h * HOUR
    segments, at = [], 0
    for gap, length, nodes in steps:
        segments.append(a_segment(at + gap, at + gap + length, nodes))
        at += gap + length
    placed = a_placement(offer, segments, "chat", WorkloadKind.SERVING)
    after = held_early(placed, offer, now)
    if after is placed:
        return
    for hour in range(now_h, at):
        there = NOON + hour * HOUR
        needed, kept = (_nodes_at(one.segments, there) for one in (placed, after))
        assert needed <= kept <= placed.nodes
    intents = intents_of(a_plan(placed), {"o": offer}, now, PATIENCE, hold=Hold.NOW)
    orders = sum(
        (holding_cost_usd(offer, (Segment(i.start, i.end, i.nodes),)) for i in intents if i.end), Decimal(0)
    )
    assert orders == holding_cost_usd(offer, after.segments)
    assert {one.start for one in intents} == {now}
    assert after.nodes == max(segment.nodes for segment in after.segments) or now_h > 0


def _nodes_at(segments: tuple[Segment, ...], at: object) -> int:
    return sum(s.nodes for s in segments if s.start <= at < s.end)  # type: ignore[misc, operator]


@pytest.mark.parametrize(
    ("offer", "why"),
    [
        (an_offer("o"), ""),
        (replace(an_offer("o"), tier=Tier.SPOT), "may take spot capacity back"),
        (an_offer("o", window=slot_terms(NOON, 96)), "bought ahead"),
        (an_offer("o", window=waiting_terms()), "bought ahead"),
    ],
)
def test_windows_and_spot_are_ordered_as_before(offer: Offer, why: str) -> None:
    assert why in why_not_held(offer)
    assert bool(why) == bool(why_not_held(offer))
    placed = a_placement(offer, [a_segment(6, 8)])
    assert (held_early(placed, offer, NOON) is placed) == bool(why)
    plain = intents_of(a_plan(placed), {"o": offer}, NOON, PATIENCE)
    assert (intents_of(a_plan(placed), {"o": offer}, NOON, PATIENCE, hold=Hold.NOW) == plain) == bool(why)


def test_the_quote_tells_each_placement_and_what_holding_adds() -> None:
    learned = LaunchStatistics(0.8, 4.0, 10, StatisticsLevel.OFFER)
    scarce = replace(an_offer("o", "10"), stock=Stock(StockLevel.LOW, 3), learned=learned)
    window = an_offer("w", "10", window=slot_terms(NOON, 96))
    steps = [a_segment(0, 2), a_segment(4, 6)]
    plan = a_plan(
        a_placement(window, [a_segment(20, 30)], "tune"),
        a_placement(scarce, steps, "chat", WorkloadKind.SERVING),
        a_placement(an_offer("gone"), [a_segment(5, 6)], "late"),
    )
    quote = quote_of_plan(plan, {"o": scarce, "w": window}, BACK, NOON)
    told = [(one.promise, one.orders, one.later, one.hold_usd, one.launch_chance) for one in quote.placements]
    assert told == [
        (CapacityPromise.HELD, 1, 0, None, None),
        (CapacityPromise.AT_START, 2, 1, Decimal(20), 0.8),
        (CapacityPromise.AT_START, 1, 1, None, None),
    ]
    assert (quote.hold_usd, quote.first_later) == (Decimal(20), NOON + 4 * HOUR)
    assert [planned_promise(one, NOON) for one in plan.placements] == [
        one.promise for one in quote.placements
    ]


@pytest.mark.parametrize(
    ("min_hours", "increment_s", "end_h", "usd"),
    [
        (0.0, 3600, 9, "40.00"),  # nine hours, and the 4.5 from its start are billed as five
        (0.0, 60, 9, "45.00"),
        (24.0, 60, 9, "0.00"),  # the minimum term of a day is owed either way
        (24.0, 60, 27, "30.00"),  # 27 hours, and the 22.5 from its start are billed as 24
        (0.0, 60, None, "45.00"),
        (24.0, 60, None, "45.00"),
    ],
)
def test_holding_one_reservation_adds_what_its_bill_adds(
    min_hours: float, increment_s: int, end_h: float | None, usd: str
) -> None:
    offer = an_offer("o", "10", min_hours=min_hours, increment_s=increment_s)
    row = held(4.5, 4.5, end_h, offer=offer, state=S.SCHEDULED, units=(Unit(0, "t", 1, UnitState.PLANNED),))
    assert quote_of_hold(row, NOON).usd == Decimal(usd)


def test_the_promise_follows_the_state_and_the_time() -> None:
    row = held(0, 4, 9)
    assert promise_of(row, NOON + HOUR) is CapacityPromise.HOLDING
    assert promise_of(row, NOON + 4 * HOUR) is CapacityPromise.HELD
    assert promise_of(held(0, 0, 9), NOON) is CapacityPromise.HELD
    waiting = held(4, 4, 9, state=S.SCHEDULED, units=(Unit(0, "t", 1, UnitState.PLANNED),))
    assert promise_of(waiting, NOON) is CapacityPromise.AT_START
    window = held(4, 4, 9, state=S.SCHEDULED, offer=an_offer("w", window=slot_terms(NOON, 96)))
    assert promise_of(window, NOON) is CapacityPromise.HELD
    for state in (S.PENDING, S.UNKNOWN, S.RELEASING, S.RELEASED, S.FAILED):
        assert promise_of(replace(row, state=state), NOON) is None


def test_time_before_it_is_needed_is_paid_and_idle() -> None:
    charges = reservation_charges((held(0, 4, 9),), {}, NOON + 2 * HOUR)
    assert sum(one.usd for one in charges) == Decimal(90)
    assert sum(one.idle_usd for one in charges) == Decimal(40)
    assert sum(one.idle_usd for one in reservation_charges((held(0, 0, 9),), {}, NOON)) == 0


def test_a_run_that_is_held_early_stays_and_has_not_begun() -> None:
    (run,) = (w for w in a_request().workloads if isinstance(w, Training))
    early, plain = held_of(held(0, 4, 30)), held_of(held(0, 0, 30))
    assert early is not None
    assert plain is not None
    loose = replace(run, interruptible=True)
    assert (is_fixed(loose, [early], NOON), is_fixed(loose, [plain], NOON)) == (True, False)
    terms = MovingTerms()
    assert hours_done(run, [early], NOON + 3 * HOUR, terms) == 0
    assert hours_done(run, [plain], NOON + 30 * HOUR, terms) > 0


def test_what_is_lost_while_it_is_held_early_is_held_early_again() -> None:
    wanted = replacement_of(held(0, 4, 9), [0], NOON + HOUR)
    assert wanted is not None
    assert wanted.requested == Wish(NOON + 4 * HOUR, NOON + 9 * HOUR)
    assert wanted.start < NOON + 2 * HOUR
