from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.basics.errors import Conflict, StalePlan
from broker.domain.basics.identity import is_ours, make_id, make_tag, next_tag
from broker.domain.holding.holding_orders import (
    Intent,
    find_drifts,
    free_nodes,
    intents_of,
    limit_usd_per_node_hour,
    units_of,
)
from broker.domain.holding.reservation import Reservation, ReservationState, UnitState
from broker.domain.market.offer import GpuPool, Offer
from broker.domain.planning.workload import WorkloadKind
from broker.domain.reconciling.fallback_offer import less_held
from broker.services.holding.reservation_creator import require_stock
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_segment, an_offer, listed_terms, slot_terms

HOUR = timedelta(hours=1)


def test_a_step_function_becomes_one_intent_a_holding() -> None:
    offer = an_offer()
    plan = a_plan(a_placement(offer, [a_segment(0, 2, 1), a_segment(2, 4, 3)], "chat", WorkloadKind.SERVING))
    intents = intents_of(plan, {"o-1": offer}, NOON, HOUR)
    assert [(i.nodes, i.start - NOON, i.end) for i in intents] == [
        (1, timedelta(0), NOON + 4 * HOUR),
        (2, 2 * HOUR, NOON + 4 * HOUR),
    ]


def test_listed_windows_are_bought_segment_by_segment() -> None:
    offer = an_offer(window=listed_terms(NOON, 4))
    plan = a_plan(a_placement(offer, [a_segment(0, 2), a_segment(2, 4)]))
    assert len(intents_of(plan, {"o-1": offer}, NOON + HOUR, HOUR)) == 2


def test_a_fleet_begins_now_and_a_passed_slot_does_not() -> None:
    fleet, slots = an_offer("fleet"), an_offer("slots", window=slot_terms(NOON, 24))
    serving = a_plan(a_placement(fleet, [a_segment(0, 1), a_segment(2, 9)], "chat", WorkloadKind.SERVING))
    (left,) = intents_of(serving, {"fleet": fleet}, NOON + 5 * HOUR, HOUR)
    assert (left.start, left.end) == (NOON + 5 * HOUR, NOON + 9 * HOUR)
    with pytest.raises(StalePlan, match="slots"):
        intents_of(a_plan(a_placement(slots, [a_segment(0, 4)])), {"slots": slots}, NOON + HOUR / 2, HOUR)


def test_units_are_as_large_as_one_call_may_be() -> None:
    assert [unit.nodes for unit in units_of("test", "rsv-1", 5, 2)] == [2, 2, 1]
    assert [unit.nodes for unit in units_of("test", "rsv-1", 5, None)] == [5]
    tags = {unit.tag for unit in units_of("test", "rsv-1", 3, 1)}
    assert len(tags) == 3


def test_tags_say_whose_they_are_and_fit_where_names_must() -> None:
    reservation_id = make_id("rsv", NOON, bytes(range(10)))
    tag = make_tag("0123abcd", reservation_id, 12, 3)
    assert len(tag) <= 63
    assert next_tag(tag).endswith("-12-4")
    assert is_ours(tag, "0123abcd")
    assert not is_ours(tag, "0123")
    assert not is_ours(None, "0123abcd")
    assert make_id("rsv", NOON, b"\0" * 10) < make_id("rsv", NOON + timedelta(milliseconds=1), b"\0" * 10)


def test_drift_is_measured_against_the_planned_cost() -> None:
    offer = an_offer("o-1", "10")
    plan = a_plan(a_placement(offer, [a_segment(0, 10)]))
    assert find_drifts(plan, {"o-1": an_offer("o-1", "10.2")}, 0.02) == ()
    (drift,) = find_drifts(plan, {"o-1": an_offer("o-1", "10.21")}, 0.02)
    assert "planned at $100.00 and costs $102.10 now" in str(drift)
    (gone,) = find_drifts(plan, {}, 0.02)
    assert "is no longer on sale" in str(gone)


def test_stock_lacks_what_the_provider_had_not_counted_yet() -> None:
    offer = an_offer(stock=10)
    wish = Intent(offer, 1, NOON, NOON + 4 * HOUR)

    def taken(nodes: int, start_h: int, end_h: int, state: UnitState, ordered_h: int) -> Reservation:
        units = units_of("test", "rsv-1", nodes, None)
        unit = type(units[0])(0, "t", nodes, state, "i", NOON + ordered_h * HOUR)
        return Reservation(
            "rsv-1",
            "research",
            ReservationState.ACTIVE,
            offer,
            nodes,
            NOON + start_h * HOUR,
            NOON + end_h * HOUR,
            (unit,),
            NOON,
        )

    assert free_nodes(wish, []) == 10
    assert free_nodes(wish, [taken(4, 0, 2, UnitState.HELD, 1), taken(3, 2, 4, UnitState.PLANNED, 1)]) == 6
    assert free_nodes(wish, [taken(4, 0, 2, UnitState.HELD, 1), taken(3, 1, 4, UnitState.PLANNED, 1)]) == 3
    assert free_nodes(wish, [taken(4, 0, 2, UnitState.HELD, -1)]) == 10
    assert free_nodes(wish, [taken(4, 4, 5, UnitState.PLANNED, 1)]) == 10
    assert free_nodes(Intent(an_offer(stock=None), 1, NOON, None), []) is None


def test_what_another_size_takes_of_a_pool_is_taken() -> None:
    def size(name: str, gpus: int) -> Offer:
        plain = an_offer(name, stock=16 // gpus)
        pool = GpuPool("fake/us/h100", 16)
        return replace(
            plain, sku=replace(plain.sku, gpus_per_node=gpus), stock=replace(plain.stock, pool=pool)
        )

    eight, one = size("eight", 8), size("one", 1)
    units = tuple(
        replace(unit, state=UnitState.HELD, ordered_at=NOON + HOUR) for unit in units_of("i", "r", 1, None)
    )
    held = Reservation("r", "t", ReservationState.ACTIVE, eight, 1, NOON, NOON + 4 * HOUR, units, NOON)
    assert free_nodes(Intent(one, 1, NOON, None), [held]) == 8
    assert free_nodes(Intent(eight, 1, NOON, None), [held]) == 1
    assert free_nodes(Intent(one, 1, NOON + 4 * HOUR, None), [held]) == 16
    beside = replace(held, reservation_id="s", offer=one, units=units_of("i", "s", 1, None))
    assert free_nodes(Intent(eight, 1, NOON, None), [held, beside]) == 0


def test_what_others_hold_is_off_the_whole_pool() -> None:
    """Offers of one pool are planned with what is left of it together, not each with all of it."""
    pool = GpuPool("verda/FIN-02/H100-SXM-80GB/on_demand", 16)
    one = an_offer("one", stock=2)
    own, resold = (
        replace(one, offer_id=name, stock=replace(one.stock, pool=pool)) for name in ("own", "resold")
    )
    units = tuple(
        replace(unit, state=UnitState.HELD, ordered_at=NOON + HOUR) for unit in units_of("i", "r", 1, None)
    )
    held = Reservation("r", "t", ReservationState.ACTIVE, own, 1, NOON, NOON + 4 * HOUR, units, NOON)
    left = less_held(resold, [held], NOON)
    assert left is not None
    assert left.stock.pool == GpuPool(pool.pool_id, 16 - one.sku.gpus_per_node)


def test_nothing_is_reserved_longer_than_it_is_there() -> None:
    short = replace(an_offer(stock=4), available_until=NOON + 2 * HOUR)
    require_stock(Intent(short, 1, NOON, NOON + 2 * HOUR), ())
    with pytest.raises(Conflict, match="only available until"):
        require_stock(Intent(short, 1, NOON, NOON + 3 * HOUR), ())


@given(st.integers(1, 10**9), st.integers(1, 600))
def test_a_limit_allows_what_was_planned_and_two_percent(micro_usd: int, hours: int) -> None:
    price = Decimal(micro_usd) / 10**6
    offer = an_offer(price=f"{price:f}")
    limit = limit_usd_per_node_hour(a_placement(offer, [a_segment(0, hours)]), offer, 0.02)
    rounding = Decimal("0.01") / hours
    assert price <= limit <= price * Decimal("1.02") + rounding * 2
    dearer = replace(offer, price_usd_per_node_hour=price * 2)
    again = limit_usd_per_node_hour(a_placement(offer, [a_segment(0, hours)]), dearer, 0.02)
    assert abs(again - limit) <= rounding * 4
