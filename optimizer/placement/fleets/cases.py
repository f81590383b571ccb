"""A service and the units that can serve it, limited in each group of offers to what a cheapest fleet could
use.

Offers of a group (``billing_groups``) differ only in price and place. Once the cheapest of a group can carry
``enough`` times the service's needs, even without their best-stocked zones, a more expensive one never helps,
because a cheaper one is free. This holds for any surcharges: nodes that are surcharged or taken, or whose
offer ends before the horizon, are not counted, so the list reaches further when the case is rebuilt for what
others leave. K kinds of node, C configurations, S groups, O offers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np

from broker.domain.basics.confidence import MEDIAN, normal_quantile
from broker.domain.planning.effective_rules import MOST_POOLS
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.stages import grown_weeks, growth_share, measured_hour
from broker.domain.planning.workload import Serving
from optimizer.performance.intervals import tail_deviation
from optimizer.placement.fleets.relaunch_prices import relaunch_prices
from optimizer.placement.problem.billing_groups import NEVER, Limit, runs_of
from optimizer.placement.problem.estimates import Estimates
from optimizer.placement.problem.gates import GateLog, Opened, fit_gates, open_gates
from optimizer.placement.problem.problem import Bools, Floats, Ints, Problem
from optimizer.placement.problem.units import HOUR_S, NO_HOUR, FleetCase, Units, hour_count, only_units
from optimizer.placement.runtime.tuning import TUNING

HOURS_OF_DAY = 24
LEAST_REQUESTS_PER_S = 1e-6
"""Requests/s that stand for none in hours in which replicas are held all the same."""


def build_fleet_case(problem: Problem, estimates: Estimates, service: Serving) -> FleetCase:
    """Applies a service's gates and builds the units that remain."""
    opened, row, table = open_gates(problem, service), estimates.row_of[service.name], estimates.serving
    log = opened.log()
    obstacles = [table.obstacle(row, kind) for kind in range(len(problem.table.skus))]
    log.evaluated = len(problem.table) * len(table.configs)
    fits_kind: Bools = np.any(table.fits[row], axis=1)
    fit_gates(log, opened, obstacles, fits_kind)
    demand = hourly_demand(problem, service)
    replicas = Replicas.of(problem, estimates, service)
    _unit_gate(log, opened, replicas)
    measured = _measured_hour(problem, service)
    later_from = NO_HOUR if measured is None else measured
    if measured is None:
        replicas = replace(replicas, later_share=np.ones(replicas.fits.shape))
    supply = _Supply(problem, opened, replicas, service, float(demand.max(initial=0.0)))
    units = supply.units(None, {})
    relaunches = relaunch_prices(problem, units, replicas.worth.shape, demand)
    case = FleetCase(service, units, demand, log, supply.units, later_from=later_from, relaunches=relaunches)
    _redundancy_gates(problem, case)
    return case


def _unit_gate(log: GateLog, opened: Opened, replicas: Replicas) -> None:
    """Removes offers without the fabric or the stock for any unit; counts the candidates."""
    groups = opened.groups
    log.keep(Obstacle.FABRIC, int(opened.by_kind[replicas.fits.any(axis=1)].sum()))
    nodes = np.where(replicas.fits, replicas.nodes, NEVER)[groups.terms.kind]
    held = groups.with_nodes(Limit.STOCK, np.arange(len(nodes))[:, None], nodes)
    log.keep(Obstacle.STOCK, int(held.max(axis=1, initial=0).sum()))
    log.kept = int(held.sum())


def _redundancy_gates(problem: Problem, case: FleetCase) -> None:
    """Requires enough zones, and enough capacity for the peak with spares, also once offers have ended."""
    if case.log.obstacle is not None:
        return
    gone_s = problem.table.gone_s[case.units.offer]
    for begin_s in (0, *np.unique(gone_s[gone_s < problem.end_s]).tolist()):
        for hours, units in only_units(case, gone_s > begin_s).stages:
            since = max(hours.start, -(-begin_s // HOUR_S))
            short = _short_of(case, units, float(case.demand[since : hours.stop].max(initial=0.0)))
            if short is not None:
                case.log.obstacle = Obstacle.AVAILABILITY if begin_s else short
                return


def _short_of(case: FleetCase, units: Units, peak_requests_per_s: float) -> Obstacle | None:
    """What ``units`` lack for the peak, if anything."""
    if peak_requests_per_s <= 0:
        return None
    if len(np.unique(units.zone)) < case.zones:
        return Obstacle.REDUNDANCY
    first = np.flatnonzero(np.diff(units.offer, prepend=-1))
    together = float(np.maximum.reduceat(units.requests_per_s * units.most, first).sum())
    least = float(units.largest.min())
    peak_requests_per_s = max(peak_requests_per_s, case.idle * least)
    return Obstacle.STOCK if together - case.spare * least < peak_requests_per_s * (1 - 1e-9) else None


def hourly_demand(problem: Problem, service: Serving) -> Floats:
    """The highest requests/s of each hour [H] until the service ends, with the growth that counts.

    Traffic that repeats daily is evaluated for one day.
    """
    hours, traffic = hour_count(problem), service.traffic
    asked = min(hours, HOURS_OF_DAY) if traffic.repeats_daily else hours
    starts = [problem.origin + timedelta(hours=hour) for hour in range(asked)]
    rates = [traffic.requests_per_s_at(start, problem.origin) for start in starts]
    demand: Floats = np.resize(np.array(rates, dtype=np.float64), hours)
    measured = _measured_hour(problem, service)
    if measured is not None and traffic.uncertainty.growth:
        demand *= np.array([growth_share(service, grown_weeks(measured, hour)) for hour in range(hours)])
    if service.min_replicas:
        demand = np.maximum(demand, LEAST_REQUESTS_PER_S)
    demand[np.arange(hours) * HOUR_S >= problem.end_of(service)] = 0.0
    return demand


def mean_demand(problem: Problem, case: FleetCase) -> Floats:
    """Mean requests/s [H], where ``case.demand`` has the highest of each hour."""
    if not case.service.traffic.bursts and not case.service.min_replicas:
        return case.demand
    starts = (problem.origin + timedelta(hours=hour) for hour in range(len(case.demand)))
    rates = [case.service.mean_requests_per_s_at(start, problem.origin) for start in starts]
    return np.array(rates, dtype=np.float64)


def _measured_hour(problem: Problem, service: Serving) -> int | None:
    return measured_hour(problem.request, service, problem.unmeasured_from(service.name))


@dataclass(frozen=True, slots=True, eq=False)
class Replicas:
    """One unit [K, C] of each kind of node and configuration: nodes, replicas, rates in requests/s.

    ``fits``: it can serve; ``worth``: and no other configuration of the same kind dominates it. Rates hold
    with the service's confidence, that of the traffic's level included; ``later_share`` is their median as a
    multiple; ``deviation``: standard deviation of the logarithm of a rate beyond it, relative to the level.
    """

    fits: Bools
    worth: Bools
    nodes: Ints
    replicas: Ints
    rate: Floats
    largest: Floats
    cold_s: Floats
    later_share: Floats
    deviation: Floats

    @classmethod
    def of(cls, problem: Problem, estimates: Estimates, service: Serving) -> Replicas:
        """The units of a service; cached."""
        row, level = estimates.row_of[service.name], service.traffic.uncertainty.level_deviation
        asked = row, service.planned_confidence, level
        return estimates.kept.once(("replicas", *asked), lambda: cls._made(problem, estimates, *asked))

    @classmethod
    def _made(
        cls, problem: Problem, estimates: Estimates, row: int, confidence: float, level: float
    ) -> Replicas:
        serving, skus = estimates.serving, problem.table.skus
        sizes = np.array([config.gpus_per_replica for config in serving.configs], dtype=np.int64)
        per_node = np.array([sku.gpus_per_node for sku in skus], dtype=np.int64)[:, None]
        joined = np.array([s.fabric.max_nodes if s.fabric else 1 for s in skus], dtype=np.int64)[:, None]
        nodes = np.maximum(1, -(-sizes[None, :] // per_node))
        replicas = np.maximum(1, per_node // sizes[None, :])
        largest, cold_s = serving.requests_per_s[row], estimates.cold_s[row]
        fits = np.asarray(serving.fits[row] & (nodes <= joined), dtype=np.bool_)
        later_share, deviation = np.ones(fits.shape), np.zeros(fits.shape)
        np.divide(serving.median_requests_per_s[row], largest, out=later_share, where=fits)
        if confidence != MEDIAN:
            deviations = normal_quantile(confidence)
            own = np.log(later_share) / deviations
            wider = np.exp(deviations * (np.hypot(own, level) - own))
            low = serving.low_requests_per_s[row][fits]
            tail = tail_deviation(serving.median_requests_per_s[row][fits], largest[fits], low, confidence)
            deviation[fits] = np.hypot(tail, level)
            largest, later_share = largest / wider, later_share * wider
        rate = replicas * largest
        later = later_share * rate, later_share * largest
        worth = _worth(fits, np.stack((-rate, largest, cold_s, -later[0], later[1])), nodes)
        return cls(fits, worth, nodes, replicas, rate, largest, cold_s, later_share, deviation)


def _worth(fits: Bools, worse: Floats, nodes: Ints) -> Bools:
    """Fitting configurations [K, C] that no other of the same kind and node count dominates.

    ``worse`` [5, K, C] holds the criteria, lower is better: −rate, the largest replica, the cold start, and
    both rates at their medians.
    """
    worth = fits.copy()
    for kind in np.flatnonzero(fits.any(axis=1)):
        mine = np.flatnonzero(fits[kind])
        each = worse[:, kind, mine]
        at_least = (each[:, :, None] <= each[:, None, :]).all(axis=0)
        at_least &= nodes[kind, mine][:, None] == nodes[kind, mine]
        better = at_least & (~at_least.T | (mine[:, None] < mine))
        worth[kind, mine[better.any(axis=0)]] = False
    return worth


@dataclass(frozen=True, slots=True, eq=False)
class _Supply:
    """Builds the units of one service for given stock and surcharges."""

    problem: Problem
    opened: Opened
    replicas: Replicas
    service: Serving
    peak_requests_per_s: float

    def units(self, free: Ints | None, surcharge_usd: Mapping[int, float]) -> Units:
        """The units that the service could use from ``free`` nodes [O] (None: all) at surcharges per
        node-hour.
        """
        table = self.problem.table
        stock = table.stock_nodes if free is None else free
        offers = self._wanted(stock, np.fromiter(surcharge_usd, dtype=np.int64, count=len(surcharge_usd)))
        each = self.replicas
        kind_of, config_of = np.nonzero(each.worth)
        first = np.searchsorted(kind_of, np.arange(len(each.worth) + 1))
        at, within = runs_of(np.diff(first)[table.sku_of[offers]])
        offer, kind = offers[at], table.sku_of[offers[at]]
        config = config_of[first[kind] + within]
        most = stock[offer] // each.nodes[kind, config]
        offer, kind, config, most = (a[most > 0] for a in (offer, kind, config, most))
        if table.has_sizes:
            usd = table.price_usd[offer] * each.nodes[kind, config] / each.rate[kind, config]
            one = _in_one_size(table.stock_of[offer], offer, usd)
            offer, kind, config, most = (a[one] for a in (offer, kind, config, most))
        nodes = each.nodes[kind, config]
        extra = np.array([surcharge_usd.get(int(o), 0.0) for o in offer] if surcharge_usd else 0.0)
        return Units(
            offer=offer,
            config=config,
            kind=kind * each.worth.shape[1] + config,
            nodes=nodes,
            replicas=each.replicas[kind, config],
            requests_per_s=each.rate[kind, config],
            largest=each.largest[kind, config],
            usd_per_hour=nodes * table.price_usd[offer],
            cold_s=each.cold_s[kind, config],
            zone=table.zone_of[offer],
            most=most,
            surcharge_usd_per_hour=np.asarray(nodes * extra, dtype=np.float64),
            later_share=each.later_share[kind, config],
            deviation=each.deviation[kind, config],
        )

    def _wanted(self, stock: Ints, surcharged: Ints) -> Ints:
        """Offers, ascending: the cheapest of each group until they hold enough, and all with an upfront
        price.
        """
        table, groups = self.problem.table, self.opened.groups
        able: Bools = np.any(self.replicas.worth, axis=1)
        serves = able[groups.terms.kind] & ~groups.terms.is_window
        group = np.flatnonzero(serves & (groups.sizes > 0))
        largest_unit = np.where(self.replicas.worth, self.replicas.nodes, 1).max(axis=1, initial=1)
        whole = largest_unit[table.sku_of[groups.offer]]
        counted = stock[groups.offer] // whole * whole
        plain = np.ones(len(table), dtype=np.bool_)
        plain[surcharged] = False
        plain &= (table.upfront_usd == 0) & (table.gone_s >= self.problem.end_s)
        counted = np.where(plain[groups.offer], counted, 0)
        cheapest, _ = groups.cheapest(group, self._enough_pools(group, counted))
        ahead = self.opened.passing & (table.upfront_usd > 0) & ~table.is_window
        if ahead.any():
            cheapest = np.union1d(cheapest, np.flatnonzero(ahead & able[table.sku_of]))
        return np.sort(cheapest)

    def _enough_nodes(self) -> Ints:
        """Nodes of each kind [K] that carry ``enough`` times what the service needs, in any configuration."""
        each = self.replicas
        if not each.worth.any():
            return np.zeros(len(each.worth), dtype=np.int64)
        redundancy = self.service.redundancy
        replicas = redundancy.spare_replicas + self.service.min_replicas
        needed = self.peak_requests_per_s + replicas * float(each.largest[each.worth].max())
        units = np.zeros(each.worth.shape)
        np.divide(TUNING.fleets.enough * needed, each.rate, out=units, where=each.worth)
        nodes = each.nodes * (np.ceil(units) + TUNING.fleets.more_units + redundancy.zones)
        most: Ints = np.where(each.worth, np.minimum(nodes, NEVER), 0).max(axis=1).astype(np.int64)
        return most

    def _enough_pools(self, group: Ints, counted: Ints) -> Ints:
        """How many of the cheapest offers of each of ``group`` are needed so that as many places as a fleet
        may have pools hold enough each.

        A fleet has no more pools, so one of these places is free for whatever a more expensive offer would
        carry.
        """
        groups, zone_of = self.opened.groups, self.problem.table.zone_of
        most = max(MOST_POOLS, self.service.redundancy.zones)
        enough = self._enough_nodes()[groups.terms.kind[group]]
        sizes = groups.sizes[group]
        which, within = runs_of(sizes)
        at = groups.first[group[which]] + within
        alone = np.flatnonzero(counted[at] >= enough[which])
        key = which[alone] * (int(zone_of.max(initial=0)) + 1) + zone_of[groups.offer[at[alone]]]
        fresh = np.zeros(len(at), dtype=np.int64)
        fresh[alone[np.unique(key, return_index=True)[1]]] = 1
        seen = np.cumsum(fresh)
        begin = np.cumsum(sizes) - sizes
        before = np.append(0, seen)[begin]
        counts: Ints = np.minimum(np.searchsorted(seen, before + most) - begin + 1, sizes)
        return counts


def _in_one_size(stock: Ints, offer: Ints, usd: Floats) -> Bools:
    """Which rows [U] to keep: of each offer only the size that carries a request/s for the least ``usd``.

    Sizes of one offer share its stock, which a fleet counts by row.
    """
    order = np.lexsort((offer, usd, stock))
    _, first = np.unique(stock[order], return_index=True)
    best = np.full(int(stock.max(initial=-1)) + 1, -1, dtype=np.int64)
    best[stock[order[first]]] = offer[order[first]]
    one: Bools = offer == best[stock]
    return one
