"""What our launches taught moves a plan where it may, and no figure of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.domain.market.launch_statistics import LaunchStatistics, StatisticsLevel
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Obstacle, Plan, PlanStatus
from broker.domain.planning.workload import Workload
from tests.placement.market import offer, plan, request, serving, training

QUICK = LaunchStatistics(0.99, 2.0, 12, StatisticsLevel.OFFER)
SLOW = LaunchStatistics(0.6, 40.0, 12, StatisticsLevel.OFFER)
RARE = LaunchStatistics(0.2, 5.0, 6, StatisticsLevel.OFFER)


def known(one: Offer, learned: LaunchStatistics) -> Offer:
    return replace(one, learned=learned)


def chosen(found: Plan) -> set[str]:
    return {placement.offer_id for placement in found.placements}


@pytest.mark.parametrize("workload", [training(), serving(hourly=[3.0, 7.0])])
def test_where_costs_tie_the_offer_with_the_least_wait_is_taken(workload: Workload) -> None:
    a, b = offer("a", "2.00"), offer("b", "2.00")
    assert chosen(plan(request(workload), [a, b])) == {"a"}
    taken = plan(request(workload), [a, known(b, QUICK)])
    assert chosen(taken) == {"b"}
    assert "our launches there say: 99% in 2 min (12 launches)" in taken.placements[0].why.binding
    assert chosen(plan(request(workload), [known(a, SLOW), b])) == {"b"}
    cheaper = known(offer("c", "1.99"), SLOW)
    assert chosen(plan(request(workload), [a, known(b, QUICK), cheaper])) == {"c"}


def test_cost_and_bound_know_nothing_of_it() -> None:
    workloads = (training(), serving(hourly=[3.0, 7.0]))
    plain = plan(request(*workloads), [offer("a", "2.00"), offer("b", "3.00")])
    taught = plan(request(*workloads), [known(offer("a", "2.00"), SLOW), offer("b", "3.00")])
    assert (taught.cost_usd, taught.bound_usd) == (plain.cost_usd, plain.bound_usd)
    assert taught.plan_id != plain.plan_id


def test_an_offer_whose_launches_mostly_fail_is_taken_for_sold_out() -> None:
    rare = known(offer("rare", "1.00"), RARE)
    assert chosen(plan(request(training()), [rare, offer("b", "2.00")])) == {"b"}
    alone = plan(request(training()), [rare])
    assert alone.status is PlanStatus.INFEASIBLE
    assert alone.unplaced[0].reason is Obstacle.STOCK
    of_its_provider = known(rare, replace(RARE, basis=StatisticsLevel.PROVIDER))
    assert chosen(plan(request(training()), [of_its_provider])) == {"rare"}
