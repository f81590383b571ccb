"""A year of prices: ``python -m tests.bench.history [--offers 5000] [--days 365] [--full] [--keep FILE]``.

Invented offers (``tests.bench.rounds``) are polled hourly for a year into a SQLite file, through the store's
own writing code, a day's polls in one transaction; each day is summarised, thinned after 90 days and its
rounds forgotten after 30, as the leader does. Then queries are timed. ``--full``: 50,000 offers; fewer are
extrapolated in proportion. Figures of one run on one machine.

How often prices change is assumed: of the offers a half are lists, which change four times a year; a quarter
are spot, a chance of 4 % each hour; a quarter are of marketplaces, 2 %. Of two in five the stock is told, and
changes with 3 % each hour, every eighth time to none.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from rich.console import Console
from rich.table import Table

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.window import Window
from broker.domain.market.market import ChangeKind, OfferChange, PollRound, PricePoint
from broker.domain.market.offer import Offer, OfferBatch, Tier
from broker.domain.market.price_days import days_in
from broker.domain.market.round_news import RoundNews
from broker.services.accounts.retention import RetentionRules
from broker.services.market.forecasting import ForecastSources, load_forecaster
from broker.services.market.offers import OffersService
from broker.services.market.prices import HistoryRules, PricesService
from broker.store import Store, create_store
from broker.store.market.prices import append_points
from broker.store.unit_of_work import SqlUnitOfWork
from tests.bench.effort import Effort, measured
from tests.bench.rounds import Replayed, invented
from tests.fakes.clock import FakeClock

START = datetime(2025, 11, 1, tzinfo=UTC)
HOURS, SERIES_DAYS = 24, 90
FULL = 50_000
LIMIT_MB, LIMIT_MS = 2000, 50
LIST_CHANCE = 4 / 365 / 24
SPOT_CHANCE, MARKET_CHANCE = 0.04, 0.02
STOCK_CHANCE, NONE_CHANCE = 0.03, 1 / 8
RULES = HistoryRules()
ROUNDS_DAYS = RetentionRules().rounds_days


Took = tuple[float, float]


@dataclass
class Sold:
    """An offer, and how it changes."""

    offer: Offer
    chance: float
    tells_stock: bool
    micro_usd: int = 0
    nodes: int | None = None

    def __post_init__(self) -> None:
        self.micro_usd = int(self.offer.price_usd_per_node_hour * 1_000_000)
        self.nodes = 4 if self.tells_stock else None


@dataclass
class Year:
    """What was stored."""

    points: int = 0
    effort: Effort = field(default_factory=Effort)
    upkeep_s: list[float] = field(default_factory=list)


def kinds(batches: dict[str, OfferBatch]) -> list[Sold]:
    """Every offer with its rate of change."""
    found = []
    for number, offer in enumerate(o for batch in batches.values() for o in batch.offers):
        tier = Tier.SPOT if number % 4 == 0 else Tier.ON_DEMAND
        chance = {0: SPOT_CHANCE, 1: MARKET_CHANCE}.get(number % 4, LIST_CHANCE)
        found.append(Sold(replace(offer, tier=tier), chance, number % 5 < 2))
    return found


def hour_of(sold: Sequence[Sold], at: datetime, lots: random.Random) -> list[PricePoint]:
    """The points of one hourly poll."""
    points = []
    for one in sold:
        moved = lots.random() < one.chance
        if moved:
            one.micro_usd = max(10_000, round(one.micro_usd * lots.uniform(0.93, 1.075)))
        if one.tells_stock and lots.random() < STOCK_CHANCE:
            one.nodes = 0 if lots.random() < NONE_CHANCE else lots.randrange(1, 9)
        elif not moved:
            continue
        price = Decimal(one.micro_usd) / 1_000_000
        points.append(PricePoint(one.offer.offer_id, at, price, one.nodes, one.nodes != 0))
    return points


async def a_year(store: Store, sold: list[Sold], days: range, seed: int, tell: Callable[[str], None]) -> Year:
    """Stores ``days`` of hourly polls."""
    year, lots = Year(), random.Random(f"{seed}/{days.start}")
    offers = {one.offer.offer_id: one.offer for one in sold}
    clock = FakeClock(START + timedelta(days=days.start))
    upkeep = PricesService(store.unit_of_work, clock, rules=RULES)
    async with measured(year.effort):
        for day in days:
            told_rounds = day >= days.stop - ROUNDS_DAYS
            async with store.unit_of_work(EVERY_TEAM) as unit:
                for hour in range(HOURS):
                    points = hour_of(sold, clock.now() + timedelta(hours=hour), lots)
                    await append_points(unit._session, points, offers)
                    if told_rounds:
                        await tell_rounds(unit, points, offers, clock.now() + timedelta(hours=hour))
                    year.points += len(points)
                await unit.commit()
            clock.advance(days=1)
            began = time.process_time()
            await upkeep.keep_up()
            year.upkeep_s.append(time.process_time() - began)
            if day % 30 == 29:
                tell(f"day {day + 1}: {year.points:,} points, upkeep {year.upkeep_s[-1]:.1f} CPU s a day")
    return year


async def tell_rounds(
    unit: SqlUnitOfWork, points: Sequence[PricePoint], offers: dict[str, Offer], at: datetime
) -> None:
    """The hour's round of each seller with its changes; of what is older neither is kept."""
    by_seller: dict[str, list[OfferChange]] = {}
    for point in points:
        seller = offers[point.offer_id].provider
        price = point.price_usd_per_node_hour
        change = OfferChange(ChangeKind.PRICE, point.offer_id, seller, at, price, price)
        by_seller.setdefault(seller, []).append(change)
    for seller, changes in by_seller.items():
        round_ = PollRound(seller, at, 1.0, len(offers), changes=tuple(changes))
        await unit.offers.record_round(round_, RoundNews((), {}, ()))


async def timed(ask: Callable[[int], Awaitable[object]], times: int) -> list[Took]:
    """Milliseconds, by the clock and of CPU, of each of ``times`` questions; the first, which compiles
    statements, is not counted."""
    took = []
    for number in range(times + 1):
        began, used = time.perf_counter(), time.process_time()
        await ask(number)
        took.append((1000 * (time.perf_counter() - began), 1000 * (time.process_time() - used)))
    return took[1:]


async def ask_all(
    store: Store, sold: Sequence[Sold], end: datetime, seed: int
) -> list[tuple[str, list[Took]]]:
    """Times of every question that is asked of a history."""
    lots = random.Random(seed)
    window = Window(end - timedelta(days=SERIES_DAYS), end)
    days = days_in(window)
    older = days_in(Window(window.start - timedelta(days=200), end - timedelta(days=200)))
    gpus = sorted({one.offer.sku.gpu for one in sold})
    ids = [lots.choice(sold).offer for _ in range(1000)]

    async def points(n: int) -> object:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            return await unit.offers.find_prices(ids[n].offer_id, window)

    async def by_day(n: int) -> object:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            return await unit.prices.find_days(ids[n].offer_id, days, end)

    async def by_day_before(n: int) -> object:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            return await unit.prices.find_days(ids[n].offer_id, older, end)

    async def of_gpu(n: int) -> object:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            gpu = gpus[n % len(gpus)]
            return await unit.prices.find_sku_days(gpu, "spot", days, end, by_provider=n % 2 == 0)

    async def market(n: int) -> object:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            return await unit.prices.find_known_at(
                end - timedelta(days=7 * n), gpu=gpus[n % len(gpus)], tier="spot"
            )

    async def forecast(n: int) -> object:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            return await load_forecaster(unit, (ids[n],), end, ForecastSources())

    return [
        ("90 days of an offer, every point", await timed(points, 300)),
        ("90 days of an offer, by day", await timed(by_day, 300)),
        ("90 days of an offer, by day, thinned ones", await timed(by_day_before, 300)),
        ("90 days of a GPU in one tier across sellers", await timed(of_gpu, 300)),
        ("market known at an instant, one GPU and tier", await timed(market, 10)),
        ("past of a forecast", await timed(forecast, 20)),
    ]


def sizes(file: Path) -> list[tuple[str, float]]:
    """Megabytes of each table with its indexes, the largest first; none where SQLite does not tell."""
    with closing(sqlite3.connect(file)) as database:
        try:
            rows = database.execute(
                "SELECT m.tbl_name, sum(d.pgsize) / 1e6 FROM dbstat d "
                "JOIN sqlite_master m ON m.name = d.name GROUP BY m.tbl_name ORDER BY 2 DESC LIMIT 7"
            ).fetchall()
        except sqlite3.OperationalError:
            return []
    return [(str(name), float(megabytes)) for name, megabytes in rows]


async def days_stored(store: Store) -> int:
    """How many days of the year a database that was kept has."""
    async with store.unit_of_work(EVERY_TEAM) as unit:
        until = await unit.prices.find_summarised_until()
    return 0 if until is None else max(0, (until - START.date()).days)


async def run(console: Console, wish: argparse.Namespace, file: Path) -> bool:
    """Stores, asks, prints; whether both limits hold."""
    batches = invented(wish.offers)
    sold = kinds(batches)
    for name in batches:
        batches[name] = OfferBatch(tuple(one.offer for one in sold if one.offer.provider == name))
    store = create_store(f"sqlite:///{file}")
    try:
        await store.migrate()
        days = range(await days_stored(store), wish.days)
        if not days.start:
            sources = {name: Replayed(name, batch) for name, batch in batches.items()}
            first = FakeClock(START - timedelta(minutes=1))
            await OffersService(store.unit_of_work, sources, first, poll_timeout_s=600).refresh()
        year = await a_year(store, sold, days, wish.seed, lambda text: console.print(text, style="dim"))
        asked = await ask_all(store, sold, START + timedelta(days=wish.days), wish.seed)
    finally:
        await store.close()
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return report(console, wish, year, asked, file)


def report(
    console: Console, wish: argparse.Namespace, year: Year, asked: list[tuple[str, list[Took]]], file: Path
) -> bool:
    """Prints the figures; whether both limits hold."""
    size_mb = file.stat().st_size / 1e6
    rate = year.points / wish.offers / max(1, len(year.upkeep_s))
    console.print(
        f"{wish.offers:,} offers, {len(year.upkeep_s)} days of hourly polls: {year.points:,} points "
        f"({rate:.2f} an offer and day), {year.effort.wall_s:.0f} s, {year.effort.cpu_s:.0f} CPU s, "
        f"of them upkeep {sum(year.upkeep_s):.0f} (most in a day {max(year.upkeep_s, default=0.0):.1f})"
    )
    whole_mb = size_mb * FULL / wish.offers
    extrapolated = "" if wish.offers == FULL else f"; in proportion {FULL:,} offers: {whole_mb:,.0f} MB"
    console.print(f"file: {size_mb:,.0f} MB (limit {LIMIT_MB:,} for {FULL:,} offers){extrapolated}")
    parts = ", ".join(f"{name} {megabytes:,.0f}" for name, megabytes in sizes(file))
    console.print(f"tables with their indexes, MB: {parts or 'this SQLite does not tell'}")
    table = Table("question", "median ms", "p95 ms", "p95 CPU ms", "most ms")
    slowest = 0.0
    for title, took in asked:
        clock, cpu = [row[0] for row in took], [row[1] for row in took]
        p95, p95_cpu = (statistics.quantiles(row, n=20, method="inclusive")[-1] for row in (clock, cpu))
        if title.startswith("90 days"):
            slowest = max(slowest, p95_cpu)
        table.add_row(
            title, f"{statistics.median(clock):.1f}", f"{p95:.1f}", f"{p95_cpu:.1f}", f"{max(clock):.1f}"
        )
    console.print(table)
    held = whole_mb < LIMIT_MB and slowest < LIMIT_MS
    console.print(
        f"limits ({LIMIT_MB:,} MB; p95 of 90-day series {LIMIT_MS} ms of CPU): {'held' if held else 'BROKEN'}"
    )
    return held


def main() -> int:
    """Stores, asks, prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.history", description=__doc__)
    parser.add_argument("--offers", type=int, default=FULL // 10)
    parser.add_argument("--full", action="store_const", const=FULL, dest="offers", help="50,000 offers")
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="leave the database here, and go on from what is there")
    wish = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = wish.keep or Path(folder) / "broker.db"
        held = asyncio.run(run(Console(width=160), wish, file))
    return 0 if held else 1


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
