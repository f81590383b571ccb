"""What is asked of one service: its bounds, its bounds at prices of scarcity, fleets. Each ask is a value
that can be answered in any process that knows the problem.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from optimizer.placement.best_fleets import fleets
from optimizer.placement.columns import Column
from optimizer.placement.fleet_bound import FleetBound, layer_bound, with_dual
from optimizer.placement.fleet_columns import time_of
from optimizer.placement.fleet_days import with_days
from optimizer.placement.fleet_rules import is_modelled, limits_pools
from optimizer.placement.fleets.model import answer_fleet, bound_of, fleet_columns
from optimizer.placement.holding import due_s
from optimizer.placement.problem import Ints, Problem
from optimizer.placement.units import Counts, FleetCase, no_covers, surcharged

LAYERS, DUAL, DAYS, LONG_DAYS = range(1, 5)
"""How deep a service is asked; of its days twice, with few passes and with the most."""

Answer = TypeVar("Answer", covariant=True)


class Ask(Protocol, Generic[Answer]):
    """A question about one service; ``out_of_time``: the answer may be weaker then."""

    def answer(self, problem: Problem, out_of_time: Callable[[], bool]) -> Answer:
        """What is asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class LayersAsk:
    """The layers of a service."""

    case: FleetCase

    def answer(self, problem: Problem, out_of_time: Callable[[], bool]) -> FleetBound:
        """The bound, for the service's own start alone where that is known."""
        if limits_pools(problem, self.case.service):
            return bound_of(problem, self.case, answer_fleet(problem, self.case, out_of_time=out_of_time))
        return settled(problem, self.case, layer_bound(problem, self.case))


@dataclass(frozen=True, slots=True, eq=False)
class DualAsk:
    """The dual and the covers of a service, of which the layers may be known."""

    case: FleetCase
    known: FleetBound | None

    def answer(self, problem: Problem, out_of_time: Callable[[], bool]) -> FleetBound:
        """The bound with both."""
        known = self.known
        if known is None:
            known = settled(problem, self.case, layer_bound(problem, self.case))
        return with_dual(problem, self.case, known, out_of_time)


@dataclass(frozen=True, slots=True, eq=False)
class DaysAsk:
    """The days of a service that has its layers, of which a fleet costs ``fleet_usd``, in so many passes."""

    case: FleetCase
    known: FleetBound
    fleet_usd: float
    passes: int

    def answer(self, problem: Problem, out_of_time: Callable[[], bool]) -> FleetBound:
        """The bound with them, and with the covers of both."""
        return with_days(problem, self.case, self.known, self.fleet_usd, self.passes, out_of_time)


@dataclass(frozen=True, slots=True, eq=False)
class PricedAnswer:
    """``usd``: least cost at the prices, placed; ``offers``: how many it may be spread over. ``used`` [V] and
    ``counts`` [M, V]: units of the covers of its dual. ``is_exact``: asking deeper adds nothing."""

    usd: float
    offers: int
    used: Ints
    counts: Counts
    is_exact: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class PricedAsk:
    """The same at prices of scarcity (USD per node-hour by offer), as deep as asked: the layers, the dual, or
    the days of a service of which a fleet costs ``fleet_usd`` there, in so many passes.

    ``known``: what it costs without them; where that is nothing, the layers are asked first.
    """

    case: FleetCase
    known: FleetBound
    usd_per_node_hour: tuple[tuple[int, float], ...]
    depth: int
    fleet_usd: float = np.inf
    passes: int = 0

    def answer(self, problem: Problem, out_of_time: Callable[[], bool]) -> PricedAnswer:
        """The least cost, with what its dual met."""
        if limits_pools(problem, self.case.service):
            return self._from_model(problem, out_of_time)
        case = surcharged(self.case, dict(self.usd_per_node_hour))
        layered = self.depth == LAYERS or self.known.met is None or not self.known.feasible
        bound = layer_bound(problem, case) if layered else self.known.at_prices(case.units)
        if self.depth == DUAL:
            bound = with_dual(problem, case, bound, out_of_time)
        elif self.depth >= DAYS:
            bound = with_days(problem, case, bound, self.fleet_usd, self.passes, out_of_time)
        usd = bound.from_due(own_due_s(problem, case, bound))
        used = np.flatnonzero(bound.covers.any(axis=0))
        offers = len(np.unique(case.units.offer))
        return PricedAnswer(usd, offers, used, bound.covers[:, used])

    def _from_model(self, problem: Problem, out_of_time: Callable[[], bool]) -> PricedAnswer:
        prices = dict(self.usd_per_node_hour)
        found = answer_fleet(problem, self.case, prices=prices, out_of_time=out_of_time)
        offers = len(np.unique(found.case.units.offer))
        return PricedAnswer(found.bound_usd, offers, np.zeros(0, dtype=np.int64), no_covers(), is_exact=True)


@dataclass(frozen=True, slots=True, eq=False)
class FleetsAsk:
    """The best fleets of a service from ``free`` nodes [O], started at its own time."""

    case: FleetCase
    free: Ints

    def answer(self, problem: Problem, out_of_time: Callable[[], bool]) -> list[Column]:
        """Their columns."""
        if is_modelled(problem, self.case.service):
            # The case may already be priced: its units carry the prices.
            found = answer_fleet(
                problem, self.case, self.free, self.case.surcharge_usd, out_of_time=out_of_time
            )
            return list(fleet_columns(problem, found, None))
        return fleets(problem, self.case, self.free, [None], None, 1)


def own_due_s(problem: Problem, case: FleetCase, bound: FleetBound) -> float:
    """When traffic of a service that waits for nothing is due, for a fleet with the slowest start."""
    return due_s(problem, time_of(problem, case, None), False, bound.longest_cold_s)


def settled(problem: Problem, case: FleetCase, bound: FleetBound) -> FleetBound:
    """The bound without its layers, for a service whose start is known: small enough to keep many."""
    if case.service.starts_after is not None:
        return bound
    return bound.only_from(own_due_s(problem, case, bound))
