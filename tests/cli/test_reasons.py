"""Why a workload is placed as it is: six sentences at once, in the terminal's width, and how many more."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from io import StringIO

from rich.console import Console

from api.cli.output import SafeConsole
from api.cli.plans.plan_view import print_plan
from api.plan_words import MOST_AT_ONCE, folded, sentences_of, sentences_together
from broker.domain.planning.plan import Baseline, Obstacle, Plan, PlanStatus, Unplaced, Why
from tests.placement.market import offer, plan, request, serving, training

SENTENCES = tuple(f"Reason {number} decides this placement, and it is told in words." for number in range(9))
LONG = "The next best is far away: " + "it costs more and ends later, " * 6 + "and that is all."


def printed(found: Plan, width: int = 80) -> list[str]:
    out = StringIO()
    print_plan(Console(file=out, width=width, no_color=True), found)
    return out.getvalue().splitlines()


def explained(found: Plan, *sentences: str) -> Plan:
    why = replace(found.placements[0].why, sentences=sentences)
    return replace(found, placements=(replace(found.placements[0], why=why),))


def run_of_ten_hours() -> Plan:
    return plan(request(training("run", 10)), [offer("a", "1.00"), offer("b", "1.10")])


def test_six_sentences_are_shown_and_the_others_counted() -> None:
    lines = printed(explained(run_of_ten_hours(), *SENTENCES))
    assert [line.strip() for line in lines if "Reason" in line] == [f"- {s}" for s in SENTENCES[:6]]
    assert any(line.strip() == "… and 3 more (--json)" for line in lines)


def test_six_sentences_need_no_count() -> None:
    lines = printed(explained(run_of_ten_hours(), *SENTENCES[:6]))
    assert not any("more (--json)" in line for line in lines)


def test_long_sentences_stay_within_eighty_columns() -> None:
    lines = printed(explained(run_of_ten_hours(), LONG))
    assert max(map(len, lines)) <= 80
    first = next(number for number, line in enumerate(lines) if "The next best is far away" in line)
    words = " ".join(lines[first:]).split()
    assert words[: len(LONG.split()) + 1] == ["-", *LONG.split()]


def test_a_plan_of_before_shows_the_rules_that_decided() -> None:
    assert sentences_of(Why("flops", ("it is the cheapest", "1 node is enough"))) == (
        "It is the cheapest.",
        "1 node is enough.",
    )


def test_the_dearest_placement_speaks_first_and_nothing_is_told_twice() -> None:
    found = plan(
        request(serving(hourly=[7.0]), hours=10),
        [offer("a", "1.00", nodes=1), offer("b", "1.10", nodes=1, zone="b")],
    )
    told = sentences_together(found.placements)
    assert len(set(told)) == len(told)
    dearest = max(found.placements, key=lambda placement: placement.cost_usd)
    assert told[: len(dearest.why.sentences)] == dearest.why.sentences


def test_nothing_is_lost_in_the_fold() -> None:
    shown, rest = folded(SENTENCES)
    assert (*shown, *rest) == SENTENCES
    assert len(shown) == MOST_AT_ONCE == 6


def test_a_comparison_that_was_cut_short_is_not_completed_and_no_headline() -> None:
    found = run_of_ten_hours()
    cut = Baseline("single_shape", None, "3 of 9 kinds of node were not tried", completed=False)
    lines = printed(replace(found, baselines=(cut,)))
    assert sum(line.count("not completed") for line in lines) == 1
    assert not any("less than “" in line for line in lines)


def compared(found: Plan, *baselines: Baseline) -> str:
    return " ".join(" ".join(printed(replace(found, baselines=baselines), 130)).split())


def test_the_headline_is_against_the_cheapest_strategy_within_the_budget() -> None:
    found = run_of_ten_hours()
    over = Baseline("single_shape", found.cost_usd * 2, "", over_budget_usd=Decimal(5))
    strong = Baseline("single_provider", found.cost_usd * 4, "")
    weak = Baseline("converged", found.cost_usd * 8, "")
    told = compared(found, over, weak, strong)
    assert "$30.00 (75 %) less than “one provider for all”" in told
    assert "Saved against one provider for all $30.00 75.00 % less" in told
    assert told.count("$30.00 (75 %)") == 2, "the table tells the same share"
    assert "none of them stays within the budget" in compared(found, over)
    cut = Baseline("cheapest_gpu_hour", None, "3 of 9 kinds of node were not tried", completed=False)
    part = "the strongest of 2 simpler strategies that could be completed"
    assert part in compared(found, cut, weak, strong)


def test_a_plan_above_a_strategy_says_what_is_paid_for() -> None:
    """A plan may cost up to the policy's premium more than a simple strategy, for what near ties buy."""
    found = run_of_ten_hours()
    below = Baseline("single_provider", found.cost_usd - Decimal("0.50"), "")
    told = compared(found, below)
    assert "Above one provider for all $0.50 near ties pay it for fewer pools" in told
    assert "Saved" not in told
    assert "$0.00 this strategy costs the same" in compared(
        found, Baseline("single_provider", found.cost_usd, "")
    )


def test_a_bound_says_what_it_counts() -> None:
    found = replace(run_of_ten_hours(), penalty_usd=Decimal(1000), bound_usd=Decimal(1009), gap=0.001)
    assert "With penalties, no plan costs less than $1,009.00" in compared(found)
    assert "With penalties and delay, no plan" in compared(replace(found, delay_usd=Decimal(1)))
    assert "No plan costs less than" in compared(replace(found, penalty_usd=Decimal(0)))


def test_brackets_and_colons_of_data_are_printed_as_they_are() -> None:
    fix = "precisions: [bf16, fp8] in place of [fp8] on host:warning:x: it then costs $1.00"
    found = replace(run_of_ten_hours(), unplaced=(Unplaced("other", Obstacle.PRECISION, fix),))
    out = StringIO()
    print_plan(SafeConsole(file=out, width=130, no_color=True), found)
    assert fix in " ".join(out.getvalue().split())


def test_no_title_says_that_a_proven_bound_is_not_proven() -> None:
    made = run_of_ten_hours()
    text = "\n".join(printed(replace(made, status=PlanStatus.FEASIBLE, bound_usd=made.cost_usd / 2, gap=0.5)))
    assert "cheaper plan possible" in text
    assert text.count("proven") == 1
