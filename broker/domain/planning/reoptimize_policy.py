"""How a team wants its running work looked at again: what may act by itself, and what a move must save."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum


class ReoptimizeMode(StrEnum):
    """``auto`` moves by itself, ``propose`` waits for somebody's word, ``never`` stays where it is."""

    NEVER = "never"
    PROPOSE = "propose"
    AUTO = "auto"


_CAUTION = tuple(ReoptimizeMode)


@dataclass(frozen=True, slots=True)
class ReoptimizePolicy:
    """What a document says; None: nothing, and the installation's ``MoveRules`` stand.

    ``lapse_hours``: how long a proposal stands. A workload's policy can only narrow its team's.
    """

    mode: ReoptimizeMode | None = None
    min_saving_usd: Decimal | None = None
    min_saving_share: Decimal | None = None
    cooldown_hours: float | None = None
    lapse_hours: float | None = None


@dataclass(frozen=True, slots=True)
class MoveRules:
    """What counts for one workload: a move must save at least ``min_saving_usd`` and, of what staying
    costs, ``min_saving_share``; within ``cooldown`` of its last move it moves only where it cannot stay.
    """

    mode: ReoptimizeMode = ReoptimizeMode.PROPOSE
    min_saving_usd: Decimal = Decimal(10)
    min_saving_share: Decimal = Decimal("0.02")
    cooldown: timedelta = timedelta(hours=24)
    lapse: timedelta = timedelta(hours=24)


def rules_of(policies: tuple[ReoptimizePolicy, ...], otherwise: MoveRules) -> MoveRules:
    """The most cautious of ``policies`` (a team's and its workload's), field by field."""
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
