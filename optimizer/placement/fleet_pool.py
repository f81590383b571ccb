"""Which fleets become columns: the best ladders of each service, alone and beside what others take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.domain.workload import Serving
from optimizer.placement.candidates import Candidates
from optimizer.placement.columns import Column
from optimizer.placement.fleet_columns import time_of
from optimizer.placement.ladders import (
    BuiltLadder,
    best_ladders,
    build_service_column,
    free_nodes,
)
from optimizer.placement.run_pool import RunPool
from optimizer.placement.stock import Ledger

LADDERS = 6
LADDERS_AFTER = 2


def first_fleets(
    candidates: Candidates, pools: Mapping[str, RunPool], chosen: Mapping[str, Column]
) -> list[Column]:
    """Columns of all services: unlimited by others, and one beside ``chosen`` and each other."""
    ledger = Ledger(candidates.problem)
    for column in chosen.values():
        ledger.add(column)
    found: list[Column] = []
    for service in _dearest_first(candidates):
        ends = _ends(candidates, pools, service)
        nominal = _nominal(service, chosen, ends)
        if service.starts_after is not None and nominal is None:
            continue
        case = candidates.fleets[service.name]
        count = LADDERS if service.starts_after is None else LADDERS_AFTER
        ladders = best_ladders(candidates.problem, case, free_nodes(candidates.problem), nominal, count)
        beside = ladders_beside(candidates, service, ledger, nominal, 1)
        columns = _columns(candidates, service, [*ladders, *beside], ends)
        found.extend(columns)
        now = sorted((c for c in columns if c.after_s == nominal), key=lambda c: c.total_cents)
        fitting = next((c for c in now if ledger.fits(c)), None)
        if fitting is not None:
            ledger.add(fitting)
    return found


def ladders_beside(
    candidates: Candidates, service: Serving, ledger: Ledger, after_s: float | None, count: int
) -> list[BuiltLadder]:
    """Best ladders from the nodes that the ledger leaves free for the whole of the service."""
    case = candidates.fleets[service.name]
    start = int(time_of(candidates.problem, case, after_s).floor_s)
    free = free_nodes(candidates.problem)
    for offer in ledger.taken:
        free[offer] = ledger.free_nodes(offer, start)
    return best_ladders(candidates.problem, case, free, after_s, count)


def better_fleets(
    candidates: Candidates, pools: Mapping[str, RunPool], chosen: Mapping[str, Column]
) -> list[Column]:
    """For each service the best ladder beside all others of ``chosen``, for every end of its run."""
    found = []
    for service in candidates.problem.services():
        ledger = Ledger(candidates.problem)
        for name, column in chosen.items():
            if name != service.name:
                ledger.add(column)
        ends = _ends(candidates, pools, service)
        nominal = _nominal(service, chosen, ends)
        if service.starts_after is None or nominal is not None:
            ladders = ladders_beside(candidates, service, ledger, nominal, 2)
            found.extend(_columns(candidates, service, ladders, ends))
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


def _nominal(service: Serving, chosen: Mapping[str, Column], ends: Sequence[float | None]) -> float | None:
    if service.starts_after is None or not ends:
        return None
    run = chosen.get(service.starts_after)
    return run.end_s if run is not None and run.end_s in ends else ends[0]


def _columns(
    candidates: Candidates, service: Serving, ladders: Sequence[BuiltLadder], ends: Sequence[float | None]
) -> list[Column]:
    case = candidates.fleets[service.name]
    made = (
        build_service_column(candidates.problem, case, built, end)
        for end in ends
        for built in ladders
        if built.rungs
    )
    return list(dict.fromkeys(column for column in made if column is not None))
