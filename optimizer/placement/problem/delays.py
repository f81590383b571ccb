"""What it costs that a service starts later than the earliest end of its run allows.

An hour of delay costs what the document says, else what an hour of the service costs on average. The average
of a plan is known only with the plan, so a search takes a constant in its place: the least that the service
costs from its earliest start on, over the hours from there to the horizon's end. ``relief_cents`` makes a
bound that was proven at these constants one at the averages of the plan.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

import numpy as np

from broker.domain.basics.money import CENT, ZERO
from broker.domain.planning.plan import Placement, Wait
from broker.domain.planning.waiting import wait_of
from broker.domain.planning.workload import Serving
from optimizer.placement.problem.columns import Column, late_cents
from optimizer.placement.problem.problem import Floats, Problem
from optimizer.placement.problem.units import HOUR_S


@dataclass(frozen=True, slots=True)
class DelayPrice:
    """What an hour costs that a service starts after ``earliest_s``; it starts by ``latest_s`` or never."""

    usd_per_hour: Decimal
    earliest_s: float
    latest_s: float


def keep_price(problem: Problem, service: str, price: DelayPrice) -> None:
    """Fixes the price of a service's delay, for this problem and those over fewer offers of its market."""
    problem.once_for_market(_slot(service), lambda: price)


def price_of(problem: Problem, service: str) -> DelayPrice | None:
    """The price of a service's delay; None where it has none yet, or waits for nothing."""
    found = problem.kept_of_market.get(_slot(service))
    return found if isinstance(found, DelayPrice) else None


def _slot(service: str) -> Hashable:
    return "price of delay", service


def delay_cents(problem: Problem, service: str, after_s: float | None) -> int:
    """What it costs in whole cents that a service starts when its run ends at ``after_s``."""
    price = price_of(problem, service)
    if price is None or after_s is None:
        return 0
    return late_cents(problem, max(after_s, problem.t0_s), price.earliest_s, price.usd_per_hour)


def delays_usd(problem: Problem, service: str, ends_s: Floats) -> Floats:
    """The same for many ends of the run, not rounded."""
    price = price_of(problem, service)
    if price is None:
        return np.zeros(len(ends_s))
    later: Floats = np.maximum(0.0, ends_s - price.earliest_s) / HOUR_S
    return later * float(price.usd_per_hour)


def waits_of(
    problem: Problem, chosen: Mapping[str, Column], placements: Sequence[Placement]
) -> tuple[Wait, ...]:
    """The wait of every placed service that waits for a run, in the request's order."""
    return tuple(_waits(problem, chosen, placements))


def _waits(problem: Problem, chosen: Mapping[str, Column], placements: Sequence[Placement]) -> Iterator[Wait]:
    for service in problem.services():
        cost = sum((p.cost_usd for p in placements if p.workload == service.name), ZERO)
        wait = wait_in(problem, service, chosen.get(service.name), cost)
        if wait is not None:
            yield wait


def wait_in(problem: Problem, service: Serving, column: Column | None, cost_usd: Decimal) -> Wait | None:
    """The wait of a service that costs ``cost_usd`` in its column; None where it waits for nothing."""
    price = price_of(problem, service.name)
    if column is None or column.after_s is None or price is None:
        return None
    first = max(problem.origin, problem.as_of)
    start = max(first, problem.instant(column.after_s))
    earliest = max(first, problem.instant(price.earliest_s))
    return wait_of(service, cost_usd, earliest, start, problem.request.horizon.end)


def relief_cents(problem: Problem, waits: Iterable[Wait]) -> int:
    """What a bound proven at the search's prices of delay must give up to hold at those of ``waits``.

    A plan that delays a service by d hours costs less there by at most d times what the price is less; at a
    higher price it costs more, so that the bound stands.
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
