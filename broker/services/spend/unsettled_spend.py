"""Spend that is not rolled up: open bills, bills written since the last roll-up, and plans.

It is cached until something is written (``LedgerMark``). Most charges are steady: they are constant until
midnight, and are computed once per UTC day. The others move with the time, and are computed again after
``SHARED``, so that all figures of one page are of the same moment. Leases without an end are projected to the
end of the requested period; if there are any, charges are computed for each such end.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from itertools import chain

from broker.domain.basics.access import TeamScope
from broker.domain.basics.money import CENT
from broker.domain.holding.reservation import Reservation
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.charging import Movement, reservation_charges
from broker.domain.spend.month_close import closed_until
from broker.domain.spend.spend import Charge, ChargeBasis
from broker.domain.spend.spend_cells import NOTHING, Amounts, CellKey, Cells, cells_of, difference, reported
from broker.lru_cache import LruCache
from broker.ports.spend import LedgerMark
from broker.ports.unit_of_work import UnitOfWork
from broker.services.spend.ledger import (
    ChargeBill,
    Entries,
    Gathered,
    charges_of,
    find_entries,
    planned_charges,
)
from broker.services.spend.settled_spend import day_charge, midnight

SHARED = timedelta(seconds=5)
"""Maximum age of cached charges."""
MOST_CHARGES = 100_000
"""Size of the cache of bills, in charges."""
MOST_KEPT = 32
"""Number of cached reads, one per team."""
MOST_ENDS = 8
"""Number of period ends per read for which charges are cached."""


@dataclass(frozen=True, slots=True)
class UnsettledPart:
    """Actual amounts that are not rolled up, by cell, and projected charges.

    ``charges`` are both as single charges. If a part of a bill is rolled up, its actual charges are by day
    and team.
    """

    owed: Cells
    expected: tuple[Charge, ...]
    charges: tuple[Charge, ...]


@dataclass(frozen=True, slots=True)
class UnsettledSpend:
    """Unsettled spend at ``at``: steady until midnight or the next write, or moving with the time.

    Equal ``token``s mean equal steady parts. ``plans``: plans of the projected charges. ``open_from``: the
    first day after the closed months (None: no month is closed).
    """

    at: datetime
    open_from: date | None
    token: object
    steady: UnsettledPart
    moving: UnsettledPart
    plans: Mapping[str, Plan]

    @property
    def owed(self) -> Iterator[tuple[tuple[date, CellKey], Amounts]]:
        """Actual amounts of both parts; a key may occur twice."""
        return chain(self.steady.owed.items(), self.moving.owed.items())

    @property
    def expected(self) -> tuple[Charge, ...]:
        """Projected charges of both parts."""
        return (*self.steady.expected, *self.moving.expected)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All charges of both parts."""
        return (*self.steady.charges, *self.moving.charges)


@dataclass(frozen=True, slots=True)
class OpenBills:
    """Inputs of the charges that are not rolled up.

    ``bills``: bills whose current state is not rolled up. ``stored``: what the roll-up has of their earlier
    states. ``planned``: charges by plan, which do not depend on the time.
    """

    bills: frozenset[str]
    entries: Entries
    stored: Mapping[str, Cells]
    planned: Mapping[str, tuple[Charge, ...]]
    open_from: date | None

    @property
    def has_open_ended(self) -> bool:
        """Whether there is an open reservation without an end."""
        return any(row.end is None and row.is_open for row in self.entries.rows)

    def charges(
        self,
        now: datetime,
        which: Movement = Movement.ALL,
        charged: ChargeBill = reservation_charges,
        until: datetime | None = None,
    ) -> Gathered:
        """Charges of the bills that are not rolled up, and of plans that are not bought yet."""
        found = charges_of(
            self.entries, now, lambda record: self.planned[record.plan_id], which, charged, until
        )
        live = {name: charges for name, charges in found.by_bill.items() if name in self.bills}
        return Gathered(live, found.planned)


async def find_open_books(uow: UnitOfWork, before: OpenBills | None = None) -> OpenBills:
    """Reads what is not rolled up; plans that did not change since ``before`` are not read again."""
    open_from = closed_until(await uow.rollups.find_closed())
    bills = await uow.rollups.find_open_bills()
    records = await uow.plans.find_current(None, () if before is None else before.entries.records)
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
    return OpenBills(bills, entries, stored, planned, open_from)


@dataclass(slots=True)
class _Kept:
    """A cached read, and its charges by period end in the order of their last use."""

    mark: LedgerMark
    books: OpenBills
    at: datetime
    by_end: OrderedDict[datetime | None, UnsettledSpend] = field(default_factory=OrderedDict)


class LiveReader:
    """Reads what is not rolled up, with a cache."""

    def __init__(self) -> None:
        self._kept: OrderedDict[TeamScope, _Kept] = OrderedDict()
        self._charged = LruCache[tuple[Charge, ...]](MOST_CHARGES, len)

    async def find(
        self, uow: UnitOfWork, now: datetime, until: datetime
    ) -> tuple[UnsettledSpend, LedgerMark]:
        """Unsettled spend of the scope of ``uow``, at most ``SHARED`` old, and the mark of the ledger.

        Leases without an end are projected to ``until``.
        """
        mark = await uow.rollups.find_mark()
        kept = self._kept.get(uow.scope)
        if kept is not None and kept.mark == mark:
            return self._at(kept, now, until), mark
        books = await find_open_books(uow, None if kept is None else kept.books)
        found = _Kept(mark, books, now)
        live = self._at(found, now, until)
        if mark == await uow.rollups.find_mark():
            self._kept[uow.scope] = found
            self._kept.move_to_end(uow.scope)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return live, mark

    def _at(self, kept: _Kept, now: datetime, until: datetime) -> UnsettledSpend:
        """Unsettled spend from a cached read, at ``now`` or at most ``SHARED`` before."""
        if not now - SHARED <= kept.at <= now:
            kept.at = now
        books, at, end = kept.books, kept.at, until if kept.books.has_open_ended else None
        before = kept.by_end.get(end)
        if before is None or before.at != at:
            if before is None or before.at.date() != at.date():
                steady, token = live_part(books, at, Movement.STEADY, self._steady_charges, end), object()
            else:
                steady, token = before.steady, before.token
            moving = live_part(books, at, Movement.MOVING, until=end)
            kept.by_end[end] = UnsettledSpend(at, books.open_from, token, steady, moving, books.entries.plans)
        kept.by_end.move_to_end(end)
        while len(kept.by_end) > MOST_ENDS:
            kept.by_end.popitem(last=False)
        return kept.by_end[end]

    def _steady_charges(
        self,
        bill: Sequence[Reservation],
        kinds: Mapping[str, WorkloadKind],
        now: datetime,
        which: Movement,
        until: datetime | None,
    ) -> tuple[Charge, ...]:
        """Steady charges of a bill, cached by versions, day and, for a bill without an end, ``until``."""
        versions = tuple((row.reservation_id, row.version) for row in bill)
        end = until if any(row.end is None for row in bill) else None
        key = (versions, frozenset(kinds.items()), now.date(), end)
        return self._charged.once(key, lambda: reservation_charges(bill, kinds, now, which, end))


def live_part(
    books: OpenBills,
    now: datetime,
    which: Movement,
    charged: ChargeBill = reservation_charges,
    until: datetime | None = None,
) -> UnsettledPart:
    """Charges of ``books`` at ``now``, and their cells.

    What the roll-up has of their bills is subtracted once, from the steady charges.
    """
    found, owed = (
        books.charges(now, which, charged, until),
        defaultdict[tuple[date, CellKey], Amounts](Amounts),
    )
    expected: list[Charge] = []
    charges: list[Charge] = []
    for bill, detailed in found.by_bill.items():
        is_stored = bool(books.stored.get(bill))
        stored = books.stored[bill] if is_stored and which is not Movement.MOVING else {}
        coming = [c for c in detailed if c.basis is ChargeBasis.PROJECTED]
        beyond = _beyond(detailed, stored, books.open_from)
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
    return UnsettledPart(cells, (*expected, *found.planned), (*charges, *found.planned))


def _beyond(charges: Iterable[Charge], stored: Cells, open_from: date | None) -> Cells:
    """Actual amounts of a bill's ``charges`` that are not rolled up."""
    owed = cells_of(c for c in charges if c.basis is ChargeBasis.ACTUAL)
    whole = reported(owed, stored, open_from)
    return difference(whole, stored) if stored else whole
