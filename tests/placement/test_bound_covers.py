"""What the bound is a bound on: ways that the search does not build cost no less than it says."""

from __future__ import annotations

from decimal import Decimal

import pytest

from broker.domain.planning.plan import PlanStatus
from broker.domain.planning.workload import GpuRange
from broker.ports.planning import PlanOptions
from tests.placement.market import T0, at, batch, offer, plan, planner, request, total, training


def test_five_nodes_are_planned_where_they_are_the_cheapest() -> None:
    """By hand: 40 hours of work end within 8 hours on 5 nodes, 40 x $1.00; on 6 nodes 7 hours are billed."""
    run = training(gpu_hours=40, deadline=at(8))
    found = plan(request(run), [offer("a", "1.00", joined=8, nodes=6, billing_increment_s=3600)])
    assert [(p.nodes, p.cost_usd) for p in found.placements] == [(5, Decimal("40.00"))]
    assert found.bound_usd == Decimal("40.00")


def test_five_nodes_are_planned_of_many_runs_too() -> None:
    """By hand as above: each of eleven runs costs $40 on five nodes, and $42 on six."""
    runs = [training(f"r{n}", 40, deadline=at(8)) for n in range(11)]
    offers = [offer("a", "1.00", joined=6, nodes=96, billing_increment_s=3600)]
    options = PlanOptions(time_limit_s=3.0, baselines=False)
    found = planner().plan(request(*runs), offers, T0, options)
    assert {p.nodes for p in found.placements} == {5}
    assert found.cost_usd == 11 * Decimal(40)
    assert found.bound_usd is not None
    assert found.bound_usd >= 11 * Decimal("39.99")
    assert found.status is PlanStatus.OPTIMAL
    assert not planner().check(found, request(*runs), offers)


@pytest.mark.parametrize(("gpus_min", "gpus_max"), [(1, None), (6, 6), (5, 6)])
def test_a_size_that_the_document_excludes_is_not_in_the_bound(gpus_min: int, gpus_max: int | None) -> None:
    runs = [training(f"r{n}", 40, deadline=at(8), gpus=GpuRange(gpus_min, gpus_max)) for n in range(11)]
    offers = [offer("a", "1.00", joined=6, nodes=96, billing_increment_s=3600, gpus=1)]
    options = PlanOptions(time_limit_s=3.0, baselines=False)
    found = planner().plan(request(*runs), offers, T0, options)
    assert found.bound_usd is not None
    each = Decimal(42 if gpus_min == 6 else 40)
    assert 11 * (each - Decimal("0.1")) <= found.bound_usd <= 11 * each


def test_the_bound_of_a_batch_knows_of_parts() -> None:
    """By hand, in parts: the cheap node serves all the time there is, with its start; the rest is dear."""
    work = batch(requests=4 * 3600 * 20, deadline=at(10))
    offers = [offer("cheap", "1.00", nodes=1), offer("dear", "3.00", nodes=8)]
    found = plan(request(work), offers, time_limit_s=3.0)
    assert {p.offer_id for p in found.placements} == {"cheap", "dear"}
    by_hand = Decimal(10) + Decimal("3.00") * 11
    assert found.bound_usd is not None
    assert Decimal(38) < found.bound_usd <= by_hand <= total(found) < Decimal("3.00") * 22
