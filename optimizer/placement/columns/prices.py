"""Dual prices of shared stock: what a node of a contended offer is charged beyond its price, and to whom.

Each price belongs to a *row*, which is a constraint on what all workloads hold. An offer has three kinds:

- *whole horizon* (most offers): node-hours over the horizon ≤ stock × hours for which the offer is there;
- *midpoint*, for commitments that are owed in full: nodes held at the middle of the horizon, counted for all
  its hours. A second commitment would be owed in full again, so a node that serves both halves of the horizon
  is one commitment that is held at the midpoint, however demand varies;
- *instant*: nodes held at one instant by runs. Services are not charged there, which only weakens the bound.

A quota over all workloads (GPUs or nodes of a provider) has the same three over all offers of the provider;
its whole-horizon row excludes the commitments that are owed in full, and its midpoint row counts only those.
For all prices ≥ 0, (least cost at the prices) − Σ price × limit is a lower bound on every plan.
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
    """A constraint of an offer, or of a quota (its index in ``quota_rows``).

    ``second``: the instant of a constraint on runs; ``AT_MIDPOINT`` for a quota's commitments; else
    ``WHOLE_HORIZON``, which an offer's commitments use as well, because an offer has only one of the two.
    """

    offer: int
    second: int = WHOLE_HORIZON
    quota: int = NO_QUOTA

    @classmethod
    def of_quota(cls, number: int, second: int = WHOLE_HORIZON) -> Row:
        """The row of the quota with this index."""
        return cls(NO_OFFER, second, number)


@dataclass(frozen=True, slots=True, eq=False)
class StockPrices:
    """Dual price in USD per unit of each row: per node-hour, or per node at an instant; for a quota, per its
    unit.
    """

    usd: Mapping[Row, float] = field(default_factory=dict)

    def throughout(self) -> dict[int, float]:
        """USD per node-hour by offer, of the offers' own stock."""
        return {
            row.offer: usd
            for row, usd in self.usd.items()
            if row.second == WHOLE_HORIZON and row.quota == NO_QUOTA and usd > 0
        }

    def charged(self, problem: Problem) -> dict[int, float]:
        """USD per node-hour by offer, of stock and quotas together: the prices that services pay too."""
        each = np.zeros(len(problem.table))
        for row, usd in self.usd.items():
            if row.quota != NO_QUOTA and row.second < 0 and usd > 0:
                each += usd * _counted_per_node(problem, quota_rows(problem)[row.quota], row.second)
        found = {int(offer): float(each[offer]) for offer in np.flatnonzero(each)}
        for offer, usd in self.throughout().items():
            found[offer] = found.get(offer, 0.0) + usd
        return found

    def at_instants(self, problem: Problem) -> Mapping[int, list[tuple[int, float]]]:
        """(second, USD per node) by offer: the prices at instants, which only runs pay."""
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
        """What the dual prices add to a column's cost, in USD."""
        return sum(usd * usage_of(problem, row, column) for row, usd in self.usd.items() if usd > 0)


def rows_by_offer(problem: Problem, rows: Iterable[Row]) -> Mapping[int, list[Row]]:
    """The rows that restrict each offer."""
    found: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if row.quota == NO_QUOTA:
            found[row.offer].append(row)
        else:
            for offer in np.flatnonzero(quota_rows(problem)[row.quota].members):
                found[int(offer)].append(row)
    return found


def mixed(first: StockPrices, second: StockPrices, share: float) -> StockPrices:
    """The convex combination share × first + (1 − share) × second; prices near 0 are dropped."""
    rows = sorted({*first.usd, *second.usd})
    found = {r: share * first.usd.get(r, 0.0) + (1 - share) * second.usd.get(r, 0.0) for r in rows}
    return StockPrices({row: usd for row, usd in found.items() if usd > 1e-6})


def middle_s(problem: Problem) -> int:
    """The instant at which commitments that are owed in full are counted."""
    return (problem.t0_s + problem.end_s) // 2


def counted_midway(problem: Problem, offers: Ints | int) -> Bools:
    """Offers that are counted at the midpoint: their minimum term is at least the whole remaining horizon.

    The bound of a service (``fleets.bound``) must charge them the same way.
    """
    counted: Bools = np.asarray(problem.table.min_s[offers] >= problem.end_s - problem.t0_s)
    return counted


def limit_of(problem: Problem, row: Row) -> float:
    """The right-hand side of a row."""
    if row.quota != NO_QUOTA:
        return _quota_limit(problem, quota_rows(problem)[row.quota], row.second)
    if row.second != WHOLE_HORIZON:
        return float(limits_at(problem, row.offer, np.array([row.second]))[0])
    table, hours = problem.table, horizon_hours(problem)
    if not counted_midway(problem, row.offer):
        hours = min(hours, max(0, int(table.gone_s[row.offer]) - problem.t0_s) / 3600)
    return float(table.stock_nodes[row.offer]) * hours


def usage_of(problem: Problem, row: Row, column: Column) -> float:
    """A column's coefficient in a row; 0 for services in rows at an instant."""
    if row.quota != NO_QUOTA:
        return _quota_usage(problem, quota_rows(problem)[row.quota], row.second, column)
    spans = [span for piece in column.taken if piece.offer == row.offer for span in piece.spans]
    if row.second == WHOLE_HORIZON:
        return _throughout_usage(problem, row.offer, spans)
    is_run = column.end_s != 0
    return float(nodes_at(spans, row.second)) if is_run else 0.0


def nodes_at(spans: Iterable[Span], second: int) -> int:
    """Nodes held at an instant."""
    return sum(n for a, b, n in spans if a <= second < b)


def _counted_per_node(problem: Problem, quota: QuotaRow, second: int) -> Ints:
    """The weight of a node of each offer [O] in a quota's whole-horizon or midpoint row."""
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
    for piece in column.taken:
        if quota.members[piece.offer] and bool(counted_midway(problem, piece.offer)) == (
            second == AT_MIDPOINT
        ):
            held = _throughout_usage(problem, piece.offer, piece.spans)
            usage += int(quota.per_node[piece.offer]) * held
    return usage


def _throughout_usage(problem: Problem, offer: int, spans: Sequence[Span]) -> float:
    """Node-hours of an offer; for commitments counted at the midpoint, nodes held there × all hours."""
    if counted_midway(problem, offer):
        return nodes_at(spans, middle_s(problem)) * horizon_hours(problem)
    return sum((b - a) * n for a, b, n in spans) / 3600


def _quota_limit(problem: Problem, quota: QuotaRow, second: int) -> float:
    """What existing holdings leave of a quota: units at an instant, or unit-hours over the horizon."""
    if second >= 0:
        return float(max(0, quota.limit - nodes_at(quota.held, second)))
    if second == AT_MIDPOINT:
        return max(0, quota.limit - nodes_at(quota.held, middle_s(problem))) * horizon_hours(problem)
    inside = (t for a, b, _ in quota.held for t in (a, b) if problem.t0_s < t < problem.end_s)
    edges = sorted({problem.t0_s, problem.end_s, *inside})
    free = ((b - a) * max(0, quota.limit - nodes_at(quota.held, a)) for a, b in pairwise(edges))
    return sum(free) / 3600
