"""What a workload requires, and what it may require instead, each requirement stated once.

A requirement names its field and the values that are tried for it, smallest change first. Where the values
follow from what is possible, the requirement is dropped, the best way without it is found, and it is written
again as narrowly as that way allows: numbers of GPUs, deadlines and assumed nodes. Rules of policies:
``policy_rules``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from math import inf
from operator import attrgetter
from typing import Any

import numpy as np

from broker.domain.basics.window import Window
from broker.domain.planning.assumed_stock import is_counted
from broker.domain.planning.effective_rules import MOST_POOLS, assumed_nodes, rules_of
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import (
    PlanRequest,
    Policy,
    Precision,
    Serving,
    ServingEngine,
    Slo,
)
from optimizer.placement.columns.fleet_pool import remaining_nodes
from optimizer.placement.explain.trials import Trials
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.gates import open_gates
from optimizer.placement.problem.objectives import reachable_objectives
from optimizer.placement.problem.problem import MAX_HORIZON_DAYS, Floats, Problem
from optimizer.placement.runs.candidates import RunCandidates
from optimizer.placement.runtime.tuning import TUNING

LIMITS = ("ttft_p95_ms", "itl_p95_ms")
MOST_ASSUMED = 100_000
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
    workload: Any
    below_cents: float = inf

    def changed(self, field: str, value: object) -> PlanRequest:
        """The request with another value of a field of the workload, as ``gpus.max``."""
        name = self.workload.name
        each = (_with_field(w, field, value) if w.name == name else w for w in self.request.workloads)
        return replace(self.request, workloads=tuple(each))

    def assuming(self, nodes: int) -> PlanRequest:
        """The request with another number of assumed nodes."""
        return replace(self.request, policy=replace(self.request.policy, assumed_nodes=nodes))

    @property
    def policies(self) -> tuple[Policy, Policy]:
        """Those of the team and of the workload."""
        return self.request.policy, self.workload.policy


def _with_field(one: Any, field: str, value: object) -> Any:
    name, _, rest = field.partition(".")
    return replace(one, **{name: _with_field(getattr(one, name), rest, value) if rest else value})


Changes = Callable[[Asked], Iterator[Change]]


def at(
    field: str, values: Callable[[Asked], Iterable[Any]], says: str | Callable[[Any], str] = ""
) -> Changes:
    """Changes of one field to each of the ``values``."""
    words = says if callable(says) else (says or f"{field} of {{}}").format

    def changes(asked: Asked) -> Iterator[Change]:
        for value in values(asked):
            yield Change(words(value), asked.changed(field, value))

    return changes


def once(field: str, value: object, says: str = "") -> Changes:
    """A change of one field to the value that asks least, unless it has it."""
    return at(field, lambda asked: () if attrgetter(field)(asked.workload) == value else (value,), says)


def own_changes(workload: Any, reason: Obstacle) -> tuple[Sequence[Changes], Sequence[Changes]]:
    """Changes of a workload that address the obstacle, and its other changes.

    If the policies exclude every offer, no other change of the workload can help.
    """
    able = ABLE[workload.kind].split()
    first = [name for name in NEAREST.get(reason, "").split() if name in able]
    rest = [] if reason in RULES_FIRST else [name for name in able if name not in first]
    if isinstance(workload, Serving) and reason in LESS_TRAFFIC:
        first.insert(0, "traffic")
    return [OWN[name] for name in first], [OWN[name] for name in rest]


def _gpus(asked: Asked, end: str, free: int | None) -> Iterator[int]:
    """GPUs of the affordable way with the fewest (or the most) without one end of the range, and of the
    cheapest way.
    """
    if getattr(asked.workload.gpus, end) == free:
        return
    trial = asked.trials.open(asked.changed(f"gpus.{end}", free), asked.workload.name)
    if trial is None:
        return
    table, sign = trial.candidates.problem.table, 1.0 if free is None else -1.0
    counts = np.asarray(trial.candidates.estimates.node_counts, dtype=np.int64)

    def key(problem: Problem, found: RunCandidates) -> Floats:
        return np.asarray(sign * counts[found.choice] * problem.table.gpus_per_node[found.offer], np.float64)

    def gpus_of(column: Column) -> int:
        each = [int(counts[piece.choice] * table.gpus_per_node[piece.offer]) for piece in column.pieces]
        return max(each) if sign > 0 else min(each)

    nearest = trial.nearest(key, asked.below_cents)
    if nearest is not None:
        yield gpus_of(nearest)
    cheapest = trial.cheapest()
    if cheapest is not None:
        yield gpus_of(cheapest.lead)


def _later_deadline(asked: Asked) -> Iterator[Change]:
    """A later deadline within the horizon; if that does not suffice and there are no services, in a longer
    horizon.
    """
    horizon, found = asked.request.horizon, False
    if asked.workload.deadline < horizon.end:
        for change in _later_within(asked, horizon):
            found = True
            yield change
    if not found and not any(isinstance(w, Serving) for w in asked.request.workloads):
        yield from _later_within(asked, Window(horizon.start, horizon.start + MAX_HORIZON_DAYS * DAY))


def _later_within(asked: Asked, horizon: Window) -> Iterator[Change]:
    run = asked.workload
    far = replace(asked.changed("deadline", horizon.end), horizon=horizon)
    trial = asked.trials.open(far, run.name)
    column = None if trial is None else trial.earliest(asked.below_cents)
    if column is None and trial is not None and (way := trial.cheapest()) is not None:
        column = way.lead
    if column is None or trial is None:
        return
    hours = math.ceil((trial.candidates.problem.instant(column.end_s) - horizon.start) / HOUR)
    deadline = min(horizon.end, horizon.start + hours * HOUR)
    if deadline <= run.deadline:
        return
    later = math.ceil((deadline - run.deadline) / HOUR)
    says = f"deadline of {deadline:%Y-%m-%dT%H:%M}Z, {later} h later"
    request = asked.changed("deadline", deadline)
    if deadline > request.horizon.end:
        days = math.ceil((deadline - request.horizon.start) / DAY)
        request = replace(request, horizon=Window(horizon.start, horizon.start + days * DAY))
        says += f", and horizon.days of {days}"
    yield Change(says, request)


def _precisions(asked: Asked, *, narrower: bool) -> Iterator[tuple[Precision, ...]]:
    """One more precision; ``narrower``: of fewer bytes, which takes less memory and time."""
    known = asked.workload.precisions
    least = min(BITS[precision] for precision in known)
    others = [p for p in BITS if (BITS[p] < least if narrower else p not in known)]
    return ((*known, precision) for precision in _by_width(others, known))


def _by_width(others: Sequence[Precision], known: Sequence[Precision]) -> list[Precision]:
    """Closest in width first; if equally close, the wider, lossless one; INT4 last."""

    def distance(precision: Precision) -> tuple[bool, float, int]:
        widths = (abs(math.log2(BITS[precision] / BITS[one])) for one in known)
        return precision is Precision.INT4, min(widths), -BITS[precision]

    return sorted(others, key=distance)


def _trained_in(asked: Asked) -> list[Precision]:
    now = asked.workload.precision
    return _by_width([p for p in BITS if p not in (now, Precision.INT4)], [now])


def _looser_slo(asked: Asked) -> Iterator[Change]:
    """The tightest objective that some allowed offer meets, then looser ones, which cost less."""
    service, candidates = asked.workload, asked.trials.candidates
    for least in reachable_objectives(candidates.problem, candidates.estimates, service):
        for factor in TUNING.explain.looser_objectives:
            limits = {
                limit: float(f"{getattr(least, limit) * factor:.2g}")
                for limit in LIMITS
                if getattr(least, limit) != getattr(service.slo, limit)
            }
            slo: Slo = replace(service.slo, **limits)
            told = [
                f"slo.{name} of {ms:g}" for name, ms in limits.items() if ms != getattr(service.slo, name)
            ]
            bound = " (the least that an allowed offer reaches)" if factor == 1.0 else ""
            yield Change(" and ".join(told) + bound, asked.changed("slo", slo), trades=True)


def _fewer_zones(asked: Asked) -> range:
    problem = asked.trials.candidates.problem
    places = len(np.unique(problem.table.zone_of[open_gates(problem, asked.workload).passing]))
    most = min(asked.workload.redundancy.zones - 1, places)
    return range(most, max(0, most - TUNING.explain.most_zones_tried), -1)


def _more_pools(asked: Asked) -> range:
    return range(rules_of(asked.request.policy, asked.workload).max_pools + 1, MOST_POOLS + 1)


def _less_traffic(asked: Asked) -> Iterator[Change]:
    """The highest peak for which the capacity suffices, within a twentieth, with the curve in proportion.

    Nothing is proposed where the nodes of the largest pools would suffice, as other limits matter then.
    """

    def serves(share: float) -> bool:
        return asked.trials.cheapest(_scaled(asked, share).request, asked.workload.name) is not None

    refused = _served_share(asked)
    if not 0 < refused < 1:
        return
    fits = refused * (1 - TUNING.explain.traffic_error_share)
    while not serves(fits):
        refused, fits = fits, fits * (1 - 3 * TUNING.explain.traffic_error_share)
        if fits < TUNING.explain.least_traffic_share:
            return
    while fits < refused * (1 - 1.5 * TUNING.explain.traffic_error_share):
        middle = math.sqrt(fits * refused)
        refused, fits = (refused, middle) if serves(middle) else (middle, fits)
    yield _scaled(asked, fits)


def _served_share(asked: Asked) -> float:
    """The share of the highest demand that the free nodes of as many pools as are allowed could serve."""
    service, trial = asked.workload, asked.trials.open(asked.request, asked.workload.name)
    if trial is None:
        return 0.0
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


def _scaled(asked: Asked, share: float) -> Change:
    """The service with a share of its traffic, rounded down to three digits."""
    traffic = asked.workload.traffic
    peak = _rounded_down(traffic.most_requests_per_s * share)
    factor = peak / traffic.most_requests_per_s
    less = traffic.times(factor, _rounded_down)
    says = f"a peak of {less.most_requests_per_s:,g} requests/s, {factor:.0%} of what is asked"
    return Change(says, asked.changed("traffic", less))


def _rounded_down(rate: float) -> float:
    if not rate:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return float(f"{math.floor(rate / unit + 1e-9) * unit:.3g}")


def more_nodes(asked: Asked) -> Iterator[Change]:
    """As many assumed nodes as the cheapest way takes of an offer whose seller states no number."""
    way = asked.trials.cheapest(asked.assuming(MOST_ASSUMED), asked.workload.name)
    offers = asked.trials.candidates.problem.table.offers
    pieces = () if way is None else way.lead.pieces
    taken = [nodes for p in pieces if not is_counted(offers[p.offer]) for _, _, nodes in p.spans]
    most = max(taken, default=0)
    if most > assumed_nodes(asked.request):
        says = f"policy.assumed_nodes of {most:,}, which assumes {most:,} nodes where the seller states none"
        yield Change(says, asked.assuming(most))


def _listed(values: Sequence[str]) -> str:
    return f"precisions: [{', '.join(values)}]"


OWN: Mapping[str, Changes] = {
    "gpus.max": at("gpus.max", partial(_gpus, end="max", free=None)),
    "gpus.min": at("gpus.min", partial(_gpus, end="min", free=1)),
    "deadline": _later_deadline,
    "interruptible": once("interruptible", True, "interruptible: true"),
    "parts": once("parts", None, "parts: null, any number of parts"),
    "narrower": at("precisions", partial(_precisions, narrower=True), _listed),
    "precisions": at("precisions", partial(_precisions, narrower=False), _listed),
    "precision": at("precision", _trained_in, "precision: {}"),
    "engine": once("engine", ServingEngine.VLLM, "engine: {}"),
    "slo": _looser_slo,
    "zones": at("redundancy.zones", _fewer_zones),
    "spares": once("redundancy.spare_replicas", 0),
    "pools": at("fleet.max_pools", _more_pools),
    "traffic": _less_traffic,
}
"""The requirements of workloads by name."""
ABLE: Mapping[str, str] = {
    "training": "gpus.max deadline interruptible gpus.min precision",
    "batch": "parts deadline interruptible narrower precisions engine",
    "serving": "slo zones spares narrower precisions engine pools",
}
"""What a workload of each kind may change, smallest change first."""
MONEY = "parts deadline interruptible gpus.max"
NEAREST: Mapping[Obstacle, str] = {
    Obstacle.TIER: "interruptible",
    Obstacle.PRECISION: "precisions precision engine",
    Obstacle.GPU_UNKNOWN: "engine",
    Obstacle.SIZE: "gpus.max gpus.min",
    Obstacle.MEMORY: "gpus.max narrower",
    Obstacle.DISK: "narrower",
    Obstacle.FABRIC: "gpus.min gpus.max",
    Obstacle.LATENCY: "slo narrower",
    Obstacle.DEADLINE: "parts deadline gpus.max interruptible gpus.min",
    Obstacle.WINDOW: "parts deadline interruptible",
    Obstacle.REDUNDANCY: "pools zones",
    Obstacle.STOCK: "parts pools gpus.min gpus.max spares zones narrower",
    Obstacle.CONTENTION: f"{MONEY} gpus.min spares",
    Obstacle.PRICE: MONEY,
    Obstacle.BUDGET: MONEY,
}
"""Which changes address an obstacle."""
RULES_FIRST = (Obstacle.POLICY, Obstacle.TIER, Obstacle.RESIDENCY, Obstacle.COMPLIANCE)
LESS_TRAFFIC = (Obstacle.STOCK, Obstacle.CONTENTION)
"""Where a service may also serve less: not where it is only dear."""
