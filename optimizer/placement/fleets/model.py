"""The cheapest fleet of one service, and what no fleet under its rules costs less than.

A fleet stands on few pools (``pools``). For a given set of pools the cheapest fleet over all hours is a
shortest path, and a best-first search over sets finds the set (``sets``). Dual prices of stock are part of
the pools' prices. What is relaxed in the bound: the hours of a minimum term are charged by convex
combinations of a rate and a start (``terms``), in fleets of more than ``MOST_POOLS`` pools terms count as
none, and what other workloads hold is left to the prices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from broker.domain.planning.workload import Serving, TrafficShape
from optimizer.placement.fleets.bound import FleetBound, in_whole_cents, within_horizon
from optimizer.placement.fleets.columns import ServiceTime, Slot, build_slots_column, due_s, time_of
from optimizer.placement.fleets.hours import hour_classes
from optimizer.placement.fleets.joint_pools import needed_pools, paired_parts
from optimizer.placement.fleets.many_pools import PatternSearch
from optimizer.placement.fleets.pool_table import PoolTable
from optimizer.placement.fleets.pools import build_pools_of
from optimizer.placement.fleets.promising import FIRST_UNITS, on_promising
from optimizer.placement.fleets.rules import MOST_POOLS, fleet_rules
from optimizer.placement.fleets.set_costs import Openings, PoolFleet
from optimizer.placement.fleets.sets import FEW_POOLS, SetSearch
from optimizer.placement.fleets.shared_gpus import fleets_apart
from optimizer.placement.fleets.terms import has_term
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.problem import UNLIMITED_NODES, Floats, Ints, Problem
from optimizer.placement.problem.units import HOUR_S, FleetCase, beside, only_units, surcharged
from optimizer.placement.runtime.stopwatch import never

TOLERANCE = 0.002
FEW_UNITS = 40
TERM_POOLS = 3
"""Where there are minimum terms, fleets on so many pools are planned before those on more."""
FEW_ENDS = 6
OPEN_AFTER_SETS = 0.02
"""What a search over sets leaves open where sets of many pools are nearly alike."""
MOST_EXACT = 10
"""Workloads of which each is planned by the exact model before there is any plan."""
MOST_WITH_TERMS = 60
"""Workloads of which services with few pools are planned with their minimum terms throughout."""
MOST_TERM_POOLS = 150
"""Pools with which minimum terms are soon planned; with more they take seconds, and prove nothing more."""
DAY_H, WEEK_H = 24, 168
FLEETS_KEPT = 3
RIVALS_KEPT = 16
"""Where other workloads may want the same nodes."""
KEY = "fleet model"


@dataclass(frozen=True, slots=True, eq=False)
class FleetAnswer:
    """What is known of a service whose traffic is due from ``due_s``, in ``first_hour``: fleets, cheapest
    first, of pools in ``table``.

    ``bound_usd``: no fleet under the rules costs less, dual prices in it; inf where there is none.
    Each hour from ``first_hour`` on [H] costs at least ``hourly_usd``, inf where no stock carries it.
    ``complete``: its search was not cut off.
    """

    case: FleetCase
    table: PoolTable
    fleets: tuple[PoolFleet, ...]
    bound_usd: float
    due_s: float
    hourly_usd: Floats = field(default_factory=lambda: np.zeros(0))
    search: SetSearch | PatternSearch | None = None
    complete: bool = True

    @property
    def owed(self) -> bool:
        """Whether a best fleet may stand on commitments, which are paid however long it serves."""
        return self.search is not None and self.search.owed

    @property
    def first_hour(self) -> int:
        """The hour in which traffic is due."""
        return int(self.due_s // HOUR_S)

    @property
    def feasible(self) -> bool:
        """Whether a fleet may meet all hours."""
        return bool(np.isfinite(self.bound_usd))


def is_small(problem: Problem) -> bool:
    """Whether there is time for the exact model of every workload."""
    return len(problem.request.workloads) <= MOST_EXACT


def answer_fleet(
    problem: Problem,
    case: FleetCase,
    free: Ints | None = None,
    prices: Mapping[int, float] | None = None,
    after_s: float | None = None,
    out_of_time: Callable[[], bool] = never,
    openings: Openings | None = None,
    *,
    by_hour: bool = False,
    with_terms: bool | None = None,
) -> FleetAnswer:
    """The fleets of a service from ``free`` nodes [O] (None: all) at dual ``prices`` in USD per node-hour,
    started at its own time or after a run. Asked again the same, it answers from memory: also with what was
    cut off, unless it has a time to ask again in.

    ``openings``: when others leave how many of these nodes, for fleets that share them by the hour; the
    bound takes no notice of that. ``by_hour``: an answer of another start in the same hour will do.
    ``with_terms`` False: minimum terms that end before the horizon count as none, which is proven sooner; so
    do they (None) where workloads are very many, and but for few workloads where pools are.
    """
    prove = is_small(problem) and with_terms is not False
    if with_terms is None:
        with_terms = len(problem.request.workloads) <= MOST_WITH_TERMS
    offers = case.units.offer
    if free is not None and np.array_equal(free[offers], problem.table.stock_nodes[offers]):
        free = None
    due = _due_s(problem, case, after_s)
    first = int(due // HOUR_S)
    stands_on = _stands_on(problem, case)
    key = (
        KEY,
        *stands_on,
        None if free is None else free.tobytes(),
        tuple(sorted((prices or {}).items())),
        first if by_hour else due,
        None if openings is None else openings.key,
        with_terms,
    )
    known = problem.kept.get(key)
    if isinstance(known, FleetAnswer) and (known.complete or out_of_time is never or out_of_time()):
        return known
    if openings is not None:
        base = answer_fleet(problem, case, free, prices, after_s, out_of_time, with_terms=with_terms)
        if base.search is not None and len(base.table) > FEW_POOLS:
            problem.kept[key] = found = _between(base, openings, first)
            return found
    without = None
    if with_terms and _has_use_for_terms(problem, case):
        # The same without minimum terms costs no more, and is bounded sooner.
        without = answer_fleet(problem, case, free, prices, after_s, out_of_time, openings, with_terms=False)
        plans_terms = is_small(problem) or len(without.table) <= MOST_TERM_POOLS
        if not plans_terms or out_of_time():
            problem.kept[key] = found = replace(without, complete=not plans_terms and without.complete)
            return found
    alone = free is None and not prices and openings is None
    if prices:
        case = surcharged(case, prices)
    if free is not None:
        case = beside(case, free)
    found = _searched(problem, case, due, out_of_time, openings, with_terms=with_terms)
    found = replace(found, bound_usd=_proven_usd(found, without, out_of_time, prove=prove and alone))
    problem.kept[key] = found = replace(found, complete=not out_of_time())
    return found


def _between(base: FleetAnswer, openings: Openings, first: int) -> FleetAnswer:
    """The answer for the hours that others leave, on sets that are known to be cheap without them."""
    assert base.search is not None
    shifted = replace(openings, of_hour=openings.of_hour[first:])
    return replace(base, fleets=tuple(sorted(base.search.between(shifted), key=lambda fleet: fleet.usd)))


def _searched(
    problem: Problem, case: FleetCase, due: float, out_of_time: Callable[[], bool],
    openings: Openings | None, *, with_terms: bool,
) -> FleetAnswer:  # fmt: skip
    """The answer of a search."""
    if not len(case.units) or due // HOUR_S >= len(case.demand):
        return FleetAnswer(case, PoolTable.nothing(), (), 0.0 if len(case.units) else np.inf, due)
    search = _search_of(problem, case, due, out_of_time, openings, with_terms=with_terms)
    return _answer(problem, case, due, search)


def _proven_usd(
    answer: FleetAnswer, without: FleetAnswer | None, out_of_time: Callable[[], bool], *, prove: bool
) -> float:
    """The bound of an answer or of that ``without`` terms, whichever is higher; where both leave much open,
    and there is time to ``prove`` more, that of the hours on any number of pools."""
    plain = answer if without is None else without
    usd, search = max(answer.bound_usd, plain.bound_usd), plain.search
    if not prove or not isinstance(search, SetSearch) or not answer.fleets:
        return usd
    least = min(fleet.usd for fleet in answer.fleets)
    if usd >= least * (1 - OPEN_AFTER_SETS) or out_of_time is never or out_of_time():
        return usd  # a first plan waits for no proof
    patterns = PatternSearch(search.parts, search.classes, search.rules, search.tolerance, out_of_time)
    return max(usd, patterns.proven_usd(least))


def _has_use_for_terms(problem: Problem, case: FleetCase) -> bool:
    """Whether minimum terms change what a search does."""
    few = fleet_rules(problem, case.service).pools <= MOST_POOLS
    return few and bool(has_term(problem, case).any())


def is_quick(problem: Problem, service: Serving) -> bool:
    """Whether fleets of a service stand on so few pools that they are soon found."""
    return fleet_rules(problem, service).pools <= TERM_POOLS


def _on_few_pools(problem: Problem, case: FleetCase) -> FleetCase | None:
    """The case on fewer pools than it may stand on, on which minimum terms are soon planned; else None."""
    few = max(TERM_POOLS, case.service.redundancy.zones)
    if fleet_rules(problem, case.service).pools <= few or not has_term(problem, case).any():
        return None
    policy = case.service.policy
    limits = replace(policy.fleet, max_pools=few)
    return replace(case, service=replace(case.service, policy=replace(policy, fleet=limits)))


def _stands_on(problem: Problem, case: FleetCase) -> tuple[object, ...]:
    """What all answers of a service depend on."""
    arrays = (case.units.offer, case.units.requests_per_s, case.demand)
    return (case.service, fleet_rules(problem, case.service), *(one.tobytes() for one in arrays))


def _due_s(problem: Problem, case: FleetCase, after_s: float | None) -> float:
    time = time_of(problem, case, after_s)
    return due_s(problem, time, after_s is not None, float(case.units.cold_s.max(initial=0.0)))


def _search_of(
    problem: Problem,
    case: FleetCase,
    due: float,
    out_of_time: Callable[[], bool] = never,
    openings: Openings | None = None,
    *,
    with_terms: bool = True,
) -> SetSearch | PatternSearch:
    """The search for fleets of a service that is due some time before the horizon ends; without terms, those
    that end before the horizon count as none."""
    first, lengths = int(due // HOUR_S), _lengths(problem, case, due)
    demand = case.demand[first:]
    lead_h = int(np.ceil(float(case.units.cold_s.max()) / HOUR_S))
    period = WEEK_H if case.service.traffic.shape is TrafficShape.HOURLY else DAY_H
    rules = fleet_rules(problem, case.service)
    with_terms = with_terms and _has_use_for_terms(problem, case)
    classes = hour_classes(demand, lengths, lead_h, period, with_terms=with_terms)
    table = build_pools_of(problem, replace(case, demand=demand), float(lengths.sum()), classes.bands)
    tolerance = 0.0 if len(table) <= FEW_POOLS else TOLERANCE
    if openings is not None:
        openings = replace(openings, of_hour=openings.of_hour[first:])
    nodes = np.stack((case.units.offer, case.units.nodes))
    most_pools = min(rules.pools, len(np.unique(table.owner)))
    searched = SetSearch if most_pools <= MOST_POOLS else PatternSearch
    return searched(table, classes, rules, tolerance, out_of_time, openings, nodes)


def _answer(problem: Problem, case: FleetCase, due: float, search: SetSearch | PatternSearch) -> FleetAnswer:
    """The answer of a search."""
    search.run()
    kept = FLEETS_KEPT if len(problem.request.workloads) == 1 else RIVALS_KEPT
    fewer = [] if case.surcharge_usd else search.fewer()
    cheapest = sorted(search.fleets, key=lambda fleet: fleet.usd)
    fleets = list(dict.fromkeys([*cheapest[:kept], *fewer]))
    return FleetAnswer(
        case,
        search.parts,
        tuple(fleets),
        search.bound_usd,
        due,
        search.hourly_usd() if len(search.parts) else np.full(len(search.classes.demand_of), np.inf),
        search,
    )


def wanted_units(problem: Problem, case: FleetCase) -> Ints:
    """Units [n] of the pools that a best fleet may stand on: none of the others makes these needless."""
    rules = fleet_rules(problem, case.service)
    if rules.pools > MOST_POOLS:
        return np.arange(len(case.units))
    table = build_pools_of(problem, case, (problem.end_s - problem.t0_s) / HOUR_S)
    parts = paired_parts(table)
    rows = parts[np.flatnonzero(needed_pools(table, parts, rules, table.term_h))]
    wanted = [table.pools[int(row)].units for row in np.unique(rows[rows >= 0])]
    return np.unique(np.concatenate(wanted)) if wanted else np.zeros(0, dtype=np.int64)


def _lengths(problem: Problem, case: FleetCase, due: float) -> Floats:
    """Hours [H] that each hour from that of ``due`` on is held, the first with the shortest cold start before
    it."""
    hours, first = len(case.demand), int(due // HOUR_S)
    ends = np.minimum((np.arange(first, hours) + 1) * HOUR_S, problem.end_s)
    lengths: Floats = (ends - np.arange(first, hours) * HOUR_S) / HOUR_S
    held_from = due - float(case.units.cold_s.min())
    if _in_hours(problem, case):
        held_from = held_from // HOUR_S * HOUR_S
    lengths[0] += first - held_from / HOUR_S
    return lengths


def _in_hours(problem: Problem, case: FleetCase) -> bool:
    """Whether everything is paid in whole hours of the grid."""
    units = case.units
    whole = bool((problem.table.increment_s[units.offer] % HOUR_S == 0).all()) and problem.end_s % HOUR_S == 0
    return whole and not (units.surcharge_usd_per_hour > 0).any()


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
            most = int(counts[:, at].max(initial=0))
            found.extend(Slot(int(unit), counts[:, at] > copy) for copy in range(most))
    return found


def bound_of(problem: Problem, case: FleetCase, answer: FleetAnswer) -> FleetBound:
    """What an answer proves, for its own start and for others."""
    units = case.units
    if not len(units):
        return FleetBound(len(case.demand), met=False, starts=((answer.due_s, np.inf),))
    cold = float(units.cold_s.min()), float(units.cold_s.max())
    return FleetBound(
        len(case.demand),
        *cold,
        in_hours=_in_hours(problem, case),
        in_cents=_in_hours(problem, case) and in_whole_cents(problem, case),
        starts=((answer.due_s, answer.bound_usd),),
        met=answer.feasible,
        owed=answer.owed,
        hourly_usd=within_horizon(problem, np.concatenate((np.zeros(answer.first_hour), answer.hourly_usd))),
    )


def earliest_end(run: str) -> tuple[str, str]:
    """The name under which a problem keeps the earliest end that any candidate of a run has."""
    return "earliest end", run


def quick_fleets(
    problem: Problem, case: FleetCase, free: Ints, ends: Sequence[float | None], first: int = FIRST_UNITS
) -> list[Column]:
    """Cheap fleets from ``free`` nodes [O] on promising pools for each end of the run before; on all pools
    where the promising ones have none. Minimum terms that end before the horizon count as none.

    ``first``: how many units lead to promising pools (``on_promising``)."""
    return _quick_fleets(problem, beside(case, free), ends, first)


def termless_fleets(
    problem: Problem, case: FleetCase, free: Ints, ends: Sequence[float | None]
) -> list[Column]:
    """The same without nodes whose minimum terms end before the horizon, where there are such nodes: a fleet
    that pays for many terms is dearer than a search that knows of none takes it to be."""
    case = beside(case, free)
    termed = has_term(problem, case)
    return _quick_fleets(problem, only_units(case, ~termed), ends) if termed.any() else []


def _quick_fleets(
    problem: Problem,
    case: FleetCase,
    ends: Sequence[float | None],
    first: int = FIRST_UNITS,
    *,
    with_terms: bool = False,
) -> list[Column]:
    due = _due_s(problem, case, min((end for end in ends if end is not None), default=None))
    if not ends or due // HOUR_S >= len(case.demand):
        return []
    narrow = on_promising(problem, case, first)
    answer = _quick_answer(problem, narrow, due, with_terms=with_terms)
    if not answer.fleets and narrow is not case:
        answer = _quick_answer(problem, case, due, with_terms=with_terms)
    return [column for end in ends for column in fleet_columns(problem, answer, end)]


def _quick_answer(problem: Problem, case: FleetCase, due: float, *, with_terms: bool) -> FleetAnswer:
    """The first fleets of a search, which proves nothing."""
    if not len(case.units):
        return FleetAnswer(case, PoolTable.nothing(), (), 0.0, due)
    search = _search_of(problem, case, due, with_terms=with_terms)
    search.begin()
    fleets = tuple(sorted(search.fleets, key=lambda fleet: fleet.usd)[:FLEETS_KEPT])
    return FleetAnswer(case, search.parts, fleets, 0.0, due, search=search)


def coarse_fleets(
    problem: Problem,
    case: FleetCase,
    free: Ints,
    ends: Sequence[float | None],
    openings: Openings | None = None,
) -> list[Column]:
    """Fleets as ``model_fleets`` makes them where there are few nodes to choose from; of many, cheap ones
    without a proof, which take a small part of the work."""
    if len(case.units) <= FEW_UNITS:
        return model_fleets(problem, case, free, ends, openings)
    return quick_fleets(problem, case, free, ends) + termless_fleets(problem, case, free, ends)


def fleets_with_terms(problem: Problem, case: FleetCase, ends: Sequence[float | None]) -> list[Column]:
    """Cheap fleets as if a service were alone, on promising pools and planned with minimum terms; none where
    it has no use for them."""
    return _quick_fleets(problem, case, ends, with_terms=True) if has_term(problem, case).any() else []


def model_fleets(
    problem: Problem,
    case: FleetCase,
    free: Ints,
    ends: Sequence[float | None],
    openings: Openings | None = None,
    out_of_time: Callable[[], bool] = never,
) -> list[Column]:
    """Fleets from ``free`` nodes [O], and from those that are open by the hour, for each end of the run
    before.

    They are those of the earliest start, from each on: one search serves all ends. Of few nodes, there are
    those of the first few ends as well.
    """
    if not ends:
        return []
    first = min((end for end in ends if end is not None), default=None)
    known = problem.kept.get(earliest_end(case.service.starts_after or ""))
    if first is not None and isinstance(known, float):
        first = min(first, known)

    def columns_of(answer: FleetAnswer) -> list[Column]:
        return [column for end in ends for column in fleet_columns(problem, answer, end)]

    def search(nodes: Ints) -> list[Column]:
        return columns_of(answer_fleet(problem, case, nodes, case.surcharge_usd, first, out_of_time))

    narrow = _on_few_pools(problem, case)
    found = []
    if narrow is not None:
        found += columns_of(answer_fleet(problem, narrow, free, case.surcharge_usd, first))
    found += fleets_apart(problem, free, search)
    if openings is not None:
        most = np.minimum(openings.free.max(axis=0), UNLIMITED_NODES)
        found += columns_of(
            answer_fleet(problem, case, most, case.surcharge_usd, first, out_of_time, openings)
        )
    if len(case.units) <= FEW_UNITS:
        for end in [end for end in ends if end is not None][:FEW_ENDS]:
            own = answer_fleet(problem, case, free, case.surcharge_usd, end, out_of_time, by_hour=True)
            found += fleet_columns(problem, own, end)
    return list(dict.fromkeys(found))
