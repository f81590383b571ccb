"""What of a charge went to GPUs without use, of plans and of what is held, by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from broker.domain.basics.window import Wish
from broker.domain.holding.holding_orders import Intent
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.offer import CancelRule, Offer, WindowBilling
from broker.domain.planning.window_use import use_of
from broker.domain.spend.charging import owed_usd, plan_charges, reservation_charges
from broker.domain.spend.order_quote import quote_of
from broker.domain.spend.release_estimate import ResaleShares
from broker.domain.spend.spend import CostView
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_segment, an_offer, slot_terms

HOUR = timedelta(hours=1)
NODE_HOUR = 8 * 3600
"""GPU-seconds of one node of eight GPUs."""


@pytest.mark.parametrize(
    ("price", "unused", "idle_usd", "idle_node_hours"),
    [
        ("10", "25", "25", Decimal("2.5")),
        ("10", "0", "0", 0),
        ("10", "100", "100", 10),
        ("10", "150", "100", 10),
        ("0", "0", "0", 0),
    ],
)
def test_of_a_placement_the_same_share_of_money_and_gpus_is_idle(
    price: str, unused: str, idle_usd: str, idle_node_hours: Decimal | int
) -> None:
    """Two nodes for five hours; no more than all of it can be idle."""
    placement = a_placement(an_offer("a", price), [a_segment(0, 5, 2)])
    plan = a_plan(replace(placement, paid_unused_usd=Decimal(unused)))
    (charge,) = plan_charges(plan, "research", "plan-1")
    assert (charge.usd, charge.idle_usd) == (10 * Decimal(price), Decimal(idle_usd))
    assert charge.gpu_seconds == 10 * NODE_HOUR
    assert charge.idle_gpu_seconds == idle_node_hours * NODE_HOUR


def test_what_is_idle_is_divided_over_the_days_as_the_money_is() -> None:
    """Noon to midnight, and six hours of the next day: $120 and $60, a third of each without use."""
    placement = replace(a_placement(an_offer("a", "10"), [a_segment(0, 18)]), paid_unused_usd=Decimal(60))
    first, second = plan_charges(a_plan(placement), "research", "plan-1")
    assert [c.usd for c in (first, second)] == [120, 60]
    assert [c.idle_usd for c in (first, second)] == [40, 20]
    assert [c.idle_gpu_seconds for c in (first, second)] == [4 * NODE_HOUR, 2 * NODE_HOUR]


def a_lease(offer: Offer, hours: float, wished: float | None = None) -> Reservation:
    """One node from noon on."""
    return Reservation(
        reservation_id="r-1",
        team="research",
        state=ReservationState.ACTIVE,
        offer=offer,
        nodes=1,
        start=NOON,
        end=NOON + hours * HOUR,
        units=(Unit(0, "tag-1", 1, UnitState.HELD, "i-1", NOON),),
        created_at=NOON,
        workload="train",
        requested=None if wished is None else Wish(NOON, NOON + wished * HOUR),
    )


@pytest.mark.parametrize(
    ("price", "wished", "idle_usd"),
    [("10", 5, "50.00"), ("10", 10, "0"), ("0.10", 5, "0.50"), ("10", 2.5, "75.00"), ("0", 5, "0")],
)
def test_the_part_of_a_window_that_nobody_wished_is_idle(price: str, wished: float, idle_usd: str) -> None:
    row = a_lease(an_offer("a", price, window=slot_terms(NOON, 10)), 10, wished)
    (charge,) = reservation_charges([row], {}, NOON)
    assert (charge.usd, charge.idle_usd) == (10 * Decimal(price), Decimal(idle_usd))
    assert (charge.gpu_seconds, charge.idle_gpu_seconds) == (10 * NODE_HOUR, (10 - wished) * NODE_HOUR)


@pytest.mark.parametrize(
    ("billed", "in_november", "owed"),
    [
        (WindowBilling.AT_ORDER, "1612.80", ["1612.80", "1612.80", "1612.80"]),
        (WindowBilling.FROM_START, "806.40", ["0", "403.20", "1612.80"]),
    ],
)
def test_a_window_over_the_end_of_a_month_is_billed_when_its_terms_say(
    billed: WindowBilling, in_november: str, owed: list[str]
) -> None:
    """48 hours at $33.60 from the last day of November, planned and then bought a week before."""
    december = datetime(2026, 12, 1, tzinfo=UTC)
    start, end, ordered_at = december - 24 * HOUR, december + 24 * HOUR, december - 192 * HOUR
    terms = replace(slot_terms(start, 48, cancel=CancelRule.UNTIL), billed=billed)
    offer, segment = an_offer("w", "33.60", window=terms), a_segment(0, 48, origin=start)
    use = use_of(terms, (segment,), segment.window, Decimal("1612.80"))
    plan = a_plan(replace(a_placement(offer, [segment]), window_use=use))
    unit = Unit(0, "tag-1", 1, UnitState.HELD, "i-1", ordered_at)
    row = replace(a_lease(offer, 0), start=start, end=end, units=(unit,))
    for charges in (
        plan_charges(plan, "research", "plan-1"),
        reservation_charges([row], {}, ordered_at),
        reservation_charges([row], {}, end),
    ):
        before = sum(one.usd for one in charges if one.at(CostView.CASH) < december)
        assert (before, sum(one.usd for one in charges)) == (Decimal(in_november), Decimal("1612.80"))
    instants = (ordered_at, start + 12 * HOUR, end)
    assert [owed_usd([row], at) for at in instants] == [Decimal(usd) for usd in owed]
    quote = quote_of(Intent(offer, 1, start, end), "research", ordered_at, ResaleShares({}, Decimal(0)))
    assert quote.at_once_usd == Decimal(owed[0])


def test_an_hour_that_is_begun_is_billed_whole_and_its_rest_is_idle() -> None:
    row = a_lease(an_offer("a", "10"), 1.5)
    gone = replace(row.units[0], state=UnitState.GONE, gone_at=row.end)
    ended = replace(row, state=ReservationState.RELEASED, units=(gone,), released_at=row.end)
    (charge,) = reservation_charges([ended], {}, NOON + 3 * HOUR)
    assert (charge.usd, charge.idle_usd) == (Decimal(20), Decimal(5))
    assert (charge.gpu_seconds, charge.idle_gpu_seconds) == (2 * NODE_HOUR, NODE_HOUR // 2)


def test_a_credit_counts_where_it_is_known_when_the_window_was_left() -> None:
    """It is left after one of its ten hours, and its seller takes it back at any time."""
    row = a_lease(an_offer("a", "10", window=slot_terms(NOON, 10)), 10)
    (unit,) = row.units
    known, unknown = (
        replace(row, units=(replace(unit, credit_usd=Decimal(4), gone_at=at),)) for at in (NOON + HOUR, None)
    )
    assert sorted(c.usd for c in reservation_charges([known], {}, NOON)) == [-4, 4, 6]
    assert [c.usd for c in reservation_charges([unknown], {}, NOON)] == [100]


@pytest.mark.parametrize(
    ("price", "credit_usd", "expected"),
    [
        ("10", "40", [(10, 1), (90, 9), (-40, -4)]),
        ("10", "90", [(10, 1), (90, 9), (-90, -9)]),
        ("10", "95", [(5, 1), (5, 0), (90, 9), (-90, -9), (-5, 0)]),  # also for half of the used hour
        ("0", "4", [(0, 1), (0, 9), (-4, 0)]),  # nothing was paid, so that no hour is paid back
    ],
)
def test_a_resale_pays_back_hours_that_were_given_up(
    price: str, credit_usd: str, expected: list[tuple[Decimal | int, int]]
) -> None:
    """A node for ten hours, resold after the first: USD and node-hours of each charge."""
    row = a_lease(an_offer("a", price, window=slot_terms(NOON, 10, cancel=CancelRule.RESELL)), 10)
    (unit,) = row.units
    gone = replace(unit, state=UnitState.GONE, gone_at=NOON + HOUR, credit_usd=Decimal(credit_usd))
    charges = reservation_charges([replace(row, units=(gone,))], {}, NOON + 2 * HOUR)
    assert [(charge.usd, charge.gpu_seconds) for charge in charges] == [
        (usd, node_hours * NODE_HOUR) for usd, node_hours in expected
    ]


def test_the_rest_of_an_hour_that_is_begun_is_given_up_with_its_window() -> None:
    """Nine and a half hours are billed as ten, $100 over that time; it is left after one, for no credit."""
    row = a_lease(an_offer("a", "10", window=slot_terms(NOON, 10, cancel=CancelRule.RESELL)), 9.5)
    (unit,) = row.units
    gone = replace(unit, state=UnitState.GONE, gone_at=NOON + HOUR, credit_usd=Decimal(0))
    used, given_up = reservation_charges([replace(row, units=(gone,))], {}, NOON + 2 * HOUR)
    assert (used.usd, used.gpu_seconds) == (Decimal("10.52"), NODE_HOUR)
    assert (given_up.usd, given_up.gpu_seconds) == (Decimal("89.48"), 9 * NODE_HOUR)
