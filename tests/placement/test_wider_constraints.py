"""Each rule alone (``test_constraints``): copies of data, quotas of providers, runs in parts."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from broker.domain.basics.window import Window
from broker.domain.market.offer import WindowKind
from broker.domain.planning.plan import Obstacle
from broker.domain.planning.workload import Dataset, GpuRange, HeldNodes, Policy, Providers, Quota
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import (
    at,
    offer,
    sku,
)
from tests.placement.one_decision import (
    AWS,
    AWS_EAST,
    BIG_RUN,
    DEAR,
    LISTED,
    PRICED,
    A,
    Case,
    asks,
    chat,
    cut,
    decide,
    kept_to,
    lies,
    parted,
    run,
    sells,
    shifted,
    trained,
    two,
)

CASES = {
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
        trained(policy=Policy(providers=Providers(exclude=("aws",)))),
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
        parted(gpus=GpuRange(1, 1)),
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
}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_alone_decides(name: str) -> None:
    decide(CASES[name])
