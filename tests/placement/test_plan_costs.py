"""What a plan says is paid in the end: the same as its simulation, counted by hand on small markets."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from broker.domain.basics.confidence import mean_factor, quantile_factor
from broker.domain.market.offer import Offer, Tier, WindowKind
from broker.domain.planning.plan import Plan
from broker.domain.planning.simulation import CostQuantiles
from broker.domain.planning.workload import PlanRequest, Workload
from optimizer.plan_costs import FIELDS
from tests.placement.market import at, batch, offer, plan, planner, request, serving, training, window

NEAR = 0.02
BY_SECOND = {"billing_increment_s": 1}


def planned(*workloads: Workload, offers: list[Offer], confidence: float) -> tuple[Plan, PlanRequest]:
    asked = request(*(replace(one, confidence=confidence) for one in workloads))
    return plan(asked, offers), asked


def costs(found: Plan) -> dict[str, Decimal]:
    return {of: getattr(found, name) for of, name in FIELDS.items()}


def drawn(found: CostQuantiles) -> dict[str, Decimal]:
    return {of: getattr(found, of) for of in FIELDS}


@pytest.mark.parametrize("confidence", [0.5, 0.8])
def test_a_plan_tells_the_costs_that_its_simulation_draws(confidence: float) -> None:
    work = training(deadline=at(24)), serving(hourly=(3.0, 9.0)), batch(requests=14_400)
    offers = [offer("free", "2.00", **BY_SECOND)]
    found, asked = planned(*work, offers=offers, confidence=confidence)
    assert costs(found) == drawn(planner().simulate(found, asked, offers, 4000, 1).cost_usd)
    other = drawn(planner().simulate(found, asked, offers, 9000, 7).cost_usd)
    assert all(float(usd) == pytest.approx(float(other[of]), rel=NEAR) for of, usd in costs(found).items())


def test_capacity_by_the_hour_is_paid_until_the_work_ends() -> None:
    """Ten hours at $2, whose P90 is 11 hours."""
    found, _ = planned(training(deadline=at(24)), offers=[offer("free", "2.00", **BY_SECOND)], confidence=0.8)
    (placed,) = found.placements
    slower = placed.estimate.high["hours"] / placed.estimate["hours"] - 1
    faster = placed.estimate["hours"] / placed.estimate.low["hours"] - 1
    median = 2 * placed.estimate["hours"]
    assert float(costs(found)["p50"]) == pytest.approx(median, rel=NEAR)
    assert float(costs(found)["p90"]) == pytest.approx(median * quantile_factor(slower, 0.9), rel=NEAR)
    assert float(costs(found)["mean"]) == pytest.approx(median * mean_factor(slower, faster), rel=NEAR)


def test_a_window_is_paid_in_full_however_short_the_work_is() -> None:
    listed = offer("w", "1.00", tier=Tier.WINDOW, window=window(WindowKind.LISTED, (0, 24, 1)))
    found, _ = planned(training(), offers=[listed], confidence=0.8)
    assert set(costs(found).values()) == {found.cost_usd} == {Decimal("24.00")}


def test_late_hours_are_paid_at_their_price() -> None:
    """The window ends with the median of the work: half the time the rest is late, at $100 an hour."""
    listed = offer("w", "1.00", tier=Tier.WINDOW, window=window(WindowKind.LISTED, (0, 10, 1)))
    free = training(deadline=at(10))
    soft = replace(free, late_usd_per_hour=Decimal(100))
    (without, _), (late, asked) = (planned(one, offers=[listed], confidence=0.5) for one in (free, soft))
    assert costs(late)["p10"] == costs(without)["p10"] == Decimal("10.00")
    hours = planner().simulate(late, asked, [listed], 4000, 1).workloads[0].late_hours_p90
    assert hours is not None
    more = float(costs(late)["p90"] - costs(without)["p90"])
    assert more == pytest.approx(100 * hours, rel=0.001)


def test_a_wrong_cost_is_refused_and_an_absent_one_is_not() -> None:
    offers = [offer("free", "2.00")]
    found, asked = planned(training(deadline=at(24)), offers=offers, confidence=0.8)
    for name in FIELDS.values():
        wrong = replace(found, **{name: getattr(found, name) + Decimal("0.05")})
        (violation,) = planner().check(wrong, asked, offers)
        assert violation.startswith(f"{name} is ")
    older = replace(found, expected_cost_usd=None, cost_p10_usd=None, cost_p50_usd=None, cost_p90_usd=None)
    assert planner().check(older, asked, offers) == ()
