"""From a request and a market to a plan: estimates, gates, search, explanation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from types import MappingProxyType

from broker.catalogue import load_geographies
from broker.domain.basics.money import ZERO, to_cents
from broker.domain.market.conversions import conversions
from broker.domain.market.offer import Offer
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.assumed_stock import assumptions_of
from broker.domain.planning.effective_rules import assumed_nodes
from broker.domain.planning.notes import document_notes
from broker.domain.planning.plan import (
    Baseline,
    Placement,
    Plan,
    PlanStatus,
    recourses_usd,
    relaunches_usd,
    spend_lines,
)
from broker.domain.planning.planning_time import ALWAYS_PLANNED_WORKLOADS
from broker.domain.planning.workload import PlanRequest, Serving
from broker.ports.planning import LimitClock, PlanOptions, Progress, ProgressSink
from optimizer.memo_cache import MemoCache
from optimizer.performance.estimator import Estimator
from optimizer.placement.baselines.baselines import Simpler, build_baselines
from optimizer.placement.columns.candidates import Candidates, build_candidates
from optimizer.placement.columns.prices import StockPrices
from optimizer.placement.columns.search import Search, controllable_gap_of, gap_of
from optimizer.placement.explain.explain import Explainer
from optimizer.placement.explain.extract import build_placements
from optimizer.placement.explain.near_ties import NearTie, decided
from optimizer.placement.explain.unplaced import explain_unplaced
from optimizer.placement.explain.wider_rules import wider_rule_notes
from optimizer.placement.fleets.columns import time_of
from optimizer.placement.problem.columns import in_cents, in_usd
from optimizer.placement.problem.delays import relief_cents, waits_of
from optimizer.placement.problem.estimates import build_estimates
from optimizer.placement.problem.problem import Problem, build_problem
from optimizer.placement.runtime.heartbeat import with_heartbeat
from optimizer.placement.runtime.stopwatch import CpuClock, Pace, Stopwatch, clock_of
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.solve import Solution, no_dearer_than, solve
from optimizer.placement.workers.worker_pool import WorkerPool, usable_cores, worker_pool

LATE_SHARE, LATE_SECONDS = 0.1, 1.0
"""A plan may take longer than its time limit by at most this share plus this many seconds."""
LIMIT_NOTE = "the time limit"
"""What the note begins with that tells of the search's end."""
NO_TIES: Mapping[str, NearTie] = MappingProxyType({})


def make_plan(
    request: PlanRequest,
    offers: Sequence[Offer],
    as_of: datetime,
    options: PlanOptions,
    estimator: Estimator,
    terms: MovingTerms,
    progress: ProgressSink | None = None,
    memo: MemoCache | None = None,
) -> Plan:
    """The plan of a request over a market; raises InputError for a request without a meaning."""
    whole = Stopwatch(options.time_limit_s, clock_of(limit_clock(request, options)))

    def work(told: ProgressSink | None) -> Plan:
        problem = build_problem(request, offers, as_of, terms, memo)
        with worker_pool(problem, processes_for(request, options)) as workers:
            return _make(problem, options, estimator, whole, told, workers)

    return with_heartbeat(work, whole, progress)


def _make(
    problem: Problem,
    options: PlanOptions,
    estimator: Estimator,
    whole: Stopwatch,
    progress: ProgressSink | None,
    workers: WorkerPool,
) -> Plan:
    watch = search_watch(problem.request, options, whole)
    asked = build_candidates(problem, build_estimates(problem, estimator), workers=workers)
    if asked.is_small:
        asked.bound_services(watch.until(TUNING.search.services_share), waiting=True)
    candidates = asked.without(asked.impossible_followers())
    if progress is not None:
        progress(Progress(whole.seconds, None, None, None, "loaded"))
    pace = pace_of(problem.request, options, watch)
    search = Search(candidates, watch, options.gap, options.seed, progress, pace)
    solution = solve(search)
    simpler = simpler_plans(candidates, solution, options, whole)
    others = [one.chosen for one in simpler if one.chosen is not None]
    solution = no_dearer_than(search, solution, others)
    solution, ties = decided(candidates, solution, options.gap, whole.until(TUNING.pipeline.ties_share))
    baselines = tuple(one.baseline for one in simpler)
    plan = build_plan(candidates, solution, options, whole, ties, baselines, asked)
    is_first = search.proof is None and not search.near and whole.passed()
    plan = finished(proven_on(plan, search, options, whole), problem, options, whole)
    return told_of_limit(plan, search, options, whole, is_first=is_first)


def simpler_plans(
    candidates: Candidates, solution: Solution, options: PlanOptions, whole: Stopwatch
) -> tuple[Simpler, ...]:
    """The plans of the baselines, if they are asked for and as far as they are ready before the plan is
    explained.
    """
    if not options.baselines:
        return ()
    end = whole.ending(whole.limit_s - telling_seconds(candidates.problem.request, options))

    def ended() -> bool:
        return whole.limit_s <= 0

    return build_baselines(candidates, solution.choice.columns, baseline_work_s(options), ended, end.passed)


def proven_on(plan: Plan, search: Search, options: PlanOptions, whole: Stopwatch) -> Plan:
    """The plan with the bound that was proven while it was explained, and in the remaining time."""
    if search.proof is None:
        return plan
    if plan.bound_usd is None:
        search.proof.remember()
        return plan
    search.watch.limit_s = whole.limit_s - checking_seconds(search.candidates.problem.request, options)
    search.proof.prove_on()
    search.proof.remember()
    return replace(
        bounded(plan, search.candidates.problem, search.bound_cents, options.gap),
        scarcity_usd_per_node_hour=by_offer(search.candidates.problem, search.prices),
    )


def processes_for(request: PlanRequest, options: PlanOptions) -> int:
    """How many worker processes help a search: none for a small one or one whose limit counts work."""
    services = sum(isinstance(workload, Serving) for workload in request.workloads)
    many = services >= TUNING.pipeline.least_services and options.time_limit_s >= TUNING.pipeline.least_s
    if not many or options.limit_clock is LimitClock.WORK:
        return 0
    return (usable_cores() if options.workers is None else options.workers) - 1


def limit_clock(request: PlanRequest, options: PlanOptions) -> LimitClock:
    """What the limit counts: wall-clock time if worker processes help, whose CPU time is not counted here."""
    return LimitClock.WALL if processes_for(request, options) else options.limit_clock


def baseline_work_s(options: PlanOptions) -> float:
    """The work that baselines may take, in seconds."""
    return (
        min(TUNING.pipeline.baseline_s, TUNING.pipeline.baseline_share * options.time_limit_s)
        if options.baselines
        else 0.0
    )


def search_watch(request: PlanRequest, options: PlanOptions, whole: Stopwatch) -> Stopwatch:
    """The watch of the search: what the baselines and the explanation leave of the whole time."""
    reserved_s = TUNING.pipeline.s_of_baseline_work * baseline_work_s(options) + telling_seconds(
        request, options
    )
    return whole.ending(whole.limit_s - reserved_s)


def fleet_trials(options: PlanOptions) -> int:
    """How many fleet limits are tried to find out what they cost, in proportion to the time limit."""
    return int(options.time_limit_s / TUNING.pipeline.s_a_trial)


def telling_seconds(request: PlanRequest, options: PlanOptions) -> float:
    """Time reserved for explaining and checking the plan."""
    needed = TUNING.pipeline.telling_share * options.time_limit_s + TUNING.pipeline.telling_s_each * len(
        request.workloads
    )
    needed += TUNING.pipeline.trial_s * fleet_trials(options)
    return min(needed, TUNING.pipeline.most_telling_share * options.time_limit_s)


def pace_of(request: PlanRequest, options: PlanOptions, watch: Stopwatch) -> Pace | None:
    """The deadline of a large request's first plan; None for small requests and if the limit counts work."""
    workloads = len(request.workloads)
    if workloads <= ALWAYS_PLANNED_WORKLOADS or options.limit_clock is LimitClock.WORK:
        return None
    told_s = TUNING.pipeline.least_telling_s_each * workloads
    latest_s = (1 + LATE_SHARE) * options.time_limit_s + LATE_SECONDS - told_s
    return Pace(watch, options.time_limit_s, latest_s, told_s, workloads)


def checking_seconds(request: PlanRequest, options: PlanOptions) -> float:
    """Time reserved for checking the plan."""
    return min(
        TUNING.pipeline.checking_s_each * len(request.workloads),
        TUNING.pipeline.most_checking_share * options.time_limit_s,
    )


def build_plan(
    candidates: Candidates,
    solution: Solution,
    options: PlanOptions,
    whole: Stopwatch,
    ties: Mapping[str, NearTie] = NO_TIES,
    baselines: tuple[Baseline, ...] = (),
    asked: Candidates | None = None,
) -> Plan:
    """The plan of a solution, with its explanation.

    ``asked``: the candidates of the whole request, if the search went without its impossible services.
    """
    asked = asked or candidates
    request = asked.problem.request
    looked = whole.ending(whole.limit_s - TUNING.pipeline.least_telling_s_each * len(request.workloads))
    explainer = Explainer(
        candidates,
        solution,
        whole.until(TUNING.pipeline.explain_share),
        ties,
        fleet_trials(options),
        looked.passed,
    )
    placements = build_placements(candidates, solution.choice.columns.values(), explainer.why)
    wider_rules = (
        wider_rule_notes(candidates, solution, whole.until(TUNING.pipeline.wider_rules_share))
        if options.baselines
        else ()
    )
    cost = to_cents(sum((placement.cost_usd for placement in placements), ZERO))
    chosen = solution.choice.columns
    beside_bill = sum(c.expected_cents for c in chosen.values())
    penalty = in_usd(solution.billed_cents - beside_bill) - cost
    waits = waits_of(candidates.problem, chosen, placements)
    unplaced, untried = explain_unplaced(
        asked, solution, TUNING.pipeline.fixes_share * options.time_limit_s, looked.passed
    )
    not_done = untold_notes(explainer.untold, untried, options, limits_untried=explainer.limits_untried)
    plan = Plan(
        plan_id=_plan_id(asked, options),
        status=PlanStatus.INFEASIBLE,
        team=request.team,
        created_at=candidates.problem.as_of,
        as_of=candidates.problem.as_of,
        seed=options.seed,
        cost_usd=cost,
        bound_usd=None,
        gap=None,
        penalty_usd=penalty,
        solve_seconds=0.0,
        candidates=asked.counts(),
        placements=placements,
        unplaced=unplaced,
        baselines=baselines,
        spend=spend_lines(placements),
        scarcity=explainer.scarcity(),
        scarcity_usd_per_node_hour=by_offer(candidates.problem, solution.prices),
        notes=(
            *document_notes(request, candidates.problem.table.each_once, load_geographies()),
            *conversions(_bought(placements, candidates.problem), candidates.problem.as_of.date()),
            *(idle_note(name) for name, column in sorted(chosen.items()) if not column.pieces),
            *cold_notes(candidates, placements),
            *wider_rules,
            *not_done,
        ),
        assumptions=assumptions_of(placements, candidates.problem.table.each_once, assumed_nodes(request)),
        delay_usd=sum((wait.delay_usd for wait in waits), ZERO),
        waits=waits,
        recourse_usd=recourses_usd(placements),
        relaunch_usd=relaunches_usd(placements),
    )
    if solution.bound_cents is None or len(candidates.fleets) < len(asked.fleets):
        return plan
    return bounded(plan, candidates.problem, solution.bound_cents, options.gap)


def _bought(placements: Sequence[Placement], problem: Problem) -> list[Offer]:
    """The offers of ``placements``."""
    names = {placement.offer_id for placement in placements}
    return [offer for offer in problem.table.offers if offer.offer_id in names]


def idle_note(service: str) -> str:
    """The note on a service for which nothing is held."""
    return f"nothing is held for {service}: no hour from its start to its end has requests"


def cold_notes(candidates: Candidates, placements: Sequence[Placement]) -> tuple[str, ...]:
    """The note on services whose traffic begins before their first replicas answer. The model of one that
    follows a run does not exist earlier.
    """
    problem, late = candidates.problem, dict[str, tuple[datetime, float]]()
    for name, case in candidates.fleets.items():
        time = time_of(problem, case, None)
        begin = problem.instant(time.start_s)
        early = [p for p in placements if p.workload == name and p.segments[0].start <= begin]
        live = max((p.live_from for p in early if p.live_from is not None), default=begin)
        if live > begin and case.service.starts_after is None and case.demand[time.first_hour] > 0:
            late[name] = live, (live - begin) / timedelta(minutes=1)
    if not late:
        return ()
    if len(late) == 1:
        ((name, (live, minutes)),) = late.items()
        return (
            f"requests to {name} before {live:%Y-%m-%d %H:%M:%S} UTC are not served: for {minutes:.0f} min "
            "its first nodes start and load the weights",
        )
    longest = max(minutes for _, minutes in late.values())
    return (
        f"{len(late)} services are live once their first nodes have started and loaded the weights, up to "
        f"{longest:.0f} min after their traffic begins (live_from): earlier requests are not served",
    )


def told_of_limit(
    plan: Plan, search: Search, options: PlanOptions, whole: Stopwatch, *, is_first: bool = False
) -> Plan:
    """The plan with a note if its time limit ended the search; ``is_first``: with the first plan."""
    if is_first or (plan.status is PlanStatus.FEASIBLE and search.watch.over()):
        return replace(plan, notes=(*plan.notes, limit_note(options, whole, is_first=is_first)))
    return plan


def limit_note(options: PlanOptions, whole: Stopwatch, *, is_first: bool = False) -> str:
    """The note of a plan whose time limit ended the search, and how to go on."""
    limit, clock = f"{LIMIT_NOTE} of {options.time_limit_s:g} s", whole.clock
    if isinstance(clock, CpuClock) and clock.is_starved:
        limit += f", {clock.passed_s:.0f} s on a busy machine,"
    ended = (
        "was over with the first plan: cheaper ones were not searched for" if is_first else "ended the search"
    )
    way = "a longer limit has time for that" if is_first else "a longer limit may prove or save more"
    if options.label:
        way = f"`broker plans {options.label} --continue` goes on from here"
    return f"{limit} {ended}; {way}"


def untold_notes(
    untold: int, untried: int, options: PlanOptions, *, limits_untried: bool = False
) -> tuple[str, ...]:
    """Notes on the explanations for which the time limit was too short."""
    more = f"; a time limit above {options.time_limit_s:g} s has time for that"
    notes = []
    if untold:
        limits = ", nor what limits of fleets cost" if limits_untried else ""
        notes.append(f"next best ways were not looked for of {untold} workloads{limits}{more}")
    if untried:
        notes.append(f"changes that would let them in were not tried for {untried} left-out workloads{more}")
    return tuple(notes)


def bounded(plan: Plan, problem: Problem, bound_cents: int, asked_gap: float) -> Plan:
    """The plan with its bound, corrected from the search's delay prices to the plan's own."""
    objective = in_cents(plan.objective_usd)
    bound = min(max(0, bound_cents - relief_cents(problem, plan.waits)), objective)
    plan = replace(plan, bound_usd=in_usd(bound), gap=gap_of(objective, bound))
    near = controllable_gap_of(objective, bound, in_cents(left_out_usd(plan, problem.request))) <= asked_gap
    return replace(plan, status=PlanStatus.OPTIMAL if near else PlanStatus.FEASIBLE)


def left_out_usd(plan: Plan, request: PlanRequest) -> Decimal:
    """The plan's penalties for left-out workloads."""
    missed = request.missed({row.workload for row in plan.unplaced})
    return sum((workload.unplaced_usd or ZERO for workload in missed), ZERO)


def finished(plan: Plan, problem: Problem, options: PlanOptions, whole: Stopwatch) -> Plan:
    """The plan with its total time, and with a note on the open gap if penalties for left-out workloads hide
    it.
    """
    notes = plan.notes
    if plan.status is PlanStatus.FEASIBLE and plan.gap is not None and plan.gap <= options.gap:
        notes = (*notes, open_note(plan, problem.request))
    return replace(plan, notes=notes, solve_seconds=round(whole.spent_s, 3))


def open_note(plan: Plan, request: PlanRequest) -> str:
    """The note on how much of the plan's spending may still be saved."""
    spent = plan.objective_usd - left_out_usd(plan, request)
    unproven = plan.objective_usd - (plan.bound_usd or ZERO)
    says = f"${unproven:,.2f} of ${spent:,.2f} is open"
    return f"{says}: the gap also counts what leaving workloads out costs, which no plan may be able to save"


def by_offer(problem: Problem, prices: StockPrices) -> dict[str, float]:
    """Dual prices in USD per node-hour by offer_id; prices at single instants are left out."""
    found: dict[str, float] = {}
    for offer, usd in sorted(prices.throughout().items()):
        offer_id = problem.table.offers[offer].offer_id
        found[offer_id] = max(usd, found.get(offer_id, 0.0))
    return found


def _plan_id(candidates: Candidates, options: PlanOptions) -> str:
    problem = candidates.problem
    inputs = repr((problem.request, problem.as_of, options.seed, options.gap))
    digest = hashlib.sha256(inputs.encode())
    for offer in problem.table.offers:
        said = (offer.offer_id, offer.price_usd_per_node_hour, offer.upfront_usd, offer.stock, offer.window)
        digest.update(repr(said if offer.learned is None else (*said, offer.learned)).encode())
    return f"plan-{digest.hexdigest()[:12]}"
