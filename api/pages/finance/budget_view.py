"""Budgets with what is spent, reserved and planned: rows, running sums over the period, and their form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal

from api.pages.parts.charts import Charts, both_widths
from api.pages.parts.curves import Band, Curve, Drawing, Limit, curves
from api.pages.parts.words import usd
from api.plan_words import team_words
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.money import USD_FORMS, ZERO, read_usd
from broker.domain.basics.near_words import with_nearest
from broker.domain.basics.window import Window
from broker.domain.spend.budgets import (
    DEFAULT_THRESHOLDS,
    WHOLE,
    Budget,
    BudgetPeriod,
    BudgetStatus,
    require_valid,
)
from broker.domain.spend.spend import ChargeBasis, Interval
from broker.services.spend.intervals import SpendInterval
from broker.services.spend.settled_spend import SumKey

INSTANT = timedelta(microseconds=1)
PERIODS = (BudgetPeriod.MONTH.value, BudgetPeriod.QUARTER.value)
"""Periods that the form offers; a span of time is set over HTTP or in the terminal."""
LONGEST_PERCENT = 6
LEAST_CHANCE = 50
DAY = timedelta(days=1)
MEAN_MONTH_DAYS = Decimal("30.44")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a meter: its start and length in percent of the whole, and its series."""

    start: float
    length: float
    series: int


@dataclass(frozen=True, slots=True)
class BudgetWarning:
    """A sentence above all budgets, with its title."""

    tone: str
    title: str
    says: str


def span_words(one: BudgetStatus) -> str:
    """The first and the last day of a status's period."""
    return f"{one.window.start:%Y-%m-%d} to {one.window.end - INSTANT:%Y-%m-%d}"


def _parts_of(one: BudgetStatus) -> str:
    words = f"{usd(one.owed_usd)} spent, {usd(one.reserved_usd)} reserved"
    if one.until_released_usd:
        words += f" ({usd(one.until_released_usd)} of it until released)"
    return f"{words}, {usd(one.planned_usd)} planned"


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """A budget as a row. ``limit_at`` is the position of the limit on the meter, in percent."""

    standing: BudgetStatus
    who: str
    parts: tuple[Part, ...]
    limit_at: float
    tone: str
    state: str

    @property
    def used(self) -> float:
        """The length of all parts in percent of the bar."""
        return sum(part.length for part in self.parts)

    @property
    def name(self) -> str:
        """The name of the budget in forms and addresses: ``research/month``."""
        return self.standing.budget.budget_id

    @property
    def warnings(self) -> tuple[BudgetWarning, ...]:
        """What is to be told above all budgets, each period by itself; empty: nothing is reached."""
        one = self.standing
        limit, period = usd(one.budget.limit_usd), one.budget.period
        its = f"The budget of {self.who}, {limit} per {period},"
        found = []
        if self.tone == "bad":
            over = usd(-one.left_usd)
            found.append(
                BudgetWarning("bad", "Over budget.", f"{its} is exceeded by {over}: {_parts_of(one)}.")
            )
        elif self.tone == "warn":
            found.append(
                BudgetWarning("warn", "A threshold is passed.", f"{its} is {self.state}: {_parts_of(one)}.")
            )
        found += [
            BudgetWarning(
                "bad",
                "Over budget later.",
                f"{its} will be exceeded by {usd(-later.left_usd)} in {span_words(later)}: "
                f"{_parts_of(later)}.",
            )
            for later in one.later_overruns
        ]
        return tuple(found)

    @property
    def span(self) -> str:
        """The first and the last day of the period."""
        return span_words(self.standing)

    @property
    def later_words(self) -> tuple[str, ...]:
        """The later periods that are expected to exceed the budget, each in a sentence."""
        return tuple(
            f"{span_words(one)}: {usd(one.expected_usd)} expected, {usd(-one.left_usd)} over the budget."
            for one in self.standing.later_overruns
        )

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
    reached = [one.percent for one in standing.thresholds if standing.expected_usd >= one.usd]
    if standing.expected_usd > limit:
        tone, state = "bad", f"over by {usd(-standing.left_usd)}"
    elif reached:
        spent = [one.percent for one in standing.thresholds if standing.owed_usd >= one.usd]
        how = "spent" if max(spent, default=0) == max(reached) else "expected"
        tone, state = "warn", f"past {max(reached)} % ({how})"
    else:
        tone, state = "", "within"
    who = team_words(standing.budget.team)
    return BudgetRow(standing, who, tuple(parts), float(100 * limit / whole), tone, state)


@dataclass(frozen=True, slots=True)
class BudgetEntry:
    """The form of a budget as it was filled in. ``problems`` say by field what was expected."""

    team: str = ""
    period: str = BudgetPeriod.MONTH.value
    limit_usd: str = ""
    thresholds: str = ", ".join(map(str, DEFAULT_THRESHOLDS))
    confidence: str = ""
    problems: Mapping[str, str] = field(default_factory=dict)
    is_open: bool = False

    def read(self, teams: Collection[str], set_by: str, set_at: datetime) -> Budget:
        """The budget. Raises InputError that names every wrong field; ``teams`` are those that exist."""
        problems = []
        if self.team not in teams:
            expected = with_nearest("a team of the list", self.team, teams)
            problems.append(FieldProblem("/team", repr(self.team), expected))
        limit = read_usd(self.limit_usd)
        if limit is None:
            problems.append(FieldProblem("/limit_usd", repr(self.limit_usd), USD_FORMS))
        if self.period not in PERIODS:
            problems.append(FieldProblem("/period", repr(self.period), " or ".join(PERIODS)))
        found = [word.strip().removesuffix("%").strip() for word in self.thresholds.split(",")]
        if not all(word.isdecimal() and word.isascii() and len(word) < LONGEST_PERCENT for word in found):
            expected = "whole percents separated by commas, such as 50, 80, 100"
            problems.append(FieldProblem("/thresholds", repr(self.thresholds), expected))
        chance = _chance(self.confidence)
        if chance is None and self.confidence:
            expected = "a percentage from 50 to 99, such as 90, or nothing"
            problems.append(FieldProblem("/confidence", repr(self.confidence), expected))
        if limit is None or problems:
            raise InputError("budget", tuple(problems))
        budget = Budget(
            self.team, BudgetPeriod(self.period), limit, tuple(map(int, found)), None, set_by, set_at, chance
        )
        require_valid(budget)
        return budget

    def refused(self, error: InputError) -> BudgetEntry:
        """The same form with what was wrong at each field."""
        told = {one.pointer.strip("/"): f"Expected {one.expected}." for one in error.problems}
        return replace(self, problems=told, is_open=True)


def _chance(text: str) -> float | None:
    """The chance of a percentage from 50 to 99; None for another text."""
    word = text.strip().removesuffix("%").strip()
    is_number = word.isdecimal() and word.isascii() and len(word) < LONGEST_PERCENT
    return int(word) / WHOLE if is_number and LEAST_CHANCE <= int(word) < WHOLE else None


def entry_of(rows: Iterable[BudgetRow], name: str, team: str) -> BudgetEntry:
    """The form filled with the budget ``name``; for a new one of ``team`` if there is none."""
    row = next((row for row in rows if row.name == name), None)
    if row is None:
        return BudgetEntry(team)
    budget = row.standing.budget
    thresholds = ", ".join(map(str, budget.thresholds))
    chance = "" if budget.confidence is None else f"{WHOLE * budget.confidence:g}"
    limit = f"{budget.limit_usd:,.2f}"
    return BudgetEntry(budget.team, budget.period.value, limit, thresholds, chance, is_open=True)


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
            Curve("spent, reserved and planned up to then", start + expected, "dashed"),
            Curve("spent up to then", start + owed, "thin"),
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
    return (Band("P10 to P90 of the sum, if nobody orders or releases", points),)
