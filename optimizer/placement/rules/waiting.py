"""The delay of every service that follows a run: its hours, their price, and the cost.

That no candidate of the run ends before the stated ``earliest_start`` is taken from the search, as the bound
is: both are statements about the whole set of candidates. All else is worked out here again.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.basics.money import CENT, ZERO
from broker.domain.planning.plan import Wait
from broker.domain.planning.workload import Serving
from optimizer.placement.rules.case import Case

SECOND = timedelta(seconds=1)
AVERAGE_HOURS = 2
"""Average hours of a service's cost that an hour of its delay costs without a stated price."""
ROUNDING_USD = Decimal("0.000002")


def violations(case: Case) -> Iterator[str]:
    """Delays that are missing, unfounded, or wrong."""
    waiting = dict(_waiting(case))
    told: dict[str, Wait] = {}
    for wait in case.plan.waits:
        where = f"wait of {wait.workload}"
        if wait.workload not in waiting or wait.workload in told:
            yield f"{where}: is no placed service that waits for a run, or told twice"
            continue
        told[wait.workload] = wait
        yield from _wrong(case, where, wait, *waiting[wait.workload])
    whole = sum((wait.delay_usd for wait in case.plan.waits), ZERO)
    if case.plan.delay_usd != whole:
        yield f"delay_usd is {case.plan.delay_usd}, the waits sum to {whole}"
    for name in waiting.keys() - told.keys():
        yield f"{name}: waits for a run, but the plan does not state the cost of that delay"


def _waiting(case: Case) -> Iterator[tuple[str, tuple[Serving, datetime]]]:
    """Services that follow a placed run and are placed or need nothing, with their start."""
    for name, service in case.workloads.items():
        if isinstance(service, Serving) and service.starts_after is not None:
            start = case.service_start(service)
            if start is not None and (name in case.placed or case.needs_nothing(service)):
                yield name, (service, start)


def _wrong(case: Case, where: str, wait: Wait, service: Serving, start: datetime) -> Iterator[str]:
    if wait.after != service.starts_after:
        yield f"{where}: waits for {wait.after!r}, expected {service.starts_after!r}"
    if abs(wait.start - start) > SECOND:
        yield f"{where}: starts at {wait.start.isoformat()}, its run ends at {start.isoformat()}"
    if not case.earliest <= wait.earliest_start <= wait.start:
        yield f"{where}: earliest_start {wait.earliest_start.isoformat()} is outside the possible starts"
    rate = service.delay_usd_per_hour
    if rate is None:
        cost = sum((placement.cost_usd for _, placement, _, _ in case.placed.get(service.name, ())), ZERO)
        served = _hours(service.ends_by(case.request.horizon.end) - wait.start)
        rate = AVERAGE_HOURS * cost / served if served > 0 else ZERO
    if abs(wait.usd_per_hour - rate) > ROUNDING_USD:
        yield f"{where}: usd_per_hour is {wait.usd_per_hour}, expected {rate:.6f}"
    delay = _hours(wait.start - wait.earliest_start) * rate
    if abs(wait.delay_usd - delay) > CENT:
        yield f"{where}: delay_usd is {wait.delay_usd}, expected {delay:.2f}"


def _hours(duration: timedelta) -> Decimal:
    return Decimal(duration // timedelta(microseconds=1)) / 3_600_000_000
