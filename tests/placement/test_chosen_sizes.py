"""Disk and memory that the buyer chooses: ordered as the workload needs, priced, and taken from one stock.

The run's host needs 30 GB for its image and two checkpoints of 104.4 GB, 238.8 GB, and 4 GB of memory for its
process beside a checkpoint, 108.4 GB. The service's needs 30 GB and 16.1 GB of weights.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from broker.domain.holding.cost_of_keeping import HeldCapacity
from broker.domain.holding.holding_orders import intents_of, placement_cost_usd
from broker.domain.market.offer import GpuPool, Offer, Stock
from broker.domain.market.sku import SoldAmount
from broker.domain.moving.moving import find_change
from broker.domain.planning.plan import Obstacle, Plan
from broker.domain.reconciling.held_offers import with_held
from optimizer.placement.problem.host_sizes import rounded_up
from optimizer.placement.rules.check import check_plan
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import T0, at, offer, plan, request, serving, training

MILLI = Decimal("0.001")
DISK = SoldAmount(default_gb=100.0, min_gb=50.0, max_gb=None, usd_per_gb_hour=MILLI)
MEMORY = SoldAmount(default_gb=16.0, min_gb=16.0, max_gb=256.0, usd_per_gb_hour=Decimal("0.002"))
RUN = request(training())


def sized(name: str, usd: str, disk: SoldAmount | None = DISK, **changes: Any) -> Offer:
    return replace(offer(name, usd, **changes), disk=disk)


def fixed(name: str, usd: str, disk_gb: float, **changes: Any) -> Offer:
    made = offer(name, usd, **changes)
    return replace(made, sku=replace(made.sku, disk_gb=disk_gb))


def bought(found: Plan) -> list[tuple[str, float | None, float | None, Decimal]]:
    return [(p.offer_id, p.disk_gb, p.memory_gb, p.cost_usd) for p in found.placements]


def test_a_default_disk_drops_no_offer() -> None:
    """250 GB in place of 100 at 0.001 USD: 1.15 for 10 h, below 1.20 of a host with enough."""
    found = plan(RUN, [sized("a", "1.00"), fixed("b", "1.20", 1000.0)])
    assert bought(found) == [("a", 250.0, None, Decimal("11.50"))]
    assert found.bound_usd == Decimal("11.50")
    words = "Each node is ordered with 250 GB of disk in place of 100: $0.15 of its $1.15 an hour."
    assert words in found.placements[0].why.sentences


def test_the_price_of_disk_decides() -> None:
    """At 1.10 the host with enough is cheaper than 1.15."""
    found = plan(RUN, [sized("a", "1.00"), fixed("b", "1.10", 1000.0)])
    assert bought(found) == [("b", None, None, Decimal("11.00"))]


def test_memory_is_ordered_beside_disk() -> None:
    """110 GB of memory in place of 16: 94 x 0.002 + 150 x 0.001 = 0.338."""
    both = replace(sized("a", "1.00"), memory=MEMORY)
    assert bought(plan(RUN, [both])) == [("a", 250.0, 110.0, Decimal("13.38"))]


def test_what_needs_no_more_pays_the_default() -> None:
    found = plan(request(serving(), hours=10), [sized("a", "1.00")])
    assert {p.disk_gb for p in found.placements} == {None}
    assert found.cost_usd == 10 * max(s.nodes for p in found.placements for s in p.segments)


def test_each_workload_orders_its_own_size() -> None:
    found = plan(request(training(), serving(), hours=10), [sized("a", "1.00")])
    assert {p.workload: p.disk_gb for p in found.placements} == {"run": 250.0, "chat": None}


@pytest.mark.parametrize("most", [238.0, 150.0])
def test_more_than_the_seller_has_is_not_sold(most: float) -> None:
    found = plan(RUN, [sized("a", "1.00", replace(DISK, max_gb=most))])
    assert [left.reason for left in found.unplaced] == [Obstacle.DISK]


def test_the_most_that_is_sold_suffices_where_a_round_amount_does_not() -> None:
    found = plan(RUN, [sized("a", "1.00", replace(DISK, max_gb=240.0))])
    assert bought(found) == [("a", 239.0, None, Decimal("11.39"))]


def test_amounts_are_whole_units_of_the_seller() -> None:
    """233 GiB are the first that hold 250 GB."""
    gib = 2**30 / 1e9
    sold = SoldAmount(round(100 * gib, 6), round(100 * gib, 6), None, MILLI, gib)
    (placement,) = plan(RUN, [sized("a", "1.00", sold)]).placements
    assert placement.disk_gb == pytest.approx(233 * gib)


@pytest.mark.parametrize("pool", [None, GpuPool("hall", 1), GpuPool("hall", 8), GpuPool("hall", None)])
def test_sizes_of_one_offer_share_its_stock(pool: GpuPool | None) -> None:
    """One node in stock, wanted by a run with 250 GB and a service with 100: one of them goes elsewhere."""
    one = replace(sized("a", "1.00", nodes=1), stock=Stock(nodes=1, pool=pool))
    rest = replace(fixed("b", "3.00", 1000.0), stock=Stock(pool=pool if pool and pool.gpus == 8 else None))
    asked = request(training(deadline=at(10.5)), serving(hourly=(1.0,)), hours=10)
    found = plan(asked, [one, rest])
    assert sorted(p.offer_id for p in found.placements) == ["a", "b"]


def test_nothing_fits_twice_into_one_node() -> None:
    one = replace(sized("a", "1.00"), stock=Stock(nodes=1))
    asked = request(training(deadline=at(11)), serving(hourly=(1.0,)), hours=10)
    assert len(plan(asked, [one]).unplaced) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"disk_gb": None}, "100 GB of disk, 239 GB are needed"),
        ({"disk_gb": 200.0}, "200 GB of disk, 239 GB are needed"),
        ({"disk_gb": 250.5}, "whole multiples of 1"),
        ({"disk_gb": 40.0}, "sold are 50 to any amount"),
        ({"memory_gb": 200.0}, "memory_gb is 200, but the offer's is fixed"),
        ({"disk_gb": 300.0}, "cost"),
        ({"cost_usd": Decimal("10.00")}, "cost"),
    ],
)
def test_the_checker_works_out_need_limits_and_price_itself(change: dict[str, Any], says: str) -> None:
    offers = [sized("a", "1.00")]
    found = plan(RUN, offers)
    assert check_plan(found, RUN, offers, FakeEstimator()) == ()  # type: ignore[arg-type]
    wrong = replace(found, placements=(replace(found.placements[0], **change),))
    assert any(says in words for words in check_plan(wrong, RUN, offers, FakeEstimator()))  # type: ignore[arg-type]


def test_a_dearer_unit_makes_the_order_dearer() -> None:
    dearer = sized("a", "1.00", replace(DISK, usd_per_gb_hour=Decimal("0.0015")))
    assert bought(plan(RUN, [dearer])) == [("a", 250.0, None, Decimal("12.25"))]


def test_what_is_held_of_an_offer_that_is_gone_can_be_kept() -> None:
    """It is on sale no more; its row has the held size again."""
    held = HeldCapacity("run", sized("a", "1.00").sized(250.0, None), 1, at(0), at(10), True, T0)
    (back,) = with_held((), [held])
    assert bought(plan(RUN, [back])) == [("a", 250.0, None, Decimal("11.50"))]


@pytest.mark.parametrize(
    ("gb", "amount"), [(12, 20), (99, 100), (101, 110), (239, 250), (266, 275), (440, 450), (1230, 1300)]
)
def test_needs_are_rounded_up_to_few_amounts(gb: float, amount: float) -> None:
    assert rounded_up(gb) == amount


def test_the_cheapest_dropped_offer_is_named_with_its_gate() -> None:
    """One host of many falls for its disk alone: 10 h at 1.00 in place of 30.00."""
    found = plan(RUN, [fixed("a", "1.00", 100.0), fixed("b", "3.00", 1000.0)])
    words = (
        "1 x BIG at lambda in us-east is dropped for its host alone (100 GB of disk, 239 GB are needed): "
        "with enough it would cost roughly $10.00 in place of $30.00."
    )
    assert words in found.placements[0].why.sentences


def test_nothing_is_named_where_nothing_dropped_is_cheaper() -> None:
    found = plan(RUN, [fixed("a", "4.00", 100.0), fixed("b", "3.00", 1000.0)])
    assert not any("is dropped" in says for says in found.placements[0].why.sentences)


def test_an_order_and_its_price_limit_are_of_the_placement_s_size() -> None:
    """1.15 a node-hour, and the tolerance of 2 % above it: 1.173, with half a cent of rounding over 10 h."""
    offers = [sized("a", "1.00")]
    found = plan(RUN, offers)
    (intent,) = intents_of(found, {"a": offers[0]}, T0, timedelta(hours=1), 0.02)
    assert (intent.offer.sku.disk_gb, intent.offer.price_usd_per_node_hour) == (250.0, Decimal("1.15"))
    assert intent.limit_usd_per_node_hour == Decimal("1.173510")
    assert placement_cost_usd(found.placements[0], offers[0]) == Decimal("11.50")


def test_another_size_of_the_same_offer_is_another_holding() -> None:
    """A lease with 100 GB is not what a placement with 250 GB asks for; one with 250 GB is."""
    offers = [sized("a", "1.00")]
    found = plan(RUN, offers)
    wanted = intents_of(found, {"a": offers[0]}, T0, timedelta(hours=1))
    segment = found.placements[0].segments[0]
    small, large = (
        HeldCapacity("run", offers[0].sized(gb, None), 1, segment.start, segment.end, True, T0)
        for gb in (None, 250.0)
    )
    assert find_change([small], wanted).wanted == wanted
    assert find_change([large], wanted).wanted == ()
