"""Each rule alone: a market that leaves one decision, which the rule allows on one side and not on the other.

On the allowed side the plan must cost what is worked out by hand. On the other, one thing differs: the
planner leaves out what was placed or pays for the dear way, and the check refuses the first side's plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import time
from decimal import Decimal
from typing import Any

import pytest

from broker.domain.learned import Basis, Learned
from broker.domain.moving_costs import MovingTerms
from broker.domain.offer import GpuPool, Offer, Stock, StockLevel, Tier, WindowKind, WindowTerms
from broker.domain.plan import Obstacle
from broker.domain.window import Window
from broker.domain.workload import Dataset, HeldNodes, PlanRequest, Policy, Precision, Quota, Training
from tests.fakes.examples import waiting_terms
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import (
    at,
    batch,
    offer,
    plan,
    planner,
    request,
    serving,
    sku,
    total,
    training,
    window,
)

FAILS = Learned(success_share=0.2, minutes_to_usable=5.0, attempts=5, basis=Basis.OFFER)
PAIRS = FakeEstimator(replica_sizes=(2,))


@dataclass(frozen=True)
class Case:
    """``usd``: total where the rule allows it; then the other side, and its total or what stands against it.

    ``seen``: whether the first side's plan breaks a rule of the other side, or is merely not what would be
    bought there (a wish that holds no plan back).
    """

    asked: PlanRequest
    offers: Sequence[Offer]
    usd: str
    tight: PlanRequest
    short: Sequence[Offer]
    then: Obstacle | str
    estimator: FakeEstimator | None = None
    as_of_hours: tuple[float, float] = (0, 0)
    seen: bool = True
    terms: tuple[MovingTerms | None, MovingTerms | None] = (None, None)


def asks(
    usd: str, asked: PlanRequest, tight: PlanRequest, then: Obstacle | str, *offers: Offer, **more: Any
) -> Case:
    """The request differs."""
    return Case(asked, offers, usd, tight, offers, then, **more)


def sells(
    usd: str, one: Offer, other: Offer, asked: PlanRequest, then: Obstacle | str, *rest: Offer, **more: Any
) -> Case:
    """One offer differs."""
    return Case(asked, (one, *rest), usd, asked, (other, *rest), then, **more)


def run(**changes: Any) -> PlanRequest:
    """One run of 10 h on one BIG GPU."""
    team = {key: changes.pop(key) for key in ("hours", "budget_usd") if key in changes}
    return request(training(**changes), **team)


def chat(hourly: Sequence[float] = (3.0,), **changes: Any) -> PlanRequest:
    """One service over 10 h."""
    team = {key: changes.pop(key) for key in ("budget_usd",) if key in changes}
    return request(serving(hourly=hourly, **changes), hours=10, **team)


def ruled(**rules: Any) -> PlanRequest:
    return run(policy=Policy(**rules))


def cut(kind: WindowKind = WindowKind.SLOTS, *stretches: tuple[float, float, int], **terms: Any) -> Offer:
    """A window offer at $1 an hour."""
    nodes = {key: terms.pop(key) for key in ("joined", "upfront_usd") if key in terms}
    made = window(kind, *(stretches or ((0, 48, 4),)), **terms)
    return offer("a", "1.00", tier=Tier.WINDOW, window=made, **nodes)


def two(deadline: float) -> PlanRequest:
    return request(*(training(name, 10, deadline=at(deadline)) for name in ("one", "two")))


def pooled(gpus: int) -> list[Offer]:
    """Nodes of one and of two GPUs out of one pool."""
    pool = GpuPool("seller/us/h100", gpus)
    sizes = (("a", "1.00", 1), ("b", "2.00", 2))
    return [replace(offer(n, usd, gpus=size), stock=Stock(nodes=gpus, pool=pool)) for n, usd, size in sizes]


A, DEAR = offer("a", "1.00"), offer("dear", "9.00")
RUN, CHAT = run(), chat()
BIG_RUN = run(gpu_hours=40, deadline=at(10))
SHARED = (training("one", 20, deadline=at(10)), training("two", 10, deadline=at(10)))
EGRESS = MovingTerms(
    egress_usd_per_gb={"aws": Decimal("0.09")},
    between_regions_usd_per_gb={"aws": Decimal("0.02")},
    staging_gbit_s=8.0,
)
PRICED = {"terms": (EGRESS, EGRESS)}
AWS, AWS_EAST = replace(A, offer_id="aws", provider="aws"), replace(A, provider="aws", region="us-east-2")


def lies(gb: float, provider: str = "aws", region: str = "us-east") -> PlanRequest:
    """The run, with a data set elsewhere."""
    return run(dataset=Dataset(gb, provider, region))


def trained(**changes: Any) -> PlanRequest:
    """A run on aws and its service, whose weights are 16.06 GB."""
    first = training("run", 4, policy=Policy(providers_only=("aws",)))
    return request(first, serving(starts_after="run", **changes), hours=10)


def kept_to(most: int, deadline: float = 12, *, nodes: bool = False) -> PlanRequest:
    """Two runs of 10 h, and a quota of their team."""
    quota = Quota("lambda", nodes=most) if nodes else Quota("lambda", most)
    return replace(two(deadline), policy=Policy(quotas=(quota,)))


LISTED = (
    offer("w", "1.00", tier=Tier.WINDOW, window=window(WindowKind.LISTED, (0, 6, 1))),
    offer("x", "1.00", tier=Tier.WINDOW, window=window(WindowKind.LISTED, (8, 14, 1))),
)


def shifted(hours: float) -> WindowTerms:
    return window(WindowKind.LISTED, (hours, hours + 6, 1))


def parted(**changes: Any) -> PlanRequest:
    """The run, allowed in parts."""
    return run(**{"deadline": at(14), "interruptible": True, **changes})


LATE = {"deadline": at(20), "late_usd_per_hour": Decimal("1.00")}

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
    "compliance": sells(
        "10.00",
        replace(A, compliance=frozenset({"soc2", "hipaa"})),
        replace(A, compliance=frozenset({"soc2"})),
        ruled(compliance=("soc2", "hipaa")),
        Obstacle.COMPLIANCE,
    ),
    "only this provider": asks(
        "10.00", ruled(providers_only=("lambda",)), ruled(providers_only=("aws",)), Obstacle.POLICY, A
    ),
    "not this provider": asks(
        "10.00", ruled(), ruled(providers_exclude=("lambda",)), "90.00", A, replace(DEAR, provider="aws")
    ),
    "tier": asks("10.00", ruled(tiers=(Tier.ON_DEMAND,)), ruled(tiers=(Tier.COMMITTED,)), Obstacle.TIER, A),
    "a team's rule binds its workloads": asks(
        "10.00", RUN, replace(RUN, policy=Policy(providers_exclude=("lambda",))), Obstacle.POLICY, A
    ),
    "nodes in one fabric": sells(
        "40.00", offer("a", "1.00", joined=4), offer("a", "1.00", joined=3), BIG_RUN, Obstacle.DEADLINE
    ),
    "one node without a fabric": sells("40.00", offer("a", "1.00", joined=4), A, BIG_RUN, Obstacle.DEADLINE),
    "most GPUs": asks(
        "40.00",
        BIG_RUN,
        run(gpu_hours=40, deadline=at(10), gpus_max=3),
        Obstacle.DEADLINE,
        offer("a", "1.00", joined=8),
    ),
    "fewest GPUs": sells(
        "12.00", offer("a", "1.00", joined=4), offer("a", "1.00", joined=3), run(gpus_min=4), Obstacle.FABRIC
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
        replace(A, offer_id="b", zone="b"),
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
    "egress of a data set": asks("10.90", lies(10), lies(20), "11.80", A, **PRICED),
    "egress, by a dearer way": asks(
        "10.90", lies(10), lies(1000), "20.00", A, offer("b", "2.00", provider="aws"), **PRICED
    ),
    "egress between regions": sells("10.00", AWS, AWS_EAST, lies(10), "10.20", **PRICED),
    "staging of a data set": asks(
        "10.00",
        run(dataset=Dataset(3600, "here", "x"), deadline=at(11)),
        run(dataset=Dataset(3601, "here", "x"), deadline=at(11)),
        Obstacle.DEADLINE,
        A,
        **PRICED,
    ),
    "staging before a window": sells(
        "20.00",
        cut(WindowKind.LISTED, (0, 20, 1), upfront_usd=Decimal("20.00")),
        cut(WindowKind.LISTED, (0, 19.9, 1), upfront_usd=Decimal("20.00")),
        run(dataset=Dataset(36000, "here", "x")),
        Obstacle.WINDOW,
        **PRICED,
    ),
    "egress within the budget": asks(
        "10.90",
        replace(lies(10), budget_usd=Decimal("10.90")),
        replace(lies(10), budget_usd=Decimal("10.89")),
        Obstacle.BUDGET,
        A,
        **PRICED,
    ),
    "egress of finished weights": asks(
        "10.00",
        trained(),
        trained(policy=Policy(providers_exclude=("aws",))),
        "11.45",
        AWS,
        offer("b", "1.00", provider="other"),
        **PRICED,
    ),
    "weights that lie elsewhere": asks(
        "10.90",
        chat(weights=Dataset(10, "aws", "us-east")),
        chat(weights=Dataset(20, "aws", "us-east")),
        "11.80",
        A,
        **PRICED,
    ),
    "quota of GPUs": asks("20.00", kept_to(2), kept_to(1), Obstacle.QUOTA, A),
    "quota in turn": asks("20.00", kept_to(1, 20), kept_to(1, 19.9), Obstacle.QUOTA, A),
    "quota of nodes": asks("20.00", kept_to(2, nodes=True), kept_to(1, nodes=True), Obstacle.QUOTA, A),
    "quota, by another provider": asks(
        "20.00", kept_to(2), kept_to(1), "100.00", A, replace(DEAR, provider="aws")
    ),
    "quota of the installation": asks(
        "20.00",
        replace(two(12), quotas=(Quota("lambda", 2),)),
        replace(two(12), quotas=(Quota("lambda", 1),)),
        Obstacle.QUOTA,
        A,
    ),
    "quota beside what is held": asks(
        "20.00",
        replace(kept_to(3), held=(HeldNodes("lambda", Window(at(0), at(5)), 1, 1),)),
        replace(kept_to(3), held=(HeldNodes("lambda", Window(at(0), at(5)), 1, 2),)),
        Obstacle.QUOTA,
        A,
    ),
    "others' nodes count for the installation alone": asks(
        "20.00",
        replace(kept_to(2), held=(HeldNodes("lambda", Window(at(0), at(5)), 1, 1, is_own=False),)),
        replace(
            two(12),
            quotas=(Quota("lambda", 2),),
            held=(HeldNodes("lambda", Window(at(0), at(5)), 1, 1, is_own=False),),
        ),
        Obstacle.QUOTA,
        A,
    ),
    "quota of one workload": asks(
        "20.00",
        chat((8.0,), policy=Policy(quotas=(Quota("lambda", 2),))),
        chat((8.0,), policy=Policy(quotas=(Quota("lambda", 1),))),
        "100.00",
        A,
        replace(DEAR, provider="aws"),
    ),
    "quota of a run's size": asks(
        "40.00",
        replace(BIG_RUN, policy=Policy(quotas=(Quota("lambda", 4),))),
        replace(BIG_RUN, policy=Policy(quotas=(Quota("lambda", 3),))),
        Obstacle.QUOTA,
        offer("a", "1.00", joined=4),
    ),
    "split windows": asks("12.00", parted(), run(deadline=at(14)), Obstacle.WINDOW, *LISTED),
    "parts in sequence": sells(
        "12.00", LISTED[0], replace(LISTED[0], window=shifted(5)), parted(), Obstacle.WINDOW, LISTED[1]
    ),
    "a window and the rest beside it": asks(
        "14.00", parted(deadline=at(10)), run(deadline=at(10)), "20.00", LISTED[0], offer("b", "2.00")
    ),
    "the rest before a window": asks(
        "14.00", parted(deadline=at(14)), parted(deadline=at(13.9)), "16.00", LISTED[1], offer("b", "2.00")
    ),
    "each part pays its start-up": Case(
        parted(gpu_hours=9),
        LISTED,
        "12.00",
        parted(gpu_hours=10.1),
        LISTED,
        Obstacle.WINDOW,
        FakeEstimator(startup_hours=1.0),
    ),
    "parts have one node count": sells(
        "12.00",
        LISTED[1],
        replace(LISTED[1], sku=sku(gpus=8)),
        parted(gpus_max=1),
        Obstacle.WINDOW,
        LISTED[0],
    ),
    "a checkpoint takes its time": sells(
        "14.00",
        LISTED[0],
        replace(LISTED[0], provider="aws"),
        parted(deadline=at(10)),
        "20.00",
        offer("b", "2.00"),
        **PRICED,
    ),
    "what leaving out costs": asks(
        "10.00", run(unplaced_usd=Decimal("10.01")), run(unplaced_usd=Decimal("9.99")), "9.99", A, seen=False
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_alone_decides(name: str) -> None:
    case = CASES[name]
    first, second = (at(hours) for hours in case.as_of_hours)
    terms, others = case.terms
    allowed = plan(case.asked, case.offers, as_of=first, estimator=case.estimator, terms=terms)
    assert not allowed.unplaced
    assert total(allowed) == Decimal(case.usd)
    after = plan(case.tight, case.short, as_of=second, estimator=case.estimator, terms=others)
    if isinstance(case.then, Obstacle):
        assert case.then in {row.reason for row in after.unplaced}
    else:
        assert total(after) == Decimal(case.then)
    said = replace(allowed, as_of=second)
    refused = planner(case.estimator, others).check(said, case.tight, case.short)
    assert bool(refused) == case.seen, refused


def test_every_case_is_a_run_or_a_service() -> None:
    kinds = {type(w) for case in CASES.values() for w in case.asked.workloads}
    assert Training in kinds
    assert len(kinds) == 3
