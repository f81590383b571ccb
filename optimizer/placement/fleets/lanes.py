"""Which kind of unit should take which sizes of request, where a gateway can tell them apart.

Load adds up (``optimizer.performance.serving.mixes``): a unit that serves ``r`` requests/s of a size alone
is busy for 1 / r of a second with each. A lane is the part of each size that goes to one kind of unit, the
same in every hour; as many units stand in it as its load asks for, and its spares. That is Mélange's
programme (arXiv 2404.14527) with parts of any size in place of slices, over levels of demand in place of
one, and with redundancy: a small MIP. U kinds of unit, S sizes of request, L levels of demand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from ortools.linear_solver import pywraplp

from optimizer.placement.problem.problem import Floats, Ints

MOST_LANES = 4
LEAST_PART = 1e-7
LEAST_ROUTE = 1e-3
"""No gateway needs a route for a smaller part of a size, if the units that stand can do without it."""
MARGIN = 1e-5
"""The solver may pass a limit by a millionth, and least parts are left out; the load of a lane must not."""
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class LaneMenu:
    """``requests_per_s`` [U, S] of a unit with one size alone (0: not served), ``usd_per_hour`` [U], ``most``
    [U]; ``spare_units`` [U] over the load and at least ``least_units`` in every lane."""

    requests_per_s: Floats
    usd_per_hour: Floats
    most: Ints
    spare_units: Floats
    least_units: int = 1

    def __len__(self) -> int:
        return len(self.usd_per_hour)


@dataclass(frozen=True, slots=True, eq=False)
class LaneDemand:
    """``requests_per_s`` [L] for so many ``hours`` [L], in ``shares`` [S] of sizes that sum to 1."""

    requests_per_s: Floats
    hours: Floats
    shares: Floats


def find_lanes(menu: LaneMenu, demand: LaneDemand, limit_s: float) -> Floats | None:
    """Parts [U, S] of each size that go to each kind of unit, at least cost; None where none was found."""
    programme = _Programme(menu, demand)
    programme.solver.SetTimeLimit(max(1, round(limit_s * 1000)))
    if programme.solver.Solve() not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
        return None
    parts, units = programme.parts(LEAST_PART), programme.unit_counts()
    tidy = programme.parts(LEAST_ROUTE)
    busy = (tidy * _loads(menu, demand)).sum(axis=1)[:, None] * demand.requests_per_s
    needed = busy + np.where(tidy.any(axis=1), menu.spare_units, 0.0)[:, None]
    return tidy if (needed <= units * (1 + ROUNDING)).all() else parts


def _loads(menu: LaneMenu, demand: LaneDemand) -> Floats:
    """Units [U, S] that are busy with one request/s of the mix, for each size of it; 0 where not served."""
    loads = np.zeros_like(menu.requests_per_s)
    np.divide(demand.shares[None, :], menu.requests_per_s, out=loads, where=menu.requests_per_s > 0)
    return loads


class _Programme:
    """Parts of sizes, and whole units of each kind that carry them at every level."""

    def __init__(self, menu: LaneMenu, demand: LaneDemand) -> None:
        self.menu, self.demand = menu, demand
        self.solver = pywraplp.Solver.CreateSolver("SCIP")
        self.solver.Objective().SetMinimization()
        self.part: dict[tuple[int, int], pywraplp.Variable] = {}
        self.units: list[list[pywraplp.Variable]] = []
        self._served = [self.solver.Constraint(1.0, 1.0) for _ in demand.shares]
        self._open = self._at_most(float(MOST_LANES))
        for u, loads in enumerate(_loads(menu, demand) * (1 + MARGIN)):
            self._add_kind(u, loads)

    def _at_most(self, limit: float) -> pywraplp.Constraint:
        return self.solver.Constraint(-self.solver.infinity(), limit)

    def _add_kind(self, u: int, loads: Floats) -> None:
        """A kind of unit, busy for ``loads`` [S] of a second with one request/s of the mix."""
        menu, demand = self.menu, self.demand
        is_open = self.solver.BoolVar("")
        self._open.SetCoefficient(is_open, 1.0)
        taken = self._at_most(0.0)
        taken.SetCoefficient(is_open, -1.0)
        sizes = np.flatnonzero(loads).tolist()
        for s in sizes:
            self.part[u, s] = self.solver.NumVar(0.0, 1.0, "")
            self._served[s].SetCoefficient(self.part[u, s], 1.0)
            taken.SetCoefficient(self.part[u, s], float(demand.shares[s]))
        self.units.append([self.solver.IntVar(0, int(menu.most[u]), "") for _ in demand.hours])
        for count, rate, hours in zip(self.units[u], demand.requests_per_s, demand.hours, strict=True):
            self.solver.Objective().SetCoefficient(count, float(hours * menu.usd_per_hour[u]))
            enough, least = self._at_most(0.0), self._at_most(0.0)
            enough.SetCoefficient(count, -1.0)
            enough.SetCoefficient(is_open, float(menu.spare_units[u]))
            for s in sizes:
                enough.SetCoefficient(self.part[u, s], float(rate * loads[s]))
            least.SetCoefficient(count, -1.0)
            least.SetCoefficient(is_open, float(menu.least_units))

    def parts(self, least: float) -> Floats:
        """The solution [U, S] without smaller parts than ``least``."""
        found = np.zeros_like(self.menu.requests_per_s)
        for place, part in self.part.items():
            found[place] = part.solution_value()
        found[found < least] = 0.0
        parts: Floats = found / found.sum(axis=0)
        return parts

    def unit_counts(self) -> Ints:
        """Units [U, L] that stand at each level of demand."""
        found: Ints = np.array([[round(count.solution_value()) for count in row] for row in self.units])
        return found
