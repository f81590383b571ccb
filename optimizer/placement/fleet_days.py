"""The least that a fleet costs, day by day: a set of units stands all day, and others join by the hour.

Hours alone (``fleet_dual``) let half a commitment serve one hour and the other half the next. Here what
stands on a day stands in all its hours, so commitments are whole; what they cost is charged by the day
(``day_prices``), and the cheapest set of each day with the cheapest covers beside it (``day_knapsack``) sums
to a lower bound, whatever the prices. The prices come from a linear program over the sets and covers found
so far (``day_program``), drawn towards those that proved most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from optimizer.placement.day_case import DAY_H, Block, DayCase, build_day_case
from optimizer.placement.day_knapsack import Ways, beside_set, cheapest_days, cheapest_sets, set_of
from optimizer.placement.day_prices import DayPrices, first_prices, tightened, tried_parts
from optimizer.placement.day_program import DayProgram
from optimizer.placement.fleet_bound import FleetBound, held_hours
from optimizer.placement.fleet_dual import FleetDual, prices_by_hour
from optimizer.placement.hour_prices import start_prices
from optimizer.placement.problem import Floats, Ints, Problem
from optimizer.placement.stopwatch import never
from optimizer.placement.units import Counts, FleetCase, in_stock

MOST_PASSES, FEWEST_PASSES, PASSES_OVER_ALL = 60, 12, 600
LEAST_DAYS = 2
SETS_A_PASS = 9
FIRST_SETS = 12
APART, FIRST_APART = 5 / 1024, 1 / 24
FIRST_DEARER = 1.25
FIRST_STEP, LEAST_STEP, MOST_STEP = 0.4, 0.15, 0.7
LONGER, SHORTER = 0.1, 0.7
PROVEN = 0.001
NEVER_USD = 1e6


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """What days cost at some prices: ``usd`` [J + 1, 2, C + 1] by what stands, and how that came about."""

    case: DayCase
    needs: Ints
    gross: Ints
    stand: Ways
    joined_usd: Floats
    join: Ways
    usd: Floats

    @property
    def least_usd(self) -> float:
        """Of the cheapest."""
        return float(self.usd.min())

    def apart(self, most: int, share: float, most_usd: float) -> Iterator[tuple[Ints, Ints]]:
        """The cheapest sets [N] that differ by that share of the peak, each with what joins it [K, N]."""
        usd, width = self.usd.copy(), max(1, int(share * self.usd.shape[2]))
        for _ in range(most):
            size, spread, steps = (int(at) for at in np.unravel_index(int(usd.argmin()), usd.shape))
            if not usd[size, spread, steps] <= most_usd:
                return
            yield self._read(size, spread, steps)
            usd[:, :, max(0, steps - width) : steps + width + 1] = np.inf

    def _read(self, size: int, spread: int, steps: int) -> tuple[Ints, Ints]:
        case, stands = self.case, size < self.case.sizes
        standing = np.zeros(len(case.menu), dtype=np.int64)
        gross = self.needs
        if stands:
            standing[case.standing.at] = set_of(self.stand, case.standing.units, size, bool(spread), steps)
            gross = self.gross[:, size] - steps
        joining = np.zeros((len(self.needs), len(case.menu)), dtype=np.int64)
        joining[:, case.joining.at] = beside_set(
            self.join,
            case.joining.units,
            self.joined_usd,
            size if stands else -1,
            self.needs - steps,
            gross,
            1 - spread,
            case.spared,
        )
        return standing, joining


def with_days(
    problem: Problem,
    case: FleetCase,
    known: FleetBound,
    fleet_usd: float = np.inf,
    passes: int = MOST_PASSES,
    out_of_time: Callable[[], bool] = never,
) -> FleetBound:
    """A bound with the days as well, where the service's own time is at least two of them.

    ``fleet_usd``: what a fleet costs; ``passes`` at most.
    """
    time = held_hours(problem, case, known)
    if time is None or len(time[2]) < LEAST_DAYS * DAY_H:
        return known
    due, first, lengths = time
    days = days_bound(problem, case, first, lengths, fleet_usd, passes, out_of_time)
    covers = (
        np.unique(np.concatenate((known.covers, days.covers)), axis=0) if known.covers.size else days.covers
    )
    return replace(known, due_s=due, due_usd=max(days.least_usd, known.from_due(due)), covers=covers)


def passes_for(part: float) -> int:
    """How long a search may be for a part of all that is unproven."""
    return min(MOST_PASSES, max(FEWEST_PASSES, round(PASSES_OVER_ALL * part)))


def days_bound(
    problem: Problem,
    case: FleetCase,
    first_hour: int,
    lengths: Floats,
    fleet_usd: float = np.inf,
    passes: int = MOST_PASSES,
    out_of_time: Callable[[], bool] = never,
) -> FleetDual:
    """The bound of a service due from ``first_hour``, with the ``lengths`` [H] that its hours are held.

    The search ends where what is proven comes close to ``fleet_usd``, what a fleet costs. When
    ``out_of_time``, the prices stay as they are by then.
    """
    days = build_day_case(problem, case, first_hour, lengths)
    search = _Search(days, first_prices(days, prices_by_hour(problem, case, first_hour, lengths)))
    search.run(fleet_usd, passes, out_of_time)
    return FleetDual(certified_usd(days, search.best), _covers(problem, case, search))


class _Search:
    """Prices that prove more and more, of which the ``best`` stay; ``fleets`` of the last mix."""

    def __init__(self, case: DayCase, first: DayPrices) -> None:
        self.case = case
        self.program = DayProgram(case)
        self.best = first
        self.best_usd = -np.inf
        self.fleets: list[Ints] = []

    def run(self, fleet_usd: float, passes: int, out_of_time: Callable[[], bool]) -> None:
        """Passes of the program and of looks at its prices."""
        asked, step = self.best, FIRST_STEP
        self._seed()
        hoped = self.program.solve()
        for _ in range(passes):
            if hoped is None:
                break
            look = _look(self.case, asked)
            if look.least_usd > self.best_usd:
                self.best, self.best_usd = asked, look.least_usd
                step = min(MOST_STEP, step + LONGER)
            else:
                step = max(LEAST_STEP, step * SHORTER)
            late = False
            for standing, joining in look.apart(SETS_A_PASS, APART, max(look.least_usd, hoped)):
                self.program.add(standing, joining)
                late = late or out_of_time()
            hoped = self.program.solve()
            if hoped is None or late or not self.best_usd < min(hoped, fleet_usd) * (1 - PROVEN):
                break
            asked = self.best.towards(self.program.prices(self.best), step)
        self.fleets = self.program.fleets() if hoped is not None else []

    def _seed(self) -> None:
        """Sets of all sizes, with and without parts of days, so that the program begins with real fleets."""
        dear = replace(self.best, part=np.full_like(self.best.part, NEVER_USD))
        for prices in (self.best, dear):
            look = _look(self.case, prices)
            for standing, joining in look.apart(FIRST_SETS, FIRST_APART, FIRST_DEARER * look.least_usd):
                self.program.add(standing, joining)


def _look(case: DayCase, prices: DayPrices) -> _Look:
    """All hours as one long day."""
    return _priced(case, prices.hourly, prices.off, prices.part, case.classes.hours, slice(None))


def _priced(
    case: DayCase, hourly: Floats, off: Floats, part: Floats, hours: Floats, at: Ints | slice, ends: int = 0
) -> _Look:
    """Days of ``hours`` [Q] of some classes, at the prices [N, Q] and [W, Q] of these.

    ``ends``: how often what stands begins and ends with the whole time.
    """
    menu, total_h = case.menu, float(hours.sum())
    whole = menu.whole_usd * (total_h / case.hours)
    whole[case.termed] = (menu.usd[case.termed] - off + menu.surcharge_usd[case.termed]) * total_h
    whole[case.termed] += off * menu.term_h[case.termed] / 2 * ends
    needs, gross = case.needs[at], np.ascontiguousarray(case.gross[at])
    usd = hourly.copy()
    usd[case.termed] = part
    usd += menu.surcharge_usd[:, None]
    stand_usd, joined_usd = whole[case.standing.at], np.ascontiguousarray(usd[case.joining.at].T)
    stand = cheapest_sets(
        case.standing.units,
        case.standing.heads,
        stand_usd[None],
        np.array([case.steps]),
        case.sizes,
        case.states,
    )
    join = cheapest_sets(case.joining.units, case.joining.heads, joined_usd, case.tops[at], case.sizes, 1)
    found = cheapest_days(
        stand.usd, join.usd, case.joining.units, case.joining.heads, joined_usd, hours, needs, gross,
        case.least, case.spared,
    )  # fmt: skip
    return _Look(case, needs, gross, stand, joined_usd, join, found)


def certified_usd(case: DayCase, prices: DayPrices) -> float:
    """The bound that any prices prove: each day at valid ones near these."""
    rows = np.flatnonzero(case.hourly)
    first = later = prices.hourly
    if len(rows):
        valid = start_prices(case.menu, rows, prices.hourly[rows], case.classes)
        first, later = prices.hourly.copy(), prices.hourly.copy()
        first[rows], later[rows] = valid[0], valid[1]
    return sum(block.count * _block_usd(case, block, first, later, prices) for block in case.blocks)


def _block_usd(case: DayCase, block: Block, first: Floats, later: Floats, prices: DayPrices) -> float:
    kinds, of = np.unique(np.stack((block.of, block.later)), axis=1, return_inverse=True)
    hours = np.bincount(of.reshape(-1), weights=block.lengths).astype(np.float64)
    hourly = np.where(kinds[1][None, :] > 0, later[:, kinds[0]], first[:, kinds[0]])
    off, ends = prices.off, int(block.first) + int(block.last)
    parts = (tightened(case, off, part, (block,)) for part in tried_parts(case, prices.part, block))
    return max(
        _priced(case, hourly, off, part[:, kinds[0]], hours, kinds[0], ends).least_usd for part in parts
    )


def _covers(problem: Problem, case: FleetCase, search: _Search) -> Counts:
    """The fleets of the program's mix as counts of the case's units, those that its offers have nodes for."""
    fleets = search.fleets
    covers = np.zeros((len(fleets), len(case.units)), dtype=np.int16)
    for row, counts in enumerate(fleets):
        np.add.at(covers[row], search.case.menu.unit, counts.astype(np.int16))
    unique: Counts = np.unique(covers[in_stock(case, covers, problem.table.stock_nodes)], axis=0)
    return unique
