"""A plan as text for a terminal of at least 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from api.cli.figures import day, day_and_time, hours, hours_between, percent, plural, rate, usd
from api.cli.output import print_json, stderr, stdout, to_json, write_text
from api.held_words import held_words
from api.plan_answer import NO_OBJECTIVES, Holding, answer_of, completed_baselines, why_line
from api.plan_words import (
    STATUS_WORDS,
    above_words,
    all_pass_budget,
    bound_label,
    folded,
    is_tight,
    objective_words,
    priced_unit,
    saved_usd,
    sentences_together,
    strategy,
    strongest,
    without_cost,
)
from broker.domain.basics.money import ZERO, price_words
from broker.domain.basics.window import Segment, Window
from broker.domain.market.billing import node_hours
from broker.domain.planning.comparison import objectives_of, tightest_objective
from broker.domain.planning.plan import Baseline, Obstacle, Placement, Plan, PlanStatus, Wait
from broker.domain.planning.window_use import WindowUse
from broker.domain.planning.workload import PlanRequest, Slo, WorkloadKind

WIDEST = 130
ROOMY = 100
NAME_WIDTH = 22
MOST_WORKLOADS = 40
MOST_SCARCE = 5
STATUS_STYLE = {
    PlanStatus.OPTIMAL: "bold green",
    PlanStatus.FEASIBLE: "bold yellow",
    PlanStatus.INFEASIBLE: "bold red",
}
LEVELS = "▁▂▃▄▅▆▇█"
EMPTY = "·"


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
        stderr().print(f"plan written to {output}", markup=False, soft_wrap=True)
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
    """The headline, the figures and the placements of ``plan``; ``print_plan`` has the rest."""
    console.width = min(console.width, WIDEST)
    console.print(_headline(plan))
    console.print(_figures(plan, request))
    what, _, *others = (*answer_of(plan, str, _moment, _objectives(request)), "", "")
    for sentence in filter(None, (what, *others)):
        console.print(Text(sentence))


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
    horizon = request.horizon if request is not None else None
    yield _headline(plan)
    sentences = answer_of(plan, str, _moment, objectives, holding)
    told = 2 if holding is not None and sentences[:1] == (f"{holding.text}.",) else 1
    for sentence in sentences[:told]:  # the figures below say the rest
        yield Text(sentence)
    yield Text("")
    yield _figures(plan, request)
    if plan.placements:
        yield _placements(plan, width, "Placements" if holding is None else "Placements, as planned")
        yield from _timeline(plan, horizon, width)
    if plan.unplaced:
        yield _unplaced(plan)
    if plan.baselines:
        yield _baselines(plan, width)
    yield from _notes(plan)
    yield from _assumptions(plan)
    yield from _scarce(plan)
    yield from _reasons(plan, objectives)


def _headline(plan: Plan) -> Text:
    return Text.assemble(
        ("Plan ", "bold"),
        (plan.plan_id, "bold"),
        "  ",
        (STATUS_WORDS[plan.status], STATUS_STYLE[plan.status]),
        f"  team {plan.team}",
    )


def _moment(at: datetime) -> str:
    return f"{day_and_time(at)} UTC"


def _figures(plan: Plan, request: PlanRequest | None) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    times = f"prices of {day_and_time(plan.as_of)} UTC"
    if request is not None:
        horizon = request.horizon
        times = f"{day_and_time(horizon.start)} to {day_and_time(horizon.end)}, {times}"
    grid.add_row("time", times)
    cost = Text(usd(plan.cost_usd), style="bold")
    if request is not None and request.budget_usd is not None:
        cost.append(f"  of a budget of {usd(request.budget_usd)}", style="not bold")
    grid.add_row("cost", cost)
    if plan.penalty_usd:
        grid.add_row("penalties", f"{usd(plan.penalty_usd)} for lateness and for what is left out")
    for wait in plan.waits:
        if wait.delay_usd:
            grid.add_row("delay", _delay(wait))
    grid.add_row("quality", _quality(plan))
    saving = _saving(plan)
    if saving is not None:
        grid.add_row(*saving)
    return grid


def _delay(wait: Wait) -> str:
    later = hours((wait.start - wait.earliest_start) / timedelta(hours=1))
    what = f"{wait.workload} starts {later} after the earliest end of {wait.after}"
    return f"{usd(wait.delay_usd)} counted, on no bill: {what}, at {price_words(wait.usd_per_hour)} an hour"


def _quality(plan: Plan) -> str:
    searched = (
        f"{plan.solve_seconds:.1f} s over {plan.candidates.evaluated:,} candidates "
        f"({plan.candidates.kept:,} kept)"
    )
    if plan.bound_usd is None or plan.gap is None:
        return searched
    less = f"{bound_label(plan)} {usd(plan.bound_usd)}"
    proven = f"within {percent(plan.gap)} of the best possible: {less}"
    return f"{proven}\n{searched}"


def _saving(plan: Plan) -> tuple[str, Text] | None:
    """A label, and what the plan saves against the cheapest simple strategy within the budget, or costs above
    it.
    """
    if plan.status is PlanStatus.INFEASIBLE:
        return None
    against, saved = strongest(plan), saved_usd(plan)
    if against is None or saved is None or not against.cost_usd:
        none = Text("no simpler strategy stays within the budget")
        return ("compared", none) if all_pass_budget(plan) else None
    if saved > 0:
        named = f" against {strategy(against.name)}"
        if not all(row.completed for row in plan.baselines):
            named += f", the strongest of {completed_baselines(plan)} that could be completed"
        return "saves", Text.assemble((_saved(against, plan), "bold green"), named)
    return "compared", Text(above_words(saved, against))


def _gap(width: int) -> int:
    return 1 if width < ROOMY else 3


def _titled(title: str, gap: int = 2) -> Table:
    return Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        pad_edge=False,
        show_edge=False,
        padding=(0, gap, 0, 0),
    )


def _spaced(table: RenderableType) -> Padding:
    return Padding(table, (1, 0, 0, 0))


def _placements(plan: Plan, width: int, title: str) -> Padding:
    table = _titled(title, _gap(width))
    table.add_column("workload", no_wrap=True, overflow="ellipsis", max_width=NAME_WIDTH)
    table.add_column("capacity", overflow="fold")
    table.add_column("where", overflow="fold")
    table.add_column("when (UTC)", no_wrap=True)
    table.add_column("cost\nper node-hour", justify="right", no_wrap=True)
    for placements in _by_workload(plan).values():
        for index, placement in enumerate(placements):
            table.add_row(
                _name(plan, placement, index),
                _two_lines(_capacity(placement), _layout(placement)),
                _two_lines(f"{placement.provider} {placement.tier}", placement.zone or placement.region),
                _when(placement),
                _two_lines(usd(placement.cost_usd), _hourly(placement)),
            )
    return _spaced(table)


def _name(plan: Plan, placement: Placement, index: int) -> Text:
    """The workload and its kind once, and which part of it each placement is."""
    part = plan.part_of(placement).removeprefix("part ").partition(":")[0]
    name = [Text(placement.workload), Text(str(placement.kind), "dim")] if index == 0 else []
    return Text("\n").join([*name, *([Text(part, "dim")] if part else [])])


def _by_workload(plan: Plan) -> dict[str, list[Placement]]:
    found: dict[str, list[Placement]] = {}
    for placement in plan.placements:
        found.setdefault(placement.workload, []).append(placement)
    return found


def _two_lines(first: str, second: str) -> Text:
    return Text.assemble(first, "\n", (second, "dim"))


def _capacity(placement: Placement) -> str:
    per_node = placement.gpus // placement.nodes if placement.nodes else placement.gpus
    held = [segment.nodes for segment in placement.segments] or [placement.nodes]
    count = f"{placement.nodes}" if min(held) >= placement.nodes else f"{min(held)} to {placement.nodes}"
    if max(held) > placement.nodes:
        count = f"{placement.nodes} (of {max(held)} bought)"
    return f"{count} × {per_node} {placement.gpu}"


def _layout(placement: Placement) -> str:
    layout, is_run = placement.parallelism, placement.kind is WorkloadKind.TRAINING
    degrees = {"tp": layout.tp, "pp": layout.pp, "dp": layout.dp, "cp": layout.cp, "ep": layout.ep}
    if not is_run and layout.dp > 1:
        degrees = {"dp": layout.dp}  # attention ranks: the tensor group and the groups of experts are theirs
    size = plural(placement.gpus, "GPU") if is_run else plural(placement.replicas, "replica")
    words = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
    shape = " ".join([size, *words, str(placement.precision)])
    return f"{shape}\n{placement.ordered_words}" if placement.ordered_words else shape


def _when(placement: Placement) -> Text:
    if not placement.segments:
        return Text("never")
    start = min(segment.start for segment in placement.segments)
    end = max(segment.end for segment in placement.segments)
    return Text(f"{day_and_time(start)}\nto {day_and_time(end)}")


def _hourly(placement: Placement) -> str:
    held = node_hours(placement.segments)
    return usd(placement.capacity_usd / Decimal(held)) if held else ""


def _timeline(plan: Plan, horizon: Window | None, width: int) -> Iterator[RenderableType]:
    span = span_of(plan.placements, horizon)
    if span is None:
        return
    columns = width - NAME_WIDTH - 2
    lines = Text("\nNodes over time\n", style="bold", no_wrap=True)
    groups = _by_workload(plan)
    for workload, placements in islice(groups.items(), MOST_WORKLOADS):
        for index, placement in enumerate(placements):
            style = "cyan" if placement.kind is WorkloadKind.TRAINING else "magenta"
            name = _short(workload) if index == 0 else ""
            lines.append(f"{name:<{NAME_WIDTH}}  ", style="not bold")
            lines.append(bar(placement.segments, span, columns) + "\n", style=f"not bold {style}")
    lines.append(" " * (NAME_WIDTH + 2) + axis(span, columns).rstrip(), style="not bold dim")
    yield lines


def _short(name: str) -> str:
    return name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 1] + "…"


def _unplaced(plan: Plan) -> Padding:
    table = _titled("Left out")
    table.add_column("workload", overflow="fold", max_width=NAME_WIDTH)
    table.add_column("stopped by", style="yellow", no_wrap=True)
    table.add_column("nearest fix", overflow="fold", ratio=1)
    for row in plan.unplaced:
        table.add_row(row.workload, str(row.reason), row.nearest_fix)
        for fix in row.fixes[1:]:
            table.add_row("", "", f"or {fix.says}")
    return _spaced(table)


def _baselines(plan: Plan, width: int) -> Padding:
    table = _titled("Compared with simpler strategies", _gap(width))
    table.add_column("strategy", overflow="fold", ratio=2)
    table.add_column("cost", justify="right", no_wrap=True)
    table.add_column("this plan saves", justify="right", no_wrap=True)
    table.add_column("how", overflow="fold", ratio=3, style="dim")
    for row in plan.baselines:
        cost = usd(row.cost_usd) if row.cost_usd is not None else without_cost(row)
        table.add_row(strategy(row.name), cost, _saved(row, plan), row.why)
    return _spaced(table)


def _saved(row: Baseline, plan: Plan) -> str:
    """What the plan saves against a strategy, in USD and as a share of the strategy's cost."""
    if not row.cost_usd:
        return ""
    saved = row.cost_usd - plan.cost_usd - plan.delay_usd
    return f"{usd(saved)} ({percent(float(saved / row.cost_usd))})"


def _reasons(plan: Plan, objectives: Mapping[str, Slo]) -> Iterator[RenderableType]:
    if not plan.placements:
        return
    yield Text("\nWhy", style="bold")
    groups = _by_workload(plan)
    for workload, placements in islice(groups.items(), MOST_WORKLOADS):
        yield Padding(_reason(workload, placements, objectives.get(workload)), (0, 0, 0, 2))
    if len(groups) > MOST_WORKLOADS:
        yield Text(f"  … and {len(groups) - MOST_WORKLOADS} more workloads; --json has all of them", "dim")


def _reason(workload: str, placements: Sequence[Placement], slo: Slo | None) -> RenderableType:
    """The performance and the unused time of each placement, then the reasons, one sentence a line."""
    text = Text.assemble((workload, "bold"), " ")
    is_run = placements[0].kind is WorkloadKind.TRAINING
    text.append("".join(map(_run, placements)) if is_run else _fleet(placements))
    tightest = None if slo is None else tightest_objective(placements, slo)
    if tightest is not None:
        text.append(f"Its objective: {objective_words(tightest)}.", "yellow" if is_tight(tightest) else "")
    unused = sum((placement.paid_unused_usd for placement in placements), ZERO)
    if unused:
        text.append(f" {usd(unused)} of it pays for time that is not used.")
    for placement in placements:
        if changes := held_words(placement.segments):
            text.append(f" At {placement.provider}, {placement.gpu}: {changes}.")
    for use in (p.window_use for p in placements if p.window_use is not None and p.window_use.unwanted_usd):
        text.append(_window_use(use))
    line = why_line(placements, str)
    if line:
        text.append(f"\n{line[:1].upper()}{line[1:]}.", style="bold")
    shown, rest = folded(sentences_together(placements))
    lines = Table.grid(padding=(0, 1))
    lines.add_column(no_wrap=True, style="dim")
    lines.add_column(overflow="fold")
    for sentence in shown:
        lines.add_row("-", Text(sentence))
    if rest:
        lines.add_row("", Text(f"… and {len(rest)} more (--json)", style="dim"))
    return Group(text, lines)


def _window_use(use: WindowUse) -> str:
    """The wanted time, and the window on sale that covers it."""
    taken_back = "" if use.usable.end == use.bought.end else f", usable until {day_and_time(use.usable.end)}"
    return (
        f" It wants {day_and_time(use.wanted.start)} to {day_and_time(use.wanted.end)}; sold is "
        f"{day_and_time(use.bought.start)} to {day_and_time(use.bought.end)}{taken_back}: "
        f"{hours(use.unwanted_hours)} a node, {usd(use.unwanted_usd)}, are paid and not wanted."
    )


def _scarce(plan: Plan) -> Iterator[RenderableType]:
    """What one more node of a sold-out offer would save."""
    if plan.scarcity:
        yield Text("\nScarce", style="bold")
        for row in plan.scarcity[:MOST_SCARCE]:
            yield Padding(Text(f"{row.text[:1].upper()}{row.text[1:]}."), (0, 0, 0, 2))


def _notes(plan: Plan) -> Iterator[RenderableType]:
    """How the document was interpreted, where a reader should know."""
    if plan.notes:
        yield Text("\nWorth knowing", style="bold")
        for note in plan.notes:
            yield Padding(Text(f"{note[:1].upper()}{note[1:]}."), (0, 0, 0, 2))


def _assumptions(plan: Plan) -> Iterator[RenderableType]:
    """Stock that the plan assumes where the seller states no number."""
    if plan.assumptions:
        yield Text("\nAssumed stock", style="bold")
        for row in plan.assumptions:
            yield Padding(Text(f"{plural(row.nodes, 'node')} of {row.offer_id}: {row.says}."), (0, 0, 0, 2))


def _run(placement: Placement) -> str:
    estimate = placement.estimate
    spread = hours_between(estimate["hours"], estimate.low["hours"], estimate.high["hours"])
    return (
        f"takes {spread} on {placement.gpu} at {rate(estimate['tokens_per_s'])} tokens/s, "
        f"{percent(estimate['mfu'])} MFU, goodput {percent(estimate['goodput'])}, "
        f"limited by {placement.why.bottleneck} ({estimate.provenance}). "
    )


def _fleet(placements: Sequence[Placement]) -> str:
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
