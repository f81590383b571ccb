"""Greedy construction of a first plan: workload by workload, the cheapest column that still fits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from broker.domain.planning.workload import Serving, Workload
from optimizer.placement.problem.columns import Column, in_cents
from optimizer.placement.problem.problem import Problem
from optimizer.placement.problem.stock import Ledger


def by_workload(columns: Sequence[Column]) -> Mapping[str, list[Column]]:
    """Columns of each workload, cheapest first."""
    found: defaultdict[str, list[Column]] = defaultdict(list)
    for column in columns:
        found[column.workload].append(column)
    for options in found.values():
        options.sort(key=lambda column: column.total_cents)
    return found


def place_greedily(problem: Problem, columns: Sequence[Column]) -> dict[str, Column]:
    """The chosen column of each workload that fits. Workloads that must be placed come first, most expensive
    first.
    """
    options = by_workload(columns)
    ledger, chosen, spent = Ledger(problem), dict[str, Column](), 0
    budget = problem.request.held_budget_usd
    most = None if budget is None else in_cents(budget)
    for workload in _order(problem, options):
        for column in options.get(workload.name, ()):
            affordable = most is None or spent + column.counted_cents <= most
            if (
                affordable
                and _worth(workload, column)
                and _follows(workload, column, chosen)
                and ledger.fits(column)
            ):
                ledger.add(column)
                chosen[workload.name] = column
                spent += column.counted_cents
                break
    return chosen


def _order(problem: Problem, options: Mapping[str, list[Column]]) -> list[Workload]:
    def rank(workload: Workload) -> tuple[bool, bool, int, str]:
        follows = isinstance(workload, Serving) and workload.starts_after is not None
        cheapest = options[workload.name][0].total_cents if options.get(workload.name) else 0
        return follows, workload.unplaced_usd is not None, -cheapest, workload.name

    return sorted(problem.request.workloads, key=rank)


def _worth(workload: Workload, column: Column) -> bool:
    return workload.unplaced_usd is None or column.total_cents <= in_cents(workload.unplaced_usd)


def _follows(workload: Workload, column: Column, chosen: Mapping[str, Column]) -> bool:
    if not isinstance(workload, Serving) or workload.starts_after is None:
        return True
    run = chosen.get(workload.starts_after)
    return run is not None and column.after == run.end
