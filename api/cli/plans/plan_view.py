"""A plan as text for a terminal of at least 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from api.cli.output import print_json, say, stdout, to_json, write_text
from api.cli.tables import STYLES, table_of
from api.figures import day_and_time, hours, hours_between, percent, rate, usd
from api.held_words import held_words
from api.plan_answer import NO_OBJECTIVES, Holding, answer_of
from api.plan_sections import (
    EMPTY,
    LEVELS,
    NAME_WIDTH,
    Fleet,
    fleets_of,
    plan_cards,
    tables_of,
    timeline_of,
    told_of,
)
from api.plan_words import (
    STATUS_WORDS,
    chance_words,
    objective_words,
    priced_unit,
)
from api.sections import tone
from broker.domain.basics.money import ZERO
from broker.domain.basics.window import Window
from broker.domain.planning.comparison import objectives_of
from broker.domain.planning.plan import Obstacle, Placement, Plan, PlanStatus
from broker.domain.planning.window_use import WindowUse
from broker.domain.planning.workload import PlanRequest, Slo, WorkloadKind

WIDEST = 130
MOST_WORKLOADS = 40


def show_plan(
    plan: Plan,
    document: Any,
    output: Path | None,
    request: PlanRequest | None = None,
    *,
    as_json: bool,
    objectives: Mapping[str, Slo] = NO_OBJECTIVES,
    holding: Holding | None = None,
) -> None:
    """Writes ``document`` to a file if asked to, and prints it or the plan."""
    if output is not None:
        write_text(output, to_json(document))
        say(f"plan written to {output}")
    if as_json:
        print_json(document)
    else:
        print_plan(stdout(), plan, request, objectives, holding)


def print_plan(
    console: Console,
    plan: Plan,
    request: PlanRequest | None = None,
    objectives: Mapping[str, Slo] = NO_OBJECTIVES,
    holding: Holding | None = None,
) -> None:
    """Writes ``plan`` to ``console``; ``request`` adds the horizon, the budget and who pays.

    ``objectives``: those of the services by name, where there is no request. ``holding``: what is held of it.
    """
    console.width = min(console.width, WIDEST)
    for part in _parts(plan, request, console.width, objectives or _objectives(request), holding):
        console.print(part)


def print_plan_in_short(console: Console, plan: Plan, request: PlanRequest | None = None) -> None:
    """The headline, what the plan does, and its figures; ``print_plan`` has the rest."""
    console.width = min(console.width, WIDEST)
    for part in _head(plan, request, _objectives(request), None):
        console.print(part)


def _objectives(request: PlanRequest | None) -> Mapping[str, Slo]:
    return NO_OBJECTIVES if request is None else objectives_of(request)


def misses_something(plan: Plan) -> bool:
    """Whether some workload cannot be placed. One that was left out because it is not worth its price could
    be."""
    if plan.status is PlanStatus.INFEASIBLE:
        return True
    return any(row.reason is not Obstacle.PRICE for row in plan.unplaced)


def _parts(
    plan: Plan,
    request: PlanRequest | None,
    width: int,
    objectives: Mapping[str, Slo],
    holding: Holding | None,
) -> Iterator[RenderableType]:
    yield from _head(plan, request, objectives, holding)
    for section in tables_of(plan, "Placements" if holding is None else "Placements, as planned"):
        yield Padding(table_of(section, width), (1, 0, 0, 0))
        if section.title.startswith("Placements"):
            yield from _timeline(plan, None if request is None else request.horizon, width)
    for title, _, sentences in told_of(plan):
        yield Text(f"\n{title}", style="bold")
        yield from (Padding(Text(sentence), (0, 0, 0, 2)) for sentence in sentences)
    yield from _reasons(plan, objectives)


def _head(
    plan: Plan, request: PlanRequest | None, objectives: Mapping[str, Slo], holding: Holding | None
) -> Iterator[RenderableType]:
    status = (STATUS_WORDS[plan.status], STYLES[tone(plan.status)])
    yield Text.assemble((f"Plan {plan.plan_id}", "bold"), "  ", status, f"  team {plan.team}")
    yield from map(Text, answer_of(plan, str, _moment, objectives, holding))
    yield Text("")
    yield _figures(plan, request)


def _moment(at: datetime) -> str:
    return f"{day_and_time(at)} UTC"


def _figures(plan: Plan, request: PlanRequest | None) -> Table:
    """The times, then the cards of the plan."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    times = f"prices of {day_and_time(plan.as_of)} UTC"
    if request is not None:
        horizon = request.horizon
        times = f"{day_and_time(horizon.start)} to {day_and_time(horizon.end)}, {times}"
    grid.add_row("Time", times)
    budget = (None, None) if request is None else (request.budget_usd, request.budget_confidence)
    for card in plan_cards(plan, *budget):
        figure = (card.figure, STYLES[card.tone] or ("bold" if card.lead else ""))
        grid.add_row(card.label, Text.assemble(figure, f"  {card.note}"))
    return grid


def _timeline(plan: Plan, horizon: Window | None, width: int) -> Iterator[RenderableType]:
    lines = timeline_of(plan, horizon, width, MOST_WORKLOADS)
    if lines:
        text = Text("\nNodes over time", style="bold", no_wrap=True)
        for name, bars in lines:
            text.append(f"\n{name:<{NAME_WIDTH}}  ", style="not bold")
            text.append(bars, style="not bold cyan" if bars.strip(LEVELS + EMPTY) == "" else "not bold dim")
        yield text


def _reasons(plan: Plan, objectives: Mapping[str, Slo]) -> Iterator[RenderableType]:
    if not plan.placements:
        return
    yield Text("\nWhy", style="bold")
    fleets = fleets_of(plan, objectives)
    for fleet in fleets[:MOST_WORKLOADS]:
        yield Padding(_reason(fleet), (0, 0, 0, 2))
    if len(fleets) > MOST_WORKLOADS:
        yield Text(f"  … and {len(fleets) - MOST_WORKLOADS} more workloads; --json has all of them", "dim")


def _reason(fleet: Fleet) -> RenderableType:
    """The performance and the unused time of each placement, then the reasons, one sentence a line."""
    placements, tightest = fleet.placements, fleet.objective
    chance = chance_words(placements)
    text = Text.assemble((fleet.workload, "bold"), " " if chance is None else f", {chance}, ")
    is_run = placements[0].kind is WorkloadKind.TRAINING
    text.append("".join(map(_run, placements)) if is_run else _served(placements))
    if tightest is not None:
        text.append(f"Its objective: {objective_words(tightest)}. ", "yellow" if fleet.is_tight else "")
    unused = sum((placement.paid_unused_usd for placement in placements), ZERO)
    if unused:
        text.append(f"{usd(unused)} of it pays for time that is not used. ")
    for placement in placements:
        if changes := held_words(placement.segments):
            text.append(f"At {placement.provider}, {placement.gpu}: {changes}. ")
    for use in (p.window_use for p in placements if p.window_use is not None and p.window_use.unwanted_usd):
        text.append(_window_use(use))
    if fleet.why:
        text.append(f"\n{fleet.why[:1].upper()}{fleet.why[1:]}.", style="bold")
    lines = Table.grid(padding=(0, 1))
    lines.add_column(no_wrap=True, style="dim")
    lines.add_column(overflow="fold")
    for sentence in fleet.shown:
        lines.add_row("-", Text(sentence))
    if fleet.folded:
        lines.add_row("", Text(f"… and {len(fleet.folded)} more (--json)", style="dim"))
    return Group(text, lines)


def _window_use(use: WindowUse) -> str:
    """The wanted time, and the window on sale that covers it."""
    taken_back = "" if use.usable.end == use.bought.end else f", usable until {day_and_time(use.usable.end)}"
    return (
        f"It wants {day_and_time(use.wanted.start)} to {day_and_time(use.wanted.end)}; sold is "
        f"{day_and_time(use.bought.start)} to {day_and_time(use.bought.end)}{taken_back}: "
        f"{hours(use.unwanted_hours)} a node, {usd(use.unwanted_usd)}, are paid and not wanted. "
    )


def _run(placement: Placement) -> str:
    estimate = placement.estimate
    spread = hours_between(estimate["hours"], estimate.low["hours"], estimate.high["hours"])
    return (
        f"takes {spread} on {placement.gpu} at {rate(estimate['tokens_per_s'])} tokens/s, "
        f"{percent(estimate['mfu'])} MFU, goodput {percent(estimate['goodput'])}, "
        f"limited by {placement.why.bottleneck} ({estimate.provenance}). "
    )


def _served(placements: Sequence[Placement]) -> str:
    """One sentence for each kind of replica; offers that differ only in price share it."""
    alike: dict[tuple[str, str], list[float]] = {}
    for placement in placements:
        unit = priced_unit(placement.estimate.value)
        prices = alike.setdefault((_replica(placement), unit), [])
        prices.append(placement.estimate["usd_per_million_tokens"])
    told = (
        f"{replica} ({_price_range(prices)} per million {unit} at full load)"
        for (replica, unit), prices in alike.items()
    )
    return f"answers {'; '.join(told)}. "


def _price_range(prices: Sequence[float]) -> str:
    low, high = f"${min(prices):.2f}", f"${max(prices):.2f}"
    return low if low == high else f"{low} to {high}"


def _replica(placement: Placement) -> str:
    estimate = placement.estimate
    latency = ""
    if placement.kind is WorkloadKind.SERVING:
        latency = f"TTFT p95 {estimate['ttft_p95_ms']:.0f} ms, "
        if "itl_p95_ms" in estimate.value:
            latency += f"ITL p95 {estimate['itl_p95_ms']:.0f} ms, "
    return (
        f"{rate(estimate['requests_per_s_per_replica'])} requests/s a replica on {placement.gpu}, "
        f"{latency}limited by {placement.why.bottleneck}, {estimate.provenance}"
    )
