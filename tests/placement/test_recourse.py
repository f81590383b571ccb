"""Runs in windows that may be too short for them: length and recourse are weighed, and both are checked.

The fake core's times have an 80 % interval of ± 10 % (σ = ln 1.1 / 1.2816 = 0.0744); here a start takes half
an hour, and going on elsewhere an hour: the start, and half the time between two checkpoints of an hour.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from decimal import Decimal
from statistics import NormalDist
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.plan_sections import plan_cards
from api.plan_words import bound_label
from api.schemas.plans.plan import PLAN, read_plan
from broker.domain.basics.confidence import overrun
from broker.domain.market.offer import Offer, Tier, WindowBegin, WindowKind
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.recourse import Recourse
from broker.domain.planning.workload import Dataset, Policy, Training
from broker.ports.planning import PlanOptions
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.placement.problem.estimates import build_estimates
from optimizer.placement.problem.problem import build_problem
from optimizer.placement.replan.warm import WarmStart
from optimizer.placement.runs.builder import build_run_candidates
from optimizer.placement.runs.columns import build_run_column
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import T0, at, offer, plan, planner, request, training, window

CORE = FakeEstimator(startup_hours=0.5)
SIGMA = math.log(1.1) / 1.2815516
NORMAL = NormalDist()
HORIZON = 200.0


def slots(usd: str, step_hours: float = 1.0, **changes: Any) -> Offer:
    terms = window(WindowKind.SLOTS, (0, HORIZON, 4), step_hours=step_hours)
    return offer("w", usd, tier=Tier.WINDOW, window=terms, **changes)


def by_hour(usd: str, name: str = "free", **changes: Any) -> Offer:
    return offer(name, usd, billing_increment_s=1, **changes)


def run(gpu_hours: float = 40, confidence: float = 0.9, **changes: Any) -> Training:
    base = training(gpu_hours=gpu_hours, deadline=at(190), interruptible=True, confidence=confidence)
    return replace(base, **changes)


def planned(*runs: Training, offers: list[Offer], **asked: Any) -> Plan:
    return plan(request(*runs, hours=HORIZON, **asked), offers, estimator=CORE)


def only(found: Plan) -> tuple[Placement, Recourse]:
    (placement,) = found.placements
    assert placement.recourse is not None
    return placement, placement.recourse


def least_usd(median: float, confidence: float, window_usd: float, hour_usd: float) -> float:
    """The least expected cost of a window of whole hours with its recourse, or of one that suffices."""
    sure = median * math.exp(SIGMA * NORMAL.inv_cdf(confidence))
    costs = [window_usd * math.ceil(0.5 + sure)]
    for hours in range(math.ceil(0.5 + median), math.ceil(0.5 + sure)):
        share = (hours - 0.5) / median
        if share < sure / median:
            z = math.log(share) / SIGMA
            chance = NORMAL.cdf(-z)
            rest = median * (math.exp(SIGMA**2 / 2) * NORMAL.cdf(SIGMA - z) - share * chance)
            costs.append(window_usd * hours + hour_usd * (chance * 1.0 + rest))
    return min(costs)


def test_a_longer_window_is_weighed_against_its_recourse() -> None:
    found = planned(run(), offers=[slots("1.00"), by_hour("1.30")])
    placement, recourse = only(found)
    assert placement.segments[0].hours == 41
    z = math.log(40.5 / 40) / SIGMA
    assert recourse.chance == pytest.approx(NORMAL.cdf(-z), abs=1e-6)
    rest = 40 * (math.exp(SIGMA**2 / 2) * NORMAL.cdf(SIGMA - z) / NORMAL.cdf(-z) - 40.5 / 40)
    assert recourse.hours == pytest.approx(1 + rest, rel=1e-6)
    assert recourse.usd == pytest.approx(Decimal(1.3 * recourse.hours), abs=Decimal("0.01"))
    assert found.recourse_usd == recourse.expected_usd == Decimal("1.88")
    assert found.objective_usd == found.cost_usd + found.recourse_usd
    assert any("With a chance of 43 %" in sentence for sentence in placement.why.sentences)


def test_length_is_bought_where_the_recourse_is_dear() -> None:
    found = planned(run(), offers=[slots("1.00"), by_hour("9.00")])
    (placement,) = found.placements
    assert placement.recourse is None
    assert placement.segments[0].hours == 45
    assert found.recourse_usd == 0


@pytest.mark.parametrize(("premium", "hours"), [(0.0, 43), (0.01, 45)])
def test_a_premium_buys_a_window_that_needs_no_recourse(premium: float, hours: int) -> None:
    """43 hours and a recourse cost 44.77 in the mean, 45 hours that suffice less than 1 % more."""
    listings = [window(WindowKind.LISTED, (0, length, 1)) for length in (43, 45)]
    offers = [offer(f"w{n}", "1.00", tier=Tier.WINDOW, window=one) for n, one in enumerate(listings)]
    asked = request(run(), hours=HORIZON, policy=Policy(premium=premium))
    found = plan(asked, [*offers, by_hour("3.00")], estimator=CORE, gap=0.02)
    (placement,) = found.placements
    assert placement.segments[0].hours == hours
    assert (placement.recourse is None) is (hours == 45)


def test_an_hourly_tier_beats_a_committed_one_as_a_hedge() -> None:
    term = offer("term", "0.90", tier=Tier.COMMITTED, min_hours=24, billing_increment_s=24 * 3600)
    found = planned(run(22), offers=[term, by_hour("1.20")])
    placement, recourse = only(found)
    assert (placement.offer_id, placement.segments[0].hours) == ("term", 24)
    assert recourse.offer_id == "free"
    assert found.cost_usd == Decimal("21.60")


@pytest.mark.parametrize(
    "changes",
    [{"interruptible": False}, {"confidence": 0.5}, {"policy": Policy(tiers=(Tier.WINDOW,))}],
)
def test_there_is_no_recourse_where_none_is_allowed(changes: dict[str, Any]) -> None:
    found = planned(run(**changes), offers=[slots("1.00"), by_hour("1.30")])
    assert all(placement.recourse is None for placement in found.placements)


def test_the_rest_ends_by_the_deadline_with_the_confidence() -> None:
    sure = 40 * math.exp(SIGMA * NORMAL.inv_cdf(0.9))
    offers = [slots("1.00"), by_hour("1.30")]
    enough = planned(run(deadline=at(1.5 + sure + 0.01)), offers=offers)
    assert only(enough)[0].chance == pytest.approx(0.9, abs=2e-3)
    less = planned(run(deadline=at(1.5 + sure - 0.01)), offers=offers)
    assert all(placement.recourse is None for placement in less.placements)


def test_the_nodes_of_a_recourse_are_kept_free_for_it() -> None:
    both = (run(name="a", deadline=at(47)), run(name="b", deadline=at(47)))
    offers = [slots("1.00"), by_hour("1.30", nodes=1), by_hour("1.50", "other", nodes=1)]
    found = planned(*both, offers=offers)
    assert sorted(p.recourse.offer_id for p in found.placements if p.recourse) == ["free", "other"]
    lone = planned(*both, offers=offers[:2])
    assert sum(p.recourse is not None for p in lone.placements) == 1


@given(
    gpu_hours=st.integers(8, 60),
    confidence=st.sampled_from([0.6, 0.8, 0.9, 0.95]),
    window_usd=st.integers(80, 120),
    hour_usd=st.integers(90, 400),
)
@settings(max_examples=12, deadline=None)
def test_no_length_with_a_recourse_is_cheaper_and_the_bound_holds(
    gpu_hours: int, confidence: float, window_usd: int, hour_usd: int
) -> None:
    offers = [slots(f"{window_usd / 100:.2f}"), by_hour(f"{hour_usd / 100:.2f}")]
    found = planned(run(gpu_hours, confidence), offers=offers)
    least = least_usd(gpu_hours, confidence, window_usd / 100, hour_usd / 100)
    assert float(found.objective_usd) <= least + 0.02
    assert found.bound_usd is not None
    assert float(found.bound_usd) <= least + 0.02


def test_the_checker_knows_a_recourse_that_is_told_wrongly() -> None:
    offers = [slots("1.00"), by_hour("1.30"), slots("1.00", offer_id="other")]
    found = planned(run(), offers=offers)
    placement, recourse = only(found)
    asked = request(run(), hours=HORIZON)

    def told(changed: Placement, wanted: Training | None = None) -> str:
        wrong = replace(found, placements=(changed,))
        told_of = planner(CORE).check(wrong, replace(asked, workloads=(wanted or run(),)), offers)
        return "; ".join(told_of)

    assert not planner(CORE).check(found, asked, offers)
    wrong: dict[str, Any] = {"chance": 0.3, "hours": 2.0, "usd": Decimal("1.00")}
    for name, value in wrong.items():
        changed = replace(recourse, **{name: value})
        assert f"recourse {name} is" in told(replace(placement, recourse=changed))
    assert "expected an offer by the hour" in told(
        replace(placement, recourse=replace(recourse, offer_id="other"))
    )
    assert "the run needs" in told(replace(placement, recourse=None))
    assert "interruptible" in told(placement, replace(run(), interruptible=False))
    barred = replace(run(), policy=Policy(tiers=(Tier.WINDOW,)))
    assert "recourse: tier on_demand is not among window" in told(placement, barred)
    assert "recourse_usd is 0" in "; ".join(
        planner(CORE).check(replace(found, recourse_usd=Decimal(0)), asked, offers)
    )


class Core(FakeEstimator):
    """The fake core with the goodput of the real one."""

    calibration = load_calibration()


@pytest.mark.parametrize("deadline", [190, 45.5])
def test_a_simulation_pays_on_average_what_the_plan_expects(deadline: float) -> None:
    core = Core(startup_hours=load_calibration().goodput.startup_s / 3600)
    asked = request(run(deadline=at(deadline)), hours=HORIZON)
    offers = [slots("1.00"), by_hour("1.30")]
    found = plan(asked, offers, estimator=core)
    placement, recourse = only(found)
    drawn = planner(core).simulate(found, asked, offers, 8000, 1)
    assert float(drawn.cost_usd.mean) == pytest.approx(float(found.cost_usd + found.recourse_usd), abs=0.15)
    assert float(drawn.cost_usd.p10) == float(found.cost_usd)
    assert recourse.chance > 0.2
    assert placement.chance == pytest.approx(drawn.workloads[0].chance, abs=0.03)


def test_a_plan_with_a_recourse_is_planned_again_as_it_stands() -> None:
    offers = [slots("1.00"), by_hour("1.30")]
    asked = request(run(), hours=HORIZON)
    found = plan(asked, offers, estimator=CORE)
    again = planner(CORE).replan(
        asked,
        offers,
        T0,
        PlanOptions(gap=0.0, baselines=False),
        WarmStart(found, leaving_usd={"run": Decimal(5)}),
    )
    assert [(p.segments, p.recourse) for p in again.plan.placements] == [
        (p.segments, p.recourse) for p in found.placements
    ]


@given(share=st.floats(1.0, 1.5), deviation=st.floats(0.01, 0.5))
def test_the_mean_overrun_is_that_of_the_lognormal_tail(share: float, deviation: float) -> None:
    chance, excess = overrun(share, deviation)
    assert 0.0 <= chance <= 0.5 + 1e-12
    if chance > 1e-4:
        steps = [(i + 0.5) / 20_000 * chance for i in range(20_000)]
        tail = sum(math.exp(-deviation * NORMAL.inv_cdf(p)) - share for p in steps) / len(steps)
        assert excess == pytest.approx(tail, rel=5e-3)


def test_a_recourse_is_told_and_read_back() -> None:
    found = planned(run(), offers=[slots("1.00"), by_hour("1.30")])
    told = PLAN.write(found)
    assert told["recourse_usd"] == "1.88"
    assert told["placements"][0]["recourse"] == {
        "chance": 0.433671,
        "offer_id": "free",
        "hours": only(found)[1].hours,
        "usd": "4.33",
    }
    assert read_plan(json.dumps(told), "plan.json") == found
    (card, *_) = plan_cards(found)
    assert card.note == "no penalties; $1.88 expected where windows do not suffice"
    assert bound_label(found) == "with recourse, no plan costs less than"


TERMS = MovingTerms(other_egress_usd_per_gb=Decimal("0.05"), staging_gbit_s=1.0)


@st.composite
def markets(draw: st.DrawFn) -> list[Offer]:
    durations = draw(st.sampled_from([None, (24.0, 48.0, 72.0)]))
    terms = window(
        WindowKind.SLOTS,
        (draw(st.integers(0, 20)), draw(st.integers(60, 120)), 4),
        step_hours=draw(st.sampled_from([1.0, 4.0, 24.0])),
        durations_hours=durations,
        teardown_s=draw(st.sampled_from([0, 1800])),
    )
    listing = window(WindowKind.LISTED, (draw(st.integers(0, 10)), draw(st.integers(40, 60)), 2))
    waiting = window(
        WindowKind.REQUEST, step_hours=1.0, begins=WindowBegin.WHEN_AVAILABLE, longest_wait_hours=6
    )
    term: dict[str, Any] = {"tier": Tier.COMMITTED, "min_hours": draw(st.sampled_from([24, 48])), "nodes": 2}
    usd = st.integers(80, 240).map(lambda cents: f"{cents / 100:.2f}")
    return [
        offer("w", draw(usd), tier=Tier.WINDOW, window=terms),
        offer("listed", draw(usd), tier=Tier.WINDOW, window=listing, provider="aws"),
        offer("waiting", draw(usd), tier=Tier.WINDOW, window=waiting),
        offer("term", draw(usd), billing_increment_s=draw(st.sampled_from([1, 3600])), **term),
        by_hour(draw(usd), nodes=2),
        offer("mid", draw(usd), gpu="MID", provider="aws", billing_increment_s=3600, min_hours=1),
        offer("spot", draw(usd), tier=Tier.SPOT, interruptions_per_hour=0.02, available_until=at(90)),
    ]


@given(
    offers=markets(),
    gpu_hours=st.integers(10, 60),
    confidence=st.sampled_from([0.6, 0.9]),
    begin=st.sampled_from([0.0, 5.3]),
    has_data=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_a_priced_way_costs_what_its_column_costs(
    offers: list[Offer], gpu_hours: int, confidence: float, begin: float, has_data: bool
) -> None:
    data = Dataset(200.0, "gcp", "us-west") if has_data else None
    one = run(gpu_hours, confidence, earliest_start=at(begin), deadline=at(100), dataset=data)
    problem = build_problem(request(one, hours=HORIZON), offers, T0, TERMS)
    estimates = build_estimates(problem, cast("Estimator", CORE))
    found = build_run_candidates(problem, estimates, one)
    for index in np.flatnonzero(found.recourse >= 0)[:40]:
        column = build_run_column(problem, estimates, found, int(index))
        assert column is not None
        assert column.total_cents == pytest.approx(100 * found.total_usd[index], abs=1.01)
        assert column.end_s == pytest.approx(found.end_s[index], abs=1e-3)


@given(
    offers=markets(),
    sizes=st.lists(st.integers(10, 60), min_size=1, max_size=2),
    confidence=st.sampled_from([0.6, 0.9]),
    begin=st.sampled_from([0.0, 5.3]),
    has_data=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_every_plan_of_a_mixed_market_is_valid(
    offers: list[Offer], sizes: list[int], confidence: float, begin: float, has_data: bool
) -> None:
    data = Dataset(200.0, "gcp", "us-west") if has_data else None
    runs = [
        run(
            hours,
            confidence,
            name=f"run-{number}",
            earliest_start=at(begin),
            deadline=at(100),
            dataset=data,
            late_usd_per_hour=Decimal(2),
            unplaced_usd=Decimal(500),
        )
        for number, hours in enumerate(sizes)
    ]
    found = plan(request(*runs, hours=HORIZON), offers, estimator=CORE, terms=TERMS)
    assert found.bound_usd is not None
    assert found.bound_usd <= found.objective_usd
    whole = sum((p.cost_usd for p in found.placements), Decimal(0)) + found.penalty_usd + found.delay_usd
    assert found.objective_usd == whole + found.recourse_usd
