"""The spend page's figures: charges as periods × groups, with a chart of the same sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from urllib.parse import urlencode

from api.pages.charts import Charts, Series, both_widths, stacked_bars
from api.pages.views import DASH, Card, usd
from broker.domain.money import ZERO
from broker.domain.spend import Charge, ChargeBasis, Interval, next_period, sum_charges
from broker.domain.window import Window

DRAWN_GROUPS = 7
LONGEST_MONTH = timedelta(days=31)
DEFAULT_MONTHS = 3


@dataclass(frozen=True, slots=True)
class SpendRowView:
    """One period: a value for each group, and their sum."""

    label: str
    values: tuple[Decimal, ...]
    sum: Decimal


@dataclass(frozen=True, slots=True)
class SpendTable:
    """Spend as periods × groups, the largest group first; ``legend`` names what the chart draws."""

    names: tuple[str, ...]
    rows: tuple[SpendRowView, ...]
    sums: tuple[Decimal, ...]
    total: Decimal
    legend: tuple[str, ...]
    charts: Charts


@dataclass(frozen=True, slots=True)
class Preset:
    """A link to the same view over another time."""

    name: str
    url: str


def month_start(instant: datetime, months_later: int = 0) -> datetime:
    """Midnight of the first day of a month, ``months_later`` after the one of ``instant``."""
    first = instant.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    for _ in range(months_later):
        first = (first + LONGEST_MONTH).replace(day=1)
    return first


def wished_window(since: str | None, until: str | None, now: datetime) -> tuple[Window, str]:
    """The dates of the form, and what was wrong with them; by default this month and the two after it."""
    usual = Window(month_start(now), month_start(now, DEFAULT_MONTHS))
    try:
        start = datetime.fromisoformat(since).replace(tzinfo=now.tzinfo) if since else usual.start
        end = datetime.fromisoformat(until).replace(tzinfo=now.tzinfo) if until else usual.end
        return Window(start, end), ""
    except ValueError:
        return usual, "Those dates are no span of time, so these are this month and the next two."


def presets(now: datetime, interval: Interval, group_by: str) -> tuple[Preset, ...]:
    """Spans that finance asks for most."""
    spans = (("This month", 0, 1), ("Next month", 1, 2), ("Three months", 0, 3), ("Twelve months", 0, 12))
    return tuple(
        Preset(
            name,
            "/spend?"
            + urlencode(
                {
                    "from": f"{month_start(now, first):%Y-%m-%d}",
                    "to": f"{month_start(now, last):%Y-%m-%d}",
                    "interval": interval.value,
                    "group_by": group_by,
                }
            ),
        )
        for name, first, last in spans
    )


def spend_table(charges: Sequence[Charge], interval: Interval, group_by: str) -> SpendTable:
    """Charges as a table and its chart."""
    totals: dict[str, Decimal] = {}
    cells: dict[tuple[datetime, str], Decimal] = {}
    for row in sum_charges(charges, interval, group_by):
        totals[row.group] = totals.get(row.group, ZERO) + row.usd
        cells[row.period, row.group] = row.usd
    names = tuple(sorted(totals, key=lambda name: (-totals[name], name)))
    rows = []
    for period in sorted({period for period, _ in cells}):
        values = tuple(cells.get((period, name), ZERO) for name in names)
        rows.append(SpendRowView(period_label(period, interval), values, sum(values, ZERO)))
    legend = names if len(names) <= DRAWN_GROUPS + 1 else (*names[:DRAWN_GROUPS], "all others")
    sums = tuple(totals[name] for name in names)
    charts = _charts(cells, names, legend, interval)
    return SpendTable(names, tuple(rows), sums, sum(sums, ZERO), legend, charts)


def _charts(
    cells: dict[tuple[datetime, str], Decimal],
    names: tuple[str, ...],
    legend: tuple[str, ...],
    interval: Interval,
) -> Charts:
    """Every period between the first and the last has its place, spend or not."""
    periods = list(_periods(sorted(period for period, _ in cells), interval))

    def values_of(*groups: str) -> tuple[float, ...]:
        return tuple(float(sum((cells.get((at, group), ZERO) for group in groups), ZERO)) for at in periods)

    alone = len(legend) if len(legend) == len(names) else len(legend) - 1
    series = [Series(name, values_of(name)) for name in names[:alone]]
    if alone < len(names):
        series.append(Series(legend[-1], values_of(*names[alone:])))
    labels = [period_label(period, interval) for period in periods]
    ticks = [_tick(period, interval) for period in periods]
    title = f"Spend by {interval}, stacked by group; the table below has the same figures"
    return both_widths(lambda width: stacked_bars(labels, series, title, width, ticks=ticks))


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


def spend_cards(charges: Sequence[Charge], table: SpendTable, window: Window) -> tuple[Card, ...]:
    """Total, what is owed already and what is only planned, the daily mean, the largest share."""
    owed = sum((c.usd for c in charges if c.basis is ChargeBasis.ACTUAL), ZERO)
    days = Decimal(max(1.0, window.hours / 24))
    last = window.end - timedelta(seconds=1)
    largest = usd(table.sums[0]) if table.sums else "nothing is planned or held"
    return (
        Card("Total", usd(table.total), f"{window.start:%Y-%m-%d} to {last:%Y-%m-%d}", lead=True),
        Card("Owed already", usd(owed), "for what is reserved"),
        Card("Expected", usd(table.total - owed), "from plans and running reservations"),
        Card("A day, on average", usd(table.total / days), f"over {days:.0f} days"),
        Card("Largest share", table.names[0] if table.names else DASH, largest),
    )
