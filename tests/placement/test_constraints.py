"""Each rule alone: a market that leaves one decision, which the rule allows on one side and not on the other.

On the allowed side the plan must cost what is worked out by hand. On the other, one thing differs: the
planner leaves out what was placed or pays for the dear way, and the check refuses the first side's plan.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import time
from decimal import Decimal
from typing import Any

import pytest

from broker.domain.market.offer import HostKind, Offer, Stock, StockLevel, Tier, WindowKind
from broker.domain.market.sku import GpuVendor
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import GpuRange, Policy, Precision, Providers, Training
from broker.domain.workloads.gpu_rules import GpuRules
from tests.fakes.examples import waiting_terms
from tests.placement.market import (
    at,
    batch,
    offer,
    request,
    serving,
    training,
)
from tests.placement.one_decision import (
    BIG_RUN,
    CHAT,
    DEAR,
    FAILS,
    LATE,
    PAIRS,
    RUN,
    SHARED,
    A,
    Case,
    asks,
    chat,
    cut,
    decide,
    pooled,
    ruled,
    run,
    sells,
    two,
)


def hosted(one: Offer, **changes: Any) -> Offer:
    return replace(one, sku=replace(one.sku, **changes))


LAMBDA = Providers(only=("lambda",))
NO_LAMBDA = Providers(exclude=("lambda",))
H100 = offer("a", "1.00", gpu="H100-SXM-80GB")
MI300X = offer("a", "1.00", gpu="MI300X-192GB")
GAMING = offer("a", "1.00", gpu="RTX-4090")
FAR = offer("far", "9.00", gpu="H100-SXM-80GB")
CASES = {
    "deadline": asks("10.00", run(deadline=at(10)), run(deadline=at(9.9)), Obstacle.DEADLINE, A),
    "deadline, by a dearer way": asks(
        "10.00", run(deadline=at(10)), run(deadline=at(9)), "45.00", A, offer("dear", "9.00", gpus=2)
    ),
    "earliest start": asks(
        "20.00",
        run(),
        run(earliest_start=at(1)),
        Obstacle.WINDOW,
        cut(WindowKind.LISTED, (0, 10, 1), upfront_usd=Decimal("20.00")),
    ),
    "now": Case(RUN, (A,), "10.00", RUN, (A,), Obstacle.DEADLINE, as_of_hours=(38, 38.5)),
    "soft deadline of a day": asks(
        "64.00",
        run(gpu_hours=40, **LATE | {"deadline": at(16)}),
        run(gpu_hours=40, **LATE | {"deadline": at(15.9)}),
        Obstacle.DEADLINE,
        A,
    ),
    "price of lateness": asks(
        "60.00",
        run(gpu_hours=40, **LATE),
        run(gpu_hours=40, **LATE | {"late_usd_per_hour": Decimal("5.00")}),
        "100.00",
        A,
        offer("b", "5.00", gpus=2),
    ),
    "stock at one instant": sells(
        "20.00", offer("a", "1.00", nodes=2), offer("a", "1.00", nodes=1), two(19), Obstacle.CONTENTION
    ),
    "stock in turn": asks("20.00", two(20), two(19.9), Obstacle.CONTENTION, offer("a", "1.00", nodes=1)),
    "stock of a window over time": sells(
        "10.00",
        cut(WindowKind.SLOTS, (0, 6, 1), (6, 10, 1)),
        cut(WindowKind.SLOTS, (0, 6, 1), (7, 12, 1)),
        RUN,
        Obstacle.WINDOW,
    ),
    "no stock": sells("10.00", A, replace(A, stock=Stock(StockLevel.NONE)), RUN, Obstacle.STOCK),
    "launches that fail": sells("10.00", A, replace(A, learned=FAILS), RUN, "90.00", DEAR, seen=False),
    "pool": Case(request(*SHARED), pooled(3), "30.00", request(*SHARED), pooled(2), Obstacle.CONTENTION),
    "budget": asks(
        "10.00", run(budget_usd=Decimal("10.00")), run(budget_usd=Decimal("9.99")), Obstacle.BUDGET, A
    ),
    "region": asks("10.00", ruled(regions=("us-*",)), ruled(regions=("eu-*",)), Obstacle.POLICY, A),
    "country": sells(
        "10.00",
        replace(A, country="DE"),
        replace(A, country="US"),
        ruled(countries=("DE",)),
        Obstacle.RESIDENCY,
    ),
    "unknown country": sells(
        "10.00", replace(A, country="DE"), A, ruled(countries=("DE",)), Obstacle.RESIDENCY
    ),
    "geography": sells(
        "10.00",
        replace(A, country="IE"),
        replace(A, country="GB"),
        ruled(geography=("eu", "us")),
        Obstacle.RESIDENCY,
    ),
    "countries inside a geography": sells(
        "10.00",
        replace(A, country="NO"),
        replace(A, country="IS"),
        ruled(geography=("eea",), countries=("NO", "GB")),
        Obstacle.RESIDENCY,
    ),
    "hosts": sells(
        "10.00",
        replace(A, host=HostKind.DATACENTER),
        replace(A, host=HostKind.COMMUNITY),
        RUN,
        Obstacle.POLICY,
    ),
    "hosts as asked": asks(
        "10.00",
        ruled(hosts=(HostKind.COMMUNITY,)),
        ruled(hosts=(HostKind.DATACENTER,)),
        Obstacle.POLICY,
        replace(A, host=HostKind.COMMUNITY),
    ),
    "reliability": sells(
        "10.00",
        replace(A, reliability=0.99),
        replace(A, reliability=0.98),
        ruled(min_reliability=0.99),
        Obstacle.POLICY,
    ),
    "reliability that nobody states": sells(
        "10.00", replace(A, reliability=0.9), A, ruled(min_reliability=0.9), Obstacle.POLICY
    ),
    "GPU by name": asks(
        "10.00",
        ruled(gpus=GpuRules(only=("H1*",))),
        ruled(gpus=GpuRules(only=("H1",))),
        Obstacle.POLICY,
        H100,
    ),
    "GPU that is excluded": asks(
        "10.00", RUN, ruled(gpus=GpuRules(exclude=("H100-*",))), "90.00", H100, DEAR
    ),
    "memory of a GPU": asks(
        "10.00",
        ruled(gpus=GpuRules(min_memory_gb=80)),
        ruled(gpus=GpuRules(min_memory_gb=80.1)),
        Obstacle.POLICY,
        H100,
    ),
    "vendor of a GPU": asks(
        "10.00",
        ruled(gpus=GpuRules(vendor=(GpuVendor.AMD,))),
        ruled(gpus=GpuRules(vendor=(GpuVendor.NVIDIA,))),
        Obstacle.POLICY,
        MI300X,
    ),
    "vendor of a GPU by default": sells("10.00", H100, MI300X, RUN, Obstacle.POLICY),
    "class of a GPU by default": sells(
        "10.00", offer("a", "1.00", gpu="RTX-A6000"), GAMING, RUN, "90.00", FAR
    ),
    "a GPU that is named needs no class": asks(
        "10.00", ruled(gpus=GpuRules(only=("RTX-4090",))), RUN, Obstacle.POLICY, GAMING
    ),
    "a team's rule on GPUs binds its workloads": asks(
        "10.00",
        run(policy=Policy(gpus=GpuRules(vendor=(GpuVendor.AMD, GpuVendor.NVIDIA)))),
        replace(
            run(policy=Policy(gpus=GpuRules(vendor=(GpuVendor.AMD,)))),
            policy=Policy(gpus=GpuRules(only=("H100-*",))),
        ),
        Obstacle.POLICY,
        MI300X,
    ),
    "disk for checkpoints": sells(  # image 30 GB, two checkpoints of 13 bytes a parameter: 238.8 GB
        "10.00", hosted(A, disk_gb=239.0), hosted(A, disk_gb=238.0), RUN, Obstacle.DISK
    ),
    "memory for a snapshot": sells(  # 4 GB for the process, one checkpoint of 104.4 GB
        "10.00", hosted(A, memory_gb=109.0), hosted(A, memory_gb=108.0), RUN, Obstacle.DISK
    ),
    "disk for weights": sells(  # 16.1 GB and the image
        "48.00", hosted(A, disk_gb=46.1), hosted(A, disk_gb=46.0), request(serving()), Obstacle.DISK
    ),
    "compliance": sells(
        "10.00",
        replace(A, compliance=frozenset({"soc2", "hipaa"})),
        replace(A, compliance=frozenset({"soc2"})),
        ruled(compliance=("soc2", "hipaa")),
        Obstacle.COMPLIANCE,
    ),
    "only this provider": asks(
        "10.00",
        ruled(providers=LAMBDA),
        ruled(providers=Providers(only=("aws",))),
        Obstacle.POLICY,
        A,
    ),
    "not this provider": asks(
        "10.00",
        ruled(),
        ruled(providers=NO_LAMBDA),
        "90.00",
        A,
        replace(DEAR, provider="aws"),
    ),
    "tier": asks("10.00", ruled(tiers=(Tier.ON_DEMAND,)), ruled(tiers=(Tier.COMMITTED,)), Obstacle.TIER, A),
    "a team's rule binds its workloads": asks(
        "10.00",
        RUN,
        replace(RUN, policy=Policy(providers=NO_LAMBDA)),
        Obstacle.POLICY,
        A,
    ),
    "nodes in one fabric": sells(
        "40.00", offer("a", "1.00", joined=4), offer("a", "1.00", joined=3), BIG_RUN, Obstacle.DEADLINE
    ),
    "one node without a fabric": sells("40.00", offer("a", "1.00", joined=4), A, BIG_RUN, Obstacle.DEADLINE),
    "most GPUs": asks(
        "40.00",
        BIG_RUN,
        run(gpu_hours=40, deadline=at(10), gpus=GpuRange(1, 3)),
        Obstacle.DEADLINE,
        offer("a", "1.00", joined=8),
    ),
    "fewest GPUs": sells(
        "12.00",
        offer("a", "1.00", joined=4),
        offer("a", "1.00", joined=3),
        run(gpus=GpuRange(4)),
        Obstacle.FABRIC,
    ),
    "anchor": sells(
        "24.00",
        cut(anchor_utc=time(11, 30), step_hours=24.0, durations_hours=(24.0,)),
        cut(anchor_utc=time(11, 31), step_hours=24.0, durations_hours=(24.0,)),
        run(deadline=at(21.5)),
        Obstacle.WINDOW,
    ),
    "step": sells(
        "12.00",
        cut(anchor_utc=time(0), step_hours=6.0),
        cut(anchor_utc=time(0), step_hours=24.0),
        run(earliest_start=at(3), deadline=at(17)),
        "24.00",
    ),
    "durations": sells(
        "12.00", cut(durations_hours=(8.0, 12.0)), cut(durations_hours=(8.0,)), RUN, Obstacle.WINDOW
    ),
    "shortest duration": sells(
        "12.00", cut(durations_hours=(12.0,)), cut(durations_hours=(14.0,)), RUN, "14.00"
    ),
    "lead": sells(
        "10.00",
        cut(lead_hours=5.0),
        cut(lead_hours=5.1, step_hours=1.0, anchor_utc=time(0)),
        run(deadline=at(15)),
        Obstacle.WINDOW,
    ),
    "length of a window": sells(
        "10.00",
        cut(WindowKind.LISTED, (0, 10, 1), upfront_usd=Decimal("10.00")),
        cut(WindowKind.LISTED, (0, 9.5, 1), upfront_usd=Decimal("10.00")),
        RUN,
        Obstacle.WINDOW,
    ),
    "a listed window whole": sells(
        "10.00",
        cut(WindowKind.LISTED, (0, 10, 1), upfront_usd=Decimal("10.00")),
        cut(WindowKind.LISTED, (0, 20, 1), upfront_usd=Decimal("20.00")),
        RUN,
        "20.00",
    ),
    "menu of counts": sells(
        "40.00",
        cut(joined=8, node_counts=(2, 4)),
        cut(joined=8, node_counts=(2, 3)),
        BIG_RUN,
        Obstacle.WINDOW,
    ),
    "lots": sells(
        "40.00",
        cut(WindowKind.SLOTS, (0, 10, 9), joined=8, lot_nodes=2),
        cut(WindowKind.SLOTS, (0, 10, 9), joined=8, lot_nodes=3),
        BIG_RUN,
        "42.00",
    ),
    "assumed wait": sells(
        "10.00",
        offer("a", "1.00", tier=Tier.WINDOW, window=waiting_terms(2.0)),
        offer("a", "1.00", tier=Tier.WINDOW, window=waiting_terms(2.5)),
        run(deadline=at(12)),
        Obstacle.WINDOW,
    ),
    "minimum term": sells(
        "12.00",
        offer("a", "1.00", tier=Tier.COMMITTED, min_hours=12.0),
        offer("a", "1.00", tier=Tier.COMMITTED, min_hours=13.0),
        RUN,
        "13.00",
    ),
    "increment": sells("10.00", A, replace(A, billing_increment_s=7 * 3600), RUN, "14.00"),
    "upfront price": sells(
        "11.00",
        replace(A, upfront_usd=Decimal("1.00")),
        replace(A, upfront_usd=Decimal("1.01")),
        RUN,
        "11.01",
    ),
    "spot only for what may be interrupted": asks(
        "10.00",
        run(interruptible=True),
        RUN,
        Obstacle.TIER,
        offer("a", "1.00", tier=Tier.SPOT, interruptions_per_hour=0.0),
    ),
    "spot is not for services": sells("10.00", A, replace(A, tier=Tier.SPOT), CHAT, Obstacle.TIER),
    "memory": sells("10.00", A, replace(A, sku=replace(A.sku, gpu_memory_gb=8.0)), CHAT, Obstacle.MEMORY),
    "precision": asks("10.00", CHAT, chat(precisions=(Precision.FP8,)), Obstacle.MEMORY, A),
    "unknown silicon": sells("10.00", A, offer("a", "1.00", gpu="NONE"), RUN, Obstacle.GPU_UNKNOWN),
    "demand": asks("10.00", chat((4.0,)), chat((4.01,)), "20.00", A),
    "demand of one hour": asks("20.00", chat((4.0, *[8.0] * 9)), chat((8.01, *[8.0] * 9)), "21.00", A),
    "zones": sells(
        "20.00",
        replace(A, offer_id="b", zone="b", place=""),
        replace(A, offer_id="b"),
        chat(zones=2),
        Obstacle.REDUNDANCY,
        A,
    ),
    "spare replicas": asks(
        "20.00", chat((4.0,), spare=1), chat((4.0,), spare=2), Obstacle.STOCK, offer("a", "1.00", nodes=2)
    ),
    "a spare of the largest replica": sells(
        "20.00", A, offer("a", "1.00", gpu="MID"), chat((4.0,), spare=1), "30.00"
    ),
    "whole replicas in a node": sells(
        "10.00", offer("a", "1.00", gpus=2), A, CHAT, Obstacle.MEMORY, estimator=PAIRS
    ),
    "cold start": asks(
        "20.00",
        request(training("one", 4, deadline=at(4)), serving(hourly=[3.0] * 5 + [7.0] * 5), hours=10),
        request(training("one", 5, deadline=at(5)), serving(hourly=[3.0] * 5 + [7.0] * 5), hours=10),
        Obstacle.CONTENTION,
        offer("a", "1.00", nodes=2),
    ),
    "service after its run": asks(
        "10.00",
        request(training("run", 4), serving(starts_after="run"), hours=10),
        request(training("run", 4), serving(), hours=10),
        "14.00",
        A,
    ),
    "known start": asks(
        "5.17", chat(starts_at=at(5)), chat(starts_at=at(4)), "6.17", replace(A, billing_increment_s=1)
    ),
    "time of a batch": asks(
        "10.00",
        request(batch(requests=4 * 3600 * 9.0, deadline=at(9.2))),
        request(batch(requests=4 * 3600 * 9.0, deadline=at(9.1))),
        Obstacle.DEADLINE,
        offer("a", "1.00", nodes=1),
    ),
    "what leaving out costs": asks(
        "10.00", run(unplaced_usd=Decimal("10.01")), run(unplaced_usd=Decimal("9.99")), "9.99", A, seen=False
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_alone_decides(name: str) -> None:
    decide(CASES[name])


def test_every_case_is_a_run_or_a_service() -> None:
    kinds = {type(w) for case in CASES.values() for w in case.asked.workloads}
    assert Training in kinds
    assert len(kinds) == 3
