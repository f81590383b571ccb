"""The first sentences of a plan, against sentences written by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from api.figures import day_and_time
from api.plan_answer import answer_of, objectives_in, why_line
from api.plan_sections import fleets_of, plan_cards
from api.plan_words import objective_words, priced_unit
from broker.domain.basics.estimate import Estimate
from broker.domain.basics.window import Window
from broker.domain.planning.comparison import tightest_objective
from broker.domain.planning.plan import (
    Alternative,
    Baseline,
    BindingRule,
    ConfidencePrice,
    Obstacle,
    Placement,
    Plan,
    Unplaced,
    Wait,
)
from broker.domain.planning.stages import Stage, StageBasis
from broker.domain.planning.window_use import WindowUse
from broker.domain.planning.workload import Slo, WorkloadKind
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_segment, an_offer, slot_terms

RUN = a_placement(an_offer("a", "10"), [a_segment(0, 10, 2)], "tune", WorkloadKind.TRAINING)
SERVICE = a_placement(an_offer("b", "4"), [a_segment(12, 48)], "chat", WorkloadKind.SERVING)

RAISES = "raises the chance of the least certain workload from 82 % to 92 %."
SLO = {"ttft_p95_ms": 2000, "itl_p95_ms": 80}


def told(at: datetime) -> str:
    return f"hour {(at - NOON) / timedelta(hours=1):.0f}"


def baseline(name: str, usd: str | None, *, completed: bool = True) -> Baseline:
    return Baseline(name, None if usd is None else Decimal(usd), "", completed)


def paid_between(p10: str, mean: str, p90: str, *placements: Placement) -> Plan:
    return replace(
        a_plan(*placements),
        cost_p10_usd=Decimal(p10),
        expected_cost_usd=Decimal(mean),
        cost_p90_usd=Decimal(p90),
    )


def test_a_small_plan_says_what_is_bought_when_it_is_done_and_what_it_saves() -> None:
    plan = a_plan(RUN, SERVICE)
    assert plan.cost_usd == Decimal(344)
    plan = replace(
        plan,
        baselines=(
            baseline("single_provider", "430"),
            baseline("converged", "500"),
            baseline("single_shape", None, completed=False),
        ),
    )
    seller = {RUN.provider: "Lambda"}.get
    first, cost = answer_of(plan, lambda key: seller(key, key), told)
    gpu, place = RUN.gpu, RUN.zone or RUN.region
    assert first == (
        f"tune is expected to be done by hour 10 on 16 {gpu} at Lambda in {place}; "
        f"chat is live from hour 12 on up to 8 {gpu} at Lambda in {place}."
    )
    assert cost == (
        "It costs $344.00, $86.00 (20 %) less than “one provider for all”, "
        "the strongest of 2 simpler strategies that could be completed."
    )


def test_each_workload_says_its_chance() -> None:
    sure, likely = replace(RUN, chance=0.999), replace(SERVICE, chance=0.831)
    first, *_ = answer_of(a_plan(sure, likely), str, told)
    run, service = first.removesuffix(".").split("; ")
    assert run.endswith(", done in time with more than 99 %")
    assert service.endswith(", objective held at peak with 83 %")


def test_a_service_in_stages_says_what_is_planned_after_the_first() -> None:
    until, end = NOON + timedelta(days=1), NOON + timedelta(days=7)
    staged = replace(
        SERVICE,
        chance=0.831,
        stages=(Stage(until, StageBasis.CONFIDENCE), Stage(end, StageBasis.EXPECTED)),
    )
    first = answer_of(a_plan(staged), str, told)[0]
    first_stage = f"objective held at peak with 83 % until {day_and_time(until)} UTC"
    assert first.endswith(f", {first_stage}, then planned at its expected rate.")
    _, card, *_ = plan_cards(paid_between("31", "62", "111", staged))
    assert card.note == (
        "on average; $31.00 to $111.00 in eight of ten cases; after a day fleets follow their measured rates"
    )


@pytest.mark.parametrize(
    ("usd", "chance", "sentence"),
    [
        ("40", 0.92, f"$9.00 more {RAISES}"),
        ("31", 0.92, f"A plan that costs no more {RAISES}"),
        ("40", 0.82, None),
    ],
)
def test_a_surer_plan_is_priced_in_a_sentence(usd: str, chance: float, sentence: str | None) -> None:
    row = ConfidencePrice(0.9, Decimal(usd), Decimal(usd), chance)
    plan = replace(a_plan(replace(SERVICE, chance=0.82)), cost_usd=Decimal(31), confidence_prices=(row,))
    prices = [one for one in answer_of(plan, str, told) if "raises the chance" in one]
    assert prices == ([] if sentence is None else [sentence])


def test_a_cost_that_is_certain_is_told_once() -> None:
    _, card, *_ = plan_cards(paid_between("31", "31", "31", SERVICE))
    assert (card.figure, card.note) == ("$31.00", "on average and in eight of ten cases")


def test_a_plan_of_many_workloads_says_the_least_chance() -> None:
    runs = [
        replace(RUN, workload=f"run-{n}", chance=chance) for n, chance in enumerate([0.9, 0.55, 0.7, 0.8])
    ]
    first, *_ = answer_of(a_plan(*runs, SERVICE), str, told)
    assert "; the least certain is run-1, done in time with 55 %; " in first


@pytest.mark.parametrize(
    ("high", "end"),
    [
        (10.5, "hour 10"),
        (14.0, "hour 10 (hour 14, at the upper end of its estimate)"),
    ],
)
def test_a_run_is_done_as_expected_and_later_at_the_upper_end(high: float, end: str) -> None:
    estimate = Estimate({"hours": 10.0}, {"hours": 9.0}, {"hours": high})
    first, *_ = answer_of(a_plan(replace(RUN, estimate=estimate)), str, told)
    assert first.startswith(f"tune is expected to be done by {end} on 16 ")


def test_a_window_that_may_end_before_its_run_is_told_at_once() -> None:
    """96 H100 for four hours that the run fills for 3 h 53 min, and 4 h 32 min at its upper end."""
    minute = timedelta(minutes=1)
    use = WindowUse(
        wanted=Window(NOON, NOON + 233 * minute),
        bought=Window(NOON, NOON + 240 * minute),
        usable=Window(NOON, NOON + 240 * minute),
        unwanted_hours=0.0,
        unwanted_usd=Decimal(0),
    )
    estimate = Estimate({"hours": 233 / 60}, {"hours": 200 / 60}, {"hours": 272 / 60})
    offer = an_offer("w", "10", window=slot_terms(NOON, 96))
    placed = a_placement(offer, [a_segment(0, 4)], "tune", WorkloadKind.TRAINING)
    run = replace(placed, estimate=estimate, window_use=use)
    first, *_ = answer_of(a_plan(run), str, lambda at: f"{at:%H:%M}")
    assert first.startswith(
        "tune is expected to be done by 15:53 (16:32, after its window, at the upper end of its estimate) on "
    )


def test_a_batch_takes_longer_at_the_lower_end_of_its_rate() -> None:
    rate = "requests_per_s_per_replica"
    estimate = Estimate({rate: 4.0}, {rate: 2.5}, {rate: 6.0})
    batch = replace(RUN, kind=WorkloadKind.BATCH, estimate=estimate)
    first, *_ = answer_of(a_plan(batch), str, told)
    assert "done by hour 10 (hour 16, at the upper end of its estimate) on" in first


def test_parts_of_a_batch_side_by_side_are_late_together_and_not_one_after_another() -> None:
    """10 hours each, 12 at the upper end, on two offers at once; a third is done in hour 6, or 7."""
    estimate = Estimate({"hours": 10.0}, {"hours": 9.0}, {"hours": 12.0})
    first = replace(RUN, kind=WorkloadKind.BATCH, estimate=estimate)
    third = a_placement(an_offer("c", "4"), [a_segment(0, 6)], "tune", WorkloadKind.BATCH)
    short = Estimate({"hours": 6.0}, {"hours": 5.0}, {"hours": 7.0})
    said, *_ = answer_of(a_plan(first, first, replace(third, estimate=short)), str, told)
    assert "done by hour 10 (hour 12, at the upper end of its estimate) on" in said


def test_a_service_is_live_a_cold_start_after_its_first_nodes() -> None:
    """DeepSeek-R1 takes 38 min from the order of its nodes to its first answer."""
    metrics = {"cold_start_s": 38 * 60.0}
    cold = replace(SERVICE, estimate=Estimate(metrics, metrics, metrics))
    first, *_ = answer_of(a_plan(cold), str, lambda at: f"{at:%H:%M}")
    assert first.startswith("chat is live from 00:38 on up to 8 ")
    running = replace(cold, live_from=cold.segments[0].start)
    first, *_ = answer_of(a_plan(running), str, lambda at: f"{at:%H:%M}")
    assert first.startswith("chat is live from 00:00 on up to 8 ")


def test_a_saving_is_told_only_against_what_was_completed() -> None:
    unfinished = replace(a_plan(RUN), baselines=(baseline("single_shape", None, completed=False),))
    assert answer_of(unfinished, str, told)[1] == "It costs $200.00."
    dearer = replace(a_plan(RUN), baselines=(baseline("converged", "150"),))
    assert answer_of(dearer, str, told)[1] == (
        "It costs $200.00, $50.00 more than “one always-on pool”, "
        "the one simpler strategy that could be completed: "
        "near ties pay that for fewer pools or sellers, or an earlier end."
    )


def test_waits_and_what_is_left_out_are_told() -> None:
    wait = Wait("chat", "tune", NOON, NOON + timedelta(hours=12), Decimal(2), Decimal(24))
    left = Unplaced("index", Obstacle.GPU_UNKNOWN, "another GPU")
    plan = replace(a_plan(RUN, SERVICE, unplaced=(left,)), waits=(wait,), delay_usd=Decimal(24))
    first, *_, delay, out = answer_of(plan, str, told)
    assert "chat is live from hour 12, if tune is done in time, on up to 8 " in first
    assert delay == (
        "chat starts 12 h later than the earliest end of tune, a delay that is counted at $24.00."
    )
    assert out == "Left out: index (gpu unknown)."
    assert answer_of(a_plan(unplaced=(left,)), str, told) == (out,)


def test_a_large_plan_is_told_in_counts() -> None:
    runs = [replace(RUN, workload=f"run-{n}") for n in range(3)]
    services = [replace(SERVICE, workload=f"service-{n}", provider=f"p{n}") for n in range(2)]
    batch = replace(RUN, workload="index", kind=WorkloadKind.BATCH)
    first, _ = answer_of(a_plan(*runs, *services, batch), str, told)
    assert first == (
        "3 runs are expected to be done by hour 10; 1 batch is expected to be done by hour 10; "
        "2 services are live from hour 12 at the latest; all of it on capacity of 3 sellers."
    )


def test_why_here_is_one_line() -> None:
    other = Alternative("verda/x/on_demand", Decimal(9), Decimal("7.86"), None, BindingRule.PRICE, "dearer")
    nearer = replace(other, offer_id="vast/y/on_demand", more_usd=Decimal("1.5"))
    dropped = (
        (Obstacle.POLICY, 3),
        (Obstacle.FABRIC, 773),
        (Obstacle.LATENCY, 132),
        (Obstacle.CONTENTION, 9),
    )
    why = replace(RUN.why, fitting=1058, next_best=(other,), filtered=dropped)
    one = replace(RUN, why=why, cost_usd=Decimal(500))
    two = replace(RUN, why=replace(why, next_best=(nearer,)))
    assert why_line([one, two], str) == (
        "cheapest found among 1,058 offers that fit; next: vast/y/on_demand, +$1.50; "
        "dropped: 773 without a fabric, 132 too slow for the SLO"
    )
    assert why_line([RUN], str) == ""


@pytest.mark.parametrize(
    ("more", "later", "told"),
    [
        ("0.004", None, "a near tie: verda/x costs the same, and is as good"),
        ("0", 3.0, "next: verda/x costs the same and ends 3.0 h later"),
        ("0.01", 3.0, "next: verda/x, +$0.01"),
    ],
)
def test_a_next_best_that_costs_the_same_is_explained(more: str, later: float | None, told: str) -> None:
    way = Alternative("verda/x", Decimal(9), Decimal(more), later, BindingRule.PRICE, "dearer")
    one = replace(RUN, why=replace(RUN.why, fitting=None, next_best=(way,), filtered=()))
    assert why_line([one], str) == told


def test_a_cheaper_way_that_a_rule_excludes_is_not_the_next_best() -> None:
    because = "costs $2.00 less, but passes the quota of 8 GPUs at aws"
    excluded = Alternative("aws/x", Decimal(3), Decimal(-2), 1.0, BindingRule.QUOTA, because)
    dearer = Alternative("vast/y", Decimal(9), Decimal(4), 1.0, BindingRule.PRICE, "costs $4.00 more")
    both = replace(RUN, why=replace(RUN.why, fitting=None, filtered=(), next_best=(excluded, dearer)))
    assert why_line([both], str) == "next: vast/y, +$4.00"
    alone = replace(RUN, why=replace(both.why, next_best=(excluded,)))
    assert why_line([alone], str) == f"next: aws/x {because}"


@pytest.mark.parametrize(
    ("itl_ms", "said", "told_of"),
    [
        (80.0, "which is the most it allows", True),
        (77.6, "3 % to spare", True),
        (76.0, "5 % to spare", False),
        (40.0, "50 % to spare", False),
    ],
)
def test_an_objective_with_little_to_spare_is_told_in_the_first_sentence(
    itl_ms: float, said: str, told_of: bool
) -> None:
    value = {"ttft_p95_ms": 150.0, "itl_p95_ms": itl_ms}
    easy = replace(SERVICE, estimate=replace(SERVICE.estimate, value={**value, "itl_p95_ms": 20.0}))
    tight = replace(SERVICE, estimate=replace(SERVICE.estimate, value=value))
    plan = a_plan(RUN, easy, tight)
    objectives = objectives_in({"workloads": [{"name": "tune"}, {"name": "chat", "slo": SLO}]})
    first = answer_of(plan, str, told, objectives)[0]
    spare = "nothing to spare" if itl_ms == 80.0 else said
    assert first.endswith(f", its objective met with {spare}.") is told_of
    assert ("to spare" in first) is told_of
    likely = a_plan(RUN, *(replace(one, chance=0.9) for one in (easy, tight)))
    assert "to spare" not in answer_of(likely, str, told, objectives)[0]
    fleets = {one.workload: one for one in fleets_of(plan, objectives)}
    assert fleets["chat"].is_tight is told_of
    assert not any(one.is_tight for one in fleets_of(likely, objectives))
    found = tightest_objective(plan.placements_of("chat"), objectives["chat"])
    assert found is not None
    assert objective_words(found) == f"ITL p95 {itl_ms:.0f} of 80 ms at full load, {said}"
    many = a_plan(RUN, *(replace(tight, workload=f"chat-{number}") for number in range(5)))
    every = objectives_in({"workloads": [{"name": f"chat-{n}", "slo": SLO} for n in range(2)]})
    assert ("2 of them meet their objectives with less than 5 % to spare" in answer_of(
        many, str, told, every)[0]) is told_of  # fmt: skip


def test_an_objective_without_a_limit_or_a_figure_binds_nothing() -> None:
    assert objectives_in({"workloads": [{"name": "a"}, {"name": "b", "slo": {"ttft_p95_ms": None}}]}) == {}
    assert tightest_objective([SERVICE], Slo(200.0, 80.0)) is None
    first_only = replace(SERVICE, estimate=replace(SERVICE.estimate, value={"ttft_p95_ms": 150.0}))
    found = tightest_objective([first_only], Slo(200.0, 0))
    assert found is not None
    assert (found.metric, found.spare) == ("ttft_p95_ms", 0.25)


def test_what_yields_one_token_a_request_is_priced_by_requests() -> None:
    rate = "requests_per_s_per_replica"
    assert priced_unit({rate: 120.0, "tokens_per_s": 120.0}) == "requests"
    assert priced_unit({rate: 2.0, "tokens_per_s": 600.0}) == "output tokens"
    assert priced_unit({"tokens_per_s": 9.0}) == "output tokens"
