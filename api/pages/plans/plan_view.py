"""Pure functions from a plan to what its pages show."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from api.pages.parts.charts import Charts, both_widths
from api.pages.parts.timelines import Bar, TimelineRow, timeline
from api.pages.parts.words import moment, seller, usd
from api.plan_words import (
    state_words,
    strategy,
    strongest,
    without_cost,
)
from api.promise_words import order_promise_words, promises_words
from api.release_words import released_words
from api.schemas.base.times import find_time
from api.schemas.plans.plan_record import workloads_of
from broker.domain.basics.money import ZERO
from broker.domain.basics.window import Window
from broker.domain.holding.capacity_promise import promise_of
from broker.domain.holding.plan_holding import PlanHolding
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.market.offer import Tier
from broker.domain.planning.plan import Baseline, Placement, Plan
from broker.domain.planning.workload import WorkloadKind
from broker.domain.reconciling.reconciling import WITH_THE_REST
from broker.domain.spend.approvals import ApprovalState
from broker.domain.spend.charging import credited_usd, owed_usd
from broker.domain.spend.order_quote import PlanQuote
from broker.domain.workloads.repeats import is_repeated, series_of
from broker.ports.planning import BusinessStatus, PlanRecord

SERIES_OF_KIND = {WorkloadKind.TRAINING: 0, WorkloadKind.SERVING: 1, WorkloadKind.BATCH: 2}
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One plan in a list: its workloads, the one word for where it is, and what is held of it."""

    record: PlanRecord
    workloads: str
    place: str
    standing: BusinessStatus | None
    holding: str


@dataclass(frozen=True, slots=True)
class BaselineRow:
    """A strategy compared with the plan. ``share``: of the dearest cost, in [0, 1]; ``is_this``: the plan
    itself; ``missing``: the text in place of an unknown cost.
    """

    name: str
    cost_usd: Decimal | None
    saving_usd: Decimal | None
    share: float
    why: str
    is_this: bool = False
    missing: str = ""


class Step(StrEnum):
    """The next step of a plan."""

    MAKING = "making"
    NOTHING = "nothing"
    APPROVAL = "approval"
    REJECTED = "rejected"
    RESERVING = "reserving"
    HELD = "held"
    RELEASING = "releasing"
    OVER = "over"


STEP_OF_APPROVAL: Mapping[ApprovalState | None, Step] = {
    ApprovalState.WAITING: Step.APPROVAL,
    ApprovalState.REJECTED: Step.REJECTED,
}


def _names(record: PlanRecord) -> tuple[str, ...]:
    """The names of a plan's workloads, one for all times of one that is repeated."""
    return tuple(dict.fromkeys(map(series_of, workloads_of(record))))


def title_of(record: PlanRecord) -> str:
    """The title of a plan: its workloads."""
    names = _names(record)
    return ", ".join(names) if names else "Plan"


def budget_of(record: PlanRecord) -> tuple[Decimal | None, float | None]:
    """The budget in the document, and the chance with which it holds."""
    budget = json.loads(record.document).get("budget")
    return (Decimal(str(budget["usd"])), budget.get("confidence")) if budget else (None, None)


def place_of(record: PlanRecord, standing: BusinessStatus | None, now: datetime) -> str:
    """The one word for where a plan is."""
    placed = () if record.plan is None else record.plan.placements
    has_begun = any(segment.start <= now for one in placed for segment in one.segments)
    return state_words(str(record.state), None if standing is None else str(standing), has_begun=has_begun)


def plan_row(
    record: PlanRecord,
    now: datetime,
    standing: BusinessStatus | None = None,
    holding: PlanHolding | None = None,
) -> PlanRow:
    """A record as a row of a list."""
    held = "" if holding is None else holding.text
    return PlanRow(
        record,
        ", ".join(_names(record)),
        place_of(record, standing, now),
        standing,
        held,
    )


def next_step(record: PlanRecord, reservations: Sequence[Reservation]) -> Step:
    """The next step of a plan, by its state and by what it holds."""
    if record.state.is_on_its_way:
        return Step.MAKING
    is_open = [row for row in reservations if row.is_open]
    if is_open:
        leaving = all(row.state is ReservationState.RELEASING for row in is_open)
        return Step.RELEASING if leaving else Step.HELD
    if record.reserved_at is not None:
        return Step.OVER
    if record.plan is None or not record.plan.placements:
        return Step.NOTHING
    return STEP_OF_APPROVAL.get(record.approval, Step.RESERVING)


def why_not_bought(record: PlanRecord, reservations: Iterable[Reservation]) -> str:
    """The sellers' errors of the last attempt to reserve the plan, newest first; empty if it did not fail."""
    if record.reserved_at is not None:
        return ""
    said = (row.reason for row in reservations if not row.is_open)
    return next((reason for reason in said if reason and not reason.startswith(WITH_THE_REST)), "")


def without_provider(document: str, provider: str) -> str:
    """A stored workloads document whose policy excludes ``provider``; unchanged for an empty one."""
    if not provider:
        return document
    written = json.loads(document)
    providers = written.setdefault("policy", {}).setdefault("providers", {})
    providers["exclude"] = sorted({*providers.get("exclude", ()), provider})
    return json.dumps(written)


def committed_words(plan: Plan) -> str:
    """When capacity is paid: windows in advance, the rest as it is held."""
    prepaid = [one for one in plan.placements if one.is_prepaid_window]
    from_start = [one for one in plan.placements if one.tier is Tier.WINDOW and not one.is_prepaid_window]
    rest = [one for one in plan.placements if one.tier is not Tier.WINDOW]
    at_once_usd = sum((one.capacity_usd for one in prepaid), ZERO)
    if not rest and not from_start:
        return "All of it is for windows, which are ordered now and paid at the purchase."
    paid = "All of it is charged by the hour as it is held."
    if prepaid:
        paid = f"{usd(at_once_usd)} of it is for windows, ordered now and paid at the purchase; the rest is "
        paid += "charged by the hour as it is held."
    if from_start:
        from_start_usd = sum((one.capacity_usd for one in from_start), ZERO)
        paid += f" {usd(from_start_usd)} is for windows that are charged from their start on."
    return paid


def promised_words(
    plan: Plan | None, quote: PlanQuote | None, held: Sequence[Reservation], now: datetime
) -> list[str]:
    """For each placement what is promised of it: of what is reserved, else as it would be ordered."""
    if plan is None:
        return []
    found = []
    for index, placement in enumerate(plan.placements):
        rows = [
            row
            for row in held
            if row.is_open and (row.workload, row.offer.offer_id) == (placement.workload, placement.offer_id)
        ]
        words = promises_words(promise_of(row, now) for row in rows)
        if not rows and quote is not None:
            words = order_promise_words(quote.placements[index])
        found.append(words)
    return found


def gone_words(held: Sequence[Reservation]) -> str:
    """What came back of all that the plan held and released; empty if nothing was bought."""
    bought = [row for row in held if row.provider_references and not row.is_open]
    if not bought or any(row.is_open for row in held):
        return ""
    credit_usd = sum((credited_usd(row) or ZERO for row in bought), ZERO)
    return released_words(
        credit_usd, owed_usd(bought, max(row.released_at or row.created_at for row in bought))
    )


def baseline_rows(plan: Plan) -> tuple[BaselineRow, ...]:
    """The plan, then each strategy with what the plan saves against it. The cost of delay and expected costs
    count in all."""
    mine = plan.compared_usd
    costs = [mine, *(b.cost_usd for b in plan.baselines if b.cost_usd is not None)]
    dearest = max(costs) or Decimal(1)
    this = BaselineRow("this plan", mine, None, float(mine / dearest), "", is_this=True)
    others = (
        BaselineRow(
            strategy(b.name),
            b.cost_usd,
            None if b.cost_usd is None else b.cost_usd - mine,
            0.0 if b.cost_usd is None else float(b.cost_usd / dearest),
            b.why,
            missing="" if b.cost_usd is not None else without_cost(b),
        )
        for b in plan.baselines
    )
    return (this, *others)


def savings_beside_base(plan: Plan, base: Plan, *, at_assumed_prices: bool = False) -> str:
    """What a variant and the plan that it changes save, against which strategies, and against a common one.

    Both plans list the same strategies, each for its own document and at the prices of its own time, so that
    the cheapest one that can be completed may be another.
    """
    mine, theirs = strongest(plan), strongest(base)
    if mine is None or theirs is None:
        which = "this plan" if mine is None else "the plan that it changes"
        why = "no simpler strategy could be completed within the budget"
        return f"The savings cannot be compared: for {which} {why}."
    return f"{_two_savings(plan, base, mine, theirs)} {_two_markets(plan, base, at_assumed_prices)}"


def _two_savings(plan: Plan, base: Plan, mine: Baseline, theirs: Baseline) -> str:
    told = f"This plan {_beside(plan, mine)}; the plan that it changes {_beside(base, theirs)}."
    if mine.name == theirs.name:
        return told
    common = _common(plan, base)
    if common is None:
        return f"{told} No simpler strategy was completed for both."
    here, there = common
    both = f"this plan {_beside(plan, here)}, that one {_beside(base, there)}"
    return f"{told} Of those completed for both: {both}."


def _two_markets(plan: Plan, base: Plan, at_assumed_prices: bool) -> str:
    """Why a strategy does not cost the same for both plans."""
    assumed = ", with the assumed changes of prices," if at_assumed_prices else ""
    return (
        "A strategy is planned anew for the document of each plan: "
        f"here at the prices of {moment(plan.as_of)}{assumed} and there of {moment(base.as_of)}."
    )


def _common(plan: Plan, base: Plan) -> tuple[Baseline, Baseline] | None:
    """The strategy that is cheapest for ``base`` among those that were completed for both plans."""
    here = {row.name: row for row in plan.baselines if row.cost_usd is not None}
    both = [row for row in base.baselines if row.cost_usd is not None and row.name in here]
    there = min(both, key=lambda row: row.cost_usd or ZERO, default=None)
    return None if there is None else (here[there.name], there)


def _beside(plan: Plan, against: Baseline) -> str:
    """What a plan saves against a strategy, delay counted, or costs above it, with the share."""
    named, before = f"“{strategy(against.name)}”", against.cost_usd or ZERO
    saved = before - plan.compared_usd
    part = f" ({100 * abs(saved) / before:.0f} %)" if before else ""
    if saved > 0:
        return f"saves {usd(saved)}{part} against {named}"
    return f"costs {usd(-saved)}{part} more than {named}" if saved else f"costs the same as {named}"


def bound_share(plan: Plan) -> float | None:
    """The position of the proven bound on the bars of ``baseline_rows``; None without one."""
    mine = plan.compared_usd
    costs = [mine, *(b.cost_usd for b in plan.baselines if b.cost_usd is not None)]
    return float(plan.bound_usd / max(costs)) if plan.bound_usd is not None and max(costs) else None


def kinds_of(plan: Plan) -> list[tuple[int, str]]:
    """The kinds of workload on the plan's chart, with their colours."""
    shown = {p.kind for p in plan.placements}
    return [(number, str(kind)) for kind, number in SERIES_OF_KIND.items() if kind in shown]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the document of a plan says about time: its horizon, and deadlines by workload."""

    horizon: Window | None = None
    deadlines: Mapping[str, datetime] = field(default_factory=dict)


def asked_of(record: PlanRecord) -> Asked:
    """Times in the document of a record."""
    document = json.loads(record.document)
    said = document.get("horizon", {})
    start = find_time(said.get("start"))
    horizon = None if start is None else Window(start, start + said["days"] * DAY)
    dues = {row["name"]: find_time(row.get("deadline")) for row in document.get("workloads", ())}
    return Asked(horizon, {name: due for name, due in dues.items() if due is not None})


def plan_charts(plan: Plan, now: datetime | None = None, asked: Asked | None = None) -> Charts | None:
    """The Gantt chart of a plan over its whole horizon: a row for each placement with bars as tall as the
    nodes held, waits, and deadlines.
    """
    asked = asked or Asked()
    span = _span(plan)
    if span is None:
        return None
    if asked.horizon is not None:
        span = Window(min(span.start, asked.horizon.start), max(span.end, asked.horizon.end))
    seen: set[str] = set()
    rows: list[TimelineRow] = []
    for placement in plan.placements:
        row = _timeline_row(placement)
        if placement.workload not in seen:
            seen.add(placement.workload)
            due = asked.deadlines.get(placement.workload)
            row = replace(row, waits=_waits(plan, placement.workload), due=due)
        if rows and is_repeated(placement.workload) and rows[-1].name == row.name:
            rows[-1] = replace(rows[-1], bars=(*rows[-1].bars, *row.bars))
            continue
        rows.append(row)
    title = "Nodes planned over time, one row per placement; the table below has node-hours by day"
    return both_widths(lambda width: timeline(rows, span.start, span.end, title, width, now))


def _waits(plan: Plan, workload: str) -> tuple[Bar, ...]:
    return tuple(
        Bar(
            wait.earliest_start,
            wait.start,
            1.0,
            f"{workload} waits for {wait.after}: it could start {moment(wait.earliest_start)} and starts "
            f"{moment(wait.start)}, {usd(wait.delay_usd)} of delay counted",
        )
        for wait in plan.waits
        if wait.workload == workload and wait.start > wait.earliest_start
    )


def held_days(plan: Plan) -> list[tuple[datetime, list[float]]]:
    """The figures of the chart: node-hours by UTC day and placement, in the plan's order."""
    span = _span(plan)
    if span is None:
        return []
    found, day = [], span.start.replace(hour=0, minute=0, second=0, microsecond=0)
    while day < span.end:
        window = Window(day, day + DAY)
        found.append((day, [_node_hours(placement, window) for placement in plan.placements]))
        day += DAY
    return found


def _span(plan: Plan) -> Window | None:
    edges = [edge for p in plan.placements for s in p.segments for edge in (s.start, s.end)]
    return Window(min(edges), max(edges)) if edges else None


def _node_hours(placement: Placement, window: Window) -> float:
    shared = ((s.nodes, s.window.intersection(window)) for s in placement.segments)
    return sum(nodes * both.hours for nodes, both in shared if both is not None)


def capacity(placement: Placement) -> str:
    """``7 × 8 H200-SXM-141GB``: nodes, and what is in each."""
    return f"{placement.nodes} × {placement.gpus // placement.nodes} {placement.gpu}"


def _timeline_row(placement: Placement) -> TimelineRow:
    most = max((s.nodes for s in placement.segments), default=placement.nodes)
    bars = tuple(
        Bar(
            s.start,
            s.end,
            s.nodes / most,
            f"{placement.workload}: {s.nodes} nodes, {moment(s.start)} to {moment(s.end)}",
        )
        for s in placement.segments
    )
    detail = f"{capacity(placement)}, {seller(placement.provider)}"
    return TimelineRow(series_of(placement.workload), detail, SERIES_OF_KIND[placement.kind], bars)
