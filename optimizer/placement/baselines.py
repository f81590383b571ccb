"""What other strategies would have cost, each solved as honestly as the plan: same gates, same stock.

A baseline must place everything that the plan places; it may pass the budget, and says so. Its cost is
cost plus lateness. Searches among groups are limited by counted work, so the same request tells the same
saving however busy the machine is; the plan's own clock can only end them, and what it cuts short is not
told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from broker.domain.plan import Baseline
from broker.domain.workload import Serving
from optimizer.placement.candidates import Candidates, build_candidates
from optimizer.placement.columns import Column, in_cents, in_usd
from optimizer.placement.converged import converged_pool
from optimizer.placement.group_costs import least_cents
from optimizer.placement.problem import Bools, OfferTable, Problem
from optimizer.placement.solve import Search, Solution, search_only
from optimizer.placement.stock import Ledger
from optimizer.placement.stopwatch import Stopwatch, WorkClock
from optimizer.placement.strategies import cheapest_gpu_hour_column

GROUP_SHARE = 0.25
GROUP_GAP = 0.002
GROUP_SECONDS_EACH = 0.03
TURN_SECONDS_EACH = 0.0015
"""A turn of a group's search takes about so long for each workload: 60 ms at 40."""
STRATEGY_SHARE = 0.4
NOT_IN_TIME = "not found in time"


@dataclass(frozen=True, slots=True)
class Scene:
    """What every baseline needs: the plan's candidates and solution, the work that is left, and the time."""

    candidates: Candidates
    solution: Solution
    work: Stopwatch
    time: Stopwatch
    seed: int

    @property
    def placed(self) -> list[str]:
        """What the plan places, and a baseline therefore must."""
        return sorted(self.solution.choice.columns)

    @property
    def work_left(self) -> float:
        """Seconds of work."""
        return self.work.work_left() or 0.0


def build_baselines(
    candidates: Candidates, solution: Solution, work_s: float, time: Stopwatch, seed: int
) -> tuple[Baseline, ...]:
    """All four, with ``work_s`` seconds of work, and within ``time``."""
    turn_s = TURN_SECONDS_EACH * len(solution.choice.columns)
    scene = Scene(candidates, solution, Stopwatch(work_s, WorkClock(turn_s, time.over)), time, seed)
    if not scene.placed:
        names = ("single_shape", "single_provider", "cheapest_gpu_hour", "converged")
        return tuple(Baseline(name, None, "nothing to compare: the plan places nothing") for name in names)
    table = candidates.problem.table
    cheapest, converged = _cheapest_gpu_hour(scene), _converged(scene)
    return (
        _cheapest_group(scene, "single_shape", "kinds of node", shape_groups(table), 0.5),
        _cheapest_group(scene, "single_provider", "providers", provider_groups(table), 1.0),
        cheapest,
        converged,
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


def _cheapest_group(
    scene: Scene, name: str, noun: str, groups: Mapping[str, Bools], share: float
) -> Baseline:
    """The cheapest group of offers that can carry everything.

    Groups are tried by the least that they could cost; the search ends when the next could not be cheaper.
    """
    least: dict[str, float | str] = {}
    for label, mask in groups.items():
        if scene.time.over():
            return Baseline(name, None, NOT_IN_TIME)
        least[label] = least_cents(scene.candidates, scene.placed, mask)
    able = sorted((cents, label) for label, cents in least.items() if isinstance(cents, float))
    lacking = Counter(name for name in least.values() if isinstance(name, str))
    if not able:
        worst, count = lacking.most_common(1)[0]
        text = f"none of {len(groups)} {noun} has the offers, stock and zones for all together"
        return Baseline(name, None, f"{text}: {count} cannot carry {worst}")
    best: tuple[int, str] | None = None
    tried = 0
    longest = GROUP_SECONDS_EACH * len(scene.placed)
    out_of_work = scene.work.until(share)
    for cents, label in able:
        if (best is not None and cents >= best[0]) or out_of_work() or scene.work_left <= longest:
            break
        before = scene.work.seconds
        found = _solved(scene, groups[label])
        if scene.time.over():
            break
        tried += 1
        longest = max(longest, scene.work.seconds - before)
        if found is not None and (best is None or found < best[0]):
            best = (found, label)
    untried = [cents for cents, _ in able[tried:] if best is None or cents < best[0]]
    return _told(scene, name, noun, best, len(able), len(untried))


def _told(
    scene: Scene, name: str, noun: str, best: tuple[int, str] | None, able: int, untried: int
) -> Baseline:
    if best is None and untried:
        text = f"not found in time: {untried} of {able} {noun} that fit each workload alone were not tried"
        return Baseline(name, None, text)
    if best is None:
        text = f"no way found for all together on any of {able} {noun} that fit each workload alone"
        return Baseline(name, None, text)
    rest = f"; time ended before {untried} others were tried" if untried else f" of {able} {noun} that can"
    return Baseline(
        name, in_usd(best[0]), f"everything on {best[1]}, the cheapest{rest}{_over_budget(scene, best[0])}"
    )


def _over_budget(scene: Scene, cents: int) -> str:
    budget = scene.candidates.problem.request.budget_usd
    over = 0 if budget is None else cents - in_cents(budget)
    return f"; {in_usd(over)} USD over the budget" if over > 0 else ""


def _solved(scene: Scene, mask: Bools) -> int | None:
    """Cost and lateness in cents of the restricted problem; None when no way was found for everything."""
    old = scene.candidates
    watch = Stopwatch(scene.work_left * GROUP_SHARE, scene.work.clock)
    candidates = build_candidates(_only_placed(scene).restricted(mask), old.estimates)
    choice = search_only(Search(candidates, watch, GROUP_GAP, scene.seed))
    return None if choice.required_missing or choice.left_out else choice.objective_cents


def _only_placed(scene: Scene) -> Problem:
    """The problem of what the plan places: all of it must be placed, whatever the budget."""
    problem = scene.candidates.problem
    kept = tuple(
        replace(w, unplaced_usd=None) for w in problem.request.workloads if w.name in set(scene.placed)
    )
    return replace(problem, request=replace(problem.request, workloads=kept, budget_usd=None))


def _cheapest_gpu_hour(scene: Scene) -> Baseline:
    name, problem = "cheapest_gpu_hour", _only_placed(scene)
    chosen: dict[str, Column] = {}
    ledger, out_of_time = Ledger(problem), scene.time.until(STRATEGY_SHARE)
    for workload in _runs_first(problem):
        if out_of_time():
            return Baseline(name, None, NOT_IN_TIME)
        made = cheapest_gpu_hour_column(scene.candidates, workload, ledger, chosen)
        if made is None:
            return Baseline(name, None, f"no offer with stock left can carry {workload} this way")
        ledger.add(made)
        chosen[workload] = made
    total = sum(column.total_cents for column in chosen.values())
    text = "each workload on its lowest price per GPU-hour, as small as it fits"
    return Baseline(name, in_usd(total), text + _over_budget(scene, total))


def _runs_first(problem: Problem) -> Iterable[str]:
    return [w.name for w in sorted(problem.request.workloads, key=lambda w: isinstance(w, Serving))]


def _converged(scene: Scene) -> Baseline:
    try:
        pool = converged_pool(scene.candidates, scene.placed, scene.time.until(STRATEGY_SHARE))
    except TimeoutError:
        return Baseline("converged", None, NOT_IN_TIME)
    if pool is None:
        text = "no one kind of node at one provider has the stock to carry everything at its peak"
        return Baseline("converged", None, text)
    return Baseline("converged", in_usd(pool.cost_cents), pool.why + _over_budget(scene, pool.cost_cents))
