"""What simpler strategies would have cost, each solved as honestly as the plan: same gates, same stock.

A baseline must place everything that the plan places; it may pass the budget, and says so. Its cost is
cost, lateness and delay. Its work is counted, so that the same request tells the same saving however busy
the machine is; one whose search was cut short is told as not completed, without a cost.
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
from optimizer.placement.converged import converged_pool, least_pool_cents, steady_groups
from optimizer.placement.group_costs import least_cents
from optimizer.placement.problem import Bools, OfferTable, Problem
from optimizer.placement.solve import Search, search_only
from optimizer.placement.stock import Ledger
from optimizer.placement.stopwatch import Stopwatch, WorkClock
from optimizer.placement.strategies import cheapest_gpu_hour_column

LEAST_WORK_SECONDS = 1.0
NAMES = ("single_shape", "single_provider", "cheapest_gpu_hour", "converged")
GROUP_GAP = 0.002
GROUP_SECONDS_EACH = 0.03
TURN_SECONDS_EACH = 0.0015
"""A turn of a group's search takes about so long for each workload: 60 ms at 40."""
PLACED_SECONDS = 0.01
"""What one workload takes on the cheapest GPU-hours, and on a pool."""
ROOM_TO_END = 4.0
"""A search that ends within a quarter of its limit has cut none of its parts short."""


@dataclass(frozen=True, slots=True)
class Simpler:
    """A baseline, and the plan that costs it, a column a workload; None where there is none."""

    baseline: Baseline
    chosen: Mapping[str, Column] | None = None


@dataclass(frozen=True, slots=True)
class _Carried:
    """How a group of offers carries everything. ``cents``: cost, lateness and delay."""

    cents: int
    chosen: Mapping[str, Column]
    says: str


@dataclass(frozen=True, slots=True)
class _Tried:
    """What became of one group; ``cut``: its search was cut short."""

    found: _Carried | None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class _Scene:
    """What every baseline needs: the plan's candidates, what it places, and counted work."""

    candidates: Candidates
    placed: tuple[str, ...]
    clock: WorkClock
    seed: int

    def work(self, seconds: float) -> Stopwatch:
        """So many seconds of work from now on."""
        return Stopwatch(seconds, self.clock)


def build_baselines(
    candidates: Candidates,
    chosen: Mapping[str, Column],
    work_s: float,
    seed: int,
    ended: Callable[[], bool],
) -> tuple[Simpler, ...]:
    """All four, each in a quarter of ``work_s`` seconds of counted work, and in a second of it at least.

    ``chosen``: what the plan places; ``ended``: the caller was interrupted.
    """
    if not chosen:
        text = "nothing to compare: the plan places nothing"
        return tuple(Simpler(Baseline(name, None, text)) for name in NAMES)
    placed = tuple(sorted(chosen))
    clock = WorkClock(TURN_SECONDS_EACH * len(placed), ended)
    scene = _Scene(candidates, placed, clock, seed)
    each_s = max(LEAST_WORK_SECONDS, work_s / len(NAMES))
    table, only = candidates.problem.table, _only_placed(candidates.problem, placed)

    def least(mask: Bools) -> float | str:
        return least_cents(candidates, placed, mask)

    def least_pool(mask: Bools) -> float | str:
        cents = least(mask)
        return cents if isinstance(cents, str) else least_pool_cents(candidates, mask)

    def searched(mask: Bools, left_s: float) -> _Tried:
        return _searched(scene, only.restricted(mask), left_s)

    def pooled(mask: Bools, _left_s: float) -> _Tried:
        return _pooled(scene, only.restricted(mask))

    shapes, sellers, pools = shape_groups(table), provider_groups(table), steady_groups(candidates.problem)
    return (
        _cheapest_group(scene, "single_shape", "kinds of node", shapes, least, searched, each_s),
        _cheapest_group(scene, "single_provider", "providers", sellers, least, searched, each_s),
        _cheapest_gpu_hour(scene, only, each_s),
        _cheapest_group(scene, "converged", "kinds of node at one seller", pools, least_pool, pooled, each_s),
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
    scene: _Scene,
    name: str,
    noun: str,
    groups: Mapping[str, Bools],
    least_of: Callable[[Bools], float | str],
    solved: Callable[[Bools, float], _Tried],
    work_s: float,
) -> Simpler:
    """The cheapest group of offers that can carry everything.

    Groups are tried by the least that they could cost; the search ends when the next could not be cheaper.
    """
    work = scene.work(work_s)
    least: dict[str, float | str] = {}
    for label, mask in groups.items():
        if work.over():
            text = f"not completed: work ended before all {len(groups)} {noun} were looked at"
            return Simpler(Baseline(name, None, text, completed=False))
        least[label] = least_of(mask)
    able = sorted((c, label) for label, c in least.items() if isinstance(c, float) and np.isfinite(c))
    if not able:
        return Simpler(Baseline(name, None, _none_able(noun, least)))
    best: tuple[int, str, _Carried] | None = None
    cut, tried, longest = False, 0, GROUP_SECONDS_EACH * len(scene.placed)
    for cents, label in able:
        left_s = work.limit_s - work.seconds
        if (best is not None and cents >= best[0]) or left_s <= longest:
            break
        before = work.seconds
        one = solved(groups[label], left_s)
        tried, cut = tried + 1, cut or one.cut
        longest = max(longest, work.seconds - before)
        if one.found is not None and (best is None or one.found.cents < best[0]):
            best = (one.found.cents, label, one.found)
    untried = sum(1 for cents, _ in able[tried:] if best is None or cents < best[0])
    return _told(scene, name, noun, best, len(able), untried, cut=cut)


def _none_able(noun: str, least: Mapping[str, float | str]) -> str:
    """Why no group carries everything: what most of them cannot carry."""
    text = f"none of {len(least)} {noun} has the offers, stock and zones for all together"
    lacking = Counter(name for name in least.values() if isinstance(name, str))
    if not lacking:
        return text
    worst, count = lacking.most_common(1)[0]
    return f"{text}: {count} cannot carry {worst}"


def _told(
    scene: _Scene,
    name: str,
    noun: str,
    best: tuple[int, str, _Carried] | None,
    able: int,
    untried: int,
    *,
    cut: bool,
) -> Simpler:
    chosen = None if best is None else best[2].chosen
    if untried or cut:
        text = f"not completed: {untried} of {able} {noun} that fit each workload alone were not tried"
        if cut:
            text = f"not completed: a search was cut short, {untried} of {able} {noun} were not tried"
        if best is not None:
            text += f"; ${in_usd(best[0]):,} on {best[1]} so far"
        return Simpler(Baseline(name, None, text, completed=False), chosen)
    if best is None:
        text = f"no way found for all together on any of {able} {noun} that fit each workload alone"
        return Simpler(Baseline(name, None, text))
    text = f"{best[2].says or f'everything on {best[1]}'}, the cheapest of {able} {noun} that can"
    return Simpler(Baseline(name, in_usd(best[0]), text + _over_budget(scene, best[0])), chosen)


def _over_budget(scene: _Scene, cents: int) -> str:
    budget = scene.candidates.problem.request.budget_usd
    over = 0 if budget is None else cents - in_cents(budget)
    return f"; {in_usd(over)} USD over the budget" if over > 0 else ""


def _searched(scene: _Scene, problem: Problem, left_s: float) -> _Tried:
    """The plan of the restricted problem, by the same search."""
    candidates = build_candidates(problem, scene.candidates.estimates)
    watch = scene.work(ROOM_TO_END * left_s)
    choice = search_only(Search(candidates, watch, GROUP_GAP, scene.seed))
    cut = watch.seconds > left_s
    if choice.required_missing or choice.left_out:
        return _Tried(None, cut)
    return _Tried(_Carried(choice.objective_cents, choice.columns, ""), cut)


def _pooled(scene: _Scene, problem: Problem) -> _Tried:
    """One pool on the offers of the restricted problem."""
    scene.clock.count(PLACED_SECONDS * len(scene.placed))
    candidates = build_candidates(problem, scene.candidates.estimates)
    pool = converged_pool(candidates)
    if pool is None:
        return _Tried(None)
    offer = problem.table.offers[next(iter(pool.chosen.values())).pieces[0].offer]
    nodes = f"{pool.nodes} {'node' if pool.nodes == 1 else 'nodes'}"
    what = f"{nodes} of {offer.sku.gpu} x{offer.sku.gpus_per_node} at {offer.provider}"
    return _Tried(_Carried(pool.total_cents, pool.chosen, f"{what}, always on for the peak of all work"))


def _only_placed(problem: Problem, placed: tuple[str, ...]) -> Problem:
    """The problem of what the plan places: all of it must be placed, whatever the budget."""
    kept = tuple(
        replace(w, unplaced_usd=None) for w in problem.request.workloads if w.name in frozenset(placed)
    )
    return replace(problem, request=replace(problem.request, workloads=kept, budget_usd=None))


def _cheapest_gpu_hour(scene: _Scene, problem: Problem, work_s: float) -> Simpler:
    name = "cheapest_gpu_hour"
    chosen: dict[str, Column] = {}
    ledger = Ledger(problem)
    for workload in _runs_first(problem):
        if PLACED_SECONDS * len(chosen) >= work_s:
            text = f"not completed: work ended after {len(chosen)} of {len(scene.placed)} workloads"
            return Simpler(Baseline(name, None, text, completed=False))
        made = cheapest_gpu_hour_column(scene.candidates, workload, ledger, chosen)
        if made is None:
            return Simpler(Baseline(name, None, f"no offer with stock left can carry {workload} this way"))
        ledger.add(made)
        chosen[workload] = made
    total = sum(column.total_cents for column in chosen.values())
    text = "each workload on its lowest price per GPU-hour, as small as it fits"
    return Simpler(Baseline(name, in_usd(total), text + _over_budget(scene, total)), chosen)


def _runs_first(problem: Problem) -> Iterable[str]:
    return [w.name for w in sorted(problem.request.workloads, key=lambda w: isinstance(w, Serving))]
