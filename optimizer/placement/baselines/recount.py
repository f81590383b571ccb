"""The simpler strategies of a plan, solved a second time, so that nobody need take their costs on trust."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from broker.domain.basics.money import CENT
from broker.domain.market.offer import Offer
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.plan import Baseline, Plan
from broker.domain.planning.workload import PlanRequest
from optimizer.performance.estimator import Estimator
from optimizer.placement.baselines.baselines import NAMES, build_baselines
from optimizer.placement.columns.candidates import build_candidates
from optimizer.placement.problem.estimates import build_estimates
from optimizer.placement.problem.problem import build_problem
from optimizer.placement.runtime.stopwatch import never


def false_baselines(
    plan: Plan,
    request: PlanRequest,
    offers: Sequence[Offer],
    estimator: Estimator,
    terms: MovingTerms,
    work_s: float,
) -> Iterator[str]:
    """A sentence for each baseline whose cost is another one, in ``work_s`` seconds of counted work.

    One that is not completed states no cost, and one that this work does not complete cannot be contradicted.
    """
    unknown = sorted({one.name for one in plan.baselines} - set(NAMES))
    if unknown:
        yield f"baselines {', '.join(unknown)} are unknown, expected {', '.join(NAMES)}"
    if len({one.name for one in plan.baselines}) < len(plan.baselines):
        yield "a baseline is listed twice"
    told = [one for one in plan.baselines if one.completed and one.name in NAMES]
    if not told:
        return
    problem = build_problem(request, offers, plan.as_of, terms)
    asked = build_candidates(problem, build_estimates(problem, estimator))
    if not asked.is_small and any(
        s.starts_after and s.delay_usd_per_hour is None for s in problem.services()
    ):
        return  # an hour of delay then has the price that the search had time to find
    asked.bound_services(never, waiting=True)
    candidates = asked.without(asked.impossible_followers())
    candidates.price_delays()
    left_out = {one.workload for one in plan.unplaced}
    placed = [workload.name for workload in request.workloads if workload.name not in left_out]
    found = build_baselines(candidates, placed, work_s, never)
    solved = {one.baseline.name: one.baseline for one in found}
    for one in told:
        yield from _differences(one, solved[one.name])


def _differences(told: Baseline, solved: Baseline) -> Iterator[str]:
    if not solved.completed:
        return
    if told.cost_usd is None or solved.cost_usd is None:
        if told.cost_usd != solved.cost_usd:
            expected = f"{solved.cost_usd}: {solved.why}"
            yield f"baseline {told.name}: cost_usd is {told.cost_usd}, expected {expected}"
        return
    for field, stated, cost in (
        ("cost_usd", told.cost_usd, solved.cost_usd),
        ("over_budget_usd", told.over_budget_usd, solved.over_budget_usd),
    ):
        if abs(stated - cost) > CENT:
            yield f"baseline {told.name}: {field} is {stated}, expected {cost}"
