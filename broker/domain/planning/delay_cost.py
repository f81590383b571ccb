"""The cost of delay of a service that waits for a run. Pure.

A service is worth more than it costs, or nobody would plan it. So without a stated price an hour of delay
costs ``WORTH`` average hours of the service: the hour not held saves one, and a later start never pays.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal

from broker.domain.basics.money import MICRO, ZERO, to_cents
from broker.domain.planning.plan import Plan, Wait
from broker.domain.planning.workload import Serving

WORTH = 2
"""What an hour of a service is worth, in average hours of its cost, where the document states no price."""


def hours_between(start: datetime, end: datetime) -> Decimal:
    """Hours from ``start`` to ``end``, exact to the microsecond; negative if ``end`` comes first."""
    return Decimal((end - start) // timedelta(microseconds=1)) / 3_600_000_000


def average_usd_per_hour(cost_usd: Decimal, start: datetime, horizon_end: datetime) -> Decimal:
    """Average hourly cost of a service that costs ``cost_usd`` from ``start`` to the horizon's end.

    Rounded to the micro-dollar; zero if no time is left.
    """
    hours = hours_between(start, horizon_end)
    return (cost_usd / hours).quantize(MICRO, rounding=ROUND_HALF_EVEN) if hours > 0 else ZERO


def usd_per_hour(service: Serving, cost_usd: Decimal, start: datetime, horizon_end: datetime) -> Decimal:
    """Cost of an hour of delay of ``service``: the document's price, else ``WORTH`` times its average hourly
    cost.
    """
    if service.delay_usd_per_hour is not None:
        return service.delay_usd_per_hour
    return WORTH * average_usd_per_hour(cost_usd, start, horizon_end)


def delay_usd(earliest: datetime, start: datetime, rate_usd_per_hour: Decimal) -> Decimal:
    """Cost of the delay from ``earliest`` to ``start``, in whole cents."""
    return to_cents(max(ZERO, hours_between(earliest, start)) * rate_usd_per_hour)


def wait_of(
    service: Serving, cost_usd: Decimal, earliest: datetime, start: datetime, horizon_end: datetime
) -> Wait:
    """The delay of a placed service that costs ``cost_usd`` and starts at ``start``."""
    first = min(earliest, start)
    rate = usd_per_hour(service, cost_usd, start, horizon_end)
    return Wait(service.name, service.starts_after or "", first, start, rate, delay_usd(first, start, rate))


def later_usd(old: Wait, new: Wait, rate_usd_per_hour: Decimal) -> Decimal:
    """Cost of starting at the time of ``new`` instead of that of ``old``; negative if that is earlier."""
    return to_cents(hours_between(old.start, new.start) * rate_usd_per_hour)


def find_wait(plan: Plan, service: str) -> Wait | None:
    """The wait of one service in ``plan``; None if it waits for no run."""
    return next((wait for wait in plan.waits if wait.workload == service), None)
