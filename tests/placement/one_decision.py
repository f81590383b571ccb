"""A market that leaves one decision: how cases of one rule are written down, and both sides of them tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from broker.domain.market.launch_statistics import LaunchStatistics, StatisticsLevel
from broker.domain.market.offer import GpuPool, Offer, Stock, Tier, WindowKind, WindowTerms
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import Dataset, PlanRequest, Policy, Providers, Quota
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import (
    at,
    offer,
    plan,
    planner,
    request,
    serving,
    total,
    training,
    window,
)

FAILS = LaunchStatistics(success_share=0.2, minutes_to_usable=5.0, attempts=5, basis=StatisticsLevel.OFFER)
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
    first = training("run", 4, policy=Policy(providers=Providers(only=("aws",))))
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


def decide(case: Case) -> None:
    """Both sides of a case: what is planned, and whether the check refuses one side's plan on the other."""
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
