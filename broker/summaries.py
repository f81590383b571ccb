"""Sums of spend without reading every reservation: settled bills are rolled up by day, the others are read.

A bill is settled when nothing of it is open and its charges no longer depend on the time. What is rolled up
is exact at every moment: a write to a reservation takes its bill out of what counts as rolled up, until the
next pass has looked at it again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import NamedTuple

from broker.domain.errors import ConcurrentChange
from broker.domain.money import CENT
from broker.domain.month_close import closed_until
from broker.domain.offer import Tier
from broker.domain.reservation import Reservation
from broker.domain.spend import (
    Charge,
    ChargeBasis,
    Commitment,
    CostView,
    Interval,
    group_of,
    period_of,
)
from broker.domain.spend_cells import NOTHING, Cells, cells_of, difference, reported
from broker.domain.window import Window
from broker.finance_ports import DaySum, RollupUnitOfWork, RollupUnits
from broker.ledger import Gathered, bill_of, gather
from broker.ports import Clock

TRIES = 5
BATCH = 100
FAR = timedelta(days=4000)
"""A charge that is the same this much later does not depend on the time."""


class SumKey(NamedTuple):
    """What is told apart in a summary."""

    period: datetime
    group: str
    basis: ChargeBasis
    commitment: Commitment


@dataclass(frozen=True, slots=True)
class Summary:
    """Money by period, group, basis and commitment. Days of closed months are as they were
    closed; ``closed_until``: the first day that is open (None: no month is closed)."""

    usd: Mapping[SumKey, Decimal]
    closed_until: date | None


def sum_by_key(
    charges: Iterable[Charge], interval: Interval, group_by: str, view: CostView
) -> dict[SumKey, Decimal]:
    """The sums of ``charges``."""
    sums: defaultdict[SumKey, Decimal] = defaultdict(Decimal)
    for charge in charges:
        period = period_of(charge.at(view), interval)
        sums[SumKey(period, group_of(charge, group_by), charge.basis, charge.commitment)] += charge.usd
    return dict(sums)


def is_settled(
    reservations: Iterable[Reservation], now: Collection[Charge], later: Collection[Charge]
) -> bool:
    """Whether a bill is over: nothing is open, all is owed, and time changes nothing."""
    if any(row.is_open for row in reservations):
        return False
    return now == later and all(charge.basis is ChargeBasis.ACTUAL for charge in now)


class Summaries:
    """Reads and keeps the roll-up."""

    def __init__(self, units: RollupUnits, clock: Clock) -> None:
        self._units = units
        self._clock = clock

    async def find(
        self,
        team: str | None,
        window: Window | None,
        interval: Interval,
        group_by: str,
        view: CostView = CostView.AMORTIZED,
    ) -> Summary:
        """Sums of ``window``, which begins and ends at UTC midnights (None: all); exact as of now.

        Raises ConcurrentChange where the roll-up is written faster than it can be read.
        """
        days = None if window is None else (window.start.date(), window.end.date())
        found = await self._look(team, days, group_by)
        sums = _Sums(interval, group_by, view, days)
        for row in found.settled:
            sums.add_day(row.day, row.group, row.cents if view is CostView.AMORTIZED else row.cash_cents)
        for name, charges in found.live.by_bill.items():
            sums.add_cells(found.beyond_settled(name, charges))
            sums.add_expected((c for c in charges if c.basis is ChargeBasis.PROJECTED), found.until)
        sums.add_expected(found.live.planned, found.until)
        return Summary(sums.done(), found.until)

    async def find_charges(self, team: str | None) -> tuple[Charge, ...]:
        """Charges that sum to all of ``team``'s spend (None: everybody's): what is settled by day and team,
        the rest in detail."""
        found = await self._look(team, None, "team")
        charges = [_of_day(row.day, row.group, row.cents) for row in found.settled]
        for name, detailed in found.live.by_bill.items():
            if found.stored.get(name):
                cells = found.beyond_settled(name, detailed)
                charges.extend(_of_day(day, key.team, amounts.cents) for (day, key), amounts in cells.items())
                charges.extend(c for c in detailed if c.basis is ChargeBasis.PROJECTED)
            else:
                charges.extend(detailed)
        return (*charges, *found.live.planned)

    async def _look(self, team: str | None, days: tuple[date, date] | None, group_by: str) -> _Look:
        """What is rolled up and what is not, as of one moment."""
        for _ in range(TRIES):
            async with self._units() as uow:
                generation = await uow.rollups.find_generation()
                settled = await uow.rollups.find_sums(team, days, group_by)
                until = closed_until(await uow.rollups.find_closed())
                live, stored = await self.find_live(uow, team)
                if generation == await uow.rollups.find_generation():
                    return _Look(settled, live, stored, until)
        raise ConcurrentChange("the roll-up of spend is being written; ask again")

    async def find_live(
        self, uow: RollupUnitOfWork, team: str | None
    ) -> tuple[Gathered, Mapping[str, Cells]]:
        """Charges of every bill that is not rolled up as it stands, and what is rolled up of them."""
        bills = await uow.rollups.find_open_bills(team)
        records = await uow.plans.find_current(team)
        wanted = {*bills, *(record.plan_id for record in records)}
        rows = await uow.reservations.find_of_bills(wanted)
        found = await gather(uow, self._clock.now(), records, rows)
        live = {name: charges for name, charges in found.by_bill.items() if name in bills}
        return Gathered(live, found.planned), await uow.rollups.find_stored(bills)

    async def refresh(self) -> int:
        """Rolls up the bills that are settled now; how many."""
        async with self._units() as uow:
            bills = sorted(await uow.rollups.find_open_bills(None))
        done = 0
        for first in range(0, len(bills), BATCH):
            done += await self._roll_up(bills[first : first + BATCH])
        return done

    async def _roll_up(self, bills: Collection[str]) -> int:
        """One batch in one transaction; nothing of it where a reservation was written meanwhile."""
        now = self._clock.now()
        async with self._units() as uow:
            rows = await uow.reservations.find_of_bills(bills)
            charges = (await gather(uow, now, (), rows)).by_bill
            later = (await gather(uow, now + FAR, (), rows)).by_bill
            stored = await uow.rollups.find_stored(bills)
            until = closed_until(await uow.rollups.find_closed())
            by_bill: defaultdict[str, list[Reservation]] = defaultdict(list)
            for row in rows:
                by_bill[bill_of(row)].append(row)
            done = 0
            for name, bill in by_bill.items():
                if is_settled(bill, charges[name], later[name]):
                    old = stored.get(name, {})
                    await uow.rollups.put(
                        name, bill[0].team, old, reported(cells_of(charges[name]), old, until)
                    )
                    if not await uow.rollups.settle(bill):
                        return 0
                    done += 1
            if done:
                await uow.rollups.next_generation()
                await uow.commit()
        return done


@dataclass(frozen=True, slots=True)
class _Look:
    """Sums of what is rolled up; charges of what is not, and what is rolled up of that nevertheless."""

    settled: tuple[DaySum, ...]
    live: Gathered
    stored: Mapping[str, Cells]
    until: date | None

    def beyond_settled(self, bill: str, charges: Iterable[Charge]) -> Cells:
        """What ``charges`` of a bill owe beyond what is rolled up of it."""
        stored = self.stored.get(bill, {})
        owed = cells_of(c for c in charges if c.basis is ChargeBasis.ACTUAL)
        return difference(reported(owed, stored, self.until), stored)


def _of_day(day: date, team: str, cents: int) -> Charge:
    """Owed money of a day, of which only the team is told."""
    start = datetime.combine(day, time(), UTC)
    return Charge(
        window=Window(start, start + timedelta(days=1)),
        team=team,
        workload="-",
        kind=None,
        provider="-",
        sku="-",
        tier=Tier.ON_DEMAND,
        usd=cents * CENT,
        basis=ChargeBasis.ACTUAL,
    )


class _Sums:
    """Adds up in whole cents."""

    def __init__(
        self, interval: Interval, group_by: str, view: CostView, days: tuple[date, date] | None
    ) -> None:
        self._interval = interval
        self._group_by = group_by
        self._view = view
        self._days = days
        self._cents: defaultdict[SumKey, int] = defaultdict(int)
        self._periods: dict[date, datetime] = {}

    def add_day(self, day: date, group: str, cents: int) -> None:
        """What is owed on one day."""
        if cents and self._is_asked(day):
            key = SumKey(self._period(day), group, ChargeBasis.ACTUAL, Commitment.COMMITTED)
            self._cents[key] += cents

    def add_cells(self, cells: Cells) -> None:
        """What is owed, by cell."""
        cash = self._view is CostView.CASH
        for (day, key), amounts in cells.items():
            if amounts != NOTHING:
                group = Commitment.COMMITTED.value
                if self._group_by != "commitment":
                    group = str(getattr(key, self._group_by) or "-")
                self.add_day(day, group, amounts.cash_cents if cash else amounts.cents)

    def add_expected(self, charges: Iterable[Charge], until: date | None) -> None:
        """What is not owed yet; a closed month expects nothing."""
        for charge in charges:
            day = charge.at(self._view).date()
            if self._is_asked(day) and (until is None or day >= until):
                group = group_of(charge, self._group_by)
                key = SumKey(self._period(day), group, ChargeBasis.PROJECTED, charge.commitment)
                self._cents[key] += int(charge.usd / CENT)

    def done(self) -> dict[SumKey, Decimal]:
        """The sums that are not zero."""
        return {key: cents * CENT for key, cents in self._cents.items() if cents}

    def _is_asked(self, day: date) -> bool:
        return self._days is None or self._days[0] <= day < self._days[1]

    def _period(self, day: date) -> datetime:
        if day not in self._periods:
            self._periods[day] = period_of(datetime.combine(day, time(), UTC), self._interval)
        return self._periods[day]
