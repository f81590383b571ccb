"""What is finally paid for a plan: its mean and quantiles, and the budgets that hold at one of them.

They are those of ``broker simulate`` with its default draws, so that both tell the same to the cent. Of more
than 100 workloads there are fewer draws, which are enough for such sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from broker.domain.basics.money import CENT
from broker.domain.planning.plan import Plan
from broker.domain.planning.simulation import DRAWS, SEED
from optimizer.placement.rules.case import Case
from optimizer.simulation import Draws, draw_costs, quantile_usd, quantiles_of

MOST_DRAWN, LEAST_DRAWS = 400_000, 200
"""Draws of all workloads together, and the least number of draws."""
FIELDS = {"mean": "expected_cost_usd", "p10": "cost_p10_usd", "p50": "cost_p50_usd", "p90": "cost_p90_usd"}


def _drawn(case: Case) -> Draws:
    """What is paid for the plan of a case in each draw, in USD."""
    draws = min(DRAWS, max(LEAST_DRAWS, MOST_DRAWN // max(1, len(case.placed))))
    return draw_costs(case, draws, SEED)


def with_costs(plan: Plan, case: Case) -> Plan:
    """The plan with the mean and the quantiles of what is paid in the end."""
    paid = quantiles_of(_drawn(case))
    return replace(plan, **{name: getattr(paid, of) for of, name in FIELDS.items()})


def paid_usd(case: Case, chance: float) -> Decimal:
    """What is paid at most with ``chance``, in USD."""
    return quantile_usd(_drawn(case), chance)


def violations(case: Case) -> Iterator[str]:
    """Stated costs that differ from those drawn, and a budget that does not hold with its chance; a plan of
    an earlier version does not state any costs.
    """
    drawn = _drawn(case)
    paid = quantiles_of(drawn)
    for of, name in FIELDS.items():
        stated, expected = getattr(case.plan, name), getattr(paid, of)
        if stated is not None and abs(stated - expected) > CENT:
            yield f"{name} is {stated}, expected {expected}"
    budget, chance = case.request.budget_usd, case.request.budget_confidence
    if budget is not None and chance is not None and (most := quantile_usd(drawn, chance)) > budget:
        yield f"{most} is paid at most with a chance of {chance:g}, over the budget of {budget}"
