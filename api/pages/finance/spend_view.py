"""The figures of the spend page: charges by period and group, with a chart of the same sums."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from types import MappingProxyType

from markupsafe import Markup

from api.pages.finance.budget_view import Pace
from api.pages.finance.spend_groups import PARTS, group_words, part_of
from api.pages.parts.charts import Charts, Level, Overlay, Series, both_widths, stacked_bars
from api.pages.parts.colours import OTHERS, Look, looks_of
from api.pages.parts.table_links import Address
from api.pages.parts.words import usd
from api.sections import Card
from broker.domain.basics.money import ZERO
from broker.domain.basics.window import Window
from broker.domain.spend.intervals import Quantiles
from broker.domain.spend.spend import Interval, next_period, period_of
from broker.services.spend.intervals import MOST_PERIODS, SpendInterval
from broker.services.spend.settled_spend import SumKey

DRAWN_GROUPS = 12
MOST_COLUMNS = 12
"""Of the table by period; what is left is summed in the last. The table by group names every one."""
LONGEST_MONTH = timedelta(days=31)
LONGEST_SPAN = timedelta(days=MOST_PERIODS)
DEFAULT_MONTHS = 3
WHOLE = Decimal(1)
NOTHING_KNOWN: Mapping[datetime, Quantiles] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SpendRowView:
    """One period: a value for each group, their sum, and its interval (None: unknown)."""

    label: str
    values: tuple[Decimal, ...]
    sum: Decimal
    interval: Quantiles | None = None


@dataclass(frozen=True, slots=True)
class SpendTable:
    """Spend by period and group, the largest group first. ``legend`` names the series of the chart."""

    names: tuple[str, ...]
    rows: tuple[SpendRowView, ...]
    sums: tuple[Decimal, ...]
    total: Decimal
    legend: tuple[tuple[str, Look], ...]
    charts: Charts


@dataclass(frozen=True, slots=True)
class Preset:
    """A link to the same view over another span; ``is_shown`` marks the current one."""

    name: str
    url: str
    is_shown: bool


def month_start(instant: datetime, months_later: int = 0) -> datetime:
    """Midnight of the first day of a month, ``months_later`` (or before, below zero) that of ``instant``."""
    first = instant.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    for _ in range(-months_later):
        first = (first - timedelta(days=1)).replace(day=1)
    for _ in range(months_later):
        first = (first + LONGEST_MONTH).replace(day=1)
    return first


def wished_window(since: str | None, until: str | None, now: datetime) -> tuple[Window, str]:
    """The span of the form and the errors in it. The default is this month and the next two."""
    usual = Window(month_start(now), month_start(now, DEFAULT_MONTHS))
    try:
        start = datetime.fromisoformat(since).replace(tzinfo=now.tzinfo) if since else usual.start
        end = datetime.fromisoformat(until).replace(tzinfo=now.tzinfo) if until else usual.end
        window = Window(start, end)
    except ValueError:
        return usual, "Those dates are no span of time, so these are this month and the next two."
    if window.duration > LONGEST_SPAN:
        return usual, "Those dates are more than ten years apart, so these are this month and the next two."
    return window, ""


def presets(
    now: datetime, window: Window, address: Address, ends: tuple[str, str] = ("from", "to")
) -> tuple[Preset, ...]:
    """The usual spans. ``ends`` names the parameters of their start and end."""
    spans = (
        ("Last month", -1, 0),
        ("This month", 0, 1),
        ("Next month", 1, 2),
        ("Three months", 0, 3),
        ("Twelve months", 0, 12),
    )
    found = []
    for name, first, last in spans:
        span = Window(month_start(now, first), month_start(now, last))
        url = address.url(**{ends[0]: f"{span.start:%Y-%m-%d}", ends[1]: f"{span.end:%Y-%m-%d}"})
        found.append(Preset(name, url, span == window))
    return tuple(found)


def spend_table(
    usd: Mapping[SumKey, Decimal],
    interval: Interval,
    group_by: str,
    may_be: Mapping[datetime, Quantiles] = NOTHING_KNOWN,
    pace: Pace | None = None,
    now: datetime | None = None,
    looks: Mapping[str, Look] | None = None,
) -> SpendTable:
    """The sums as a table with its chart. ``may_be`` has quantiles by period, ``pace`` what a budget
    allows, ``looks`` how groups are drawn (None: by their names alone)."""
    totals: defaultdict[str, Decimal] = defaultdict(lambda: ZERO)
    cells: defaultdict[tuple[datetime, str], Decimal] = defaultdict(lambda: ZERO)
    for key, amount in usd.items():
        totals[key.group] += amount
        cells[key.period, key.group] += amount
    names = tuple(sorted(totals, key=lambda name: (-totals[name], name)))
    rows = []
    shown_alone = len(names) if len(names) <= MOST_COLUMNS else MOST_COLUMNS - 1
    columns, others = names[:shown_alone], names[shown_alone:]
    for period in sorted({period for period, _ in cells}):
        values = tuple(cells.get((period, name), ZERO) for name in columns)
        if others:
            values += (sum((cells.get((period, name), ZERO) for name in others), ZERO),)
        rows.append(
            SpendRowView(period_label(period, interval), values, sum(values, ZERO), may_be.get(period))
        )
    shown = tuple(group_words(group_by, name) for name in names)
    looks = looks_of(sorted(names)) if looks is None else looks
    legend = tuple((words, looks.get(name, OTHERS)) for words, name in zip(shown, names, strict=True))
    if len(legend) > DRAWN_GROUPS + 1:
        legend = (*legend[:DRAWN_GROUPS], ("all others", OTHERS))
    sums = tuple(totals[name] for name in columns)
    headings = shown[: len(columns)]
    if others:
        sums += (sum((totals[name] for name in others), ZERO),)
        headings += (f"{len(others)} others",)
    charts = _charts(cells, names, legend, interval, _Over(may_be, pace, now))
    return SpendTable(headings, tuple(rows), sums, sum(sums, ZERO), legend, charts)


@dataclass(frozen=True, slots=True)
class _Over:
    """What is drawn over the sums, by time."""

    may_be: Mapping[datetime, Quantiles]
    pace: Pace | None
    now: datetime | None

    def overlay(self, periods: Sequence[datetime], interval: Interval) -> Overlay:
        """The overlay, by index of the period."""
        ends = [_ends(self.may_be.get(period)) for period in periods]
        level = None
        if self.pace is not None:
            held = [i for i, at in enumerate(periods) if self.pace.window.contains(at)]
            if held:
                level = Level(self.pace.name, float(self.pace.usd), held[0], held[-1] + 1)
        today = None
        if self.now is not None and periods[:1] != [period_of(self.now, interval)]:
            today = next((i for i, at in enumerate(periods) if at == period_of(self.now, interval)), None)
        return Overlay(ends if self.may_be else (), level, today)


def _charts(
    cells: Mapping[tuple[datetime, str], Decimal],
    names: tuple[str, ...],
    legend: tuple[tuple[str, Look], ...],
    interval: Interval,
    over: _Over,
) -> Charts:
    """Charts in which every period from first to last has its place, with or without spend."""
    periods = list(_periods(sorted(period for period, _ in cells), interval))

    def values_of(*groups: str) -> tuple[float, ...]:
        return tuple(float(sum((cells.get((at, group), ZERO) for group in groups), ZERO)) for at in periods)

    alone = len(legend) if len(legend) == len(names) else len(legend) - 1
    series = [Series(legend[i][0], values_of(name), legend[i][1]) for i, name in enumerate(names[:alone])]
    if alone < len(names):
        series.append(Series(legend[-1][0], values_of(*names[alone:]), legend[-1][1]))
    labels = [period_label(period, interval) for period in periods]
    ticks = [_tick(period, interval) for period in periods]
    title = f"Spend by {interval}, stacked by group; the table below has the same figures"
    overlay = over.overlay(periods, interval)
    touching = interval is not Interval.MONTH

    def draw(width: int) -> Markup:
        return stacked_bars(labels, series, title, width, ticks=ticks, touching=touching, over=overlay)

    return both_widths(draw)


def _ends(quantiles: Quantiles | None) -> tuple[float, float] | None:
    return None if quantiles is None else (float(quantiles.p10_usd), float(quantiles.p90_usd))


def may_be(found: SpendInterval, interval: Interval) -> dict[datetime, Quantiles]:
    """Quantiles by period."""
    return {period_of(one.period, interval): one.quantiles for one in found.periods}


def _tick(period: datetime, interval: Interval) -> str:
    return f"{period:%b %Y}" if interval is Interval.MONTH else f"{period.day} {period:%b}"


def _periods(known: Sequence[datetime], interval: Interval) -> Iterator[datetime]:
    if not known:
        return
    period = known[0]
    while period <= known[-1]:
        yield period
        period = next_period(period, interval)


def period_label(period: datetime, interval: Interval) -> str:
    """``2026-11`` or ``2026-11-23``."""
    return f"{period:%Y-%m}" if interval is Interval.MONTH else f"{period:%Y-%m-%d}"


def spend_cards(
    usd_: Mapping[SumKey, Decimal], window: Window, total: Quantiles | None = None
) -> tuple[Card, ...]:
    """The total, what of it is spent, reserved and planned, and its interval (None: the daily mean)."""
    parts = [ZERO] * PARTS
    for key, amount in usd_.items():
        parts[part_of(key)] += amount
    whole, (spent, fixed, flexible, open_ended, planned) = sum(parts, ZERO), parts
    days = Decimal(max(1.0, window.hours / 24))
    last = window.end - timedelta(seconds=1)
    span = f"{window.start:%Y-%m-%d} to {last:%Y-%m-%d}"
    daily = Card("A day, on average", usd(whole / days), f"over {days:.0f} days")
    of_it = f"{usd(fixed)} of it fixed, {usd(flexible + open_ended)} can be released"
    if open_ended:
        of_it += f", {usd(open_ended)} of that on leases without an end"
    return (
        Card("Total", usd(whole), f"spent, reserved and planned, {span}", lead=True),
        Card("Spent", usd(spent), "for what was used or has been billed"),
        Card("Reserved", usd(fixed + flexible + open_ended), of_it),
        Card("Planned", usd(planned), "drafts that somebody intends to buy"),
        daily if total is None else _spread(total),
    )


def is_wide(total: Quantiles) -> bool:
    """Whether the interval has a width that whole dollars show."""
    return total.p10_usd.quantize(WHOLE) != total.p90_usd.quantize(WHOLE)


def _spread(total: Quantiles) -> Card:
    ends = f"{usd(total.p10_usd.quantize(WHOLE))} to {usd(total.p90_usd.quantize(WHOLE))}"
    says = f"80 % interval (P10 to P90; P50 {usd(total.p50_usd)}) as prices, run times and traffic may move"
    return Card("If nobody orders or releases", ends.replace(".00", ""), says)
