"""A plan as cards, tables and sentences, for pages, the terminal and notebooks alike. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import islice

from api.figures import day, day_and_time, percent, plural, usd
from api.plan_answer import NO_OBJECTIVES, why_line
from api.plan_words import (
    NEAR_TIES_BUY,
    all_pass_budget,
    bound_label,
    chance_mark,
    folded,
    is_tight,
    saved_usd,
    sentences_together,
    share_words,
    strategy,
    strongest,
    without_cost,
)
from api.sections import Card, Cell, Section, Value, section_of
from broker.domain.basics.money import ZERO
from broker.domain.basics.window import Segment, Window
from broker.domain.holding.capacity_promise import CapacityPromise
from broker.domain.market.billing import node_hours
from broker.domain.planning.comparison import Objective, tightest_objective
from broker.domain.planning.plan import Alternative, Baseline, ConfidencePrice, Placement, Plan
from broker.domain.planning.workload import Slo, WorkloadKind
from broker.domain.spend.order_quote import planned_promise
from broker.domain.workloads.repeats import is_repeated, series_of

NAME_WIDTH = 22
LEVELS = "▁▂▃▄▅▆▇█"
EMPTY = "·"
NONE = "–"


@dataclass(frozen=True, slots=True)
class Fleet:
    """The placements of one workload, with the reasons of all of them in one place."""

    workload: str
    placements: tuple[Placement, ...]
    why: str
    shown: Sequence[str]
    folded: Sequence[str]
    next_best: tuple[Alternative, ...]
    objective: Objective | None = None

    @property
    def is_tight(self) -> bool:
        """Whether little of its objective is left, and no chance is known."""
        return is_tight(self.placements, self.objective)


def by_workload(plan: Plan) -> dict[str, tuple[Placement, ...]]:
    """The placements of each workload, in the plan's order; all times of one that is repeated together."""
    found: dict[str, list[Placement]] = {}
    for one in plan.placements:
        found.setdefault(series_of(one.workload), []).append(one)
    return {name: tuple(placements) for name, placements in found.items()}


def _rows(plan: Plan) -> Iterator[tuple[Placement, ...]]:
    """The placements of each row of a table: one, or all times of a workload that is repeated."""
    for placements in by_workload(plan).values():
        if is_repeated(placements[0].workload):
            yield placements
        else:
            yield from ((one,) for one in placements)


def fleets_of(
    plan: Plan, objectives: Mapping[str, Slo] = NO_OBJECTIVES, offer_words: Callable[[str], str] = str
) -> tuple[Fleet, ...]:
    """The placements of a plan by workload, in its order; a way that several placements name is told once.

    ``objectives``: those of its services, by name. ``offer_words`` writes an offer's id.
    """
    placed = by_workload(plan).items()
    return tuple(_fleet(name, placements, objectives.get(name), offer_words) for name, placements in placed)


def _fleet(
    name: str, placements: tuple[Placement, ...], slo: Slo | None, offer_words: Callable[[str], str]
) -> Fleet:
    shown, rest = folded(sentences_together(placements))
    ways = {way.offer_id: way for placement in placements for way in placement.why.next_best}
    best = tuple(sorted(ways.values(), key=lambda way: way.more_usd))
    tightest = None if slo is None else tightest_objective(placements, slo)
    return Fleet(name, placements, why_line(placements, offer_words), shown, rest, best, tightest)


def plan_cards(
    plan: Plan, budget_usd: Decimal | None = None, budget_confidence: float | None = None
) -> tuple[Card, ...]:
    """Cards of a plan: cost, what is paid in the end, saving, bound, unused time and effort.
    ``budget_confidence``: the chance with which the budget holds.
    """
    unused = sum((p.paid_unused_usd for p in plan.placements), ZERO)
    penalty = f"plus {usd(plan.penalty_usd)} penalties" if plan.penalty_usd else "no penalties"
    if plan.delay_usd:
        penalty += f"; {usd(plan.delay_usd)} of delay counted"
    if plan.recourse_usd:
        penalty += f"; {usd(plan.recourse_usd)} expected where windows do not suffice"
    if plan.relaunch_usd:
        penalty += f"; {usd(plan.relaunch_usd)} expected where orders fail"
    sure = "" if budget_confidence is None else f", kept with {percent(budget_confidence)}"
    of_budget = f"{penalty}; budget {usd(budget_usd)}{sure}" if budget_usd is not None else penalty
    return (
        Card("Cost", usd(plan.cost_usd), of_budget, lead=True),
        *_paid_card(plan),
        _saving_card(plan),
        _bound_card(plan),
        Card(
            "Paid but unused",
            usd(unused),
            "edges of windows, and what is left of minimum terms"
            if unused
            else "every hour that is paid is used",
        ),
        Card(
            "Ways considered",
            f"{plan.candidates.evaluated:,}",
            f"{plan.candidates.kept:,} passed every gate, in {plan.solve_seconds:.1f} s",
        ),
    )


def _paid_card(plan: Plan) -> Iterator[Card]:
    """What is paid in the end, on average and in eight of ten cases; none for plans of earlier versions."""
    mean, low, high = plan.expected_cost_usd, plan.cost_p10_usd, plan.cost_p90_usd
    if mean is not None and low is not None and high is not None:
        span = f"; {usd(low)} to {usd(high)}" if low != high or mean != low else " and"
        fleets = (
            "; after a day fleets follow their measured rates"
            if any(p.stages for p in plan.placements)
            else ""
        )
        yield Card("Paid in the end", usd(mean), f"on average{span} in eight of ten cases{fleets}")


def _bound_card(plan: Plan) -> Card:
    """The bound with the gap, and what is compared with it where more than the cost is."""
    if plan.bound_usd is None:
        return Card("Bound", NONE, "not proven: some workload is left out" if plan.unplaced else "not proven")
    gap = NONE if plan.gap is None else f"{100 * plan.gap:.2f} %"
    counted = f"this plan, so counted, costs {usd(plan.objective_usd)}: "
    proof = f"gap {gap}" if plan.objective_usd == plan.cost_usd else f"{counted}gap {gap}"
    label = bound_label(plan)
    return Card(f"{label[:1].upper()}{label[1:]}", usd(plan.bound_usd), f"proven; {proof}")


def _saving_card(plan: Plan) -> Card:
    """The saving against the cheapest strategy within the budget."""
    against = strongest(plan)
    if against is None or against.cost_usd is None:
        why = (
            "none of them stays within the budget"
            if all_pass_budget(plan)
            else "none of them could run to its end"
        )
        return Card("Saved against simpler strategies", NONE, why)
    before = against.cost_usd
    saved = saved_usd(plan) or ZERO
    if saved < 0:
        buys = f"near ties pay it for {NEAR_TIES_BUY}"
        return Card(f"Above {strategy(against.name)}", usd(-saved), buys)
    part = f"{100 * saved / before:.2f} % less" if saved else "this strategy costs the same"
    return Card(f"Saved against {strategy(against.name)}", usd(saved), part, tone="good" if saved else "")


def told_of(plan: Plan, offer_words: Callable[[str], str] = str) -> Iterator[tuple[str, str, list[str]]]:
    """Sentences on the whole plan: their title, a hint, and each of them."""
    assumed = (
        f"{plural(row.nodes, 'node')} of {offer_words(row.offer_id)}: {row.says}" for row in plan.assumptions
    )
    for title, hint, said in (
        ("Notes", "", plan.notes),
        (
            "Assumed stock",
            "Capacity that the plan assumes because the provider does not state its stock. "
            "policy.assumed_nodes limits it.",
            assumed,
        ),
        (
            "Scarce capacity",
            "What more stock would save, if only the named workloads were placed there.",
            (row.text for row in plan.scarcity),
        ),
    ):
        sentences = [f"{one[:1].upper()}{one[1:]}." for one in said]
        if sentences:
            yield title, hint, sentences


def tables_of(plan: Plan, placed: str = "Placements") -> Iterator[Section]:
    """The tables of a plan: placements under the title ``placed``, what is left out, simpler strategies."""
    if plan.placements:
        yield section_of(
            list(_rows(plan)),
            {
                "=workload": lambda row: _name(plan, row),
                "capacity": lambda row: _first_of(row, lambda one: Cell(_capacity(one), _layout(one))),
                "where": lambda row: _first_of(row, lambda one: _where(plan, one)),
                "=when (UTC)": _when,
                ">cost\nper node-hour": lambda row: Cell(_cost(row), (_hourly(row),)),
            },
            title=placed,
        )
    if plan.confidence_prices:
        yield _price_table(plan)
    if plan.unplaced:
        left_out = [
            (name, Cell(reason, tone="warn"), fix)
            for row in plan.unplaced
            for name, reason, fix in (
                (row.workload, str(row.reason), row.nearest_fix),
                *(("", "", f"or {fix.says}") for fix in row.fixes[1:]),
            )
        ]
        yield Section(("workload", "=stopped by", "nearest fix"), left_out, "Left out")
    if plan.baselines:
        yield section_of(
            plan.baselines,
            {
                "strategy": lambda row: strategy(row.name),
                ">cost": lambda row: without_cost(row) if row.cost_usd is None else row.cost_usd,
                ">this plan saves": lambda row: _saved(row, plan),
                "how": lambda row: row.why,
            },
            title="Compared with simpler strategies",
        )


def _price_table(plan: Plan) -> Section:
    """What the document costs at other confidences; what is left out then, where anything is."""
    columns: dict[str, Callable[[ConfidencePrice], Value]] = {
        "confidence": lambda row: percent(row.confidence),
        ">cost": lambda row: NONE if row.cost_usd is None else row.cost_usd,
        ">paid on average": lambda row: NONE if row.cost_usd is None else row.expected_cost_usd,
        ">least chance": lambda row: NONE if row.chance is None else share_words(row.chance),
    }
    if any(row.unplaced for row in plan.confidence_prices):
        columns["left out"] = lambda row: ", ".join(row.unplaced)
    return section_of(plan.confidence_prices, columns, title="Price of confidence")


def _where(plan: Plan, one: Placement) -> Cell:
    place = ", ".join(filter(None, (one.zone or one.region, one.mode)))
    return Cell(f"{one.provider} {one.tier}", (place, *_promised(one, plan.as_of)))


def _first_of(row: Sequence[Placement], cell_of: Callable[[Placement], Cell]) -> Cell:
    """What the first placement of a row has, and how many others there are."""
    cells = list(dict.fromkeys((cell.value, tuple(cell.more)) for cell in map(cell_of, row)))
    first = cell_of(row[0])
    return first if len(cells) == 1 else Cell(first.value, (*first.more, f"and {len(cells) - 1} other"))


def _name(plan: Plan, row: Sequence[Placement]) -> Cell:
    """The workload, its kind and its chance once, and which part of it each placement is."""
    placement = row[0]
    if is_repeated(placement.workload):
        times = len({one.workload for one in row})
        return Cell(short(series_of(placement.workload)), [str(placement.kind), plural(times, "time")])
    part = plan.part_of(placement).removeprefix("part ").partition(":")[0].replace(" %", "%")
    if placement is plan.placements_of(placement.workload)[0]:
        told = (str(placement.kind), chance_mark(placement), part)
        return Cell(short(placement.workload), [*filter(None, told)])
    return Cell(part)


def short(name: str) -> str:
    """A name that fits the first column."""
    return name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 1] + "…"


def _capacity(placement: Placement) -> str:
    per_node = placement.gpus // placement.nodes if placement.nodes else placement.gpus
    held = [segment.nodes for segment in placement.segments] or [placement.nodes]
    count = f"{placement.nodes}" if min(held) >= placement.nodes else f"{min(held)} to {placement.nodes}"
    if max(held) > placement.nodes:
        count = f"{placement.nodes} (of {max(held)} bought)"
    return f"{count} × {per_node} {placement.gpu}"


def _layout(placement: Placement) -> list[str]:
    layout, is_run = placement.parallelism, placement.kind is WorkloadKind.TRAINING
    degrees = {"tp": layout.tp, "pp": layout.pp, "dp": layout.dp, "cp": layout.cp, "ep": layout.ep}
    if not is_run and layout.dp > 1:
        degrees = {"dp": layout.dp}  # attention ranks: the tensor group and the groups of experts are theirs
    size = plural(placement.gpus, "GPU") if is_run else plural(placement.replicas, "replica")
    words = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
    shape = " ".join([size, *words, str(placement.precision)])
    return [shape, *filter(None, [placement.ordered_words])]


def _when(row: Sequence[Placement]) -> str:
    segments = [segment for one in row for segment in one.segments]
    if not segments:
        return "never"
    start, end = min(s.start for s in segments), max(s.end for s in segments)
    live = row[0].live_from if len(row) == 1 else None
    if live is None:
        return f"{day_and_time(start)}\nto {day_and_time(end)}"
    clock = f"{live:%H:%M}" if live.date() == start.date() else day_and_time(live)
    return f"{day_and_time(start)}\nto {day_and_time(end)}\nlive {clock}"


def _promised(placement: Placement, at: datetime) -> list[str]:
    """What stands beneath a place whose capacity nobody has promised when its plan is reserved ``at``."""
    promise = planned_promise(placement, at)
    return [promise.words] if promise is CapacityPromise.AT_START else []


def _cost(row: Sequence[Placement]) -> Decimal:
    return sum((one.cost_usd for one in row), ZERO)


def _hourly(row: Sequence[Placement]) -> str:
    held = sum(node_hours(one.segments) for one in row)
    return usd(sum((one.capacity_usd for one in row), ZERO) / Decimal(held)) if held else ""


def _saved(row: Baseline, plan: Plan) -> str:
    """What the plan saves against a strategy, in USD and as a share of the strategy's cost."""
    if not row.cost_usd:
        return ""
    saved = row.cost_usd - plan.compared_usd
    return f"{usd(saved)} ({percent(float(saved / row.cost_usd))})"


def timeline_of(plan: Plan, horizon: Window | None, width: int, most: int) -> list[tuple[str, str]]:
    """The nodes of the first ``most`` workloads over time: a name and a bar a placement, then the days."""
    span = span_of(plan.placements, horizon)
    if span is None:
        return []
    columns = width - NAME_WIDTH - 2
    lines = [
        (short(workload) if index == 0 else "", bar(segments, span, columns))
        for workload, placements in islice(by_workload(plan).items(), most)
        for index, segments in enumerate(_lines(placements))
    ]
    return [*lines, ("", axis(span, columns).rstrip())]


def _lines(placements: Sequence[Placement]) -> list[list[Segment]]:
    """The segments of each line: one a placement, or one for all times of a workload that is repeated."""
    if is_repeated(placements[0].workload):
        return [[segment for one in placements for segment in one.segments]]
    return [list(one.segments) for one in placements]


def span_of(placements: Sequence[Placement], horizon: Window | None) -> Window | None:
    """The horizon, widened to hold every segment; None when there is nothing to show."""
    edges = [edge for p in placements for s in p.segments for edge in (s.start, s.end)]
    if horizon is not None:
        edges += [horizon.start, horizon.end]
    return Window(min(edges), max(edges)) if edges else None


def bar(segments: Sequence[Segment], span: Window, width: int) -> str:
    """``width`` characters: the most nodes held in each slice, relative to the peak."""
    peak = max((segment.nodes for segment in segments), default=0)
    step = span.duration / width
    cells = []
    for column in range(width):
        start = span.start + column * step
        nodes = max((s.nodes for s in segments if s.start < start + step and start < s.end), default=0)
        cells.append(LEVELS[max(1, round(nodes / peak * len(LEVELS))) - 1] if nodes else EMPTY)
    return "".join(cells)


def axis(span: Window, width: int) -> str:
    """Days under the bars, as many as fit with a gap between them."""
    days = span.duration / timedelta(days=1)
    every = next(n for n in (1, 2, 3, 5, 7, 10, 14, 28, 56, 112, 10_000) if width / max(days, 1) * n >= 8)
    line = [" "] * width
    at = _midnight_after(span.start)
    while at < span.end:
        column = round((at - span.start) / span.duration * width)
        label = day(at)
        if column + len(label) <= width:
            line[column : column + len(label)] = label
        at += timedelta(days=every)
    return "".join(line)


def _midnight_after(instant: datetime) -> datetime:
    midnight = instant.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight if midnight == instant else midnight + timedelta(days=1)
