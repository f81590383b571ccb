"""Costs of simpler strategies, each solved with the same gates and stock as the plan.

A baseline must place everything that the plan places; it may exceed the budget, and says so. Its cost is
cost, lateness and delay. Its work is counted instead of timed, so that the same request reports the same
saving however busy the machine is. If its search was cut short, by its work limit or by the end of the plan's
time, it is reported as not completed, without a cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np

from broker.domain.basics.money import ZERO, usd_words
from broker.domain.planning.plan import Baseline
from broker.domain.planning.workload import Serving
from optimizer.placement.baselines.cheapest_gpu_hour import cheapest_gpu_hour_column
from optimizer.placement.baselines.converged import converged_pool, least_pool_cents, steady_groups
from optimizer.placement.columns.candidates import Candidates, build_candidates
from optimizer.placement.columns.group_costs import least_cents
from optimizer.placement.problem.columns import Column, in_cents, in_usd
from optimizer.placement.problem.problem import Bools, OfferTable, Problem
from optimizer.placement.problem.stock import Ledger
from optimizer.placement.runtime.stopwatch import Stopwatch, WorkClock, never
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.group_search import placed_by_groups

NAMES = ("single_shape", "single_provider", "cheapest_gpu_hour", "converged")
TURN_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Simpler:
    """A baseline, and the plan whose cost it states, as one column for each workload; None if there is
    none.
    """

    baseline: Baseline
    chosen: Mapping[str, Column] | None = None


@dataclass(frozen=True, slots=True)
class _GroupPlan:
    """A group of offers that carries everything. ``cents``: cost, lateness and delay; ``cost_cents``: the
    part that counts against the budget.
    """

    cents: int
    cost_cents: int
    chosen: Mapping[str, Column]
    says: str


@dataclass(frozen=True, slots=True)
class _GroupResult:
    """The result for one group; ``cut``: its search was cut short."""

    found: _GroupPlan | None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The common input of the baselines: the plan's candidates, the placed workloads, and counted work."""

    candidates: Candidates
    placed: tuple[str, ...]
    clock: WorkClock

    def work(self, seconds: float) -> Stopwatch:
        """A stopwatch of ``seconds`` of work from now on."""
        return Stopwatch(seconds, self.clock)


def build_baselines(
    candidates: Candidates,
    names: Collection[str],
    work_s: float,
    ended: Callable[[], bool],
    late: Callable[[], bool] = never,
) -> tuple[Simpler, ...]:
    """All four baselines, in ``work_s`` seconds of counted work.

    ``names``: the workloads that the plan places; ``ended``: the caller was interrupted; ``late``: the plan's
    time is over, which stops the baselines once they have had their first seconds of work.
    """
    if not names:
        text = "nothing to compare: the plan places nothing"
        return tuple(Simpler(Baseline(name, None, text)) for name in NAMES)
    placed = tuple(sorted(names))
    clock = WorkClock(
        TURN_SECONDS, lambda: ended() or (clock.work_s >= TUNING.baselines.least_work_s and late())
    )
    inputs = _Inputs(candidates, placed, clock)
    group_s, simple_s = (
        max(TUNING.baselines.least_work_s, share * work_s)
        for share in (TUNING.baselines.group_share, TUNING.baselines.simple_share)
    )
    table, only = candidates.problem.table, _only_placed(candidates.problem, placed)

    def least(mask: Bools) -> float | str:
        return least_cents(candidates, placed, mask)

    def least_pool(mask: Bools) -> float | str:
        return least_pool_cents(candidates, mask)

    def searched(mask: Bools, left_s: float) -> _GroupResult:
        return _searched(inputs, only.restricted(mask), left_s)

    def pooled(mask: Bools, _left_s: float) -> _GroupResult:
        return _pooled(inputs, only.restricted(mask))

    shapes, sellers, pools = shape_groups(table), provider_groups(table), steady_groups(candidates.problem)
    bound_s, pool_bound_s = TUNING.baselines.bound_s_each, TUNING.baselines.pool_bound_s_each
    by_gpu_hour = _cheapest_gpu_hour(inputs, only, simple_s)
    return (
        _cheapest_group(inputs, NAMES[0], "kinds of node", shapes, least, searched, bound_s, group_s),
        _cheapest_group(inputs, NAMES[1], "providers", sellers, least, searched, bound_s, group_s),
        by_gpu_hour,
        _cheapest_group(
            inputs, NAMES[3], "kinds of node at one seller", pools, least_pool, pooled, pool_bound_s, simple_s
        ),
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
    inputs: _Inputs,
    name: str,
    noun: str,
    groups: Mapping[str, Bools],
    least_of: Callable[[Bools], float | str],
    solved: Callable[[Bools, float], _GroupResult],
    bound_s: float,
    work_s: float,
) -> Simpler:
    """The cheapest group of offers that can carry everything.

    Groups are tried in ascending order of their lower bounds; the search ends when the next bound is not
    lower than the best cost.
    """
    least: dict[str, float | str] = {}
    for label, mask in groups.items():
        if bound_s * len(least) * len(inputs.placed) > work_s or inputs.clock.ended():
            text = f"work ended before all {len(groups)} {noun} were looked at"
            return Simpler(Baseline(name, None, text, completed=False))
        least[label] = least_of(mask)
    able = sorted((c, label) for label, c in least.items() if isinstance(c, float) and np.isfinite(c))
    if not able:
        return Simpler(Baseline(name, None, _none_able(noun, least)))
    best: tuple[int, str, _GroupPlan] | None = None
    work = inputs.work(work_s)
    cut, tried, longest = False, 0, TUNING.baselines.group_s_each * len(inputs.placed)
    for cents, label in able:
        left_s = work.limit_s - work.seconds
        if (best is not None and cents >= best[0]) or left_s <= longest or inputs.clock.ended():
            break
        before = work.seconds
        one = solved(groups[label], left_s)
        tried, cut = tried + 1, cut or one.cut
        longest = max(longest, work.seconds - before)
        if one.found is not None and (best is None or one.found.cents < best[0]):
            best = (one.found.cents, label, one.found)
    untried = sum(1 for cents, _ in able[tried:] if best is None or cents < best[0])
    return _told(inputs, name, noun, best, len(able), untried, cut=cut)


def _none_able(noun: str, least: Mapping[str, float | str]) -> str:
    """Why no group carries everything: the workload that most groups cannot carry."""
    text = f"none of {len(least)} {noun} has the offers, stock and zones for all together"
    lacking = Counter(name for name in least.values() if isinstance(name, str))
    if not lacking:
        return text
    worst, count = lacking.most_common(1)[0]
    return f"{text}: {count} cannot carry {worst}"


def _told(
    inputs: _Inputs,
    name: str,
    noun: str,
    best: tuple[int, str, _GroupPlan] | None,
    able: int,
    untried: int,
    *,
    cut: bool,
) -> Simpler:
    chosen = None if best is None else best[2].chosen
    if untried or cut:
        text = f"{untried} of {able} {noun} that fit each workload alone were not tried"
        if not untried:
            text = f"the search of one of {able} {noun} was cut short"
        if best is not None:
            text += f"; {usd_words(in_usd(best[0]))} on {best[1]} so far"
        return Simpler(Baseline(name, None, text, completed=False), chosen)
    if best is None:
        text = f"no way found for all together on any of {able} {noun} that fit each workload alone"
        return Simpler(Baseline(name, None, text))
    text = f"{best[2].says or f'everything on {best[1]}'}, the cheapest of {able} {noun} that can"
    return Simpler(_costed(inputs, name, text, best[0], best[2].cost_cents), chosen)


def _costed(inputs: _Inputs, name: str, text: str, cents: int, cost_cents: int) -> Baseline:
    """A completed baseline of ``cents``, with the amount by which it exceeds the budget."""
    budget = inputs.candidates.problem.request.held_budget_usd
    over: Decimal = ZERO if budget is None else in_usd(max(0, cost_cents - in_cents(budget)))
    if over:
        text += f"; {usd_words(over)} over the budget"
    return Baseline(name, in_usd(cents), text, over_budget_usd=over)


def _searched(inputs: _Inputs, problem: Problem, left_s: float) -> _GroupResult:
    """The plan of the restricted problem, by dependency groups."""
    work = inputs.work(left_s)

    def out_of_work() -> bool:
        inputs.clock.count(TUNING.baselines.placed_group_s)
        return work.over()

    candidates = build_candidates(problem, inputs.candidates.estimates)
    chosen = placed_by_groups(candidates, out_of_work)
    if chosen is None or len(chosen) < len(inputs.placed):
        return _GroupResult(None, work.over())
    total = sum(column.total_cents for column in chosen.values())
    cost = sum(column.cost_cents for column in chosen.values())
    return _GroupResult(_GroupPlan(total, cost, chosen, ""), work.over())


def _pooled(inputs: _Inputs, problem: Problem) -> _GroupResult:
    """One pool on the offers of the restricted problem."""
    inputs.clock.count(TUNING.baselines.placed_s * len(inputs.placed))
    candidates = build_candidates(problem, inputs.candidates.estimates)
    pool = converged_pool(candidates)
    if pool is None:
        return _GroupResult(None)
    what = f"{pool.nodes} {'node' if pool.nodes == 1 else 'nodes'}"
    held = next((piece for column in pool.chosen.values() for piece in column.pieces), None)
    if held is not None:
        offer = problem.table.offers[held.offer]
        what += f" of {offer.sku.gpu} x{offer.sku.gpus_per_node} at {offer.provider}"
    cost = pool.cost_cents + sum(column.transfer_cents for column in pool.chosen.values())
    says = f"{what}, always on for the peak of all work"
    return _GroupResult(_GroupPlan(pool.total_cents, cost, pool.chosen, says))


def _only_placed(problem: Problem, placed: tuple[str, ...]) -> Problem:
    """The problem of the workloads that the plan places: all must be placed, and there is no budget."""
    kept = tuple(
        replace(w, unplaced_usd=None) for w in problem.request.workloads if w.name in frozenset(placed)
    )
    return replace(problem, request=replace(problem.request, workloads=kept, budget_usd=None))


def _cheapest_gpu_hour(inputs: _Inputs, problem: Problem, work_s: float) -> Simpler:
    name = NAMES[2]
    chosen: dict[str, Column] = {}
    ledger = Ledger(problem)
    work = inputs.work(work_s)
    for workload in _runs_first(problem):
        if work.over():
            text = f"work ended after {len(chosen)} of {len(inputs.placed)} workloads"
            return Simpler(Baseline(name, None, text, completed=False))
        inputs.clock.count(
            TUNING.baselines.placed_s if workload in inputs.candidates.runs else TUNING.baselines.fleet_s
        )
        made = cheapest_gpu_hour_column(inputs.candidates, workload, ledger, chosen)
        if made is None:
            return Simpler(Baseline(name, None, f"no offer with stock left can carry {workload} this way"))
        ledger.add(made)
        chosen[workload] = made
    total = sum(column.total_cents for column in chosen.values())
    text = "each workload on its lowest price per GPU-hour, as small as it fits"
    cost = sum(column.cost_cents for column in chosen.values())
    return Simpler(_costed(inputs, name, text, total, cost), chosen)


def _runs_first(problem: Problem) -> Iterable[str]:
    return [w.name for w in sorted(problem.request.workloads, key=lambda w: isinstance(w, Serving))]
