"""A fleet carries its traffic in every hour, with spares and zones, once it had time to start."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from broker.domain.basics.confidence import MEDIAN, joint_deviations, normal_quantile
from broker.domain.basics.estimate import Estimate
from broker.domain.market.billing import holdings
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Placement
from broker.domain.planning.stages import grown_weeks, growth_share, stages_of
from broker.domain.planning.workload import Serving
from optimizer.performance.intervals import rate_at, tail_deviation
from optimizer.placement.rules.case import Case

HOUR = timedelta(hours=1)
RATE = "requests_per_s_per_replica"
DRAWS = 4096
ROUNDING = 1e-9
SECOND = timedelta(seconds=1)


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ReadyFleet:
    """One placement's nodes over time: ready from the end of the cold start to the end of each holding.

    ``requests_per_s``: rate of one replica within the latency objective (``counted_rate``);
    ``later_requests_per_s``: its median, which counts from ``later_from`` on (None: never).
    """

    placement: Placement
    offer: Offer
    ready: tuple[tuple[datetime, datetime, int], ...]
    requests_per_s: float
    later_requests_per_s: float
    later_from: datetime | None

    @property
    def zone(self) -> str:
        """The zone: a place, whoever sells there."""
        return self.offer.place

    def rates_at(self, instants_us: Ints, origin: datetime) -> Floats:
        """The rate of a replica that counts at each instant, in microseconds from ``origin``."""
        since = _us(self.later_from, origin) if self.later_from is not None else np.inf
        return np.where(instants_us >= since, self.later_requests_per_s, self.requests_per_s)

    def replicas_at(self, instants_us: Ints, origin: datetime) -> Ints:
        """Ready replicas at each instant, in microseconds from ``origin``."""
        begun = sorted((_us(start, origin), nodes) for start, _, nodes in self.ready)
        ended = sorted((_us(end, origin), nodes) for _, end, nodes in self.ready)
        return replicas_on(
            _until(instants_us, begun) - _until(instants_us, ended), self.placement, self.offer
        )


def _us(instant: datetime, origin: datetime) -> int:
    return (instant - origin) // timedelta(microseconds=1)


def _until(instants_us: Ints, changes: Sequence[tuple[int, int]]) -> Ints:
    """Sum of the changes at or before each instant."""
    when = np.array([at for at, _ in changes], dtype=np.int64)
    nodes = np.concatenate(([0], np.cumsum([nodes for _, nodes in changes], dtype=np.int64)))
    found: Ints = nodes[np.searchsorted(when, instants_us, side="right")]
    return found


def replicas_on(nodes: Ints, placement: Placement, offer: Offer) -> Ints:
    """Replicas on ``nodes``; a replica spans several nodes only if it is larger than one."""
    per_node, size = offer.sku.gpus_per_node, placement.gpus_per_replica
    fit = nodes * (per_node // size) if size <= per_node else nodes // math.ceil(size / per_node)
    return np.minimum(placement.replicas, fit)


def violations(case: Case) -> Iterator[str]:
    """Violations of demand, zones and spares of each service."""
    for service in case.request.workloads:
        if isinstance(service, Serving):
            yield from _stages(case, service)
            fleets = tuple(_fleets(case, service))
            if fleets:
                yield from _service(case, service, fleets)


def _fleets(case: Case, service: Serving) -> Iterator[ReadyFleet]:
    placed = case.placed.get(service.name, ())
    kinds = len({placement.gpu for _, placement, _, _ in placed})
    for _, placement, _, offer in placed:
        cold = timedelta(seconds=placement.estimate["cold_start_s"])
        ready = tuple(
            (holding.window.start + cold, holding.window.end, holding.nodes)
            for holding in holdings(placement.segments)
            if holding.window.start + cold < holding.window.end
        )
        sure = counted_rate(placement.estimate, service, kinds)
        rates = sure, placement.estimate[RATE]
        yield ReadyFleet(placement, offer, ready, *rates, measured_at(placement))


def measured_at(placement: Placement) -> datetime | None:
    """When the first of a service's stages ends; None if it has only one."""
    return placement.stages[0].until if placement.stages else None


def _stages(case: Case, service: Serving) -> Iterator[str]:
    """Stages of which the first ends earlier than a day after the service begins; none are stricter."""
    expected = stages_of(case.request, service, case.request.horizon.start)
    for where, placement, _, _ in case.placed.get(service.name, ()):
        if placement.stages and (not expected or placement.stages[0].until < expected[0].until):
            yield f"{where}: stages are {placement.stages}, expected {expected}"


@dataclass(frozen=True, slots=True, eq=False)
class Supply:
    """``demand`` in requests/s [T], and ready ``replicas`` of each placement [P, T], each pair once."""

    demand: Floats
    replicas: Ints

    def carried(self, rates: Sequence[Floats], spares: int) -> Bools:
        """Whether the demand is carried at every instant, ``spares`` of the largest replicas apart, in each
        draw [D] of the ``rates`` [P][D] of a replica.
        """
        met = np.ones(len(rates[0]), dtype=np.bool_)
        for demand, replicas in zip(self.demand, self.replicas.T, strict=True):
            ready = [(count, rate) for count, rate in zip(replicas, rates, strict=True) if count]
            if not ready:
                return np.zeros_like(met)
            carried = np.sum([count * rate for count, rate in ready], axis=0)
            largest = np.max([rate for _, rate in ready], axis=0)
            met &= carried - spares * largest >= demand * (1 - ROUNDING)
        return met


def supply_of(case: Case, service: Serving) -> Supply | None:
    """A placed fleet at every instant of its first stage at which requests are due; None if nothing is placed
    or due.
    """
    fleets, begin = tuple(_fleets(case, service)), case.service_start(service)
    if not fleets or begin is None:
        return None
    until = min(fleet.later_from or case.request.horizon.end for fleet in fleets)
    instants = [
        one for one in _instants(case, fleets, _first_due(case, service, fleets, begin)) if one < until
    ]
    origin = case.request.horizon.start
    when = np.array([_us(instant, origin) for instant in instants], dtype=np.int64)
    demand = _demand(case, service, when)
    rows = np.stack([demand, *(fleet.replicas_at(when, origin) for fleet in fleets)])[:, demand > 0]
    if not rows.size:
        return None
    unique = np.unique(rows, axis=1)
    return Supply(unique[0], unique[1:].astype(np.int64))


def counted_rate(estimate: Estimate, service: Serving, kinds: int) -> float:
    """Requests/s at which a replica counts in the first stage of a fleet of ``kinds`` of GPU.

    Its error and that of the traffic's level are independent. So are errors of several kinds, of which some
    hours rest on one and others on another: each counts at the quantile with which all hold together with the
    service's confidence.
    """
    confidence, sure = service.planned_confidence, estimate.sure_requests_per_s
    if confidence == MEDIAN:
        return sure
    deviations = normal_quantile(confidence)
    own = math.log(estimate[RATE] / sure) / deviations
    level = service.traffic.uncertainty.level_deviation
    tail = float(tail_deviation(estimate[RATE], sure, estimate.low[RATE], confidence))
    more = deviations * (math.hypot(own, level) - own)
    return sure * math.exp(-more - joint_deviations(confidence, kinds) * math.hypot(tail, level))


def chance_of(case: Case, service: Serving) -> float | None:
    """The chance that a placed fleet carries its traffic at every instant of its first stage; None if nothing
    is due.

    The error of the rates is common to all replicas of one GPU and independent between GPUs, and from that of
    the traffic's level. They are drawn as a Latin hypercube: of one error the chance is exact to half a draw.
    """
    supply, placed = supply_of(case, service), case.placed.get(service.name, ())
    if supply is None:
        return None
    rng = np.random.default_rng(0)
    levels = (np.arange(DRAWS) + 0.5) / DRAWS
    normal = np.array([NormalDist().inv_cdf(level) for level in levels])
    errors = {gpu: rng.permutation(normal) for gpu in sorted({one.gpu for _, one, _, _ in placed})}
    level = np.ones(DRAWS)
    if service.traffic.uncertainty.level:
        level = np.exp(service.traffic.uncertainty.level_deviation * rng.permutation(normal))
    rates = [
        rate_at(one.estimate, service.planned_confidence, errors[one.gpu]) / level for _, one, _, _ in placed
    ]
    return float(supply.carried(rates, service.redundancy.spare_replicas).mean())


def _service(case: Case, service: Serving, fleets: Sequence[ReadyFleet]) -> Iterator[str]:
    for fleet in fleets:
        joined = fleet.offer.sku.gpus_per_node * fleet.offer.max_nodes_in_one_run
        size = fleet.placement.gpus_per_replica
        if size > joined:
            yield f"{service.name}: a replica of {size} GPUs spans more nodes than are joined ({joined} GPUs)"
    begin = case.service_start(service)
    if begin is None:
        yield f"{service.name}: is placed, but the run {service.starts_after!r} that it follows is not"
        return
    due = _first_due(case, service, fleets, begin)
    instants = _instants(case, fleets, due)
    found = _first_short(case, service, fleets, instants)
    if found is not None:
        at, what = found
        yield f"{service.name}: at {instants[at].isoformat()} {what}"


def _first_due(case: Case, service: Serving, fleets: Sequence[ReadyFleet], begin: datetime) -> datetime:
    """The first instant at which traffic must be served: after ``begin`` and after a first cold start.

    Capacity is held from whole seconds of the horizon on, so a plan made within a second starts with the next
    one. Capacity that is given back before it is ready delays nothing.
    """
    serving = [fleet for fleet in fleets if fleet.ready] or fleets
    cold = timedelta(seconds=max(f.placement.estimate["cold_start_s"] for f in serving))
    if service.starts_after is not None:
        run_end = case.run_end(service.starts_after)
        return max(begin, max(run_end or begin, case.earliest) + cold)
    start = case.request.horizon.start
    return max(begin, start - (start - case.earliest) // SECOND * SECOND + cold)


def _instants(case: Case, fleets: Sequence[ReadyFleet], due: datetime) -> list[datetime]:
    end = case.request.horizon.end
    grid = case.request.horizon.start + ((due - case.request.horizon.start) // HOUR) * HOUR
    instants = {due}
    while grid < end:
        instants.add(grid)
        grid += HOUR
    for fleet in fleets:
        for start, stop, _ in fleet.ready:
            instants.update((start, stop))
    return sorted(t for t in instants if due <= t < end)


def _first_short(
    case: Case, service: Serving, fleets: Sequence[ReadyFleet], instants: Sequence[datetime]
) -> tuple[int, str] | None:
    """The first instant at which zones, or requests/s after spares, do not suffice, and what is missing."""
    origin = case.request.horizon.start
    when = np.array([_us(instant, origin) for instant in instants], dtype=np.int64)
    demand = _demand(case, service, when) * _growth(case, service, fleets, when)
    capacity, largest = np.zeros(len(when)), np.zeros(len(when))
    by_place: dict[str, Floats] = {}
    for fleet in fleets:
        replicas = fleet.replicas_at(when, origin)
        each = fleet.rates_at(when, origin)
        rate = replicas * each
        capacity += rate
        largest = np.where(replicas > 0, np.maximum(largest, each), largest)
        by_place[fleet.zone] = by_place.get(fleet.zone, np.zeros(len(when))) + rate
    redundancy, places = service.redundancy, np.stack(list(by_place.values()))
    left = capacity - redundancy.spare_replicas * largest
    share = redundancy.zone_loss_share if redundancy.survives_zone_loss else 0.0
    part = share / max(1, redundancy.zones - 1)
    zones = ((places > 0) & (places >= part * demand * (1 - ROUNDING))).sum(axis=0)
    without = capacity - places.max(axis=0)
    open_until = _us(service.ends_by(case.request.horizon.end), origin)
    asked = demand > 0 if not service.min_replicas else when < open_until
    few = asked & (left <= (service.min_replicas - 1) * largest * (1 + ROUNDING))
    short = np.flatnonzero(
        asked
        & (
            (zones < redundancy.zones)
            | (left < demand * (1 - ROUNDING))
            | few
            | (without < share * demand * (1 - ROUNDING))
        )
    )
    if not len(short):
        return None
    at = int(short[0])
    if zones[at] < redundancy.zones:
        carried = f" that each carry {part:.0%} of the demand" if part else ""
        return at, f"replicas stand in {zones[at]} zones{carried}, {redundancy.zones} are asked"
    if left[at] < demand[at] * (1 - ROUNDING):
        return at, f"{left[at]:.4f} requests/s are left after spares, {demand[at]:.4f} are asked"
    if few[at]:
        return (
            at,
            f"{left[at]:.4f} requests/s are left after spares, {service.min_replicas} replicas are asked",
        )
    return at, (
        f"{without[at]:.4f} requests/s are left without the largest zone, {share * demand[at]:.4f} are asked"
    )


def _growth(case: Case, service: Serving, fleets: Sequence[ReadyFleet], when_us: Ints) -> Floats:
    """By what the traffic has grown with the service's confidence at each instant, since it was measured."""
    measured = min((fleet.later_from for fleet in fleets if fleet.later_from is not None), default=None)
    if measured is None or not service.traffic.uncertainty.growth:
        return np.ones(len(when_us))
    first = (measured - case.request.horizon.start) // HOUR
    hours, of_each = np.unique(when_us // (HOUR // timedelta(microseconds=1)), return_inverse=True)
    shares = [growth_share(service, grown_weeks(first, int(hour))) for hour in hours]
    return np.array(shares, dtype=np.float64)[of_each.reshape(-1)]


def _demand(case: Case, service: Serving, when_us: Ints) -> Floats:
    """Requests/s at each instant: those of its hour until the service ends."""
    origin = case.request.horizon.start
    hours = when_us // (HOUR // timedelta(microseconds=1))
    asked, of_each = np.unique(hours, return_inverse=True)
    rates = [service.requests_per_s_at(origin + int(hour) * HOUR, origin) for hour in asked]
    demand = np.array(rates, dtype=np.float64)[of_each.reshape(-1)]
    demand[when_us >= _us(service.ends_by(case.request.horizon.end), origin)] = 0.0
    return demand
