"""A replica serves once its node runs, has image and weights, and its engine answers: from the order on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import cast

import pytest

from api.schemas.plans.plan import PLAN, read_plan
from broker.domain.basics.node_launch import LaunchBasis, NodeLaunch
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from optimizer.performance.estimator import Estimator
from optimizer.placement.rules.check import check_plan
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import ANY_POOLS, at, batch, offer, plan, request, serving

ENGINE_S = 600
"""Of a BIG node in the fake estimator, whose bf16 weights are 16 GB."""
BUSY = request(serving(hourly=[3.0, 3.0, 7.0, 3.0], fleet=ANY_POOLS), hours=4)


def launching(one: Offer, launch_s: float, basis: LaunchBasis = LaunchBasis.STATED, **more: float) -> Offer:
    return replace(one, launch=NodeLaunch(launch_s, basis, **more))


def two_sellers(slow_s: float) -> list[Offer]:
    """Both bill by the second; the cheaper node runs ``slow_s`` after its order, the dearer after 60 s."""
    slow = offer("slow", "1.00", billing_increment_s=1)
    quick = offer("quick", "1.05", billing_increment_s=1, provider="hyperstack")
    return [launching(slow, slow_s), launching(quick, 60)]


def held_seconds(found: Plan) -> Mapping[str, float]:
    return {
        p.offer_id: sum((s.end - s.start) / timedelta(seconds=1) * s.nodes for s in p.segments)
        for p in found.placements
    }


def test_for_a_peak_the_seller_that_boots_sooner_wins_though_it_is_dearer() -> None:
    """An hour of peak is 3600 + 1200 + 600 s at 1.00, or 3600 + 60 + 600 s at 1.05: 1.50 against 1.24."""
    found = plan(BUSY, two_sellers(slow_s=1200))
    assert held_seconds(found) == {"slow": 4 * 3600, "quick": 3600 + 60 + ENGINE_S}
    assert found.cost_usd == Decimal("5.24")
    (peak,) = (p for p in found.placements if p.offer_id == "quick")
    assert peak.segments[0].start == at(2) - timedelta(seconds=60 + ENGINE_S)


def test_where_both_boot_alike_the_cheaper_takes_the_peak_too() -> None:
    found = plan(BUSY, two_sellers(slow_s=60))
    assert held_seconds(found) == {"slow": 4 * 3600 + 3600 + 60 + ENGINE_S}
    assert found.cost_usd == Decimal("5.18")


def test_the_cold_start_of_a_placement_is_told_by_its_parts() -> None:
    one = launching(offer("a", "1.00"), 240, LaunchBasis.ASSUMED, image_s=340.0, weights_gbyte_s=0.5)
    found = plan(BUSY, [one])
    (placed,) = found.placements
    written = PLAN.write(found)["placements"][0]
    parts = dict(written["cold_start"])
    assert parts.pop("basis") == "assumed"
    assert parts == {
        "launch_s": 240,
        "image_s": 340,
        "weights_s": pytest.approx(2 * placed_params() / 1e9 / 0.5, rel=0.02),
        "engine_s": ENGINE_S,
    }
    assert written["estimate"]["cold_start_s"] == pytest.approx(sum(parts.values()))
    assert "4 min from an order to a running node are assumed" in " ".join(placed.why.sentences)
    assert read_plan(json.dumps(PLAN.write(found)), "plan").placements == found.placements


def placed_params() -> float:
    (service,) = BUSY.workloads
    return service.model.total_params


@pytest.mark.parametrize("basis", [LaunchBasis.STATED, LaunchBasis.MEASURED])
def test_what_is_known_of_a_launch_is_not_told_as_assumed(basis: LaunchBasis) -> None:
    (placed,) = plan(BUSY, [launching(offer("a", "1.00"), 240, basis)]).placements
    assert "running node" not in " ".join(placed.why.sentences)


def test_without_a_launch_nothing_but_the_engine_counts() -> None:
    (placed,) = plan(BUSY, [offer("a", "1.00")]).placements
    assert placed.cold_start is None
    assert placed.estimate["cold_start_s"] == ENGINE_S


def test_a_batch_waits_for_its_node_as_well() -> None:
    """An hour of requests after 1200 + 600 s: by the second, 1.50."""
    one = launching(offer("a", "1.00", billing_increment_s=1), 1200)
    found = plan(request(batch(requests=4 * 3600)), [one])
    assert found.cost_usd == Decimal("1.50") == found.bound_usd


def violations(found: Plan, asked: PlanRequest, offers: list[Offer]) -> str:
    return " ".join(check_plan(found, asked, offers, cast("Estimator", FakeEstimator())))


def test_the_check_refuses_a_node_that_counts_before_its_whole_cold_start() -> None:
    offers = two_sellers(slow_s=1200)
    found = plan(BUSY, offers)
    assert violations(found, BUSY, offers) == ""
    late = tuple(
        replace(p, segments=tuple(replace(s, start=at(2) - timedelta(seconds=ENGINE_S)) for s in p.segments))
        if p.offer_id == "quick"
        else p
        for p in found.placements
    )
    assert f"at {at(2).isoformat()}" in violations(replace(found, placements=late), BUSY, offers)


def test_the_check_refuses_a_plan_that_takes_a_launch_for_shorter_than_its_offer_says() -> None:
    sooner = plan(BUSY, two_sellers(slow_s=1200))
    told = violations(sooner, BUSY, [launching(one, 1800) for one in two_sellers(slow_s=1200)])
    assert "estimate value cold_start_s is 660.0, expected 2400.0" in told
    (first, *others) = sooner.placements
    assert first.cold_start is not None
    wrong = replace(first, cold_start=replace(first.cold_start, launch_s=1.0))
    bent = replace(sooner, placements=(wrong, *others))
    assert "launch_s of the cold start is 1.0, expected" in violations(bent, BUSY, two_sellers(slow_s=1200))
    guessed = replace(first, cold_start=replace(first.cold_start, basis=LaunchBasis.ASSUMED))
    bent = replace(sooner, placements=(guessed, *others))
    assert "launch time is assumed, expected stated" in violations(bent, BUSY, two_sellers(slow_s=1200))
