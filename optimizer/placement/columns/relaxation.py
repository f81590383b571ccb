"""The LP relaxation of the choice among known columns; its duals are the dual prices of stock.

Rows of stock and quotas are added only when the solution violates them. The duals guide the search (which
columns to generate, which to insert first). Only ``dual`` proves a bound with them, so they need not be
exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from ortools.linear_solver import pywraplp

from optimizer.placement.columns.column_pool import ColumnPool
from optimizer.placement.columns.prices import (
    AT_MIDPOINT,
    WHOLE_HORIZON,
    Row,
    StockPrices,
    limit_of,
    rows_by_offer,
    usage_of,
)
from optimizer.placement.problem.columns import Column, Span
from optimizer.placement.problem.problem import UNLIMITED_NODES, Floats, Ints, Problem
from optimizer.placement.problem.quotas import QuotaRow, quota_rows
from optimizer.placement.problem.stock import limits_at
from optimizer.placement.runtime.stopwatch import Stopwatch
from optimizer.placement.runtime.tuning import TUNING

USED, WHOLE = 1e-6, 0.999
A_LITTLE, PASSED = 1e-4, 1e-3
DUAL_SIMPLEX = "use_dual_simplex: true"


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """Objective ``usd``, the columns in the solution with their values in (0, 1], and the rows that were
    added.
    """

    usd: float
    prices: StockPrices
    shares: Mapping[str, list[tuple[Column, float]]]
    rows: tuple[Row, ...]

    def whole(self, name: str) -> Column | None:
        """The column of a workload with value 1, or None if its solution is fractional or leaves it out."""
        return next((column for column, share in self.shares.get(name, ()) if share > WHOLE), None)


def relax(
    pool: ColumnPool,
    leave_usd: Mapping[str, float],
    rows: tuple[Row, ...],
    prices: StockPrices,
    seconds: float,
) -> Relaxed | None:
    """Solves the LP over the columns that are cheapest at ``prices``; None if it could not be solved in
    time.
    """
    watch = Stopwatch(seconds)
    options = {name: _options(pool, name, prices) for name in sorted(pool.by_workload)}
    program, found = _Program(pool, options, leave_usd), None
    program.require(rows)
    for _ in range(TUNING.columns.most_relaxations):
        found = program.solve(watch) or found
        if found is None or watch.over():
            break
        fresh = [row for row in _broken(pool.problem, found) if row not in program.stock]
        if not fresh:
            break
        program.require(fresh)
    return found


def _options(pool: ColumnPool, name: str, prices: StockPrices) -> list[Column]:
    columns = pool.of(name)
    if len(columns) <= TUNING.columns.kept_options:
        return list(columns)
    half = TUNING.columns.kept_options // 2
    priced = sorted(columns, key=lambda column: pool.priced_usd(prices, column))
    return list(dict.fromkeys([*columns[:half], *priced[:half]]))


class _Program:
    """A restricted LP with one variable for each column and for leaving a workload out.

    Rows in ``stock`` are added over time; each solve starts from the last basis.
    """

    def __init__(
        self, pool: ColumnPool, options: Mapping[str, list[Column]], leave_usd: Mapping[str, float]
    ) -> None:
        self.pool = pool
        self.solver = pywraplp.Solver.CreateSolver("GLOP")
        self.objective = self.solver.Objective()
        self.objective.SetMinimization()
        self.stock: dict[Row, pywraplp.Constraint] = {}
        self._taken: dict[str, list[tuple[Column, pywraplp.Variable]]] = {}
        self._on: defaultdict[int, list[tuple[Column, pywraplp.Variable]]] = defaultdict(list)
        # The penalty for leaving out what must be placed exceeds any plan. A larger one would cost the solver
        # precision.
        most_usd = (
            2 * sum(max(c.total_cents for c in columns) for columns in options.values() if columns) / 100
        )
        for name, columns in options.items():
            one = self.solver.Constraint(1.0, 1.0)
            self._share(one, min(leave_usd[name], most_usd))
            pairs = [(column, self._share(one, column.total_cents / 100)) for column in columns]
            self._taken[name] = pairs
            for column, share in pairs:
                for offer in {piece.offer for piece in column.taken}:
                    self._on[offer].append((column, share))

    def _share(self, one: pywraplp.Constraint, usd: float) -> pywraplp.Variable:
        share = self.solver.NumVar(0.0, 1.0, "")
        self.objective.SetCoefficient(share, usd)
        one.SetCoefficient(share, 1.0)
        return share

    def require(self, rows: Sequence[Row]) -> None:
        """Adds rows of stock and quotas to the program."""
        problem = self.pool.problem
        for row in rows:
            # The duals of a degenerate optimum are not unique. A slightly larger limit selects the prices
            # at which slightly more would be used.
            most = limit_of(problem, row) * (1 + A_LITTLE)
            self.stock[row] = self.solver.Constraint(-self.solver.infinity(), most)
        for offer, mine in rows_by_offer(problem, tuple(rows)).items():
            for column, share in self._on[offer]:
                for row in mine:
                    used = self.pool.usage(row, column)
                    if used:
                        self.stock[row].SetCoefficient(share, used)

    def solve(self, watch: Stopwatch) -> Relaxed | None:
        """Solves the program; returns its solution and the duals of its rows, or None if time ran out."""
        self.solver.SetTimeLimit(max(1, int(1000 * watch.left)))
        if self.solver.Solve() != pywraplp.Solver.OPTIMAL:
            return None
        # Added rows leave the basis dual feasible, so the dual simplex continues from it.
        self.solver.SetSolverSpecificParametersAsString(DUAL_SIMPLEX)
        shares = {name: [(c, v.solution_value()) for c, v in pairs] for name, pairs in self._taken.items()}
        used = {name: [(c, share) for c, share in pairs if share > USED] for name, pairs in shares.items()}
        usd = {row: -constraint.dual_value() for row, constraint in self.stock.items()}
        prices = StockPrices({row: price for row, price in usd.items() if price > USED})
        return Relaxed(self.objective.Value(), prices, used, tuple(self.stock))


def _broken(problem: Problem, found: Relaxed) -> list[Row]:
    """Rows that the solution violates: total use of an offer, and the runs' use at its worst instant."""
    held: defaultdict[int, list[tuple[Column, float]]] = defaultdict(list)
    for pairs in found.shares.values():
        for column, share in pairs:
            for offer in {piece.offer for piece in column.taken}:
                held[offer].append((column, share))
    rows = []
    for offer, pairs in sorted(held.items()):
        if problem.table.stock_nodes[offer] >= UNLIMITED_NODES and not problem.table.is_window[offer]:
            continue
        rows.extend(_broken_on(problem, offer, pairs))
    for number, quota in enumerate(quota_rows(problem)):
        if quota.workload is None:
            pairs = list(chain.from_iterable(found.shares.values()))
            rows.extend(_broken_quota(problem, number, quota, pairs))
    return rows


def _broken_on(problem: Problem, offer: int, pairs: list[tuple[Column, float]]) -> list[Row]:
    found = []
    whole = Row(offer)
    if not problem.table.is_window[offer] and _is_passed(problem, whole, pairs):
        found.append(whole)
    spans = [
        (span, share)
        for column, share in pairs
        if column.end_s != 0
        for piece in column.taken
        if piece.offer == offer
        for span in piece.spans
    ]
    second = _worst_instant(spans, lambda edges: limits_at(problem, offer, edges))
    if second is not None:
        found.append(Row(offer, second))
    return found


def _broken_quota(
    problem: Problem, number: int, quota: QuotaRow, pairs: list[tuple[Column, float]]
) -> list[Row]:
    rows = (Row.of_quota(number, second) for second in (WHOLE_HORIZON, AT_MIDPOINT))
    found = [row for row in rows if _is_passed(problem, row, pairs)]
    spans = [(span, share) for column, share in pairs if column.end_s != 0 for span in quota.spans_of(column)]
    second = _worst_instant(
        spans, lambda edges: np.array([limit_of(problem, Row.of_quota(number, int(at))) for at in edges])
    )
    if second is not None:
        found.append(Row.of_quota(number, second))
    return found


def _is_passed(problem: Problem, row: Row, pairs: list[tuple[Column, float]]) -> bool:
    used = sum(share * usage_of(problem, row, column) for column, share in pairs)
    return used > limit_of(problem, row) * (1 + PASSED)


def _worst_instant(spans: list[tuple[Span, float]], limits: Callable[[Ints], Ints | Floats]) -> int | None:
    """The instant at which fractional spans exceed the limits most; None if they never do."""
    if len(spans) < 2:
        return None
    edges = np.unique(np.array([edge for (a, b, _), _ in spans for edge in (a, b)], dtype=np.int64))
    held = np.zeros(len(edges))
    for (start, end, nodes), share in spans:
        first, last = np.searchsorted(edges, (start, end))
        held[first:last] += share * nodes
    over = held - limits(edges) * (1 + PASSED)
    worst = int(np.argmax(over))
    if over[worst] <= 1e-6:
        return None
    return int(edges[worst] + edges[worst + 1]) // 2 if worst + 1 < len(edges) else int(edges[worst])
