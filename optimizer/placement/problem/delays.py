"""Cost of starting a service later than the earliest possible end of the run that it follows.

The document may give a price for an hour of delay; otherwise it is twice the service's average cost per hour.
That average is known only once the plan is, so the search uses a constant instead: twice a lower bound on the
service's cost from its earliest start, divided by the hours from there to the end of the horizon.
``relief_cents`` corrects a bound that was proven with these constants so that it holds with the plan's
averages.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

import numpy as np

from broker.domain.basics.money import CENT, ZERO
from broker.domain.planning.delay_cost import wait_of
from broker.domain.planning.plan import Placement, Wait
from broker.domain.planning.workload import Serving
from optimizer.placement.problem.columns import Column, late_cents
from optimizer.placement.problem.problem import Floats, Problem
from optimizer.placement.problem.units import HOUR_S


@dataclass(frozen=True, slots=True)
class DelayPrice:
    """Price of an hour of delay after ``earliest_s``. A service that has not started by ``latest_s`` never
    does.
    """

    usd_per_hour: Decimal
    earliest_s: float
    latest_s: float


def keep_price(problem: Problem, service: str, price: DelayPrice) -> None:
    """Fixes the price of a service's delay for this problem and for its restrictions to fewer offers."""
    problem.once_for_market(_slot(service), lambda: price)


def price_of(problem: Problem, service: str) -> DelayPrice | None:
    """The price of a service's delay; None if none is fixed yet or the service follows no run."""
    found = problem.kept_of_market.get(_slot(service))
    return found if isinstance(found, DelayPrice) else None


def _slot(service: str) -> Hashable:
    return "price of delay", service


def delay_cents(problem: Problem, service: str, after_s: float | None) -> int:
    """Delay cost in whole cents if the run that the service follows ends at ``after_s``."""
    price = price_of(problem, service)
    if price is None or after_s is None:
        return 0
    return late_cents(problem, max(after_s, problem.t0_s), price.earliest_s, price.usd_per_hour)


def delays_usd(problem: Problem, service: str, ends_s: Floats) -> Floats:
    """Delay cost for each of several ends of the run, not rounded."""
    price = price_of(problem, service)
    if price is None:
        return np.zeros(len(ends_s))
    later: Floats = np.maximum(0.0, ends_s - price.earliest_s) / HOUR_S
    return later * float(price.usd_per_hour)


def waits_of(
    problem: Problem, chosen: Mapping[str, Column], placements: Sequence[Placement]
) -> tuple[Wait, ...]:
    """The delay of every placed service that follows a run, in the request's order."""
    return tuple(_waits(problem, chosen, placements))


def _waits(problem: Problem, chosen: Mapping[str, Column], placements: Sequence[Placement]) -> Iterator[Wait]:
    for service in problem.services():
        cost = sum((p.cost_usd for p in placements if p.workload == service.name), ZERO)
        wait = wait_in(problem, service, chosen.get(service.name), cost)
        if wait is not None:
            yield wait


def wait_in(problem: Problem, service: Serving, column: Column | None, cost_usd: Decimal) -> Wait | None:
    """The delay of a service whose column costs ``cost_usd``; None if it follows no run."""
    price = price_of(problem, service.name)
    if column is None or column.after_s is None or price is None:
        return None
    first = max(problem.origin, problem.as_of)
    start = max(first, problem.instant(problem.start_of(service, column.after_s)))
    earliest = max(first, problem.instant(price.earliest_s))
    return wait_of(service, cost_usd, earliest, start, service.ends_by(problem.request.horizon.end))


def relief_cents(problem: Problem, waits: Iterable[Wait]) -> int:
    """How much a bound proven with the search's delay prices must be lowered to hold with those of ``waits``.

    If a plan delays a service by d hours and its delay price falls by Δ, the plan's cost falls by at most
    d·Δ, and d is at most ``latest_s − earliest_s``. If the price rises, the bound stays valid.
    """
    total = 0
    for wait in waits:
        service, price = problem.request.workload(wait.workload), price_of(problem, wait.workload)
        assert isinstance(service, Serving)
        if price is None or service.delay_usd_per_hour is not None:
            continue
        less = price.usd_per_hour - wait.usd_per_hour
        longest = Decimal(max(0.0, price.latest_s - price.earliest_s)) / HOUR_S
        if less > 0 and longest > 0:
            total += int((less * longest / CENT).to_integral_value(rounding=ROUND_CEILING)) + 1
    return total
