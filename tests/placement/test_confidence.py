"""Plans at a confidence: what ends is bought for the hours that suffice, what may be held on for the mean.

The fake core's times have an 80 % interval from 0.9 to 1.1 (σ = ln 1.1 / 1.2816 above): 80 % need at most
1.0646 times the median, and the mean is 0.9999 times it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from statistics import NormalDist
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.catalogue import load_gpus, load_models
from broker.domain.basics.confidence import chance_below, mean_factor, quantile_factor
from broker.domain.basics.estimate import Estimate
from broker.domain.market.offer import Offer, Tier, WindowKind
from broker.domain.planning.plan import Obstacle, Plan
from broker.domain.planning.workload import Serving, Workload
from broker.domain.workloads.traffic import TrafficUncertainty
from broker.ports.planning import PlanOptions
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.performance.intervals import at_deviation, rate_at
from optimizer.placement.replan.warm import WarmStart
from optimizer.placement.rules.serving import counted_rate
from optimizer.planner import JointPlanner
from tests.placement.market import at, batch, offer, plan, planner, request, serving, training, window

SURE = 1.1 ** (0.8416212 / 1.2815516)
SLICES = 100_000
MEAN = mean_factor(0.1, 1 / 0.9 - 1)
SLOWER = (1 / 0.9) ** (0.8416212 / 1.2815516)


def listed(name: str, usd: str, hours: float) -> Offer:
    return offer(name, usd, tier=Tier.WINDOW, window=window(WindowKind.LISTED, (0, hours, 1)))


def planned(*workloads: Workload, offers: list[Offer], confidence: float = 0.8) -> Plan:
    return plan(request(*(replace(one, confidence=confidence) for one in workloads)), offers)


def held_hours(found: Plan, name: str) -> float:
    (placement,) = found.placements_of(name)
    (segment,) = placement.segments
    return segment.hours


def test_a_window_that_only_the_median_fills_is_not_bought() -> None:
    offers = [listed("w", "1.00", 10.5), offer("free", "2.00", billing_increment_s=1)]
    assert planned(training(), offers=offers, confidence=0.5).placements[0].offer_id == "w"
    found = planned(training(), offers=offers)
    (placement,) = found.placements
    assert placement.offer_id == "free"
    assert held_hours(found, "run") == pytest.approx(10 * MEAN, abs=1 / 3600)
    assert placement.estimate["hours"] == 10
    assert placement.estimate.at_confidence["hours"] == pytest.approx(10 * SURE, rel=1e-6)
    assert placement.cost_usd == pytest.approx(Decimal(20 * MEAN), abs=Decimal("0.01"))
    wider = [listed("w", "1.00", 11), offer("free", "2.00")]
    assert planned(training(), offers=wider).placements[0].offer_id == "w"


@pytest.mark.parametrize(("hours", "chance"), [(10.0, 0.5), (38326 / 3600, 0.8), (11.0, 0.9)])
def test_the_chance_of_a_window_is_that_of_the_hours_that_it_holds(hours: float, chance: float) -> None:
    found = planned(training(), offers=[listed("w", "1.00", hours)], confidence=0.5)
    assert found.placements[0].chance == pytest.approx(chance, abs=0.002)


def test_the_longest_run_that_is_promised_must_end_by_the_deadline_and_find_its_node_free() -> None:
    near = training(deadline=at(10.5))
    offers = [offer("free", "2.00", nodes=1)]
    assert planned(near, offers=offers, confidence=0.5).placements
    assert planned(near, offers=offers).unplaced[0].reason is Obstacle.DEADLINE
    both = planned(training("a", deadline=at(22)), training("b", deadline=at(22)), offers=offers)
    first, second = sorted(both.placements, key=lambda one: one.segments[0].start)
    assert second.segments[0].start - first.segments[0].start >= timedelta(hours=10 * SURE)
    assert first.segments[0].end - first.segments[0].start < timedelta(hours=10.1)
    late = planned(training("a", deadline=at(21)), training("b", deadline=at(21)), offers=offers)
    assert late.unplaced


def test_a_replica_counts_the_rate_that_holds() -> None:
    offers = [offer("free", "1.00")]
    flat = serving(hourly=(3.8,))
    assert planned(flat, offers=offers, confidence=0.5).placements[0].replicas == 1
    found = planned(flat, offers=offers)
    (placement,) = found.placements
    assert placement.replicas == 2
    assert placement.estimate.sure_requests_per_s == pytest.approx(4 / SLOWER, rel=1e-6)
    assert placement.chance is not None
    assert placement.chance > 0.99


@pytest.mark.parametrize(("morning", "kinds"), [(3.6, ["BIG", "MID"]), (3.65, ["MID"])])
def test_two_kinds_of_gpu_hold_together_with_the_confidence(morning: float, kinds: list[str]) -> None:
    """BIG may carry the morning and MID carries the rest, so that both must hold: each counts at the rate of
    √0.8 = 0.894, which is 4·0.9^(1.2505/1.2816) = 3.609 where BIG alone would count 3.733.
    """
    offers = [offer("big", "1.00", available_until=at(12)), offer("mid", "1.00", gpu="MID")]
    asked = request(replace(serving(hourly=[morning] * 12 + [4.5] * 11), confidence=0.8))
    found = plan(asked, offers)
    chance = found.placements[0].chance
    assert [one.gpu for one in found.placements] == kinds
    assert chance is not None
    assert chance >= 0.8
    drawn = planner().simulate(found, asked, offers, 4000, 1)
    assert drawn.workloads[0].chance == pytest.approx(chance, abs=0.03)


def test_a_fleet_of_two_kinds_that_each_count_as_if_alone_is_refused() -> None:
    """At the median, 3.65 requests/s are carried by one BIG, of whose rate 3.609 count beside MID."""
    offers = [offer("big", "1.00", available_until=at(12)), offer("mid", "1.00", gpu="MID")]
    asked = request(replace(serving(hourly=[3.6] * 12 + [4.5] * 11), confidence=0.8))
    found = plan(asked, offers)
    more = request(replace(serving(hourly=[3.65] * 12 + [4.5] * 11), confidence=0.8))
    assert not planner().check(found, asked, offers)
    assert "3.6092 requests/s are left" in "; ".join(planner().check(found, more, offers))


def test_a_replica_at_the_edge_of_its_objective_counts_less_beside_another_kind() -> None:
    """An RTX A6000 that serves 2.424 requests/s, 1.676 with 80 % and 0.742 with 90 %: with √0.8 = 0.894 it
    serves 1.676·(0.742/1.676)^((1.2505 − 0.8416)/(1.2816 − 0.8416)) = 0.787, not the 1.401 of one spread.
    """
    rate = "requests_per_s_per_replica"
    edge = Estimate({rate: 2.424}, {rate: 0.742}, {rate: 3.356}, at_confidence={rate: 1.676})
    service = replace(serving(hourly=(1.0,)), confidence=0.8)
    assert counted_rate(edge, service, 1) == pytest.approx(1.676)
    assert counted_rate(edge, service, 2) == pytest.approx(0.787, abs=0.001)
    assert float(rate_at(edge, 0.8, 1.2505)) == pytest.approx(0.787, abs=0.002)


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.9, 0.95])
def test_the_chance_of_what_is_held_does_not_depend_on_the_confidence_that_it_was_planned_with(
    confidence: float,
) -> None:
    """The real core: 150 requests/s on two H100, of which each carries 113.7, 93.8 with 80 % and 84.9 with
    90 %: the chance is that of 150/2 at a standard deviation of ln(113.7/84.9)/1.2816 = 0.228.
    """
    asked = request(replace(serving(hourly=(150.0,)), confidence=confidence))
    core = Estimator(load_gpus(), load_calibration())
    offers = [offer("card", "2.00", gpu="H100-SXM-80GB")]
    found = JointPlanner(core).plan(asked, offers, at(0), PlanOptions(baselines=False))
    (placement,) = found.placements
    assert placement.replicas == 2
    assert placement.chance == pytest.approx(0.966, abs=0.004)


def with_uncertainty(confidence: float, level: float = 0.0, growth: float = 0.0) -> Serving:
    """A service of 3.5 requests/s, of which a replica carries 4."""
    flat = serving(hourly=(3.5,))
    unsure = replace(flat.traffic, uncertainty=TrafficUncertainty(level, growth))
    return replace(flat, confidence=confidence, traffic=unsure)


@pytest.mark.parametrize(
    ("level", "nodes", "chance"), [(0.0, [1], 0.948), (0.1, [1], 0.856), (0.2, [2, 1], 1.0)]
)
def test_the_level_of_the_traffic_is_as_uncertain_as_it_is_said_to_be_until_it_is_measured(
    level: float, nodes: list[int], chance: float
) -> None:
    """σ = √(0.0822² + ln(1 + level)²) is 0.0822, 0.1259 or 0.2: 3.73, 3.60 or 3.38 count of a replica, and
    one is enough with Φ(ln(4/3.5)/σ).
    """
    offers, asked = [offer("free", "1.00")], request(with_uncertainty(0.8, level))
    found = plan(asked, offers)
    (placement,) = found.placements
    assert [one.nodes for one in placement.segments] == nodes
    assert placement.chance == pytest.approx(chance, abs=0.01)
    drawn = planner().simulate(found, asked, offers, 4000, 1).workloads[0]
    assert drawn.chance == pytest.approx(chance, abs=0.03)


def test_at_the_median_an_uncertain_level_is_drawn_and_not_counted() -> None:
    (placement,) = plan(request(with_uncertainty(0.5, 0.2)), [offer("free", "1.00")]).placements
    assert placement.nodes == 1
    assert placement.chance == pytest.approx(NormalDist().cdf(0.1335 / 0.2), abs=0.01)


def test_what_a_week_may_grow_is_held_from_the_day_on_on_which_it_counts() -> None:
    """3.5 · 1.1^(0.8416 · w) passes 4 at w = 1.665 weeks: the twelfth day after the first counts 12/7."""
    offers, growing = [offer("free", "1.00")], with_uncertainty(0.8, growth=0.1)
    asked = request(growing, hours=24 * 15)
    found = plan(asked, offers)
    first, second = found.placements[0].segments
    assert (first.nodes, second.nodes) == (1, 2)
    assert first.end == at(24 * 12) - timedelta(minutes=10)
    assert found.cost_usd == found.bound_usd == Decimal("433.00")
    flat = plan(request(with_uncertainty(0.8), hours=24 * 15), offers)
    assert flat.cost_usd == Decimal("360.00")
    assert "4.0160 are asked" in "; ".join(planner().check(flat, asked, offers))
    drawn = planner().simulate(found, asked, offers, 1000, 1)
    assert drawn.cost_shares[0].from_usd < found.cost_usd < drawn.cost_shares[-1].to_usd


def test_after_a_day_a_replica_counts_its_median() -> None:
    """3.8 requests/s on replicas of 4 (3.73 with 80 %): two for a day and its cold start, then one."""
    offers = [offer("free", "1.00")]
    flat = replace(serving(hourly=(3.8,)), confidence=0.8)
    found = plan(request(flat, hours=72), offers)
    (placement,) = found.placements
    assert [(s.nodes, s.hours) for s in placement.segments] == [(2, 24), (1, 48)]
    assert [(s.until, s.basis) for s in placement.stages] == [(at(24), "confidence"), (at(72), "expected")]
    assert placement.chance == pytest.approx(0.9999, abs=1e-3)
    assert found.bound_usd == found.cost_usd == Decimal("96.00")
    told = replace(placement, stages=())
    assert planner().check(replace(found, placements=(told,)), request(flat, hours=72), offers)
    assert not plan(request(flat, hours=24), offers).placements[0].stages


def test_a_service_that_is_held_is_not_measured_anew() -> None:
    """30 h after it began, the service is planned again: one replica stays, and no second one is added."""
    offers = [offer("free", "1.00")]
    asked = request(replace(serving(hourly=(3.8,)), confidence=0.8), hours=96)
    old, options = plan(asked, offers), PlanOptions(time_limit_s=60.0, gap=0.0, baselines=False)
    in_force = WarmStart(old, leaving_usd={"chat": Decimal("1.00")})
    again = planner().replan(asked, offers, at(30), options, in_force).plan
    assert [(s.start, s.nodes) for s in again.placements[0].segments] == [(at(30), 1)]
    assert again.placements[0].stages == old.placements[0].stages
    first = plan(asked, offers, as_of=at(30)).placements[0]
    assert [s.nodes for s in first.segments] == [2, 1]
    assert first.stages[0].until == at(54)


def test_a_service_that_waits_is_measured_after_the_latest_end_of_its_run() -> None:
    offers = [offer("free", "1.00")]
    run, flat = training(deadline=at(20)), serving(hourly=(3.8,), starts_after="run")
    (waiting,) = plan(request(run, replace(flat, confidence=0.8), hours=96), offers).placements_of("chat")
    assert waiting.stages[0].until == at(44)
    assert [s.nodes for s in waiting.segments] == [2, 1]
    assert waiting.segments[0].end == at(44)


def test_the_chance_of_a_fleet_at_its_own_rate_is_one_half() -> None:
    found = planned(serving(hourly=(4.0,)), offers=[offer("free", "1.00")], confidence=0.5)
    assert found.placements[0].chance == pytest.approx(0.5, abs=0.001)


def test_a_batch_is_paid_for_the_mean_and_ends_in_time_at_its_confidence() -> None:
    """14,400 requests at 4 a second take an hour after a cold start of ten minutes."""
    whole = batch(requests=14_400, parts=1)
    found = planned(whole, offers=[offer("free", "6.00", nodes=1)])
    mean = mean_factor(1 / 0.9 - 1, 0.1)
    assert held_hours(found, "batch") == pytest.approx(1 / 6 + mean, abs=1 / 3600)
    (placement,) = found.placements
    assert placement.estimate.at_confidence["hours"] == pytest.approx(1 / 6 + SLOWER, rel=1e-6)
    soon = replace(whole, deadline=at(1.2))
    assert planned(soon, offers=[offer("free", "6.00", nodes=1)], confidence=0.5).placements
    assert planned(soon, offers=[offer("free", "6.00", nodes=1)]).unplaced
    assert planned(soon, offers=[offer("free", "6.00", nodes=2)]).placements[0].nodes == 2


def test_a_batch_in_parts_costs_less_than_at_the_hours_that_suffice() -> None:
    by_minutes = {"billing_increment_s": 60}
    offers = [
        offer("one", "6.00", nodes=2, **by_minutes),
        offer("two", "7.00", nodes=9, gpu="MID", **by_minutes),
    ]
    many = batch(requests=200_000, deadline=at(6))
    medians = planned(many, offers=offers, confidence=0.5)
    found = planned(many, offers=offers)
    assert not found.unplaced
    assert found.cost_usd <= medians.cost_usd * Decimal(SLOWER)
    assert min(one.chance for one in found.placements if one.chance is not None) >= 0.8


def test_the_checker_counts_again() -> None:
    offers = [offer("free", "2.00")]
    asked = request(replace(training(), confidence=0.8))
    found = plan(asked, offers)
    (placement,) = found.placements
    (segment,) = placement.segments

    def says(**changes: object) -> str:
        wrong = replace(found, placements=(replace(placement, **changes),))  # type: ignore[arg-type]
        return "; ".join(planner().check(wrong, asked, offers))

    assert "h are usable" in says(segments=(replace(segment, end=segment.end - timedelta(hours=1)),))
    assert "chance is 0.5" in says(chance=0.5)
    hours = replace(placement.estimate, at_confidence={"hours": 10.0})
    assert "at_confidence hours is 10.0" in says(estimate=hours)
    assert "expected_hours" in says(estimate=replace(placement.estimate, expected_hours=9.0))


@given(st.floats(0.01, 3.0), st.floats(0.5, 0.99))
def test_a_quantile_is_reached_with_its_own_chance(relative: float, confidence: float) -> None:
    factor = quantile_factor(relative, confidence)
    assert chance_below(factor, relative) == pytest.approx(confidence, abs=1e-4)
    assert mean_factor(relative, relative) > 1.0


@given(st.floats(0.01, 3.0), st.floats(0.01, 3.0))
def test_the_mean_is_that_of_the_two_halves(slower: float, faster: float) -> None:
    """The mean of the quantiles at the middles of a hundred thousand equal slices, whose ends are cut off."""
    deviations = as_array([NormalDist().inv_cdf((i + 0.5) / SLICES) for i in range(SLICES)])
    drawn = at_deviation(1.0, 1 / (1 + faster), 1 + slower, deviations)
    assert mean_factor(slower, faster) == pytest.approx(float(drawn.mean()), rel=2e-3)
    wider = mean_factor(slower, faster + 0.5)
    assert wider < mean_factor(slower, faster) < mean_factor(slower + 0.5, faster)


@pytest.mark.parametrize("confidence", [0.51, 0.55])
@pytest.mark.parametrize("hours", [48, 14])
def test_a_mean_above_the_quantile_is_held_in_full(confidence: float, hours: float) -> None:
    """The real core's intervals are so wide on the slow side that at these chances the mean is the longer."""
    offers = [offer("card", "2.00", gpu="H100-SXM-80GB", billing_increment_s=1, nodes=8)]
    each: dict[str, Any] = {
        "model": load_models()["Llama-3.2-1B"],
        "confidence": confidence,
        "deadline": at(hours),
    }
    whole = batch("whole", 1_000_000, parts=1, **each)
    asked = request(training("run", tokens=2e9, **each), whole, replace(whole, name="parts", parts=None))
    found = JointPlanner(Estimator(load_gpus(), load_calibration())).plan(
        asked, offers, at(0), PlanOptions(baselines=False)
    )
    assert not found.unplaced
    for placement in found.placements:
        mean, (segment,) = placement.estimate.expected_hours, placement.segments
        assert mean is not None
        assert mean > placement.estimate.at_confidence["hours"]
        assert segment.hours == pytest.approx(mean, abs=2 / 3600)


@given(st.floats(0.5, 0.99), st.floats(0.5, 0.99), st.integers(540, 840))
def test_more_confidence_never_costs_less(first: float, second: float, minutes: int) -> None:
    low, high = sorted((first, second))
    offers = [listed("w", "1.50", minutes / 60), offer("free", "2.00", nodes=3)]
    asked = training(gpu_hours=10), serving(hourly=(3.0, 5.0))
    costs = [planned(*asked, offers=offers, confidence=one).objective_usd for one in (low, high)]
    assert costs[0] <= costs[1] * Decimal("1.005")
