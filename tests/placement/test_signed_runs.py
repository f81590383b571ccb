"""Runs that a platform engineer would sign: early, in one piece, on hosts that hold them, with true fixes.

Documents of teams over one small market (``fixtures/teams``), as in ``test_signed_services``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from api.schemas.workloads.workloads import read_workloads
from broker.catalogue import load_launch_table
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.market.launch_statistics import LaunchStatistics, StatisticsLevel
from broker.domain.market.offer import Offer, Tier
from broker.domain.planning.plan import Obstacle, Plan
from broker.domain.planning.workload import Precision, Serving, Training
from optimizer.performance.constants.calibrated import load_calibration
from tests.json_patch import patched
from tests.placement.teams import NAMES, WORK, asked, document, market, offers, plan_of, planned

FIRST, SECOND = "aws/us-east-2/block/first", "aws/us-east-2/block/second"
GB = 1e9


def without(*offer_ids: str) -> tuple[Offer, ...]:
    return tuple(offer for offer in market().offers if offer.offer_id not in offer_ids)


def run_end(plan: Plan, run: str) -> datetime:
    (placement,) = plan.placements_of(run)
    return placement.segments[0].start + timedelta(hours=placement.estimate.sure_hours)


def test_of_two_blocks_at_one_price_the_run_takes_the_earlier() -> None:
    plan = planned("block-then-serve")
    (run,) = plan.placements_of("tune")
    assert run.offer_id == FIRST
    assert run.cost_usd == Decimal("755.04")
    (wait,) = plan.waits
    assert wait.start == pytest.approx(run_end(plan, "tune"), abs=timedelta(seconds=1))
    assert plan.delay_usd == 0
    later = plan_of(document("block-then-serve"), without(FIRST))
    assert later.placements_of("tune")[0].offer_id == SECOND


def test_a_wait_that_costs_next_to_nothing_is_no_reason_to_take_the_later_block() -> None:
    """Four days later the service would hold its node for 66 dollars less, and nobody is served meanwhile."""
    written = document("block-then-serve")
    written["workloads"][1]["starts"]["delay_usd_per_hour"] = 0.01
    assert plan_of(written).placements_of("tune")[0].offer_id == FIRST


def test_the_order_of_the_blocks_on_the_market_changes_nothing() -> None:
    plan = plan_of(document("block-then-serve"), reversed(market().offers))
    assert plan.placements_of("tune")[0].offer_id == FIRST


def test_a_run_that_may_be_interrupted_is_one_piece_and_begins_at_once() -> None:
    """Nothing is cheaper later: a split, or a start near the deadline of eleven days, saves nothing."""
    plan, request = planned("tune-then-serve"), asked(document("tune-then-serve"))
    (run,) = plan.placements_of("tune")
    assert run.work_share == 1.0
    assert len(run.segments) == 1
    assert run.segments[0].start - request.horizon.start <= timedelta(hours=1)
    cheapest = min(
        offer.price_usd_per_node_hour
        for offer in market().offers
        if offer.sku.gpus_per_node == 8 and offer.sku.gpu == "H100-SXM-80GB"
    )
    assert offers()[run.offer_id].price_usd_per_node_hour == cheapest


def test_every_run_is_done_within_its_document() -> None:
    for name in NAMES:
        plan, request = planned(name), asked(document(name))
        for workload in request.workloads:
            if not isinstance(workload, Serving):
                for placement in plan.placements_of(workload.name):
                    end = placement.segments[-1].end
                    if isinstance(workload, Training):
                        end = run_end(plan, workload.name)
                    assert placement.segments[0].start >= workload.earliest_start
                    assert end <= workload.deadline <= request.horizon.end


@pytest.mark.parametrize(
    ("service", "precision", "weights_gb"),
    [("gpt-oss", Precision.FP4, 60.8), ("deepseek", Precision.FP8, 671.0), ("kimi", Precision.INT4, 594.0)],
)
def test_a_model_is_served_in_the_format_in_which_it_is_published(
    service: str, precision: Precision, weights_gb: float
) -> None:
    """The sizes are those of the files on Hugging Face, in GB of 10^9 bytes."""
    fleets = planned("published-formats").placements_of(service)
    assert fleets
    for fleet in fleets:
        sku = offers()[fleet.offer_id].sku
        assert fleet.precision is precision
        assert weights_gb < fleet.gpus_per_replica * sku.gpu_memory_gb
        assert fleet.gpus_per_replica * fleet.estimate["memory_gb_per_gpu"] >= weights_gb
        assert weights_gb <= sku.disk_gb if sku.disk_gb is not None else True


def test_four_bit_weights_do_not_run_where_there_are_no_kernels_for_them() -> None:
    """A V100 at 0.14 dollars an hour has the memory, and no kernel for INT4."""
    written = document("helpdesk-closed-at-night")
    written["workloads"][0]["precisions"] = ["int4"]
    assert all(p.gpu != "V100-SXM2-16GB" for p in plan_of(written).placements)
    only = [offer for offer in market().offers if offer.sku.gpu == "V100-SXM2-16GB"]
    assert plan_of(written, only).placements == ()


def test_disk_and_memory_of_the_host_hold_the_weights() -> None:
    """405 billion parameters in eight bits are 406 GB."""
    written = document("large-weights")
    (first,) = planned("large-weights").placements
    for less in ({"disk_gb": 300.0}, {"memory_gb": 48.0}):
        small = [
            replace(offer, sku=replace(offer.sku, **less)) if offer.offer_id == first.offer_id else offer  # type: ignore[arg-type]
            for offer in market().offers
        ]
        found = plan_of(written, small)
        assert found.placements
        assert found.cost_usd > planned("large-weights").cost_usd
        for placement in found.placements:
            assert placement.offer_id != first.offer_id
            assert (offers()[placement.offer_id].sku.disk_gb or 0) >= 406
    none = [replace(offer, sku=replace(offer.sku, disk_gb=300.0)) for offer in market().offers]
    assert [left.reason for left in plan_of(written, none).unplaced] == [Obstacle.DISK]


def test_a_start_counts_reading_the_weights() -> None:
    """406 GB at what storage and loaders of a node read take minutes beside those of a small model."""
    (giant,) = planned("large-weights").placements
    (small,) = planned("demo-of-an-hour").placements[:1]
    storage = load_calibration().coldstart.storage_bytes_per_s
    read_s = 406 * GB / storage
    assert giant.estimate["cold_start_s"] >= small.estimate["cold_start_s"] + 0.9 * read_s - 60


def test_a_start_counts_what_launches_of_that_offer_took() -> None:
    """Twenty launches of a node took 25 minutes each, so no replica on it is ready sooner."""
    slow = LaunchStatistics(1.0, 25.0, 20, StatisticsLevel.OFFER)
    only = [
        replace(offer, learned=slow)
        for offer in market().offers
        if offer.offer_id == "lambda/us-east-1/A10x1"
    ]
    written = document("helpdesk-closed-at-night")
    written["workloads"][0]["traffic"]["peak_requests_per_s"] = 0.5
    (placement,) = plan_of(written, load_launch_table().with_launch_times(only)).placements
    assert placement.estimate["cold_start_s"] >= 25 * 60


def test_scores_of_one_token_have_no_time_between_tokens() -> None:
    plan = planned("scores-without-answers")
    for placement in plan.placements:
        assert "itl_p95_ms" not in placement.estimate.value
    ceiling = load_calibration().serving.front_end_requests_per_s
    (filters,) = plan.placements_of("filter")
    assert filters.estimate["requests_per_s_per_replica"] <= ceiling
    assert filters.nodes >= 2
    stricter = document("scores-without-answers")
    stricter["workloads"][0]["slo"]["itl_p95_ms"] = 0.001
    assert plan_of(stricter).placements_of("filter")[0].nodes == filters.nodes


def test_a_demonstration_of_an_hour_and_three_seconds_is_planned_to_its_end() -> None:
    plan, request = planned("demo-of-an-hour"), asked(document("demo-of-an-hour"))
    assert request.horizon.duration == timedelta(seconds=3603)
    assert {p.segments[-1].end for p in plan.placements} == {request.horizon.end}
    minutes = Decimal(61)
    held = sum(p.nodes * offers()[p.offer_id].price_usd_per_node_hour * minutes / 60 for p in plan.placements)
    assert plan.cost_usd == pytest.approx(held, abs=Decimal("0.02"))


def test_the_lab_s_fixes_place_its_runs_at_the_cost_that_was_told() -> None:
    written, plan = document("small-lab"), planned("small-lab")
    reasons = {left.workload: left.reason for left in plan.unplaced}
    assert reasons == {"adapter": Obstacle.MEMORY, "far-too-soon": Obstacle.BUDGET}
    assert plan.cost_usd <= 400
    tried = 0
    for left in plan.unplaced:
        assert left.fixes
        assert left.nearest_fix == left.fixes[0].says
        for fix in left.fixes:
            again = plan_of(patched(written, fix.patch))
            placed = again.placements_of(left.workload)
            assert placed
            assert sum(p.cost_usd for p in placed) <= fix.cost_usd
            assert f"${fix.cost_usd:,}" in fix.says
            budget = patched(written, fix.patch)["budget"]["usd"]
            assert again.cost_usd <= Decimal(str(budget))
            tried += 1
    assert tried >= 2


def problems(written: Any) -> tuple[FieldProblem, ...]:
    with pytest.raises(InputError) as raised:
        read_workloads(json.dumps(written), source="document", base=None, now=market().as_of)
    return raised.value.problems


def changed(name: str, index: int, **changes: Any) -> Any:
    written = document(name)
    written["workloads"][index].update(changes)
    return written


LONG = {"shape": "flat", "peak_requests_per_s": 1, "input_tokens": 130_500, "output_tokens": 900}


@pytest.mark.parametrize(
    ("written", "pointer", "found", "expected"),
    [
        (
            changed("newsroom-three-places", 0, traffic=LONG),
            "/workloads/0/traffic/input_tokens",
            "131,400",
            "131,072, the context of Llama-3.1-8B",
        ),
        (
            changed("tune-then-serve", 0, deadline="+13d"),
            "/workloads/0/deadline",
            "+13d",
            "horizon.days of 13",
        ),
        (
            changed("tune-then-serve", 1, starts={"after": "tune", "at": "+90d"}),
            "/workloads/1/starts",
            "an object with after, at",
            "before the horizon ends",
        ),
        (
            changed("small-lab", 0, policy={"countries": ["uk"]}),
            "/workloads/0/policy/countries/0",
            "uk",
            "GB",
        ),
        (
            changed("small-lab", 0, policy={"compliance": ["soc"]}),
            "/workloads/0/policy/compliance/0",
            "soc",
            "soc2",
        ),
        (
            changed("small-lab", 0, policy={"geography": ["europa"]}),
            "/workloads/0/policy/geography/0",
            "europa",
            "europe",
        ),
        (
            changed("small-lab", 0, policy={"providers": {"only": ["Runpods"]}}),
            "/workloads/0/policy/providers/only/0",
            "Runpods",
            "runpod",
        ),
    ],
    ids=lambda value: str(value)[:24],
)
def test_what_cannot_be_meant_is_told_with_field_and_nearest_word(
    written: Any, pointer: str, found: str, expected: str
) -> None:
    (told,) = problems(written)
    assert told.pointer == pointer
    assert found in told.found
    assert expected in told.expected


UNPROVEN = {
    "demo-of-an-hour": "bounds of fleets know no billing increment, which is much of an hour",
    "tune-then-serve": "the bound counts runs in parts, which pay there for no billing increments",
    "side-project-on-lent-machines": "bounds let two workloads have the same GPUs of a pool",
}
PROVEN = [
    pytest.param(
        name,
        marks=[pytest.mark.xfail(reason=why, strict=True) for left, why in UNPROVEN.items() if left == name],
    )
    for name in NAMES
]


@pytest.mark.parametrize("name", PROVEN)
def test_a_document_of_up_to_five_workloads_is_proven_to_one_percent(name: str) -> None:
    plan = planned(name)
    assert plan.gap is not None
    assert plan.gap <= 0.01
    assert plan.bound_usd is not None
    assert plan.bound_usd <= plan.objective_usd


@pytest.mark.parametrize(
    "name",
    ["helpdesk-closed-at-night", "insurer-two-places", "newsroom-three-places", "payments-one-cloud"],
)
def test_no_simpler_strategy_is_cheaper_by_more_than_the_premium(name: str) -> None:
    plan = plan_of(document(name), options=replace(WORK, baselines=True))
    told = [baseline for baseline in plan.baselines if baseline.cost_usd is not None]
    assert told
    for baseline in told:
        assert baseline.cost_usd is not None
        assert plan.objective_usd <= baseline.cost_usd * Decimal("1.01") + Decimal("0.01"), baseline


def test_spot_serves_nobody_and_no_run_that_may_not_be_interrupted() -> None:
    for name in NAMES:
        may = {w["name"] for w in document(name)["workloads"] if w.get("interruptible", w["kind"] == "batch")}
        for placement in planned(name).placements:
            assert placement.tier is not Tier.SPOT or placement.workload in may
