"""The baseline that sorts by price per GPU-hour: a workload gets the first offer that can carry it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.columns.fleet_pool import free_nodes
from optimizer.placement.fleets.model import coarse_fleets, model_fleets
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.problem import Ints, OfferTable
from optimizer.placement.problem.stock import Ledger
from optimizer.placement.problem.transfers import placed_after
from optimizer.placement.problem.units import with_remaining_stock
from optimizer.placement.runs.columns import build_run_column
from optimizer.placement.runtime.tuning import TUNING

COUNTS = (1, *sorted(base << power for base in (2, 3) for power in range(16)))
"""How many of the cheapest offers are admitted, in increasing order."""


def cheapest_gpu_hour_column(
    candidates: Candidates, name: str, ledger: Ledger, chosen: Mapping[str, Column]
) -> Column | None:
    """The column of a workload given what is already chosen; None if nothing fits."""
    made = (
        _run_columns(candidates, name)
        if name in candidates.runs
        else _fleets(candidates, name, ledger, chosen)
    )
    return next((column for column in made if ledger.fits(column)), None)


def _gpu_hour_usd(table: OfferTable, offers: Ints) -> np.ndarray:
    price: np.ndarray = table.price_usd[offers] / table.gpus_per_node[offers]
    return price


def _run_columns(candidates: Candidates, name: str) -> Iterator[Column]:
    found, table = candidates.runs[name], candidates.problem.table
    order = np.lexsort((found.total_usd, found.nodes, found.offer, _gpu_hour_usd(table, found.offer)))
    for index in order[: TUNING.baselines.most_runs_tried]:
        column = build_run_column(candidates.problem, candidates.estimates, found, int(index))
        if column is not None:
            yield column


def _fleets(
    candidates: Candidates, name: str, ledger: Ledger, chosen: Mapping[str, Column]
) -> Iterator[Column]:
    """The smallest replicas on the cheapest GPU-hours; more offers are admitted until the fleet is feasible.

    With many workloads, fleets are as coarse as those of the first plan.
    """
    problem, make = candidates.problem, model_fleets if candidates.is_small else coarse_fleets
    free = free_nodes(problem)
    for taken in ledger.reached():
        free[taken] = ledger.free_nodes(taken, problem.t0_s)
    case = with_remaining_stock(candidates.fleets[name], free)
    after = case.service.starts_after
    after_s, place = chosen[after].end if after is not None else (None, None)
    offers = np.unique(case.units.offer)
    order = offers[np.lexsort((offers, _gpu_hour_usd(problem.table, offers)))]
    for count in COUNTS:
        if count > 2 * len(order):
            return
        near = np.where(np.isin(np.arange(len(free)), order[:count]), free, 0)
        made = make(problem, case, near, [after_s])
        yield from (placed_after(problem, fleet, place) for fleet in made)
