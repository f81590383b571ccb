"""Finance's word on a plan: asked for, given or refused, and what was seen when it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from broker.domain.basics.money import ZERO, usd_words
from broker.domain.holding.holding_orders import placement_cost_usd
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Placement, Plan


class Verdict(StrEnum):
    """``lapsed``: an approval that no longer holds, because the plan's price passed what was seen."""

    APPROVED = "approved"
    REJECTED = "rejected"
    LAPSED = "lapsed"


class ApprovalState(StrEnum):
    """Where a plan stands with finance."""

    WAITING = "waiting"
    APPROVED = "approved"
    REJECTED = "rejected"


def over_limit(cost_usd: Decimal, limit_usd: Decimal | None) -> tuple[str, ...]:
    """Why a plan of that cost waits for finance, in words; nothing where it does not. None: no limit."""
    if limit_usd is None or cost_usd <= limit_usd:
        return ()
    return (f"it costs {usd_words(cost_usd)}, over the limit of {usd_words(limit_usd)} a plan",)


@dataclass(frozen=True, slots=True)
class SeenFigures:
    """What stood before the one who decided, in USD.

    ``cost_now_usd``: the plan at the prices of that moment (None: an offer of it was not on sale).
    ``projected_p90_usd``: of the same plan, nine times in ten at most that. ``budget_left_usd``: what the
    tightest budget of the team leaves once this plan counts; None where there is no budget.
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
            ("cost at the prices of now", self.cost_now_usd),
            ("bound", self.bound_usd),
            ("P90", self.projected_p90_usd),
            ("budget left", self.budget_left_usd),
        )
        words = [f"{name} {usd_words(usd)}" for name, usd in money if usd is not None]
        return f"seen: {', '.join(words)}, plan sha256 {self.plan_sha256[:16]}"


@dataclass(frozen=True, slots=True)
class Decision:
    """One word on a plan; ``seen`` None where nobody looked (a lapse)."""

    verdict: Verdict
    by: str
    at: datetime
    comment: str = ""
    seen: SeenFigures | None = None


def plan_sha256(plan: Plan) -> str:
    """A hash of what the plan buys, for whom and at what price: it changes when any of that does."""
    facts = [_facts(placement) for placement in plan.placements]
    text = json.dumps([str(plan.cost_usd.normalize()), facts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _facts(placement: Placement) -> dict[str, object]:
    return {
        "workload": placement.workload,
        "offer_id": placement.offer_id,
        "tier": placement.tier.value,
        "segments": [[s.start.isoformat(), s.end.isoformat(), s.nodes] for s in placement.segments],
        "cost_usd": str(placement.cost_usd.normalize()),
    }


def cost_now_usd(plan: Plan, offers: Mapping[str, Offer]) -> Decimal | None:
    """``plan`` at the prices of ``offers``, in whole cents; None when one of them is missing."""
    total = ZERO
    for placement in plan.placements:
        offer = offers.get(placement.offer_id)
        if offer is None:
            return None
        total += placement_cost_usd(placement, offer)
    return total


def lapse(plan: Plan, seen: SeenFigures | None, now_usd: Decimal | None) -> str | None:
    """Why an approval of those figures does not hold for ``plan`` at today's cost; None: it holds.

    What became cheaper needs no second word.
    """
    if seen is None:
        return None
    if seen.plan_sha256 != plan_sha256(plan):
        return "it is not the plan that was approved"
    approved = seen.cost_usd if seen.cost_now_usd is None else max(seen.cost_usd, seen.cost_now_usd)
    if now_usd is not None and now_usd > approved:
        return f"it costs {usd_words(now_usd)} now, approved was {usd_words(approved)}"
    return None
