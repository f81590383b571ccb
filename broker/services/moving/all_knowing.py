"""A lower bound on the cost of every policy: plans over a recorded market with perfect foresight of prices.

Services are planned separately for each day, at the lowest price that each offer cost on that day: floating
(spot) prices at their minimum of the day, others at their minimum so far, because an order keeps its price.
Moves, minimum terms, billing steps and fees cost nothing, and stock is the maximum that was shown. Runs are
planned over the whole horizon at each offer's minimum price, with deadlines moved to its end. The budget is
ignored. Every policy costs at least the sum of the proven bounds, because it paid no less in any hour. One
case is not covered: a run that is split over two offers, one of which is too slow to do all of it within the
horizon.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.basics.money import ZERO
from broker.domain.basics.window import Window
from broker.domain.market.market_history import MarketHistory, as_of_point
from broker.domain.market.offer import Offer, Stock, Tier
from broker.domain.planning.workload import PlanRequest, Serving, Workload
from broker.domain.workloads.traffic import TrafficShape
from broker.ports.planning import PlanCall, PlanOptions

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
SOFT = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class AllKnowing:
    """Cost and penalty of these plans, the lower bound for every policy in USD, and the number of plans."""

    cost_usd: Decimal
    bound_usd: Decimal
    plans: int


def all_knowing(
    request: PlanRequest, history: MarketHistory, plan_call: PlanCall, options: PlanOptions
) -> AllKnowing:
    """The bound over the horizon of ``request``; ``history`` begins with it (``MarketHistory.within``)."""
    cost, bound, plans = ZERO, ZERO, 0
    for part, offers in _parts(request, history):
        plan = plan_call(part, offers, part.horizon.start, options)
        cost += plan.cost_usd + plan.penalty_usd
        bound += plan.bound_usd or ZERO
        plans += 1
    return AllKnowing(cost, bound, plans)


def _parts(request: PlanRequest, history: MarketHistory) -> Iterator[tuple[PlanRequest, tuple[Offer, ...]]]:
    prices = _Prices(history)
    horizon = request.horizon
    runs = tuple(_unhurried(w, horizon) for w in request.workloads if not isinstance(w, Serving))
    if runs:
        offers = prices.lowest(horizon, since=horizon.start)
        yield replace(request, workloads=runs, budget_usd=None), offers
    services = [w for w in request.workloads if isinstance(w, Serving)]
    start = horizon.start
    while start < horizon.end:
        day = Window(start, min(start + DAY, horizon.end))
        due = tuple(
            _on(service, request, day)
            for service in services
            if _begins(service, request) < day.end and service.ends_by(horizon.end) > day.start
        )
        if due:
            yield (
                replace(request, horizon=day, workloads=due, budget_usd=None),
                prices.lowest(day, horizon.start),
            )
        start = day.end


def _unhurried(run: Workload, horizon: Window) -> Workload:
    assert not isinstance(run, Serving)
    return replace(run, deadline=max(run.deadline, horizon.end))


def _begins(service: Serving, request: PlanRequest) -> datetime:
    """When a service must be running at the latest; one that follows a run: at the end of its last hour."""
    if service.starts_after is not None:
        run = request.workload(service.starts_after)
        assert not isinstance(run, Serving)
        return max(run.deadline + SOFT, service.starts_at or run.deadline)
    return service.starts_at or request.horizon.start


def _on(service: Serving, request: PlanRequest, day: Window) -> Serving:
    """A service on one day, with the traffic of that day and its share of the penalty for leaving it out."""
    start = max(_begins(service, request), day.start)
    traffic, share = service.traffic, Decimal(str(day.hours)) / Decimal(str(request.horizon.hours))
    if not traffic.repeats_daily:
        hours = (day.start + n * HOUR for n in range(math.ceil(day.hours)))
        rates = tuple(traffic.requests_per_s_at(hour, request.horizon.start) for hour in hours)
        traffic = replace(traffic, shape=TrafficShape.HOURLY, hourly=rates, bursts=(), time_zone=None)
    left_out = None if service.unplaced_usd is None else service.unplaced_usd * share
    starts = replace(service.starts, after=None, at=start)
    return replace(service, traffic=traffic, starts=starts, unplaced_usd=left_out)


class _Prices:
    """All states of each offer, by id, in order of time."""

    def __init__(self, history: MarketHistory) -> None:
        states: dict[str, list[tuple[datetime, Offer | None]]] = {}
        for point in history.points:
            offer = as_of_point(history.offers[point.offer_id], point) if point.available else None
            states.setdefault(point.offer_id, []).append((point.at, offer))
        self._states: Mapping[str, Sequence[tuple[datetime, Offer | None]]] = states

    def lowest(self, window: Window, since: datetime) -> tuple[Offer, ...]:
        """Each offer at its minimum price for use in ``window``, if it was bought from ``since`` on."""
        found = (self._lowest(states, window, since) for states in self._states.values())
        return tuple(offer for offer in found if offer is not None)

    def _lowest(
        self, states: Sequence[tuple[datetime, Offer | None]], window: Window, since: datetime
    ) -> Offer | None:
        ends = [*(at for at, _ in states[1:]), window.end]
        known = [
            offer
            for (at, offer), end in zip(states, ends, strict=True)
            if offer is not None
            and at < window.end
            and end > (window.start if offer.tier is Tier.SPOT else since)
        ]
        if not known:
            return None
        cheapest = min(known, key=lambda offer: offer.price_usd_per_node_hour)
        nodes = [offer.stock.nodes for offer in known]
        most = None if None in nodes else max(n for n in nodes if n is not None)
        free = replace(cheapest, stock=Stock(cheapest.stock.level, most, cheapest.stock.pool))
        if free.window is not None:
            return free
        return replace(free, min_hours=0.0, billing_increment_s=1, upfront_usd=None)
