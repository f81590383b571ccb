"""Which fleets become columns: the best of each service, alone and beside what others take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from broker.domain.workload import Serving
from optimizer.placement.best_fleets import Ends, fleets, ladder_fleets
from optimizer.placement.candidates import Candidates
from optimizer.placement.columns import Column
from optimizer.placement.fleet_columns import time_of
from optimizer.placement.fleet_covers import cover_columns
from optimizer.placement.fleet_path import recomposed
from optimizer.placement.fleet_rules import is_modelled
from optimizer.placement.fleets.model import model_fleets
from optimizer.placement.fleets.sets import Openings
from optimizer.placement.ladders import free_nodes
from optimizer.placement.problem import Ints, Problem
from optimizer.placement.quotas import within_quotas
from optimizer.placement.run_pool import RunPool
from optimizer.placement.stock import Ledger
from optimizer.placement.units import HOUR_S, FleetCase, beside

LADDERS = 6
LADDERS_AFTER = 2
MAX_RECOMPOSED = 2


def first_fleets(
    candidates: Candidates,
    pools: Mapping[str, RunPool],
    chosen: Mapping[str, Column],
    hurry: Callable[[], bool],
) -> list[Column]:
    """Fleets of all services beside ``chosen`` and each other: on covers, and the best ladder.

    Where a service has no covers, its ladders unlimited by others too, unless in a hurry.
    """
    ledger = ledger_of(candidates, chosen)
    found: list[Column] = []
    for service in _dearest_first(candidates):
        ends = _ends(candidates, pools, service)
        nominal = _nominal(service, chosen, ends)
        if service.starts_after is not None and nominal is None:
            continue
        case, problem = candidates.fleets[service.name], candidates.problem
        count = LADDERS if service.starts_after is None else LADDERS_AFTER
        free, simple = free_beside(candidates, service, ledger, nominal), hurry()
        if is_modelled(problem, service):
            columns = model_fleets(problem, case, free, ends)
            found.extend(columns)
            _place(ledger, columns, nominal)
            continue
        made = list(cover_columns(problem, case, free, ends))
        made += ladder_fleets(problem, beside(case, free), free, ends, nominal, 1, mixed=not simple)
        if not (simple or case.covers.size):
            every = free_nodes(problem)
            made += ladder_fleets(problem, case, every, ends, nominal, count, mixed=True)
        columns = list(dict.fromkeys(made))
        found.extend(columns)
        _place(ledger, columns, nominal)
    return found


def _place(ledger: Ledger, columns: Sequence[Column], nominal: float | None) -> None:
    """The cheapest of the columns that fits takes its stock."""
    now = sorted((c for c in columns if c.after_s == nominal), key=lambda c: c.total_cents)
    fitting = next((c for c in now if ledger.fits(c)), None)
    if fitting is not None:
        ledger.add(fitting)


def ledger_of(candidates: Candidates, chosen: Mapping[str, Column], without: str = "") -> Ledger:
    """What the columns of all workloads but ``without`` take."""
    ledger = Ledger(candidates.problem)
    for name, column in chosen.items():
        if name != without:
            ledger.add(column)
    return ledger


def free_beside(candidates: Candidates, service: Serving, ledger: Ledger, after_s: float | None) -> Ints:
    """Nodes [O] that the ledger leaves free for the whole of a service."""
    start = int(time_of(candidates.problem, candidates.fleets[service.name], after_s).floor_s)
    free = free_nodes(candidates.problem)
    for offer in ledger.reached():
        free[offer] = ledger.free_nodes(offer, start)
    case = candidates.fleets[service.name]
    return within_quotas(candidates.problem, case, free, ledger.quota_taken, start)


def openings_beside(problem: Problem, case: FleetCase, ledger: Ledger) -> Openings | None:
    """What the ledger leaves free in each hour, and in the cold start before it; None where that does not
    change with the hours."""
    wanted = sorted(ledger.reached() & {int(offer) for offer in case.units.offer})
    if not wanted:
        return None
    cold_s = float(case.units.cold_s.max(initial=0.0))
    starts = np.arange(len(case.demand), dtype=np.float64) * HOUR_S
    by_hour = np.stack([ledger.free_between(o, starts - cold_s, starts + HOUR_S) for o in wanted], axis=1)
    kinds, of_hour = np.unique(by_hour, axis=0, return_inverse=True)
    if len(kinds) == 1:
        return None
    free = np.tile(free_nodes(problem), (len(kinds), 1))
    free[:, wanted] = kinds
    return Openings(free, of_hour.reshape(-1))


def composed_fleets(
    candidates: Candidates,
    pools: Mapping[str, RunPool],
    chosen: Mapping[str, Column],
    out_of_time: Callable[[], bool],
) -> list[Column]:
    """Paths of all services: unlimited by others, and beside the runs of ``chosen`` and each other."""
    ledger = ledger_of(candidates, {name: chosen[name] for name in chosen if name in pools})
    found: list[Column] = []
    for service in _dearest_first(candidates):
        ends = _ends(candidates, pools, service)
        nominal = _nominal(service, chosen, ends)
        if out_of_time():
            break
        if service.starts_after is not None and nominal is None:
            continue
        case, every = candidates.fleets[service.name], free_nodes(candidates.problem)
        if is_modelled(candidates.problem, service):
            columns = model_fleets(candidates.problem, case, every, ends)
            if not _any_fits(columns, ledger, nominal):
                free = free_beside(candidates, service, ledger, nominal)
                columns += model_fleets(candidates.problem, case, free, ends)
            found.extend(columns)
            _place(ledger, columns, nominal)
            continue
        columns = fleets(candidates.problem, case, every, ends, nominal, 1)
        columns += _recomposed(candidates, service, every, ends, nominal, columns)
        if not _any_fits(columns, ledger, nominal):
            free = free_beside(candidates, service, ledger, nominal)
            columns += fleets(candidates.problem, case, free, ends, nominal, 1)
        found.extend(columns)
        _place(ledger, columns, nominal)
    return found


def _recomposed(
    candidates: Candidates,
    service: Serving,
    free: Ints,
    ends: Ends,
    nominal: float | None,
    known: Sequence[Column],
) -> list[Column]:
    """The cheapest known fleets with everything by the hour on their commitments chosen anew."""
    now = sorted((c for c in known if c.after_s == nominal), key=lambda column: column.total_cents)
    case = beside(candidates.fleets[service.name], free)
    made = [
        column
        for base in now[:MAX_RECOMPOSED]
        for column in recomposed(candidates.problem, case, free, base, ends)
    ]
    return [column for column in dict.fromkeys(made) if column not in set(known)]


def _any_fits(columns: Sequence[Column], ledger: Ledger, nominal: float | None) -> bool:
    """Whether the cheapest of the columns fits."""
    now = [column for column in columns if column.after_s == nominal]
    return bool(now) and ledger.fits(min(now, key=lambda column: column.total_cents))


def better_fleets(
    candidates: Candidates,
    pools: Mapping[str, RunPool],
    chosen: Mapping[str, Column],
    out_of_time: Callable[[], bool],
) -> list[Column]:
    """For each service the best fleets beside all others of ``chosen``, for every end of its run."""
    found: list[Column] = []
    for service in candidates.problem.services():
        if out_of_time():
            break
        ends = _ends(candidates, pools, service)
        nominal = _nominal(service, chosen, ends)
        if service.starts_after is None or nominal is not None:
            ledger = ledger_of(candidates, chosen, service.name)
            free = free_beside(candidates, service, ledger, nominal)
            if is_modelled(candidates.problem, service):
                problem, case = candidates.problem, candidates.fleets[service.name]
                found.extend(model_fleets(problem, case, free, ends, openings_beside(problem, case, ledger)))
                continue
            made = fleets(candidates.problem, candidates.fleets[service.name], free, ends, nominal, 2)
            made += _recomposed(candidates, service, free, ends, nominal, made)
            found.extend(made)
    return found


def _dearest_first(candidates: Candidates) -> list[Serving]:
    def rank(service: Serving) -> tuple[bool, float, str]:
        least = candidates.bounds[service.name].from_due(0.0)
        return service.unplaced_usd is not None, -least, service.name

    return sorted(candidates.problem.services(), key=rank)


def _ends(candidates: Candidates, pools: Mapping[str, RunPool], service: Serving) -> list[float | None]:
    if service.starts_after is None:
        return [None]
    ends = {column.end_s for column in pools[service.starts_after].columns}
    return [end for end in sorted(ends) if end < candidates.problem.end_s]


def _nominal(service: Serving, chosen: Mapping[str, Column], ends: Ends) -> float | None:
    if service.starts_after is None or not ends:
        return None
    run = chosen.get(service.starts_after)
    return run.end_s if run is not None and run.end_s in ends else ends[0]
