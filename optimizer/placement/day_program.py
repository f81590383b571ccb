"""The relaxation of a service's days over known sets and covers: a linear program whose duals are the next
prices to try.

A *set* stands all day; for each class of hours a *cover* joins it. Units by the hour pay for each rise from
their least to their most use; parts of a day that a commitment is there use up its whole days, one begin or
end for each half of its term. Units of one kind of node, configuration and term are a *group*, which shares
these rows, each unit by its price: what the program says of one then holds for its likes, which it may not
have met. Nothing here has to be exact: ``fleet_days`` alone proves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

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
        alike = np.stack((case.menu.kind.astype(np.float64), case.menu.term_h))
        _, first, self.group = np.unique(alike, axis=1, return_index=True, return_inverse=True)
        self.first: Ints = first
        self.absences = _absences(case)
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
            for group, usd in self._usd_of(counts):
                if self.case.hourly[self.first[group]]:
                    up, down = self._rises_of(group)
                    up[number].SetCoefficient(share, usd)
                    down[number].SetCoefficient(share, -usd)
                else:
                    self._parts_of(group)[number].SetCoefficient(share, usd * float(hours[number]))

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
        for group, (up, down) in self._rises.items():
            over = np.array(
                [low.dual_value() - high.dual_value() for high, low in zip(up, down, strict=True)]
            )
            units = np.flatnonzero(self.group == group)
            hourly[units] = case.menu.usd[units, None] * np.maximum(1.0 + over / hours, 0.0)
        usd, groups = case.menu.usd[case.termed], self.group[case.termed]
        off = before.off.copy()
        for group, row in self._terms.items():
            off[groups == group] = -row.dual_value() * usd[groups == group]
        off = np.clip(off, 0.0, usd)
        part = shaped_parts(case, off)
        for group, rows in self._parts.items():
            shape = np.maximum([-row.dual_value() for row in rows], 1e-9)
            part[groups == group] = usd[groups == group, None] * shape
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
        for group, usd_an_hour in self._usd_of(np.where(case.owed, 0, standing)):
            self._term_of(group).SetCoefficient(share, -usd_an_hour * case.hours)
        self._sets[name] = standing, share, rows
        return rows

    def _usd_of(self, counts: Ints) -> Iterator[tuple[int, float]]:
        """USD an hour of each group in counts [N]."""
        found: dict[int, float] = {}
        for unit in np.flatnonzero(counts).tolist():
            group = int(self.group[unit])
            found[group] = found.get(group, 0.0) + float(counts[unit] * self.case.menu.usd[unit])
        yield from sorted(found.items())

    def _rises_of(self, group: int) -> tuple[list[pywraplp.Constraint], list[pywraplp.Constraint]]:
        """Use of a group by the hour in each class is at most its most, and at least its least."""
        if group not in self._rises:
            start_h = float(self.case.menu.lead_h[self.first[group]] * self.case.classes.starts)
            most, least = self._variable(start_h), self._variable(-start_h)
            up, down = self._rows(), self._rows()
            for high, low in zip(up, down, strict=True):
                high.SetCoefficient(most, -1.0)
                low.SetCoefficient(least, 1.0)
            self._rises[group] = up, down
        return self._rises[group]

    def _term_of(self, group: int) -> pywraplp.Constraint:
        """Begins and ends of commitments need days that they stand; such a day may also be idle."""
        if group not in self._terms:
            self._terms[group] = self.solver.Constraint(-self.infinity, 0.0)
            idle = self._variable(DAY_H)
            self._terms[group].SetCoefficient(idle, -DAY_H)
        return self._terms[group]

    def _parts_of(self, group: int) -> list[pywraplp.Constraint]:
        """Hours of a part of a day in which commitments are used are hours in which they are there."""
        if group in self._parts:
            return self._parts[group]
        term_h = float(self.case.menu.term_h[self.first[group]])
        term, rows = self._term_of(group), self._rows()
        for events, there in self.absences:
            there_h = there.total()
            part = self._variable(float(there_h))
            term.SetCoefficient(part, events * term_h / 2 - there_h)
            for number, count in there.items():
                rows[number].SetCoefficient(part, -float(count))
        self._parts[group] = rows
        return rows

    def _variable(self, usd: float) -> pywraplp.Variable:
        variable = self.solver.NumVar(0.0, self.infinity, "")
        self.objective.SetCoefficient(variable, usd)
        return variable

    def _rows(self) -> list[pywraplp.Constraint]:
        return [self.solver.Constraint(-self.infinity, 0.0) for _ in self.case.needs]


def _absences(case: DayCase) -> list[tuple[int, Counter[int]]]:
    """Parts of a usual day to be there: how often they begin or end, and hours of each class.

    Away are all hours below some need, the first so many, or the last so many.
    """
    of = case.usual.of.tolist()
    needs, hours = case.needs[case.usual.of], len(of)
    found = {(0, end) for end in range(1, hours)} | {(begin, hours) for begin in range(1, hours)}
    for need in np.unique(needs):
        low = np.flatnonzero(needs <= need)
        found.add((int(low[0]), int(low[-1]) + 1))
    return [
        ((begin > 0) + (end < hours), Counter(of[:begin] + of[end:]))
        for begin, end in sorted(found - {(0, hours)})
    ]


def _used(share: pywraplp.Variable) -> bool:
    return bool(share.solution_value() > USED)
