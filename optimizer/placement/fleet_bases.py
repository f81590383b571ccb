"""What a fleet should commit to: units with a minimum term, judged with the cheapest rest by the hour.

A *base* is a set of such units, held and paid throughout. What it leaves of each level of demand is covered
by units by the hour (``gross_cover``), and whatever of that joins from one hour to the next pays a start.
From known bases units join, leave or are exchanged while that estimate falls; exact fleets are then built
on the best (``fleet_path``).
N units that commit, V levels of demand, S largest replicas, C bases that are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.placement.columns import Column
from optimizer.placement.cover import GRID
from optimizer.placement.fleet_columns import time_of
from optimizer.placement.fleet_menu import build_menu
from optimizer.placement.fleet_path import committed, fleet_path, path_columns
from optimizer.placement.net_cover import gross_cover
from optimizer.placement.problem import Bools, Floats, Ints, Problem
from optimizer.placement.units import HOUR_S, FleetCase, only_units

Base = tuple[int, ...]

MOST_LEVELS = 96
MOST_SIZES = 8
BEAM = 4
MOST_KNOWN = 3
MOST_TRIED = 2
WORTH = 0.997
NESTED = 2
MOST_EXPANDED = 32
EDGE = 1e-9
UNMET_USD = 1e12


def better_based(
    problem: Problem,
    case: FleetCase,
    free: Ints,
    columns: Sequence[Column],
    ends: Sequence[float | None],
    nominal: float | None,
) -> list[Column]:
    """Fleets on the bases that look cheaper than the best of ``columns`` for the end ``nominal``."""
    now = sorted((c for c in columns if c.after_s == nominal), key=lambda column: column.total_cents)
    first_hour = time_of(problem, case, nominal).first_hour
    if not now or first_hour >= len(case.demand):
        return []
    known = {tuple(sorted(committed(problem, case, column))) for column in now[:MOST_KNOWN]}
    most = now[0].total_cents / 100 * WORTH
    found: list[Column] = []
    tried: set[int] = set()
    for usd, base in _Search(problem, case, case.demand[first_hour:]).run(known):
        if usd >= most or len(tried) >= MOST_TRIED:
            break
        # Configurations of one offer, and offers at one price, differ in nothing that the estimate sees.
        if base in known or round(usd * 100) in tried:
            continue
        tried.add(round(usd * 100))
        path = fleet_path(problem, case, free, base, NESTED)
        if path is not None:
            found += path_columns(problem, path, ends)
    return found


class _Rest:
    """The least USD an hour of units by the hour beside a base: ``beside`` [S, GRID + 1] for each need.

    ``UNMET_USD`` where none can meet it.
    """

    def __init__(self, case: FleetCase, hourly: Bools, sizes: Floats, step: float) -> None:
        self.sizes, self.step = sizes, step
        alone = np.stack([self._cover(case, hourly & (case.units.largest <= size)) for size in sizes])
        rows = np.arange(GRID + 1)
        self.beside = alone.copy()
        for own, size in enumerate(sizes):
            for larger in range(own + 1, len(sizes)):
                more = int(np.ceil(case.spare * (sizes[larger] - size) / step - EDGE))
                # A larger replica among the rest raises what is spared, whatever else stands.
                reached = np.where(rows + more > GRID, np.inf, alone[larger][np.minimum(rows + more, GRID)])
                shifted = np.where(rows > 0, reached, 0.0)
                self.beside[own] = np.minimum(self.beside[own], shifted)
        self.beside = np.minimum(self.beside, UNMET_USD)

    def _cover(self, case: FleetCase, inside: Bools) -> Floats:
        if not inside.any():
            return np.where(np.arange(GRID + 1) > 0, np.inf, 0.0)
        return gross_cover(only_units(case, inside), self.step, 0)


@dataclass(frozen=True, slots=True, eq=False)
class _Bases:
    """Bases side by side [C]: USD for the whole time, gross rate, largest replica and number of zones."""

    usd: Floats
    rate: Floats
    largest: Floats
    zones: Ints


class _Search:
    """The units that may commit [N], and the walk over sets of them."""

    def __init__(self, problem: Problem, case: FleetCase, demand: Floats) -> None:
        units = case.units
        menu = build_menu(problem, case, float(len(demand)))
        self.lead_h = float(np.median(menu.lead_h[menu.term_h <= 1])) if (menu.term_h <= 1).any() else 0.0
        menu = menu.take(menu.term_h > 1)
        self.case, self.unit = case, menu.unit
        self.usd, self.zone = menu.whole_usd, units.zone[menu.unit]
        self.rate, self.largest = units.requests_per_s[menu.unit], units.largest[menu.unit]
        self.most = units.most[menu.unit]
        self.place = {int(unit): place for place, unit in enumerate(menu.unit)}
        self.levels, self.hours, self.rises, self.times = _levels(demand)
        hourly = problem.table.min_s[units.offer] <= HOUR_S
        top = float(demand.max()) * (2 if case.spare else 1)
        self.rest = _Rest(case, hourly, self._sizes(), max(top, 1e-12) / GRID)

    def _sizes(self) -> Floats:
        """Largest replicas that are told apart; one where nothing is spared."""
        sizes = np.unique(self.case.units.largest)
        if not self.case.spare:
            return sizes[-1:]
        return np.array([group[-1] for group in np.array_split(sizes, min(MOST_SIZES, len(sizes)))])

    def run(self, known: Iterable[Base]) -> list[tuple[float, Base]]:
        """Bases with their estimates, the cheapest first: those not expanded yet are, a few at a time."""
        if not len(self.unit):
            return []
        seen = {base: usd for base, usd in self._judged([(), *known])}
        expanded: set[Base] = set()
        while len(expanded) < MOST_EXPANDED:
            ranked = sorted((usd, base) for base, usd in seen.items())
            open_ = [base for _, base in ranked[: 2 * BEAM] if base not in expanded][:BEAM]
            if not open_:
                break
            for base in open_:
                expanded.add(base)
                seen.update(self._neighbours(base))
        return sorted((usd, base) for base, usd in seen.items())

    def _judged(self, bases: Iterable[Base]) -> Iterator[tuple[Base, float]]:
        """Bases of units that are on the menu, with their estimates."""
        for base in dict.fromkeys(bases):
            places = [self.place[unit] for unit in base if unit in self.place]
            if len(places) == len(base):
                yield base, float(self._estimate(self._with(places, np.zeros(0, dtype=np.int64)))[0])

    def _neighbours(self, base: Base) -> dict[Base, float]:
        """The cheapest bases that are one unit more, one less, or one exchanged."""
        places = [self.place[unit] for unit in base]
        found: dict[Base, float] = {}
        for leaving in [None, *dict.fromkeys(places)]:
            left = list(places)
            if leaving is not None:
                left.remove(leaving)
            room = np.flatnonzero(np.bincount(left, minlength=len(self.unit)) < self.most)
            usd = self._estimate(self._with(left, room))
            for at in np.argsort(usd, kind="stable")[:BEAM]:
                joining = [int(room[at - 1])] if at else []
                units = tuple(sorted(int(self.unit[place]) for place in left + joining))
                found[units] = float(usd[at])
        return found

    def _with(self, places: list[int], joining: Ints) -> _Bases:
        """The base at ``places`` as it is, then with each of ``joining``."""
        one = np.array(places, dtype=np.int64)
        zones = np.unique(self.zone[one])
        largest = float(self.largest[one].max(initial=0.0))
        return _Bases(
            np.append(0.0, self.usd[joining]) + float(self.usd[one].sum()),
            np.append(0.0, self.rate[joining]) + float(self.rate[one].sum()),
            np.maximum(np.append(0.0, self.largest[joining]), largest),
            len(zones) + np.append(0, ~np.isin(self.zone[joining], zones)),
        )

    def _estimate(self, bases: _Bases) -> Floats:
        """USD [C] of the bases with the cheapest rest at each level of demand."""
        rest, spare = self.rest, self.case.spare
        size = np.minimum(np.searchsorted(rest.sizes, bases.largest), len(rest.sizes) - 1)
        net = bases.rate - spare * rest.sizes[size]
        needs = np.ceil((self.levels[None, :] - net[:, None]) / rest.step - EDGE).astype(np.int64)
        least = (bases.zones < self.case.zones).astype(np.int64)
        hourly = rest.beside[size[:, None], np.clip(needs, least[:, None], GRID)]
        joining = np.maximum(0.0, hourly[:, self.rises[:, 1]] - hourly[:, self.rises[:, 0]])
        usd: Floats = bases.usd + hourly @ self.hours + self.lead_h * (joining @ self.times)
        return usd


def _levels(demand: Floats) -> tuple[Floats, Floats, Ints, Floats]:
    """Levels of demand [V], ascending, each the highest of those that it stands for, and their hours.

    And the rises from one hour to the next, [R, 2] of levels, and how often each happens.
    """
    distinct, inverse = np.unique(demand, return_inverse=True)
    groups = np.array_split(np.arange(len(distinct)), min(MOST_LEVELS, len(distinct)))
    level = np.repeat(np.arange(len(groups)), [len(group) for group in groups])[inverse]
    steps = np.stack((level[:-1], level[1:]), axis=1)
    rises, times = np.unique(steps[steps[:, 0] < steps[:, 1]], axis=0, return_counts=True)
    highest = np.array([distinct[group[-1]] for group in groups])
    return highest, np.bincount(level).astype(np.float64), rises, times.astype(np.float64)
