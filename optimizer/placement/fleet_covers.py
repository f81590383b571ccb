"""Fleets from known covers: what to commit to, and which covers of the hours stand on it.

A cover is a set of units that is cheap for some level of demand (``fleet_dual`` meets them on the way to
its bound). What it commits to (units with a minimum term) is held throughout; the hourly units of the covers
that stand on the same commitments then follow the demand along the cheapest path.
M covers as counts [M, N] of N units, K levels of demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from optimizer.placement.columns import Column
from optimizer.placement.compositions import Compositions, demand_levels, net_rates, shelf_of, usable
from optimizer.placement.fleet_columns import build_slots_column, time_of, trimmed
from optimizer.placement.fleet_path import FleetPath, path_over
from optimizer.placement.problem import Bools, Floats, Ints, Problem
from optimizer.placement.stock import Ledger
from optimizer.placement.units import HOUR_S, FleetCase, in_stock, only_units

MOST_TRIED = 4
MOST_PAIRED = 24
MOST_ALIKE = 4
EDGE = 1e-12


def cover_columns(
    problem: Problem, case: FleetCase, free: Ints, ends: Sequence[float | None]
) -> Iterator[Column]:
    """The fleets of the most promising commitments, for each start of the service."""
    kept = case.covers[in_stock(case, case.covers, free)]
    if not len(kept):
        return
    used: Bools = np.any(kept, axis=0)
    case = only_units(replace(case, covers=kept), used)
    covers = case.covers.astype(np.int64)
    if _is_uneven(case, covers):
        return
    for commitment in _commitments(problem, case, covers):
        path = _path(problem, case, covers, commitment, free)
        if path is None:
            continue
        for end in ends:
            column = _column(problem, path, end)
            if column is not None and column.pieces and Ledger(problem).fits(column):
                yield column


def _is_uneven(case: FleetCase, covers: Ints) -> bool:
    """With two spares or more one larger replica that is ready early can lower the net rate."""
    used = covers.any(axis=0)
    return case.spare > 1 and len(np.unique(case.units.largest[used])) > 1


def _commitments(problem: Problem, case: FleetCase, covers: Ints) -> list[Ints]:
    """Sets of units to hold throughout, the most promising first."""
    units = case.units
    bound = problem.table.min_s[units.offer] > HOUR_S
    used = np.flatnonzero(covers.any(axis=0))
    counts = covers[:, used]
    fixed = np.unique(counts * bound[used], axis=0)
    few = fixed[:MOST_PAIRED]
    larger = np.maximum(few[:, None, :], few[None, :, :]).reshape(len(few) ** 2, len(used))
    single = np.eye(len(used), dtype=np.int64)[bound[used]]
    many = np.concatenate([single * count for count in range(1, MOST_ALIKE + 1)])
    sets = np.concatenate((np.zeros((1, len(used)), dtype=np.int64), fixed, larger, many))
    sets = np.unique(np.minimum(sets, units.most[used]), axis=0)
    estimate = _estimates(problem, case, used, counts, sets)
    order = np.argsort(estimate, kind="stable")[:MOST_TRIED]
    found = []
    for at in order:
        if np.isfinite(estimate[at]):
            whole = np.zeros(len(units), dtype=np.int64)
            whole[used] = sets[at]
            found.append(whole)
    return found


def _estimates(problem: Problem, case: FleetCase, used: Ints, counts: Ints, sets: Ints) -> Floats:
    """About what each set costs with the cheapest covers that stand on it: starts not counted."""
    units, table = case.units, problem.table
    offers = units.offer[used]
    bound = table.min_s[offers] > HOUR_S
    held_s = np.full(len(used), problem.end_s - problem.t0_s, dtype=np.int64)
    hours = held_s[0] / HOUR_S
    scarce = units.surcharge_usd_per_hour[used]
    whole = units.nodes[used] * table.node_cost_usd(offers, held_s) + scarce * hours
    hourly = np.where(bound, 0.0, units.usd_per_hour[used] + scarce)
    levels = np.unique(demand_levels(case.demand))
    weights = np.bincount(
        np.minimum(np.searchsorted(levels, case.demand * (1 - EDGE)), len(levels) - 1), minlength=len(levels)
    )
    found: Floats = sets @ whole
    extras = _extras(counts, bound)
    hourly_usd, beside, own = extras @ hourly, _in_zones(case, used, extras), _in_zones(case, used, sets)
    for place, committed in enumerate(sets):
        meets = _net(case, used, extras + committed)[:, None] >= levels[None, :] * (1 - EDGE)
        meets &= (beside | own[place]).sum(axis=1)[:, None] >= case.zones
        usd = np.where(meets, hourly_usd[:, None], np.inf).min(axis=0)
        found[place] += float(usd @ weights) if np.isfinite(usd).all() else np.inf
    return found


def _extras(counts: Ints, bound: Bools) -> Ints:
    """What may stand on a commitment: nothing, one hourly unit, or the hourly units of one cover."""
    hourly = np.where(bound, 0, counts)
    single = np.eye(counts.shape[1], dtype=np.int64)[hourly.any(axis=0)]
    nothing = np.zeros((1, counts.shape[1]), dtype=np.int64)
    return np.unique(np.concatenate((nothing, single, hourly)), axis=0)


def _net(case: FleetCase, used: Ints, rows: Ints) -> Floats:
    largest = np.where(rows > 0, case.units.largest[used][None, :], 0.0).max(axis=1, initial=0.0)
    net: Floats = rows @ case.units.requests_per_s[used] - case.spare * largest
    return net


def _in_zones(case: FleetCase, used: Ints, rows: Ints) -> Bools:
    """Which zones [M, Z] each row stands in."""
    names, zone = np.unique(case.units.zone[used], return_inverse=True)
    found: Bools = (rows > 0).astype(np.int64) @ np.eye(len(names), dtype=np.int64)[zone] > 0
    return found


def _path(problem: Problem, case: FleetCase, covers: Ints, committed: Ints, free: Ints) -> FleetPath | None:
    """The cheapest path over the covers that stand on a commitment."""
    bound = problem.table.min_s[case.units.offer] > HOUR_S
    extra = _extras(covers, bound)
    hourly = np.flatnonzero(extra.any(axis=0))
    fixed = [int(unit) for unit in np.flatnonzero(committed) for _ in range(int(committed[unit]))]
    shelf = shelf_of(case, fixed, hourly, free)
    front = len(set(fixed))
    rows = np.zeros((len(extra), len(shelf.units)), dtype=np.int64)
    rows[:, :front] = committed[shelf.units[:front]]
    rows[:, front:] = extra[:, shelf.units[front:]]
    rows = np.unique(rows, axis=0)
    rows = rows[usable(shelf, rows, case.zones)]
    if not len(rows):
        return None
    found = Compositions(shelf, rows, net_rates(shelf, rows, case.spare), rows @ shelf.usd)
    return path_over(problem, case, found, front)


def _column(problem: Problem, path: FleetPath, end: float | None) -> Column | None:
    time = time_of(problem, path.case, end)
    if time.first_hour >= len(path.onward_usd):
        return None
    slots = path.slots(time.first_hour)
    return build_slots_column(problem, path.case, trimmed(path.case, slots, time.first_hour), end)
