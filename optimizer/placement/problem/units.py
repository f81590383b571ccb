"""What a fleet is made of: one unit is the fewest nodes of an offer that hold whole replicas.

U units (offer × configuration), K kinds of node, C configurations, H hours of the horizon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from broker.domain.planning.workload import Serving
from optimizer.placement.problem.gates import GateLog
from optimizer.placement.problem.problem import Bools, Floats, Ints, Problem

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

    ``units`` are as many as the service could want; ``again`` makes them anew for free nodes [O] (None: all)
    and surcharges per node-hour.
    """

    service: Serving
    units: Units
    demand: Floats
    log: GateLog
    again: Callable[[Ints | None, Mapping[int, float]], Units]
    surcharge_usd: Mapping[int, float] = field(default_factory=dict)

    @property
    def zones(self) -> int:
        """How many zones must hold a ready replica."""
        return max(1, self.service.redundancy.zones)

    @property
    def spare(self) -> int:
        """Spare replicas over demand."""
        return self.service.redundancy.spare_replicas


def only_units(case: FleetCase, mask: Bools) -> FleetCase:
    """The case over fewer units."""
    kept = {name: getattr(case.units, name)[mask] for name in case.units.__slots__}
    return replace(case, units=replace(case.units, **kept))


def with_units(case: FleetCase, more: Units) -> FleetCase:
    """The case over ``more`` units as well."""
    both = {n: np.concatenate((getattr(case.units, n), getattr(more, n))) for n in more.__slots__}
    return replace(case, units=Units(**both))


def surcharged(case: FleetCase, usd_per_node_hour: Mapping[int, float]) -> FleetCase:
    """The case with a price of scarcity on some offers, and with what is then wanted instead."""
    units = case.again(None, usd_per_node_hour)
    return replace(case, units=units, surcharge_usd=usd_per_node_hour)


def beside(case: FleetCase, free: Ints) -> FleetCase:
    """The case over what is wanted of ``free`` nodes [O]."""
    return replace(case, units=case.again(free, case.surcharge_usd))


def hour_count(problem: Problem) -> int:
    """Grid hours of the horizon, a last part counted whole."""
    return math.ceil(problem.end_s / HOUR_S)
