"""Policy of re-optimization: whether moves need a decision, and how much a move must save."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum

from broker.domain.workloads.document_fields import DecimalShare, Hours, SomeHours, Usd


class ReoptimizeMode(StrEnum):
    """``auto`` moves without asking, ``propose`` waits for a person's decision, ``never`` does not move."""

    NEVER = "never"
    PROPOSE = "propose"
    AUTO = "auto"


_CAUTION = tuple(ReoptimizeMode)


@dataclass(frozen=True, slots=True)
class ReoptimizePolicy:
    """The re-optimization policy of a document. What it does not state is as the installation is set.

    ``lapse_hours`` is how long a proposal stays valid. A workload's policy can only make its team's stricter.
    """

    mode: ReoptimizeMode | None = None
    min_saving_usd: Usd | None = None
    min_saving_share: DecimalShare | None = None
    cooldown_hours: Hours | None = None
    lapse_hours: SomeHours | None = None


@dataclass(frozen=True, slots=True)
class MoveRules:
    """The rules of one workload.

    A move must save at least ``min_saving_usd``, and at least the share ``min_saving_share`` of the cost of
    staying. Within ``cooldown`` after its last move a workload moves only if it cannot stay. A proposal
    expires after ``lapse``.
    """

    mode: ReoptimizeMode = ReoptimizeMode.PROPOSE
    min_saving_usd: Decimal = Decimal(10)
    min_saving_share: Decimal = Decimal("0.02")
    cooldown: timedelta = timedelta(hours=24)
    lapse: timedelta = timedelta(hours=24)


def rules_of(policies: tuple[ReoptimizePolicy, ...], otherwise: MoveRules) -> MoveRules:
    """The strictest of ``policies`` (a team's and its workload's) in each field, else ``otherwise``."""
    modes = [policy.mode for policy in policies if policy.mode is not None]
    usd = [policy.min_saving_usd for policy in policies if policy.min_saving_usd is not None]
    share = [policy.min_saving_share for policy in policies if policy.min_saving_share is not None]
    cooldown = [policy.cooldown_hours for policy in policies if policy.cooldown_hours is not None]
    lapse = [policy.lapse_hours for policy in policies if policy.lapse_hours is not None]
    return MoveRules(
        mode=min(modes, key=_CAUTION.index, default=otherwise.mode),
        min_saving_usd=max(usd, default=otherwise.min_saving_usd),
        min_saving_share=max(share, default=otherwise.min_saving_share),
        cooldown=timedelta(hours=max(cooldown)) if cooldown else otherwise.cooldown,
        lapse=timedelta(hours=min(lapse)) if lapse else otherwise.lapse,
    )
