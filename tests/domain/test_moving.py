"""What a move buys and lets go: what is wanted all the time is not held by what comes later."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from broker.domain.holding.holding_orders import Intent
from broker.domain.holding.staying import HeldCapacity
from broker.domain.moving.moving import find_change
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.moving.remaining import held_as_planned, remaining
from broker.domain.planning.workload import WorkloadKind
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_request, a_segment, an_offer

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
