"""The plan in force after some of its workloads moved. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from decimal import Decimal

from broker.domain.basics.money import ZERO
from broker.domain.moving.kept_parts import NO_SHORTAGES, Shortages
from broker.domain.moving.move_cost_benefit import late_usd
from broker.domain.planning.assumed_stock import nodes_at_once
from broker.domain.planning.plan import (
    Assumption,
    Placement,
    Plan,
    PlanStatus,
    Unplaced,
    Wait,
    recourses_usd,
    relaunches_usd,
)
from broker.domain.planning.plan_spend import spend_lines
from broker.domain.planning.workload import PlanRequest


def merged(
    old: Plan, new: Plan, moved: Collection[str], request: PlanRequest, short: Shortages = NO_SHORTAGES
) -> Plan:
    """``old`` with the workloads in ``moved`` as ``new`` places them, beside the parts of ``short`` ones that
    are kept, and totals of the result.

    ``request`` is the complete request. If nothing of ``old`` stays, the result is ``new`` with its bound but
    without its fixes, which only apply to the document of the remaining work. Otherwise it has no bound, and
    does not tell what is paid in the end.
    """
    stays = tuple(p for p in old.placements if p.workload not in moved)
    new = short.joined(new, moved)
    if not (stays or short.by_name) and {p.workload for p in new.placements} <= set(moved):
        return replace(new, unplaced=tuple(replace(left, fixes=()) for left in new.unplaced))
    placements = (*stays, *(p for p in new.placements if p.workload in moved))
    waits = _waits(old, new, moved, {p.workload for p in placements})
    unplaced = tuple(u for u in old.unplaced if u.workload not in moved)
    return replace(
        new,
        status=PlanStatus.INFEASIBLE if _must(unplaced, request) else PlanStatus.FEASIBLE,
        cost_usd=sum((p.cost_usd for p in placements), ZERO),
        bound_usd=None,
        gap=None,
        penalty_usd=_penalty_usd(placements, unplaced, request),
        placements=placements,
        unplaced=unplaced,
        baselines=(),
        spend=spend_lines(placements),
        assumptions=_assumptions(old, new, placements),
        delay_usd=sum((wait.delay_usd for wait in waits), ZERO),
        waits=waits,
        recourse_usd=recourses_usd(placements),
        relaunch_usd=relaunches_usd(placements),
        expected_cost_usd=None,
        cost_p10_usd=None,
        cost_p50_usd=None,
        cost_p90_usd=None,
        confidence_prices=(),
    )


def _assumptions(old: Plan, new: Plan, placements: Sequence[Placement]) -> tuple[Assumption, ...]:
    """The assumptions of both plans about offers that are still used; the newer one counts."""
    said = {one.offer_id: one for plan in (old, new) for one in plan.assumptions}
    held = nodes_at_once(placements)
    return tuple(replace(said[name], nodes=nodes) for name, nodes in held.items() if name in said)


def _waits(old: Plan, new: Plan, moved: Collection[str], placed: Collection[str]) -> tuple[Wait, ...]:
    """The waits of services, each from the plan from which its run is taken."""
    found = [wait for wait in old.waits if wait.after not in moved]
    found += [wait for wait in new.waits if wait.after in moved]
    return tuple(wait for wait in found if wait.workload in placed)


def _must(unplaced: Sequence[Unplaced], request: PlanRequest) -> bool:
    """Whether a required workload is not placed."""
    missed = request.missed({one.workload for one in unplaced})
    return any(w.unplaced_usd is None for w in missed)


def _penalty_usd(
    placements: Sequence[Placement], unplaced: Sequence[Unplaced], request: PlanRequest
) -> Decimal:
    out = {one.workload for one in unplaced}
    total = sum((w.unplaced_usd or ZERO for w in request.missed(out)), ZERO)
    for workload in request.workloads:
        if workload.name not in out:
            total += late_usd(workload, [p for p in placements if p.workload == workload.name])
    return total
