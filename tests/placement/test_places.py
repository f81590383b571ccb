"""A zone is a place, GPUs are counted once, and nothing outlasts its offer."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.market.offer import GpuPool, Offer, Stock
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import Policy
from optimizer.placement.rules.check import check_plan
from tests.depth import examples
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import at, batch, offer, plan, request, serving, total, training


def test_two_sellers_of_one_data_centre_are_one_zone() -> None:
    asked = request(serving(hourly=[3.0], zones=2), hours=4)
    here = [offer("own", "1.00", place="verda/FIN-02"), offer("resold", "1.10", place="verda/FIN-02")]
    assert plan(asked, here).unplaced[0].reason == "redundancy"
    found = plan(asked, [*here, offer("far", "9.00", place="verda/FIN-01")])
    assert {"far"} < {p.offer_id for p in found.placements}
    moved = [replace(one, place="verda/FIN-02") for one in [*here, offer("far", "9.00")]]
    assert any("zones" in words for words in check_plan(found, asked, moved, FakeEstimator()))  # type: ignore[arg-type]


def test_a_pool_has_what_the_most_careful_of_its_sellers_says() -> None:
    """The one that is silent sells no more than the other counts, to one run as to several."""
    silent = replace(offer("silent", "1.00"), stock=Stock(pool=GpuPool("p", None)))
    counted = replace(offer("counted", "1.20"), stock=Stock(nodes=2, pool=GpuPool("p", 2)))
    asked = request(batch("b", 40_000_000, deadline=at(12)))
    found = plan(asked, [silent, counted, offer("dear", "9.00")])
    for placement in found.placements:
        if placement.offer_id != "dear":
            assert placement.gpus <= 2


def test_a_pool_that_nobody_counts_holds_what_is_assumed() -> None:
    pool = Stock(pool=GpuPool("p", None))
    rows = [replace(offer("a", "1.00"), stock=pool), replace(offer("b", "1.10"), stock=pool)]
    runs = (training("x", 10, deadline=at(10)), training("y", 10, deadline=at(10)))
    assert {p.offer_id for p in plan(request(*runs), rows).placements} == {"a"}
    one = request(*runs, policy=Policy(assumed_nodes=1))
    assert plan(one, rows).unplaced[0].reason is Obstacle.CONTENTION


def test_nothing_is_held_longer_than_it_is_there() -> None:
    short, long = offer("short", "1.00", available_until=at(12)), offer("long", "2.00")
    asked = request(training("run", 10, deadline=at(24)))
    found = plan(asked, [short, long])
    assert {p.offer_id for p in found.placements} == {"short"}
    ends = [replace(short, available_until=at(3))]
    assert any("the offer ends at" in words for words in check_plan(found, asked, ends, FakeEstimator()))  # type: ignore[arg-type]
    gone = [replace(short, available_until=at(9)), long]
    assert {p.offer_id for p in plan(asked, gone).placements} == {"long"}
    (left_out,) = plan(asked, gone[:1]).unplaced
    assert left_out.reason is Obstacle.AVAILABILITY


def test_what_ends_serves_a_run_and_a_service_until_then() -> None:
    offers = [offer("short", "1.00", available_until=at(24)), offer("long", "2.00")]
    asked = request(training("run", 10, deadline=at(12)), serving(hourly=[3.0]), hours=48)
    found = plan(asked, offers)
    held = {(p.workload, p.offer_id): p.segments[-1].end for p in found.placements}
    assert held.keys() == {("run", "short"), ("chat", "short"), ("chat", "long")}
    assert (held["chat", "short"], held["chat", "long"]) == (at(24), at(48))
    (left_out,) = plan(replace(asked, workloads=asked.workloads[1:]), offers[:1]).unplaced
    assert left_out.reason is Obstacle.AVAILABILITY


def test_of_two_runs_the_second_would_end_too_late() -> None:
    """One node is there for 15 hours: it serves one run of ten hours, not two after each other."""
    offers = [offer("short", "1.00", nodes=1, available_until=at(15)), offer("long", "2.00")]
    runs = (training("a", 10, deadline=at(40)), training("b", 10, deadline=at(40)))
    assert total(plan(request(*runs), offers)) == Decimal(30)
    there = [replace(offers[0], available_until=at(21)), offers[1]]
    assert total(plan(request(*runs), there)) == Decimal(20)


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.sampled_from(["1.00", "2.50"]))
def test_an_offer_split_into_two_of_one_pool_changes_nothing(half: int, runs: int, usd: str) -> None:
    """Two offers of half the stock out of one pool cost what the whole offer does."""
    asked = request(*(training(f"r{n}", 6, deadline=at(7)) for n in range(runs)))
    dear = offer("dear", "4.00")
    whole = offer("whole", usd, nodes=2 * half)

    def part(name: str) -> Offer:
        return replace(whole, offer_id=name, stock=Stock(nodes=half, pool=GpuPool("p", 2 * half)))

    parts = [part("one"), part("two"), dear]
    assert total(plan(asked, parts)) == total(plan(asked, [whole, dear]))
