"""Known columns by workload, cheapest first and without duplicates; the relaxation and the search choose from
them.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from optimizer.placement.columns.prices import Row, StockPrices, rows_by_offer, usage_of
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.problem import Problem


@dataclass(slots=True)
class ColumnPool:
    """A pool that only grows. ``usage`` of a constraint is computed once for each column."""

    problem: Problem
    by_workload: dict[str, list[Column]] = field(default_factory=dict)
    _seen: set[Column] = field(default_factory=set)
    _usage: defaultdict[int, dict[Row, float]] = field(default_factory=lambda: defaultdict(dict))
    _rows: tuple[StockPrices, Mapping[int, list[Row]]] | None = None

    def add(self, columns: Iterable[Column]) -> list[Column]:
        """Adds columns; returns those that were not in the pool."""
        fresh = []
        for column in columns:
            if column not in self._seen:
                self._seen.add(column)
                insort(self.by_workload.setdefault(column.workload, []), column, key=lambda c: c.total_cents)
                fresh.append(column)
        return fresh

    def of(self, name: str) -> Sequence[Column]:
        """Columns of a workload, cheapest first."""
        return self.by_workload.get(name, ())

    def all(self) -> list[Column]:
        """Every column."""
        return [column for columns in self.by_workload.values() for column in columns]

    def usage(self, row: Row, column: Column) -> float:
        """How much of a constraint a column uses. Only for columns of the pool, since results are cached by
        identity.
        """
        known = self._usage[id(column)]
        if row not in known:
            known[row] = usage_of(self.problem, row, column)
        return known[row]

    def priced_usd(self, prices: StockPrices, column: Column) -> float:
        """Cost of a column at the dual prices, in USD."""
        return column.total_cents / 100 + self.charge_usd(prices, column)

    def charge_usd(self, prices: StockPrices, column: Column) -> float:
        """What the dual prices add to a column's cost, in USD."""
        if self._rows is None or self._rows[0] is not prices:
            self._rows = prices, rows_by_offer(self.problem, prices.usd)
        by_offer = self._rows[1]
        rows = dict.fromkeys(row for piece in column.taken for row in by_offer.get(piece.offer, ()))
        return sum(prices.usd[row] * self.usage(row, column) for row in rows)

    def least_usd(self, prices: StockPrices, names: Iterable[str]) -> dict[str, float]:
        """Least cost of each workload's known columns at the dual prices; workloads without columns have no
        entry.
        """
        return {
            name: min(self.priced_usd(prices, column) for column in self.of(name))
            for name in names
            if self.of(name)
        }
