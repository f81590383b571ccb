"""The remaining request: the part of a request that can still be planned again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from broker.domain.basics.money import ZERO
from broker.domain.basics.node_launch import COLD_START
from broker.domain.holding.cost_of_keeping import HeldCapacity
from broker.domain.market.offer import Tier
from broker.domain.moving.moving_costs import MovingTerms, finished_weights_gb, since_checkpoint
from broker.domain.planning.batch_hours import REQUEST_RATE
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.workload import Batch, Dataset, PlanRequest, Serving, Training, Workload

HOUR = timedelta(hours=1)
NO_SPOT = (Tier.ON_DEMAND, Tier.COMMITTED, Tier.WINDOW)


@dataclass(frozen=True, slots=True)
class Remaining:
    """``request`` has the workloads that may still be placed elsewhere, with their remaining work.

    ``fixed`` are workloads that stay, with the end of their holdings (None: unknown): runs that must not be
    interrupted, workloads on bought windows or held early, and runs that are over.
    """

    request: PlanRequest
    fixed: Mapping[str, datetime | None]


def remaining(
    request: PlanRequest,
    plan: Plan,
    held: Iterable[HeldCapacity],
    now: datetime,
    terms: MovingTerms,
    off_spot: frozenset[str] = frozenset(),
) -> Remaining:
    """``request`` without fixed workloads, and with its budget reduced by their planned cost.

    A run in progress needs the work that is left after its last checkpoint, a batch the requests that its
    whole chunks left. A service that waits for a fixed
    run starts at the end of that run's holdings. ``off_spot`` are runs that must no longer use spot capacity.
    """
    by_name: dict[str, list[HeldCapacity]] = {}
    for one in held:
        by_name.setdefault(one.workload, []).append(one)
    fixed = {
        w.name: max(one.end for one in by_name[w.name])
        for w in request.workloads
        if w.name in by_name and is_fixed(w, by_name[w.name], now)
    }
    fixed |= {w.name: end for w in request.workloads if (end := _over_at(w, plan, by_name, now)) is not None}
    rest = [
        _left_of(_unchained(w, fixed, request, plan), plan, by_name.get(w.name, []), now, terms, off_spot)
        for w in request.workloads
        if w.name not in fixed
    ]
    bound = sum((p.cost_usd for p in plan.placements if p.workload in fixed), ZERO)
    budget = None if request.budget_usd is None else request.budget_usd - bound
    return Remaining(replace(request, workloads=tuple(rest), budget_usd=budget), fixed)


def _over_at(
    workload: Workload, plan: Plan, held: Mapping[str, list[HeldCapacity]], now: datetime
) -> datetime | None:
    """When a run without holdings ended by plan; None for services, and if it is not over."""
    ends = [segment.end for p in plan.placements_of(workload.name) for segment in p.segments]
    if isinstance(workload, Serving) or workload.name in held or not ends or max(ends) > now:
        return None
    return max(ends)


def is_fixed(workload: Workload, held: Iterable[HeldCapacity], now: datetime) -> bool:
    """Whether the workload must stay: it is on a bought window, it is held early so that it is sure of its
    place, or it runs and must not be interrupted."""
    rows = tuple(held)
    if any(one.is_bought and (one.offer.window is not None or one.is_held_early) for one in rows):
        return True
    return not may_be_interrupted(workload) and any(one.is_in_use(now) for one in rows)


def may_be_interrupted(workload: Workload) -> bool:
    """Whether the workload may move while it runs: every service, and what is interruptible."""
    return isinstance(workload, Serving) or workload.interruptible


def hours_done(run: Training, held: Iterable[HeldCapacity], at: datetime, terms: MovingTerms) -> float:
    """Hours of work on the current holdings up to the last checkpoint before ``at``."""
    began = [one.active_since for one in held if one.is_bought and one.active_since is not None]
    if not began or at <= min(began):
        return 0.0
    worked = at - min(began)
    return (worked - since_checkpoint(run, min(began), at, terms)) / HOUR


def tokens_of(run: Training, placement: Placement) -> float:
    """The tokens that ``placement`` was planned to train: all of the run, or the rest after a move."""
    value = placement.estimate.value
    rate = value.get("tokens_per_s", 0.0) * value.get("goodput", 0.0)
    if rate <= 0 or "hours" not in value:
        return run.tokens
    return min(run.tokens, value["hours"] * 3600 * rate / (1 + run.headroom))


def requests_planned(batch: Batch, placed: Iterable[Placement]) -> float:
    """The requests that placements were planned to answer: all of the batch, or the rest after a move."""
    return sum(_requests_of(batch, placement) for placement in placed)


def requests_answered(
    batch: Batch, placed: Iterable[Placement], held: Iterable[HeldCapacity], at: datetime
) -> float:
    """The requests of the parts that are over by plan, and of whole chunks on what is held.

    A part whose capacity was taken away before its end counts for nothing: nobody says how far it came.
    """
    rows = [one for one in held if one.is_bought and one.active_since is not None]
    answered = 0.0
    for placement in placed:
        requests = _requests_of(batch, placement)
        if max(segment.end for segment in placement.segments) <= at:
            answered += requests
            continue
        mine = [one for one in rows if one.offer.offer_id == placement.offer_id]
        row = min(mine, key=lambda one: abs(one.nodes - placement.nodes), default=None)
        if row is not None:
            rows.remove(row)
            answered += min(requests, _in_whole_chunks(batch, placement, row, at))
    return answered


def _requests_of(batch: Batch, placement: Placement) -> float:
    return batch.requests * placement.work_share if placement.requests is None else placement.requests


def _in_whole_chunks(batch: Batch, placement: Placement, row: HeldCapacity, at: datetime) -> float:
    """What the nodes of a part have answered since they were usable, without the chunk in progress."""
    assert row.active_since is not None
    value = placement.estimate.value
    launch_s = 0.0 if placement.cold_start is None else placement.cold_start.launch_s
    worked_s = (at - row.active_since).total_seconds() - value.get(COLD_START, 0.0) + launch_s
    chunks = max(0.0, worked_s) // (60 * batch.chunk_minutes)
    share = min(1.0, row.nodes / placement.nodes)
    rate = share * placement.replicas * value.get(REQUEST_RATE, 0.0)
    return chunks * 60 * batch.chunk_minutes * rate


def _left_of(
    workload: Workload,
    plan: Plan,
    held: list[HeldCapacity],
    now: datetime,
    terms: MovingTerms,
    off_spot: frozenset[str],
) -> Workload:
    if isinstance(workload, Serving):
        return workload
    run = workload
    if run.name in off_spot:
        tiers = run.policy.tiers or NO_SPOT
        run = replace(run, policy=replace(run.policy, tiers=tuple(t for t in tiers if t in NO_SPOT)))
    placed = plan.placements_of(run.name)
    if isinstance(run, Batch):
        left = requests_planned(run, placed) - requests_answered(run, placed, held, now)
        return replace(run, requests=max(1.0, left)) if placed else run
    over = [p for p in placed if len(placed) > 1 and max(s.end for s in p.segments) <= now]
    done = hours_done(run, held, now, terms) + sum(p.estimate.value.get("hours", 0.0) for p in over)
    planned = sum(p.estimate.value.get("hours", 0.0) for p in placed)
    if not held or planned <= 0:
        return run
    whole = sum(tokens_of(run, placement) for placement in placed)
    run = replace(run, dataset=_data_now(run, held))
    return replace(run, tokens=max(run.global_batch_tokens, whole * max(0.0, 1 - done / planned)))


def _data_now(run: Training, held: Iterable[HeldCapacity]) -> Dataset | None:
    """The data set at its current location: where the run holds capacity, since it was copied there."""
    here = [one.offer for one in held if one.is_bought]
    if run.dataset is None or not here:
        return run.dataset
    return Dataset(run.dataset.gb, here[0].provider, here[0].region)


def _unchained(
    workload: Workload, fixed: Mapping[str, datetime | None], request: PlanRequest, plan: Plan
) -> Workload:
    """``workload`` without its wait for a fixed run: it starts at the run's end, with the run's weights."""
    if not isinstance(workload, Serving) or workload.starts_after is None:
        return workload
    if workload.starts_after not in fixed:
        return workload
    run, weights = request.workload(workload.starts_after), workload.weights
    for placed in plan.placements_of(run.name):
        weights = Dataset(finished_weights_gb(run), placed.provider, placed.region)
    starts = workload.starts.without_run(fixed[run.name])
    return replace(workload, starts=starts, weights=weights)
