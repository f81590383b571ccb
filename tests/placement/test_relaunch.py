"""Giving a node back is expected to cost the chance of not getting it again, times what that costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from broker.domain.basics.money import to_cents
from broker.domain.basics.window import Segment
from broker.domain.market.launch_chance import launch_chance_of
from broker.domain.market.launch_statistics import LaunchStatistics, StatisticsLevel
from broker.domain.market.offer import GpuPool, Offer, Stock, StockLevel
from broker.domain.planning.plan import Plan
from broker.domain.planning.relaunch import Relaunch
from broker.domain.planning.workload import PlanRequest, Serving
from optimizer.placement.fleets.relaunch_prices import busy_hours
from optimizer.placement.problem.relaunches import starts_again
from optimizer.placement.rules.check import check_plan
from tests.depth import examples
from tests.placement.brute_force import Spans, fleet_ways
from tests.placement.fake_estimator import GPUS, FakeEstimator
from tests.placement.market import at, offer, plan, request, serving

DIP = [7.0] * 4 + [3.0] * 2 + [7.0] * 6
"""One node of two is not needed for two hours. Given back, it saves one, as it is ordered an hour early."""


def dip(chance: float, *others: Offer) -> Plan:
    mine = offer("a", "1.00", nodes=2, launch_chance=chance)
    return plan(request(serving(hourly=DIP), hours=12), [mine, *others])


def only_relaunch(found: Plan) -> Relaunch:
    (relaunch,) = (one.relaunch for one in found.placements if one.relaunch is not None)
    return relaunch


def test_a_node_that_is_surely_there_again_is_given_back() -> None:
    found = dip(1.0)
    assert (found.cost_usd, found.relaunch_usd) == (Decimal("23.00"), Decimal("0.00"))
    assert only_relaunch(found).starts == 1


def test_without_a_next_best_the_service_goes_short_for_a_busy_stretch() -> None:
    """Two busy stretches of 4 and 6 h, 5 on average: 5.25 h are worth 2 × 5.25 = 10.50, of which 5 % are less
    than the hour that is saved.
    """
    found = dip(0.95)
    assert found.cost_usd == Decimal("23.00")
    assert only_relaunch(found) == Relaunch(1, 0.95, None, Decimal("0.00"), Decimal("10.50"))
    assert found.relaunch_usd == Decimal("0.52")
    assert found.objective_usd == found.bound_usd == Decimal("23.52")


def test_a_node_that_may_be_gone_is_kept() -> None:
    """One in ten times 10.50 is more than the dollar that is saved."""
    found = dip(0.9)
    assert (found.cost_usd, found.relaunch_usd) == (Decimal("24.00"), Decimal("0.00"))
    assert found.bound_usd == Decimal("24.00")
    assert all(one.relaunch is None for one in found.placements)
    says = " ".join(found.placements[0].why.sentences)
    assert "order" not in says


def test_with_a_next_best_only_what_it_costs_more_is_expected() -> None:
    """5 busy hours at 0.20 more, and 25 minutes (a quarter of an hour, and its start) at twice 1.00."""
    found = dip(0.5, offer("b", "1.20", provider="gcp"))
    relaunch = only_relaunch(found)
    assert (relaunch.offer_id, relaunch.more_usd, relaunch.missing_usd) == (
        "b",
        Decimal("1.00"),
        Decimal("0.83"),
    )
    assert (found.cost_usd, found.relaunch_usd) == (Decimal("23.00"), Decimal("0.92"))
    says = " ".join(found.placements[0].why.sentences)
    assert "1 node is ordered while it runs: with a chance of 50% one is not to be had by then" in says
    assert "b in its place costs $1.83 more; $0.92 is expected" in says


def test_a_dearer_next_best_keeps_the_node() -> None:
    found = dip(0.5, offer("b", "1.30", provider="gcp"))
    assert (found.cost_usd, found.relaunch_usd) == (Decimal("24.00"), Decimal("0.00"))
    assert "would succeed with a chance of only 50%" in " ".join(found.placements[0].why.sentences)


def test_a_plentiful_offer_beats_a_slightly_cheaper_single_machine() -> None:
    """Each night the node is given back. The machine is there now; on later days the plentiful offer is taken
    for 0.02 an hour more.
    """
    hourly = [3.0] * 8 + [0.0] * 16
    single = offer("single", "1.00", nodes=1, launch_chance=0.6)
    many = offer("many", "1.02", nodes=50, launch_chance=0.95, provider="gcp")
    found = plan(request(serving(hourly=hourly), hours=72), [single, many])
    again = {one.offer_id: one.relaunch and one.relaunch.starts for one in found.placements}
    assert again == {"single": None, "many": 2}
    assert found.objective_usd == found.bound_usd


def test_what_a_plan_says_of_its_orders_is_checked() -> None:
    mine = offer("a", "1.00", nodes=2, launch_chance=0.95)
    asked = request(serving(hourly=DIP), hours=12)
    found = plan(asked, [mine])
    (placement,) = found.placements
    told = only_relaunch(found)

    def violations(**changes: object) -> str:
        other = replace(placement, relaunch=replace(told, **changes) if changes else None)  # type: ignore[arg-type]
        return " ".join(check_plan(replace(found, placements=(other,)), asked, [mine], FakeEstimator()))  # type: ignore[arg-type]

    assert "starts is 2, 1 nodes are ordered while it runs" in violations(starts=2)
    assert "chance is 0.5, expected 0.95" in violations(chance=0.5)
    assert "offer_id is 'a'" in violations(offer_id="a")
    assert "relaunch costs -1" in violations(more_usd=Decimal(-1))
    assert "1 nodes are ordered while it runs, but relaunch is missing" in violations()


def test_the_chance_follows_stock_seller_and_launches() -> None:
    """Jeffreys' prior: 1 − 0.5^(n + ½) that of a stock of which n were seen one is left."""
    unknown = replace(offer("a", "1"), launch_chance=None)
    seen = [launch_chance_of(replace(unknown, stock=Stock(nodes=n))) for n in (1, 2, 3, 20)]
    assert seen == [0.6, 0.8, 0.85, 0.95]
    low = replace(unknown, stock=Stock(StockLevel.LOW))
    assert launch_chance_of(low) == launch_chance_of(replace(unknown, stock=Stock(nodes=1)))
    for level in (StockLevel.UNKNOWN, StockLevel.LOW):
        pooled = Stock(level, pool=GpuPool("p", 8 * unknown.sku.gpus_per_node))
        assert launch_chance_of(replace(unknown, stock=pooled)) == 0.95, (
            "eight nodes can be cut from its pool"
        )
    own = LaunchStatistics(0.7, 5.0, 9, StatisticsLevel.OFFER)
    assert launch_chance_of(replace(low, learned=own)) == 0.7
    seller = replace(own, basis=StatisticsLevel.PROVIDER)
    assert launch_chance_of(replace(low, learned=seller)) == pytest.approx(0.45)
    assert launch_chance_of(replace(low, launch_chance=0.99)) == 0.99


@pytest.mark.parametrize(
    ("spans", "count"),
    [
        (((0, 7200, 1), (7200, 9000, 3)), 2),
        (((0, 3600, 2), (7200, 9000, 2)), 2),
        (((3000, 9000, 2),), 0),  # ready by the start at 3,600
        (((3100, 9000, 2),), 2),
    ],
)
def test_orders_later_than_the_start_are_counted(spans: tuple[tuple[int, int, int], ...], count: int) -> None:
    assert starts_again(spans, 0, 3600, 600) == count


def test_of_a_plan_under_way_only_the_orders_to_come_count() -> None:
    segments = (Segment(at(0), at(8), 1), Segment(at(8), at(16), 3), Segment(at(24), at(40), 2))
    again = Relaunch(4, 0.9, None, Decimal("1.00"), Decimal("2.00"))
    each = [again.expected_usd_after(segments, at(hour)) for hour in (0, 8, 30)]
    assert each == [Decimal("1.20"), Decimal("0.60"), Decimal(0)]


def expected_usd(asked: PlanRequest, offers: Sequence[Offer], spans: dict[int, Spans]) -> Decimal:
    """What a fleet's repeated orders are expected to cost, worked out without anything of the planner."""
    service = asked.workloads[0]
    assert isinstance(service, Serving)
    whole = Decimal(0)
    for o, held in spans.items():
        again = starts_again([(round(a * 3600), round(b * 3600), n) for a, b, n in held], 0, 0, 0)
        if not again:
            continue
        gpu = offers[o].sku.gpu
        same = [one for one in offers if one.sku.gpu == gpu]
        first = min(same, key=lambda one: one.price_usd_per_node_hour)
        price, ways = float(first.price_usd_per_node_hour), []
        for other in offers:
            count = max(1, math.ceil(GPUS[gpu].requests_per_s / GPUS[other.sku.gpu].requests_per_s - 1e-9))
            if other is not first and (other.stock.nodes is None or count <= other.stock.nodes):
                ways.append((count * float(other.price_usd_per_node_hour), GPUS[other.sku.gpu].cold_start_s))
        busy = busy_hours(hourly_of(service))
        more = busy * max(0.0, min(ways)[0] - price) if ways else 0.0
        missing = 2 * price * (0.25 + (min(ways)[1] / 3600 if ways else busy))
        failure = Decimal(round(100 * more) + round(100 * missing)) / 100
        whole += again * to_cents((1 - Decimal(str(offers[o].launch_chance))) * failure)
    return whole


def hourly_of(service: Serving) -> NDArray[np.float64]:

    return np.array(service.traffic.hourly, dtype=np.float64)


@st.composite
def markets(draw: st.DrawFn) -> tuple[PlanRequest, list[Offer]]:
    hourly = draw(st.lists(st.sampled_from([0.0, 1.0, 3.0, 4.5, 6.0]), min_size=4, max_size=4))
    offers = [
        offer(
            f"o{i}",
            draw(st.sampled_from(["0.50", "0.93", "1.10", "1.37", "2.20"])),
            gpu=draw(st.sampled_from(["BIG", "MID"])),
            nodes=draw(st.integers(1, 2)),
            zone=draw(st.sampled_from(["a", "b"])),
            billing_increment_s=draw(st.sampled_from([600, 3600])),
            launch_chance=draw(st.sampled_from([0.5, 0.8, 0.95, 1.0])),
        )
        for i in range(2)
    ]
    return request(serving(hourly=hourly), hours=4), offers


@settings(max_examples=examples(30), derandomize=True, deadline=None)
@given(markets())
def test_no_fleet_of_any_market_is_expected_to_cost_less(problem: tuple[PlanRequest, list[Offer]]) -> None:
    asked, offers = problem
    ways = [cost + expected_usd(asked, offers, held) for cost, held in fleet_ways(asked, offers)]
    found = plan(asked, offers)
    if not ways or found.bound_usd is None:
        return
    assert found.bound_usd <= min(ways)
    assert min(ways) - Decimal("0.02") <= found.objective_usd <= min(ways) * Decimal("1.02")
