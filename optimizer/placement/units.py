"""What a fleet is made of: one unit is the fewest nodes of an offer that hold whole replicas.

U units (offer × configuration), K kinds of node, C configurations, H hours of the horizon.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

import numpy as np

from broker.domain.plan import Obstacle
from broker.domain.workload import Serving
from optimizer.placement.estimates import Estimates
from optimizer.placement.gates import GateLog, fit_gates, open_gates
from optimizer.placement.problem import Bools, Floats, Ints, Problem

HOUR_S = 3600


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Arrays [U]. ``kind`` numbers (SKU kind, configuration); ``requests_per_s`` is that of a whole unit,
    ``largest`` that of one replica; ``usd_per_hour`` of a whole unit; ``most`` how many stock allows;
    ``surcharge_usd_per_hour`` a price of scarcity that steers the search and is never paid.
    """

    offer: Ints
    config: Ints
    kind: Ints
    nodes: Ints
    replicas: Ints
    requests_per_s: Floats
    largest: Floats
    usd_per_hour: Floats
    cold_s: Floats
    zone: Ints
    most: Ints
    surcharge_usd_per_hour: Floats

    def __len__(self) -> int:
        return len(self.offer)


@dataclass(frozen=True, slots=True, eq=False)
class FleetCase:
    """One service with everything that can serve it; ``demand`` [H] in requests/s for each grid hour.

    ``spare_rates``: rates of the largest replica that are known to be worth a look (``net_cover``).
    ``covers`` [M, U]: counts of units that are known to be cheap for some demand (``fleet_dual``).
    """

    service: Serving
    units: Units
    demand: Floats
    log: GateLog
    spare_rates: tuple[float, ...] = ()
    covers: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))

    @property
    def zones(self) -> int:
        """How many zones must hold a ready replica."""
        return max(1, self.service.redundancy.zones)

    @property
    def spare(self) -> int:
        """Spare replicas over demand."""
        return self.service.redundancy.spare_replicas


def build_fleet_case(problem: Problem, estimates: Estimates, service: Serving) -> FleetCase:
    """The gates of a service, and the units that they leave."""
    log = open_gates(problem, service)
    row, table = estimates.row_of[service.name], estimates.serving
    fits = np.asarray(table.fits[row], dtype=np.bool_)
    obstacles = [table.obstacle(row, kind) for kind in range(len(problem.table.skus))]
    log.evaluated = len(problem.table) * len(table.configs)
    fits_kind: Bools = np.any(fits, axis=1)
    fit_gates(problem, log, obstacles, fits_kind)
    units = _units(problem, estimates, row, np.flatnonzero(log.passing))
    holds = np.zeros(len(problem.table), dtype=np.bool_)
    holds[units.offer] = True
    log.apply(Obstacle.FABRIC, holds)
    log.kept = len(units)
    case = FleetCase(service, units, _demand(problem, service), log)
    _redundancy_gates(case)
    return case


def only_units(case: FleetCase, mask: Bools) -> FleetCase:
    """The case over fewer units."""
    kept = {name: getattr(case.units, name)[mask] for name in case.units.__slots__}
    covers = (
        case.covers[(case.covers[:, ~mask] == 0).all(axis=1)][:, mask] if len(case.covers) else case.covers
    )
    return replace(case, units=replace(case.units, **kept), covers=covers)


def limited(case: FleetCase, free: Ints) -> FleetCase:
    """The case with no more of each unit than ``free`` nodes [O] allow; covers are kept where they fit."""
    units = case.units
    most = np.minimum(units.most, free[units.offer] // units.nodes)
    left = replace(
        case, units=replace(units, most=most), covers=case.covers[in_stock(case, case.covers, free)]
    )
    return only_units(left, most > 0)


def in_stock(case: FleetCase, covers: Ints, free: Ints) -> Bools:
    """Which covers [M, U] ``free`` nodes [O] allow."""
    fits: Bools = np.ones(len(covers), dtype=np.bool_)
    if not len(covers):
        return fits
    units, used = case.units, np.flatnonzero(covers.any(axis=0))
    for offer in np.unique(units.offer[used]):
        inside = used[units.offer[used] == offer]
        fits &= covers[:, inside] @ units.nodes[inside] <= int(free[offer])
    return fits


def surcharged(case: FleetCase, usd_per_node_hour: Mapping[int, float]) -> FleetCase:
    """The case with a price of scarcity on some offers."""
    units = case.units
    each = np.array([usd_per_node_hour.get(int(o), 0.0) for o in units.offer], dtype=np.float64)
    return replace(case, units=replace(units, surcharge_usd_per_hour=each * units.nodes))


def hour_count(problem: Problem) -> int:
    """Grid hours of the horizon, a last part counted whole."""
    return math.ceil(problem.end_s / HOUR_S)


def _demand(problem: Problem, service: Serving) -> Floats:
    hours = range(hour_count(problem))
    starts = [problem.origin + timedelta(hours=hour) for hour in hours]
    rates = [service.traffic.requests_per_s_at(start, problem.origin) for start in starts]
    return np.array(rates, dtype=np.float64)


def _units(problem: Problem, estimates: Estimates, row: int, offers: Ints) -> Units:
    """Every (offer, configuration) that fits, with the nodes that one unit takes."""
    table, serving = problem.table, estimates.serving
    sizes = np.array([config.gpus_per_replica for config in serving.configs], dtype=np.int64)
    kinds, per_node = table.sku_of[offers], table.gpus_per_node[offers]
    nodes = np.maximum(1, -(-sizes[None, :] // per_node[:, None]))
    most = table.stock_nodes[offers][:, None] // nodes
    usable = serving.fits[row][kinds] & (nodes <= table.joined_nodes[offers][:, None]) & (most > 0)
    at, config = np.nonzero(usable)
    offer, kind = offers[at], kinds[at]
    replicas = np.maximum(1, per_node[at] // sizes[config])
    rate = serving.requests_per_s[row, kind, config]
    return Units(
        offer=offer,
        config=config,
        kind=kind * len(sizes) + config,
        nodes=nodes[at, config],
        replicas=replicas,
        requests_per_s=replicas * rate,
        largest=rate,
        usd_per_hour=nodes[at, config] * table.price_usd[offer],
        cold_s=serving.cold_start_s[row, kind, config],
        zone=table.zone_of[offer],
        most=most[at, config],
        surcharge_usd_per_hour=np.zeros(len(offer)),
    )


def _redundancy_gates(case: FleetCase) -> None:
    """Enough zones, and enough of everything to meet the peak with its spares."""
    units, log = case.units, case.log
    if log.obstacle is not None:
        return
    if len(np.unique(units.zone)) < case.zones:
        log.obstacle = Obstacle.REDUNDANCY
        return
    rate_by_offer: dict[int, float] = {}
    for offer, rate, most in zip(units.offer, units.requests_per_s, units.most, strict=True):
        rate_by_offer[int(offer)] = max(rate_by_offer.get(int(offer), 0.0), float(rate) * int(most))
    spare = case.spare * float(units.largest.min())
    if sum(rate_by_offer.values()) - spare < float(case.demand.max(initial=0.0)) * (1 - 1e-9):
        log.obstacle = Obstacle.STOCK
