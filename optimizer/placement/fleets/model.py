"""The cheapest fleet of one service, and what no fleet under its rules costs less than.

A fleet stands on few pools (``pools``). For a given set of pools the cheapest fleet over all hours is a shortest
path, and a best-first search over sets finds the set (``sets``). Prices of scarcity are part of the pools' prices.
What is relaxed in the bound: minimum terms shorter than the horizon count as none, and what other workloads hold
is left to the prices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from broker.domain.standing_rules import rules_of
from broker.domain.workload import Serving, TrafficShape
from optimizer.placement.columns import Column
from optimizer.placement.fleet_columns import Slot, build_slots_column, time_of
from optimizer.placement.fleets.hours import hour_classes
from optimizer.placement.fleets.loops import MOST_POOLS
from optimizer.placement.fleets.pools import PoolTable, build_pools_of
from optimizer.placement.fleets.sets import FleetRules, PoolFleet, SetSearch
from optimizer.placement.holding import ServiceTime, due_s
from optimizer.placement.problem import Floats, Ints, Problem
from optimizer.placement.start_costs import on_grid
from optimizer.placement.stopwatch import never
from optimizer.placement.units import HOUR_S, FleetCase, beside, surcharged

TOLERANCE = 0.002
DAY_H, WEEK_H = 24, 168
FLEETS_KEPT = 3
KEY = "fleet model"


@dataclass(frozen=True, slots=True, eq=False)
class FleetAnswer:
    """What is known of a service from ``first_hour`` on: fleets, cheapest first, of pools in ``table``.

    ``bound_usd``: no fleet under the rules costs less, prices of scarcity in it; inf where there is none.
    ``whole_days`` of the time cost at least ``days_usd``, where demand repeats by the day.
    """

    case: FleetCase
    table: PoolTable
    fleets: tuple[PoolFleet, ...]
    bound_usd: float
    first_hour: int
    whole_days: int = 0
    days_usd: float = 0.0

    @property
    def feasible(self) -> bool:
        """Whether any fleet meets all hours."""
        return bool(self.fleets)


def fleet_rules(problem: Problem, service: Serving) -> FleetRules:
    """The rules of a fleet, as the document says them."""
    standing, redundancy = rules_of(problem.request.policy, service), service.redundancy
    loss = redundancy.zone_loss_share if redundancy.survives_zone_loss else 0.0
    return FleetRules(
        spare=redundancy.spare_replicas,
        places=max(1, redundancy.zones),
        loss_share=loss,
        least_share=loss / max(1, redundancy.zones - 1),
        pools=standing.max_pools,
        gpus=standing.max_gpu_kinds,
    )


def limits_pools(problem: Problem, service: Serving) -> bool:
    """Whether a service may run on so few pools that all sets of them can be searched."""
    return fleet_rules(problem, service).pools <= MOST_POOLS


def answer_fleet(
    problem: Problem,
    case: FleetCase,
    free: Ints | None = None,
    prices: Mapping[int, float] | None = None,
    after_s: float | None = None,
    out_of_time: Callable[[], bool] = never,
) -> FleetAnswer:
    """The fleets of a service from ``free`` nodes [O] (None: all) at ``prices`` of scarcity per node-hour, started
    at its own time or after a run. Asked again the same, it answers from memory."""
    first = _first_hour(problem, case, after_s)
    charged = tuple(sorted((prices or {}).items()))
    key = (KEY, case.service.name, None if free is None else free.tobytes(), charged, first)
    known = problem.kept.get(key)
    if isinstance(known, FleetAnswer):
        return known
    if prices:
        case = surcharged(case, prices)
    if free is not None:
        case = beside(case, free)
    found = _answer(problem, case, after_s, first, out_of_time)
    if not out_of_time():
        problem.kept[key] = found
    return found


def _first_hour(problem: Problem, case: FleetCase, after_s: float | None) -> int:
    if not len(case.units):
        return 0
    time = time_of(problem, case, after_s)
    return int(due_s(problem, time, after_s is not None, float(case.units.cold_s.max())) // HOUR_S)


def _answer(
    problem: Problem, case: FleetCase, after_s: float | None, first: int, out_of_time: Callable[[], bool]
) -> FleetAnswer:
    nothing = PoolTable.nothing()
    if not len(case.units) or first >= len(case.demand):
        return FleetAnswer(case, nothing, (), np.inf if not len(case.units) else 0.0, first)
    lengths = _lengths(problem, case, after_s, first)
    demand = case.demand[first:]
    table = build_pools_of(problem, replace(case, demand=demand), float(lengths.sum()))
    lead_h = int(np.ceil(float(case.units.cold_s.max()) / HOUR_S))
    period = WEEK_H if case.service.traffic.shape is TrafficShape.HOURLY else DAY_H
    classes = hour_classes(demand, lengths, lead_h, period)
    rules = fleet_rules(problem, case.service)
    rules = replace(rules, pools=min(rules.pools, MOST_POOLS))
    search = SetSearch(table, classes, rules, TOLERANCE, out_of_time)
    search.run()
    while search.best is None and rules.pools < MOST_POOLS and not _is_said(problem, case.service):
        rules = replace(rules, pools=rules.pools + 1)
        search = SetSearch(table, classes, rules, TOLERANCE, out_of_time)
        search.run()
    fleets = sorted(search.fleets, key=lambda fleet: fleet.usd)[:FLEETS_KEPT]
    days = len(demand) // DAY_H if classes.period == DAY_H else 0
    share = days * DAY_H / max(1.0, float(lengths.sum()))
    return FleetAnswer(
        case, search.table, tuple(fleets), search.bound_usd, first, days, search.hours_bound_usd * share
    )


def _is_said(problem: Problem, service: Serving) -> bool:
    """Whether the document itself limits the pools of a service."""
    policies = (problem.request.policy.fleet, service.policy.fleet, service.fleet)
    return any(limits.max_pools is not None for limits in policies)


def _lengths(problem: Problem, case: FleetCase, after_s: float | None, first: int) -> Floats:
    """Hours [H] that each hour from ``first`` on is held, the first with the shortest cold start before it."""
    hours = len(case.demand)
    ends = np.minimum((np.arange(first, hours) + 1) * HOUR_S, problem.end_s)
    lengths: Floats = (ends - np.arange(first, hours) * HOUR_S) / HOUR_S
    units = case.units
    due = due_s(problem, time_of(problem, case, after_s), after_s is not None, float(units.cold_s.max()))
    held_from = due - float(units.cold_s.min())
    in_hours = bool((problem.table.increment_s[units.offer] % HOUR_S == 0).all()) and on_grid(problem)
    if in_hours and not (units.surcharge_usd_per_hour > 0).any():
        held_from = held_from // HOUR_S * HOUR_S
    lengths[0] += first - held_from / HOUR_S
    return lengths


def fleet_columns(problem: Problem, answer: FleetAnswer, after_s: float | None) -> Iterator[Column]:
    """The fleets of an answer as columns with their exact cost, for a start at or after the answer's own."""
    time = time_of(problem, answer.case, after_s)
    for fleet in answer.fleets:
        column = build_slots_column(problem, answer.case, _slots(answer, fleet, time), after_s)
        if column is not None and column.pieces:
            yield column


def _slots(answer: FleetAnswer, fleet: PoolFleet, time: ServiceTime) -> list[Slot]:
    """Each node of the fleet with the hours from the service's first [H] in which it must be ready.

    Before the answer's first hour, while nothing can be ready yet, what that hour needs is started.
    """
    early = max(0, answer.first_hour - time.first_hour)
    levels = fleet.levels[max(0, time.first_hour - answer.first_hour) :]
    levels = np.concatenate((np.repeat(levels[:1], early, axis=0), levels))
    found: list[Slot] = []
    for number, row in enumerate(fleet.pools):
        pool = answer.table.pools[row]
        counts = pool.counts[levels[:, number]]
        for at, unit in enumerate(pool.units):
            for copy in range(int(counts[:, at].max(initial=0))):
                found.append(Slot(int(unit), counts[:, at] > copy))
    return found
