"""Whatever is asked of whatever market, the plan passes the independent check (``plan`` raises otherwise)."""

from __future__ import annotations

import random
from datetime import time
from decimal import Decimal
from typing import Any

import pytest

from broker.domain.market.offer import Offer, Tier, WindowKind
from broker.domain.planning.workload import PlanRequest, Workload
from tests.placement.market import at, batch, offer, plan, request, serving, training, window


def _terms(draw: random.Random, kind: WindowKind) -> dict[str, Any]:
    stretches: list[tuple[float, float, int]] = []
    start = draw.choice([-6, 0, 2.5, 7])
    for _ in range(draw.randint(1, 3)):
        end = start + draw.choice([6, 12, 24])
        stretches.append((start, end, draw.randint(1, 4)))
        start = end + draw.choice([0, 0, 3])
    listed = kind is WindowKind.LISTED
    terms = window(
        kind,
        *stretches,
        anchor_utc=draw.choice([None, time(11, 30)]),
        step_hours=draw.choice([1.0, 6.0, 24.0]),
        durations_hours=draw.choice([None, (6.0, 12.0, 24.0)]),
        lead_hours=draw.choice([0, 2.5]),
        teardown_s=draw.choice([0, 0, 1800]),
    )
    upfront = draw.choice([None, Decimal("77.77")]) if listed else None
    return {"tier": Tier.WINDOW, "window": terms, "upfront_usd": upfront, "nodes": draw.choice([None, 4])}


def _offer(draw: random.Random, index: int) -> Offer:
    changes: dict[str, Any] = {
        "gpu": draw.choice(["BIG", "MID", "TINY"]),
        "gpus": draw.choice([1, 1, 2, 3]),
        "joined": draw.choice([0, 0, 8]),
        "nodes": draw.choice([None, 1, 2, 4, 8]),
        "zone": draw.choice([None, "a", "b"]),
        "provider": draw.choice(["p", "q"]),
        "billing_increment_s": draw.choice([1, 60, 3600, 3600, 5400, 7200]),
    }
    tier = draw.choice([*Tier, Tier.ON_DEMAND, Tier.ON_DEMAND])
    if tier is Tier.SPOT:
        changes |= {"tier": tier, "interruptions_per_hour": draw.choice([0.01, 0.05, None])}
    elif tier is Tier.COMMITTED:
        changes |= {"tier": tier, "min_hours": draw.choice([5.0, 24.0, 48.0, 100.5])}
        changes["upfront_usd"] = draw.choice([None, Decimal("3.33")])
    elif tier is Tier.WINDOW:
        changes |= _terms(draw, draw.choice(list(WindowKind)))
    return offer(f"o{index}", f"{draw.uniform(0.3, 5):.4f}", **changes)


def _workloads(draw: random.Random) -> list[Workload]:
    found: list[Workload] = []
    for i in range(draw.randint(1, 3)):
        deadline = draw.uniform(3, 47)
        run = training(
            f"r{i}",
            draw.uniform(1, 60),
            earliest_start=at(draw.uniform(0, deadline - 2)),
            deadline=at(deadline),
            interruptible=draw.random() < 0.5,
            late_usd_per_hour=draw.choice([None, Decimal("2.5")]),
            unplaced_usd=draw.choice([None, Decimal("40"), Decimal("5")]),
        )
        found.append(run)
    starts: list[dict[str, Any]] = [{}, {"starts_after": "r0"}, {"starts_at": at(draw.uniform(0, 40))}]
    for i in range(draw.randint(0, 2)):
        hourly = [draw.uniform(0, 12) for _ in range(draw.choice([1, 6, 24]))]
        changes = dict(draw.choice(starts))
        zones, spare = draw.randint(1, 2), draw.randint(0, 2)
        found.append(
            serving(f"s{i}", hourly, zones=zones, spare=spare, unplaced_usd=Decimal("60"), **changes)
        )
    if draw.random() < 0.3:
        found.append(batch("b", draw.uniform(1e3, 1e6), deadline=at(draw.uniform(10, 48))))
    return found


def _problem(seed: int) -> tuple[PlanRequest, list[Offer], float]:
    draw = random.Random(seed)
    offers = [_offer(draw, i) for i in range(draw.randint(1, 9))]
    hours, budget = draw.choice([48, 48, 47.5]), draw.choice([None, None, Decimal("150")])
    asked = request(*_workloads(draw), hours=hours, budget_usd=budget)
    return asked, offers, draw.choice([0, 0, -3, 1.37])


@pytest.mark.parametrize("seed", range(60))
def test_every_plan_passes_the_check(seed: int) -> None:
    asked, offers, as_of_hours = _problem(seed)
    found = plan(asked, offers, as_of=at(as_of_hours), time_limit_s=3.0, baselines=seed % 4 == 0)
    placed = {p.workload for p in found.placements} | {u.workload for u in found.unplaced}
    assert placed
    for baseline in found.baselines:
        whole = baseline.cost_usd is not None and found.bound_usd is not None and not found.unplaced
        assert not whole or baseline.cost_usd >= found.bound_usd  # type: ignore[operator]
