"""Approvals of plans by finance: the request, the decision, and the figures that were shown for it."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from broker.domain.basics.money import ZERO, usd_words
from broker.domain.holding.holding_orders import placement_cost_usd
from broker.domain.market.offer import Offer, Tier
from broker.domain.planning.plan import Placement, Plan

HOUR = timedelta(hours=1)


class Verdict(StrEnum):
    """A decision. ``lapsed``: the approval no longer holds, because the plan changed or costs more now."""

    APPROVED = "approved"
    REJECTED = "rejected"
    LAPSED = "lapsed"


class ApprovalState(StrEnum):
    """State of a plan's approval."""

    WAITING = "waiting"
    APPROVED = "approved"
    REJECTED = "rejected"


def over_limit(cost_usd: Decimal, limit_usd: Decimal | None, subject: str = "it") -> tuple[str, ...]:
    """The reasons why a plan or order of this cost needs approval, as text; empty if it needs none."""
    if limit_usd is None or cost_usd <= limit_usd:
        return ()
    limit = f"the limit of {usd_words(limit_usd)} per plan or order"
    return (f"{subject} costs {usd_words(cost_usd)}, which is over {limit}",)


@dataclass(frozen=True, slots=True)
class SeenFigures:
    """The figures that were shown for a decision, in USD.

    ``cost_now_usd`` is the plan at the prices of that moment (None: one of its offers was not on sale).
    ``projected_p90_usd`` is the plan's projected cost at the 90 % quantile. ``budget_left_usd`` is what the
    tightest budget of the team leaves after this plan, or that of all teams where it is exceeded; None
    without a budget.
    """

    cost_usd: Decimal
    cost_now_usd: Decimal | None
    bound_usd: Decimal | None
    gap: float | None
    projected_p90_usd: Decimal | None
    budget_left_usd: Decimal | None
    plan_sha256: str

    def __str__(self) -> str:
        money = (
            ("cost", self.cost_usd),
            ("cost at current prices", self.cost_now_usd),
            ("bound", self.bound_usd),
            ("P90", self.projected_p90_usd),
            ("budget left", self.budget_left_usd),
        )
        words = [f"{name} {usd_words(usd)}" for name, usd in money if usd is not None]
        return f"seen: {', '.join(words)}, plan sha256 {self.plan_sha256[:16]}"


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision on a plan. ``seen`` is None for a lapse, which no person decides.

    ``by_name``: the name of the key or person ``by``; empty for a lapse, and in old decisions.
    """

    verdict: Verdict
    by: str
    at: datetime
    comment: str = ""
    seen: SeenFigures | None = None
    by_name: str = ""


@dataclass(frozen=True, slots=True)
class Purchase:
    """What a plan buys of one seller for one workload: one GPU in one tier, in USD of the whole time.

    ``gpus`` are the most at once, ``gpu_hours`` those of all segments.
    """

    workload: str
    provider: str
    gpu: str
    tier: Tier
    gpus: int
    gpu_hours: float
    start: datetime
    end: datetime
    usd: Decimal


def purchases_of(plan: Plan) -> tuple[Purchase, ...]:
    """What ``plan`` buys, the dearest first. The amounts sum to its cost."""
    parts: defaultdict[tuple[str, str, str, Tier], list[Placement]] = defaultdict(list)
    for placement in plan.placements:
        parts[placement.workload, placement.provider, placement.gpu, placement.tier].append(placement)
    found = (_purchase(*key, placements) for key, placements in parts.items())
    return tuple(sorted(found, key=lambda one: (-one.usd, one.workload, one.provider)))


def _purchase(workload: str, provider: str, gpu: str, tier: Tier, placements: list[Placement]) -> Purchase:
    held = [(s, s.nodes * (p.gpus // p.nodes)) for p in placements for s in p.segments if s.nodes]
    instants = {segment.start for segment, _ in held}
    return Purchase(
        workload=workload,
        provider=provider,
        gpu=gpu,
        tier=tier,
        gpus=max(sum(gpus for s, gpus in held if s.start <= at < s.end) for at in instants),
        gpu_hours=sum(gpus * ((s.end - s.start) / HOUR) for s, gpus in held),
        start=min(instants),
        end=max(segment.end for segment, _ in held),
        usd=sum((placement.cost_usd for placement in placements), ZERO),
    )


def plan_sha256(plan: Plan) -> str:
    """A hash of what the plan buys, for which workloads and at what cost."""
    facts = [_facts(placement) for placement in plan.placements]
    text = json.dumps([str(plan.cost_usd.normalize()), facts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _facts(placement: Placement) -> dict[str, object]:
    sizes = {"disk_gb": placement.disk_gb, "memory_gb": placement.memory_gb}
    return {
        **{name: gb for name, gb in sizes.items() if gb is not None},
        "workload": placement.workload,
        "offer_id": placement.offer_id,
        "tier": placement.tier.value,
        "segments": [[s.start.isoformat(), s.end.isoformat(), s.nodes] for s in placement.segments],
        "cost_usd": str(placement.cost_usd.normalize()),
    }


def cost_now_usd(plan: Plan, offers: Mapping[str, Offer]) -> Decimal | None:
    """Cost of ``plan`` at the prices of ``offers``, in whole cents; None if one of its offers is missing."""
    total = ZERO
    for placement in plan.placements:
        offer = offers.get(placement.offer_id)
        if offer is None:
            return None
        total += placement_cost_usd(placement, offer)
    return total


def lapse(plan: Plan, seen: SeenFigures | None, now_usd: Decimal | None) -> str | None:
    """The reason why an approval with the figures ``seen`` no longer holds for ``plan``; None if it holds.

    ``now_usd`` is the plan's cost at current prices. A plan that became cheaper needs no new approval.
    """
    if seen is None:
        return None
    if seen.plan_sha256 != plan_sha256(plan):
        return "it is not the plan that was approved"
    approved = seen.cost_usd if seen.cost_now_usd is None else max(seen.cost_usd, seen.cost_now_usd)
    if now_usd is not None and now_usd > approved:
        return f"it costs {usd_words(now_usd)} now and {usd_words(approved)} was approved"
    return None
