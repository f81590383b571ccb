"""Units that fleets consist of. A unit is the smallest number of nodes of an offer that holds whole replicas.

U units (offer × configuration), K kinds of node, C configurations, H hours of the horizon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from broker.domain.planning.workload import Serving
from optimizer.placement.problem.gates import GateLog
from optimizer.placement.problem.problem import Bools, Floats, Ints, Problem
from optimizer.placement.problem.relaunches import RelaunchPrices

HOUR_S = 3600
NO_HOUR = 1 << 40


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Arrays [U]. ``kind`` numbers pairs (SKU kind, configuration); ``requests_per_s`` and ``usd_per_hour``
    are of a whole unit, ``largest`` is the rate of one replica; ``most`` is how many units the stock allows;
    ``surcharge_usd_per_hour`` is a dual price, which steers the search and is never paid. Rates hold with the
    service's confidence; ``later_share`` is their median as a multiple, which counts in the second stage.
    ``deviation`` is the standard deviation of the logarithm of a rate, 0 where medians are planned.
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
    later_share: Floats
    deviation: Floats

    def __len__(self) -> int:
        return len(self.offer)

    def in_stage(self, stage: int) -> Units:
        """The units with the rates that count in the first stage (0) or the second (1)."""
        if not stage:
            return self
        rates = self.requests_per_s * self.later_share, self.largest * self.later_share
        return replace(self, requests_per_s=rates[0], largest=rates[1])


@dataclass(frozen=True, slots=True, eq=False)
class FleetCase:
    """One service with every unit that can serve it; ``demand`` [H] in requests/s in each hour of the grid.

    From ``later_from`` on, an hour of the grid, replicas count at their median (``stages``).
    ``units`` holds at most as many of each as the service could use; ``again`` rebuilds it for given free
    nodes [O] (None: all) and surcharges per node-hour. ``relaunches``: the expected cost of ordering nodes
    again (None: nothing).
    """

    service: Serving
    units: Units
    demand: Floats
    log: GateLog
    again: Callable[[Ints | None, Mapping[int, float]], Units]
    surcharge_usd: Mapping[int, float] = field(default_factory=dict)
    later_from: int = NO_HOUR
    relaunches: RelaunchPrices | None = None

    def relaunch_usd(self, mine: Ints) -> Floats:
        """Expected USD of ordering each of the units ``mine`` again."""
        if self.relaunches is None:
            return np.zeros(len(mine))
        units = self.units
        cents = self.relaunches.node_cents(units.offer[mine], units.kind[mine])
        usd: Floats = units.nodes[mine] * cents / 100.0
        return usd

    @property
    def stages(self) -> Iterator[tuple[slice, Units]]:
        """The hours of each stage that has any, with the units at the rates that count in it."""
        for stage, hours in enumerate((slice(0, self.later_from), slice(self.later_from, len(self.demand)))):
            if len(self.demand[hours]):
                yield hours, self.units.in_stage(stage)

    @property
    def stage_of(self) -> Ints:
        """The stage [H] of each hour."""
        stage: Ints = (np.arange(len(self.demand)) >= self.later_from).astype(np.int64)
        return stage

    def from_hour(self, first: int) -> FleetCase:
        """The case without the hours before ``first``."""
        return replace(self, demand=self.demand[first:], later_from=max(0, self.later_from - first))

    @property
    def zones(self) -> int:
        """In how many zones a ready replica must stand."""
        return max(1, self.service.redundancy.zones)

    @property
    def idle(self) -> int:
        """How many replicas are too few beside the spares in every hour, also without requests."""
        return max(0, self.service.min_replicas - 1)

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
