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

FIRST_SHARE, SHARE, ROUNDS = 0.4, 0.2, 3
"""Shares of the time limit: of the plan without a budget, and of each further one."""
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
    free = planned(replace(request, budget_usd=None), _share(options, FIRST_SHARE))
    found, margin = free, ZERO
    for number in range(1, ROUNDS + 1):
        paid = paid_usd(plan_of(found))
        if paid <= budget:
            return found, None if found is free else plan_of(free)
        if found is not free:
            margin = budget if number == ROUNDS else margin + to_cents(WIDER * (paid - budget))
        found = planned(replace(request, budget_margin_usd=margin), _share(options, SHARE))
    return found, plan_of(free)


def _share(options: PlanOptions, share: float) -> PlanOptions:
    return replace(options, time_limit_s=share * options.time_limit_s)


def bounded_by(plan: Plan, free: Plan | None) -> Plan:
    """``plan`` with the bound of the plan without a budget, which every plan within a budget obeys too.

    Without one where an hour of some wait does not cost the same in both.
    """
    if free is None:
        return plan
    waits = [{(wait.workload, wait.usd_per_hour) for wait in one.waits} for one in (plan, free)]
    is_infeasible = plan.status is PlanStatus.INFEASIBLE
    status = plan.status if is_infeasible else PlanStatus.FEASIBLE
    if free.bound_usd is None or waits[0] != waits[1]:
        return replace(plan, bound_usd=None, gap=None, status=status)
    bound, total = min(free.bound_usd, plan.objective_usd), plan.objective_usd
    gap = float((total - bound) / total) if total else 0.0
    return replace(
        plan, bound_usd=bound, gap=gap, status=PlanStatus.OPTIMAL if not gap and not is_infeasible else status
    )
