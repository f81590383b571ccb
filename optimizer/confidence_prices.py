"""What the same document costs at other confidences: the price of confidence."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from decimal import Decimal

from broker.domain.planning.plan import ConfidencePrice, Plan
from broker.domain.planning.workload import PlanRequest

LEVELS = (0.5, 0.8, 0.9, 0.95)


def confidence_prices(
    request: PlanRequest, left_out: Collection[str], planned: Callable[[PlanRequest], Plan]
) -> tuple[ConfidencePrice, ...]:
    """A price for each of ``LEVELS``, where every workload is ``planned`` at it.

    A level takes the cheapest plan that holds with it: one that was planned at it or at more, or whose least
    certain workload has that chance. So neither objective nor chance falls with the confidence, whatever
    gap a search left open. ``left_out``: what may be left out.
    """
    plans = {level: planned(_at(request, level)) for level in LEVELS}
    names = {level: tuple(row.workload for row in plan.unplaced) for level, plan in plans.items()}
    whole = [level for level in LEVELS if set(names[level]) <= set(left_out)]
    held = {level: max(level, plans[level].least_chance or 0.0) for level in whole}

    def rank(level: float) -> tuple[Decimal, float]:
        return plans[level].objective_usd, -held[level]

    rows: list[ConfidencePrice] = []
    for level in LEVELS:
        best = min((one for one in whole if held[one] >= level), key=rank, default=None)
        if best is None:
            rows.append(ConfidencePrice(level, None, None, None, names[level]))
        else:
            plan = plans[best]
            prices = plan.cost_usd, plan.expected_cost_usd, plan.least_chance
            rows.append(ConfidencePrice(level, *prices, names[best]))
    return tuple(rows)


def _at(request: PlanRequest, level: float) -> PlanRequest:
    """The request with every workload planned at one confidence."""
    return replace(request, workloads=tuple(replace(one, confidence=level) for one in request.workloads))
