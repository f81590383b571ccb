"""Pure pieces of what is printed: figures, bars, progress, and any plan at any width."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from api.cli.output import SafeConsole
from api.cli.plans.plan_view import print_plan
from api.cli.plans.progress import ProgressLine
from api.cli.tables import table_of
from api.figures import hours, hours_between, percent, plural, rate, usd
from api.plan_sections import axis, bar
from api.sections import Section
from broker.domain.basics.estimate import Estimate, Parallelism
from broker.domain.basics.window import Segment, Window
from broker.domain.planning.plan import Assumption, Plan
from broker.domain.planning.workload import WorkloadKind
from broker.ports.planning import Progress
from tests import strategies
from tests.fakes.examples import a_placement, a_plan, a_segment, an_offer

START = datetime(2026, 11, 23, tzinfo=UTC)
METRICS = (
    "hours", "tokens_per_s", "mfu", "goodput", "requests_per_s_per_replica", "ttft_p95_ms", "itl_p95_ms",
    "usd_per_million_tokens",
)  # fmt: skip


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plan, its estimates with every metric."""
    plan = draw(strategies.plans)
    value = {name: draw(strategies.positives) for name in METRICS}
    estimate = Estimate(value, value, value)
    return replace(plan, placements=tuple(replace(p, estimate=estimate) for p in plan.placements))


@given(plans(), st.sampled_from([80, 100, 140]))
def test_any_plan_is_printed_within_the_width(plan: Plan, width: int) -> None:
    text = io.StringIO()
    print_plan(SafeConsole(file=text, width=width, no_color=True), plan)
    lines = text.getvalue().split("\n")
    assert plan.plan_id in text.getvalue()
    assert max(cell_len(line) for line in lines) <= width
    assert "\x1b" not in text.getvalue()


def test_assumed_stock_is_told_with_who_says_what() -> None:
    text = io.StringIO()
    told = (Assumption("a", 1, "runpod states no stock"), Assumption("b", 3, "verda states no stock"))
    print_plan(SafeConsole(file=text, width=140, no_color=True), replace(a_plan(), assumptions=told))
    assert "1 node of a: runpod states no stock." in text.getvalue()
    assert "3 nodes of b: verda states no stock." in text.getvalue()
    text = io.StringIO()
    print_plan(SafeConsole(file=text, width=140, no_color=True), a_plan())
    assert "Assumed stock" not in text.getvalue()


def test_attention_ranks_are_named_once() -> None:
    """The tensor group and the groups of experts of a replica with ranks are the same GPUs."""
    layout = Parallelism(tp=8, dp=8, ep=8)
    value = dict.fromkeys(METRICS, 1.0)
    estimate = Estimate(value, value, value)
    placed = a_placement(an_offer(), [a_segment(0, 24, 2)], "chat", WorkloadKind.SERVING)
    served = replace(placed, parallelism=layout, replicas=2, estimate=estimate)
    text = io.StringIO()
    print_plan(SafeConsole(file=text, width=140, no_color=True), a_plan(served))
    assert "2 replicas dp8 bf16" in text.getvalue()


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
        (usd(Decimal("1234.5")), "$1,234.50"),
        (usd(Decimal("-3")), "-$3.00"),
        (rate(2_350_000), "2.35 M"),
        (rate(0.5468), "0.547"),
        (percent(0.0123), "1.2 %"),
        (percent(0.463), "46 %"),
        (percent(0.0), "0 %"),
        (hours(0.5), "30 min"),
        (hours(71.9), "71.9 h"),
        (hours(120), "5.0 d"),
        (hours_between(100, 60, 140), "4.2 d (2.5 to 5.8)"),
        (plural(1, "node"), "1 node"),
        (plural(2000, "GPU"), "2,000 GPUs"),
    ],
)
def test_figures(shown: str, wanted: str) -> None:
    assert shown == wanted


def test_a_bar_shows_when_and_how_many() -> None:
    span = Window(START, START + timedelta(days=4))
    segments = [
        Segment(START + timedelta(days=1), START + timedelta(days=2), 2),
        Segment(START + timedelta(days=2), START + timedelta(days=3), 8),
    ]
    assert bar(segments, span, 8) == "··▂▂██··"
    assert bar([], span, 4) == "····"


@pytest.mark.parametrize("days", [0.5, 1, 7, 30, 365, 1830])
@pytest.mark.parametrize("width", [20, 56, 100])
def test_the_axis_fits_whatever_the_span(days: float, width: int) -> None:
    span = Window(START + timedelta(hours=5), START + timedelta(hours=5, days=days))
    assert len(axis(span, width)) == width


def test_progress_is_plain_lines_where_nobody_watches() -> None:
    text = io.StringIO()
    with ProgressLine(Console(file=text, force_terminal=False, width=120)) as progress:
        progress.say("planning")
        for second in range(12):
            progress(Progress(float(second), 100.0, 90.0, 0.1, ("greedy", "settled")[second % 2]))
        progress(Progress(12.0, None, None, None, "compared"))
    lines = text.getvalue().splitlines()
    assert lines[0] == "planning"
    assert lines[1] == "searching  0.0 s  best $100  bound $90  gap 10 %"
    assert lines[-1] == "comparing strategies  12.0 s"
    assert len(lines) == 5


def test_progress_is_one_moving_line_on_a_terminal() -> None:
    text = io.StringIO()
    with ProgressLine(Console(file=text, force_terminal=True, width=120)) as progress:
        progress(Progress(1.0, 100.0, None, None, "placing"))
    assert "\x1b[?25l" in text.getvalue()


def test_no_word_of_a_table_is_cut_where_all_longest_words_fit() -> None:
    columns = ("workload", "capacity", "where", "=when", ">cost")
    row = (
        "finetune-8b",
        "7 × 8 H200-SXM-141GB",
        "prime_intellect on_demand",
        "to 22 Dec 00:00",
        "$18,221.77",
    )
    for width in (80, 120):
        console = Console(file=io.StringIO(), width=width)
        console.print(table_of(Section(columns, [row]), width))
        printed = console.file.getvalue()  # type: ignore[attr-defined]
        assert all(word in printed for cell in row for word in cell.split())
        assert max(map(cell_len, printed.splitlines())) <= width
