"""Questions about one service: its bound, its bound at dual prices, its fleets.

A question is a value, which any process that has the problem can answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from optimizer.placement.fleets.bound import FleetBound
from optimizer.placement.fleets.model import (
    answer_fleet,
    bound_alone,
    bound_of,
    fleet_columns,
    fleets_with_terms,
    is_small,
    termless_fleets,
    varied_fleets,
)
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.problem import Ints, Problem
from optimizer.placement.problem.units import FleetCase

Answer = TypeVar("Answer", covariant=True)


class Ask(Protocol, Generic[Answer]):
    """A question about one service. After ``out_of_time`` the answer may be weaker."""

    def answer(self, problem: Problem, out_of_time: Callable[[], bool]) -> Answer:
        """Computes the answer."""


@dataclass(frozen=True, slots=True, eq=False)
class BoundAsk:
    """Asks for the lower bound of a service that starts at its own time or after a run.

    ``with_terms``: whether minimum terms are included (None: if the problem is small).
    ``incumbent_usd``: only the bound is needed, of a service that starts at its own time, beside a fleet of
    that cost (inf: none), for which at most ``most_work`` levels are tried (None: the usual number).
    """

    case: FleetCase
    after_s: float | None = None
    with_terms: bool | None = None
    incumbent_usd: float | None = None
    most_work: int | None = None

    def answer(self, problem: Problem, out_of_time: Callable[[], bool]) -> FleetBound:
        """The bound, valid for this start and for others."""
        if self.incumbent_usd is not None:
            return bound_alone(
                problem, self.case, out_of_time, with_terms=bool(self.with_terms),
                incumbent_usd=self.incumbent_usd, most_work=self.most_work,
            )  # fmt: skip
        found = answer_fleet(
            problem, self.case, after_s=self.after_s, out_of_time=out_of_time, with_terms=self.with_terms
        )
        return bound_of(problem, self.case, found)


@dataclass(frozen=True, slots=True, eq=False)
class PricedAnswer:
    """``usd``: lower bound at the dual prices if the service is placed; ``offers``: how many offers it may
    use.
    """

    usd: float
    offers: int


@dataclass(frozen=True, slots=True, eq=False)
class PricedAsk:
    """Asks for the lower bound of a service at dual prices of stock (USD per node-hour by offer)."""

    case: FleetCase
    usd_per_node_hour: tuple[tuple[int, float], ...]

    def answer(self, problem: Problem, out_of_time: Callable[[], bool]) -> PricedAnswer:
        """See ``Ask``."""
        prices = dict(self.usd_per_node_hour)
        found = answer_fleet(problem, self.case, prices=prices, out_of_time=out_of_time)
        return PricedAnswer(found.bound_usd, len(np.unique(found.case.units.offer)))


@dataclass(frozen=True, slots=True, eq=False)
class FleetsAsk:
    """Asks for the best fleets of a service from ``free`` nodes [O], started at its own time."""

    case: FleetCase
    free: Ints

    def answer(self, problem: Problem, out_of_time: Callable[[], bool]) -> list[Column]:
        """See ``Ask``."""
        # The case may already carry dual prices in its units.
        found = answer_fleet(problem, self.case, self.free, self.case.surcharge_usd, out_of_time=out_of_time)
        columns = list(fleet_columns(problem, found, None))
        if not is_small(problem):
            columns += termless_fleets(problem, self.case, self.free, [None])
            columns += fleets_with_terms(problem, self.case, [None], self.free)
        return columns


@dataclass(frozen=True, slots=True, eq=False)
class QuickFleetsAsk:
    """Asks for coarse fleets of a service, which take a fraction of the time and prove nothing."""

    case: FleetCase
    free: Ints

    def answer(self, problem: Problem, out_of_time: Callable[[], bool]) -> list[Column]:
        """See ``Ask``."""
        return varied_fleets(problem, self.case, self.free, [None])
