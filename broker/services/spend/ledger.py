"""The ledger: all projected and actual charges of plans and reservations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain

from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.approvals import ApprovalState
from broker.domain.spend.charging import Movement, plan_charges, reservation_charges
from broker.domain.spend.spend import Charge, CostView, Interval, period_of, projection_end
from broker.ports.planning import PlanRecord
from broker.ports.unit_of_work import UnitOfWork

PAGE = 200
ChargeBill = Callable[
    [Sequence[Reservation], Mapping[str, WorkloadKind], datetime, Movement, datetime | None],
    tuple[Charge, ...],
]
"""Signature of ``reservation_charges``, which a cache may replace."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """Charges of reservations by bill, and charges of plans that are not bought yet.

    A bill is a plan, or a reservation without a plan.
    """

    by_bill: Mapping[str, tuple[Charge, ...]]
    planned: tuple[Charge, ...]


async def find_charges(
    uow: UnitOfWork,
    now: datetime,
    window: Window | None = None,
    view: CostView = CostView.AMORTIZED,
) -> tuple[Charge, ...]:
    """Every charge that counts in ``window`` (None: any time), oldest first.

    Leases without an end are projected to the end of ``window`` (None: of the current month). A draft counts
    if somebody intends to buy it. Once it is reserved, its reservations count instead, and of the plan only
    the egress of data that is still to be copied, because providers do not report egress. Each workload
    counts once: reservations come before drafts, and newer drafts before older ones.
    """
    records = await uow.plans.find_current()
    if window is None or view is CostView.CASH:
        rows = await find_reservations(uow)
    else:
        rows = await _find_touching(uow, window, {record.plan_id for record in records})
    entries = await find_entries(uow, records, rows)
    found = charges_of(entries, now, until=projection_end(window, now))
    charges = chain(chain.from_iterable(found.by_bill.values()), found.planned)
    chosen = (c for c in charges if window is None or window.contains(c.at(view)))
    return tuple(sorted(chosen, key=lambda c: (c.window.start, c.team, c.workload, c.provider, c.sku)))


@dataclass(frozen=True, slots=True)
class Entries:
    """Inputs of charges: current plans, reservations, and the ``others``: their plans that are not current.

    Reservations of a bill are complete or absent.
    """

    records: tuple[PlanRecord, ...]
    rows: tuple[Reservation, ...]
    others: tuple[PlanRecord, ...]

    @property
    def plan_records(self) -> tuple[PlanRecord, ...]:
        """Current plans and others."""
        return (*self.records, *self.others)

    @property
    def plans(self) -> Mapping[str, Plan]:
        """Every plan by its id."""
        return {one.plan_id: one.plan for one in self.plan_records if one.plan is not None}


async def find_entries(
    uow: UnitOfWork, records: Iterable[PlanRecord], reservations: Iterable[Reservation]
) -> Entries:
    """The current plans ``records`` and ``reservations``, with all other plans of these reservations.

    ``reservations`` must include all reservations of ``records``, and all or none of every other bill.
    """
    current, rows = tuple(records), tuple(reservations)
    known = {record.plan_id for record in current}
    missing = {row.plan_id for row in rows if row.plan_id is not None} - known
    others = [await uow.plans.find(plan_id) for plan_id in sorted(missing)]
    return Entries(current, rows, tuple(others))


def planned_charges(record: PlanRecord) -> tuple[Charge, ...]:
    """Projected charges of a plan."""
    return () if record.plan is None else plan_charges(record.plan, record.team, record.plan_id)


def charges_of(
    entries: Entries,
    now: datetime,
    planned: Callable[[PlanRecord], Iterable[Charge]] = planned_charges,
    which: Movement = Movement.ALL,
    charged: ChargeBill = reservation_charges,
    until: datetime | None = None,
) -> Gathered:
    """Charges of reservations, and of drafts that somebody intends to buy.

    ``charged`` computes the charges of a bill. ``which`` and ``until``: see ``reservation_charges``.
    """
    bills: defaultdict[str, list[Reservation]] = defaultdict(list)
    for row in entries.rows:
        bills[bill_of(row)].append(row)
    # A draft that is not bought yet costs nothing on past days.
    today = period_of(now.astimezone(UTC), Interval.DAY)
    counted = counted_drafts(entries.records, entries.rows)
    coming = (
        charge
        for record in entries.records
        if is_expected(record)
        for charge in planned(record)
        if counted[charge.team, charge.workload] == record.plan_id and charge.window.end > today
    )
    kinds = {
        name: {one.workload: one.kind for one in plan.placements} for name, plan in entries.plans.items()
    }
    by_bill = {
        name: charged(bill, kinds.get(bill[0].plan_id or "", {}), now, which, until)
        for name, bill in bills.items()
    }
    copies = (
        charge
        for record in entries.records
        if record.reserved_at is not None
        for charge in planned(record)
        if charge.is_egress and charge.window.start > now
    )
    expected = {
        Movement.ALL: (coming, copies),
        Movement.STEADY: (coming,),
        Movement.MOVING: (copies,),
    }
    return Gathered(by_bill, tuple(chain.from_iterable(expected[which])))


def bill_of(reservation: Reservation) -> str:
    """The id of its bill, which is rounded as a whole: of its plan, or its own."""
    return reservation.plan_id or reservation.reservation_id


def counted_drafts(
    records: Iterable[PlanRecord], rows: Iterable[Reservation]
) -> Mapping[tuple[str, str | None], str]:
    """The plan id of the draft that counts, by team and workload: the first that somebody intends to buy.

    It is empty if there are reservations for the workload.
    """
    found: dict[tuple[str, str | None], str] = {(row.team, row.workload): "" for row in rows if _holds(row)}
    for record in records:
        if record.plan is not None and is_expected(record):
            for placement in record.plan.placements:
                found.setdefault((record.team, placement.workload), record.plan_id)
    return found


def is_expected(record: PlanRecord) -> bool:
    """Whether a current plan is a draft that somebody intends to buy."""
    rejected = record.approval is ApprovalState.REJECTED
    return record.plan is not None and record.is_intended and record.reserved_at is None and not rejected


async def find_reservations(uow: UnitOfWork, plan_id: str | None = None) -> tuple[Reservation, ...]:
    """All reservations, also failed ones, which show that a plan was tried and is not held."""
    found: list[Reservation] = []
    cursor: str | None = None
    while True:
        page = await uow.reservations.find_page(PAGE, cursor, plan_id)
        found.extend(page.items)
        cursor = page.next_cursor
        if cursor is None:
            return tuple(found)


async def find_planned_entries(uow: UnitOfWork, window: Window | None) -> Entries:
    """Inputs of the charges in ``window`` (None: all) that belong to a plan."""
    records = await uow.plans.find_current()
    names = {record.plan_id for record in records}
    bills = names | await uow.reservations.find_plans_held(window)
    return await find_entries(uow, records, await uow.reservations.find_of_bills(bills))


async def _find_touching(uow: UnitOfWork, window: Window, bills: set[str]) -> tuple[Reservation, ...]:
    """Complete bills that have an open reservation or may have charges in ``window``, and ``bills``."""
    for row in (*await uow.reservations.find_open(), *await uow.reservations.find_overlapping(window)):
        bills.add(bill_of(row))
    return await uow.reservations.find_of_bills(bills)


def _holds(reservation: Reservation) -> bool:
    return reservation.is_open and reservation.state is not ReservationState.RELEASING
