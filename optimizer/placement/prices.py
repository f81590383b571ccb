"""Prices of scarcity: what a node of a contended offer is charged beyond its price, and to whom.

A price stands on a *row*: a measure of what is held, which no plan can pass. Three kinds:

- *throughout* (most offers): node-hours over the whole horizon, at most stock × hours;
- *midway*, for commitments that are owed in full: nodes held at the middle of the horizon, counted with
  all its hours. A commitment is one stretch, since a second would be owed in full again; so a node that
  serves both halves is held at the middle, however demand swings;
- *at an instant*: nodes held just then, by runs alone (services are not charged, which only relaxes).

For any prices ≥ 0, least cost at the prices − price × limit bounds every plan from below.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from optimizer.placement.columns import Column, Span
from optimizer.placement.problem import Bools, Ints, Problem
from optimizer.placement.stock import limits_at

THROUGHOUT = -1


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """``second`` is the instant of a row of runs, else ``THROUGHOUT`` (commitments midway are so too)."""

    offer: int
    second: int = THROUGHOUT


@dataclass(frozen=True, slots=True, eq=False)
class StockPrices:
    """USD per unit of each row: per node-hour throughout and midway, per node at an instant."""

    usd: Mapping[Row, float] = field(default_factory=dict)

    def throughout(self) -> dict[int, float]:
        """USD per node-hour by offer, of what services pay too."""
        return {row.offer: usd for row, usd in self.usd.items() if row.second == THROUGHOUT and usd > 0}

    def at_instants(self) -> Mapping[int, list[tuple[int, float]]]:
        """(second, USD per node) by offer, of what only runs pay."""
        found: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
        for row, usd in sorted(self.usd.items()):
            if row.second != THROUGHOUT and usd > 0:
                found[row.offer].append((row.second, usd))
        return found

    def stock_usd(self, problem: Problem) -> float:
        """Σ price × limit."""
        return sum(usd * limit_of(problem, row) for row, usd in self.usd.items())

    def charge_usd(self, problem: Problem, column: Column) -> float:
        """What a column pays beyond its cost."""
        by_offer = {piece.offer for piece in column.pieces}
        rows = ((row, usd) for row, usd in self.usd.items() if usd > 0 and row.offer in by_offer)
        return sum(usd * usage_of(problem, row, column) for row, usd in rows)


def mixed(first: StockPrices, second: StockPrices, share: float) -> StockPrices:
    """``share`` of the first prices and the rest of the second; tiny ones vanish."""
    rows = sorted({*first.usd, *second.usd})
    found = {r: share * first.usd.get(r, 0.0) + (1 - share) * second.usd.get(r, 0.0) for r in rows}
    return StockPrices({row: usd for row, usd in found.items() if usd > 1e-6})


def horizon_hours(problem: Problem) -> float:
    """Hours in which anything can be held."""
    return (problem.end_s - problem.t0_s) / 3600


def middle_s(problem: Problem) -> int:
    """The instant at which commitments owed in full are counted."""
    return (problem.t0_s + problem.end_s) // 2


def counted_midway(problem: Problem, offers: Ints | int) -> Bools:
    """Which offers are counted at the middle: those whose minimum term is at least all the time left.

    The bound of a service (``fleet_bound``) must charge them the same way.
    """
    counted: Bools = np.asarray(problem.table.min_s[offers] >= problem.end_s - problem.t0_s)
    return counted


def limit_of(problem: Problem, row: Row) -> float:
    """What no plan can pass on a row."""
    if row.second != THROUGHOUT:
        return float(limits_at(problem, row.offer, np.array([row.second]))[0])
    return float(problem.table.stock_nodes[row.offer]) * horizon_hours(problem)


def usage_of(problem: Problem, row: Row, column: Column) -> float:
    """How much of a row a column takes; 0 for services on rows of runs."""
    spans = [span for piece in column.pieces if piece.offer == row.offer for span in piece.spans]
    if row.second == THROUGHOUT:
        if counted_midway(problem, row.offer):
            return nodes_at(spans, middle_s(problem)) * horizon_hours(problem)
        return sum((b - a) * n for a, b, n in spans) / 3600
    is_run = column.end_s != 0
    return float(nodes_at(spans, row.second)) if is_run else 0.0


def nodes_at(spans: Iterable[Span], second: int) -> int:
    """Nodes held at an instant."""
    return sum(n for a, b, n in spans if a <= second < b)
