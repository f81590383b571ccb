"""What is kept of a workload that is short of nodes, and what of it is planned again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from broker.domain.moving.kept_parts import find_shortages, parts_held
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.moving.remaining import remaining
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import Batch, PlanRequest, Training
from tests.domain.test_spot import SPOT, a_batch_in_parts
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_request, a_segment, an_offer
from tests.fakes.planned import held_as_planned

HOUR = timedelta(hours=1)
OFFERS = {"s": SPOT, "d": an_offer("d", "9")}


def in_sixteen() -> tuple[PlanRequest, Plan]:
    """The batch of two parts, of which that on spot is on 16 nodes."""
    request, plan = a_batch_in_parts()
    spot, other = plan.placements
    wide = replace(spot, nodes=16, gpus=128, replicas=16, segments=(a_segment(0, 10, 16),))
    return request, replace(plan, placements=(wide, other))


def test_of_sixteen_nodes_three_are_kept_and_the_work_of_thirteen_is_planned_again() -> None:
    request, plan = in_sixteen()
    spot, other = held_as_planned(plan, OFFERS, NOON)
    short = find_shortages(request, plan, [replace(spot, nodes=3), other], NOON)
    (batch,) = short.rest_of(request).workloads
    assert isinstance(batch, Batch)
    assert batch.requests == 60_000 * 13 / 16
    kept = {part.offer_id: (part.nodes, part.requests) for part in short.by_name["batch"].kept}
    assert kept == {"s": (3, 11_250), "d": (1, 30_000)}
    assert short.reasons["batch"].startswith("batch holds 4 of 17 nodes")
    left = remaining(short.rest_of(request), short.lacking(plan), short.loose([spot]), NOON, MovingTerms())
    (again,) = left.request.workloads
    assert isinstance(again, Batch)
    assert again.requests == batch.requests


@pytest.mark.parametrize("late_min", [0, 5, 29])
def test_a_late_launch_is_no_shortage(late_min: int) -> None:
    request, plan = a_batch_in_parts()
    late = NOON + timedelta(minutes=late_min)
    held = [replace(one, active_since=late) for one in held_as_planned(plan, OFFERS, NOON)]
    assert not find_shortages(request, plan, held, NOON + HOUR).by_name


def test_nothing_is_kept_where_nothing_is_held_or_no_further_part_is_allowed() -> None:
    request, plan = a_batch_in_parts()
    spot, _ = held_as_planned(plan, OFFERS, NOON)
    assert find_shortages(request, plan, [spot], NOON).by_name
    assert not find_shortages(request, plan, [], NOON).by_name
    (batch,) = request.workloads
    assert isinstance(batch, Batch)
    whole = replace(request, workloads=(replace(batch, parts=1),))
    assert not find_shortages(whole, plan, [spot], NOON).by_name
    halves = replace(request, workloads=(replace(batch, parts=2),))
    (rest,) = find_shortages(halves, plan, [spot], NOON).rest_of(halves).workloads
    assert isinstance(rest, Batch)
    assert rest.parts == 1


def test_what_is_refused_is_not_expected() -> None:
    request, plan = a_batch_in_parts()
    spot, other = held_as_planned(plan, OFFERS, NOON)
    refused = replace(other, is_bought=False, is_expected=False)
    short = find_shortages(request, plan, [spot, refused], NOON).by_name["batch"]
    assert [row.offer.offer_id for row in short.rows] == ["s"]
    waiting = replace(other, is_bought=False)
    assert not find_shortages(request, plan, [spot, waiting], NOON).by_name


def test_the_budget_that_is_left_is_without_what_kept_parts_cost() -> None:
    request, plan = a_batch_in_parts()
    spot, _ = held_as_planned(plan, OFFERS, NOON)
    short = find_shortages(request, plan, [spot], NOON)
    rest = short.rest_of(replace(request, budget_usd=Decimal(100)))
    assert rest.budget_usd == Decimal(100) - plan.placements[0].cost_usd


def test_a_run_keeps_its_first_stretch_and_plans_the_second_after_it() -> None:
    request = a_request()
    run = request.workload("train")
    assert isinstance(run, Training)
    first = a_placement(SPOT, [a_segment(0, 10)], "train")
    second = a_placement(an_offer("d", "9"), [a_segment(12, 22)], "train")
    hours = replace(first.estimate, value={**first.estimate.value, "hours": 10.0})
    plan = a_plan(replace(first, estimate=hours), replace(second, estimate=hours))
    held = held_as_planned(plan, OFFERS, NOON + HOUR)
    spot = next(one for one in held if one.offer.offer_id == "s")
    short = find_shortages(request, plan, [spot], NOON + HOUR)
    (rest,) = [w for w in short.rest_of(request).workloads if w.name == "train"]
    assert isinstance(rest, Training)
    assert rest.earliest_start == NOON + 10 * HOUR
    assert [part.offer_id for part in short.by_name["train"].kept] == ["s"]


def test_parts_under_way_are_not_bought_again() -> None:
    _, plan = a_batch_in_parts()
    spot, other = held_as_planned(plan, OFFERS, NOON + 3 * HOUR)
    left, kept = parts_held(plan, [spot, replace(other, nodes=2)])
    assert [part.offer_id for part in left.placements] == ["d"]
    assert kept == (spot,)
