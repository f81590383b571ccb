"""What is finally paid for a plan: its mean and quantiles, and the budgets that hold at one of them.

They are those of ``broker simulate`` with its default draws, so that both tell the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from broker.domain.basics.money import CENT
from broker.domain.planning.plan import Plan
from broker.domain.planning.simulation import DRAWS, SEED, CostQuantiles
from optimizer.placement.rules.case import Case
from optimizer.simulation import draw_costs, quantiles_of

FIELDS = {"mean": "expected_cost_usd", "p10": "cost_p10_usd", "p50": "cost_p50_usd", "p90": "cost_p90_usd"}


def with_costs(plan: Plan, case: Case) -> Plan:
    """The plan with the mean and the quantiles of what is paid in the end."""
    paid = costs_of(case)
    return replace(plan, **{name: getattr(paid, of) for of, name in FIELDS.items()})


def costs_of(case: Case) -> CostQuantiles:
    """The mean and the quantiles of what is paid for the plan of a case."""
    return quantiles_of(draw_costs(case, DRAWS, SEED))


def violations(case: Case) -> Iterator[str]:
    """Stated costs that differ from those drawn; a plan of an earlier version does not state any."""
    paid = costs_of(case)
    for of, name in FIELDS.items():
        stated, expected = getattr(case.plan, name), getattr(paid, of)
        if stated is not None and abs(stated - expected) > CENT:
            yield f"{name} is {stated}, expected {expected}"
