"""The cheapest fleet of one service, and a lower bound on every fleet under its rules.

A fleet stands on few pools (``pools``). For a given set of pools the cheapest fleet over all hours is a
shortest path; a best-first search finds the set (``pool_search``). Dual prices of stock are part of the
pools' prices. The bound relaxes two things: hours of a minimum term are charged by convex combinations of a
rate and a start (``terms``), and the stock that other workloads hold is represented by dual prices only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from broker.domain.planning.workload import Serving
from optimizer.placement.fleets.bound import FleetBound, hourly_bound, in_whole_cents, within_time
from optimizer.placement.fleets.columns import ServiceTime, Slot, build_slots_column, due_s, time_of
from optimizer.placement.fleets.hours import hour_classes
from optimizer.placement.fleets.joint_pools import needed_pools, paired_parts
from optimizer.placement.fleets.pool_search import SetSearch
from optimizer.placement.fleets.pool_table import PoolTable
from optimizer.placement.fleets.pools import at_highest_rates, build_pools_of, on_promising
from optimizer.placement.fleets.rules import fleet_rules
from optimizer.placement.fleets.set_costs import Openings, PoolFleet
from optimizer.placement.fleets.terms import has_term
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.problem import UNLIMITED_NODES, Floats, Ints, Problem
from optimizer.placement.problem.stock import Ledger
from optimizer.placement.problem.units import HOUR_S, FleetCase, only_units, surcharged, with_remaining_stock
from optimizer.placement.runtime.stopwatch import never
from optimizer.placement.runtime.tuning import TUNING

DAY_H, WEEK_H = 24, 168
KEY = "fleet model"


@dataclass(frozen=True, slots=True, eq=False)
class FleetAnswer:
    """What is known of a service whose traffic is due from ``due_s``: ``fleets``, cheapest first, on pools of
    ``table``.

    ``bound_usd``: lower bound on every fleet under the rules, at the dual prices; inf if there is no fleet.
    ``hourly_usd`` [H]: lower bound of each hour from ``first_hour`` on; inf if the stock cannot carry it.
    ``complete``: the search was not cut off. ``owed``: whether a cheapest fleet may use commitments, which
    are paid however long it serves.
    """

    case: FleetCase
    table: PoolTable
    fleets: tuple[PoolFleet, ...]
    bound_usd: float
    due_s: float
    hourly_usd: Floats = field(default_factory=lambda: np.zeros(0))
    search: SetSearch | None = None
    complete: bool = True
    owed: bool = False

    @property
    def first_hour(self) -> int:
        """The hour in which traffic is due."""
        return int(self.due_s // HOUR_S)

    @property
    def feasible(self) -> bool:
        """Whether a fleet may be able to meet all hours."""
        return bool(np.isfinite(self.bound_usd))


def is_small(problem: Problem) -> bool:
    """Whether there is time for the exact model of every workload."""
    return len(problem.request.workloads) <= TUNING.fleets.most_exact


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
    """The fleets of a service from ``free`` nodes [O] (None: all) at dual ``prices`` in USD per node-hour.

    The service starts at its own time or after a run. Results are cached; one that was cut off is computed
    again only if there is time. ``openings``: how many nodes other workloads leave in each hour, for fleets
    that share them by the hour; the bound ignores it. ``by_hour``: a cached result for another start in the
    same hour is accepted.

    ``with_terms`` False: minimum terms that end before the horizon are ignored, which is proven sooner. None:
    they are ignored if there are many workloads.
    """
    if with_terms is None:
        with_terms = is_small(problem)
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
        if base.search is not None and len(base.table) > TUNING.fleets.few_pools:
            problem.kept[key] = found = _between(base, openings, first)
            return found
    without = None
    if with_terms and _has_use_for_terms(problem, case):
        # Without minimum terms the service costs no more, so this is a lower bound and is found sooner.
        without = answer_fleet(problem, case, free, prices, after_s, out_of_time, openings, with_terms=False)
        if out_of_time():
            problem.kept[key] = found = replace(without, complete=False)
            return found
    if prices:
        case = surcharged(case, prices)
    if free is not None:
        case = with_remaining_stock(case, free)
    found = _searched(problem, case, due, out_of_time, openings, with_terms=with_terms)
    # Where nodes of one pool differ in their rates, the first bound may be too high, and the other one holds.
    least_usd = 0.0 if without is None else without.bound_usd
    found = _whatever_the_rates(problem, found, due, free, out_of_time, with_terms=with_terms)
    found = replace(found, bound_usd=max(found.bound_usd, least_usd))
    problem.kept[key] = found = replace(found, complete=not out_of_time())
    return found


def _between(base: FleetAnswer, openings: Openings, first: int) -> FleetAnswer:
    """The answer if other workloads leave only ``openings``, on sets that are cheap without that
    restriction.
    """
    assert base.search is not None
    shifted = replace(openings, of_hour=openings.of_hour[first:])
    return replace(base, fleets=tuple(sorted(base.search.between(shifted), key=lambda fleet: fleet.usd)))


def _searched(
    problem: Problem, case: FleetCase, due: float, out_of_time: Callable[[], bool],
    openings: Openings | None, *, with_terms: bool, incumbent_usd: float = np.inf,
    most_work: int | None = None,
) -> FleetAnswer:  # fmt: skip
    """Runs a search and returns its answer; beside a known fleet of ``incumbent_usd`` only the bound."""
    if not len(case.units) or due // HOUR_S >= len(case.demand):
        return FleetAnswer(case, PoolTable.nothing(), (), 0.0 if len(case.units) else np.inf, due)
    search = _search_of(problem, case, due, out_of_time, openings, with_terms=with_terms)
    search.incumbent_usd = incumbent_usd
    if most_work is not None:
        search.most_work = most_work
    return _answer(problem, case, due, search)


def _whatever_the_rates(
    problem: Problem, answer: FleetAnswer, due: float, free: Ints | None, out_of_time: Callable[[], bool],
    *, with_terms: bool,
) -> FleetAnswer:  # fmt: skip
    """The answer with a bound that also holds where nodes of one pool differ in their rates: the search
    counts them as several pools, and the rules as one.
    """
    case = answer.case
    units = at_highest_rates(problem, case.units) if free is None else None
    if units is None or not answer.feasible:
        return answer
    incumbent_usd = min((fleet.usd for fleet in answer.fleets), default=np.inf)
    even = _bound_of_even(
        problem, replace(case, units=units), due, incumbent_usd, out_of_time, with_terms=with_terms
    )
    return replace(answer, bound_usd=even.bound_usd, hourly_usd=even.hourly_usd)


def _bound_of_even(
    problem: Problem, case: FleetCase, due: float, incumbent_usd: float, out_of_time: Callable[[], bool],
    *, with_terms: bool, most_work: int | None = None,
) -> FleetAnswer:  # fmt: skip
    """The bound of a case in which all nodes of a pool have the pool's highest rate.

    A fleet costs no more there, unless it spares more replicas than it has of that pool; then only the bound
    of single hours holds.
    """
    prices = tuple(sorted(case.surcharge_usd.items()))
    key = ("even", *_stands_on(problem, case), case.units.most.tobytes(), prices, due, with_terms, most_work)
    known = problem.kept.get(key)
    if isinstance(known, FleetAnswer) and (known.complete or out_of_time()):
        return known
    least, first = hourly_bound(problem, case), int(due // HOUR_S)
    usd, hourly_usd = least.from_due(due), least.hourly_usd[first:]
    found = FleetAnswer(case, PoolTable.nothing(), (), usd, due, hourly_usd)
    if case.spare + case.idle <= 1:
        searched = _searched(
            problem, case, due, out_of_time, None, with_terms=with_terms, incumbent_usd=incumbent_usd,
            most_work=most_work,
        )  # fmt: skip
        found = replace(
            found,
            bound_usd=max(usd, searched.bound_usd),
            hourly_usd=np.maximum(hourly_usd, searched.hourly_usd),
            complete=not out_of_time(),
            owed=searched.owed,
        )
    problem.kept[key] = found
    return found


def bound_alone(
    problem: Problem, case: FleetCase, out_of_time: Callable[[], bool] = never, *, with_terms: bool = False,
    incumbent_usd: float = np.inf, most_work: int | None = None,
) -> FleetBound:  # fmt: skip
    """The bound of a service that starts at its own time; without ``with_terms``, minimum terms are ignored.

    Where nodes of one pool differ in their rates, only the search at the highest rates is run;
    ``answer_fleet`` runs another one for the fleets. ``incumbent_usd``: cost of a known fleet, beside which
    only the bound is searched; ``most_work``: how many levels the search may try.

    In a problem that is not small, a fleet of several kinds of GPU counts at the rates of each kind alone,
    which are higher. Then kinds dominate one another, and the search ends in time.
    """
    if not is_small(problem):
        case = replace(case, service=replace(case.service, confidence=None))
    due = _due_s(problem, case, None)
    units = at_highest_rates(problem, case.units)
    if units is not None:
        even = replace(case, units=units)
        found = _bound_of_even(
            problem, even, due, incumbent_usd, out_of_time, with_terms=with_terms, most_work=most_work
        )
    elif with_terms:
        found = _searched(
            problem, case, due, out_of_time, None, with_terms=True, incumbent_usd=incumbent_usd,
            most_work=most_work,
        )  # fmt: skip
    else:
        found = answer_fleet(problem, case, out_of_time=out_of_time, with_terms=False)
    return bound_of(problem, case, found)


def _has_use_for_terms(problem: Problem, case: FleetCase) -> bool:
    """Whether minimum terms affect the search."""
    return bool(has_term(problem, case).any())


def is_quick(problem: Problem, service: Serving) -> bool:
    """Whether a service may use so few pools that its fleets are found quickly."""
    return fleet_rules(problem, service).pools <= TUNING.fleets.term_pools


def _on_few_pools(problem: Problem, case: FleetCase) -> FleetCase | None:
    """The case limited to few pools, on which minimum terms are planned quickly; None if that changes
    nothing.
    """
    few = max(TUNING.fleets.term_pools, case.service.redundancy.zones)
    if fleet_rules(problem, case.service).pools <= few or not has_term(problem, case).any():
        return None
    policy = case.service.policy
    limits = replace(policy.fleet, max_pools=few)
    return replace(case, service=replace(case.service, policy=replace(policy, fleet=limits)))


def _stands_on(problem: Problem, case: FleetCase) -> tuple[object, ...]:
    """The inputs on which all answers of a service depend, as a cache key."""
    arrays = (case.units.offer, case.units.requests_per_s, case.units.later_share, case.demand)
    stands_on = case.service, fleet_rules(problem, case.service), case.later_from
    return (*stands_on, *(one.tobytes() for one in arrays))


def _due_s(problem: Problem, case: FleetCase, after_s: float | None) -> float:
    time = time_of(problem, case, after_s)
    return due_s(time, float(case.units.cold_s.max(initial=0.0)))


def _search_of(
    problem: Problem,
    case: FleetCase,
    due: float,
    out_of_time: Callable[[], bool] = never,
    openings: Openings | None = None,
    *,
    with_terms: bool = True,
) -> SetSearch:
    """The search for a service's fleets from ``due`` on; without ``with_terms``, terms that end before the
    horizon are ignored.
    """
    first, lengths = int(due // HOUR_S), _lengths(problem, case, due)
    case = case.from_hour(first)
    lead_h = int(np.ceil(float(case.units.cold_s.max()) / HOUR_S))
    period = DAY_H if case.service.traffic.repeats_daily else WEEK_H
    rules = fleet_rules(problem, case.service)
    with_terms = with_terms and _has_use_for_terms(problem, case)
    gone_s = problem.table.gone_s[case.units.offer]
    classes = hour_classes(
        case.demand, lengths, lead_h, period, with_terms=with_terms, first_hour=first, end_s=problem.end_s,
        gone_s=gone_s[gone_s < problem.end_s], later_from=case.later_from,
        later_share=float(np.median(case.units.later_share)),
    )  # fmt: skip
    table = build_pools_of(problem, case, float(lengths.sum()), classes.bands)
    tolerance = 0.0 if len(table) <= TUNING.fleets.few_pools else TUNING.fleets.tolerance_share
    if openings is not None:
        openings = replace(openings, of_hour=openings.of_hour[first:])
    nodes = np.stack((case.units.offer, case.units.nodes))
    search = SetSearch(table, classes, rules, tolerance, out_of_time, openings, nodes)
    search.most_work = TUNING.fleets.most_work if is_small(problem) else TUNING.fleets.most_work_of_many
    return search


def _answer(problem: Problem, case: FleetCase, due: float, search: SetSearch) -> FleetAnswer:
    """Runs the search; its fleets and bounds as an answer."""
    search.run()
    kept = TUNING.fleets.fleets_kept if len(problem.request.workloads) == 1 else TUNING.fleets.rivals_kept
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
        owed=search.owed,
    )


def wanted_units(problem: Problem, case: FleetCase) -> Ints:
    """Units [n] of the pools that a cheapest fleet may use; the others are dominated."""
    rules = fleet_rules(problem, case.service)
    table = build_pools_of(problem, case, (problem.end_s - problem.t0_s) / HOUR_S)
    parts = paired_parts(table)
    rows = parts[np.flatnonzero(needed_pools(table, parts, rules, table.term_h))]
    wanted = [table.pools[int(row)].units for row in np.unique(rows[rows >= 0])]
    return np.unique(np.concatenate(wanted)) if wanted else np.zeros(0, dtype=np.int64)


def _lengths(problem: Problem, case: FleetCase, due: float) -> Floats:
    """Hours [H] for which nodes of each grid hour are held; the first includes the shortest cold start before
    it.
    """
    hours, first = len(case.demand), int(due // HOUR_S)
    lengths = within_time(problem, case.service, np.ones(hours))[first:]
    held_from = due - float(case.units.cold_s.min())
    if _in_hours(problem, case):
        held_from = held_from // HOUR_S * HOUR_S
    lengths[0] += first - held_from / HOUR_S
    return lengths


def _in_hours(problem: Problem, case: FleetCase) -> bool:
    """Whether everything is billed in whole hours of the grid."""
    units = case.units
    whole = bool((problem.table.increment_s[units.offer] % HOUR_S == 0).all())
    whole = whole and problem.end_of(case.service) % HOUR_S == 0
    return whole and not (units.surcharge_usd_per_hour > 0).any()


def fleet_columns(problem: Problem, answer: FleetAnswer, after_s: float | None) -> Iterator[Column]:
    """The fleets of an answer as exact columns, for a start at or after the answer's own."""
    time = time_of(problem, answer.case, after_s)
    for fleet in answer.fleets:
        column = build_slots_column(problem, answer.case, _slots(answer, fleet, time), after_s)
        if column is not None:
            yield column


def _slots(answer: FleetAnswer, fleet: PoolFleet, time: ServiceTime) -> list[Slot]:
    """Each node of the fleet with the hours [H] of the service in which it must be ready.

    Hours before the answer's first hour, in which nothing can be ready yet, copy the needs of that hour.
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
    """The bound that an answer proves, for its own start and for others."""
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
        hourly_usd=within_time(
            problem, answer.case.service, np.concatenate((np.zeros(answer.first_hour), answer.hourly_usd))
        ),
    )


def earliest_end(run: str) -> tuple[str, str]:
    """Cache key of the earliest end of a run's candidates."""
    return "earliest end", run


def quick_fleets(
    problem: Problem,
    case: FleetCase,
    free: Ints,
    ends: Sequence[float | None],
    first: int = TUNING.fleets.first_units,
) -> list[Column]:
    """Cheap fleets from ``free`` nodes [O] on promising pools, for each end of the run before; on all pools
    if those yield none.

    Minimum terms that end before the horizon are ignored. ``first``: how many units select the promising
    pools (``on_promising``).
    """
    return _quick_fleets(problem, with_remaining_stock(case, free), ends, (first,))


def termless_fleets(
    problem: Problem, case: FleetCase, free: Ints, ends: Sequence[float | None]
) -> list[Column]:
    """Quick fleets without nodes whose minimum terms end before the horizon, if there are such nodes.

    A search that ignores terms underestimates fleets that pay for many terms; these fleets do not.
    """
    case = with_remaining_stock(case, free)
    termed = has_term(problem, case)
    return _quick_fleets(problem, only_units(case, ~termed), ends) if termed.any() else []


def _quick_fleets(
    problem: Problem,
    case: FleetCase,
    ends: Sequence[float | None],
    firsts: Sequence[int] = (TUNING.fleets.first_units,),
    *,
    with_terms: bool = False,
) -> list[Column]:
    due = _due_s(problem, case, min((end for end in ends if end is not None), default=None))
    if not ends or due // HOUR_S >= len(case.demand):
        return []
    narrowed = {len(one.units): one for one in (on_promising(problem, case, first) for first in firsts)}
    answers = [_quick_answer(problem, narrow, due, with_terms=with_terms) for narrow in narrowed.values()]
    if not any(answer.fleets for answer in answers) and len(case.units) not in narrowed:
        answers = [_quick_answer(problem, case, due, with_terms=with_terms)]
    found = (column for answer in answers for end in ends for column in fleet_columns(problem, answer, end))
    return list(dict.fromkeys(found))


def _quick_answer(problem: Problem, case: FleetCase, due: float, *, with_terms: bool) -> FleetAnswer:
    """The first fleets of a search, without a proof."""
    if not len(case.units):
        return FleetAnswer(case, PoolTable.nothing(), (), 0.0, due)
    search = _search_of(problem, case, due, with_terms=with_terms)
    search.begin()
    fleets = tuple(sorted(search.fleets, key=lambda fleet: fleet.usd)[: TUNING.fleets.fleets_kept])
    return FleetAnswer(case, search.parts, fleets, 0.0, due, search=search)


def coarse_fleets(
    problem: Problem,
    case: FleetCase,
    free: Ints,
    ends: Sequence[float | None],
    openings: Openings | None = None,
) -> list[Column]:
    """As ``model_fleets`` if there are few units; otherwise quick fleets without a proof, for a fraction of
    the work.
    """
    if len(case.units) <= TUNING.fleets.few_units:
        return model_fleets(problem, case, free, ends, openings)
    return quick_fleets(problem, case, free, ends) + termless_fleets(problem, case, free, ends)


def fleets_with_terms(
    problem: Problem,
    case: FleetCase,
    ends: Sequence[float | None],
    free: Ints | None = None,
    firsts: Sequence[int] = (TUNING.fleets.term_units,),
) -> list[Column]:
    """Cheap fleets of a service from ``free`` nodes [O] (None: all), on promising pools and with minimum
    terms; none if it cannot use such terms.
    """
    if free is not None:
        case = with_remaining_stock(case, free)
    if not has_term(problem, case).any():
        return []
    return _quick_fleets(problem, case, ends, firsts, with_terms=True)


def varied_fleets(
    problem: Problem, case: FleetCase, free: Ints, ends: Sequence[float | None]
) -> list[Column]:
    """As ``coarse_fleets``, over several selections of promising pools, and with minimum terms.

    A wider selection is not always better, since only the first sets of pools of each are tried.
    """
    if len(case.units) <= TUNING.fleets.few_units:
        return model_fleets(problem, case, free, ends)
    rest = with_remaining_stock(case, free)
    narrow, wide = TUNING.fleets.term_units, TUNING.fleets.wide_units
    found = _quick_fleets(problem, rest, ends, (TUNING.fleets.first_units, narrow))
    found += termless_fleets(problem, case, free, ends)
    return list(dict.fromkeys(found + fleets_with_terms(problem, rest, ends, firsts=(narrow, wide))))


def model_fleets(
    problem: Problem,
    case: FleetCase,
    free: Ints,
    ends: Sequence[float | None],
    openings: Openings | None = None,
    out_of_time: Callable[[], bool] = never,
) -> list[Column]:
    """Fleets from ``free`` nodes [O], and from ``openings``, for each end of the run before.

    One search for the earliest start serves all ends. If there are few units, the first few ends are searched
    as well.
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
    if len(case.units) <= TUNING.fleets.few_units:
        for end in [end for end in ends if end is not None][: TUNING.fleets.few_ends]:
            own = answer_fleet(problem, case, free, case.surcharge_usd, end, out_of_time, by_hour=True)
            found += fleet_columns(problem, own, end)
    return list(dict.fromkeys(found))


def fleets_apart(problem: Problem, free: Ints, search: Callable[[Ints], list[Column]]) -> list[Column]:
    """The fleets that ``search`` finds on ``free`` nodes [O], and further ones while the cheapest takes GPUs
    twice.

    The search limits the stock of each pool separately, but sizes of one machine may belong to several pools.
    If the cheapest fleet takes more GPUs of a machine than exist, the search is repeated without each of the
    machine's offers that the fleet uses, one at a time. The bound of the first search holds for all.
    """
    nothing, pools = Ledger(problem), problem.table.pools
    found = search(free)
    waiting, left = deque([(free, found)]), TUNING.fleets.most_searches
    while waiting:
        nodes, columns = waiting.popleft()
        cheapest = min(columns, key=lambda column: column.total_cents, default=None)
        pool = None if cheapest is None else nothing.overdrawn_pool(cheapest)
        if cheapest is None or pool is None:
            continue
        for offer in sorted({piece.offer for piece in cheapest.pieces if pools.of[piece.offer] == pool}):
            if not left:
                return found
            left -= 1
            fewer = nodes.copy()
            fewer[offer] = 0
            more = search(fewer)
            found = found + more
            waiting.append((fewer, more))
    return found
