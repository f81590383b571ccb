"""Sums of spend without reading every reservation: settled bills are rolled up by day, the others are read.

A bill is settled if nothing of it is open and its charges no longer depend on the time. The roll-up is always
exact: a write to a reservation excludes its bill from it until the next pass.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TypeVar

from broker.domain.basics.access import EVERY_TEAM, TeamScope
from broker.domain.basics.errors import ConcurrentChange
from broker.domain.basics.money import CENT, ZERO
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Reservation
from broker.domain.spend.month_close import closed_until
from broker.domain.spend.spend import (
    Charge,
    ChargeBasis,
    Commitment,
    CostView,
    Interval,
    group_of,
    period_of,
    projection_end,
)
from broker.domain.spend.spend_cells import (
    NOTHING,
    Amounts,
    CellKey,
    Cells,
    cell_charge,
    cells_of,
    key_of,
    reported,
)
from broker.lru_cache import LruCache
from broker.ports.unit_of_work import Clock, UnitOfWork, UnitOfWorkFactory
from broker.services.spend.ledger import Entries, Gathered, bill_of, charges_of, find_charges, find_entries
from broker.services.spend.settled_spend import (
    MOST_SUMS,
    Days,
    SettledReader,
    SumKey,
    SumQuestion,
    Sums,
    Words,
    day_charge,
    midnight,
)
from broker.services.spend.unsettled_spend import LiveReader, UnsettledPart, UnsettledSpend

Found = TypeVar("Found")

TRIES = 5
BATCH = 100
DAY = timedelta(days=1)
FAR = timedelta(days=4000)
"""A charge that is the same after this time does not depend on the time."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Sums by period, group, basis and commitment at ``at``.

    Days before ``closed_until`` have the figures with which their month was closed (None: no month is
    closed).
    """

    usd: Mapping[SumKey, Decimal]
    closed_until: date | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Expected:
    """Projected charges at ``at``, oldest first."""

    at: datetime
    charges: tuple[Charge, ...]


def settled_bills(entries: Entries, now: datetime) -> Mapping[str, tuple[Charge, ...]]:
    """Charges of settled bills: nothing is open, all charges are actual, and time changes nothing.

    Charges of other bills are not computed; a lease without an end has one per day, which takes seconds.
    """
    still_open = {bill_of(row) for row in entries.rows if row.is_open}
    ended = replace(entries, rows=tuple(row for row in entries.rows if bill_of(row) not in still_open))
    charges, later = (charges_of(ended, at).by_bill for at in (now, now + FAR))
    return {
        name: owed
        for name, owed in charges.items()
        if owed == later[name] and all(charge.basis is ChargeBasis.ACTUAL for charge in owed)
    }


def part_settled(entries: Entries, now: datetime) -> tuple[Gathered, Entries]:
    """Charges of settled bills without a current plan, and the inputs of all other charges."""
    current = {record.plan_id for record in entries.records}
    over = {name: owed for name, owed in settled_bills(entries, now).items() if name not in current}
    running = tuple(row for row in entries.rows if bill_of(row) not in over)
    return Gathered(over, ()), replace(entries, rows=running)


class Summaries:
    """Sums of spend. All services of a process share one instance, because it has the caches."""

    def __init__(self, units: UnitOfWorkFactory, clock: Clock) -> None:
        self._units = units
        self._clock = clock
        self._settled = SettledReader()
        self._live = LiveReader()
        self._sums = LruCache[Sums](MOST_SUMS, len)
        self._days = LruCache[tuple[Charge, ...]](MOST_SUMS, len)

    async def find(self, asked: SumQuestion, window: Window | None) -> Summary:
        """Sums of ``window``, which begins and ends at UTC midnights (None: all).

        Raises ConcurrentChange if the roll-up is written during every try to read it.
        """
        question = asked._replace(days=_days_of(window))
        live, settled = await self._look(
            asked.scope,
            _end_of(window),
            lambda uow, generation: self._settled.find(uow, question, generation),
        )
        base = self._sums.once(
            (question, live.token), lambda: _with(settled, question, live.open_from, live.steady)
        )
        return Summary(_with(base, question, live.open_from, live.moving), live.open_from, live.at)

    async def find_cut(self, asked: SumQuestion, window: Window) -> Summary:
        """Sums of a ``window`` that need not begin or end at midnight.

        They are the sums of the whole days whose midnights it contains, corrected charge by charge at both
        edges. Days of closed months are not corrected.
        """
        first, last = _next_midnight(window.start), _next_midnight(window.end)
        base = await self.find(asked, Window(first, max(last, first + DAY)))
        sums = _Sums(asked, base.closed_until)
        edges = [(1, Window(window.start, first))] if window.start < first else []
        edges += [(-1, Window(window.end, last))] if window.end < last else []
        for sign, edge in edges:
            async with self._units(asked.scope) as uow:
                charges = await find_charges(uow, base.at, edge, asked.view)
            sums.add_open(charges, sign)
        return replace(base, usd=sums.over(base.usd if first < last else {}))

    async def find_charges(self, scope: TeamScope, until: datetime | None = None) -> tuple[Charge, ...]:
        """Charges that sum to all spend of ``scope``: settled ones by day and team, all others in detail.

        Leases without an end are projected to ``until`` (None: the end of the month).
        """
        settled, live = await self.find_both(scope, until)
        return (*settled, *live.charges)

    async def find_live(self, scope: TeamScope, until: datetime | None = None) -> UnsettledSpend:
        """Spend of ``scope`` that is not rolled up."""
        now = self._clock.now()
        async with self._units(scope) as uow:
            return (await self._live.find(uow, now, until or projection_end(None, now)))[0]

    async def find_days(self, scope: TeamScope, until: datetime | None = None) -> tuple[Charge, ...]:
        """The charges of ``find_charges``, summed with ``sum_by_day``."""
        return self.days_of(scope, *await self.find_both(scope, until))

    def days_of(
        self, scope: TeamScope, settled: tuple[Charge, ...], live: UnsettledSpend
    ) -> tuple[Charge, ...]:
        """The charges of ``find_days``, from the results of ``find_both``."""
        steady = self._days.once((scope, live.token), lambda: (*settled, *sum_by_day(live.steady.charges)))
        return (*steady, *sum_by_day(live.moving.charges))

    async def find_both(
        self, scope: TeamScope, until: datetime | None
    ) -> tuple[tuple[Charge, ...], UnsettledSpend]:
        """The charges of ``find_charges`` in two parts: settled ones, and the others with their plans."""
        live, settled = await self._look(
            scope, until, lambda uow, generation: self._settled.find_charges(uow, generation)
        )
        return settled, live

    async def find_charges_in(
        self, scope: TeamScope, window: Window | None, view: CostView = CostView.AMORTIZED
    ) -> tuple[Charge, ...]:
        """Charges in ``window``, which begins and ends at UTC midnights (None: all), as they are reported.

        Amortized: actual charges are summed by cell, without their plan; projected ones are single. Cash: all
        charges are single, for which every reservation is read; a charge without GPU-seconds adds the
        difference to the figures of closed months.
        """
        days = _days_of(window)
        live, settled = await self._look(
            scope,
            _end_of(window),
            lambda uow, generation: self._settled.find_cells(uow, days, generation),
        )
        cells = defaultdict(Amounts, settled)
        for (day, key), amounts in live.owed:
            if _is_in(days, day):
                cells[key] = cells[key].plus(amounts)
        coming = _expected_in(live.expected, days, live.open_from, view)
        span = window or Window(live.at, live.at + DAY)
        if view is CostView.AMORTIZED:
            return (*(cell_charge(key, one, span) for key, one in cells.items() if one != NOTHING), *coming)
        async with self._units(scope) as uow:
            every = await find_charges(uow, live.at, window, view)
        owed = tuple(charge for charge in every if charge.basis is ChargeBasis.ACTUAL)
        return (*owed, *_said_otherwise(cells, owed, span), *coming)

    async def find_expected(
        self, scope: TeamScope, window: Window | None, narrowed: Mapping[str, str]
    ) -> Expected:
        """Projected charges of open months in ``window`` (None: any time) with the values ``narrowed``."""
        _, live = await self.find_both(scope, _end_of(window))
        words, until = tuple(narrowed.items()), live.open_from
        chosen = (
            charge
            for charge in live.expected
            if (window is None or window.contains(charge.window.start))
            and (until is None or charge.window.start.date() >= until)
            and _has_words(charge, words)
        )
        order = sorted(chosen, key=lambda c: (c.window.start, c.team, c.workload, c.provider, c.sku))
        return Expected(live.at, tuple(order))

    async def _look(
        self,
        scope: TeamScope,
        until: datetime | None,
        settled: Callable[[UnitOfWork, int], Awaitable[Found]],
    ) -> tuple[UnsettledSpend, Found]:
        """Spend that is not rolled up, and the result of ``settled`` from the roll-up, of the same moment.

        Leases without an end are projected to ``until`` (None: the end of the month).
        """
        for _ in range(TRIES):
            now = self._clock.now()
            async with self._units(scope) as uow:
                end = until or projection_end(None, now)
                live, mark = await self._live.find(uow, now, end)
                found = await settled(uow, mark.generation)
                if mark.generation == await uow.rollups.find_generation():
                    return live, found
        raise ConcurrentChange("the roll-up of spend is being written; try again")

    async def refresh(self) -> int:
        """Rolls up the bills that are settled now. Returns their number."""
        async with self._units(EVERY_TEAM) as uow:
            bills = sorted(await uow.rollups.find_open_bills())
        done = 0
        for first in range(0, len(bills), BATCH):
            done += await self._roll_up(bills[first : first + BATCH])
        return done

    async def _roll_up(self, bills: Collection[str]) -> int:
        """Rolls up one batch in one transaction, and nothing if a reservation was written meanwhile."""
        now = self._clock.now()
        async with self._units(EVERY_TEAM) as uow:
            rows = await uow.reservations.find_of_bills(bills)
            entries = await find_entries(uow, (), rows)
            # In a thread, because bills of many days take seconds, which would block the event loop.
            settled = await asyncio.to_thread(settled_bills, entries, now)
            stored = await uow.rollups.find_stored(bills)
            until = closed_until(await uow.rollups.find_closed())
            by_bill: defaultdict[str, list[Reservation]] = defaultdict(list)
            for row in rows:
                by_bill[bill_of(row)].append(row)
            for name, charges in settled.items():
                bill, old = by_bill[name], stored.get(name, {})
                await uow.rollups.put(name, bill[0].team, old, reported(cells_of(charges), old, until))
                if not await uow.rollups.settle(bill):
                    return 0
            if settled:
                await uow.rollups.next_generation()
                await uow.commit()
        return len(settled)


def is_whole_days(window: Window) -> bool:
    """Whether it begins and ends at UTC midnights."""
    return all(edge.timetz() == time(tzinfo=UTC) for edge in (window.start, window.end))


def _next_midnight(instant: datetime) -> datetime:
    day = period_of(instant, Interval.DAY)
    return day if day == instant else day + DAY


def _is_in(days: Days | None, day: date) -> bool:
    return days is None or days[0] <= day < days[1]


def _has_words(one: Charge | CellKey, words: Words) -> bool:
    return all(str(getattr(one, name) or "-") == word for name, word in words)


def _expected_in(
    charges: Iterable[Charge], days: Days | None, until: date | None, view: CostView
) -> Iterator[Charge]:
    """Projected charges of open months on ``days``."""
    for charge in charges:
        day = charge.at(view).date()
        if _is_in(days, day) and (until is None or day >= until):
            yield charge


def _said_otherwise(
    cells: Mapping[CellKey, Amounts], owed: Iterable[Charge], span: Window
) -> Iterator[Charge]:
    """Charges for the cash difference between ``cells`` and ``owed``."""
    cents = defaultdict[CellKey, int](int)
    for key, amounts in cells.items():
        cents[key._replace(correction=False)] += amounts.cash_cents
    for charge in owed:
        cents[key_of(charge)] -= int(charge.usd / CENT)
    return (cell_charge(key, Amounts(cents=left), span) for key, left in cents.items() if left)


def _days_of(window: Window | None) -> Days | None:
    return None if window is None else (window.start.date(), window.end.date())


def _end_of(window: Window | None) -> datetime | None:
    return None if window is None else window.end


def sum_by_day(charges: Iterable[Charge]) -> Iterator[Charge]:
    """``charges`` summed by UTC day, team, basis, and whether they are reserved and open-ended."""
    cents: defaultdict[tuple[date, str, ChargeBasis, bool, bool], int] = defaultdict(int)
    for charge in charges:
        is_reserved = charge.reservation_id is not None
        key = charge.window.start.date(), charge.team, charge.basis, is_reserved, charge.is_open_ended
        cents[key] += int(charge.usd.scaleb(2))
    for (day, team, basis, is_reserved, is_open_ended), found in cents.items():
        name = "-" if is_reserved else None
        yield day_charge(midnight(day), team, found * CENT, basis, name, is_open_ended=is_open_ended)


def _with(known: Sums, asked: SumQuestion, until: date | None, part: UnsettledPart) -> Sums:
    """``known`` plus the sums of ``part``."""
    sums = _Sums(asked, until)
    sums.add_owed(part.owed)
    sums.add_expected(part.expected)
    return sums.over(known)


class _Sums:
    """Adds unsettled spend in whole cents."""

    def __init__(self, asked: SumQuestion, until: date | None) -> None:
        self._asked = asked
        self._until = until
        self._cents: defaultdict[SumKey, int] = defaultdict(int)
        self._periods: dict[date, datetime] = {}

    def add_owed(self, owed: Cells) -> None:
        """Adds actual amounts that are not rolled up."""
        asked = self._asked
        cash = asked.view is CostView.CASH
        for (day, key), amounts in owed.items():
            cents = amounts.cash_cents if cash else amounts.cents
            if not cents or not _is_in(asked.days, day) or not _has_words(key, asked.narrowed):
                continue
            group = Commitment.COMMITTED.value
            if asked.group_by != "commitment":
                group = getattr(key, asked.group_by) or "-"
            period = self._period(day)
            self._cents[SumKey(period, group, ChargeBasis.ACTUAL, Commitment.COMMITTED)] += cents

    def add_expected(self, charges: Iterable[Charge]) -> None:
        """Adds projected charges of open months."""
        self._add(charges, 1, self._asked.days)

    def add_open(self, charges: Iterable[Charge], sign: int) -> None:
        """Adds charges of open days, or subtracts them (``sign`` -1)."""
        self._add(charges, sign, None)

    def _add(self, charges: Iterable[Charge], sign: int, days: Days | None) -> None:
        asked, until = self._asked, self._until
        for charge in charges:
            day = charge.at(asked.view).date()
            if (until is not None and day < until) or not _is_in(days, day):
                continue
            if asked.narrowed and not _has_words(charge, asked.narrowed):
                continue
            group = group_of(charge, asked.group_by)
            key = SumKey(self._period(day), group, charge.basis, charge.commitment)
            self._cents[key] += sign * int(charge.usd.scaleb(2))

    def over(self, settled: Mapping[SumKey, Decimal]) -> dict[SumKey, Decimal]:
        """``settled`` plus the added amounts, without sums of zero."""
        found = dict(settled)
        for key, cents in self._cents.items():
            usd = found.get(key, ZERO) + cents * CENT
            if usd:
                found[key] = usd
            else:
                found.pop(key, None)
        return found

    def _period(self, day: date) -> datetime:
        if day not in self._periods:
            self._periods[day] = period_of(midnight(day), self._asked.interval)
        return self._periods[day]
