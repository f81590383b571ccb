"""Baselines are plans: each keeps every rule that the plan keeps, and none is cheaper than the plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest

from api.schemas.market.market import read_market
from api.schemas.workloads.workloads import read_workloads
from broker.catalogue import load_gpus
from broker.domain.market.offer import Offer
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest, Redundancy, Starts
from broker.ports.planning import LimitClock, PlanOptions
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.placement.baselines.baselines import Simpler, build_baselines
from optimizer.placement.columns.candidates import build_candidates
from optimizer.placement.columns.search import Search, choice_from
from optimizer.placement.pipeline import build_plan
from optimizer.placement.problem.estimates import build_estimates
from optimizer.placement.problem.problem import build_problem
from optimizer.placement.rules.check import check_plan
from optimizer.placement.runtime.stopwatch import Stopwatch, never
from optimizer.placement.search.solve import no_dearer_than, solve
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import T0, offer, plan, request, serving, training

PROBLEMS = sorted((Path(__file__).resolve().parents[2] / "fixtures" / "problems").glob("*.json"))
WORK_S = 16.0


def baselines_of(
    asked: PlanRequest, offers: Sequence[Offer], estimator: Estimator
) -> list[tuple[Simpler, Plan]]:
    """Each baseline that ran, with its plan."""
    options = PlanOptions(time_limit_s=20.0, baselines=False)
    problem = build_problem(asked, offers, asked.horizon.start, MovingTerms())
    candidates = build_candidates(problem, build_estimates(problem, estimator))
    search = Search(candidates, Stopwatch(20.0), options.gap, options.seed)
    solution = solve(search)
    found = build_baselines(candidates, solution.choice.columns, WORK_S, never)
    assert len(found) == 4
    told = []
    for one in found:
        if one.chosen is not None:
            choice = choice_from(problem, one.chosen)
            theirs = replace(solution, choice=choice, bound_cents=0)
            told.append((one, build_plan(candidates, theirs, options, Stopwatch(60.0))))
    return told


def faults_of(found: Plan, asked: PlanRequest, offers: Sequence[Offer], estimator: Estimator) -> list[str]:
    """What the checker says of a plan without the budget, which a baseline may pass."""
    return list(check_plan(found, replace(asked, budget_usd=None), offers, estimator))


@pytest.mark.parametrize("path", PROBLEMS, ids=lambda path: path.stem)
def test_every_baseline_passes_the_check_of_plans(path: Path) -> None:
    problem = json.loads(path.read_text())
    market = read_market(json.dumps(problem["market"]), path.name)
    asked = read_workloads(
        json.dumps(problem["workloads"]), source=path.name, base=path.parent, now=market.as_of
    )
    estimator = Estimator(load_gpus(), load_calibration())
    for one, found in baselines_of(asked, market.offers, estimator):
        assert not faults_of(found, asked, market.offers, estimator), one.baseline.name


PLACES = [
    offer("a", "1.00", zone="a", nodes=6),
    offer("b", "1.10", zone="b", nodes=6),
    offer("c", "0.90", zone="c", gpu="MID", provider="verda", nodes=6),
    offer("tiny", "0.40", gpu="TINY", provider="verda", zone="d", nodes=3),
]


def test_baselines_survive_the_loss_of_a_place_and_count_lateness_and_delay() -> None:
    """Half of 7 requests/s must be left without either place."""
    safe = replace(
        serving(hourly=[3.0, 7.0]),
        redundancy=Redundancy(2, 0),
        starts=Starts("run", delay_usd_per_hour=Decimal(2)),
    )
    asked = request(training(gpu_hours=10), safe)
    estimator = cast("Estimator", FakeEstimator())
    told = baselines_of(asked, PLACES, estimator)
    assert {one.baseline.name for one, _ in told} >= {"single_shape", "converged"}
    for one, found in told:
        assert not faults_of(found, asked, PLACES, estimator), one.baseline.name
        assert one.baseline.cost_usd is not None
        if one.baseline.name != "converged":
            assert one.baseline.cost_usd == found.objective_usd
        else:
            assert one.baseline.cost_usd >= found.objective_usd


def test_a_cheaper_baseline_becomes_the_plan() -> None:
    """A search that ended at the dearer of two offers takes the cheaper one that a baseline found."""
    asked = request(training(gpu_hours=10))
    offers = [offer("dear", "2.00"), offer("cheap", "1.00", provider="verda")]
    problem = build_problem(asked, offers, T0, MovingTerms())
    candidates = build_candidates(problem, build_estimates(problem, cast("Estimator", FakeEstimator())))
    search = Search(candidates, Stopwatch(20.0), 0.0, 0)
    solution = solve(search)
    cheap = solution.choice.columns["run"]
    dear = next(c for c in solution.columns if problem.table.offers[c.pieces[0].offer].offer_id == "dear")
    search.best = choice_from(problem, {"run": dear})
    worse = replace(solution, choice=search.best, columns=(dear,))
    assert no_dearer_than(search, worse, [{"run": dear}]).choice.columns == {"run": dear}
    assert no_dearer_than(search, worse, [{"run": cheap}]).choice.columns == {"run": cheap}


def test_a_cheaper_plan_beyond_the_budget_is_not_taken() -> None:
    asked = request(training(gpu_hours=10), budget_usd=Decimal("9.00"))
    problem = build_problem(asked, [offer("a", "1.00")], T0, MovingTerms())
    candidates = build_candidates(problem, build_estimates(problem, cast("Estimator", FakeEstimator())))
    search = Search(candidates, Stopwatch(20.0), 0.0, 0)
    solution = solve(search)
    over = next(iter(solution.columns))
    assert over.cost_cents > 900
    assert no_dearer_than(search, solution, [{"run": over}]) is solution


def test_no_wall_clock_ends_a_baseline() -> None:
    """A plan whose time is over before its baselines begin tells the same ones as with time left."""
    asked = request(training(gpu_hours=20), serving(hourly=[1.0, 3.0]))
    offers = [offer("a", "1.00"), offer("b", "0.60", gpu="TINY", provider="verda")]
    hasty = plan(asked, offers, baselines=True, time_limit_s=0.3)
    assert hasty.baselines == plan(asked, offers, baselines=True, time_limit_s=4.0).baselines
    assert all(baseline.completed for baseline in hasty.baselines)


def test_a_search_that_counts_too_little_is_not_completed() -> None:
    asked = request(training(gpu_hours=2), *(serving(f"s{i}", [1.0, 2.0]) for i in range(40)))
    offers = [offer(f"o{i}", f"{2 - i / 20:.2f}", provider=f"p{i:02}", gpu="TINY") for i in range(20)]
    counted: dict[str, Any] = {"baselines": True, "time_limit_s": 4.0, "limit_clock": LimitClock.WORK}
    found = {b.name: b for b in plan(asked, offers, gap=0.5, **counted).baselines}
    assert found["single_provider"].cost_usd is None
    assert not found["single_provider"].completed
    assert "not tried" in found["single_provider"].why or "cut short" in found["single_provider"].why
    assert found["cheapest_gpu_hour"].cost_usd is not None
