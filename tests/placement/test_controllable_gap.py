"""What leaving out costs hides nothing of what a plan may still save. Sums are worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import cast

import pytest

from broker.domain.basics.money import ZERO
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.plan import Plan, PlanStatus
from broker.domain.planning.workload import PlanRequest, Policy, Providers
from broker.ports.planning import PlanOptions
from optimizer.performance.estimator import Estimator
from optimizer.placement.columns.candidates import build_candidates
from optimizer.placement.columns.search import Search, choice_from
from optimizer.placement.pipeline import bounded, finished
from optimizer.placement.problem.estimates import build_estimates
from optimizer.placement.problem.problem import Problem, build_problem
from optimizer.placement.runs.columns import build_run_column
from optimizer.placement.runtime.stopwatch import Stopwatch
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import T0, offer, plan, request, training

OFFERS = [offer("a", "1.00")]
PRICE_USD = Decimal(1_000_000)
"""What leaving out the run that no seller may have costs; the other costs $10 on one GPU."""


def asked() -> PlanRequest:
    nowhere = training("out", unplaced_usd=PRICE_USD, policy=Policy(providers=Providers(only=("nobody",))))
    return request(training("run"), nowhere)


def problem_of(wanted: PlanRequest) -> Problem:
    return build_problem(wanted, OFFERS, T0, MovingTerms())


def made() -> Plan:
    found = plan(asked(), OFFERS)
    assert (found.cost_usd, found.penalty_usd, found.delay_usd) == (Decimal(10), PRICE_USD, ZERO)
    assert found.status is PlanStatus.OPTIMAL
    return found


@pytest.mark.parametrize(
    ("bound_cents", "status", "note"),
    [
        (100_000_995, PlanStatus.OPTIMAL, None),
        (100_000_500, PlanStatus.FEASIBLE, "$5.00 of $10.00 is open"),
    ],
)
def test_optimal_is_what_is_near_the_bound_of_what_is_spent(
    bound_cents: int, status: PlanStatus, note: str | None
) -> None:
    """Five cents of $10 are within 1 %; $5 are not, though they are within 0.0005 % of $1,000,010."""
    problem = problem_of(asked())
    found = bounded(made(), problem, bound_cents, 0.01)
    assert found.status is status
    objective = PRICE_USD + 10
    assert found.gap == pytest.approx(float((objective - Decimal(bound_cents) / 100) / objective), abs=1e-9)
    told = finished(found, problem, PlanOptions(gap=0.01), Stopwatch(1.0)).notes
    assert [one.partition(":")[0] for one in told] == ([] if note is None else [note])


def test_where_nothing_is_left_out_the_gap_is_told_alone() -> None:
    wanted = request(training("run"))
    problem = problem_of(wanted)
    found = bounded(plan(wanted, OFFERS), problem, 500, 0.01)
    assert (found.status, found.gap) == (PlanStatus.FEASIBLE, 0.5)
    assert finished(found, problem, PlanOptions(gap=0.01), Stopwatch(1.0)).notes == ()


def test_a_search_goes_on_while_much_of_what_it_spends_is_open() -> None:
    problem = problem_of(asked())
    candidates = build_candidates(problem, build_estimates(problem, cast("Estimator", FakeEstimator())))
    search = Search(candidates, Stopwatch(3600.0), 0.01, seed=1)
    run = candidates.runs["run"]
    column = build_run_column(problem, candidates.estimates, run, int(run.total_usd.argmin()))
    assert column is not None
    search.best = choice_from(problem, {"run": replace(column)})
    assert search.best.objective_cents == 100_001_000
    search.bound_cents = 100_000_500
    assert not search.done
    search.bound_cents = 100_000_995
    assert search.done
