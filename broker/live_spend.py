"""Spend that is not rolled up: what still runs, what was written since, and plans. Read once, and shared.

What was read is used for as long as nothing was written (``LedgerMark``). Of its charges most are the same
until midnight, and are made once a UTC day; those that move with the time are made anew after ``SHARED``:
every figure of one page is then of the same moment.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import chain

from broker.domain.charging import Movement, reservation_charges
from broker.domain.money import CENT
from broker.domain.month_close import closed_until
from broker.domain.plan import Plan
from broker.domain.reservation import Reservation
from broker.domain.spend import Charge, ChargeBasis
from broker.domain.spend_cells import NOTHING, Amounts, CellKey, Cells, cells_of, difference, reported
from broker.domain.workload import WorkloadKind
from broker.finance_ports import LedgerMark, RollupUnitOfWork
from broker.kept import Kept
from broker.ledger import ChargeBill, Entries, Gathered, charges_of, find_entries, planned_charges
from broker.settled_spend import day_charge, midnight

SHARED = timedelta(seconds=5)
"""How old charges may be that are used again."""
MOST_CHARGES = 100_000
"""Charges of bills that are kept in all."""
MOST_KEPT = 32
"""Readings that are kept, one a team."""


@dataclass(frozen=True, slots=True)
class LivePart:
    """Money owed beyond what is rolled up, by cell, and what is expected.

    ``charges``: the same one by one; where a part of a bill is rolled up, its owed money by day and team.
    """

    owed: Cells
    expected: tuple[Charge, ...]
    charges: tuple[Charge, ...]


@dataclass(frozen=True, slots=True)
class LiveSpend:
    """As of ``at``: what is the same until midnight or the next write, and what moves with the time.

    ``token`` names the steady part: two of the same token have the same one. ``plans``: those that
    projected charges are of. ``until``: the first day that is not of a closed month (None: no month is
    closed).
    """

    at: datetime
    until: date | None
    token: object
    steady: LivePart
    moving: LivePart
    plans: Mapping[str, Plan]

    @property
    def owed(self) -> Iterator[tuple[tuple[date, CellKey], Amounts]]:
        """Cells of both parts; a key may come twice."""
        return chain(self.steady.owed.items(), self.moving.owed.items())

    @property
    def expected(self) -> tuple[Charge, ...]:
        """What is expected, one by one."""
        return (*self.steady.expected, *self.moving.expected)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All of it, one by one."""
        return (*self.steady.charges, *self.moving.charges)


@dataclass(frozen=True, slots=True)
class OpenBooks:
    """What charges are made of that are not rolled up. ``bills``: those that are not rolled up as they stand;
    ``stored``: what is rolled up of them nevertheless; ``planned``: charges by plan, whatever the time is."""

    bills: frozenset[str]
    entries: Entries
    stored: Mapping[str, Cells]
    planned: Mapping[str, tuple[Charge, ...]]
    until: date | None

    def charges(
        self, now: datetime, which: Movement = Movement.ALL, charged: ChargeBill = reservation_charges
    ) -> Gathered:
        """Charges of the bills that are not rolled up, and of plans not bought yet."""
        found = charges_of(self.entries, now, lambda record: self.planned[record.plan_id], which, charged)
        live = {name: charges for name, charges in found.by_bill.items() if name in self.bills}
        return Gathered(live, found.planned)


async def find_open_books(
    uow: RollupUnitOfWork, team: str | None, before: OpenBooks | None = None
) -> OpenBooks:
    """Those of ``team`` (None: everybody's); what did not change since ``before`` is not read again."""
    until = closed_until(await uow.rollups.find_closed())
    bills = await uow.rollups.find_open_bills(team)
    records = await uow.plans.find_current(team, () if before is None else before.entries.records)
    rows = await uow.reservations.find_of_bills({*bills, *(record.plan_id for record in records)})
    entries = await find_entries(uow, records, rows)
    stored = await uow.rollups.find_stored(bills)
    same = set() if before is None else {(one.plan_id, one.version) for one in before.entries.records}
    planned = {
        one.plan_id: before.planned[one.plan_id]
        if before is not None and (one.plan_id, one.version) in same
        else planned_charges(one)
        for one in records
    }
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
        self._charged = Kept[tuple[Charge, ...]](MOST_CHARGES, len)

    async def find(
        self, uow: RollupUnitOfWork, team: str | None, now: datetime
    ) -> tuple[LiveSpend, LedgerMark]:
        """Of ``team`` (None: everybody's), as of at most ``SHARED`` before ``now``; what it is based on."""
        mark = await uow.rollups.find_mark(team)
        kept = self._kept.get(team)
        if kept is not None and kept.mark == mark:
            kept.live = self._at(kept.books, kept.live, now)
            return kept.live, mark
        books = await find_open_books(uow, team, None if kept is None else kept.books)
        live = self._at(books, None, now)
        if mark == await uow.rollups.find_mark(team):
            self._kept[team] = _Kept(mark, books, live)
            self._kept.move_to_end(team)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return live, mark

    def _at(self, books: OpenBooks, before: LiveSpend | None, now: datetime) -> LiveSpend:
        """``books`` as of ``now``, by what was made of them ``before``."""
        if before is not None and now - SHARED <= before.at <= now:
            return before
        if before is None or before.at.date() != now.date():
            steady, token = live_part(books, now, Movement.STEADY, self._steady_charges), object()
        else:
            steady, token = before.steady, before.token
        moving = live_part(books, now, Movement.MOVING)
        return LiveSpend(now, books.until, token, steady, moving, books.entries.plans)

    def _steady_charges(
        self, bill: Sequence[Reservation], kinds: Mapping[str, WorkloadKind], now: datetime, which: Movement
    ) -> tuple[Charge, ...]:
        """Those of a bill, made once a version of its reservations and day."""
        versions = tuple((row.reservation_id, row.version) for row in bill)
        key = (versions, frozenset(kinds.items()), now.date())
        return self._charged.once(key, lambda: reservation_charges(bill, kinds, now, which))


def live_part(
    books: OpenBooks, now: datetime, which: Movement, charged: ChargeBill = reservation_charges
) -> LivePart:
    """Charges of ``books`` as of ``now``, and their cells; what is rolled up of them is taken off once, from
    those that are steady."""
    found, owed = books.charges(now, which, charged), defaultdict[tuple[date, CellKey], Amounts](Amounts)
    expected: list[Charge] = []
    charges: list[Charge] = []
    for bill, detailed in found.by_bill.items():
        is_stored = bool(books.stored.get(bill))
        stored = books.stored[bill] if is_stored and which is not Movement.MOVING else {}
        coming = [c for c in detailed if c.basis is ChargeBasis.PROJECTED]
        beyond = _beyond(detailed, stored, books.until)
        for key, amounts in beyond.items():
            owed[key] = owed[key].plus(amounts) if key in owed else amounts
        expected.extend(coming)
        if is_stored:
            charges.extend(
                day_charge(midnight(day), key.team, amounts.cents * CENT)
                for (day, key), amounts in beyond.items()
            )
            charges.extend(coming)
        else:
            charges.extend(detailed)
    cells = {key: amounts for key, amounts in owed.items() if amounts != NOTHING}
    return LivePart(cells, (*expected, *found.planned), (*charges, *found.planned))


def _beyond(charges: Iterable[Charge], stored: Cells, until: date | None) -> Cells:
    """What a bill's ``charges`` owe beyond what is rolled up of it."""
    owed = cells_of(c for c in charges if c.basis is ChargeBasis.ACTUAL)
    return difference(reported(owed, stored, until), stored) if stored else reported(owed, stored, until)
