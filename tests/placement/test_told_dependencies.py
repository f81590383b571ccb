"""A run and what waits for it: each left-out workload is told, with what stops it and nothing else."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from broker.domain.market.offer import Tier
from broker.domain.planning.plan import Obstacle, Plan, PlanStatus
from broker.domain.planning.workload import GpuRange, PlanRequest, Policy, Slo
from broker.domain.workloads.traffic import Traffic, TrafficShape
from broker.ports.planning import LimitClock, PlanOptions
from optimizer.placement.replan.warm import WarmStart
from tests.placement.market import T0, at, offer, plan, planner, request, serving, training
from tests.placement.test_fixes import after, check_fixes, h100, real_plan

NODES = [offer("node", "1.00", nodes=4)]
LATE = training(gpu_hours=10, deadline=at(1), gpus=GpuRange(1, 1))
"""One GPU needs ten hours for it."""
COMMITTED = Policy(tiers=(Tier.COMMITTED,))
"""Nobody sells that."""


def told(found: Plan) -> dict[str, Obstacle]:
    return {left.workload: left.reason for left in found.unplaced}


def test_an_impossible_objective_is_told_of_the_service_and_its_run_is_placed() -> None:
    run = replace(training("tune"), tokens=1e8, software=training().software)
    traffic = Traffic(1000, 100, TrafficShape.FLAT, 0.05)
    chat = serving("chat", starts_after="tune", slo=Slo(2000.0, 1.0))
    asked = request(run, replace(chat, traffic=traffic), hours=48)
    offers = [h100(8, "20.00")]
    found = real_plan(asked, offers)
    assert found.placements_of("tune")
    assert told(found) == {"chat": Obstacle.LATENCY}
    (left,) = found.unplaced
    assert left.fixes
    for fix in left.fixes:
        assert real_plan(after(asked, fix), offers).unplaced == ()


def test_a_run_is_placed_as_if_alone_before_a_service_that_nobody_can_serve() -> None:
    run, chat = training(), serving(hourly=[3.0] * 48, starts_after="run", policy=COMMITTED)
    alone, found = plan(request(run), NODES), plan(request(run, chat), NODES)
    assert (found.status, found.bound_usd) == (PlanStatus.INFEASIBLE, None)
    assert found.penalty_usd == 0
    assert [(p.offer_id, p.segments) for p in found.placements] == [
        (p.offer_id, p.segments) for p in alone.placements
    ]
    assert told(found) == {"chat": Obstacle.TIER}
    check_fixes(request(run, chat), NODES, found)
    assert found.unplaced[0].fixes


def test_more_traffic_than_all_nodes_serve_stops_the_service_alone() -> None:
    found = plan(request(training(), serving(hourly=[10_000.0], starts_after="run")), NODES)
    assert told(found) == {"chat": Obstacle.STOCK}
    assert found.placements_of("run")


@pytest.mark.parametrize(("policy", "reason"), [(Policy(), Obstacle.DEPENDENCY), (COMMITTED, Obstacle.TIER)])
def test_what_waits_for_a_left_out_run_is_told_without_changes_of_its_own(
    policy: Policy, reason: Obstacle
) -> None:
    chat = serving(starts_after="run", policy=policy, unplaced_usd=Decimal(500))
    found = plan(request(LATE, chat), NODES)
    assert told(found) == {"run": Obstacle.DEADLINE, "chat": reason}
    assert found.penalty_usd == 0
    assert found.unplaced[0].fixes
    assert found.unplaced[1].fixes == ()
    if reason is Obstacle.DEPENDENCY:
        assert found.unplaced[1].nearest_fix == "a way to place run, which it waits for"


def test_a_run_that_may_be_left_out_is_not_blamed_for_a_service_that_must_follow_it() -> None:
    """Nothing is missed: without its run the service has nothing to serve."""
    run = training(unplaced_usd=Decimal(100))
    found = plan(request(run, serving(starts_after="run", policy=COMMITTED)), NODES)
    assert told(found) == {"run": Obstacle.DEPENDENCY, "chat": Obstacle.TIER}
    assert found.unplaced[0].nearest_fix == "a way to place chat, which must follow it"
    assert (found.status, found.penalty_usd) == (PlanStatus.OPTIMAL, Decimal(100))


def test_a_budget_that_pays_the_run_and_not_the_service_is_told_of_the_service() -> None:
    asked = request(training(), serving(starts_after="run"), budget_usd=Decimal(20))
    found = plan(asked, NODES)
    assert told(found) == {"run": Obstacle.DEPENDENCY, "chat": Obstacle.BUDGET}
    more = plan(replace(asked, budget_usd=None), NODES).cost_usd - Decimal(20)
    assert found.unplaced[1].nearest_fix == f"a budget ${more:.2f} higher"


def test_a_look_at_a_plan_places_the_run_anew_before_a_service_that_nobody_can_serve() -> None:
    """The offer of the plan is gone, so that the run has to move."""
    old = plan(request(training(), serving(starts_after="run")), NODES)
    asked = request(training(), serving(starts_after="run", policy=COMMITTED))
    options = PlanOptions(time_limit_s=30.0, gap=0.0, baselines=False, limit_clock=LimitClock.WORK)
    other = [offer("other", "1.50", nodes=4)]
    found = planner().replan(asked, other, T0, options, WarmStart(old)).plan
    assert told(found) == {"chat": Obstacle.TIER}
    assert [placement.offer_id for placement in found.placements] == ["other"]


def _damaged(found: Plan) -> Plan:
    return replace(found, unplaced=tuple(left for left in found.unplaced if left.workload != "chat"))


def test_the_checker_rejects_a_plan_that_does_not_tell_what_waits() -> None:
    asked: PlanRequest = request(LATE, serving(starts_after="run"))
    found = plan(asked, NODES)
    check = planner().check
    assert check(found, asked, NODES) == ()
    assert check(_damaged(found), asked, NODES) == (
        "workload 'chat' is neither placed nor listed as unplaced",
    )
