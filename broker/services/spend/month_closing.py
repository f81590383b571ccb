"""Closing of months: their reported sums and FOCUS rows are stored and do not change any more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal

from broker.domain.basics.access import EVERY_TEAM, TeamScope
from broker.domain.basics.account import AuditEntry
from broker.domain.basics.money import CENT, usd_words
from broker.domain.basics.webhook import ALL_TEAMS
from broker.domain.basics.window import Window
from broker.domain.focus.columns import FocusRow
from broker.domain.focus.corrections import NO_COSTS, Costs, costs_of, open_rows, start_of
from broker.domain.holding.reservation import Reservation
from broker.domain.spend.month_close import (
    ClosedMonth,
    MonthClose,
    closed_until,
    find_unconfirmed,
    month_window,
    require_closable,
)
from broker.domain.spend.spend import Charge, ChargeBasis
from broker.domain.spend.spend_cells import Cells, cells_of, difference, kept_before, reported
from broker.ports.planning import RequestReader
from broker.ports.spend import FocusCosts
from broker.ports.unit_of_work import Clock, UnitOfWork, UnitOfWorkFactory
from broker.services.spend.ledger import PAGE, find_reservations
from broker.services.spend.planned_work import work_done
from broker.services.spend.unsettled_spend import find_open_books

ROWS_TOGETHER = 500


class MonthClosing:
    """Closes months, and reads FOCUS rows as they are reported.

    ``read_request`` reads the documents of plans, whose work is stored with the month (None: it is not).
    """

    def __init__(
        self, units: UnitOfWorkFactory, clock: Clock, read_request: RequestReader | None = None
    ) -> None:
        self._units = units
        self._clock = clock
        self._read_request = read_request

    async def close(self, month: date, by: str, comment: str) -> MonthClose:
        """Closes a past month in one transaction; reports of it never change again.

        It also closes where a seller did not confirm its leases since; what that one bills later is a
        correction.

        Raises InputError if the month is not over, and Conflict if it is closed or an earlier month is open.
        """
        now, window = self._clock.now(), month_window(month)
        async with self._units(EVERY_TEAM) as uow:
            closed = await uow.rollups.find_closed()
            books = await find_open_books(uow)
            owed = {name: _owed(charges) for name, charges in books.charges(now).by_bill.items()}
            days = [day for cells in owed.values() for day, _ in cells]
            first = min([*days, await uow.rollups.find_first_day() or window.start.date()])
            require_closable(month, closed, first.replace(day=1), now)
            until = closed_until(closed)
            settled = await uow.rollups.find_sums((month, window.end.date()), "team")
            cents = sum(row.cents for row in settled)
            for name, cells in owed.items():
                old = books.stored.get(name, {})
                kept = kept_before(reported(cells, old, until), window.end.date())
                changed = difference(kept, old)
                cents += sum(added.cents for (day, _), added in changed.items() if day >= month)
                for _, key in list(changed)[:1]:
                    await uow.rollups.put(name, key.team, old, kept)
            rows = await self._book_rows(uow, window, until, closed, now)
            if self._read_request is not None:
                work = await work_done(uow, window, now, self._read_request)
                await uow.rollups.add_closed_work(month, work)
            done = ClosedMonth(month, now, by, comment, cents * CENT, rows)
            await uow.rollups.add_closed(done)
            unconfirmed = find_unconfirmed(await uow.reservations.find_open(), window)
            detail = f"{usd_words(done.usd)}, {rows} rows"
            if unconfirmed:
                detail += f"; not confirmed since by {', '.join(one.provider for one in unconfirmed)}"
            detail += f"; {comment}" if comment else ""
            name = f"{month:%Y-%m}"
            await uow.accounts.add_audit(AuditEntry(now, by, "spend.close", "month", name, ALL_TEAMS, detail))
            await uow.rollups.next_generation()
            await uow.commit()
        return MonthClose(done, unconfirmed)

    async def _book_rows(
        self,
        uow: UnitOfWork,
        window: Window,
        until: date | None,
        closed: Sequence[ClosedMonth],
        now: datetime,
    ) -> int:
        """Stores the FOCUS rows of a month and their sums by reservation. Returns the number of rows."""
        month, install_id = window.start.date(), await uow.accounts.install_id()
        waiting: defaultdict[str, list[FocusRow]] = defaultdict(list)
        costs: defaultdict[str, Costs] = defaultdict(lambda: NO_COSTS)
        count = ordinal = 0
        async for whole in _placed_together(uow):
            booked = await _booked(uow, closed, whole)
            for row in open_rows(whole, now, install_id, _midnight(until), booked):
                if not window.contains(start_of(row)):
                    continue
                team, name = str(row["SubAccountId"]), str(row["x_ReservationId"])
                billed, effective = costs_of(row)
                costs[name] = (costs[name][0] + billed, costs[name][1] + effective)
                waiting[team].append(row)
                count += 1
                if len(waiting[team]) == ROWS_TOGETHER:
                    await uow.rollups.add_closed_rows(month, ordinal, team, waiting.pop(team))
                    ordinal += 1
        for team, rows in sorted(waiting.items()):
            await uow.rollups.add_closed_rows(month, ordinal, team, rows)
            ordinal += 1
        sums = {name: FocusCosts(_cents(billed), _cents(spread)) for name, (billed, spread) in costs.items()}
        await uow.rollups.add_closed_costs(month, sums)
        return count

    async def focus_rows(
        self, scope: TeamScope, as_of: datetime, asked: Window | None
    ) -> AsyncIterator[FocusRow]:
        """FOCUS rows as they are reported: closed months as they were closed by ``as_of``, then open months.

        No transaction is open while the caller uses a row. Months outside ``asked`` (None: all) are not read.
        """
        async with self._units(scope) as uow:
            install_id = await uow.accounts.install_id()
            closed = [one for one in await uow.rollups.find_closed() if one.closed_at <= as_of]
        until = _midnight(closed_until(closed))
        for month in closed:
            if asked is not None and not asked.overlaps(month_window(month.month)):
                continue
            async with self._units(scope) as uow:
                parts = await uow.rollups.find_closed_parts(month.month)
            for part in parts:
                async with self._units(scope) as uow:
                    rows = await uow.rollups.find_closed_rows(month.month, part)
                for row in rows:
                    yield row
        if asked is not None and until is not None and asked.end <= until:
            return
        async for whole, booked in self._open_groups(scope, closed):
            for row in open_rows(whole, as_of, install_id, until, booked):
                yield row

    async def _open_groups(
        self, scope: TeamScope, closed: Sequence[ClosedMonth]
    ) -> AsyncIterator[tuple[tuple[Reservation, ...], Mapping[str, FocusCosts]]]:
        """Reservations grouped by plan, with the costs that closed months have for each."""
        seen: set[str] = set()
        cursor: str | None = None
        while True:
            async with self._units(scope) as uow:
                page = await uow.reservations.find_page(PAGE, cursor)
                groups = []
                for reservation in page.items:
                    whole = await _whole_of(uow, reservation, seen)
                    if whole:
                        groups.append((whole, await _booked(uow, closed, whole)))
            for group in groups:
                yield group
            cursor = page.next_cursor
            if cursor is None:
                return


async def _placed_together(uow: UnitOfWork) -> AsyncIterator[tuple[Reservation, ...]]:
    """All reservations, grouped by plan."""
    seen: set[str] = set()
    cursor: str | None = None
    while True:
        page = await uow.reservations.find_page(PAGE, cursor)
        for reservation in page.items:
            whole = await _whole_of(uow, reservation, seen)
            if whole:
                yield whole
        cursor = page.next_cursor
        if cursor is None:
            return


async def _whole_of(uow: UnitOfWork, reservation: Reservation, seen: set[str]) -> tuple[Reservation, ...]:
    """The reservation with the others of its plan; empty if the plan was ``seen`` before."""
    if reservation.plan_id is None:
        return (reservation,)
    if reservation.plan_id in seen:
        return ()
    seen.add(reservation.plan_id)
    return await find_reservations(uow, reservation.plan_id)


async def _booked(
    uow: UnitOfWork, closed: Sequence[ClosedMonth], whole: Sequence[Reservation]
) -> Mapping[str, FocusCosts]:
    if not closed:
        return {}
    months = [one.month for one in closed]
    return await uow.rollups.find_closed_costs(months, [row.reservation_id for row in whole])


def _owed(charges: Sequence[Charge]) -> Cells:
    return cells_of(charge for charge in charges if charge.basis is ChargeBasis.ACTUAL)


def _midnight(day: date | None) -> datetime | None:
    return None if day is None else datetime.combine(day, time(), UTC)


def _cents(usd: Decimal) -> int:
    return int(usd / CENT)
