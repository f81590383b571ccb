"""The relaxation of the choice among known columns: a linear program whose duals are prices of scarcity.

Rows of stock and of quotas join only when the solution breaks them. The duals steer (which columns to make,
which to insert first) and are plugged into ``dual``, which alone proves; nothing here has to be exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
from ortools.linear_solver import pywraplp

from optimizer.placement.column_pool import ColumnPool
from optimizer.placement.columns import Column, Span
from optimizer.placement.prices import MIDWAY, THROUGHOUT, Row, StockPrices, limit_of, rows_by_offer, usage_of
from optimizer.placement.problem import UNLIMITED_NODES, Floats, Ints, Problem
from optimizer.placement.quotas import QuotaRow, quota_rows
from optimizer.placement.stock import limits_at
from optimizer.placement.stopwatch import Stopwatch

MAX_ROUNDS = 12
KEEP_OPTIONS = 60


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """``usd`` of the program; ``shares`` of each column in it (above 0); ``rows`` that were needed."""

    usd: float
    prices: StockPrices
    shares: Mapping[str, list[tuple[Column, float]]]
    rows: tuple[Row, ...]


def relax(
    pool: ColumnPool,
    leave_usd: Mapping[str, float],
    rows: tuple[Row, ...],
    prices: StockPrices,
    seconds: float,
) -> Relaxed | None:
    """The relaxation over the columns that are cheapest at ``prices``; None when it could not be solved."""
    watch = Stopwatch(seconds)
    options = {name: _options(pool, name, prices) for name in sorted(pool.by_workload)}
    needed, found = dict.fromkeys(rows), None
    for _ in range(MAX_ROUNDS):
        found = _solve(pool, options, leave_usd, tuple(needed), watch) or found
        if found is None or watch.over():
            break
        broken = _broken(pool.problem, found)
        fresh = [row for row in broken if row not in needed]
        if not fresh:
            break
        needed.update(dict.fromkeys(fresh))
    return found


def _options(pool: ColumnPool, name: str, prices: StockPrices) -> list[Column]:
    columns = pool.of(name)
    if len(columns) <= KEEP_OPTIONS:
        return list(columns)
    half = KEEP_OPTIONS // 2
    priced = sorted(columns, key=lambda column: pool.priced_usd(prices, column))
    return list(dict.fromkeys([*columns[:half], *priced[:half]]))


def _solve(
    pool: ColumnPool,
    options: Mapping[str, list[Column]],
    leave_usd: Mapping[str, float],
    rows: tuple[Row, ...],
    watch: Stopwatch,
) -> Relaxed | None:
    solver = pywraplp.Solver.CreateSolver("GLOP")
    objective = solver.Objective()
    objective.SetMinimization()
    stock = {row: solver.Constraint(-solver.infinity(), limit_of(pool.problem, row)) for row in rows}
    by_offer = rows_by_offer(pool.problem, rows)
    # What must be placed costs more than any plan to leave; more than that leaves the solver no digits.
    most_usd = 2 * sum(max(c.total_cents for c in columns) for columns in options.values() if columns) / 100
    taken: dict[str, list[tuple[Column, pywraplp.Variable]]] = {}
    for name, columns in options.items():
        one = solver.Constraint(1.0, 1.0)
        left = solver.NumVar(0.0, 1.0, "")
        objective.SetCoefficient(left, min(leave_usd[name], most_usd))
        one.SetCoefficient(left, 1.0)
        taken[name] = []
        for column in columns:
            share = solver.NumVar(0.0, 1.0, "")
            objective.SetCoefficient(share, column.total_cents / 100)
            one.SetCoefficient(share, 1.0)
            for row in dict.fromkeys(r for piece in column.pieces for r in by_offer.get(piece.offer, ())):
                used = pool.usage(row, column)
                if used:
                    stock[row].SetCoefficient(share, used)
            taken[name].append((column, share))
    solver.SetTimeLimit(max(1, int(1000 * watch.left)))
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return None
    usd = {row: max(0.0, -constraint.dual_value()) for row, constraint in stock.items()}
    shares = {
        name: [(column, share.solution_value()) for column, share in pairs if share.solution_value() > 1e-6]
        for name, pairs in taken.items()
    }
    prices = StockPrices({row: price for row, price in usd.items() if price > 1e-6})
    return Relaxed(objective.Value(), prices, shares, rows)


def _broken(problem: Problem, found: Relaxed) -> list[Row]:
    """Rows that the solution passes: what all hold of an offer, and what runs hold at their worst instant."""
    held: defaultdict[int, list[tuple[Column, float]]] = defaultdict(list)
    for pairs in found.shares.values():
        for column, share in pairs:
            for offer in {piece.offer for piece in column.pieces}:
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
        for piece in column.pieces
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
    rows = (Row.of_quota(number, second) for second in (THROUGHOUT, MIDWAY))
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
    return used > limit_of(problem, row) * (1 + 1e-6)


def _worst_instant(spans: list[tuple[Span, float]], limits: Callable[[Ints], Ints | Floats]) -> int | None:
    """The instant at which shares of spans pass the limits by most; None when they never do."""
    if len(spans) < 2:
        return None
    edges = np.unique(np.array([edge for (a, b, _), _ in spans for edge in (a, b)], dtype=np.int64))
    held = np.zeros(len(edges))
    for (start, end, nodes), share in spans:
        first, last = np.searchsorted(edges, (start, end))
        held[first:last] += share * nodes
    over = held - limits(edges) * (1 + 1e-6)
    worst = int(np.argmax(over))
    if over[worst] <= 1e-6:
        return None
    return int(edges[worst] + edges[worst + 1]) // 2 if worst + 1 < len(edges) else int(edges[worst])
