"""Integer program for lanes: which kind of unit serves which request sizes, if a gateway can tell these
apart.

Loads add up (``optimizer.performance.serving.mixes``): if a unit serves r requests/s of one size alone, each
such request occupies it for 1/r seconds. A lane is the part of each size that one kind of unit receives,
equal in every hour. It has as many units as its load requires, plus spares. This is the program of Mélange
(arXiv 2404.14527) with continuous parts instead of slices, several levels of demand, and redundancy. U kinds
of unit, S request sizes, L levels of demand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from ortools.linear_solver import pywraplp

from optimizer.placement.problem.problem import Floats, Ints
from optimizer.placement.runtime.tuning import TUNING

LEAST_PART = 1e-7
MARGIN = 1e-5
"""Safety margin on loads: the solver tolerates a violation of 1e-6, and tiny parts are dropped."""
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class LaneOptions:
    """Kinds of unit: ``requests_per_s`` [U, S] with one size alone (0: not served), ``usd_per_hour`` [U],
    ``most`` [U].

    Every lane has ``spare_units`` [U] beyond its load, and at least ``least_units``, unless there is no load.
    """

    requests_per_s: Floats
    usd_per_hour: Floats
    most: Ints
    spare_units: Floats
    least_units: int = 1

    def __len__(self) -> int:
        return len(self.usd_per_hour)


@dataclass(frozen=True, slots=True, eq=False)
class LaneDemand:
    """``requests_per_s`` [L] for ``hours`` [L] each; ``shares`` [S] of the sizes sum to 1."""

    requests_per_s: Floats
    hours: Floats
    shares: Floats


def find_lanes(options: LaneOptions, demand: LaneDemand, limit_s: float) -> Floats | None:
    """Parts [U, S] of each size that each kind of unit receives, at least cost; None if no solution was
    found.
    """
    programme = _Programme(options, demand)
    programme.solver.SetTimeLimit(max(1, round(limit_s * 1000)))
    if programme.solver.Solve() not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
        return None
    parts, units = programme.parts(LEAST_PART), programme.unit_counts()
    tidy = programme.parts(TUNING.fleets.least_route_share)
    busy = (tidy * _loads(options, demand)).sum(axis=1)[:, None] * demand.requests_per_s
    spare = np.where(tidy.any(axis=1), options.spare_units, 0.0)[:, None]
    needed = busy + np.where(demand.requests_per_s > 0, spare, 0.0)
    return tidy if (needed <= units * (1 + ROUNDING)).all() else parts


def _loads(options: LaneOptions, demand: LaneDemand) -> Floats:
    """Units [U, S] that one request/s of the mix keeps busy with each size; 0 if not served."""
    loads = np.zeros_like(options.requests_per_s)
    np.divide(demand.shares[None, :], options.requests_per_s, out=loads, where=options.requests_per_s > 0)
    return loads


class _Programme:
    """The integer program: parts of sizes, and whole units of each kind at every level of demand."""

    def __init__(self, options: LaneOptions, demand: LaneDemand) -> None:
        self.options, self.demand = options, demand
        self.solver = pywraplp.Solver.CreateSolver("SCIP")
        self.solver.Objective().SetMinimization()
        self.part: dict[tuple[int, int], pywraplp.Variable] = {}
        self.units: list[list[pywraplp.Variable]] = []
        self._served = [self.solver.Constraint(1.0, 1.0) for _ in demand.shares]
        self._open = self._at_most(float(TUNING.fleets.most_lanes))
        for u, loads in enumerate(_loads(options, demand) * (1 + MARGIN)):
            self._add_kind(u, loads)

    def _at_most(self, limit: float) -> pywraplp.Constraint:
        return self.solver.Constraint(-self.solver.infinity(), limit)

    def _add_kind(self, u: int, loads: Floats) -> None:
        """Adds a kind of unit; one request/s of the mix occupies it for ``loads`` [S] seconds with each
        size.
        """
        options, demand = self.options, self.demand
        is_open = self.solver.BoolVar("")
        self._open.SetCoefficient(is_open, 1.0)
        taken = self._at_most(0.0)
        taken.SetCoefficient(is_open, -1.0)
        sizes = np.flatnonzero(loads).tolist()
        for s in sizes:
            self.part[u, s] = self.solver.NumVar(0.0, 1.0, "")
            self._served[s].SetCoefficient(self.part[u, s], 1.0)
            taken.SetCoefficient(self.part[u, s], float(demand.shares[s]))
        self.units.append([self.solver.IntVar(0, int(options.most[u]), "") for _ in demand.hours])
        for count, rate, hours in zip(self.units[u], demand.requests_per_s, demand.hours, strict=True):
            self.solver.Objective().SetCoefficient(count, float(hours * options.usd_per_hour[u]))
            enough, least = self._at_most(0.0), self._at_most(0.0)
            enough.SetCoefficient(count, -1.0)
            enough.SetCoefficient(is_open, float(options.spare_units[u] if rate > 0 else 0))
            for s in sizes:
                enough.SetCoefficient(self.part[u, s], float(rate * loads[s]))
            least.SetCoefficient(count, -1.0)
            least.SetCoefficient(is_open, float(options.least_units if rate > 0 else 0))

    def parts(self, least: float) -> Floats:
        """The solution [U, S] without parts smaller than ``least``."""
        found = np.zeros_like(self.options.requests_per_s)
        for place, part in self.part.items():
            found[place] = part.solution_value()
        found[found < least] = 0.0
        parts: Floats = found / found.sum(axis=0)
        return parts

    def unit_counts(self) -> Ints:
        """Units [U, L] at each level of demand."""
        found: Ints = np.array([[round(count.solution_value()) for count in row] for row in self.units])
        return found
