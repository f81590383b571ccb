"""Draws through a plan: they agree with the plan's chances, repeat with their seed, and cost what is held."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from broker.domain.market.offer import Offer, Tier, WindowKind
from broker.domain.planning.plan import Plan
from broker.domain.planning.simulation import Simulation
from broker.domain.planning.workload import Workload
from tests.placement.market import at, batch, offer, plan, planner, request, serving, training, window

POINTS = 0.03


def simulated(
    *workloads: Workload, offers: list[Offer], confidence: float = 0.5, seed: int = 1
) -> tuple[Plan, Simulation]:
    asked = request(*(replace(one, confidence=confidence) for one in workloads))
    found = plan(asked, offers)
    return found, planner().simulate(found, asked, offers, 4000, seed)


def chances(found: Simulation) -> dict[str, float]:
    return {one.workload: one.chance for one in found.workloads}


@pytest.mark.parametrize("hours", [10, 10.5, 11, 12])
def test_a_window_is_long_enough_as_often_as_the_plan_says(hours: float) -> None:
    listed = offer("w", "1.00", tier=Tier.WINDOW, window=window(WindowKind.LISTED, (0, hours, 1)))
    found, drawn = simulated(training(), offers=[listed])
    assert chances(drawn)["run"] == pytest.approx(found.placements[0].chance, abs=POINTS)


@pytest.mark.parametrize("demand", [3.6, 3.8, 4.0])
def test_a_fleet_carries_its_traffic_as_often_as_the_plan_says(demand: float) -> None:
    found, drawn = simulated(serving(hourly=(demand,)), offers=[offer("free", "1.00")])
    assert chances(drawn)["chat"] == pytest.approx(found.placements[0].chance, abs=POINTS)


def test_two_gpus_that_must_each_suffice_are_as_fast_as_planned_a_quarter_of_the_time() -> None:
    """BIG carries the first day alone, and MID the second; each is slower than its median half the time."""
    early = offer("big", "1.00", available_until=at(24))
    late = offer("mid", "1.60", gpu="MID", nodes=2)
    found, drawn = simulated(serving(hourly=[4.0] * 24 + [5.0] * 23), offers=[early, late])
    assert [one.gpu for one in found.placements] == ["BIG", "MID"]
    assert found.placements[0].chance == pytest.approx(0.25, abs=POINTS)
    assert chances(drawn)["chat"] == pytest.approx(0.25, abs=POINTS)


@pytest.mark.parametrize("share", [0.1, 0.95])
def test_a_fleet_that_was_measured_pays_for_what_its_traffic_needs(share: float) -> None:
    """At the ninth decile of its costs a node, at 1 USD an hour, serves 0.9 times its rate. That is enough at
    a tenth of the rate; at 95 % of it 1.056 nodes are needed from the second day on.
    """
    (placed,) = simulated(serving(hourly=(1.0,) * 96), offers=[offer("free", "1.00")])[0].placements
    demand = share * placed.estimate["requests_per_s_per_replica"]
    found, drawn = simulated(serving(hourly=(demand,) * 96), offers=[offer("free", "1.00")])
    (placed,) = found.placements
    assert placed.nodes == 1
    hours = float(found.cost_usd)
    assert float(drawn.cost_usd.p90) == pytest.approx(24 + (hours - 24) * max(1.0, share / 0.9), rel=0.005)


def test_what_is_held_on_is_paid_until_the_work_is_done() -> None:
    free = offer("free", "2.00", billing_increment_s=1)
    found, drawn = simulated(training(deadline=at(24)), offers=[free], confidence=0.8)
    cost = drawn.cost_usd
    assert cost.p10 < cost.p50 < cost.p90
    assert float(cost.mean) == pytest.approx(float(found.cost_usd), rel=0.01)
    assert chances(drawn)["run"] > 0.99


def test_the_rest_of_a_run_that_outlasts_its_window_goes_on_by_the_hour() -> None:
    listed = offer("w", "1.00", tier=Tier.WINDOW, window=window(WindowKind.LISTED, (0, 10, 1)))
    late = training(deadline=at(10))
    found, drawn = simulated(late, offers=[listed])
    assert found.cost_usd == Decimal("10.00")
    assert drawn.cost_usd.p10 == Decimal("10.00")
    assert drawn.cost_usd.p90 > Decimal("10.50")
    assert drawn.workloads[0].late_hours_p90 is not None
    assert drawn.workloads[0].late_hours_p90 > 0.9
    assert "longer than it has" in drawn.reasons[0].what


def test_equal_seeds_draw_the_same_and_others_differ() -> None:
    offers = [offer("free", "1.00")]
    work = serving(hourly=(3.0, 9.0)), batch(requests=14_400)
    first, again, other = (simulated(*work, offers=offers, seed=seed)[1] for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert {one.workload for one in first.workloads} == {"chat", "batch"}
