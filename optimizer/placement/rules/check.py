"""Decides without the solver, a second time, whether a plan is valid.

It runs on every plan before the plan is shown or reserved, and in ``broker check``. It shares nothing with
the search but the performance core, whose figures it requests again layout by layout, and the billing rules
of ``broker.domain.market.billing``.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.domain.market.offer import Offer
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from optimizer.performance.estimator import Estimator
from optimizer.placement.rules import (
    assumed,
    available,
    chances,
    form,
    holding,
    host,
    identity,
    policy,
    pools,
    quotas,
    recourses,
    relaunches,
    running,
    serving,
    totals,
    transfers,
    waiting,
    window_use,
)
from optimizer.placement.rules.case import Case

RULES = (
    policy,
    host,
    quotas,
    holding,
    assumed,
    available,
    running,
    recourses,
    relaunches,
    serving,
    pools,
    transfers,
    waiting,
    totals,
    window_use,
)


def check_plan(
    plan: Plan,
    request: PlanRequest,
    offers: Sequence[Offer],
    estimator: Estimator,
    terms: MovingTerms | None = None,
    held: frozenset[str] | None = None,
) -> tuple[str, ...]:
    """Every violation of ``plan`` in plain words; none for a valid plan.

    If the plan is malformed (unknown names, missing metrics), only that is reported. ``terms``: prices and
    speed of data transfer. ``held``: workloads that held nodes before the plan (None: not known).
    """
    case = Case.of(plan, request, offers, estimator, terms or MovingTerms(), held)
    senseless = tuple(form.violations(case))
    if senseless:
        return senseless
    found = tuple(sentence for rule in (identity, *RULES) for sentence in rule.violations(case))
    return found or tuple(chances.violations(case))
