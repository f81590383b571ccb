"""Budgets that hold at a quantile of what is paid in the end: a run that is longer than planned counts."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from broker.domain.market.offer import Offer, Tier, WindowKind
from broker.domain.planning.plan import Obstacle, Plan, PlanStatus
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import PlanOptions
from optimizer.placement.replan.warm import WarmStart
from tests.placement.market import T0, at, offer, plan, planner, request, serving, training, window

HOURLY = offer("hourly", "1.00", billing_increment_s=1)
"""Ten hours cost $10 at the median and $11 at P90, as each hour is paid until the work ends."""
CERTAIN = offer("certain", "0.90", tier=Tier.WINDOW, window=window(WindowKind.LISTED, (0, 12, 1)))
"""Twelve hours cost $10.80, however long the work takes."""


def asked(budget: str, budget_confidence: float | None, confidence: float = 0.5) -> PlanRequest:
    run = training(deadline=at(40), confidence=confidence)
    return request(run, budget_usd=Decimal(budget), budget_confidence=budget_confidence)


def planned(wanted: PlanRequest, offers: list[Offer]) -> Plan:
    found = plan(wanted, offers)
    assert planner().check(found, wanted, offers) == ()
    return found


def names(found: Plan) -> list[str]:
    return [one.offer_id for one in found.placements]


@pytest.mark.parametrize("confidence", [0.5, 0.8])
def test_a_plain_budget_is_of_what_is_held(confidence: float) -> None:
    found = planned(asked("10.50", None, confidence), [HOURLY, CERTAIN])
    assert names(found) == ["hourly"]


@pytest.mark.parametrize("confidence", [0.5, 0.8])
def test_at_its_quantile_what_is_certain_takes_the_place_of_what_is_cheap_on_average(
    confidence: float,
) -> None:
    """$10.90 is enough for ten hours, and with 90 % for the window alone."""
    found = planned(asked("10.90", 0.9, confidence), [HOURLY, CERTAIN])
    assert names(found) == ["certain"]
    assert found.cost_p90_usd == found.cost_usd == Decimal("10.80")
    assert found.status is not PlanStatus.INFEASIBLE
    assert found.bound_usd is not None
    assert found.bound_usd <= Decimal("10.05")  # of the run by the hour, which the budget alone excludes


def test_a_budget_above_the_quantile_changes_nothing() -> None:
    free, within = (planned(asked(usd, 0.9), [HOURLY, CERTAIN]) for usd in ("1000.00", "11.50"))
    assert names(free) == names(within) == ["hourly"]
    assert free.bound_usd == within.bound_usd == within.cost_usd


def test_what_does_not_fit_is_left_out_and_the_fix_counts_the_margin() -> None:
    wanted = asked("10.90", 0.9)
    found = planned(wanted, [HOURLY])
    assert found.status is PlanStatus.INFEASIBLE
    (left,) = found.unplaced
    assert left.reason is Obstacle.BUDGET
    (operation,) = left.fixes[0].patch
    assert (operation.path, operation.value_json) == ("/budget", '{"usd": "12", "confidence": 0.9}')
    assert names(planned(asked("12.00", 0.9), [HOURLY])) == ["hourly"]


def test_planning_again_keeps_the_budget_at_its_quantile() -> None:
    """The plan in force is by the hour; less money leaves only the window."""
    old = planned(asked("1000.00", 0.9), [HOURLY, CERTAIN])
    options = PlanOptions(time_limit_s=120.0, gap=0.0, baselines=False)
    wanted = asked("10.90", 0.9)
    found = planner().replan(wanted, [HOURLY, CERTAIN], T0, options, WarmStart(old)).plan
    assert planner().check(found, wanted, [HOURLY, CERTAIN]) == ()
    assert names(found) == ["certain"]


def test_a_plan_over_its_quantile_is_refused() -> None:
    found = planned(asked("10.50", None), [HOURLY])
    (violation,) = planner().check(found, asked("10.50", 0.9), [HOURLY])
    assert violation.endswith("is paid at most with a chance of 0.9, over the budget of 10.50")


def test_runs_and_services_share_a_budget_at_its_quantile() -> None:
    """The errors of both are independent: the quantile of the sum is below the sum of the quantiles."""
    work = request(training(deadline=at(40), confidence=0.5), serving(hourly=(1.0,) * 24, confidence=0.5))
    free = plan(work, [HOURLY])
    assert free.cost_p90_usd is not None
    just = replace(work, budget_usd=free.cost_p90_usd, budget_confidence=0.9)
    assert planned(just, [HOURLY]).cost_usd == free.cost_usd
