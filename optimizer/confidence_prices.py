"""What the same document costs at other confidences: the price of confidence."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from broker.domain.planning.plan import ConfidencePrice, Plan
from broker.domain.planning.workload import PlanRequest

LEVELS = (0.5, 0.8, 0.9, 0.95)


def confidence_prices(
    request: PlanRequest, left_out: Collection[str], planned: Callable[[PlanRequest], Plan]
) -> tuple[ConfidencePrice, ...]:
    """A price for each of ``LEVELS``, where every workload is ``planned`` at it.

    A plan that holds with more also holds with less, so that a level takes the cheapest plan from it on: an
    open gap of a search never makes less confidence dearer. ``left_out``: what may be left out.
    """
    plans = [planned(_at(request, level)) for level in LEVELS]
    rows: list[ConfidencePrice] = []
    best: Plan | None = None
    for level, plan in zip(reversed(LEVELS), reversed(plans), strict=True):
        names = tuple(row.workload for row in plan.unplaced)
        is_whole = set(names) <= set(left_out)
        if is_whole and (best is None or plan.objective_usd <= best.objective_usd):
            best = plan
        if best is None:
            rows.append(ConfidencePrice(level, None, None, None, names))
        else:
            out = tuple(row.workload for row in best.unplaced)
            rows.append(ConfidencePrice(level, best.cost_usd, best.expected_cost_usd, best.least_chance, out))
    return tuple(reversed(rows))


def _at(request: PlanRequest, level: float) -> PlanRequest:
    """The request with every workload planned at one confidence."""
    return replace(request, workloads=tuple(replace(one, confidence=level) for one in request.workloads))
