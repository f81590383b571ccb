"""Spend: charges over time, projected or actual, and their sums."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from broker.domain.money import ZERO
from broker.domain.offer import Tier
from broker.domain.window import Window
from broker.domain.workload import WorkloadKind


class ChargeBasis(StrEnum):
    """Whether money is expected from a plan or owed for a reservation."""

    PROJECTED = "projected"
    ACTUAL = "actual"


@dataclass(frozen=True, slots=True)
class Charge:
    """Money of one placement or reservation in one part of a day; whole cents."""

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


class Interval(StrEnum):
    """Width of a row of a projection."""

    DAY = "day"
    MONTH = "month"


GROUPS = ("team", "workload", "provider", "kind", "tier")


@dataclass(frozen=True, slots=True)
class SpendRow:
    """Sum of charges of one group in one period."""

    period: datetime
    group: str
    usd: Decimal


def period_of(instant: datetime, interval: Interval) -> datetime:
    """Start of the UTC day or month that holds ``instant``."""
    day = instant.replace(hour=0, minute=0, second=0, microsecond=0)
    return day if interval is Interval.DAY else day.replace(day=1)


def group_of(charge: Charge, group_by: str) -> str:
    """The charge's value of one of GROUPS, ``-`` when it has none."""
    return str(getattr(charge, group_by) or "-")


def sum_charges(charges: Iterable[Charge], interval: Interval, group_by: str) -> tuple[SpendRow, ...]:
    """Charges summed by period (of their start) and group, in that order."""
    sums: defaultdict[tuple[datetime, str], Decimal] = defaultdict(lambda: ZERO)
    for charge in charges:
        sums[(period_of(charge.window.start, interval), group_of(charge, group_by))] += charge.usd
    return tuple(SpendRow(period, group, usd) for (period, group), usd in sorted(sums.items()))
