"""The roll-up of settled bills by day, and closed months."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, and_, func, select

from broker.domain.basics.errors import NotFound
from broker.domain.basics.money import CENT
from broker.domain.focus.columns import Cell, FocusRow, Kind, kind_of
from broker.domain.holding.reservation import Reservation
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.month_close import ClosedMonth
from broker.domain.spend.spend_cells import Amounts, CellKey, Cells, difference
from broker.domain.spend.unit_costs import DayWork
from broker.ports.spend import DaySum, FocusCosts, LedgerMark
from broker.store.spend.finance_tables import (
    ClosedCostRow,
    ClosedMonthRow,
    ClosedRowsRow,
    ClosedWorkRow,
    SpendBillRow,
    SpendDayRow,
)
from broker.store.tables import MetaRow, PlanRow, ReservationRow
from broker.store.team_session import TeamSession
from broker.store.writes import (
    Values,
    add_up_many,
    batches,
    column_of,
    insert_many,
    insert_new,
    update_one,
    upsert_many,
)

GENERATION = "spend_generation"
_SUMS = Amounts._fields
NO_WORDS: Mapping[str, str] = MappingProxyType({})
_WORDS = {"team", "workload", "provider", "kind", "tier", "gpu", "region", "offer_id"}


class SqlRollupRepository:
    """Settled bills summed by day, and closed months.

    A bill is a plan, or a reservation without one. ``cells``: see ``broker.domain.spend.spend_cells``.
    """

    def __init__(self, session: TeamSession) -> None:
        self._session = session

    async def find_generation(self) -> int:
        """The number of writes of the roll-up. Data read between two equal generations is consistent."""
        value = await self._session.scalar(select(MetaRow.value).where(MetaRow.name == GENERATION))
        return int(value or 0)

    async def find_mark(self) -> LedgerMark:
        """A value that changes with every write on which spend depends.

        Versions only grow, and rolling up rows, which removes them from the count, begins a new generation.
        """
        versions = func.count(), func.sum(ReservationRow.version)
        unsettled = select(*versions).where(ReservationRow.rolled_up.is_(False))
        plans = select(func.count(), func.sum(PlanRow.version)).select_from(PlanRow)
        generation = await self.find_generation()
        counts = [(await self._session.execute(statement)).one() for statement in (unsettled, plans)]
        of_rows, of_plans = ((int(count), int(versions or 0)) for count, versions in counts)
        return LedgerMark(generation, of_rows, of_plans)

    async def find_open_bills(self) -> frozenset[str]:
        """Bills with a reservation whose current version is not rolled up."""
        bill = func.coalesce(ReservationRow.plan_id, ReservationRow.reservation_id)
        statement = select(bill).where(ReservationRow.rolled_up.is_(False)).distinct()
        return frozenset((await self._session.scalars(statement)).all())

    async def find_first_day(self) -> date | None:
        """The first day with rolled-up spend."""
        first: date | None = await self._session.scalar(select(func.min(SpendDayRow.day)))
        return first

    async def find_stored(self, bill_ids: Collection[str]) -> Mapping[str, Cells]:
        """The rolled-up amounts of bills."""
        found: dict[str, Cells] = {}
        for part in batches(sorted(bill_ids)):
            statement = select(SpendBillRow).where(SpendBillRow.bill_id.in_(part))
            rows = await self._session.scalars(statement.execution_options(populate_existing=True))
            found |= {row.bill_id: _cells(row.cells) for row in rows}
        return found

    async def find_sums(
        self, days: tuple[date, date] | None, group_by: str, narrowed: Mapping[str, str] = NO_WORDS
    ) -> tuple[DaySum, ...]:
        """Rolled-up spend by day and group, of cells with all values in ``narrowed`` (see NARROWED_BY).

        ``days`` are the first day and the day after the last one (None: all days).
        """
        day = SpendDayRow
        group = column_of(day, group_by) if group_by in _WORDS else func.max("committed")
        statement = select(day.day, group, func.sum(day.cents), func.sum(day.cash_cents)).where(
            *_span(days), *(column_of(day, name) == word for name, word in narrowed.items())
        )
        by = (day.day, group) if group_by in _WORDS else (day.day,)
        rows = await self._session.execute(statement.group_by(*by))
        return tuple(DaySum(day, word, int(cents), int(cash)) for day, word, cents, cash in rows)

    async def find_cells(self, days: tuple[date, date] | None) -> Mapping[CellKey, Amounts]:
        """Rolled-up spend of all ``days`` together, by cell; a correction apart from what it corrects."""
        row = SpendDayRow
        totals = (func.sum(column_of(row, name)).label(name) for name in _SUMS)
        sums = select(row.cell, func.min(row.day).label("day"), *totals).where(*_span(days))
        by_cell = sums.group_by(row.cell).subquery()
        words = [column_of(row, name) for name in CellKey._fields]
        first = and_(row.day == by_cell.c.day, row.cell == by_cell.c.cell)
        rows = await self._session.execute(
            select(*words, *(by_cell.c[name] for name in _SUMS)).join(by_cell, first)
        )
        width = len(words)
        return {CellKey(*row[:width]): Amounts(*map(int, row[width:])) for row in rows}

    async def put(self, bill_id: str, team: str, old: Cells, new: Cells) -> None:
        """Replaces the rolled-up amounts ``old`` of a bill by ``new``, and updates the sums."""
        added = [_values(day, key, amounts) for (day, key), amounts in difference(new, old).items()]
        await add_up_many(self._session, SpendDayRow, added, _SUMS)
        bill = {"bill_id": bill_id, "team": team, "cells": _document(new)}
        await upsert_many(self._session, SpendBillRow, [bill])

    async def settle(self, reservations: Iterable[Reservation]) -> bool:
        """Marks a bill as rolled up; False if one of its reservations was written meanwhile."""
        of = ReservationRow
        for row in reservations:
            same = and_(of.reservation_id == row.reservation_id, of.version == row.version)
            if not await update_one(self._session, of, same, {"rolled_up": True}):
                return False
        return True

    async def next_generation(self) -> None:
        """Increments the generation; the next writer waits for this transaction."""
        value = str(await self.find_generation() + 1)
        await upsert_many(self._session, MetaRow, [{"name": GENERATION, "value": value}])

    async def find_closed(self) -> tuple[ClosedMonth, ...]:
        """Closed months, oldest first."""
        rows = await self._session.scalars(select(ClosedMonthRow).order_by(ClosedMonthRow.month))
        return tuple(
            ClosedMonth(row.month, row.closed_at, row.closed_by, row.comment, row.cents * CENT, row.rows)
            for row in rows
        )

    async def add_closed(self, month: ClosedMonth) -> None:
        """Stores a closed month. Raises Conflict if it is already closed."""
        values = {
            "month": month.month,
            "closed_at": month.closed_at,
            "closed_by": month.closed_by,
            "comment": month.comment,
            "cents": int(month.usd / CENT),
            "rows": month.rows,
        }
        await insert_new(self._session, ClosedMonthRow, values, f"closed month {month.month:%Y-%m}")

    async def add_closed_rows(self, month: date, ordinal: int, team: str, rows: Sequence[FocusRow]) -> None:
        """Stores FOCUS rows of a closed month, which are all of one team."""
        packed = zlib.compress(json.dumps([_packed(row) for row in rows]).encode())
        values = {"month": month, "ordinal": ordinal, "team": team, "content": packed}
        await insert_many(self._session, ClosedRowsRow, [values])

    async def find_closed_parts(self, month: date) -> tuple[int, ...]:
        """Numbers of the parts in which the rows of a closed month are stored, in order."""
        chosen = select(ClosedRowsRow.ordinal).where(ClosedRowsRow.month == month)
        return tuple((await self._session.scalars(chosen.order_by(ClosedRowsRow.ordinal))).all())

    async def find_closed_rows(self, month: date, ordinal: int) -> tuple[FocusRow, ...]:
        """FOCUS rows of one part of a closed month, as they were; NotFound."""
        of_part = (ClosedRowsRow.month == month, ClosedRowsRow.ordinal == ordinal)
        content = await self._session.scalar(select(ClosedRowsRow.content).where(*of_part))
        if content is None:
            raise NotFound("part of a closed month", f"{month:%Y-%m}/{ordinal}")
        rows = json.loads(zlib.decompress(content))
        return tuple({name: _cell(name, text) for name, text in row.items()} for row in rows)

    async def add_closed_costs(self, month: date, costs: Mapping[str, FocusCosts]) -> None:
        """Stores the sums of a month's FOCUS rows by reservation."""
        many = [{"month": month, "reservation_id": name, **one._asdict()} for name, one in costs.items()]
        await insert_many(self._session, ClosedCostRow, many)

    async def find_closed_costs(
        self, months: Sequence[date], reservation_ids: Collection[str]
    ) -> Mapping[str, FocusCosts]:
        """Sums of FOCUS rows of closed months by reservation."""
        cost = ClosedCostRow
        found: dict[str, FocusCosts] = {}
        for part in batches(sorted(reservation_ids)):
            statement = (
                select(cost.reservation_id, func.sum(cost.billed_cents), func.sum(cost.effective_cents))
                .where(cost.month.in_(months), cost.reservation_id.in_(part))
                .group_by(cost.reservation_id)
            )
            for name, billed, effective in await self._session.execute(statement):
                found[name] = FocusCosts(int(billed), int(effective))
        return found

    async def add_closed_work(self, month: date, work: Iterable[DayWork]) -> None:
        """Stores the work of plans in a month that is being closed."""
        many = [
            {
                "day": one.day,
                "plan_id": one.plan_id,
                "workload": one.workload,
                "month": month,
                "team": one.team,
                "kind": None if one.kind is None else one.kind.value,
                "cents": int(one.usd / CENT),
                "used_gpu_seconds": one.used_gpu_seconds,
                "planned_gpu_seconds": one.planned_gpu_seconds,
                "tokens": one.tokens,
                "is_used": one.is_used,
            }
            for one in work
        ]
        await insert_many(self._session, ClosedWorkRow, many)

    async def find_months_with_work(self) -> tuple[date, ...]:
        """Closed months whose work is stored, oldest first."""
        row = ClosedWorkRow
        return tuple((await self._session.scalars(select(row.month).distinct().order_by(row.month))).all())

    async def find_closed_work(self, days: tuple[date, date] | None) -> tuple[DayWork, ...]:
        """The stored work of some days (None: all)."""
        row = ClosedWorkRow
        chosen = select(row).order_by(row.day, row.plan_id, row.workload)
        if days is not None:
            chosen = chosen.where(row.day >= days[0], row.day < days[1])
        return tuple(
            DayWork(
                one.day,
                one.team,
                one.plan_id,
                one.workload,
                None if one.kind is None else WorkloadKind(one.kind),
                one.cents * CENT,
                one.used_gpu_seconds,
                one.planned_gpu_seconds,
                one.tokens,
                one.is_used,
            )
            for one in await self._session.scalars(chosen)
        )


def _packed(row: FocusRow) -> dict[str, str]:
    return {
        name: cell.isoformat() if isinstance(cell, datetime) else str(cell)
        for name, cell in row.items()
        if cell is not None
    }


def _cell(name: str, text: str) -> Cell:
    kind = kind_of(name)
    if kind is Kind.DECIMAL:
        return Decimal(text)
    return datetime.fromisoformat(text) if kind is Kind.TIME else text


def _span(days: tuple[date, date] | None) -> tuple[ColumnElement[bool], ...]:
    return () if days is None else (SpendDayRow.day >= days[0], SpendDayRow.day < days[1])


def _values(day: date, key: CellKey, amounts: Amounts) -> Values:
    name = hashlib.blake2b("\x1f".join(map(str, key)).encode(), digest_size=12).hexdigest()
    return {"day": day, "cell": name, **key._asdict(), **amounts._asdict()}


def _document(cells: Cells) -> list[Any]:
    return [[day.isoformat(), *key, *amounts] for (day, key), amounts in cells.items()]


def _cells(document: list[Any]) -> Cells:
    width = 1 + len(CellKey._fields)
    return {(date.fromisoformat(row[0]), CellKey(*row[1:width])): Amounts(*row[width:]) for row in document}
