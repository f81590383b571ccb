"""Which runs must leave spot capacity to meet their deadline. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from broker.domain.holding.cost_of_keeping import HeldCapacity
from broker.domain.holding.spot import Progress, may_stay_on_spot
from broker.domain.market.launch_statistics import LAUNCH_PRIOR
from broker.domain.market.offer import Tier
from broker.domain.moving.moving_costs import HOUR, MovingTerms
from broker.domain.moving.remaining import hours_done, requests_answered, requests_planned
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import Batch, PlanRequest, Serving, Training

BEHIND = "it is behind schedule for its deadline, and spot capacity may be interrupted"


def behind_on_spot(
    request: PlanRequest, plan: Plan, held: Iterable[HeldCapacity], now: datetime, terms: MovingTerms
) -> dict[str, str]:
    """Runs that must leave spot capacity by ``spot.may_stay_on_spot``, each with the reason.

    A batch that may be divided stays: what a part loses can be done on more nodes beside the others.
    """
    rows = tuple(held)
    found = {}
    for workload in request.workloads:
        mine = [one for one in rows if one.workload == workload.name and one.is_in_use(now)]
        if isinstance(workload, Serving) or (isinstance(workload, Batch) and workload.parts != 1):
            continue
        if not any(one.offer.tier is Tier.SPOT for one in mine):
            continue
        progress = _progress(workload, plan, mine, now, terms)
        if progress is not None and not may_stay_on_spot(progress, now):
            found[workload.name] = BEHIND
    return found


def _progress(
    run: Training | Batch, plan: Plan, held: Sequence[HeldCapacity], now: datetime, terms: MovingTerms
) -> Progress | None:
    placed = plan.placements_of(run.name)
    hours = [placement.estimate.value.get("hours", 0.0) for placement in placed]
    start = min((s.start for p in placed for s in p.segments), default=now)
    restart = LAUNCH_PRIOR.wait_hours + terms.handover / HOUR
    if isinstance(run, Batch):
        whole, planned = max(hours, default=0.0), requests_planned(run, placed)
        done = whole * requests_answered(run, placed, held, now) / planned if planned else 0.0
    else:
        whole, done = sum(hours), hours_done(run, held, now, terms)
    return Progress(done, whole, start, run.deadline, restart) if whole > 0 else None
