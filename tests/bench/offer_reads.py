"""Reads of the market: ``python -m tests.bench.offer_reads [--offers 5000 50000] [--times 30] [--postgres]``.

Invented offers of six sellers are stored; then pages of offers and the page *Market* are asked for over HTTP
without a network, and all offers are read as a plan reads them: at first, again, and after a round of one
seller with other prices for one offer in a hundred. Printed: milliseconds, median and 95th percentile (of a
read that is made once, its one time). Figures of one run on one machine; nothing passes or fails.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import structlog
from rich.console import Console
from rich.table import Table

from api.cli.installation.listening import spare_collections
from api.http.dependencies import SESSION_COOKIE
from broker.catalogue import load_launch_table
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.market.market import PollRound
from broker.domain.market.round_news import round_news
from broker.services.market.usable_offers import OfferRules, usable_offers
from broker.store import Store
from tests.api.house import ADMIN_KEY, Home, House
from tests.bench.rounds import Replayed, invented
from tests.fakes.clock import FakeClock
from tests.postgres import PostgresServer

QUESTIONS = {
    "page of 50": "/v1/offers?limit=50",
    "page of 50 in the middle": "/v1/offers?limit=50&cursor=WyIyLjAiLCAic2VsbGVyLTMiXQ==",
    "page of 50 of a GPU": "/v1/offers?limit=50&gpu=L40S",
    "page of 50 of a region and seller": "/v1/offers?limit=50&region=region-7&provider=seller-2",
    "page Market": "/market",
    "page Market, a GPU, by seller": "/market?gpu=L40S&sort=-provider&page=9",
    "page Market, last": "/market?page=99999",
}


async def timed(act: Callable[[], Awaitable[object]], times: int) -> list[float]:
    """Milliseconds of each time."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        await act()
        found.append(1000 * (time.perf_counter() - began))
    return found


def line_of(milliseconds: list[float]) -> tuple[str, str]:
    """Median and 95th percentile."""
    if len(milliseconds) == 1:
        return (f"{milliseconds[0]:.1f}",) * 2
    p95 = statistics.quantiles(milliseconds, n=20)[18]
    return f"{statistics.median(milliseconds):.1f}", f"{p95:.1f}"


async def store_round(store: Store, source: Replayed, clock: FakeClock) -> None:
    """Stores what a seller says now."""
    at = clock.now()
    offers = (await source.list_offers(at)).offers
    async with store.unit_of_work(EVERY_TEAM) as unit:
        marks = await unit.offers.open_round(source.provider)
        news = round_news(marks, offers, at)
        await unit.offers.record_round(PollRound(source.provider, at, 1.0, len(offers)), news)
        await unit.commit()


async def asked(home: Home, table: Table, title: str, times: int) -> None:
    """A row for each question."""
    client = home.client()
    client.cookies.set(SESSION_COOKIE, ADMIN_KEY)
    for name, path in QUESTIONS.items():

        async def ask(path: str = path) -> None:
            answer = await client.get(path)
            assert answer.status_code == 200, f"{path}: {answer.text[:300]}"

        table.add_row(title, name, *line_of((await timed(ask, times + 1))[1:]))


async def measure(
    count: int, url: str, title: str, table: Table, times: int, settle: Callable[[str], None] | None = None
) -> None:
    """Stores so many offers in the empty database at ``url``, and adds the rows of the table.

    ``settle`` does what the database does by itself within minutes.
    """
    clock = FakeClock()
    house = House(Path("unused"), clock=clock, offers=(), url=url)
    rules = OfferRules(timedelta(minutes=10), launch_times=load_launch_table())
    sources = [Replayed(seller, batch) for seller, batch in invented(count).items()]
    async with house.open(polled=False) as home:
        store, stored = home.product.store, sum(len(one.batch.offers) for one in sources)
        for source in sources:
            await store_round(store, source, clock)
        if settle is not None:
            await asyncio.to_thread(settle, url)
        clock.advance(minutes=6)
        spare_collections()
        await asked(home, table, title, times)

        async def plan() -> None:
            async with store.unit_of_work(EVERY_TEAM) as unit:
                assert len(await usable_offers(unit, clock.now(), rules)) == stored

        table.add_row(title, "a plan's read, the first", *line_of(await timed(plan, 1)))
        table.add_row(title, "a plan's read, again", *line_of(await timed(plan, 5)))
        clock.advance(minutes=1)
        sources[0].nudged = True
        await store_round(store, sources[0], clock)
        table.add_row(title, "a plan's read after a seller's round", *line_of(await timed(plan, 1)))
        client = home.client()
        client.cookies.set(SESSION_COOKIE, ADMIN_KEY)

        async def page() -> None:
            assert (await client.get("/market")).status_code == 200

        table.add_row(title, "page Market after a seller's round", *line_of(await timed(page, 1)))


async def run(console: Console, counts: list[int], times: int, *, postgres: bool) -> None:
    """Prints the table."""
    table = Table("offers and store", "question", "p50 ms", "p95 ms")
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            await measure(count, f"sqlite:///{Path(folder) / 'broker.db'}", f"{count:,} SQLite", table, times)
        if postgres:
            server = PostgresServer()
            try:
                url, title = server.create_database(), f"{count:,} PostgreSQL"
                await measure(count, url, title, table, times, server.analyze)
            finally:
                server.stop()
    console.print(table)


def main() -> int:
    """Stores, asks, prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.offer_reads", description=__doc__)
    parser.add_argument("--offers", type=int, nargs="+", default=[5_000, 50_000, 100_000])
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL server of its own, too")
    wish = parser.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    asyncio.run(run(Console(width=120), wish.offers, wish.times, postgres=wish.postgres))
    return 0


if __name__ == "__main__":
    sys.exit(main())
