"""Where nobody says how many nodes there are, a plan counts on few, and says on how many."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from broker.domain.market.offer import GpuPool, Offer, Stock, StockLevel
from broker.domain.planning.plan import Assumption, Obstacle, Plan, PlanStatus
from broker.domain.planning.workload import GpuRange, Policy
from tests.placement.market import at, offer, plan, request, serving, training


def said(found: Plan) -> dict[str, int]:
    return {one.offer_id: one.nodes for one in found.assumptions}


def size(name: str, usd: str, gpus: int, pool: str = "seller/us/BIG") -> Offer:
    """A size of GPUs that nobody counts."""
    return replace(offer(name, usd, gpus=gpus), stock=Stock(pool=GpuPool(pool, None)))


def test_a_service_takes_what_is_assumed_and_the_rest_elsewhere() -> None:
    """Three nodes of four requests a second each are needed; two are assumed of either seller."""
    offers = [offer("cheap", "1.00"), offer("dear", "2.00")]
    asked = request(serving(hourly=[9.0]), hours=8, policy=Policy(assumed_nodes=2))
    found = plan(asked, offers)
    assert said(found) == {"cheap": 2, "dear": 1}
    assert said(plan(replace(asked, policy=Policy(assumed_nodes=3)), offers)) == {"cheap": 3}


def test_a_stated_number_holds_and_is_no_assumption() -> None:
    offers = [offer("counted", "1.00", nodes=20), offer("dear", "2.00")]
    found = plan(request(serving(hourly=[79.0]), hours=4, policy=Policy(assumed_nodes=2)), offers)
    assert {p.offer_id: p.nodes for p in found.placements} == {"counted": 20}
    assert found.assumptions == ()


def test_the_sentence_says_who_says_what() -> None:
    low = replace(offer("a", "1.00", provider="runpod"), stock=Stock(StockLevel.LOW))
    (told,) = plan(request(training()), [low]).assumptions
    assert told == Assumption(
        "a", 1, "runpod states stock low and no number; the plan assumes at most 16 nodes"
    )
    (told,) = plan(request(training()), [replace(low, stock=Stock(held_nodes=3))]).assumptions
    assert told.says == (
        "runpod states no stock; the plan assumes at most 16 nodes beside the 3 that are held"
    )


def test_two_runs_at_once_share_what_is_assumed() -> None:
    runs = (training("a", 10, deadline=at(10)), training("b", 10, deadline=at(10)))
    found = plan(
        request(*runs, policy=Policy(assumed_nodes=1)), [offer("cheap", "1.00"), offer("dear", "5.00")]
    )
    assert {p.offer_id for p in found.placements} == {"cheap", "dear"}
    assert said(found) == {"cheap": 1, "dear": 1}


def test_two_sizes_of_the_same_gpus_are_not_both_counted_on() -> None:
    """One node of the largest size is assumed, two GPUs: the second run finds none left."""
    runs = (training("a", 20, deadline=at(10)), training("b", 10, deadline=at(10)))
    sizes = [size("one", "1.00", 1), size("two", "2.00", 2)]
    asked = request(*runs, policy=Policy(assumed_nodes=1))
    found = plan(asked, [*sizes, offer("dear", "5.00")])
    assert {p.workload: p.offer_id for p in found.placements} == {"a": "two", "b": "dear"}
    assert "2 GPUs in all 2 offers that share them" in found.assumptions[0].says
    found = plan(replace(asked, policy=Policy(assumed_nodes=2)), [*sizes, offer("dear", "5.00")])
    assert {p.offer_id for p in found.placements} <= {"one", "two"}


def test_a_workload_may_ask_for_less_to_be_assumed() -> None:
    chat = serving(hourly=[9.0], policy=Policy(assumed_nodes=1))
    found = plan(request(chat, hours=8, policy=Policy(assumed_nodes=3)), [
        offer("cheap", "1.00"), offer("dear", "2.00"), offer("dearest", "3.00"),
    ])  # fmt: skip
    assert said(found) == {"cheap": 1, "dear": 1, "dearest": 1}


def test_what_is_held_counts_beside() -> None:
    held = replace(offer("cheap", "1.00"), stock=Stock(held_nodes=2))
    asked = request(serving(hourly=[9.0]), hours=8, policy=Policy(assumed_nodes=1))
    assert said(plan(asked, [held, offer("dear", "2.00")])) == {"cheap": 3}


def test_what_nobody_counts_may_be_too_little() -> None:
    asked = request(training(gpu_hours=20 * 10, gpus=GpuRange(20), deadline=at(24)))
    joined = offer("joined", "1.00", joined=64)
    found = plan(asked, [joined])
    assert found.status is PlanStatus.INFEASIBLE
    assert found.unplaced[0].reason is Obstacle.STOCK
    found = plan(replace(asked, policy=Policy(assumed_nodes=64)), [joined])
    assert found.cost_usd > Decimal(0)
    assert said(found)["joined"] >= 20
