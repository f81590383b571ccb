"""A lower bound from a relaxation of the master problem in which every candidate takes part.

- A run keeps its exact columns. All its candidates without a column are represented by one dummy column,
  which costs the least of them and holds nothing.
- A service has one dummy column for each start. It costs the lower bound of any fleet (``fleets.bound``) and
  holds nothing.
- Stock limits apply to the exact columns only. Pools of GPUs are ignored, because runs have no columns that
  start when holdings of other sizes of a pool end.
- The budget and the order of runs and services stay.

Every plan over the candidates corresponds to a choice of this model that costs no more, so the bound that the
solver proves for the model is a lower bound on cost + penalty + delay.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from broker.domain.planning.transfer import Place
from broker.domain.planning.workload import Batch
from optimizer.placement.columns.candidates import MOST_AMOUNTS, Candidates, floor_cents, unplaced_cents
from optimizer.placement.columns.master import Limits, solve_master
from optimizer.placement.columns.run_pool import DUMMY_END_S, RunPool, dummy_column_of
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.delays import delay_cents
from optimizer.placement.runs.cover_bound import ROUNDING_USD
from optimizer.placement.runs.joint_cover import joint_least_usd
from optimizer.placement.runs.parts import is_divisible


def separate_bound_cents(candidates: Candidates, pools: Mapping[str, RunPool]) -> int:
    """The sum of each workload's own lower bound, available at once; only batches in parts share stock."""
    total, of_batches = 0, 0
    for name, pool in pools.items():
        followers = len(candidates.problem.followers(name))
        usd = float(pool.total_usd.min(initial=pool.beyond_usd))
        divisible = is_divisible(pool.found.run)
        cents = floor_cents(usd, 1 + MOST_AMOUNTS * followers) if np.isfinite(usd) else None
        if cents is not None and divisible:
            # The bound of a cover counts whole cents.
            cents = round(100 * (usd - ROUNDING_USD))
        own = _or_left_out(candidates, name, cents)
        total += own
        of_batches += own if divisible else 0
    total += max(0, _joint_cents(candidates, pools) - of_batches)
    for service in candidates.problem.services():
        if service.starts_after is None:
            cents = candidates.least_service_cents(service, None)
            total += _or_left_out(candidates, service.name, cents)
    return total


def _joint_cents(candidates: Candidates, pools: Mapping[str, RunPool]) -> int:
    """Lower bound on all batches that may be divided, which share stock."""
    problem = candidates.problem
    runs = [pool.found.run for pool in pools.values()]
    batches = [run for run in runs if isinstance(run, Batch) and is_divisible(run)]

    def found() -> float:
        left = {run.name: unplaced_cents(problem, run.name) for run in batches}
        usd = {name: np.inf if cents is None else cents / 100 for name, cents in left.items()}
        return joint_least_usd(problem, candidates.estimates, batches, usd)

    least = problem.once(("joint batches", tuple(batches)), found)
    return int(np.ceil(least * 100 * (1 - 1e-9) - 1e-6)) if np.isfinite(least) else 0


def _or_left_out(candidates: Candidates, name: str, cents: int | None) -> int:
    options = (cents, unplaced_cents(candidates.problem, name))
    return min((option for option in options if option is not None), default=0)


def relaxed_bound_cents(candidates: Candidates, pools: Mapping[str, RunPool], limits: Limits) -> int | None:
    """The bound that the solver proves for the relaxation; None if it proved none in time."""
    columns: list[Column] = []
    for pool in pools.values():
        columns.extend(pool.columns)
        dummy = dummy_column_of(candidates, pool)
        if dummy is not None:
            columns.append(dummy)
    columns.extend(_service_dummies(candidates, columns))
    found = solve_master(candidates.problem.unpooled(), columns, limits)
    if found is None or not np.isfinite(found.bound_cents):
        return None
    return int(np.ceil(found.bound_cents * (1 - 1e-12) - 1e-6))


def _service_dummies(candidates: Candidates, columns: list[Column]) -> list[Column]:
    dummies = []
    for service in candidates.problem.services():
        ends: list[tuple[float | None, Place | None]] = [(None, None)]
        if service.starts_after is not None:
            ends = list(dict.fromkeys(c.end for c in columns if c.workload == service.starts_after))
        for end, place in ends:
            cents = 0 if end == DUMMY_END_S else candidates.least_service_cents(service, end)
            if cents is not None:
                delay = 0 if end == DUMMY_END_S else delay_cents(candidates.problem, service.name, end)
                dummies.append(
                    Column(service.name, (), cents, after_s=end, after_place=place, delay_cents=delay)
                )
    return dummies
