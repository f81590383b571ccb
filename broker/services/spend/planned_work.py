"""What the charges of plans paid for: tokens of runs, batches and services, by day.

The work of a closed month is stored with it, so that its unit costs do not change any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import chain

from broker.domain.basics.errors import InputError
from broker.domain.basics.window import Window
from broker.domain.planning.workload import PlanRequest
from broker.domain.spend.month_close import month_window
from broker.domain.spend.spend import Charge
from broker.domain.spend.unit_costs import DayWork, Job, Work, day_work_of, work_of
from broker.ports.planning import PlanRecord, RequestReader
from broker.ports.unit_of_work import UnitOfWork
from broker.services.spend.ledger import Gathered, charges_of, find_planned_entries


def request_of(record: PlanRecord, read_request: RequestReader) -> PlanRequest | None:
    """The request of a plan; None if an older version wrote a document that cannot be read any more."""
    try:
        return read_request(record.document)
    except InputError:
        return None


def work_of_records(records: Iterable[PlanRecord], read_request: RequestReader) -> dict[Job, Work]:
    """The work of plans whose document can be read."""
    found: dict[Job, Work] = {}
    for record in records:
        request = request_of(record, read_request)
        if record.plan is not None and request is not None:
            found |= {(record.plan_id, name): one for name, one in work_of(record.plan, request).items()}
    return found


def charges_in(found: Gathered, window: Window | None) -> Iterable[Charge]:
    """Charges of ``found`` that begin in ``window`` (None: any time)."""
    every = chain(chain.from_iterable(found.by_bill.values()), found.planned)
    return (charge for charge in every if window is None or window.contains(charge.window.start))


async def work_done(
    uow: UnitOfWork, window: Window, now: datetime, read_request: RequestReader
) -> tuple[DayWork, ...]:
    """The work of every plan in ``window``, which is over."""
    entries = await find_planned_entries(uow, window)
    work = work_of_records(entries.plan_records, read_request)
    return day_work_of(charges_in(charges_of(entries, now), window), work)


async def find_kept_work(uow: UnitOfWork, window: Window | None) -> tuple[tuple[DayWork, ...], list[Window]]:
    """The stored work of closed months in ``window`` (None: any time), and those months.

    A month without stored work is not among them.
    """
    days = None if window is None else (window.start.date(), window.end.date())
    months = await uow.rollups.find_months_with_work()
    kept = await uow.rollups.find_closed_work(days) if months else ()
    return kept, [month_window(month) for month in months]
