"""Which fleets become columns: the best of each service, alone and with the stock that other workloads
leave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from broker.domain.planning.workload import Serving
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.columns.run_pool import RunPool
from optimizer.placement.fleets.columns import time_of
from optimizer.placement.fleets.model import (
    fleets_with_terms,
    is_quick,
    model_fleets,
    quick_fleets,
    termless_fleets,
)
from optimizer.placement.fleets.set_costs import Openings
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.problem import Ints, Problem
from optimizer.placement.problem.quotas import within_quotas
from optimizer.placement.problem.stock import Ledger
from optimizer.placement.problem.units import HOUR_S, FleetCase
from optimizer.placement.runtime.stopwatch import Pace, never
from optimizer.placement.runtime.tuning import TUNING

Ends = Sequence[float | None]


def first_fleets(
    candidates: Candidates,
    pools: Mapping[str, RunPool],
    chosen: Mapping[str, Column],
    out_of_time: Callable[[], bool],
    *,
    quick: bool = False,
    pace: Pace | None = None,
) -> list[Column]:
    """Fleets of all services from the stock that ``chosen`` and earlier services leave, for every end of
    their runs.

    ``quick``: coarse fleets; once time is over, from fewer pools still, and ``pace`` is told of each of
    these. Without ``quick``, services that could use many pools stop searching when the time is over.
    """
    ledger = ledger_of(candidates, chosen)
    found: list[Column] = []
    services = _dearest_first(candidates)
    for number, service in enumerate(services):
        ends = _ends(candidates, pools, service)
        nominal = _nominal(service, chosen, ends)
        if service.starts_after is not None and nominal is None:
            continue
        free = remaining_nodes(candidates, service, ledger, nominal)
        case = candidates.fleets[service.name]
        if quick and out_of_time():
            columns = quick_fleets(candidates.problem, case, free, ends, TUNING.fleets.hurried_units)
            if pace is not None:
                pace.require(len(services) - number)
        elif quick:
            columns = quick_fleets(candidates.problem, case, free, ends)
            columns += termless_fleets(candidates.problem, case, free, ends)
        else:
            until = never if is_quick(candidates.problem, service) else out_of_time
            columns = model_fleets(candidates.problem, case, free, ends, out_of_time=until)
        found.extend(columns)
        _place(ledger, columns, nominal)
    return found


def _place(ledger: Ledger, columns: Sequence[Column], nominal: float | None) -> None:
    """Takes the stock of the cheapest column that fits."""
    now = sorted((c for c in columns if c.after_s == nominal), key=lambda c: c.total_cents)
    fitting = next((c for c in now if ledger.fits(c)), None)
    if fitting is not None:
        ledger.add(fitting)


def free_nodes(problem: Problem) -> Ints:
    """Stock [O] of each offer, stated or assumed."""
    return problem.table.stock_nodes.copy()


def ledger_of(candidates: Candidates, chosen: Mapping[str, Column], without: str = "") -> Ledger:
    """The ledger of what all workloads but ``without`` hold."""
    ledger = Ledger(candidates.problem)
    for name, column in chosen.items():
        if name != without:
            ledger.add(column)
    return ledger


def remaining_nodes(candidates: Candidates, service: Serving, ledger: Ledger, after_s: float | None) -> Ints:
    """Nodes [O] that the ledger leaves free for the whole duration of a service."""
    start = int(time_of(candidates.problem, candidates.fleets[service.name], after_s).floor_s)
    free = free_nodes(candidates.problem)
    for offer in ledger.reached():
        free[offer] = ledger.free_nodes(offer, start)
    case = candidates.fleets[service.name]
    return within_quotas(candidates.problem, case, free, ledger.quota_taken, start)


def remaining_by_hour(problem: Problem, case: FleetCase, ledger: Ledger) -> Openings | None:
    """Nodes that the ledger leaves free in each hour and in the cold start before it; None if this does not
    change over time.
    """
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


def unlimited_fleets(
    candidates: Candidates,
    pools: Mapping[str, RunPool],
    chosen: Mapping[str, Column],
    out_of_time: Callable[[], bool],
) -> list[Column]:
    """Fleets of all services as if each were alone. If none of these fits beside the runs of ``chosen`` and
    the services before it, a service also gets fleets from the stock that those leave.
    """
    problem = candidates.problem
    ledger = ledger_of(candidates, {name: chosen[name] for name in chosen if name in pools})
    found: list[Column] = []
    for service in _dearest_first(candidates):
        ends = _ends(candidates, pools, service)
        nominal = _nominal(service, chosen, ends)
        if out_of_time():
            break
        if service.starts_after is not None and nominal is None:
            continue
        case = candidates.fleets[service.name]
        columns = model_fleets(problem, case, free_nodes(problem), ends, out_of_time=out_of_time)
        if not _any_fits(columns, ledger, nominal):
            free = remaining_nodes(candidates, service, ledger, nominal)
            columns += model_fleets(problem, case, free, ends, out_of_time=out_of_time)
        found.extend(columns)
        _place(ledger, columns, nominal)
    return found


def fleets_for_terms(
    candidates: Candidates,
    pools: Mapping[str, RunPool],
    known: Sequence[Column],
    out_of_time: Callable[[], bool],
) -> list[Column]:
    """Fleets planned with minimum terms, for the services with the largest gap between known cost and bound
    first.
    """
    least_usd: dict[str, float] = {}
    for column in known:
        usd = column.total_cents / 100
        least_usd[column.workload] = min(usd, least_usd.get(column.workload, usd))

    def gain_usd(service: Serving) -> float:
        bound = candidates.bounds[service.name].from_due(0.0)
        return least_usd.get(service.name, 0.0) - bound

    found: list[Column] = []
    for service in sorted(candidates.problem.services(), key=lambda s: (-gain_usd(s), s.name)):
        if out_of_time():
            break
        ends = _ends(candidates, pools, service)
        case = candidates.fleets[service.name]
        found.extend(fleets_with_terms(candidates.problem, case, ends))
    return found


def _any_fits(columns: Sequence[Column], ledger: Ledger, nominal: float | None) -> bool:
    """Whether the cheapest of the columns fits."""
    now = [column for column in columns if column.after_s == nominal]
    return bool(now) and ledger.fits(min(now, key=lambda column: column.total_cents))


def _dearest_first(candidates: Candidates) -> list[Serving]:
    def rank(service: Serving) -> tuple[bool, float, str]:
        least = candidates.bounds[service.name].from_due(0.0)
        return service.unplaced_usd is not None, -least, service.name

    return sorted(candidates.problem.services(), key=rank)


def _ends(candidates: Candidates, pools: Mapping[str, RunPool], service: Serving) -> list[float | None]:
    if service.starts_after is None:
        return [None]
    ends = {column.end_s for column in pools[service.starts_after].columns}
    return [end for end in sorted(ends) if end < candidates.problem.end_of(service)]


def _nominal(service: Serving, chosen: Mapping[str, Column], ends: Ends) -> float | None:
    if service.starts_after is None or not ends:
        return None
    run = chosen.get(service.starts_after)
    return run.end_s if run is not None and run.end_s in ends else ends[0]
