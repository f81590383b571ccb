"""Spend: charges over time, projected or actual, and their sums."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from broker.domain.basics.money import ZERO
from broker.domain.basics.window import Window
from broker.domain.market.offer import Tier
from broker.domain.planning.workload import WorkloadKind

TAXES = "excluded"
"""What every form of spend says of taxes: no seller's API tells them before its invoice."""

EGRESS = "egress"
"""The SKU of data that leaves its provider."""


class ChargeBasis(StrEnum):
    """Whether money is expected from a plan or owed for a reservation."""

    PROJECTED = "projected"
    ACTUAL = "actual"


class CostView(StrEnum):
    """Whether money counts when it is used (a window or minimum term over its days) or when it is billed (at
    its purchase)."""

    AMORTIZED = "amortized"
    CASH = "cash"


class Commitment(StrEnum):
    """``committed``: owed already, or bound by what was bought ahead. ``flexible``: reserved, and may still
    change. ``until_released``: flexible, of a lease without an end, which costs on until somebody releases
    it. ``intended``: of a draft that somebody intends to buy; nothing of it is reserved."""

    COMMITTED = "committed"
    FLEXIBLE = "flexible"
    UNTIL_RELEASED = "until_released"
    INTENDED = "intended"


BOUGHT_AHEAD = frozenset({Tier.WINDOW, Tier.COMMITTED})


@dataclass(frozen=True, slots=True)
class Charge:
    """Money of one placement or reservation in one part of a day; whole cents.

    ``gpu_seconds`` are what is billed for it, ``idle_gpu_seconds`` those of them that nobody wanted or had
    (the edges of a window, the rest of a minimum term), ``idle_usd`` their part of ``usd``. ``paid_at``:
    when the seller bills the money, where it bills ahead. ``is_open_ended``: expected of a lease without an
    end.
    """

    window: Window
    team: str
    workload: str
    kind: WorkloadKind | None
    provider: str
    sku: str
    tier: Tier
    usd: Decimal
    basis: ChargeBasis
    plan_id: str | None = None
    reservation_id: str | None = None
    offer_id: str = ""
    gpu: str = ""
    region: str = ""
    gpu_seconds: int = 0
    idle_gpu_seconds: int = 0
    idle_usd: Decimal = ZERO
    paid_at: datetime | None = None
    is_open_ended: bool = False

    @property
    def is_egress(self) -> bool:
        """Whether the money is for data that leaves its provider, not for nodes."""
        return self.sku == EGRESS

    @property
    def commitment(self) -> Commitment:
        """Whether the money is bound."""
        if self.basis is ChargeBasis.ACTUAL:
            return Commitment.COMMITTED
        if self.is_open_ended:
            return Commitment.UNTIL_RELEASED
        if self.reservation_id is None:
            return Commitment.INTENDED
        return Commitment.COMMITTED if self.tier in BOUGHT_AHEAD else Commitment.FLEXIBLE

    def at(self, view: CostView) -> datetime:
        """The instant that the money counts at."""
        return self.window.start if view is CostView.AMORTIZED or self.paid_at is None else self.paid_at


class Interval(StrEnum):
    """Width of a row of a projection."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


GROUPS = ("team", "workload", "provider", "kind", "tier", "commitment", "gpu", "region")
NARROWED_BY = ("workload", "provider", "kind", "tier", "gpu", "region")
"""What sums can be narrowed by, beside the team."""
LONGEST = {
    Interval.DAY: timedelta(days=1),
    Interval.WEEK: timedelta(days=7),
    Interval.MONTH: timedelta(days=31),
}


@dataclass(frozen=True, slots=True)
class SpendRow:
    """Sum of charges of one group in one period; ``until_released_usd``: the part that is expected of leases
    without an end; ``intended_usd``: that of drafts which are not reserved."""

    period: datetime
    group: str
    usd: Decimal
    until_released_usd: Decimal = ZERO
    intended_usd: Decimal = ZERO


def period_of(instant: datetime, interval: Interval) -> datetime:
    """Start of the UTC day, week (Monday) or month that holds ``instant``."""
    day = instant.replace(hour=0, minute=0, second=0, microsecond=0)
    if interval is Interval.WEEK:
        return day - timedelta(days=day.weekday())
    return day if interval is Interval.DAY else day.replace(day=1)


def projection_end(window: Window | None, now: datetime) -> datetime:
    """Where leases without an end are projected to: the end of the period asked for, without one that of the
    current UTC month."""
    return next_period(period_of(now, Interval.MONTH), Interval.MONTH) if window is None else window.end


def next_period(period: datetime, interval: Interval) -> datetime:
    """Start of the day, week or month after the one that starts at ``period``."""
    return period_of(period + LONGEST[interval], interval)


def group_of(charge: Charge, group_by: str) -> str:
    """The charge's value of one of GROUPS, ``-`` when it has none."""
    return str(getattr(charge, group_by) or "-")
