"""Rolled-up spend in memory; stands in for ``SqlRollupRepository``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from types import MappingProxyType

from broker.domain.basics.access import TeamScope
from broker.domain.basics.errors import Conflict, NotFound
from broker.domain.focus.columns import FocusRow
from broker.domain.holding.reservation import Reservation
from broker.domain.spend.month_close import ClosedMonth
from broker.domain.spend.spend_cells import Amounts, CellKey, Cells
from broker.domain.spend.unit_costs import DayWork
from broker.ports.planning import PlanRecord
from broker.ports.spend import DaySum, FocusCosts, LedgerMark
from broker.services.spend.ledger import bill_of


@dataclass
class RollupTables:
    """What is committed; ``settled``: versions of reservations as their bills were rolled up."""

    bills: dict[str, Cells] = field(default_factory=dict)
    settled: dict[str, int] = field(default_factory=dict)
    generation: int = 0
    closed: list[ClosedMonth] = field(default_factory=list)
    rows: dict[tuple[date, int], tuple[str, list[FocusRow]]] = field(default_factory=dict)
    costs: dict[date, Mapping[str, FocusCosts]] = field(default_factory=dict)
    work: dict[date, tuple[DayWork, ...]] = field(default_factory=dict)


class Rollups:
    """Over ``reservations`` by id; writes are staged."""

    def __init__(
        self,
        tables: RollupTables,
        reservations: Mapping[str, Reservation],
        plans: Mapping[str, PlanRecord],
        staged: list[Callable[[], None]],
        scope: TeamScope,
    ) -> None:
        self._tables = tables
        self._reservations = reservations
        self._plans = plans
        self._staged = staged
        self._scope = scope

    async def find_generation(self) -> int:
        return self._tables.generation

    async def find_mark(self) -> LedgerMark:
        unsettled = [
            row.version
            for row in self._reservations.values()
            if self._tables.settled.get(row.reservation_id) != row.version
        ]
        plans = [row.version for row in self._plans.values()]
        return LedgerMark(self._tables.generation, (len(unsettled), sum(unsettled)), (len(plans), sum(plans)))

    async def find_open_bills(self) -> frozenset[str]:
        return frozenset(
            bill_of(row)
            for row in self._reservations.values()
            if self._tables.settled.get(row.reservation_id) != row.version
        )

    async def find_stored(self, bill_ids: Collection[str]) -> Mapping[str, Cells]:
        own = {
            name: {key: one for key, one in cells.items() if self._scope.covers(key[1].team)}
            for name, cells in self._tables.bills.items()
            if name in bill_ids
        }
        return {name: cells for name, cells in own.items() if cells}

    async def find_sums(
        self,
        days: tuple[date, date] | None,
        group_by: str,
        narrowed: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[DaySum, ...]:
        sums: defaultdict[tuple[date, str], list[int]] = defaultdict(lambda: [0, 0])
        for cells in self._tables.bills.values():
            for (day, key), amounts in cells.items():
                asked = all(getattr(key, name) == word for name, word in narrowed.items())
                if asked and self._scope.covers(key.team) and (days is None or days[0] <= day < days[1]):
                    group = "committed" if group_by == "commitment" else str(getattr(key, group_by))
                    sums[day, group][0] += amounts.cents
                    sums[day, group][1] += amounts.cash_cents
        return tuple(DaySum(day, group, *both) for (day, group), both in sums.items())

    async def find_cells(self, days: tuple[date, date] | None) -> Mapping[CellKey, Amounts]:
        sums: defaultdict[CellKey, Amounts] = defaultdict(Amounts)
        for cells in self._tables.bills.values():
            for (day, key), amounts in cells.items():
                if self._scope.covers(key.team) and (days is None or days[0] <= day < days[1]):
                    sums[key] = sums[key].plus(amounts)
        return sums

    async def find_first_day(self) -> date | None:
        return min((day for cells in self._tables.bills.values() for day, _ in cells), default=None)

    async def put(self, bill_id: str, team: str, old: Cells, new: Cells) -> None:
        assert self._tables.bills.get(bill_id, {}) == old
        self._staged.append(lambda: self._tables.bills.update({bill_id: new}))

    async def settle(self, reservations: Iterable[Reservation]) -> bool:
        rows = {row.reservation_id: row.version for row in reservations}
        self._staged.append(lambda: self._tables.settled.update(rows))
        return True

    async def next_generation(self) -> None:
        def apply() -> None:
            self._tables.generation += 1

        self._staged.append(apply)

    async def find_closed(self) -> tuple[ClosedMonth, ...]:
        return tuple(self._tables.closed)

    async def add_closed(self, month: ClosedMonth) -> None:
        if month.month in {one.month for one in self._tables.closed}:
            raise Conflict("closed already")
        self._staged.append(lambda: self._tables.closed.append(month))

    async def add_closed_rows(self, month: date, ordinal: int, team: str, rows: Sequence[FocusRow]) -> None:
        kept: list[FocusRow] = [dict(row) for row in rows]
        self._staged.append(lambda: self._tables.rows.update({(month, ordinal): (team, kept)}))

    async def find_closed_parts(self, month: date) -> tuple[int, ...]:
        found = self._tables.rows.items()
        return tuple(n for (of, n), (whose, _) in found if of == month and self._scope.covers(whose))

    async def find_closed_rows(self, month: date, ordinal: int) -> tuple[FocusRow, ...]:
        whose, rows = self._tables.rows[month, ordinal]
        if not self._scope.covers(whose):
            raise NotFound("part of a closed month", f"{month:%Y-%m}/{ordinal}")
        return tuple(rows)

    async def add_closed_costs(self, month: date, costs: Mapping[str, FocusCosts]) -> None:
        self._staged.append(lambda: self._tables.costs.update({month: costs}))

    async def add_closed_work(self, month: date, work: Iterable[DayWork]) -> None:
        kept = tuple(work)
        self._staged.append(lambda: self._tables.work.update({month: kept}))

    async def find_months_with_work(self) -> tuple[date, ...]:
        found = self._tables.work.items()
        return tuple(month for month, work in found if any(self._scope.covers(one.team) for one in work))

    async def find_closed_work(self, days: tuple[date, date] | None) -> tuple[DayWork, ...]:
        every = (one for work in self._tables.work.values() for one in work if self._scope.covers(one.team))
        return tuple(one for one in every if days is None or days[0] <= one.day < days[1])

    async def find_closed_costs(
        self, months: Sequence[date], reservation_ids: Collection[str]
    ) -> Mapping[str, FocusCosts]:
        found: dict[str, FocusCosts] = {}
        for month in months:
            for name, cost in self._tables.costs[month].items():
                if name in reservation_ids:
                    before = found.get(name, FocusCosts(0, 0))
                    found[name] = FocusCosts(*(a + b for a, b in zip(before, cost, strict=True)))
        return found
