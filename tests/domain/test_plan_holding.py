"""What is held of a reserved plan, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from api.plan_answer import answer_of
from broker.domain.holding.plan_holding import find_holding
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import WorkloadKind
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_segment, an_offer

HOUR = timedelta(hours=1)
OFFER = an_offer("a", "10")
HELD, PLANNED, GONE = UnitState.HELD, UnitState.PLANNED, UnitState.GONE


def embed(begin: float = 0) -> Plan:
    segments = [a_segment(begin, begin + 10, 16)]
    part = a_placement(OFFER, segments, "embed", WorkloadKind.BATCH)
    return a_plan(replace(part, nodes=16, gpus=128))


def row(*units: tuple[UnitState, int], tries: int = 0, begin: float = 0) -> Reservation:
    found = tuple(Unit(n, f"t{n}", nodes, state) for n, (state, nodes) in enumerate(units))
    start = NOON + begin * HOUR
    state = ReservationState.PENDING if tries else ReservationState.SCHEDULED
    return Reservation(
        "r", "research", state, OFFER, 16, start, start + 10 * HOUR, found, NOON, "embed", "p", tries=tries
    )


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row((HELD, 16))], "16 of 16 nodes held"),
        ([row((HELD, 3), (PLANNED, 13), tries=2)], "3 of 16 nodes held, 13 missing"),
        ([row((HELD, 3), (PLANNED, 13))], "3 of 16 nodes held, 13 not bought yet"),
        ([row((HELD, 3), (GONE, 13))], "3 of 16 nodes held, 13 missing"),
        ([row((HELD, 3), (GONE, 13)), row((PLANNED, 13))], "3 of 16 nodes held, 13 not bought yet"),
        ([], "0 of 16 nodes held, 16 missing"),
    ],
)
def test_what_is_held_of_what_is_planned(rows: list[Reservation], words: str) -> None:
    found = find_holding(embed(), rows, NOON)
    assert found is not None
    assert found.text == words


def test_a_plan_that_begins_later_is_told_at_its_start_and_one_that_is_over_not_at_all() -> None:
    later = find_holding(embed(5), [row((PLANNED, 16), begin=5)], NOON)
    assert later is not None
    assert later.text == "0 of 16 nodes held, 16 not bought yet"
    assert find_holding(embed(), [row((HELD, 16))], NOON + 11 * HOUR) is None


def test_a_step_of_a_fleet_that_is_missing_later_is_told() -> None:
    segments = [a_segment(0, 20, 1), a_segment(20, 30, 3)]
    plan = a_plan(a_placement(OFFER, segments, "embed", WorkloadKind.SERVING))
    base = replace(row((HELD, 1)), nodes=1, end=NOON + 30 * HOUR)
    step = replace(row((PLANNED, 2), tries=1, begin=20), nodes=2)
    found = find_holding(plan, [base, step], NOON)
    assert found is not None
    assert found.text == "1 of 3 nodes held, 2 missing"


def test_no_end_is_expected_while_nodes_are_missing() -> None:
    def moment(at: datetime) -> str:
        return f"{at:%H:%M}"

    plan = embed()
    whole = answer_of(plan, str, moment, holding=find_holding(plan, [row((HELD, 16))], NOON))
    assert whole[0] == "16 of 16 nodes held."
    assert "expected to be done by 22:00" in whole[1]
    short = find_holding(plan, [row((HELD, 3), (PLANNED, 13), tries=2)], NOON)
    said = " ".join(answer_of(plan, str, moment, holding=short))
    assert "expected to be done" not in said
    assert "embed has no expected end: 3 of 16 nodes held, 13 missing." in said
    many = replace(
        plan, placements=tuple(replace(plan.placements[0], workload=f"embed-{n}") for n in range(6))
    )
    told = " ".join(answer_of(many, str, moment, holding=find_holding(many, [], NOON)))
    assert "6 workloads lack nodes" in told
    assert "expected to be done" not in told
