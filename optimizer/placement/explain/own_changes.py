"""Changes of a workload itself that may admit it, smallest first: sizes, times, precisions, engines,
objectives, redundancy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import inf
from typing import Any

import numpy as np

from broker.domain.basics.window import Window
from broker.domain.planning.assumed_stock import is_counted
from broker.domain.planning.effective_rules import MOST_POOLS, assumed_nodes, rules_of
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import (
    Batch,
    PlanRequest,
    Precision,
    Serving,
    ServingEngine,
    Slo,
    Training,
    Workload,
)
from optimizer.placement.columns.fleet_pool import remaining_nodes
from optimizer.placement.explain.trials import RunKey, Trial, Trials
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.gates import open_gates
from optimizer.placement.problem.objectives import reachable_objectives
from optimizer.placement.problem.problem import MAX_HORIZON_DAYS, Floats, Problem
from optimizer.placement.runs.candidates import RunCandidates

LOOSER = (1.0, 1.3, 3.0)
LIMITS = ("slo.ttft_p95_ms", "slo.itl_p95_ms")
MOST_ZONES_TRIED = 3
MOST_ASSUMED = 100_000
LEAST_SHARE = 1e-3
SHARE_ERROR = 0.05
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
BITS: Mapping[Precision, int] = {
    Precision.INT4: 4,
    Precision.FP4: 4,
    Precision.FP8: 8,
    Precision.FP16: 16,
    Precision.BF16: 16,
}


@dataclass(frozen=True, slots=True)
class Change:
    """A changed request, and a description of the change. ``trades``: the next of its kind may be much
    cheaper.
    """

    says: str
    request: PlanRequest
    trades: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """A left-out workload of a request; it may cost less than ``below_cents``, lateness included."""

    trials: Trials
    request: PlanRequest
    workload: Workload
    below_cents: float = inf

    def with_workload(self, **fields: Any) -> PlanRequest:
        """The request with changed fields of the workload."""
        name = self.workload.name
        changed = (replace(w, **fields) if w.name == name else w for w in self.request.workloads)
        return replace(self.request, workloads=tuple(changed))

    def with_gpus(self, **limits: Any) -> PlanRequest:
        """The request with another limit of the GPUs of a training run."""
        assert isinstance(self.workload, Training)
        return self.with_workload(gpus=replace(self.workload.gpus, **limits))


Proposer = Callable[[Asked], Iterator[Change]]


def own_proposers(workload: Workload, reason: Obstacle) -> tuple[Sequence[Proposer], Sequence[Proposer]]:
    """Proposers of changes that address the obstacle, and of other changes of the workload.

    If the policies exclude every offer, no other change of the workload can help.
    """
    able = ABLE[workload.kind]
    first = [proposer for proposer in NEAREST.get(reason, ()) if proposer in able]
    if isinstance(workload, Serving) and reason in LESS_TRAFFIC:
        first.insert(0, _less_traffic)
    if reason in RULES_FIRST:
        return first, ()
    return first, [proposer for proposer in able if proposer not in first]


def _more_gpus(asked: Asked) -> Iterator[Change]:
    run = asked.workload
    if isinstance(run, Training) and run.gpus.max is not None:
        for gpus in _gpu_counts(asked, asked.with_gpus(max=None), 1.0):
            yield Change(f"gpus.max of {gpus}", asked.with_gpus(max=gpus))


def _fewer_gpus(asked: Asked) -> Iterator[Change]:
    run = asked.workload
    if isinstance(run, Training) and run.gpus.min > 1:
        for gpus in _gpu_counts(asked, asked.with_gpus(min=1), -1.0):
            yield Change(f"gpus.min of {gpus}", asked.with_gpus(min=gpus))


def _gpu_counts(asked: Asked, request: PlanRequest, sign: float) -> Iterator[int]:
    """GPUs of the affordable option with the fewest (or the most), and of the cheapest option."""
    trial = asked.trials.open(request, asked.workload.name)
    if trial is None:
        return
    counts = np.asarray(trial.candidates.estimates.node_counts, dtype=np.int64)

    def key(problem: Problem, found: RunCandidates) -> Floats:
        return np.asarray(sign * counts[found.choice] * problem.table.gpus_per_node[found.offer], np.float64)

    for column in _columns(trial, key, asked.below_cents):
        per_node = trial.candidates.problem.table.gpus_per_node
        gpus = [int(counts[piece.choice] * per_node[piece.offer]) for piece in column.pieces]
        yield max(gpus) if sign > 0 else min(gpus)


def _columns(trial: Trial, key: RunKey, below_cents: float) -> Iterator[Column]:
    """The affordable option of a run with the best ``key``, then the cheapest."""
    nearest = trial.nearest(key, below_cents)
    if nearest is not None:
        yield nearest
    cheapest = trial.cheapest()
    if cheapest is not None:
        yield cheapest.lead


def _later_deadline(asked: Asked) -> Iterator[Change]:
    """A later deadline within the horizon; if that does not suffice and there are no services, in a longer
    horizon.
    """
    run = asked.workload
    assert not isinstance(run, Serving)
    horizon = asked.request.horizon
    found = False
    if run.deadline < horizon.end:
        for change in _later_within(asked, horizon):
            found = True
            yield change
    if not found and not any(isinstance(w, Serving) for w in asked.request.workloads):
        yield from _later_within(asked, Window(horizon.start, horizon.start + MAX_HORIZON_DAYS * DAY))


def _later_within(asked: Asked, horizon: Window) -> Iterator[Change]:
    run = asked.workload
    assert not isinstance(run, Serving)
    far = replace(asked.with_workload(deadline=horizon.end), horizon=horizon)
    trial = asked.trials.open(far, run.name)
    if trial is None:
        return
    soonest = trial.earliest(asked.below_cents)
    cheapest = trial.cheapest() if soonest is None else None
    column = soonest if cheapest is None else cheapest.lead
    if column is None:
        return
    deadline = _whole_hour(trial.candidates.problem.instant(column.end_s), horizon)
    if deadline <= run.deadline:
        return
    later = math.ceil((deadline - run.deadline) / HOUR)
    says = f"deadline of {deadline:%Y-%m-%dT%H:%M}Z, {later} h later"
    request = asked.with_workload(deadline=deadline)
    if deadline > request.horizon.end:
        days = math.ceil((deadline - request.horizon.start) / DAY)
        request = replace(request, horizon=Window(horizon.start, horizon.start + days * DAY))
        says += f", and horizon.days of {days}"
    yield Change(says, request)


def _whole_hour(instant: datetime, horizon: Window) -> datetime:
    """The next full hour after the start of the horizon, within the horizon."""
    return min(horizon.end, horizon.start + math.ceil((instant - horizon.start) / HOUR) * HOUR)


def _interruptible(asked: Asked) -> Iterator[Change]:
    run = asked.workload
    if not isinstance(run, Serving) and not run.interruptible:
        yield Change("interruptible: true", asked.with_workload(interruptible=True))


def _in_parts(asked: Asked) -> Iterator[Change]:
    batch = asked.workload
    if isinstance(batch, Batch) and batch.parts is not None:
        yield Change("parts: null, any number of parts", asked.with_workload(parts=None))


def _other_precision(asked: Asked) -> Iterator[Change]:
    """Other precisions, closest in width first; if equally close, the wider, lossless one; INT4 last."""
    workload = asked.workload
    assert not isinstance(workload, Training)
    yield from _precisions(asked, [p for p in BITS if p not in workload.precisions])


def _narrower_precision(asked: Asked) -> Iterator[Change]:
    """Precisions of fewer bytes, which take less memory and time."""
    workload = asked.workload
    assert not isinstance(workload, Training)
    least = min(BITS[precision] for precision in workload.precisions)
    yield from _precisions(asked, [p for p in BITS if BITS[p] < least])


def _precisions(asked: Asked, others: Sequence[Precision]) -> Iterator[Change]:
    workload = asked.workload
    assert not isinstance(workload, Training)
    for precision in _by_width(others, workload.precisions):
        allowed = (*workload.precisions, precision)
        yield Change(f"precisions: [{', '.join(allowed)}]", asked.with_workload(precisions=allowed))


def _trained_in(asked: Asked) -> Iterator[Change]:
    """Other precisions of a run, in the same order."""
    run = asked.workload
    assert isinstance(run, Training)
    others = [p for p in BITS if p not in (run.precision, Precision.INT4)]
    for precision in _by_width(others, [run.precision]):
        yield Change(f"precision: {precision}", asked.with_workload(precision=precision))


def _by_width(others: Sequence[Precision], known: Sequence[Precision]) -> list[Precision]:
    def distance(precision: Precision) -> tuple[bool, float, int]:
        widths = (abs(math.log2(BITS[precision] / BITS[one])) for one in known)
        return precision is Precision.INT4, min(widths), -BITS[precision]

    return sorted(others, key=distance)


def _other_engine(asked: Asked) -> Iterator[Change]:
    workload = asked.workload
    if not isinstance(workload, Training) and workload.engine is not ServingEngine.VLLM:
        yield Change("engine: vllm", asked.with_workload(engine=ServingEngine.VLLM))


def _looser_slo(asked: Asked) -> Iterator[Change]:
    """The tightest objective that some allowed offer meets, then looser ones, which cost less."""
    service, candidates = asked.workload, asked.trials.candidates
    assert isinstance(service, Serving)
    for least in reachable_objectives(candidates.problem, candidates.estimates, service):
        for factor in LOOSER:
            slo = _looser(service.slo, least, factor)
            told = [
                f"{limit} of {ms:g}"
                for limit, ms, now in zip(LIMITS, _both(slo), _both(service.slo), strict=True)
                if ms != now
            ]
            bound = " (the least that an allowed offer reaches)" if factor == 1.0 else ""
            yield Change(" and ".join(told) + bound, asked.with_workload(slo=slo), trades=True)


def _both(slo: Slo) -> tuple[float, float]:
    return slo.ttft_p95_ms, slo.itl_p95_ms


def _looser(now: Slo, least: Slo, factor: float) -> Slo:
    """The tightest reachable objective, with the limits that had to change multiplied by a factor."""
    both = zip(_both(now), _both(least), strict=True)
    return Slo(*(ms if ms == asked_ms else float(f"{ms * factor:.2g}") for asked_ms, ms in both))


def _fewer_zones(asked: Asked) -> Iterator[Change]:
    service, problem = asked.workload, asked.trials.candidates.problem
    assert isinstance(service, Serving)
    places = len(np.unique(problem.table.zone_of[open_gates(problem, service).passing]))
    most = min(service.redundancy.zones - 1, places)
    for zones in range(most, max(0, most - MOST_ZONES_TRIED), -1):
        fewer = replace(service.redundancy, zones=zones)
        yield Change(f"redundancy.zones of {zones}", asked.with_workload(redundancy=fewer))


def _fewer_spares(asked: Asked) -> Iterator[Change]:
    service = asked.workload
    assert isinstance(service, Serving)
    if service.redundancy.spare_replicas:
        fewer = replace(service.redundancy, spare_replicas=0)
        yield Change("redundancy.spare_replicas of 0", asked.with_workload(redundancy=fewer))


def _less_traffic(asked: Asked) -> Iterator[Change]:
    """The highest peak for which the capacity suffices, within a twentieth, with the curve in proportion.

    Nothing is proposed where the nodes of the largest pools would suffice, as other limits matter then.
    """
    service = asked.workload
    assert isinstance(service, Serving)
    trial = asked.trials.open(asked.request, service.name)
    if trial is None:
        return
    refused = _served_share(trial, service)
    if not 0 < refused < 1:
        return
    fits = refused * (1 - SHARE_ERROR)
    while asked.trials.cheapest(_scaled(asked, service, fits).request, service.name) is None:
        refused, fits = fits, fits * (1 - 3 * SHARE_ERROR)
        if fits < LEAST_SHARE:
            return
    while fits < refused * (1 - 1.5 * SHARE_ERROR):
        middle = math.sqrt(fits * refused)
        if asked.trials.cheapest(_scaled(asked, service, middle).request, service.name) is None:
            refused = middle
        else:
            fits = middle
    yield _scaled(asked, service, fits)


def _served_share(trial: Trial, service: Serving) -> float:
    """The share of the highest demand that the free nodes of as many pools as are allowed could serve."""
    case = trial.candidates.fleets[service.name]
    peak = float(case.demand.max(initial=0.0))
    if not peak or not len(case.units):
        return 0.0
    best = np.zeros(int(case.units.offer.max()) + 1)
    np.maximum.at(best, case.units.offer, case.units.requests_per_s / case.units.nodes)
    free = remaining_nodes(trial.candidates, service, trial.room.ledger, None)[: len(best)]
    rates = np.sort(best * np.minimum(free, MOST_ASSUMED))[::-1]
    pools = rules_of(trial.candidates.problem.request.policy, service).max_pools
    return float(rates[:pools].sum()) / peak


def _scaled(asked: Asked, service: Serving, share: float) -> Change:
    """The service with a share of its traffic, rounded down to three digits."""
    traffic = service.traffic
    peak = _rounded_down(traffic.peak_requests_per_s * share)
    factor = peak / traffic.peak_requests_per_s
    hourly = tuple(_rounded_down(one * factor) for one in traffic.hourly)
    less = replace(traffic, peak_requests_per_s=max(hourly, default=peak), hourly=hourly)
    says = f"a peak of {less.peak_requests_per_s:,g} requests/s, {factor:.0%} of what is asked"
    return Change(says, asked.with_workload(traffic=less))


def _rounded_down(rate: float) -> float:
    if not rate:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return float(f"{math.floor(rate / unit + 1e-9) * unit:.3g}")


def _more_pools(asked: Asked) -> Iterator[Change]:
    """The smallest sufficient number of pools."""
    service = asked.workload
    assert isinstance(service, Serving)
    now = rules_of(asked.request.policy, service).max_pools
    for most in range(now + 1, MOST_POOLS + 1):
        fleet = replace(service.fleet, max_pools=most)
        yield Change(f"fleet.max_pools of {most}", asked.with_workload(fleet=fleet))


def more_nodes(asked: Asked) -> Iterator[Change]:
    """As many assumed nodes as the cheapest option takes of an offer whose seller states no number."""
    counted = assumed_nodes(asked.request)
    request = _assuming(asked, MOST_ASSUMED)
    way = asked.trials.cheapest(request, asked.workload.name)
    if way is None:
        return
    table = asked.trials.candidates.problem.table
    nodes = [
        max(nodes for _, _, nodes in piece.spans)
        for piece in way.lead.pieces
        if not is_counted(table.offers[piece.offer])
    ]
    most = max(nodes, default=0)
    if most > counted:
        says = f"policy.assumed_nodes of {most:,}, which assumes {most:,} nodes where the seller states none"
        yield Change(says, _assuming(asked, most))


def _assuming(asked: Asked, nodes: int) -> PlanRequest:
    policy = replace(asked.request.policy, assumed_nodes=nodes)
    return replace(asked.request, policy=policy)


RULES_FIRST = (Obstacle.POLICY, Obstacle.TIER, Obstacle.RESIDENCY, Obstacle.COMPLIANCE)
ABLE: Mapping[str, tuple[Proposer, ...]] = {
    "training": (_more_gpus, _later_deadline, _interruptible, _fewer_gpus, _trained_in),
    "batch": (
        _in_parts,
        _later_deadline,
        _interruptible,
        _narrower_precision,
        _other_precision,
        _other_engine,
    ),
    "serving": (
        _looser_slo,
        _fewer_zones,
        _fewer_spares,
        _narrower_precision,
        _other_precision,
        _other_engine,
        _more_pools,
    ),
}
NEAREST: Mapping[Obstacle, tuple[Proposer, ...]] = {
    Obstacle.TIER: (_interruptible,),
    Obstacle.PRECISION: (_other_precision, _trained_in, _other_engine),
    Obstacle.GPU_UNKNOWN: (_other_engine,),
    Obstacle.SIZE: (_more_gpus, _fewer_gpus),
    Obstacle.MEMORY: (_more_gpus, _narrower_precision),
    Obstacle.DISK: (_narrower_precision,),
    Obstacle.FABRIC: (_fewer_gpus, _more_gpus),
    Obstacle.LATENCY: (_looser_slo, _narrower_precision),
    Obstacle.DEADLINE: (_in_parts, _later_deadline, _more_gpus, _interruptible, _fewer_gpus),
    Obstacle.WINDOW: (_in_parts, _later_deadline, _interruptible),
    Obstacle.REDUNDANCY: (_more_pools, _fewer_zones),
    Obstacle.STOCK: (
        _in_parts,
        _more_pools,
        _fewer_gpus,
        _more_gpus,
        _fewer_spares,
        _fewer_zones,
        _narrower_precision,
    ),
    Obstacle.CONTENTION: (_in_parts, _later_deadline, _interruptible, _more_gpus, _fewer_gpus, _fewer_spares),
    Obstacle.PRICE: (_in_parts, _later_deadline, _interruptible, _more_gpus),
    Obstacle.BUDGET: (_in_parts, _later_deadline, _interruptible, _more_gpus),
}
"""Which changes address an obstacle."""
LESS_TRAFFIC = (Obstacle.STOCK, Obstacle.CONTENTION)
"""Where a service may also serve less: not where it is only dear."""
