"""A re-optimization: a new look at a plan, and what it proposes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum


class ProposalState(StrEnum):
    """``unchanged``: nothing better was found; ``rejected``: better, but under the threshold."""

    PROPOSED = "proposed"
    APPLIED = "applied"
    REJECTED = "rejected"
    UNCHANGED = "unchanged"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Move:
    """One workload that goes elsewhere. ``saving_usd`` = before − after, positive is good."""

    workload: str
    from_offers: tuple[str, ...]
    to_offers: tuple[str, ...]
    saving_usd: Decimal
    why: str


@dataclass(frozen=True, slots=True)
class Reoptimization:
    """One pass over one plan.

    ``before_usd``: the old plan at today's prices (None when it can no longer be bought);
    ``after_usd``: the new plan; ``new_plan_id`` names it when one was stored.
    """

    reoptimization_id: str
    team: str
    plan_id: str
    trigger: str
    started_at: datetime
    state: ProposalState
    before_usd: Decimal | None = None
    after_usd: Decimal | None = None
    new_plan_id: str | None = None
    moves: tuple[Move, ...] = ()
    reason: str = ""

    @property
    def saving_usd(self) -> Decimal | None:
        """What the new plan saves against the old one at today's prices."""
        if self.before_usd is None or self.after_usd is None:
            return None
        return self.before_usd - self.after_usd
