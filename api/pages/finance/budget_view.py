"""Budgets with what is owed and expected of them: rows with a meter, and running sums over the period."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from api.pages.parts.charts import Charts, both_widths
from api.pages.parts.curves import Band, Curve, Drawing, Limit, curves
from api.pages.parts.words import usd
from broker.domain.basics.money import ZERO
from broker.domain.basics.webhook import ALL_TEAMS
from broker.domain.basics.window import Window
from broker.domain.spend.budgets import BudgetStatus
from broker.domain.spend.spend import ChargeBasis, Interval
from broker.services.spend.intervals import SpendInterval
from broker.services.spend.settled_spend import SumKey

INSTANT = timedelta(microseconds=1)
DAY = timedelta(days=1)
MEAN_MONTH_DAYS = Decimal("30.44")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a meter: its start and length in percent of the whole, and its series."""

    start: float
    length: float
    series: int


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """A budget as a row. ``limit_at`` is the position of the limit on the meter, in percent."""

    standing: BudgetStatus
    who: str
    parts: tuple[Part, ...]
    limit_at: float
    tone: str

    @property
    def last_day(self) -> datetime:
        """The last instant of the budget's period, for naming its last day."""
        return self.standing.window.end - INSTANT


def budget_rows(standings: Iterable[BudgetStatus]) -> tuple[BudgetRow, ...]:
    """Rows of budgets, the one that runs out first at the top."""
    rows = [_row(standing) for standing in standings]
    rows.sort(key=lambda row: (-row.standing.expected_share, row.who))
    return tuple(rows)


def _row(standing: BudgetStatus) -> BudgetRow:
    limit = standing.budget.limit_usd
    whole = max(limit, standing.expected_usd)
    parts, start = [], 0.0
    for series, amount in enumerate((standing.owed_usd, standing.reserved_usd, standing.planned_usd)):
        length = float(100 * max(amount, ZERO) / whole)
        parts.append(Part(start, length, series))
        start += length
    over = standing.expected_usd > limit
    tone = "bad" if over else "warn" if standing.expected_share > 0.8 else ""
    return BudgetRow(
        standing, team_words(standing.budget.team), tuple(parts), float(100 * limit / whole), tone
    )


def team_words(team: str) -> str:
    """A team's name, or words for the budget of all teams."""
    return "all teams" if team == ALL_TEAMS else team


@dataclass(frozen=True, slots=True)
class Pace:
    """What a budget allows in each period of a chart if it is spent evenly over ``window``."""

    name: str
    usd: Decimal
    window: Window


def pace_of(rows: Sequence[BudgetRow], team: str, interval: Interval) -> Pace | None:
    """The pace of the budget of ``team`` that ends soonest; None where it has none."""
    row = next((row for row in rows if row.standing.budget.team == team), None)
    if row is None:
        return None
    window, limit = row.standing.window, row.standing.budget.limit_usd
    days = Decimal(window.duration / DAY)
    share = {
        Interval.DAY: 1 / days,
        Interval.WEEK: 7 / days,
        Interval.MONTH: 1 / max(Decimal(1), (days / MEAN_MONTH_DAYS).to_integral_value()),
    }[interval]
    allowed = limit * min(share, Decimal(1))
    return Pace(f"budget of {row.who}: {usd(allowed)} a {interval}, evenly", allowed, window)


@dataclass(frozen=True, slots=True)
class RunningDay:
    """Running sums at the end of a day: owed, and owed plus expected."""

    day: datetime
    owed_usd: Decimal
    expected_usd: Decimal


def running_days(usd_by_day: Mapping[SumKey, Decimal], window: Window) -> tuple[RunningDay, ...]:
    """The running sums at the end of each day of ``window``."""
    owed: defaultdict[datetime, Decimal] = defaultdict(lambda: ZERO)
    both: defaultdict[datetime, Decimal] = defaultdict(lambda: ZERO)
    for key, amount in usd_by_day.items():
        both[key.period] += amount
        if key.basis is ChargeBasis.ACTUAL:
            owed[key.period] += amount
    days, sums, day = [], [ZERO, ZERO], window.start
    while day < window.end:
        sums = [sums[0] + owed[day], sums[1] + both[day]]
        days.append(RunningDay(day, *sums))
        day += DAY
    return tuple(days)


def running_charts(
    days: Sequence[RunningDay],
    standing: BudgetStatus,
    now: datetime,
    may_be: SpendInterval | None = None,
) -> Charts:
    """The running sums over the budget's period with its limit. ``may_be`` is the band in which the sum may
    lie."""
    window = standing.window
    owed = tuple((day.day + DAY, float(day.owed_usd)) for day in days if day.day <= now)
    expected = tuple((day.day + DAY, float(day.expected_usd)) for day in days)
    start = ((window.start, 0.0),)
    drawing = Drawing(
        window.start,
        window.end,
        (
            Curve("owed and expected up to then", start + expected, "dashed"),
            Curve("owed up to then", start + owed, "thin"),
        ),
        bands=_bands(may_be, now),
        limits=(Limit(f"budget {usd(standing.budget.limit_usd)}", float(standing.budget.limit_usd)),),
        now=now,
        from_zero=True,
    )
    title = "Money added up over the budget's period against its limit; the table below has the same figures"
    return both_widths(lambda width: curves(drawing, title, width, 220))


def _bands(may_be: SpendInterval | None, now: datetime) -> tuple[Band, ...]:
    if may_be is None:
        return ()
    points = tuple(
        (one.period + DAY, float(one.running.p10_usd), float(one.running.p90_usd))
        for one in may_be.periods
        if one.period + DAY >= now
    )
    return (Band("P10 to P90 of the sum", points),)
