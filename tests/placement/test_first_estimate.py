"""A first estimate of a workload alone agrees with the plan of that workload alone."""

from __future__ import annotations

from decimal import Decimal

import pytest

from broker.domain.market.offer import GpuPool, Offer, Stock, Tier, WindowKind
from broker.domain.planning.cost_estimate import WorkloadEstimate
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import Policy, Workload
from tests.placement.market import (
    T0,
    at,
    batch,
    offer,
    plan,
    planner,
    request,
    serving,
    training,
    window,
)

MARKET = [
    offer("big", "2.00", nodes=4, joined=4),
    offer("big-dear", "5.00", nodes=4, joined=4, provider="vast", region="eu-west"),
    offer("mid", "1.50", gpu="MID", nodes=8, joined=4, provider="runpod"),
    offer("spot", "0.50", tier=Tier.SPOT, provider="aws"),
]


def estimate(workload: Workload, offers: list[Offer]) -> WorkloadEstimate:
    (found,) = planner().estimate(request(workload), offers, T0).workloads
    return found


@pytest.mark.parametrize(
    "workload",
    [
        training(gpu_hours=20),
        training(gpu_hours=150),
        batch(requests=400_000),
        serving(hourly=[3.0]),
        serving(hourly=[6.0] * 12 + [14.0] * 12),
        serving(hourly=[3.0], spare=1),
    ],
    ids=["run", "long run", "batch", "service", "day and night", "spare"],
)
def test_the_cheapest_is_what_a_plan_pays(workload: Workload) -> None:
    found, made = estimate(workload, MARKET), plan(request(workload), MARKET)
    assert not made.unplaced
    assert found.cheapest_usd is not None
    # A plan may mix two kinds of GPU hour by hour, which saves a few per cent.
    assert float(made.cost_usd) * 0.99 <= float(found.cheapest_usd) <= float(made.cost_usd) * 1.07
    assert found.median_usd is not None
    assert found.median_usd >= found.cheapest_usd


def test_the_median_is_over_sellers_and_not_over_their_sizes_of_node() -> None:
    sizes = [offer(f"size-{n}", f"{9 * n}", gpus=n, nodes=1) for n in (2, 4, 8)]
    found = estimate(serving(), [offer("one", "2.00"), offer("two", "4.00", provider="vast"), *sizes])
    (kind,) = found.gpus
    assert (kind.gpu, kind.offers, kind.sellers, kind.provider) == ("BIG", 5, 2, "lambda")
    assert found.median_usd == kind.median_usd == Decimal("144.00")  # 2.00 and 4.00 for 48 hours


def test_the_stock_of_the_cheapest_is_used_up_before_the_next() -> None:
    asked = serving(hourly=[10.0])  # three replicas of 4 requests/s
    found = estimate(asked, [offer("one", "1.00", nodes=1), offer("two", "4.00", nodes=9, region="eu")])
    assert found.cheapest_usd == Decimal("432.00")  # a third of the one at 144, two thirds of that at 576
    assert (
        found.cheapest_usd
        == plan(
            request(asked), [offer("one", "1.00", nodes=1), offer("two", "4.00", nodes=9, region="eu")]
        ).cost_usd
    )


def test_offers_of_one_pool_have_its_gpus_once() -> None:
    pool = Stock(nodes=1, pool=GpuPool("p", 2))
    cut = [
        offer("half", "1.00", stock=pool),
        offer("whole", "3.00", gpus=2, stock=pool),
        offer("free", "9.00", provider="vast"),
    ]
    found = estimate(serving(hourly=[16.0]), cut)  # four replicas, of which the pool has two
    # A quarter of 192 on one GPU, a quarter of 288 on the other, and half of 1,728.
    assert found.cheapest_usd == Decimal("984.00")


def test_two_zones_have_half_each() -> None:
    here, there = offer("here", "1.00", region="here"), offer("there", "3.00", region="there")
    found = estimate(serving(zones=2), [here, there])
    assert found.cheapest_usd == Decimal("192.00")
    alone = estimate(serving(zones=2), [here])
    assert (alone.cheapest_usd, alone.obstacle) == (None, Obstacle.REDUNDANCY)


def test_a_window_is_part_of_what_can_be_had() -> None:
    terms = window(WindowKind.SLOTS, (0, 48, 4), durations_hours=(12.0, 24.0))
    cut = offer("slot", "0.10", tier=Tier.WINDOW, window=terms, joined=4)
    found = estimate(training(gpu_hours=20), [*MARKET, cut])
    assert found.gpus[0].gpu == "BIG"
    assert found.cheapest_usd is not None
    assert found.cheapest_usd < Decimal(12)


def test_what_fits_nowhere_says_why() -> None:
    found = estimate(training(policy=Policy(countries=("FR",))), MARKET)
    assert (found.cheapest_usd, found.median_usd, found.gpus) == (None, None, ())
    assert found.obstacle is Obstacle.RESIDENCY
    assert "3 outside the allowed countries" in found.says


def test_a_service_after_a_run_is_paid_from_its_end() -> None:
    asked = request(training("run", 20), serving("chat", starts_after="run"))
    run, service = planner().estimate(asked, MARKET, T0).workloads
    assert run.gpus[0].hours_least > 1
    made = plan(asked, MARKET)
    paid = sum(p.cost_usd for p in made.placements if p.workload == "chat")
    assert service.cheapest_usd is not None
    assert float(service.cheapest_usd) == pytest.approx(float(paid), rel=0.25)
    assert service.cheapest_usd < Decimal(2 * 48)


def test_it_says_gpus_hours_and_the_range_in_one_line() -> None:
    says = estimate(training(gpu_hours=150), MARKET).says
    assert says.startswith(("4 × BIG for ", "2 to 4 × BIG for ", "3 to 4 × BIG for "))
    assert "$" in says


def test_a_commitment_is_held_at_the_peak_throughout() -> None:
    day = [4.0] * 12 + [8.0] * 12  # one replica by day, two by night
    free = estimate(serving(hourly=day), [offer("free", "1.00")])
    bound = estimate(serving(hourly=day), [offer("bound", "1.00", tier=Tier.COMMITTED, min_hours=48.0)])
    assert free.cheapest_usd == Decimal("72.00")
    assert bound.cheapest_usd == Decimal("96.00")


def test_a_batch_that_no_offer_can_do_alone_is_estimated_in_parts() -> None:
    """Ten hours of two nodes: 1.00 an hour the cheap one, 2.00 what is left of the other."""
    asked = batch(requests=2 * 4 * (36_000 - 600), deadline=at(10))
    found = estimate(asked, [offer("a", "1.00", nodes=1), offer("b", "2.00", nodes=1)])
    assert found.obstacle is None
    assert found.cheapest_usd == Decimal("30.00")
