"""What a fleet is made of: one unit is the fewest nodes of an offer that hold whole replicas.

U units (offer × configuration), K kinds of node, C configurations, H hours of the horizon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from broker.domain.workload import Serving
from optimizer.placement.gates import GateLog
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


Counts = NDArray[np.int16]
"""Counts of units in covers: there are many of these, and no count is large."""


def no_covers() -> Counts:
    """Covers [0, 0] of a case of which none are known."""
    return np.zeros((0, 0), dtype=np.int16)


@dataclass(frozen=True, slots=True, eq=False)
class FleetCase:
    """One service with everything that can serve it; ``demand`` [H] in requests/s for each grid hour.

    ``spare_rates``: rates of the largest replica that are known to be worth a look (``net_cover``).
    ``units`` are as many as the service could want; ``again`` makes them anew for free nodes [O] (None: all)
    and surcharges per node-hour.
    ``covers`` [M, U]: counts of units that are known to be cheap for some demand (``fleet_dual``).
    """

    service: Serving
    units: Units
    demand: Floats
    log: GateLog
    again: Callable[[Ints | None, Mapping[int, float]], Units]
    spare_rates: tuple[float, ...] = ()
    surcharge_usd: Mapping[int, float] = field(default_factory=dict)
    covers: Counts = field(default_factory=no_covers)

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
    covers = (
        case.covers[(case.covers[:, ~mask] == 0).all(axis=1)][:, mask] if len(case.covers) else case.covers
    )
    return replace(case, units=replace(case.units, **kept), covers=covers)


def with_units(case: FleetCase, more: Units) -> FleetCase:
    """The case over ``more`` units as well; covers are not kept."""
    if not len(more):
        return case
    both = {n: np.concatenate((getattr(case.units, n), getattr(more, n))) for n in more.__slots__}
    return replace(case, units=Units(**both), covers=no_covers())


def in_stock(case: FleetCase, covers: Counts, free: Ints) -> Bools:
    """Which covers [M, U] ``free`` nodes [O] allow."""
    fits: Bools = np.ones(len(covers), dtype=np.bool_)
    if not len(covers):
        return fits
    units, used = case.units, np.flatnonzero(covers.any(axis=0))
    for offer in np.unique(units.offer[used]):
        inside = used[units.offer[used] == offer]
        fits &= covers[:, inside].astype(np.int64) @ units.nodes[inside] <= int(free[offer])
    return fits


def surcharged(case: FleetCase, usd_per_node_hour: Mapping[int, float]) -> FleetCase:
    """The case with a price of scarcity on some offers, and with what is then wanted instead; no covers."""
    units = case.again(None, usd_per_node_hour)
    return replace(case, units=units, surcharge_usd=usd_per_node_hour, covers=no_covers())


def beside(case: FleetCase, free: Ints) -> FleetCase:
    """The case over what is wanted of ``free`` nodes [O]; covers are not kept."""
    return replace(case, units=case.again(free, case.surcharge_usd), covers=no_covers())


def hour_count(problem: Problem) -> int:
    """Grid hours of the horizon, a last part counted whole."""
    return math.ceil(problem.end_s / HOUR_S)
