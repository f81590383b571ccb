"""Calibration of forecasts: ``python -m tests.bench.forecast [--history DIR] [--days 150] [--seed 1]``.

Over a history (a folder as for ``broker backtest``, else a drawn one, ``tests.bench.backtest``) forecasts are
made at the end of each tenth day from the 60 days before, for offers that are known and for ones taken for
new, and compared with what came: how often the price then lay within the 80 % interval, and under the
median. Prices that hardly move are within every interval, so how often a price moved at all stands beside it.
"""

from __future__ import annotations

import argparse
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

from api.schemas.market.history import read_history
from broker.catalogue import load_provider_classes
from broker.domain.basics.money import to_micro_usd
from broker.domain.basics.window import Window
from broker.domain.market.forecast import DailyPrices, Family, Forecaster, ForecastRules
from broker.domain.market.market import PricePoint
from broker.domain.market.market_history import MarketHistory
from broker.services.market.forecasting import ForecastSources
from tests.bench.backtest import generate

DAY = timedelta(days=1)
KNOWN_DAYS, EVERY_DAYS = 60, 10
HORIZONS_DAYS = (1, 7, 30)
LOW, HIGH = 0.1, 0.9


@dataclass
class Tally:
    """Forecasts that were compared with what came."""

    made: int = 0
    within: int = 0
    under: int = 0
    moved: int = 0
    widths: list[float] = field(default_factory=list)


def past_of(history: MarketHistory, sources: ForecastSources) -> list[DailyPrices]:
    """Daily prices of every offer of a history."""
    points: defaultdict[str, list[PricePoint]] = defaultdict(list)
    for point in history.points:
        points[point.offer_id].append(point)
    span = history.span
    assert span is not None
    return [
        daily_prices(key, sources.family_of(history.offers[key]), mine, span) for key, mine in points.items()
    ]


def midnights(known: Window) -> tuple[datetime, ...]:
    """Every UTC midnight in ``known``, including its end."""
    first = known.start.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first = first if first == known.start else first + DAY
    return tuple(first + DAY * n for n in range((known.end - first) // DAY + 1))


def daily_prices(offer_id: str, family: Family, points: Sequence[PricePoint], known: Window) -> DailyPrices:
    """The prices at the midnights in ``known``. ``points`` must be in order of time."""
    found: list[int | None] = []
    times = [point.at for point in points]
    for midnight in midnights(known):
        before = bisect_right(times, midnight)
        point = points[before - 1] if before else None
        found.append(to_micro_usd(point.price_usd_per_node_hour) if point and point.available else None)
    return DailyPrices(offer_id, family, tuple(found))


def compare(
    past: Sequence[DailyPrices], days: int, *, new: bool, seed: int
) -> Mapping[tuple[str, int], Tally]:
    """By tier and provider class, and by horizon in days, what came of the forecasts. ``new``: an offer's own
    past is not told."""
    found: defaultdict[tuple[str, int], Tally] = defaultdict(Tally)
    for origin in range(KNOWN_DAYS, days - min(HORIZONS_DAYS), EVERY_DAYS):
        known = [cut(one, origin - KNOWN_DAYS, origin + 1) for one in past]
        whole = Forecaster(known, ForecastRules(paths=300))
        for number, one in enumerate(past):
            if new and number % 4:
                continue
            forecaster = whole
            if new:
                forecaster = Forecaster(
                    [k for k in known if k.offer_id != one.offer_id], ForecastRules(paths=300)
                )
            _tally(found, forecaster, one, origin, seed)
    return found


def cut(prices: DailyPrices, first: int, end: int) -> DailyPrices:
    """Some days of a past."""
    return DailyPrices(prices.offer_id, prices.family, prices.micro_usd[first:end])


def _tally(
    found: defaultdict[tuple[str, int], Tally],
    forecaster: Forecaster,
    one: DailyPrices,
    origin: int,
    seed: int,
) -> None:
    now = one.micro_usd[origin]
    then = [
        (days, one.micro_usd[origin + days]) for days in HORIZONS_DAYS if origin + days < len(one.micro_usd)
    ]
    if now is None:
        return
    hours = [24.0 * days for days, _ in then]
    forecasts = forecaster.forecasts(one.offer_id, one.family, now, hours, seed=seed + origin)
    for (days, price), forecast in zip(then, forecasts, strict=True):
        if price is None:
            continue
        tally = found[f"{one.family.tier}, {one.family.provider_class}", days]
        low, middle, high = (forecast.at(share) for share in (LOW, 0.5, HIGH))
        tally.made += 1
        tally.within += low <= price <= high
        tally.under += price <= middle
        tally.moved += price != now
        tally.widths.append((high - low) / now)


def rows(found: Mapping[tuple[str, int], Tally]) -> Iterator[tuple[str, ...]]:
    """A line of the table each."""
    for (kind, days), tally in sorted(found.items()):
        yield (
            kind,
            str(days),
            f"{tally.made:,}",
            f"{tally.moved / tally.made:.0%}",
            f"{tally.within / tally.made:.0%}",
            f"{tally.under / tally.made:.0%}",
            f"{sum(tally.widths) / tally.made:.1%}",
        )


def main() -> int:
    """Prints a table for known offers and one for new ones."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.forecast", description=__doc__)
    parser.add_argument("--history", type=Path)
    parser.add_argument("--days", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=3)
    wish = parser.parse_args()
    if wish.history is not None:
        history = read_history(wish.history, lambda path: path.read_text())
    else:
        history = generate(wish.days, wish.seed, wish.most)
    past = past_of(history, ForecastSources(load_provider_classes()))
    span = history.span
    assert span is not None
    days = len(midnights(span)) - 1
    console = Console(width=120)
    console.print(f"{len(past)} offers, {days} days from {span.start:%Y-%m-%d}, {KNOWN_DAYS} known")
    for new in (False, True):
        title = "80 % intervals of " + ("offers that are taken for new" if new else "known offers")
        table = Table(
            "kind", "days ahead", "made", "moved", "within", "under the median", "width", title=title
        )
        for row in rows(compare(past, days, new=new, seed=wish.seed)):
            table.add_row(*row)
        console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
