"""Every cost and sum, and the figures derived from them: penalty, budget, bound, gap, status."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from broker.domain.basics.money import CENT, ZERO, to_cents
from broker.domain.basics.window import Segment
from broker.domain.market.billing import billed_seconds, holding_cost_usd, holdings, node_hours
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Placement, PlanStatus, SpendKind, SpendLine
from broker.domain.planning.workload import Batch, Serving, Training, Workload
from optimizer.placement.rules.case import Case, held_hours

GAP_TOLERANCE = 1e-6


def violations(case: Case) -> Iterator[str]:
    """Wrong costs of placements, sums, spend lines, penalty, budget, bound and status."""
    yield from _placements(case)
    yield from _sums(case)
    yield from _spend_lines(case)
    yield from _penalty(case)
    yield from _bound(case)
    yield from _status(case)


def _placements(case: Case) -> Iterator[str]:
    for where, placement, _, offer in case.known():
        try:
            cost = to_cents(holding_cost_usd(offer, placement.segments))
        except ValueError as error:
            yield f"{where}: cannot be priced: {error}"
            continue
        whole = cost + placement.transfer_usd
        if placement.cost_usd != whole:
            yield f"{where}: cost_usd is {placement.cost_usd}, expected {whole}"
        unused = to_cents(unused_usd(case, placement, offer, cost))
        if abs(placement.paid_unused_usd - unused) > CENT:
            yield f"{where}: paid_unused_usd is {placement.paid_unused_usd}, expected {unused}"


def unused_usd(case: Case, placement: Placement, offer: Offer, cost_usd: Decimal) -> Decimal:
    """The part of ``cost_usd`` that pays for node-hours without work."""
    billed = _billed_node_hours(placement, offer)
    useful = node_hours(placement.segments)
    workload = case.workloads[placement.workload]
    if isinstance(workload, Training):
        useful = placement.nodes * placement.estimate.mean_hours
    elif isinstance(workload, Batch):
        told = placement.estimate.expected_hours
        useful = placement.nodes * (held_hours(placement, workload, offer) if told is None else told)
    if billed <= 0:
        return ZERO
    return cost_usd * Decimal(max(0.0, 1 - useful / billed))


def _billed_node_hours(placement: Placement, offer: Offer) -> float:
    if offer.is_sold_whole:
        return node_hours(placement.segments)
    return sum(h.nodes * billed_seconds(offer, h.window) for h in holdings(placement.segments)) / 3600


def _sums(case: Case) -> Iterator[str]:
    plan = case.plan
    total = sum((p.cost_usd for p in plan.placements), ZERO)
    if plan.cost_usd != total:
        yield f"cost_usd is {plan.cost_usd}, the placements sum to {total}"
    spent = sum((line.usd for line in plan.spend), ZERO)
    if plan.cost_usd != spent:
        yield f"cost_usd is {plan.cost_usd}, the spend lines sum to {spent}"
    by_key: defaultdict[tuple[str, str, str], Decimal] = defaultdict(lambda: ZERO)
    for placement in plan.placements:
        by_key[placement.workload, placement.provider, placement.tier] += placement.cost_usd
    for line in plan.spend:
        by_key[line.workload, line.provider, line.tier] -= line.usd
    for (workload, provider, tier), rest in by_key.items():
        if rest:
            yield f"spend of {workload} on {provider} ({tier}) differs from its placements by {rest}"
    budget = case.request.budget_usd
    if budget is not None and case.request.budget_confidence is None and plan.cost_usd > budget:
        yield f"cost_usd is {plan.cost_usd}, over the budget of {budget}"


def _spend_lines(case: Case) -> Iterator[str]:
    """Each line is in whole cents and equals the share of cost held in its time, to a cent per placement."""
    by_key: defaultdict[tuple[str, str, str], list[Placement]] = defaultdict(list)
    for placement in case.plan.placements:
        by_key[placement.workload, placement.provider, placement.tier].append(placement)
    lines: defaultdict[tuple[str, str, str], list[SpendLine]] = defaultdict(list)
    for line in case.plan.spend:
        if line.kind is SpendKind.EGRESS:
            continue
        if line.billed_by is not None:
            yield f"spend line of {line.workload}: billed_by is {line.billed_by}, expected none for capacity"
        lines[line.workload, line.provider, line.tier].append(line)
    for key, mine in lines.items():
        yield from _lines_of(by_key[key], mine)


def _lines_of(paid_for: Sequence[Placement], lines: Sequence[SpendLine]) -> Iterator[str]:
    """Compares the lines of one workload, provider and tier with what is held there."""
    held = [segment for p in paid_for for segment in p.segments]
    shares = [_cost_within(p, lines) for p in paid_for]
    for index, line in enumerate(lines):
        where = f"spend line of {line.workload} from {line.start.isoformat()}"
        if line.usd != to_cents(line.usd) or line.end <= line.start:
            yield f"{where} is not in whole cents or has no duration"
            continue
        if held and (line.start < min(s.start for s in held) or line.end > max(s.end for s in held)):
            yield f"{where} extends beyond the holdings"
        share = sum((each[index] for each in shares), ZERO)
        if abs(line.usd - share) > CENT * (len(paid_for) + 1):
            yield f"{where}: usd is {line.usd}, {to_cents(share)} is held in its time"


def _cost_within(placement: Placement, lines: Sequence[SpendLine]) -> list[Decimal]:
    """The share of a placement's cost that falls within each line, by node-time."""
    first = placement.segments[0].start
    held, asked = _hours(first, placement.segments), _hours(first, lines)
    nodes = np.array([segment.nodes for segment in placement.segments], dtype=np.float64)
    common = np.minimum(asked[:, 1, None], held[:, 1]) - np.maximum(asked[:, 0, None], held[:, 0])
    within = np.maximum(common, 0.0) @ nodes
    whole = float((held[:, 1] - held[:, 0]) @ nodes)
    return [placement.capacity_usd * Decimal(part / whole) if whole else ZERO for part in within.tolist()]


def _hours(first: datetime, stretches: Sequence[Segment | SpendLine]) -> NDArray[np.float64]:
    """Start and end [N, 2] of each interval, in hours from ``first``."""
    hour = timedelta(hours=1)
    rows = [((x.start - first) / hour, (x.end - first) / hour) for x in stretches]
    return np.array(rows, dtype=np.float64).reshape(-1, 2)


def expected_penalty_usd(case: Case) -> Decimal:
    """Lateness of soft deadlines and penalties for left-out workloads, each to the cent."""
    penalty = ZERO
    for run in {run.name: run for _, _, run, _ in case.training()}.values():
        end = case.run_end(run.name)
        if end is not None and run.late_usd_per_hour is not None and end > run.deadline:
            late_hours = Decimal((end - run.deadline) // timedelta(microseconds=1)) / 3_600_000_000
            penalty += to_cents(late_hours * run.late_usd_per_hour)
    return penalty + sum((w.unplaced_usd or ZERO for w in _missed(case)), ZERO)


def _missed(case: Case) -> list[Workload]:
    """Left-out workloads without services whose run is left out too: these have nothing to serve."""
    out = {left_out.workload for left_out in case.plan.unplaced}
    found = (case.workloads[name] for name in sorted(out & set(case.workloads)))
    return [w for w in found if not (isinstance(w, Serving) and w.starts_after in out)]


def _penalty(case: Case) -> Iterator[str]:
    expected = expected_penalty_usd(case)
    if abs(case.plan.penalty_usd - expected) > CENT:
        yield f"penalty_usd is {case.plan.penalty_usd}, expected {expected}"


def _bound(case: Case) -> Iterator[str]:
    plan = case.plan
    total = plan.objective_usd
    if plan.bound_usd is None or plan.gap is None:
        if plan.status is PlanStatus.OPTIMAL or (plan.bound_usd is None) != (plan.gap is None):
            yield f"bound_usd or gap is missing from a plan that is {plan.status}"
        return
    if plan.bound_usd > total:
        yield f"bound_usd {plan.bound_usd} lies above cost + penalty + delay {total}"
    gap = float((total - plan.bound_usd) / total) if total else 0.0
    if not math.isclose(plan.gap, gap, rel_tol=0, abs_tol=GAP_TOLERANCE):
        yield f"gap is {plan.gap}, expected {gap:.8f}"
    if plan.status is PlanStatus.FEASIBLE and plan.bound_usd == total:
        yield "status is feasible, expected optimal: the bound is what it costs"


def _status(case: Case) -> Iterator[str]:
    required = [workload.name for workload in _missed(case) if workload.unplaced_usd is None]
    if required and case.plan.status is not PlanStatus.INFEASIBLE:
        yield f"status is {case.plan.status}, but {', '.join(required)} must be placed"
    if not required and case.plan.status is PlanStatus.INFEASIBLE:
        yield "status is infeasible, but everything that must be placed is placed"
