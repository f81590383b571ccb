"""Of each kind of node that may serve, what its next best costs more where an order of it fails.

The next best of a kind is the cheapest capacity of other stock that carries as much as the kind's cheapest
unit. It is held for as long as the service's traffic is high, on average. U units, N kinds of unit in use, H
hours.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from broker.domain.market.launch_statistics import RETRY_HOURS
from broker.domain.planning.relaunch import WORTH, expected_usd
from optimizer.placement.problem.columns import in_cents, in_usd
from optimizer.placement.problem.problem import Floats, Ints, Problem
from optimizer.placement.problem.relaunches import RelaunchPrices
from optimizer.placement.problem.units import HOUR_S, Units

MOST_HOURS = 24.0


class NextBest(NamedTuple):
    """For the cheapest unit [N] of each kind: the offer that takes its place (-1: none), the USD an hour that
    this costs more, and its cold start in seconds.
    """

    offer: Ints
    more_usd: Floats
    cold_s: Floats


def relaunch_prices(problem: Problem, units: Units, pairs: tuple[int, int], demand: Floats) -> RelaunchPrices:
    """The prices of a service with ``demand`` [H]; ``pairs``: how many kinds of node and configurations there
    are.
    """
    count = pairs[0] * pairs[1]
    more, missing, cheapest, other = np.zeros((4, count), dtype=np.int64)
    order = np.lexsort((units.offer, units.usd_per_hour, units.kind))
    first = order[_begins(units.kind[order])]
    kind, usd, hours = units.kind[first], units.usd_per_hour[first], busy_hours(demand)
    best = _next_best(problem, units, first, order)
    missing_hours = RETRY_HOURS + np.where(best.offer < 0, hours, best.cold_s / HOUR_S)
    node_cents = 100 / units.nodes[first]
    more[kind] = np.rint(node_cents * hours * best.more_usd).astype(np.int64)
    missing[kind] = np.rint(node_cents * WORTH * usd * missing_hours).astype(np.int64)
    cheapest[kind], other[kind] = units.offer[first], best.offer
    chances, chance_of = np.unique(problem.table.launch_chance, return_inverse=True)
    cents = np.zeros((len(chances), count), dtype=np.int64)
    for row, chance in enumerate(chances.tolist()):
        for pair in kind.tolist():
            cents[row, pair] = in_cents(expected_usd(chance, in_usd(int(more[pair] + missing[pair]))))
    return RelaunchPrices(
        more, missing, cheapest, other, cents, chance_of.reshape(-1).astype(np.int64), pairs[1]
    )


def _begins(ordered: Ints) -> Ints:
    """Where each distinct value of sorted numbers begins."""
    return np.flatnonzero(np.diff(ordered, prepend=-1))


def _next_best(problem: Problem, units: Units, first: Ints, order: Ints) -> NextBest:
    """The next best of the cheapest unit (``first``) of each kind; ``order`` sorts units by kind and price.

    Of each kind only its cheapest unit, and its cheapest one of other stock than that, can take a place.
    """
    table, usd, rate = problem.table, units.usd_per_hour, units.requests_per_s
    pool = table.pools.of[units.offer]
    stock = np.where(pool >= 0, pool, -1 - table.stock_of[units.offer])
    begins = _begins(units.kind[order])
    differs = stock[order] != np.repeat(stock[order[begins]], np.diff(np.append(begins, len(order))))
    apart = order[differs]
    ways = np.concatenate((first, apart[_begins(units.kind[apart])]))
    needed = np.maximum(1.0, np.ceil(rate[first][:, None] / rate[ways][None, :] - 1e-9))
    whole_usd = needed * usd[ways][None, :]
    whole_usd[(stock[first][:, None] == stock[ways][None, :]) | (needed > units.most[ways][None, :])] = np.inf
    if not len(first):
        return NextBest(first, usd[first], usd[first])
    at = np.argmin(whole_usd, axis=1)
    least = whole_usd[np.arange(len(first)), at]
    there = np.isfinite(least)
    more_usd = np.where(there, np.maximum(0.0, least - usd[first]), 0.0)
    return NextBest(np.where(there, units.offer[ways[at]], -1), more_usd, units.cold_s[ways[at]])


def busy_hours(demand: Floats) -> float:
    """Mean hours for which ``demand`` [H] stays above the middle of its range without a break, a day at
    most.
    """
    busy = demand > (demand.min(initial=np.inf) + demand.max(initial=0.0)) / 2
    begins = int((np.diff(busy.astype(np.int8), prepend=0) > 0).sum())
    return min(MOST_HOURS, float(busy.sum()) / begins) if begins else 0.0
