"""What batches in parts cost at least together, where they want the same nodes at the same time.

A linear program covers them all by stretches, within the node-seconds that each offer, or pool of GPUs, has
in each interval. Its duals price these node-seconds. At any such prices the least covers of the batches, less
what the node-seconds are worth, are below every plan, so what is told does not rest on the solver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from ortools.linear_solver import pywraplp

from broker.domain.planning.workload import Batch
from optimizer.placement.problem.estimates import Estimates
from optimizer.placement.problem.problem import Bools, Floats, Ints, Problem
from optimizer.placement.runs.cover_bound import least_usd
from optimizer.placement.runs.stretches import Stretches, stretches_of
from optimizer.placement.runtime.tuning import TUNING

LEAST_PRICE = 1e-12


def joint_least_usd(
    problem: Problem, estimates: Estimates, batches: Sequence[Batch], left_usd: Mapping[str, float]
) -> float:
    """Lower bound on the cost of all ``batches``; each may be left out for ``left_usd`` (inf: it may not).

    -inf if there are too few or too many of them to share anything, or if the program has no solution.
    """
    if not 2 <= len(batches) <= TUNING.runs.most_batches:
        return float("-inf")
    covers = [stretches_of(problem, estimates, batch) for batch in batches]
    rows = _shared_rows(problem, covers)
    if not rows:
        return float("-inf")
    prices = _prices(batches, covers, rows, [left_usd[batch.name] for batch in batches])
    if prices is None:
        return float("-inf")
    total = -sum(price * row.limit for price, row in zip(prices, rows, strict=True))
    for number, (batch, cover) in enumerate(zip(batches, covers, strict=True)):
        unit = cover.unit_usd.copy()
        for price, row in zip(prices, rows, strict=True):
            unit += price * row.used[number]
        least = least_usd(problem, replace(cover, unit_usd=unit), batch.requests)
        total += min(least, left_usd[batch.name])
    return total


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """Node-seconds (GPU-seconds of a pool) in an interval, and what a request on each stretch [L] of each
    batch uses of them.
    """

    limit: float
    used: tuple[Floats, ...]


def _shared_rows(problem: Problem, covers: Sequence[Stretches]) -> list[_Row]:
    """The node-seconds that several batches may use, of each offer and pool that they have in common."""
    table, rows = problem.table, list[_Row]()
    groups = [_groups(problem, cover) for cover in covers]
    cheap = [
        np.unique(g[np.argsort(c.unit_usd)[: TUNING.runs.most_joint_stretches]])
        for g, c in zip(groups, covers, strict=True)
    ]
    names, counts = np.unique(np.concatenate(cheap), return_counts=True) if cheap else ((), ())
    for name in [int(name) for name, count in zip(names, counts, strict=True) if count > 1]:
        inside = [group == name for group in groups]
        pool = -1 - name
        gpus = [table.gpus_per_node[c.offer] if name < 0 else np.ones(len(c), dtype=np.int64) for c in covers]
        nodes = max(int(c.nodes[i].max(initial=0)) for c, i in zip(covers, inside, strict=True))
        units = int(table.pools.gpus[pool]) if name < 0 else nodes
        for first, last in _intervals(covers, inside):
            used = tuple(
                _used(cover, mine, each, first, last)
                for cover, mine, each in zip(covers, inside, gpus, strict=True)
            )
            if sum(bool(one.any()) for one in used) > 1:
                rows.append(_Row(units * (last - first), used))
    return rows


def _groups(problem: Problem, cover: Stretches) -> Ints:
    """The pool of each stretch as a negative number, or its offer."""
    pools = problem.table.pools.of[cover.offer]
    found: Ints = np.where(pools >= 0, -1 - pools, cover.offer)
    return found


def _intervals(covers: Sequence[Stretches], inside: Sequence[Bools]) -> list[tuple[float, float]]:
    """Intervals from a begin to an end of the stretches of a group."""
    begins = np.unique(np.concatenate([c.begin_s[i] for c, i in zip(covers, inside, strict=True)]))
    ends = np.unique(np.concatenate([c.end_s[i] for c, i in zip(covers, inside, strict=True)]))
    return [
        (float(a), float(b))
        for a in begins[: TUNING.runs.most_edges]
        for b in ends[-TUNING.runs.most_edges :]
        if a < b
    ]


def _used(cover: Stretches, mine: Bools, units: Ints, first: float, last: float) -> Floats:
    """Units × seconds that a request uses at least, on the stretches of a group within an interval."""
    within = mine & (cover.begin_s >= first) & (cover.end_s <= last)
    found: Floats = np.where(within, units / cover.speed, 0.0)
    return found


def _prices(
    batches: Sequence[Batch], covers: Sequence[Stretches], rows: Sequence[_Row], left_usd: Sequence[float]
) -> list[float] | None:
    """The duals of the shared rows, in USD per node-second; None if the program has no solution."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    objective = solver.Objective()
    objective.SetMinimization()
    limits = [solver.Constraint(-solver.infinity(), row.limit) for row in rows]
    for number, (batch, cover, left) in enumerate(zip(batches, covers, left_usd, strict=True)):
        whole = solver.Constraint(1.0, 1.0)
        order = np.argsort(cover.unit_usd, kind="stable")
        for index in order[: TUNING.runs.most_joint_stretches]:
            most = min(1.0, float(cover.nodes[index] * cover.reach[index]) / batch.requests)
            share = solver.NumVar(0.0, most, "")
            objective.SetCoefficient(share, float(cover.unit_usd[index]) * batch.requests)
            whole.SetCoefficient(share, 1.0)
            for limit, row in zip(limits, rows, strict=True):
                if row.used[number][index] > 0:
                    limit.SetCoefficient(share, float(row.used[number][index]) * batch.requests)
        beyond = order[TUNING.runs.most_joint_stretches : TUNING.runs.most_joint_stretches + 1]
        others = [float(cover.unit_usd[index]) * batch.requests for index in beyond] + [left]
        if np.isfinite(min(others)):
            rest = solver.NumVar(0.0, 1.0, "")
            objective.SetCoefficient(rest, min(others))
            whole.SetCoefficient(rest, 1.0)
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return None
    prices = [max(0.0, -limit.dual_value()) for limit in limits]
    return [price if price > LEAST_PRICE else 0.0 for price in prices]
