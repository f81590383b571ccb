"""The relaxation of a service's days over known sets and covers: a linear program whose duals are the next
prices to try.

A *set* stands all day; for each class of hours a *cover* joins it. Units by the hour pay for each rise from
their least to their most use; parts of a day that a commitment is there use up its whole days, one begin or
end for each half of its term. Nothing here has to be exact: ``fleet_days`` alone proves.
"""

from __future__ import annotations

import numpy as np
from ortools.linear_solver import pywraplp

from optimizer.placement.day_case import DayCase
from optimizer.placement.day_prices import DayPrices, shaped_parts
from optimizer.placement.problem import Floats, Ints

USUALLY, ELSE = "use_dual_simplex: true", "use_dual_simplex: false"
DAY_H = 24.0
USED = 1e-7


class DayProgram:
    """Columns join and stay; each solution begins from all of them."""

    def __init__(self, case: DayCase) -> None:
        self.case = case
        self.solver = pywraplp.Solver.CreateSolver("GLOP")
        self.objective = self.solver.Objective()
        self.objective.SetMinimization()
        self.infinity = self.solver.infinity()
        self.one = self.solver.Constraint(1.0, 1.0)
        self.joined_usd = np.where(case.hourly, case.menu.usd, 0.0) + case.menu.surcharge_usd
        self._sets: dict[bytes, tuple[Ints, pywraplp.Variable, list[pywraplp.Constraint]]] = {}
        self._covers: dict[tuple[bytes, int, bytes], tuple[Ints, pywraplp.Variable]] = {}
        self._rises: dict[int, tuple[list[pywraplp.Constraint], list[pywraplp.Constraint]]] = {}
        self._parts: dict[int, list[pywraplp.Constraint]] = {}
        self._terms: dict[int, pywraplp.Constraint] = {}

    def add(self, standing: Ints, covers: Ints) -> None:
        """A set [N] and what joins it [K, N]."""
        name, hours = standing.tobytes(), self.case.classes.hours
        rows = self._set(standing, name)
        for number, counts in enumerate(covers):
            key = name, number, counts.tobytes()
            if key in self._covers:
                continue
            share = self._variable(float(counts @ self.joined_usd * hours[number]))
            self._covers[key] = counts, share
            rows[number].SetCoefficient(share, 1.0)
            for unit in np.flatnonzero(counts):
                count = float(counts[unit])
                if self.case.hourly[unit]:
                    up, down = self._rises_of(int(unit))
                    up[number].SetCoefficient(share, count)
                    down[number].SetCoefficient(share, -count)
                else:
                    self._parts_of(int(unit))[number].SetCoefficient(share, count * float(hours[number]))

    def solve(self) -> float | None:
        """USD of the best mix; None where the solver comes to nothing, and has neither prices nor fleets."""
        onward, anew = pywraplp.MPSolverParameters(), pywraplp.MPSolverParameters()
        anew.SetIntegerParam(anew.INCREMENTALITY, anew.INCREMENTALITY_OFF)
        for parameters, way in ((USUALLY, onward), (ELSE, anew)):
            self.solver.SetSolverSpecificParametersAsString(parameters)
            if self.solver.Solve(way) == pywraplp.Solver.OPTIMAL:
                return float(self.objective.Value())
        return None

    def prices(self, before: DayPrices) -> DayPrices:
        """The duals; what no column uses is charged where it would be worth most, or as ``before``."""
        case, hours = self.case, self.case.classes.hours
        hourly = case.share.near(case.part * np.maximum(self._worth(), 1e-9)[None, :])
        for unit, (up, down) in self._rises.items():
            over = np.array(
                [low.dual_value() - high.dual_value() for high, low in zip(up, down, strict=True)]
            )
            hourly[unit] = np.maximum(case.menu.usd[unit] + over / hours, 0.0)
        place = {int(unit): number for number, unit in enumerate(case.termed)}
        off = before.off.copy()
        for unit, row in self._terms.items():
            off[place[unit]] = -row.dual_value()
        off = np.clip(off, 0.0, case.menu.usd[case.termed])
        part = shaped_parts(case, off)
        for unit, rows in self._parts.items():
            part[place[unit]] = np.maximum([-row.dual_value() for row in rows], 1e-9)
        return DayPrices(hourly, off, part)

    def fleets(self) -> list[Ints]:
        """Sets with what joins them in some hour, of the best mix [N] each."""
        live = {name: counts for name, (counts, share, _) in self._sets.items() if _used(share)}
        joined = [
            live[name] + counts
            for (name, _, _), (counts, share) in self._covers.items()
            if name in live and _used(share)
        ]
        return [counts for counts in (*live.values(), *joined) if counts.any()]

    def _worth(self) -> Floats:
        """USD an hour [K] that the mix pays for each class of hours."""
        worth = np.zeros(len(self.case.needs))
        for _, share, rows in self._sets.values():
            if _used(share):
                worth += share.solution_value() * np.array([row.dual_value() for row in rows])
        found: Floats = worth / self.case.classes.hours
        return found

    def _set(self, standing: Ints, name: bytes) -> list[pywraplp.Constraint]:
        if name in self._sets:
            return self._sets[name][2]
        case = self.case
        usd = np.where(case.owed, case.menu.whole_usd, (case.menu.usd + case.menu.surcharge_usd) * case.hours)
        share = self._variable(float(standing @ usd))
        self.one.SetCoefficient(share, 1.0)
        rows = [self.solver.Constraint(0.0, 0.0) for _ in case.needs]
        for row in rows:
            row.SetCoefficient(share, -1.0)
        for unit in np.flatnonzero(standing):
            if not case.owed[unit]:
                self._term_of(int(unit)).SetCoefficient(share, -float(standing[unit]) * case.hours)
        self._sets[name] = standing, share, rows
        return rows

    def _rises_of(self, unit: int) -> tuple[list[pywraplp.Constraint], list[pywraplp.Constraint]]:
        """Use of a unit by the hour in each class is at most its most, and at least its least."""
        if unit not in self._rises:
            start = float(self.case.share.start_usd[unit] * self.case.classes.starts)
            most, least = self._variable(start), self._variable(-start)
            up, down = self._rows(), self._rows()
            for high, low in zip(up, down, strict=True):
                high.SetCoefficient(most, -1.0)
                low.SetCoefficient(least, 1.0)
            self._rises[unit] = up, down
        return self._rises[unit]

    def _term_of(self, unit: int) -> pywraplp.Constraint:
        """Begins and ends of a commitment need days that it stands; such a day may also be idle."""
        if unit not in self._terms:
            self._terms[unit] = self.solver.Constraint(-self.infinity, 0.0)
            idle = self._variable(DAY_H * float(self.case.menu.usd[unit]))
            self._terms[unit].SetCoefficient(idle, -DAY_H)
        return self._terms[unit]

    def _parts_of(self, unit: int) -> list[pywraplp.Constraint]:
        """Hours of a part of a day in which a commitment is used are hours in which it is there."""
        if unit in self._parts:
            return self._parts[unit]
        menu, of = self.case.menu, self.case.usual.of
        term, rows = self._term_of(unit), self._rows()
        for begin, end in self._quiet_times():
            there = np.concatenate((of[:begin], of[end:]))
            events = (begin > 0) + (end < len(of))
            part = self._variable(float(menu.usd[unit]) * len(there))
            term.SetCoefficient(part, events * float(menu.term_h[unit]) / 2 - len(there))
            for number, count in zip(*np.unique(there, return_counts=True), strict=True):
                rows[int(number)].SetCoefficient(part, -float(count))
        self._parts[unit] = rows
        return rows

    def _quiet_times(self) -> list[tuple[int, int]]:
        """Hours of a usual day to be away: all below some need, the first so many, the last so many."""
        needs = self.case.needs[self.case.usual.of]
        hours = len(needs)
        found = {(0, end) for end in range(1, hours)} | {(begin, hours) for begin in range(1, hours)}
        for need in np.unique(needs):
            low = np.flatnonzero(needs <= need)
            found.add((int(low[0]), int(low[-1]) + 1))
        return sorted(found - {(0, hours)})

    def _variable(self, usd: float) -> pywraplp.Variable:
        variable = self.solver.NumVar(0.0, self.infinity, "")
        self.objective.SetCoefficient(variable, usd)
        return variable

    def _rows(self) -> list[pywraplp.Constraint]:
        return [self.solver.Constraint(-self.infinity, 0.0) for _ in self.case.needs]


def _used(share: pywraplp.Variable) -> bool:
    return bool(share.solution_value() > USED)
