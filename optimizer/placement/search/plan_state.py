"""A plan under construction: its columns, the remaining capacity, and which offers other workloads want."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from optimizer.placement.columns.candidates import Candidates, unplaced_cents
from optimizer.placement.columns.fleet_pool import ledger_of
from optimizer.placement.problem.columns import Column, in_cents
from optimizer.placement.problem.problem import Problem
from optimizer.placement.problem.stock import Ledger
from optimizer.placement.search.moves import RemainingCapacity

NEVER_CENTS = 10**15


@dataclass(slots=True)
class PlanState:
    """``chosen`` with its ledger and the holders of each offer; ``spent_cents`` counts against the budget."""

    candidates: Candidates
    chosen: dict[str, Column]
    ledger: Ledger = field(init=False)
    holders: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    spent_cents: int = 0
    budget_cents: int | None = field(init=False)

    def __post_init__(self) -> None:
        budget = self.candidates.problem.request.held_budget_usd
        self.budget_cents = None if budget is None else in_cents(budget)
        self.ledger = ledger_of(self.candidates, self.chosen)
        for column in self.chosen.values():
            self._count(column, 1)

    def place(self, column: Column) -> None:
        """Adds the column of a workload that is not placed."""
        self.chosen[column.workload] = column
        self.ledger.add(column)
        self._count(column, 1)

    def remove(self, name: str) -> Column | None:
        """Removes a workload; returns its column, or None."""
        column = self.chosen.pop(name, None)
        if column is not None:
            self.ledger.remove(column)
            self._count(column, -1)
        return column

    @contextmanager
    def without(self, names: Iterable[str]) -> Iterator[RemainingCapacity]:
        """Inside the block ``names`` are removed; yields the capacity that the others leave."""
        lifted = [column for name in names if (column := self.remove(name)) is not None]
        left = None if self.budget_cents is None else self.budget_cents - self.spent_cents
        try:
            yield RemainingCapacity(self.ledger, left)
        finally:
            for column in lifted:
                self.place(column)

    def allows(self, column: Column) -> bool:
        """Whether stock and budget allow a column in addition."""
        within = self.budget_cents is None or self.spent_cents + column.counted_cents <= self.budget_cents
        return within and self.ledger.fits(column)

    def cents(self, names: Iterable[str]) -> int:
        """Cost, lateness and penalties of the workloads ``names``."""
        problem, total = self.candidates.problem, 0
        for name in names:
            total += self.chosen[name].total_cents if name in self.chosen else left_cents(problem, name)
        return total

    def _count(self, column: Column, sign: int) -> None:
        self.spent_cents += sign * column.counted_cents
        for piece in column.taken:
            if sign > 0:
                self.holders[piece.offer].add(column.workload)
            else:
                self.holders[piece.offer].discard(column.workload)


def left_cents(problem: Problem, name: str) -> int:
    """Penalty for leaving a workload out; for one that must be placed, more than any plan costs."""
    cents = unplaced_cents(problem, name)
    return NEVER_CENTS if cents is None else cents


def free_names(candidates: Candidates) -> frozenset[str]:
    """Workloads that depend on no other and on which none depends; each can be placed again alone."""
    services = candidates.problem.services()
    tied = {s.name for s in services if s.starts_after is not None}
    tied |= {s.starts_after for s in services if s.starts_after is not None}
    return frozenset(w.name for w in candidates.problem.request.workloads) - tied


def wanted_by(options: Mapping[str, list[Column]]) -> Mapping[int, set[str]]:
    """The workloads that have a column on each offer."""
    found: defaultdict[int, set[str]] = defaultdict(set)
    for name, columns in options.items():
        for column in columns:
            for piece in column.taken:
                found[piece.offer].add(name)
    return found
