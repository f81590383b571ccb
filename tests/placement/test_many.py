"""More workloads than are chosen at once: dual prices, rounds, the same plan for the same seed."""

from __future__ import annotations

import random
from decimal import Decimal

from broker.domain.market.offer import Offer, Tier
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import PlanOptions, Progress
from tests.placement.market import T0, at, offer, plan, planner, request, serving, total, training


def crowd(seed: int) -> tuple[PlanRequest, list[Offer]]:
    """Many small workloads that all want the few cheapest nodes."""
    draw = random.Random(seed)
    offers = [
        offer(
            f"o{i:02d}",
            f"{draw.uniform(1.0, 2.5):.2f}",
            gpu=draw.choice(["BIG", "MID", "TINY"]),
            nodes=draw.choice([2, 4, 8]),
            zone=draw.choice("ab"),
        )
        for i in range(24)
    ]
    offers[0] = offer("o00", "1.30", nodes=4, tier=Tier.COMMITTED, min_hours=48.0)
    offers.append(offer("plenty", "2.60"))
    runs = [
        training(
            f"r{i:02d}", draw.uniform(2, 12), deadline=at(draw.uniform(20, 48)), unplaced_usd=Decimal(80)
        )
        for i in range(10)
    ]
    services = [
        serving(f"s{i:02d}", [draw.uniform(0.5, 6) for _ in range(4)], unplaced_usd=Decimal(400))
        for i in range(12)
    ]
    return request(*runs, *services), offers


def test_dual_prices_prove_what_each_workload_alone_cannot() -> None:
    asked, offers = crowd(1)
    seen: list[Progress] = []
    options = PlanOptions(time_limit_s=200.0, gap=0.22, baselines=False)
    found = planner().plan(asked, offers, T0, options, seen.append)
    alone = next(p.bound_usd for p in seen if p.stage == "priced" and p.bound_usd)
    assert found.bound_usd is not None
    assert float(found.bound_usd) > 1.1 * alone
    assert found.gap is not None
    assert found.gap < 0.3
    assert not any(u.workload.startswith("s") for u in found.unplaced)


def test_the_same_seed_gives_the_same_plan_when_the_search_ends_by_itself() -> None:
    asked, offers = crowd(2)
    first, again = (plan(asked, offers, time_limit_s=300.0, gap=0.25) for _ in range(2))
    assert first.gap is not None
    assert first.gap <= 0.25
    assert first.placements == again.placements
    assert total(first) == total(again)
