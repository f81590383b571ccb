"""The ledger: every charge, projected and actual, gathered from plans and reservations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from broker.domain.approvals import ApprovalState
from broker.domain.charging import plan_charges, reservation_charges
from broker.domain.reservation import Reservation, ReservationState
from broker.domain.spend import Charge, CostView
from broker.domain.window import Window
from broker.domain.workload import WorkloadKind
from broker.plan_ports import PlanRecord
from broker.ports import UnitOfWork

PAGE = 200


@dataclass(frozen=True, slots=True)
class Gathered:
    """Charges of what is held or was, by bill (a plan, or a reservation without one), and of plans that are
    not bought yet."""

    by_bill: Mapping[str, tuple[Charge, ...]]
    planned: tuple[Charge, ...]


async def find_charges(
    uow: UnitOfWork,
    now: datetime,
    team: str | None = None,
    window: Window | None = None,
    view: CostView = CostView.AMORTIZED,
) -> tuple[Charge, ...]:
    """Every charge of ``team`` (None: all) that counts in ``window`` (None: any time), oldest first.

    A current plan counts as planned until it is reserved; from then on its reservations do, and of the plan
    only the data that is still to be copied: no seller tells what left it. A workload that an older plan
    still holds is not counted a second time, and a plan that finance rejected not at all.
    """
    records = await uow.plans.find_current(team)
    found = await gather(uow, now, records, await find_reservations(uow, team))
    charges = chain(chain.from_iterable(found.by_bill.values()), found.planned)
    chosen = (c for c in charges if window is None or window.contains(c.at(view)))
    return tuple(sorted(chosen, key=lambda c: (c.window.start, c.team, c.workload, c.provider, c.sku)))


async def gather(
    uow: UnitOfWork, now: datetime, records: Iterable[PlanRecord], reservations: Iterable[Reservation]
) -> Gathered:
    """Charges of ``reservations``, which hold all of a bill or none of it, and of those of the current plans
    ``records`` that nobody has taken up: their reservations, if any, have to be among ``reservations``."""
    plans, rows = tuple(records), tuple(reservations)
    kinds = await _kinds(uow, plans, rows)
    bills: defaultdict[str, list[Reservation]] = defaultdict(list)
    for row in rows:
        bills[bill_of(row)].append(row)
    held = {(r.team, r.workload) for r in rows if _holds(r)}
    planned = (
        charge
        for record in plans
        if record.plan is not None and is_expected(record, bills.get(record.plan_id, ()))
        for charge in plan_charges(record.plan, record.team, record.plan_id)
        if (charge.team, charge.workload) not in held
    )
    copies = (
        charge
        for record in plans
        if record.plan is not None and _is_taken_up(bills.get(record.plan_id, ()))
        for charge in plan_charges(record.plan, record.team, record.plan_id)
        if charge.is_egress and charge.window.start > now
    )
    return Gathered(
        {
            name: reservation_charges(bill, kinds.get(bill[0].plan_id, {}), now)
            for name, bill in bills.items()
        },
        (*planned, *copies),
    )


def bill_of(reservation: Reservation) -> str:
    """What is rounded together: its plan, or itself."""
    return reservation.plan_id or reservation.reservation_id


def is_expected(record: PlanRecord, reservations: Iterable[Reservation]) -> bool:
    """Whether a current plan is still to be bought, as far as anybody knows."""
    if record.approval is ApprovalState.REJECTED:
        return False
    return not _is_taken_up(tuple(reservations))


async def find_reservations(
    uow: UnitOfWork, team: str | None, plan_id: str | None = None
) -> tuple[Reservation, ...]:
    """Every reservation, failed ones too: they tell an attempt from a plan that is held."""
    found: list[Reservation] = []
    cursor: str | None = None
    while True:
        page = await uow.reservations.find_page(team, PAGE, cursor, plan_id)
        found.extend(page.items)
        cursor = page.next_cursor
        if cursor is None:
            return tuple(found)


def _holds(reservation: Reservation) -> bool:
    return reservation.is_open and reservation.state is not ReservationState.RELEASING


def _is_taken_up(reservations: Sequence[Reservation]) -> bool:
    """Whether a plan is held or was: an attempt of which nothing stayed leaves it a plan."""
    if any(_holds(r) for r in reservations):
        return True
    return bool(reservations) and all(r.state is not ReservationState.FAILED for r in reservations)


async def _kinds(
    uow: UnitOfWork, records: Iterable[PlanRecord], reservations: Iterable[Reservation]
) -> dict[str | None, dict[str, WorkloadKind]]:
    """Kinds of workloads by plan, of plans that are no longer current too."""
    plans = {record.plan_id: record.plan for record in records}
    for plan_id in {r.plan_id for r in reservations if r.plan_id is not None} - set(plans):
        plans[plan_id] = (await uow.plans.find(plan_id)).plan
    return {
        plan_id: {placement.workload: placement.kind for placement in plan.placements}
        for plan_id, plan in plans.items()
        if plan is not None
    }
