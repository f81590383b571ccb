"""Units that fleets consist of. A unit is the smallest number of nodes of an offer that holds whole replicas.

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
    """Arrays [U]. ``kind`` numbers pairs (SKU kind, configuration); ``requests_per_s`` and ``usd_per_hour``
    are of a whole unit, ``largest`` is the rate of one replica; ``most`` is how many units the stock allows;
    ``surcharge_usd_per_hour`` is a dual price, which steers the search and is never paid.
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
    """One service with every unit that can serve it; ``demand`` [H] in requests/s in each hour of the grid.

    ``units`` holds at most as many of each as the service could use; ``again`` rebuilds it for given free
    nodes [O] (None: all) and surcharges per node-hour.
    """

    service: Serving
    units: Units
    demand: Floats
    log: GateLog
    again: Callable[[Ints | None, Mapping[int, float]], Units]
    surcharge_usd: Mapping[int, float] = field(default_factory=dict)

    @property
    def zones(self) -> int:
        """In how many zones a ready replica must stand."""
        return max(1, self.service.redundancy.zones)

    @property
    def spare(self) -> int:
        """Spare replicas beyond demand."""
        return self.service.redundancy.spare_replicas


def only_units(case: FleetCase, mask: Bools) -> FleetCase:
    """The case restricted to the units of ``mask``."""
    kept = {name: getattr(case.units, name)[mask] for name in case.units.__slots__}
    return replace(case, units=replace(case.units, **kept))


def with_units(case: FleetCase, more: Units) -> FleetCase:
    """The case with further units."""
    both = {n: np.concatenate((getattr(case.units, n), getattr(more, n))) for n in more.__slots__}
    return replace(case, units=Units(**both))


def surcharged(case: FleetCase, usd_per_node_hour: Mapping[int, float]) -> FleetCase:
    """The case with dual prices on some offers; its units are those that are useful at these prices."""
    units = case.again(None, usd_per_node_hour)
    return replace(case, units=units, surcharge_usd=usd_per_node_hour)


def with_remaining_stock(case: FleetCase, free: Ints) -> FleetCase:
    """The case with only ``free`` nodes [O] of each offer."""
    return replace(case, units=case.again(free, case.surcharge_usd))


def hour_count(problem: Problem) -> int:
    """Hours in the grid; an incomplete last hour counts."""
    return math.ceil(problem.end_s / HOUR_S)
