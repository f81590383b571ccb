"""Plans within a budget that holds at a quantile of what is paid in the end.

The search counts each run by the hour at its own quantile, which is careful, as the errors of several runs do
not add up. Where that is not enough, as for fleets and windows that are too short, a margin is kept of the
budget, and grows until the quantile is within it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import TypeVar

from broker.domain.basics.money import ZERO, to_cents
from broker.domain.planning.plan import Plan, PlanStatus
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import PlanOptions

SHARE, LEAST_SHARE, ROUNDS = 0.5, 0.1, 3
"""Each plan has this share of the time that is left, and at least that share of the whole limit."""
WIDER = Decimal("1.25")
"""By how much more a margin grows than its plan was over the budget."""

T = TypeVar("T")


def within_quantile(
    request: PlanRequest,
    options: PlanOptions,
    planned: Callable[[PlanRequest, PlanOptions], T],
    plan_of: Callable[[T], Plan],
    paid_usd: Callable[[Plan], Decimal],
) -> tuple[T, Plan | None]:
    """What is ``planned`` within the budget at its quantile, which ``paid_usd`` tells of a plan; and the plan
    without a budget, whose bound holds for it too (None: it is that plan, or no quantile is asked for).

    The last round holds nothing that costs, which is within every budget.
    """
    budget = request.budget_usd
    if budget is None or request.budget_confidence is None:
        return planned(request, options), None
    left_s = options.time_limit_s
    free = planned(replace(request, budget_usd=None), replace(options, time_limit_s=SHARE * left_s))
    found, margin = free, ZERO
    for number in range(1, ROUNDS + 1):
        paid = paid_usd(plan_of(found))
        if paid <= budget:
            return found, None if found is free else plan_of(free)
        if found is not free:
            margin = budget if number == ROUNDS else margin + to_cents(WIDER * (paid - budget))
        left_s -= plan_of(found).solve_seconds
        limit_s = max(SHARE * left_s, LEAST_SHARE * options.time_limit_s)
        asked = replace(request, budget_margin_usd=margin)
        found = planned(asked, replace(options, time_limit_s=limit_s))
    return found, plan_of(free)


def bounded_by(plan: Plan, free: Plan | None) -> Plan:
    """``plan`` with the bound of the plan without a budget, which every plan within a budget obeys too.

    Without one where an hour of some wait costs something else than there.
    """
    if free is None:
        return plan
    waits, known = ({(wait.workload, wait.usd_per_hour) for wait in one.waits} for one in (plan, free))
    is_infeasible = plan.status is PlanStatus.INFEASIBLE
    status = plan.status if is_infeasible else PlanStatus.FEASIBLE
    if free.bound_usd is None or not waits <= known:
        return replace(plan, bound_usd=None, gap=None, status=status)
    bound, total = min(free.bound_usd, plan.objective_usd), plan.objective_usd
    gap = float((total - bound) / total) if total else 0.0
    return replace(
        plan, bound_usd=bound, gap=gap, status=PlanStatus.OPTIMAL if not gap and not is_infeasible else status
    )
