"""The ledger: every charge, projected and actual, gathered from plans and reservations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from broker.domain.approvals import ApprovalState
from broker.domain.charging import plan_charges, reservation_charges
from broker.domain.reservation import Reservation, ReservationState
from broker.domain.spend import Charge, CostView
from broker.domain.window import Window
from broker.domain.workload import WorkloadKind
from broker.ports import PlanRecord, UnitOfWork

PAGE = 200


async def find_charges(
    uow: UnitOfWork,
    now: datetime,
    team: str | None = None,
    window: Window | None = None,
    view: CostView = CostView.AMORTIZED,
) -> tuple[Charge, ...]:
    """Every charge of ``team`` (None: all) that counts in ``window`` (None: any time), oldest first.

    A current plan counts as planned until it is reserved; from then on its reservations do. A workload
    that an older plan still holds is not counted a second time, and a plan that finance rejected not at all.
    """
    records = await uow.plans.find_current(team)
    reservations = await find_reservations(uow, team)
    kinds = await _kinds(uow, records, reservations)
    charges: list[Charge] = []
    by_plan: defaultdict[str | None, list[Reservation]] = defaultdict(list)
    for reservation in reservations:
        by_plan[reservation.plan_id].append(reservation)
    for plan_id, group in by_plan.items():
        charges.extend(reservation_charges(group, kinds.get(plan_id, {}), now))
    held = {(r.team, r.workload) for r in reservations if _holds(r)}
    for record in records:
        if is_expected(record, by_plan[record.plan_id]) and record.plan is not None:
            planned = plan_charges(record.plan, record.team, record.plan_id)
            charges.extend(c for c in planned if (c.team, c.workload) not in held)
    chosen = (c for c in charges if window is None or window.contains(c.at(view)))
    return tuple(sorted(chosen, key=lambda c: (c.window.start, c.team, c.workload, c.provider, c.sku)))


def is_expected(record: PlanRecord, reservations: Iterable[Reservation]) -> bool:
    """Whether a current plan is still to be bought, as far as anybody knows."""
    if record.approval is ApprovalState.REJECTED:
        return False
    return not _is_taken_up(list(reservations))


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


def _is_taken_up(reservations: list[Reservation]) -> bool:
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
