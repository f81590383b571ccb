"""What the bound is a bound on: ways that the search does not build cost no less than it says."""

from __future__ import annotations

from decimal import Decimal

from broker.domain.planning.plan import PlanStatus
from broker.ports.planning import PlanOptions, Progress
from tests.placement.market import T0, at, batch, offer, plan, planner, request, total, training


def test_five_nodes_are_planned_where_they_are_the_cheapest() -> None:
    """By hand: 40 hours of work end within 8 hours on 5 nodes, 40 x $1.00; on 6 nodes 7 hours are billed."""
    run = training(gpu_hours=40, deadline=at(8))
    found = plan(request(run), [offer("a", "1.00", joined=8, nodes=6, billing_increment_s=3600)])
    assert [(p.nodes, p.cost_usd) for p in found.placements] == [(5, Decimal("40.00"))]
    assert found.bound_usd == Decimal("40.00")


def test_no_bound_is_told_where_a_run_may_have_a_size_that_is_not_planned() -> None:
    """Of more than ten workloads runs are planned on 1, 2, 3, 4, 6 and 8 nodes."""
    runs = [training(f"r{n}", 2, deadline=at(8)) for n in range(11)]
    offers = [offer("a", "1.00", joined=8, nodes=64)]
    seen: list[Progress] = []
    options = PlanOptions(time_limit_s=3.0, baselines=False)
    found = planner().plan(request(*runs), offers, T0, options, seen.append)
    assert (found.status, found.bound_usd, found.gap) == (PlanStatus.FEASIBLE, None, None)
    assert any(note.startswith("no bound is told: r0 may run on") for note in found.notes)
    assert not planner().check(found, request(*runs), offers)
    assert all(one.bound_usd is None and one.gap is None for one in seen)
    small = plan(request(*runs), [offer("a", "1.00", joined=4, nodes=4)], time_limit_s=3.0)
    assert small.bound_usd is not None


def test_the_bound_of_a_batch_knows_of_parts() -> None:
    """By hand, in parts: the cheap node serves all the time there is, with its start; the rest is dear."""
    work = batch(requests=4 * 3600 * 20, deadline=at(10))
    offers = [offer("cheap", "1.00", nodes=1), offer("dear", "3.00", nodes=8)]
    found = plan(request(work), offers, time_limit_s=3.0)
    assert {p.offer_id for p in found.placements} == {"dear"}
    by_hand = Decimal(10) + Decimal("3.00") * 11
    assert found.bound_usd is not None
    assert Decimal(38) < found.bound_usd <= by_hand < total(found)
