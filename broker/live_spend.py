"""Spend that is not rolled up: what still runs, what was written since, and plans. Read once, and shared.

What was read is used for as long as nothing was written (``LedgerMark``); its charges, which depend on the
time, for ``SHARED``: every figure of one page is then of the same moment.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from broker.domain.money import CENT
from broker.domain.month_close import closed_until
from broker.domain.plan import Plan
from broker.domain.spend import Charge, ChargeBasis
from broker.domain.spend_cells import NOTHING, Amounts, CellKey, Cells, cells_of, difference, reported
from broker.finance_ports import LedgerMark, RollupUnitOfWork
from broker.ledger import Entries, Gathered, charges_of, find_entries, planned_charges
from broker.settled_spend import day_charge, midnight

SHARED = timedelta(seconds=5)
"""How old charges may be that are used again."""
MOST_KEPT = 32
"""Readings that are kept, one a team."""


@dataclass(frozen=True, slots=True)
class LiveSpend:
    """As of ``at``: money owed beyond what is rolled up, by cell, and what is expected.

    ``charges``: the same one by one; where a part of a bill is rolled up, its owed money by day and team.
    ``plans``: those that projected charges are of. ``until``: the first day that is not of a closed month
    (None: no month is closed).
    """

    at: datetime
    until: date | None
    owed: Cells
    expected: tuple[Charge, ...]
    charges: tuple[Charge, ...]
    plans: Mapping[str, Plan]


@dataclass(frozen=True, slots=True)
class OpenBooks:
    """What charges are made of that are not rolled up. ``bills``: those that are not rolled up as they stand;
    ``stored``: what is rolled up of them nevertheless; ``planned``: charges by plan, whatever the time is."""

    bills: frozenset[str]
    entries: Entries
    stored: Mapping[str, Cells]
    planned: Mapping[str, tuple[Charge, ...]]
    until: date | None

    def charges(self, now: datetime) -> Gathered:
        """Charges of the bills that are not rolled up, and of plans not bought yet."""
        found = charges_of(self.entries, now, lambda record: self.planned[record.plan_id])
        live = {name: charges for name, charges in found.by_bill.items() if name in self.bills}
        return Gathered(live, found.planned)


async def find_open_books(uow: RollupUnitOfWork, team: str | None) -> OpenBooks:
    """Those of ``team`` (None: everybody's)."""
    until = closed_until(await uow.rollups.find_closed())
    bills = await uow.rollups.find_open_bills(team)
    records = await uow.plans.find_current(team)
    rows = await uow.reservations.find_of_bills({*bills, *(record.plan_id for record in records)})
    entries = await find_entries(uow, records, rows)
    stored = await uow.rollups.find_stored(bills)
    planned = {record.plan_id: planned_charges(record) for record in records}
    return OpenBooks(bills, entries, stored, planned, until)


@dataclass(slots=True)
class _Kept:
    mark: LedgerMark
    books: OpenBooks
    live: LiveSpend


class LiveReader:
    """Reads what is not rolled up, or uses what was read before."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str | None, _Kept] = OrderedDict()

    async def find(
        self, uow: RollupUnitOfWork, team: str | None, now: datetime
    ) -> tuple[LiveSpend, LedgerMark]:
        """Of ``team`` (None: everybody's), as of at most ``SHARED`` before ``now``; what it is based on."""
        mark = await uow.rollups.find_mark(team)
        kept = self._kept.get(team)
        if kept is not None and kept.mark == mark:
            if not now - SHARED <= kept.live.at <= now:
                kept.live = live_spend(kept.books, now)
            return kept.live, mark
        books = await find_open_books(uow, team)
        live = live_spend(books, now)
        if mark == await uow.rollups.find_mark(team):
            self._kept[team] = _Kept(mark, books, live)
            self._kept.move_to_end(team)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return live, mark


def live_spend(books: OpenBooks, now: datetime) -> LiveSpend:
    """Charges of ``books`` as of ``now``, and their cells."""
    found, owed = books.charges(now), defaultdict[tuple[date, CellKey], Amounts](Amounts)
    expected: list[Charge] = []
    charges: list[Charge] = []
    for bill, detailed in found.by_bill.items():
        stored = books.stored.get(bill, {})
        coming = [c for c in detailed if c.basis is ChargeBasis.PROJECTED]
        beyond = _beyond(detailed, stored, books.until)
        for key, amounts in beyond.items():
            owed[key] = owed[key].plus(amounts) if key in owed else amounts
        expected.extend(coming)
        if stored:
            charges.extend(
                day_charge(midnight(day), key.team, amounts.cents * CENT)
                for (day, key), amounts in beyond.items()
            )
            charges.extend(coming)
        else:
            charges.extend(detailed)
    cells = {key: amounts for key, amounts in owed.items() if amounts != NOTHING}
    return LiveSpend(
        at=now,
        until=books.until,
        owed=cells,
        expected=(*expected, *found.planned),
        charges=(*charges, *found.planned),
        plans=books.entries.plans,
    )


def _beyond(charges: Iterable[Charge], stored: Cells, until: date | None) -> Cells:
    """What a bill's ``charges`` owe beyond what is rolled up of it."""
    owed = cells_of(c for c in charges if c.basis is ChargeBasis.ACTUAL)
    return difference(reported(owed, stored, until), stored) if stored else reported(owed, stored, until)
