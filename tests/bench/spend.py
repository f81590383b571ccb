"""Sums of spend over many charges: ``python -m tests.bench.spend [--charges 1000000] [--postgres]``.

Ended reservations of 40 days each, of 20 teams with ten workloads each on three of 60 offers, over two
quarters, and 50 that still run, are stored, rolled up once and asked for; the FOCUS export is streamed.
Printed: seconds to roll up, milliseconds of each question (median and 95th percentile, warm; aim: 300 ms at
the 95th) through the API, and the memory that the export takes. Exit 1 when the aim is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from api.app import create_app
from api.bootstrap import Product
from api.dependencies import SESSION_COOKIE
from api.export.focus_csv import focus_csv
from broker.domain.focus_columns import FocusVersion
from broker.domain.offer import Offer, Tier
from broker.domain.reservation import Reservation, ReservationState, Unit, UnitState
from broker.store import Store
from broker.store.reservations import SqlReservationRepository
from broker.store.unit_of_work import SqlUnitOfWork
from tests.api.house import ADMIN_KEY, House
from tests.fakes.clock import NOON, FakeClock
from tests.fakes.examples import ADMIN, an_offer, slot_terms
from tests.postgres import PostgresServer

DAYS_EACH, SPAN_DAYS, RUNNING = 40, 140, 50
AIM_MS = 300.0
EXPORTED_ROWS = 200_000
QUESTIONS = {
    "a quarter by day and team": {
        "interval": "day",
        "group_by": "team",
        "from": "2026-12-01",
        "to": "2027-03-01",
    },
    "a quarter by day and workload": {
        "interval": "day",
        "group_by": "workload",
        "from": "2026-12-01",
        "to": "2027-03-01",
    },
    "a quarter by day, cash, tier": {
        "interval": "day",
        "group_by": "tier",
        "view": "cash",
        "from": "2026-12-01",
        "to": "2027-03-01",
    },
    "a month by day and provider": {
        "interval": "day",
        "group_by": "provider",
        "from": "2027-01-01",
        "to": "2027-02-01",
    },
    "everything by month and commitment": {"interval": "month", "group_by": "commitment"},
}


def offers(lots: random.Random) -> list[Offer]:
    """On demand, spot, terms and windows, at odd prices."""
    found = []
    for n in range(60):
        tier = list(Tier)[n % 4]
        offer = an_offer(f"o-{n}", f"{lots.uniform(2, 90):.6f}", provider=f"seller-{n % 12}", increment_s=60)
        if tier is Tier.WINDOW:
            offer = replace(offer, window=slot_terms(NOON, 24 * SPAN_DAYS))
        found.append(replace(offer, tier=tier))
    return found


def reservation(n: int, sold: list[Offer], lots: random.Random, *, running: bool) -> Reservation:
    """Forty days on one offer, ended at an odd minute; or held until now."""
    team, workload = n % 20, lots.randrange(10)
    offer = sold[(7 * team + 3 * workload + lots.randrange(3)) % len(sold)]
    start = NOON + timedelta(minutes=lots.randrange(60 * 24 * (SPAN_DAYS - DAYS_EACH)))
    end = start + timedelta(days=DAYS_EACH - 1, minutes=lots.randrange(60))
    running_on = running and offer.window is None
    state = UnitState.HELD if running_on else UnitState.GONE
    unit = Unit(0, f"tag-{n}", 1, state, f"i-{n}", start, None if running_on else end)
    return Reservation(
        reservation_id=f"rsv-{n:07d}",
        team=f"team-{team:02d}",
        state=ReservationState.ACTIVE if running_on else ReservationState.RELEASED,
        offer=offer,
        nodes=1,
        start=start,
        end=None if offer.window is None else end,
        units=(unit,),
        created_at=start,
        workload=f"team-{team:02d}-w{workload}",
        released_at=None if running_on else end,
    )


async def fill(store: Store, count: int, lots: random.Random) -> None:
    """Stores the reservations, a thousand a transaction."""
    sold = offers(lots)
    for first in range(0, count + RUNNING, 1000):
        async with store.unit_of_work() as uow:
            assert isinstance(uow, SqlUnitOfWork)
            assert isinstance(uow.reservations, SqlReservationRepository)
            for n in range(first, min(first + 1000, count + RUNNING)):
                await uow.reservations.add(reservation(n, sold, lots, running=n >= count))
            await uow.commit()


@dataclass
class Spent:
    """Milliseconds of each time that a question was asked, by the clock and by the processor; the total."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    total: str = ""

    def p95(self, of: list[float]) -> float:
        """The 95th percentile."""
        return statistics.quantiles(of, n=20)[18]


async def asked(client: httpx.AsyncClient, params: dict[str, str], times: int) -> Spent:
    """The first time, which compiles statements, is not counted."""
    spent = Spent()
    for n in range(times + 1):
        began, worked = time.perf_counter(), time.process_time()
        answer = await client.get("/v1/spend/projection", params=params)
        if n:
            spent.wall.append(1000 * (time.perf_counter() - began))
            spent.cpu.append(1000 * (time.process_time() - worked))
        spent.total = answer.json()["total_usd"]
    return spent


async def shown(client: httpx.AsyncClient, times: int) -> Spent:
    """The Spend page with its interval, of the same quarter; the first time is not counted."""
    spent = Spent()
    params = {"from": "2026-12-01", "to": "2027-03-01", "group_by": "team"}
    for n in range(times + 1):
        began, worked = time.perf_counter(), time.process_time()
        answer = await client.get("/spend", params=params, cookies={SESSION_COOKIE: ADMIN_KEY})
        assert answer.status_code == 200
        if n:
            spent.wall.append(1000 * (time.perf_counter() - began))
            spent.cpu.append(1000 * (time.process_time() - worked))
    return spent


async def streamed(product: Product, at_most: int) -> tuple[int, float]:
    """Rows of the FOCUS export that were read, and megabytes that the process grew by meanwhile."""
    before, rows = _peak_mb(), 0
    export = product.spend.focus(ADMIN)
    async for chunk in focus_csv(export.rows, FocusVersion.V1_2):
        rows += chunk.count(b"\r\n")
        if rows >= at_most:
            break
    return rows, _peak_mb() - before


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def bench(wish: argparse.Namespace, url: str, console: Console) -> bool:
    """Stores, rolls up, asks, prints; whether the aim holds."""
    lots, count = random.Random(wish.seed), wish.charges // DAYS_EACH
    clock = FakeClock(NOON + timedelta(days=SPAN_DAYS))
    product = House(Path(), clock=clock, url=url).build()
    async with AsyncExitStack() as stack:
        app = create_app(product, scheduled=False)
        await stack.enter_async_context(app.router.lifespan_context(app))
        began = time.process_time()
        await fill(product.store, count, lots)
        console.print(f"stored {count + RUNNING} reservations in {time.process_time() - began:.0f} CPU s")
        began = time.process_time()
        rolled = await product.spend.roll_up()
        console.print(f"rolled up {rolled} bills in {time.process_time() - began:.0f} CPU s")
        transport = httpx.ASGITransport(app=app)
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        client = await stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://broker", headers=headers, timeout=600)
        )
        table = Table(title=f"{wish.charges} charges, {url.partition(':')[0]}")
        for name in ("question", "p50 ms", "p95 ms", "CPU p50 ms", "CPU p95 ms", "total USD"):
            table.add_column(name, justify="left" if name == "question" else "right")
        worst = 0.0
        answers = {name: await asked(client, params, wish.times) for name, params in QUESTIONS.items()}
        answers["the Spend page"] = await shown(client, wish.times)
        for name, spent in answers.items():
            worst = max(worst, spent.p95(spent.wall))
            figures = [
                of for one in (spent.wall, spent.cpu) for of in (statistics.median(one), spent.p95(one))
            ]
            table.add_row(name, *(f"{figure:.0f}" for figure in figures), spent.total)
        console.print(table)
        rows, grown = await streamed(product, EXPORTED_ROWS)
        console.print(f"FOCUS export: {rows} rows streamed, peak memory grew by {grown:.0f} MB")
    return worst < AIM_MS


def main() -> int:
    """One database of either kind."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spend", description=__doc__)
    parser.add_argument("--charges", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--postgres", action="store_true")
    wish = parser.parse_args()
    console = Console()
    if wish.postgres:
        server = PostgresServer()
        try:
            return 0 if asyncio.run(bench(wish, server.create_database(), console)) else 1
        finally:
            server.stop()
    with tempfile.TemporaryDirectory() as folder:
        return 0 if asyncio.run(bench(wish, f"sqlite:///{folder}/broker.db", console)) else 1


if __name__ == "__main__":
    sys.exit(main())
