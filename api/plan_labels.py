"""Labels for people: phases of the planner, and the simpler strategies that a plan is compared with."""

from __future__ import annotations

from collections.abc import Mapping

from broker.domain.basics.money import ZERO
from broker.domain.planning.plan import Baseline, Plan

STRATEGIES: Mapping[str, str] = {
    "single_shape": "one node type for all",
    "single_provider": "one provider for all",
    "cheapest_gpu_hour": "cheapest GPU-hour each",
    "converged": "one always-on pool",
}


SEARCHING = "searching"
STAGES: Mapping[str, str] = {
    "compiling, once for this version": "compiling, once for this version",
    "reading the market": "reading the market",
    "loaded": "preparing",
    "priced": "preparing",
    "compared": "comparing strategies",
}
"""Phases with a label of their own; all others are shown as SEARCHING."""


def doing(stage: str) -> str:
    """The label of a phase of the planner."""
    return STAGES.get(stage, SEARCHING)


def without_cost(baseline: Baseline) -> str:
    """The text in place of the cost of a baseline without one."""
    return "cannot run" if baseline.completed else "not completed"


def strongest(plan: Plan) -> Baseline | None:
    """The cheapest strategy that was completed and stays within the budget; None if there is none."""
    able = [row for row in plan.baselines if row.cost_usd is not None and not row.over_budget_usd]
    return min(able, key=lambda row: row.cost_usd or ZERO, default=None)


def all_pass_budget(plan: Plan) -> bool:
    """Whether some strategies can run, and all of them exceed the budget."""
    return strongest(plan) is None and any(row.over_budget_usd for row in plan.baselines)


def bound_label(plan: Plan) -> str:
    """The label of the proven bound. It names penalties and delay if the bound includes them, because no bill
    does.
    """
    counted = [name for name, usd in (("penalties", plan.penalty_usd), ("delay", plan.delay_usd)) if usd]
    if not counted:
        return "no plan costs less than"
    return f"with {' and '.join(counted)}, no plan costs less than"


def strategy(name: str) -> str:
    """The label of a baseline by its name: ``converged`` → ``one always-on pool``."""
    return STRATEGIES.get(name, name)
