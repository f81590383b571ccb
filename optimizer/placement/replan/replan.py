"""Re-planning from an existing plan: price it again, prove a bound, make changes that pay.

The first answer is the old plan at today's prices, with the bound at the old dual prices. Then each workload
is tried elsewhere once while all others stay, regardless of the limit. The limit counts what comes
afterwards: the rounds of the search; of a search that is continued it counts all. Costs of leaving what is
held are part of the search's objective and on no bill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.money import ZERO
from broker.domain.market.offer import Offer
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import PlanOptions, Progress, ProgressSink
from optimizer.memo_cache import MemoCache
from optimizer.performance.estimator import Estimator
from optimizer.placement.columns.bound import separate_bound_cents
from optimizer.placement.columns.candidates import build_candidates
from optimizer.placement.columns.carried import carried_bound_usd, recosted_usd
from optimizer.placement.columns.known_bounds import KnownBounds, carry, carry_priced
from optimizer.placement.columns.prices import Row, StockPrices
from optimizer.placement.columns.run_pool import RunPool
from optimizer.placement.columns.search import Search
from optimizer.placement.pipeline import (
    LIMIT_NOTE,
    bounded,
    build_plan,
    finished,
    processes_for,
    proven_on,
    search_watch,
    simpler_plans,
    told_of_limit,
)
from optimizer.placement.problem.columns import Column, in_cents
from optimizer.placement.problem.estimates import build_estimates
from optimizer.placement.problem.problem import Problem, build_problem
from optimizer.placement.replan.first_repair import FirstRepair
from optimizer.placement.replan.warm import WarmStart, frozen_of, held_of, matched
from optimizer.placement.runtime.heartbeat import with_heartbeat
from optimizer.placement.runtime.stopwatch import Stopwatch
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.earlier_ends import EarlierEnds, equal_share
from optimizer.placement.search.rounds import Rounds
from optimizer.placement.search.runner_up import settled
from optimizer.placement.search.solve import (
    Solution,
    bound_ends,
    end_earlier,
    no_dearer_than,
    settling_seconds,
    solution_of,
)
from optimizer.placement.workers.worker_pool import worker_pool


@dataclass(frozen=True, slots=True)
class Replanned:
    """The plan; ``kept`` workloads are placed as before, ``moved`` ones were placed and are now placed
    differently.

    ``unfinished``: what a guard cut off, in words; empty if nothing.
    """

    plan: Plan
    kept: frozenset[str]
    moved: frozenset[str]
    unfinished: str = ""


def replan(
    request: PlanRequest,
    offers: Sequence[Offer],
    as_of: datetime,
    options: PlanOptions,
    estimator: Estimator,
    warm: WarmStart,
    terms: MovingTerms,
    whole: Stopwatch,
    progress: ProgressSink | None = None,
    memo: MemoCache | None = None,
) -> Replanned:
    """A plan from ``warm`` in the time of ``whole``; raises InputError for a request without a meaning."""

    def work(told: ProgressSink | None) -> Replanned:
        bound_usd = first_answer(request, offers, as_of, warm, whole, told)
        watch = search_watch(request, options, whole)
        problem = build_problem(request, offers, as_of, terms, memo)
        estimates = build_estimates(problem, estimator)
        problem = replace(problem, held=held_of(problem, estimates, warm))
        with worker_pool(problem, processes_for(request, options)) as workers:
            asked = build_candidates(problem, estimates, workers=workers)
            candidates = asked.without(asked.impossible_followers())
            candidates.price_delays(_delay_prices(warm.plan))
            start = matched(candidates, warm)
            search = Search(candidates, watch, options.gap, options.seed, told)
            search.prove(in_cents(bound_usd), "carried")
            frozen = frozen_of(problem, warm, start)
            first = _repaired(search, start, frozen, warm, whole)
            found = resolve(search, start, warm, first.pools, frozen)
            unfinished = _unfinished(search, first)
            simpler = simpler_plans(candidates, found, options, whole)
            others = [one.chosen for one in simpler if one.chosen is not None]
            found = no_dearer_than(search, found, others)
            baselines = tuple(one.baseline for one in simpler)
            plan = build_plan(candidates, found, options, whole, baselines=baselines, asked=asked)
            plan = proven_on(plan, search, options, whole)
            plan = finished(plan, problem, options, whole)
            if warm.is_continued:
                plan = told_of_limit(_no_dearer(plan, search, warm, options), search, options, whole)
        return replace(_replanned(plan, found, start), unfinished=unfinished)

    return with_heartbeat(work, whole, progress)


def _repaired(
    search: Search,
    start: Mapping[str, Column],
    frozen: frozenset[str],
    warm: WarmStart,
    whole: Stopwatch,
) -> FirstRepair:
    """The first repair, which is done: in a share of the limit if a search is continued, else beside it."""
    if warm.is_continued:
        first = FirstRepair(search, start, frozen, search.watch.until(TUNING.replan.repair_share))
        first.run()
        return first
    began_s = whole.seconds
    first = FirstRepair(search, start, frozen, search.watch.guarded)
    first.run()
    spent_s = whole.seconds - began_s
    search.watch.limit_s += spent_s
    whole.limit_s += spent_s
    return first


def _no_dearer(plan: Plan, search: Search, warm: WarmStart, options: PlanOptions) -> Plan:
    """The plan; on the same market the one that it continues, with the search's bound, if that is cheaper."""
    old = warm.plan
    if warm.past is None or old.bound_usd is None:
        return plan
    if plan.bound_usd is not None and plan.objective_usd <= old.objective_usd:
        return plan
    notes = tuple(note for note in old.notes if not note.startswith(LIMIT_NOTE))
    kept = replace(
        old,
        plan_id=plan.plan_id,
        notes=notes,
        baselines=plan.baselines,
        solve_seconds=plan.solve_seconds,
        scarcity_usd_per_node_hour=plan.scarcity_usd_per_node_hour,
    )
    return bounded(kept, search.candidates.problem, search.bound_cents, options.gap)


def _delay_prices(plan: Plan) -> dict[str, Decimal]:
    """USD per hour of each service's delay, as the plan counts it."""
    return {wait.workload: wait.usd_per_hour for wait in plan.waits}


def first_answer(
    request: PlanRequest,
    offers: Sequence[Offer],
    as_of: datetime,
    warm: WarmStart,
    watch: Stopwatch,
    progress: ProgressSink | None,
) -> Decimal:
    """Reports the old plan at today's prices and the bound that still holds; returns that bound.

    Whether the plan is still feasible apart from prices is decided later, by ``matched``.
    """
    cost = recosted_usd(warm.plan, offers)
    bound = ZERO
    if warm.past is not None:
        bound = carried_bound_usd(warm.plan, warm.past, request, offers, as_of)
    if progress is not None and cost is not None:
        gap = float((cost - bound) / cost) if cost else 0.0
        progress(Progress(watch.seconds, float(cost), float(bound), gap, "carried"))
    return bound


def _unfinished(search: Search, first: FirstRepair) -> str:
    """What the guard cut off before the search ended by itself; empty if nothing."""
    if first.untried:
        count, of = len(first.untried), len(first.dependency_groups)
        return f"{count} of {of} workloads and what waits for them were not tried elsewhere"
    if search.watch.was_cut_off and not search.near:
        return "every workload was tried elsewhere once, but the search was cut off"
    return ""


def resolve(
    search: Search,
    start: Mapping[str, Column],
    warm: WarmStart,
    pools: Mapping[str, RunPool],
    frozen: frozenset[str],
) -> Solution:
    """The search from the columns after the first repair."""
    candidates = search.candidates
    settling = settling_seconds(search)
    search.watch.limit_s -= settling
    free = {name: pool for name, pool in pools.items() if name not in frozen}
    before = _first_bounds(search, start, pools)
    columns = [column for pool in free.values() for column in pool.columns]
    prices = _prices_of(candidates.problem, warm)
    rounds = Rounds(search, pools, [*columns, *start.values()], prices, frozen)
    search.proof = rounds.proof
    if before is not None:
        carry_priced(candidates, rounds.dual, before, prices)
    if not search.done:
        # The plan is good already, so most of the work is proving.
        rounds.proof.prove(prices, search.watch.until(TUNING.replan.prove_share))
    if not search.done:
        rounds.run()
    rounds.proof.prove_in_background()
    assert search.best is not None
    last = settled(
        candidates, free, rounds.pool.all(), search.best.columns, search.watch.for_seconds(settling), frozen
    )
    search.offer_columns(last, "settled")
    sooner = EarlierEnds(candidates, free, rounds.pool.all(), equal_share(search.asked_gap), frozen)
    best = end_earlier(search, sooner, search.watch.for_seconds(settling))
    search.watch.limit_s += settling
    return solution_of(search, best, rounds.pool.all(), pools)


def _first_bounds(
    search: Search, start: Mapping[str, Column], pools: Mapping[str, RunPool]
) -> KnownBounds | None:
    """Proves a bound with earlier results; with few workloads, also with new evaluations."""
    candidates = search.candidates
    known = carry(candidates)
    if len(candidates.problem.request.workloads) <= TUNING.search.few_workloads:
        standing_usd = {name: column.total_cents / 100 for name, column in start.items()}
        candidates.bound_services(search.watch.until(TUNING.search.services_share), known_usd=standing_usd)
    search.prove(separate_bound_cents(candidates, pools), "re-costed")
    if len(candidates.problem.request.workloads) <= TUNING.search.few_workloads:
        bound_ends(search, pools)
    return known


def _prices_of(problem: Problem, warm: WarmStart) -> StockPrices:
    last = warm.plan.scarcity_usd_per_node_hour
    known = ((problem.row_of(offer_id), usd) for offer_id, usd in last.items())
    return StockPrices({Row(offer): usd for offer, usd in known if offer is not None and usd > 0})


def _replanned(plan: Plan, found: Solution, start: Mapping[str, Column]) -> Replanned:
    chosen = found.choice.columns
    kept = frozenset(name for name, column in start.items() if same_place(chosen.get(name), column))
    return Replanned(plan, kept, frozenset(start) - kept)


def same_place(first: Column | None, second: Column) -> bool:
    """Whether two columns hold the same over time."""
    if first is None:
        return False
    return {(p.offer, p.choice, p.spans) for p in first.pieces} == {
        (p.offer, p.choice, p.spans) for p in second.pieces
    }
