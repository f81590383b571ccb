"""One planning instance: read or drawn, planned, checked, measured. Each in a process of its own."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from api.schemas.market.market import read_market
from api.schemas.workloads.workloads import read_workloads
from broker.catalogue import load_gpus
from broker.domain.basics.money import ZERO
from broker.domain.market.billing import holding_cost_usd
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import PlanOptions, Progress
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.workers.worker_pool import usable_cores
from optimizer.planner import JointPlanner
from tests.bench.instances import SIZES, START, make_offers, make_request

GAPS = (0.05, 0.02, 0.01)


@dataclass(frozen=True, slots=True)
class Case:
    """What to plan: ``folder`` holds market.json and workloads.json; without it the instance is drawn."""

    size: str
    seed: int
    time_limit_s: float
    gap: float
    folder: Path | None = None
    workers: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it. Seconds are of the wall and count from the request; ``read_s`` is before it.

    ``controllable_gap``: of the total without what leaving out costs. ``grid_error``: share by which the
    plan's cost differs from the same holdings priced second by second. ``cpu_s``, ``peak_gb``: workers too.
    """

    case: Case
    offers: int
    workloads: int
    total_usd: Decimal
    bound_usd: Decimal | None
    gap: float | None
    controllable_gap: float | None
    left_out: int
    read_s: float
    loaded_s: float | None
    first_s: float | None
    within_s: tuple[float | None, ...]
    whole_s: float
    cpu_s: float
    peak_gb: float
    grid_error: float


def measure(case: Case) -> Result:
    """Plans one case; the planner checks the plan before it returns it."""
    began, cpu = time.perf_counter(), cpu_seconds()
    offers, request, as_of = load(case)
    read_s = time.perf_counter() - began
    planner = JointPlanner(Estimator(load_gpus(), load_calibration()))
    seen: list[Progress] = []
    options = PlanOptions(case.time_limit_s, case.gap, seed=1, baselines=False, workers=case.workers)
    began = time.perf_counter()
    plan = planner.plan(request, offers, as_of, options, seen.append)
    whole_s = time.perf_counter() - began
    total = plan.objective_usd
    return Result(
        case=case,
        offers=len(offers),
        workloads=len(request.workloads),
        total_usd=total,
        bound_usd=plan.bound_usd,
        gap=plan.gap,
        controllable_gap=controllable_gap(plan, request),
        left_out=len(plan.unplaced),
        read_s=read_s,
        loaded_s=_first(seen, lambda p: p.stage == "loaded"),
        first_s=_first(seen, lambda p: p.incumbent_usd is not None),
        within_s=tuple(_within(seen, gap) for gap in GAPS),
        whole_s=whole_s,
        cpu_s=cpu_seconds() - cpu,
        peak_gb=most_gb(case),
        grid_error=grid_error(plan, offers),
    )


def cpu_seconds() -> float:
    """Of this process and of those that it started and that ended."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def most_gb(case: Case) -> float:
    """Peak of this process, and the highest of its workers' peaks for each of them."""
    own, worker = (resource.getrusage(w).ru_maxrss for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    workers = min(TUNING.workers.most_processes, (case.workers or usable_cores()) - 1)
    return (own + workers * worker) / 1e6


def load(case: Case) -> tuple[Sequence[Offer], PlanRequest, datetime]:
    """Offers, request and instant of a case."""
    if case.folder is not None:
        market_path, asked_path = case.folder / "market.json", case.folder / "workloads.json"
        market = read_market(market_path.read_text(), source=str(market_path))
        text = asked_path.read_text()
        request = read_workloads(text, source=str(asked_path), base=case.folder, now=market.as_of)
        return market.offers, request, market.as_of
    rng = random.Random(f"{case.size}-{case.seed}")
    size = SIZES[case.size]
    return make_offers(rng, size.offers), make_request(rng, size), START


def controllable_gap(plan: Plan, request: PlanRequest) -> float | None:
    """(total − bound) / (total − what leaving out costs): the gap on what the plan spends and could save."""
    if plan.bound_usd is None:
        return None
    left = (request.workload(row.workload).unplaced_usd or ZERO for row in plan.unplaced)
    total = plan.objective_usd
    controllable = total - sum(left, ZERO)
    return float((total - plan.bound_usd) / controllable) if controllable else 0.0


def grid_error(plan: Plan, offers: Sequence[Offer]) -> float:
    """How far the plan's cost lies from its segments priced by the billing rule, to the second."""
    by_id = {offer.offer_id: offer for offer in offers}
    exact = sum((holding_cost_usd(by_id[p.offer_id], p.segments) for p in plan.placements), ZERO)
    return abs(float(plan.cost_usd / exact) - 1) if exact else 0.0


def _first(seen: Sequence[Progress], wanted: Callable[[Progress], bool]) -> float | None:
    return next((progress.seconds for progress in seen if wanted(progress)), None)


def _within(seen: Sequence[Progress], gap: float) -> float | None:
    return _first(seen, lambda progress: progress.gap is not None and progress.gap <= gap)
