"""The answer of a plan in a few sentences: what is bought, when the work is done, what it costs, why here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from api.plan_words import (
    NEAR_TIES_BUY,
    TIGHT_SHARE,
    chance_words,
    confidence_words,
    is_tight,
    listed,
    saved_usd,
    spare_words,
    strategy,
    strongest,
)
from api.schemas.plans.plan_record import NodesHeldForm, PlanHoldingForm
from broker.domain.basics.money import CENT, usd_words
from broker.domain.holding.plan_holding import NodesHeld, PlanHolding, held_of_planned
from broker.domain.market.offer import Tier
from broker.domain.planning.comparison import (
    Objective,
    WorkloadOutcome,
    late_time,
    outcomes_of,
    tightest_objective,
)
from broker.domain.planning.plan import DROPPED, Alternative, Placement, Plan, Why
from broker.domain.planning.workload import Slo, WorkloadKind

MOST_NAMED = 4
"""A plan of more workloads is told in counts."""
MOST_DROPPED = 2
LEAST_HOURS = 0.1
HOUR = timedelta(hours=1)

NO_OBJECTIVES: Mapping[str, Slo] = MappingProxyType({})


Held = NodesHeld | NodesHeldForm
Holding = PlanHolding | PlanHoldingForm
"""What is held of a workload, and of a reserved plan, as the domain or the API tells it."""
Name = Callable[[str], str]
Moment = Callable[[datetime], str]


def answer_of(
    plan: Plan,
    seller: Name,
    moment: Moment,
    objectives: Mapping[str, Slo] = NO_OBJECTIVES,
    holding: Holding | None = None,
) -> tuple[str, ...]:
    """The sentences that a reader wants first. ``seller`` and ``moment`` write providers and times.

    ``objectives`` are those of the services, by name; where they are met with little to spare, that is told.
    ``holding``: what is held of a reserved plan; no end is told of a workload that lacks nodes.
    """
    tight = _tight(plan, objectives)
    outcomes = [one for one in outcomes_of(plan) if one.placed]
    found = []
    if outcomes:
        few = len(outcomes) <= MOST_NAMED
        short = {one.workload: one for one in holding.workloads if one.missing} if holding else {}
        whole = [one for one in outcomes if one.workload not in short]
        clauses = (
            _each(plan, outcomes, seller, moment, tight, short)
            if few
            else _together(plan, whole, moment, tight, short)
        )
        if holding is not None and not (few and len(short) == len(holding.workloads)):
            found.append(f"{holding.text}.")  # else each workload says it
        found.append(f"{'; '.join(clauses)}.")
        found.append(_cost(plan))
        if (price := confidence_words(plan)) is not None:
            found.append(f"{price[:1].upper()}{price[1:]}.")
    found += _waits(plan)
    if plan.unplaced:
        left = ", ".join(f"{row.workload} ({str(row.reason).replace('_', ' ')})" for row in plan.unplaced)
        found.append(f"Left out: {left}.")
    return tuple(found)


def objectives_in(document: Mapping[str, Any]) -> dict[str, Slo]:
    """The latency objectives in a stored workloads document, by service."""
    found = {}
    for row in document.get("workloads", ()):
        slo = row.get("slo") or {}
        limits = [float(slo.get(name) or 0) for name in ("ttft_p95_ms", "itl_p95_ms")]
        if any(limits):
            found[str(row["name"])] = Slo(*limits)
    return found


def _tight(plan: Plan, objectives: Mapping[str, Slo]) -> dict[str, Objective]:
    """Objectives of placed services that are met with little to spare, by service. Where the chance is known,
    that tells more.
    """
    placed = ((name, plan.placements_of(name), slo) for name, slo in objectives.items())
    found = ((name, rows, tightest_objective(rows, slo)) for name, rows, slo in placed)
    return {name: one for name, rows, one in found if one is not None and is_tight(rows, one)}


def _live_at(plan: Plan, service: WorkloadOutcome) -> datetime:
    """When the first replica of a service answers; plans of earlier versions tell the cold start alone."""
    return min(
        placed.live_from
        or min(segment.start for segment in placed.segments)
        + timedelta(seconds=placed.estimate.value.get("cold_start_s", 0.0))
        for placed in plan.placements_of(service.workload)
    )


def _end(placements: Sequence[Placement], moment: Moment) -> str:
    """When a run or batch is expected to be done. The upper end of its estimate is added where it is later by
    an hour or more, or after its window.
    """
    last = max(placements, key=_done_at)
    held_until, expected = last.segments[-1].end, _done_at(last)
    if last.kind is WorkloadKind.BATCH:  # no part waits for another
        latest = max(_done_at(placed) + late_time(placed) for placed in placements)
    else:
        latest = expected + sum(map(late_time, placements), timedelta())
    past_window = last.tier is Tier.WINDOW and latest > held_until
    if latest - expected < HOUR and not past_window:
        return moment(expected)
    window = ", after its window" if past_window else ""
    return f"{moment(expected)} ({moment(latest)}{window}, at the upper end of its estimate)"


def _done_at(placed: Placement) -> datetime:
    return placed.segments[-1].end if placed.window_use is None else placed.window_use.wanted.end


def _each(
    plan: Plan,
    outcomes: Sequence[WorkloadOutcome],
    seller: Name,
    moment: Moment,
    tight: Mapping[str, Objective],
    short: Mapping[str, Held],
) -> Iterator[str]:
    for one in outcomes:
        if one.workload in short:
            lost = "serves less than planned" if one.kind is WorkloadKind.SERVING else "has no expected end"
            yield f"{one.workload} {lost}: {_of_nodes(short[one.workload])}"
            continue
        assert one.starts_at is not None
        places = listed(dict.fromkeys(f"{seller(h.provider)} in {h.place}" for h in one.holdings))
        gpus = listed(dict.fromkeys(h.gpu for h in one.holdings))
        if one.kind is WorkloadKind.SERVING:
            waits = next((wait.after for wait in plan.waits if wait.workload == one.workload), None)
            condition = "" if waits is None else f", if {waits} is done in time,"
            when = f"is live from {moment(_live_at(plan, one))}{condition} on up to"
        else:
            when = f"is expected to be done by {_end(plan.placements_of(one.workload), moment)} on"
        met = f", its objective met with {spare_words(tight[one.workload])}" if one.workload in tight else ""
        chance = chance_words(plan.placements_of(one.workload))
        sure = "" if chance is None else f", {chance}"
        yield f"{one.workload} {when} {one.gpus} {gpus} at {places}{met}{sure}"


def _together(
    plan: Plan,
    outcomes: Sequence[WorkloadOutcome],
    moment: Moment,
    tight: Mapping[str, Objective],
    short: Mapping[str, Held],
) -> Iterator[str]:
    if short:
        yield f"{_counted(len(short), 'workload')} lack nodes and have no expected end"
    for kind, noun in ((WorkloadKind.TRAINING, "run"), (WorkloadKind.BATCH, "batch")):
        ends = [one.ends_at for one in outcomes if one.kind is kind and one.ends_at is not None]
        if ends:
            are = "is" if len(ends) == 1 else "are"
            yield f"{_counted(len(ends), noun)} {are} expected to be done by {moment(max(ends))}"
    starts = [_live_at(plan, one) for one in outcomes if one.kind is WorkloadKind.SERVING]
    if starts:
        live = f"{_counted(len(starts), 'service')} {'is' if len(starts) == 1 else 'are'} live"
        yield f"{live} from {moment(max(starts))} at the latest"
    if tight:
        meets = "meets its objective" if len(tight) == 1 else "meet their objectives"
        yield f"{len(tight)} of them {meets} with less than {100 * TIGHT_SHARE:.0f} % to spare"
    certain = (one for one in plan.placements if one.chance is not None and one.workload not in short)
    if (least := min(certain, key=lambda one: one.chance or 0.0, default=None)) is not None:
        yield f"the least certain is {least.workload}, {chance_words((least,))}"
    sellers = {placed.provider for placed in plan.placements}
    yield f"all of it on capacity of {_counted(len(sellers), 'seller')}"


def _of_nodes(one: Held) -> str:
    return held_of_planned(one.held, one.planned, one.waiting, one.missing)


def _counted(count: int, noun: str) -> str:
    many = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else many}"


def completed_baselines(plan: Plan) -> int:
    """Number of simpler strategies that were planned to the end and have a cost."""
    return sum(row.completed and row.cost_usd is not None for row in plan.baselines)


def _cost(plan: Plan) -> str:
    cost = f"It costs {usd_words(plan.cost_usd)}"
    against, saved = strongest(plan), saved_usd(plan)
    if against is None or saved is None or not against.cost_usd:
        return f"{cost}."
    completed = completed_baselines(plan)
    of = f"the strongest of {completed} simpler strategies" if completed > 1 else "the one simpler strategy"
    named = f"“{strategy(against.name)}”, {of} that could be completed"
    sums = {
        "delay": plan.delay_usd,
        "recourse": plan.recourse_usd,
        "orders that may fail": plan.relaunch_usd,
    }
    counted = " and ".join(name for name, usd in sums.items() if usd)
    counted = f", {counted} counted" if counted else ""
    if saved > 0:
        part = f"{100 * saved / against.cost_usd:.0f} %"
        return f"{cost}, {usd_words(saved)} ({part}) less than {named}{counted}."
    if saved < 0:
        more = f"{usd_words(-saved)} more than {named}{counted}"
        return f"{cost}, {more}: near ties pay that for {NEAR_TIES_BUY}."
    return f"{cost}, as much as {named}{counted}."


def _waits(plan: Plan) -> Iterator[str]:
    for wait in plan.waits:
        later = (wait.start - wait.earliest_start) / HOUR
        if later >= 1:
            worth = f", a delay that is counted at {usd_words(wait.delay_usd)}" if wait.delay_usd else ""
            yield f"{wait.workload} starts {later:.0f} h later than the earliest end of {wait.after}{worth}."


def why_line(placements: Sequence[Placement], offer_words: Name) -> str:
    """Why a workload is placed there, in one line: among how many, the next best, and what was dropped."""
    why = max(placements, key=lambda placement: placement.cost_usd).why
    parts = []
    if why.fitting is not None:
        parts.append(f"cheapest found among {_counted(why.fitting, 'offer')} that fit")
    nearest = _next_best(placements)
    if nearest is not None:
        parts.append(_nearest_words(nearest, offer_words))
    dropped = _dropped(why)
    if dropped:
        parts.append(f"dropped: {dropped}")
    return "; ".join(parts)


def _next_best(placements: Sequence[Placement]) -> Alternative | None:
    """The cheapest of those that cost no less; one that costs less is excluded by a rule, and comes last."""
    ways = [way for placement in placements for way in placement.why.next_best]
    return min(ways, key=lambda way: (way.more_usd < 0, way.more_usd), default=None)


def _nearest_words(way: Alternative, offer_words: Name) -> str:
    name, more = offer_words(way.offer_id), way.more_usd
    if not costs_the_same(way):
        if more < 0:
            return f"next: {name} {way.because}"
        return f"next: {name}, +{usd_words(more)}"
    later = way.later_hours or 0.0
    if later >= LEAST_HOURS:
        return f"next: {name} costs the same and ends {later:.1f} h later"
    return f"a near tie: {name} costs the same, and is as good"


def costs_the_same(way: Alternative) -> bool:
    """Whether its cost differs by less than a cent from the chosen way's."""
    return abs(way.more_usd) < CENT


def _dropped(why: Why) -> str:
    told = sorted(((n, gate) for gate, n in why.filtered if n and gate in DROPPED), key=lambda row: -row[0])
    return ", ".join(f"{count:,} {DROPPED[gate]}" for count, gate in told[:MOST_DROPPED])
