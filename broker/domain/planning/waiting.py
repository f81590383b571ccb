"""What it costs that a service waits for its run longer than it must. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal

from broker.domain.basics.money import MICRO, ZERO, to_cents
from broker.domain.planning.plan import Plan, Wait
from broker.domain.planning.workload import Serving


def hours_between(start: datetime, end: datetime) -> Decimal:
    """Hours from ``start`` to ``end``, counted in microseconds; below zero where ``end`` comes first."""
    return Decimal((end - start) // timedelta(microseconds=1)) / 3_600_000_000


def average_usd_per_hour(cost_usd: Decimal, start: datetime, horizon_end: datetime) -> Decimal:
    """The average cost of an hour of a service that costs ``cost_usd`` from ``start`` to the horizon's end.

    Rounded to the micro-dollar; zero where no time is left.
    """
    hours = hours_between(start, horizon_end)
    return (cost_usd / hours).quantize(MICRO, rounding=ROUND_HALF_EVEN) if hours > 0 else ZERO


def usd_per_hour(service: Serving, cost_usd: Decimal, start: datetime, horizon_end: datetime) -> Decimal:
    """What an hour costs that ``service`` waits: the document's word, else its average cost of an hour."""
    if service.delay_usd_per_hour is not None:
        return service.delay_usd_per_hour
    return average_usd_per_hour(cost_usd, start, horizon_end)


def delay_usd(earliest: datetime, start: datetime, rate_usd_per_hour: Decimal) -> Decimal:
    """What the hours from ``earliest`` to ``start`` cost, in whole cents."""
    return to_cents(max(ZERO, hours_between(earliest, start)) * rate_usd_per_hour)


def wait_of(
    service: Serving, cost_usd: Decimal, earliest: datetime, start: datetime, horizon_end: datetime
) -> Wait:
    """The wait of a placed service that costs ``cost_usd`` and starts at ``start``."""
    first = min(earliest, start)
    rate = usd_per_hour(service, cost_usd, start, horizon_end)
    return Wait(service.name, service.starts_after or "", first, start, rate, delay_usd(first, start, rate))


def later_usd(old: Wait, new: Wait, rate_usd_per_hour: Decimal) -> Decimal:
    """What starting as ``new`` says costs beyond starting as ``old`` says; below zero: less."""
    return to_cents(hours_between(old.start, new.start) * rate_usd_per_hour)


def find_wait(plan: Plan, service: str) -> Wait | None:
    """The wait of one service in ``plan``; None where it waits for nothing there."""
    return next((wait for wait in plan.waits if wait.workload == service), None)
