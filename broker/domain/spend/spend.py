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
"""How all spend data describe taxes: no provider's API reports them before the invoice."""

EGRESS = "egress"
"""The SKU of charges for egress."""


class ChargeBasis(StrEnum):
    """Whether a cost is expected (``projected``) or owed (``actual``)."""

    PROJECTED = "projected"
    ACTUAL = "actual"


class CostView(StrEnum):
    """When a cost counts.

    ``amortized``: over the days of use, for example of a window or minimum term. ``cash``: when it is billed.
    """

    AMORTIZED = "amortized"
    CASH = "cash"


class Commitment(StrEnum):
    """How firm a cost is.

    ``committed``: it has accrued, or it was bought in advance. ``flexible``: it is reserved and may still
    change. ``until_released``: the future cost of a lease without an end. ``intended``: the cost of a draft
    plan that somebody intends to buy and that is not reserved.
    """

    COMMITTED = "committed"
    FLEXIBLE = "flexible"
    UNTIL_RELEASED = "until_released"
    INTENDED = "intended"


BOUGHT_AHEAD = frozenset({Tier.WINDOW, Tier.COMMITTED})


@dataclass(frozen=True, slots=True)
class Charge:
    """Cost of one placement or reservation in one part of a day, in whole cents.

    ``gpu_seconds`` are billed; ``idle_gpu_seconds`` are the part that was not wanted or not held (the edges
    of a window, the rest of a minimum term), and ``idle_usd`` is their part of ``usd``. ``paid_at`` is when
    the provider bills it, if it bills in advance. ``is_open_ended`` marks projected cost of a lease without
    an end.
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
        """Whether the charge is for egress, not for nodes."""
        return self.sku == EGRESS

    @property
    def commitment(self) -> Commitment:
        """How firm the cost is."""
        if self.basis is ChargeBasis.ACTUAL:
            return Commitment.COMMITTED
        if self.is_open_ended:
            return Commitment.UNTIL_RELEASED
        if self.reservation_id is None:
            return Commitment.INTENDED
        return Commitment.COMMITTED if self.tier in BOUGHT_AHEAD else Commitment.FLEXIBLE

    def at(self, view: CostView) -> datetime:
        """The time at which the cost counts."""
        return self.window.start if view is CostView.AMORTIZED or self.paid_at is None else self.paid_at


class Interval(StrEnum):
    """Length of a projection's periods."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


GROUPS = ("team", "workload", "provider", "kind", "tier", "commitment", "gpu", "region")
NARROWED_BY = ("workload", "provider", "kind", "tier", "gpu", "region")
"""Fields by which sums can be filtered, in addition to the team."""
LONGEST = {
    Interval.DAY: timedelta(days=1),
    Interval.WEEK: timedelta(days=7),
    Interval.MONTH: timedelta(days=31),
}


@dataclass(frozen=True, slots=True)
class SpendRow:
    """Sum of the charges of one group in one period.

    ``until_released_usd`` is the projected part from leases without an end, ``intended_usd`` that from drafts
    that are not reserved.
    """

    period: datetime
    group: str
    usd: Decimal
    until_released_usd: Decimal = ZERO
    intended_usd: Decimal = ZERO


def period_of(instant: datetime, interval: Interval) -> datetime:
    """Start of the UTC day, week (Monday) or month that contains ``instant``."""
    day = instant.replace(hour=0, minute=0, second=0, microsecond=0)
    if interval is Interval.WEEK:
        return day - timedelta(days=day.weekday())
    return day if interval is Interval.DAY else day.replace(day=1)


def projection_end(window: Window | None, now: datetime) -> datetime:
    """When the projection of leases without an end stops: with ``window``, else with the current month."""
    return next_period(period_of(now, Interval.MONTH), Interval.MONTH) if window is None else window.end


def next_period(period: datetime, interval: Interval) -> datetime:
    """Start of the day, week or month after the one that starts at ``period``."""
    return period_of(period + LONGEST[interval], interval)


def group_of(charge: Charge, group_by: str) -> str:
    """The charge's value of one of GROUPS, ``-`` when it has none."""
    return str(getattr(charge, group_by) or "-")
