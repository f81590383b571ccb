"""What a fleet is made of: one unit is the fewest nodes of an offer that hold whole replicas.

U units (offer × configuration), K kinds of node, C configurations, H hours of the horizon.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from broker.domain.plan import Obstacle
from broker.domain.workload import Serving
from optimizer.placement.estimates import Estimates
from optimizer.placement.gates import GateLog, fit_gates, open_gates
from optimizer.placement.problem import Floats, Ints, Problem

HOUR_S = 3600


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Arrays [U]. ``kind`` numbers (SKU kind, configuration); ``requests_per_s`` is that of a whole unit,
    ``largest`` that of one replica; ``usd_per_hour`` of a whole unit; ``most`` how many stock allows."""

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

    def __len__(self) -> int:
        return len(self.offer)


@dataclass(frozen=True, slots=True, eq=False)
class FleetCase:
    """One service with everything that can serve it; ``demand`` [H] in requests/s for each grid hour."""

    service: Serving
    units: Units
    demand: Floats
    log: GateLog

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
    fit_gates(problem, log, obstacles, fits.any(axis=1) if fits.size else np.zeros(len(fits), np.bool_))
    units = _units(problem, estimates, row, np.flatnonzero(log.passing))
    holds = np.zeros(len(problem.table), dtype=np.bool_)
    holds[units.offer] = True
    log.apply(Obstacle.FABRIC, holds)
    log.kept = len(units)
    case = FleetCase(service, units, _demand(problem, service), log)
    _redundancy_gates(case)
    return case


def hour_count(problem: Problem) -> int:
    """Grid hours of the horizon, a last part counted whole."""
    return math.ceil(problem.end_s / HOUR_S)


def _demand(problem: Problem, service: Serving) -> Floats:
    hours = range(hour_count(problem))
    starts = [problem.origin + timedelta(hours=hour) for hour in hours]
    rates = [service.traffic.requests_per_s_at(start, problem.origin) for start in starts]
    return np.array(rates, dtype=np.float64)


def _units(problem: Problem, estimates: Estimates, row: int, offers: Ints) -> Units:
    rows = [entry for config in _configs(problem, estimates, row, offers) for entry in config]
    columns = list(zip(*rows, strict=True)) if rows else [()] * 11
    ints = [np.array(columns[i], dtype=np.int64) for i in (0, 1, 2, 3, 4)]
    floats = [np.array(columns[i], dtype=np.float64) for i in (5, 6, 7, 8)]
    return Units(
        ints[0], ints[1], ints[2], ints[3], ints[4], floats[0], floats[1], floats[2], floats[3],
        np.array(columns[9], dtype=np.int64), np.array(columns[10], dtype=np.int64),
    )  # fmt: skip


def _configs(
    problem: Problem, estimates: Estimates, row: int, offers: Ints
) -> Iterator[list[tuple[float, ...]]]:
    """Rows of units, one list a configuration."""
    serving, table = estimates.serving, problem.table
    for c, config in enumerate(serving.configs):
        size, made = config.gpus_per_replica, []
        for o in offers:
            kind, per_node = int(table.sku_of[o]), int(table.gpus_per_node[o])
            nodes = max(1, math.ceil(size / per_node))
            most = int(table.stock_nodes[o]) // nodes
            if not serving.fits[row, kind, c] or nodes > table.joined_nodes[o] or most < 1:
                continue
            replicas, rate = max(1, per_node // size), float(serving.requests_per_s[row, kind, c])
            usd = nodes * float(table.price_usd[o])
            cold = float(serving.cold_start_s[row, kind, c])
            label = kind * len(serving.configs) + c
            made.append(
                (o, c, label, nodes, replicas, replicas * rate, rate, usd, cold, table.zone_of[o], most)
            )
        yield made


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
