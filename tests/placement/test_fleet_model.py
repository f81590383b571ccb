"""Fleets on few pools: small markets whose best fleet a person can check, and drawn ones against brute
force."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Plan, PlanStatus
from broker.domain.planning.workload import FleetLimits, PlanRequest, Redundancy, Serving, Survival
from tests.placement.brute_force import best_total
from tests.placement.market import offer, plan, request, serving

PROFILE = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


def limited(service: Serving, pools: int, kinds: int = 2) -> Serving:
    return replace(service, fleet=FleetLimits(pools, kinds))


def held(found: Plan) -> dict[str, int]:
    return {placement.offer_id: placement.nodes for placement in found.placements}


def test_one_pool_is_dearer_than_two_and_is_kept() -> None:
    """A node serves 4 requests/s. Seven cheap ones are too few for 32; one pool needs the eight dear ones."""
    offers = [
        offer("cheap", "1.00", nodes=7, zone="a"),
        offer("dear", "1.10", nodes=9, zone="b", provider="aws"),
    ]
    asked = request(limited(serving(hourly=[32.0]), 1), hours=10)
    assert held(plan(asked, offers)) == {"dear": 8}
    asked = request(limited(serving(hourly=[32.0]), 2), hours=10)
    assert held(plan(asked, offers)) == {"cheap": 7, "dear": 1}


def test_sizes_of_one_seller_s_nodes_are_one_pool() -> None:
    offers = [
        offer("double", "1.50", gpus=2, nodes=1, zone="a"),
        offer("single", "1.00", nodes=9, zone="a"),
        offer("elsewhere", "0.99", nodes=1, zone="b", provider="aws"),
    ]
    found = plan(request(limited(serving(hourly=[12.0]), 1), hours=10), offers)
    assert held(found) == {"double": 1, "single": 1}


def test_the_loss_of_a_place_leaves_half_of_the_demand() -> None:
    """Without the rule one node in the dearer place is enough; with it each place carries half."""
    offers = [offer("a", "1.00", zone="a"), offer("b", "2.00", zone="b", provider="aws")]
    service = replace(serving(hourly=[32.0], zones=2), redundancy=Redundancy(2, 0, Survival.REPLICA))
    assert held(plan(request(limited(service, 3), hours=10), offers)) == {"a": 7, "b": 1}
    service = replace(service, redundancy=Redundancy(2, 0, Survival.ZONE))
    assert held(plan(request(service, hours=10), offers)) == {"a": 4, "b": 4}


def test_no_more_kinds_of_gpu_than_are_allowed() -> None:
    offers = [
        offer("big", "1.00", nodes=3, zone="a"),
        offer("mid", "0.60", gpu="MID", nodes=9, zone="a"),
    ]
    found = plan(request(limited(serving(hourly=[20.0]), 3, kinds=1), hours=10), offers)
    assert len({placement.gpu for placement in found.placements}) == 1


def test_what_no_pools_can_carry_is_not_placed() -> None:
    offers = [offer("a", "1.00", nodes=2, zone="a"), offer("b", "1.00", nodes=2, zone="b")]
    found = plan(request(limited(serving(hourly=[12.0]), 1), hours=10), offers)
    assert found.status is PlanStatus.INFEASIBLE


prices = st.sampled_from(["0.50", "0.90", "1.00", "1.30", "2.00"])


@st.composite
def drawn(draw: st.DrawFn) -> tuple[PlanRequest, list[Offer], int]:
    hourly = draw(st.lists(st.sampled_from([0.5, 3.0, 6.0, 9.0]), min_size=2, max_size=3))
    spare, pools = draw(st.integers(0, 1)), draw(st.integers(1, 2))
    offers = [
        offer(
            f"o{i}",
            draw(prices),
            zone=draw(st.sampled_from(["a", "b"])),
            nodes=draw(st.integers(1, 2)),
            gpu=draw(st.sampled_from(["BIG", "MID"])),
        )
        for i in range(draw(st.integers(1, 2)))
    ]
    return request(serving(hourly=hourly, spare=spare), hours=len(hourly)), offers, pools


@PROFILE
@given(drawn())
def test_a_limit_never_makes_a_fleet_cheaper_than_the_best_of_all(
    case: tuple[PlanRequest, list[Offer], int],
) -> None:
    """Every plan passes its own check, which counts pools; brute force knows no limit."""
    asked, offers, pools = case
    best = best_total(asked, offers)
    service = asked.workloads[0]
    assert isinstance(service, Serving)
    found = plan(replace(asked, workloads=(limited(service, pools),)), offers)
    if found.status is PlanStatus.INFEASIBLE or best is None:
        assert best is None or pools < len(offers)
        return
    assert found.bound_usd is not None
    assert found.bound_usd <= found.cost_usd
    assert found.cost_usd >= best
    if pools >= len(offers):
        assert found.cost_usd <= best + Decimal("0.01")
        assert found.bound_usd <= best
