"""Prices of scarcity: what a node of a contended offer is charged beyond its price, and to whom.

A price stands on a *row*: a measure of what is held, which no plan can pass. Of an offer three kinds:

- *throughout* (most offers): node-hours over the whole horizon, at most stock × hours;
- *midway*, for commitments that are owed in full: nodes held at the middle of the horizon, counted with
  all its hours. A commitment is one stretch, since a second would be owed in full again; so a node that
  serves both halves is held at the middle, however demand swings;
- *at an instant*: nodes held just then, by runs alone (services are not charged, which only relaxes).

Of a quota over all workloads (GPUs or nodes of a provider) the same three, over all of its offers: throughout
without the commitments that are owed in full, midway those alone.

For any prices ≥ 0, least cost at the prices − price × limit bounds every plan from below.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from optimizer.placement.problem.columns import Column, Span
from optimizer.placement.problem.problem import Bools, Ints, Problem, horizon_hours
from optimizer.placement.problem.quotas import QuotaRow, quota_rows
from optimizer.placement.problem.stock import limits_at

WHOLE_HORIZON, AT_MIDPOINT = -1, -2
NO_OFFER, NO_QUOTA = -1, -1


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """Of an offer, or of a quota (its number in ``quota_rows``). ``second`` is the instant of a row of runs,
    else ``WHOLE_HORIZON`` (an offer's commitments midway are so too) or, of a quota, ``AT_MIDPOINT``."""

    offer: int
    second: int = WHOLE_HORIZON
    quota: int = NO_QUOTA

    @classmethod
    def of_quota(cls, number: int, second: int = WHOLE_HORIZON) -> Row:
        """The row of a quota."""
        return cls(NO_OFFER, second, number)


@dataclass(frozen=True, slots=True, eq=False)
class StockPrices:
    """USD per unit of each row: per node-hour throughout and midway, per node at an instant; of a quota, of
    what it counts."""

    usd: Mapping[Row, float] = field(default_factory=dict)

    def throughout(self) -> dict[int, float]:
        """USD per node-hour by offer, for its own stock."""
        return {
            row.offer: usd
            for row, usd in self.usd.items()
            if row.second == WHOLE_HORIZON and row.quota == NO_QUOTA and usd > 0
        }

    def charged(self, problem: Problem) -> dict[int, float]:
        """USD per node-hour by offer, for its stock and for quotas: what services pay too."""
        each = np.zeros(len(problem.table))
        for row, usd in self.usd.items():
            if row.quota != NO_QUOTA and row.second < 0 and usd > 0:
                each += usd * _counted_per_node(problem, quota_rows(problem)[row.quota], row.second)
        found = {int(offer): float(each[offer]) for offer in np.flatnonzero(each)}
        for offer, usd in self.throughout().items():
            found[offer] = found.get(offer, 0.0) + usd
        return found

    def at_instants(self, problem: Problem) -> Mapping[int, list[tuple[int, float]]]:
        """(second, USD per node) by offer, of what only runs pay."""
        found: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
        for row, usd in sorted(self.usd.items()):
            if row.second < 0 or usd <= 0:
                continue
            if row.quota == NO_QUOTA:
                found[row.offer].append((row.second, usd))
                continue
            quota = quota_rows(problem)[row.quota]
            for offer in np.flatnonzero(quota.members):
                found[int(offer)].append((row.second, usd * int(quota.per_node[offer])))
        return found

    def stock_usd(self, problem: Problem) -> float:
        """Σ price × limit."""
        return sum(usd * limit_of(problem, row) for row, usd in self.usd.items())

    def charge_usd(self, problem: Problem, column: Column) -> float:
        """What a column pays beyond its cost."""
        return sum(usd * usage_of(problem, row, column) for row, usd in self.usd.items() if usd > 0)


def rows_by_offer(problem: Problem, rows: Iterable[Row]) -> Mapping[int, list[Row]]:
    """Rows that nodes of an offer count in, by offer."""
    found: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if row.quota == NO_QUOTA:
            found[row.offer].append(row)
        else:
            for offer in np.flatnonzero(quota_rows(problem)[row.quota].members):
                found[int(offer)].append(row)
    return found


def mixed(first: StockPrices, second: StockPrices, share: float) -> StockPrices:
    """``share`` of the first prices and the rest of the second; tiny ones vanish."""
    rows = sorted({*first.usd, *second.usd})
    found = {r: share * first.usd.get(r, 0.0) + (1 - share) * second.usd.get(r, 0.0) for r in rows}
    return StockPrices({row: usd for row, usd in found.items() if usd > 1e-6})


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
    if row.quota != NO_QUOTA:
        return _quota_limit(problem, quota_rows(problem)[row.quota], row.second)
    if row.second != WHOLE_HORIZON:
        return float(limits_at(problem, row.offer, np.array([row.second]))[0])
    return float(problem.table.stock_nodes[row.offer]) * horizon_hours(problem)


def usage_of(problem: Problem, row: Row, column: Column) -> float:
    """How much of a row a column takes; 0 for services on rows of runs."""
    if row.quota != NO_QUOTA:
        return _quota_usage(problem, quota_rows(problem)[row.quota], row.second, column)
    spans = [span for piece in column.pieces if piece.offer == row.offer for span in piece.spans]
    if row.second == WHOLE_HORIZON:
        return _throughout_usage(problem, row.offer, spans)
    is_run = column.end_s != 0
    return float(nodes_at(spans, row.second)) if is_run else 0.0


def nodes_at(spans: Iterable[Span], second: int) -> int:
    """Nodes held at an instant."""
    return sum(n for a, b, n in spans if a <= second < b)


def _counted_per_node(problem: Problem, quota: QuotaRow, second: int) -> Ints:
    """What a node of each offer [O] counts for on the row throughout, or midway."""
    midway = counted_midway(problem, np.arange(len(problem.table)))
    counted: Ints = np.where(quota.members & (midway == (second == AT_MIDPOINT)), quota.per_node, 0)
    return counted


def _quota_usage(problem: Problem, quota: QuotaRow, second: int, column: Column) -> float:
    if not quota.counts(column.workload):
        return 0.0
    if second >= 0:
        is_run = column.end_s != 0
        return float(nodes_at(quota.spans_of(column), second)) if is_run else 0.0
    usage = 0.0
    for piece in column.pieces:
        if quota.members[piece.offer] and bool(counted_midway(problem, piece.offer)) == (
            second == AT_MIDPOINT
        ):
            held = _throughout_usage(problem, piece.offer, piece.spans)
            usage += int(quota.per_node[piece.offer]) * held
    return usage


def _throughout_usage(problem: Problem, offer: int, spans: Sequence[Span]) -> float:
    """Node-hours of an offer, or nodes held midway for all hours."""
    if counted_midway(problem, offer):
        return nodes_at(spans, middle_s(problem)) * horizon_hours(problem)
    return sum((b - a) * n for a, b, n in spans) / 3600


def _quota_limit(problem: Problem, quota: QuotaRow, second: int) -> float:
    """What is not held already: at an instant, or unit-hours over the horizon."""
    if second >= 0:
        return float(max(0, quota.limit - nodes_at(quota.held, second)))
    if second == AT_MIDPOINT:
        return max(0, quota.limit - nodes_at(quota.held, middle_s(problem))) * horizon_hours(problem)
    inside = (t for a, b, _ in quota.held for t in (a, b) if problem.t0_s < t < problem.end_s)
    edges = sorted({problem.t0_s, problem.end_s, *inside})
    free = ((b - a) * max(0, quota.limit - nodes_at(quota.held, a)) for a, b in pairwise(edges))
    return sum(free) / 3600
