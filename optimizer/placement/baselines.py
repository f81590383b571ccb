"""What other habits would have cost, each solved as honestly as the plan: same gates, same stock.

A baseline counts only if it places everything that the plan places. Its cost is cost plus lateness.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from broker.domain.plan import Baseline
from broker.domain.workload import Serving
from optimizer.placement.candidates import Candidates, build_candidates
from optimizer.placement.columns import Column, in_usd
from optimizer.placement.converged import converged_pool
from optimizer.placement.greedy import place_greedily
from optimizer.placement.habits import cheapest_gpu_hour_columns
from optimizer.placement.master import Choice, Limits, solve_master
from optimizer.placement.problem import Bools, OfferTable
from optimizer.placement.run_pool import build_run_pools
from optimizer.placement.solve import Solution, greedy_choice, starting_columns

TRIED = 4


@dataclass(frozen=True, slots=True)
class Scene:
    """What every baseline needs: the plan's candidates and solution, and when its time is over."""

    candidates: Candidates
    solution: Solution
    limits: Limits
    until: float

    @property
    def placed(self) -> frozenset[str]:
        """What the plan places, and a baseline therefore must."""
        return frozenset(self.solution.choice.columns)

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.until - time.monotonic())


def build_baselines(candidates: Candidates, solution: Solution, limits: Limits) -> tuple[Baseline, ...]:
    """All four, within the seconds of ``limits``."""
    scene = Scene(candidates, solution, limits, time.monotonic() + limits.seconds)
    table = candidates.problem.table
    return (
        _cheapest_group(scene, "single_shape", shape_groups(table)),
        _cheapest_group(scene, "single_provider", provider_groups(table)),
        _cheapest_gpu_hour(scene),
        _converged(scene),
    )


def shape_groups(table: OfferTable) -> dict[str, Bools]:
    """Offers [O] of each (GPU, GPUs per node, form)."""

    def name_of(index: int) -> str:
        sku = table.offers[index].sku
        return f"{sku.gpu} x{sku.gpus_per_node} {sku.form or 'any form'}"

    return _groups(table, name_of)


def provider_groups(table: OfferTable) -> dict[str, Bools]:
    """Offers [O] of each provider."""
    return _groups(table, lambda i: table.offers[i].provider)


def _groups(table: OfferTable, name_of: Callable[[int], str]) -> dict[str, Bools]:
    names = np.array([name_of(i) for i in range(len(table))])
    return {str(name): names == name for name in np.unique(names)} if len(table) else {}


def _cheapest_group(scene: Scene, name: str, groups: Mapping[str, Bools]) -> Baseline:
    """The cheapest of the groups of offers that can carry everything, most promising first."""
    able = sorted(
        (rank, label) for label, mask in groups.items() if (rank := _promise(scene, mask)) is not None
    )
    if not able:
        return Baseline(name, None, f"none of {len(groups)} can carry every workload that the plan places")
    if scene.left <= 0:
        return Baseline(name, None, f"no time was left to try the {len(able)} that could carry everything")
    best: tuple[int, str] | None = None
    for _, label in able[:TRIED]:
        if scene.left <= 0:
            break
        cents = _solved(scene, groups[label])
        if cents is not None and (best is None or cents < best[0]):
            best = (cents, label)
    if best is None:
        return Baseline(
            name, None, f"none of {len(able)} that fit each alone has the stock and zones for all together"
        )
    return Baseline(name, in_usd(best[0]), f"everything on {best[1]}, the cheapest of {len(able)} that can")


def _promise(scene: Scene, mask: Bools) -> float | None:
    """Sum of each workload's cheapest price among the offers of ``mask``; None when one has none."""
    total = 0.0
    for name in sorted(scene.placed):
        if name in scene.candidates.runs:
            found = scene.candidates.runs[name]
            costs = found.total_usd[mask[found.offer]]
        else:
            units = scene.candidates.fleets[name].units
            inside = mask[units.offer]
            costs = units.usd_per_hour[inside] / units.requests_per_s[inside]
            costs = costs * float(scene.candidates.fleets[name].demand.sum())
        if not len(costs):
            return None
        total += float(costs.min())
    return total


def _solved(scene: Scene, mask: Bools) -> int | None:
    """Cost and lateness in cents of the restricted problem; None when it cannot carry everything."""
    old = scene.candidates
    restricted = build_candidates(old.problem.restricted(mask), old.estimates, bounded=False)
    columns = starting_columns(restricted, build_run_pools(restricted))
    choice = greedy_choice(restricted.problem, columns)
    seconds = min(scene.left, scene.limits.seconds / 8)
    if seconds > 0:
        better = solve_master(
            restricted.problem, columns, Limits(seconds, scene.limits.gap, scene.limits.seed), choice.columns
        )
        choice = better if better is not None and better.rank < choice.rank else choice
    return _total(scene, choice)


def _total(scene: Scene, choice: Choice) -> int | None:
    if not scene.placed <= set(choice.columns):
        return None
    return sum(column.total_cents for name, column in choice.columns.items() if name in scene.placed)


def _cheapest_gpu_hour(scene: Scene) -> Baseline:
    name = "cheapest_gpu_hour"
    columns: list[Column] = []
    problem = scene.candidates.problem
    for workload in _runs_first(scene):
        chosen = place_greedily(problem, columns)
        made = cheapest_gpu_hour_columns(scene.candidates, workload, chosen)
        if made is None:
            return Baseline(name, None, f"no offer with stock left can carry {workload} this way")
        columns.append(made)
    total = sum(column.total_cents for column in columns)
    return Baseline(
        name, in_usd(total), "each workload on its lowest price per GPU-hour, as small as it fits"
    )


def _runs_first(scene: Scene) -> Iterable[str]:
    workloads = [w for w in scene.candidates.problem.request.workloads if w.name in scene.placed]
    return [w.name for w in sorted(workloads, key=lambda w: isinstance(w, Serving))]


def _converged(scene: Scene) -> Baseline:
    pool = converged_pool(scene.candidates, sorted(scene.placed))
    if pool is None:
        return Baseline(
            "converged", None, "no one kind of node has the stock to carry everything at its peak"
        )
    return Baseline("converged", in_usd(pool.cost_cents), pool.why)
