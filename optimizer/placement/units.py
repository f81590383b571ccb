"""What a fleet is made of: one unit is the fewest nodes of an offer that hold whole replicas.

U units (offer × configuration), K kinds of node, C configurations, H hours of the horizon.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np

from broker.domain.plan import Obstacle
from broker.domain.workload import Serving, TrafficShape
from optimizer.placement.estimates import Estimates
from optimizer.placement.gates import GateLog, fit_gates, open_gates
from optimizer.placement.problem import Bools, Floats, Ints, Problem
from optimizer.placement.shelves import runs_of

HOUR_S = 3600
HOURS_OF_DAY = 24


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
    """

    service: Serving
    units: Units
    demand: Floats
    log: GateLog
    spare_rates: tuple[float, ...] = ()

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
    opened = open_gates(problem, service)
    log, row, table = opened.log(), estimates.row_of[service.name], estimates.serving
    obstacles = [table.obstacle(row, kind) for kind in range(len(problem.table.skus))]
    log.evaluated = len(problem.table) * len(table.configs)
    fits_kind: Bools = np.any(table.fits[row], axis=1)
    fit_gates(log, opened, obstacles, fits_kind)
    offers = np.flatnonzero(opened.passing & fits_kind[problem.table.sku_of])
    units = _units(problem, estimates, row, offers)
    log.keep(Obstacle.FABRIC, _count_offers(units))
    log.kept = len(units)
    case = FleetCase(service, units, _demand(problem, service), log)
    _redundancy_gates(case)
    return case


def _count_offers(units: Units) -> int:
    """Distinct offers; units come offer by offer."""
    return int(np.count_nonzero(np.diff(units.offer))) + 1 if len(units) else 0


def only_units(case: FleetCase, mask: Bools) -> FleetCase:
    """The case over fewer units."""
    kept = {name: getattr(case.units, name)[mask] for name in case.units.__slots__}
    return replace(case, units=replace(case.units, **kept))


def surcharged(case: FleetCase, usd_per_node_hour: Mapping[int, float]) -> FleetCase:
    """The case with a price of scarcity on some offers."""
    units = case.units
    each = np.array([usd_per_node_hour.get(int(o), 0.0) for o in units.offer], dtype=np.float64)
    return replace(case, units=replace(units, surcharge_usd_per_hour=each * units.nodes))


def hour_count(problem: Problem) -> int:
    """Grid hours of the horizon, a last part counted whole."""
    return math.ceil(problem.end_s / HOUR_S)


def _demand(problem: Problem, service: Serving) -> Floats:
    """Requests/s [H]; what has a daily form is asked for one day."""
    hours, traffic = hour_count(problem), service.traffic
    asked = hours if traffic.shape is TrafficShape.HOURLY else min(hours, HOURS_OF_DAY)
    starts = [problem.origin + timedelta(hours=hour) for hour in range(asked)]
    rates = [traffic.requests_per_s_at(start, problem.origin) for start in starts]
    return np.resize(np.array(rates, dtype=np.float64), hours)


def _worth(nodes: Ints, fits: Bools, rates: tuple[Floats, Floats], cold_s: Floats) -> Bools:
    """Configurations [K, C] that no other of the same kind of node makes needless.

    Of two whose units take as many nodes, one is needless where it serves no more, its largest replica is
    no smaller, and it starts no sooner. ``rates``: of a whole unit, and of one replica.
    """
    worth = fits.copy()
    for kind in np.flatnonzero(fits.any(axis=1)):
        mine = np.flatnonzero(fits[kind])
        n, unit, one, cold = (a[kind, mine] for a in (nodes, *rates, cold_s))
        at_least = (
            (n[:, None] == n) & (unit[:, None] >= unit) & (one[:, None] <= one) & (cold[:, None] <= cold)
        )
        equal = at_least & at_least.T
        better = at_least & (~equal | (mine[:, None] < mine))
        worth[kind, mine[better.any(axis=0)]] = False
    return worth


def _units(problem: Problem, estimates: Estimates, row: int, offers: Ints) -> Units:
    """Every (offer, configuration) that is worth a look, offer by offer, with the nodes of one unit."""
    table, serving = problem.table, estimates.serving
    sizes = np.array([config.gpus_per_replica for config in serving.configs], dtype=np.int64)
    per_node = np.array([sku.gpus_per_node for sku in table.skus], dtype=np.int64)[:, None]
    nodes = np.maximum(1, -(-sizes[None, :] // per_node))
    replicas = np.maximum(1, per_node // sizes[None, :])
    rate, cold_s = serving.requests_per_s[row], serving.cold_start_s[row]
    worth = _worth(nodes, np.asarray(serving.fits[row], dtype=np.bool_), (replicas * rate, rate), cold_s)
    kind_of, config_of = np.nonzero(worth)
    first = np.searchsorted(kind_of, np.arange(len(worth) + 1))
    kinds = table.sku_of[offers]
    at, within = runs_of(np.diff(first)[kinds])
    offer, kind = offers[at], kinds[at]
    config = config_of[first[kind] + within]
    most = table.stock_nodes[offer] // nodes[kind, config]
    usable = (nodes[kind, config] <= table.joined_nodes[offer]) & (most > 0)
    offer, kind, config, most = offer[usable], kind[usable], config[usable], most[usable]
    return Units(
        offer=offer,
        config=config,
        kind=kind * len(sizes) + config,
        nodes=nodes[kind, config],
        replicas=replicas[kind, config],
        requests_per_s=(replicas * rate)[kind, config],
        largest=rate[kind, config],
        usd_per_hour=nodes[kind, config] * table.price_usd[offer],
        cold_s=cold_s[kind, config],
        zone=table.zone_of[offer],
        most=most,
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
    first = np.flatnonzero(np.diff(units.offer, prepend=-1))
    together = float(np.maximum.reduceat(units.requests_per_s * units.most, first).sum())
    spare = case.spare * float(units.largest.min())
    if together - spare < float(case.demand.max(initial=0.0)) * (1 - 1e-9):
        log.obstacle = Obstacle.STOCK
