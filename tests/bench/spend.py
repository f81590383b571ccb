"""Sums of spend over many charges: ``python -m tests.bench.spend [--charges 1000000] [--postgres]``.

Ended reservations of 40 days each, of 20 teams with ten workloads each on three of 60 offers, over two
quarters, 50 that still run, a plan of each team with five fleets to come, 90 days of prices of each offer,
and 21 budgets are stored, rolled up once and asked for; the FOCUS export is streamed. The clock goes on
between two questions, so that each reckons anew what still runs. Printed: seconds to roll up, milliseconds of
each question (median and 95th percentile, warm; aim: 300 ms at the 95th) through the API, of the page also
where something was written before each question, and the memory that the export takes. Exit 1 when the aim is
missed.
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
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from api.app import create_app
from api.bootstrap import Product
from api.cli.installation.listening import spare_collections
from api.export.focus_csv import focus_csv
from api.http.dependencies import SESSION_COOKIE
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.focus.columns import FocusVersion
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.offer import Offer, Tier
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.budgets import DEFAULT_THRESHOLDS, Budget, BudgetPeriod
from broker.ports.planning import PlanOptions, PlanRecord, PlanState
from broker.store import Store
from broker.store.holding.reservations import SqlReservationRepository
from broker.store.unit_of_work import SqlUnitOfWork
from tests.api.house import ADMIN_KEY, House
from tests.fakes.clock import NOON, FakeClock
from tests.fakes.examples import ADMIN, a_placement, a_plan, a_segment, an_offer, slot_terms
from tests.postgres import PostgresServer
from tests.store.test_offers import poll, record

DAYS_EACH, SPAN_DAYS, RUNNING, TEAMS = 40, 140, 50, 20
PRICED_DAYS = 90
TICK_S = 10
AIM_MS = 300.0
EXPORTED_ROWS = 200_000
QUARTER = {"from": "2026-12-01", "to": "2027-03-01"}
MONTH = {"from": "2027-01-01", "to": "2027-02-01"}
PROJECTION = "/v1/spend/projection"
Params = Mapping[str, str]
QUESTIONS: Mapping[str, tuple[str, Params]] = {
    "the Spend page, this month and the next two": ("/spend", {}),
    "the Spend page, a quarter": ("/spend", {**QUARTER, "group_by": "team"}),
    "the Spend page, a quarter by workload": ("/spend", {**QUARTER, "group_by": "workload"}),
    "a quarter by day and team": (PROJECTION, {**QUARTER, "interval": "day", "group_by": "team"}),
    "a quarter by day and workload": (PROJECTION, {**QUARTER, "interval": "day", "group_by": "workload"}),
    "a quarter by day, cash, tier": (
        PROJECTION,
        {**QUARTER, "interval": "day", "group_by": "tier", "view": "cash"},
    ),
    "a quarter by day and team, spot alone": (
        PROJECTION,
        {**QUARTER, "interval": "day", "group_by": "team", "tier": "spot"},
    ),
    "a month by day and provider": (PROJECTION, {**MONTH, "interval": "day", "group_by": "provider"}),
    "everything by month and commitment": (PROJECTION, {"interval": "month", "group_by": "commitment"}),
    "the interval of a quarter": ("/v1/spend/interval", {"from": "2027-04-01", "to": "2027-07-01"}),
    "what changed between two months": ("/v1/spend/changes", {"from": "2027-01", "to": "2027-02"}),
    "units of a quarter": ("/v1/spend/units", QUARTER),
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
    team, workload = n % TEAMS, lots.randrange(10)
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


async def sell(store: Store, lots: random.Random, now: datetime) -> None:
    """Prices of every offer over the last 90 days, another one every third day, summarised: what intervals
    are drawn from."""
    sold = offers(lots)
    for days_ago in range(PRICED_DAYS, -1, -3):
        at = now - timedelta(days=days_ago)
        for seller in sorted({offer.provider for offer in sold}):
            mine = [
                replace(
                    offer,
                    observed_at=at,
                    price_usd_per_node_hour=offer.price_usd_per_node_hour * lots.randint(90, 110) / 100,
                )
                for offer in sold
                if offer.provider == seller
            ]
            await record(store, poll(len(mine), at, provider=seller), mine)
    async with store.unit_of_work(EVERY_TEAM) as uow:
        while (day := await uow.prices.find_next_day()) is not None and day < now.date():
            await uow.prices.summarise(day)
        await uow.commit()


async def plan_ahead(store: Store, lots: random.Random, now: datetime) -> None:
    """Stores a plan of each team, and a budget of each and of all together."""
    sold = offers(lots)
    async with store.unit_of_work(EVERY_TEAM) as uow:
        for number in range(TEAMS):
            team = f"team-{number:02d}"
            placements = [
                a_placement(
                    sold[(5 * number + part) % len(sold)],
                    [a_segment(24 * part, 24 * (part + 60), 4, now)],
                    f"{team}-next-{part}",
                    list(WorkloadKind)[part % 3],
                )
                for part in range(5)
            ]
            plan = a_plan(*placements, plan_id=f"plan-{number}", as_of=now, team=team)
            await uow.plans.add(
                PlanRecord(
                    plan_id=plan.plan_id,
                    team=team,
                    state=PlanState.DONE,
                    document="{}",
                    options=PlanOptions(),
                    created_at=now,
                    requested_by="key-bench",
                    plan=plan,
                    intended_by="key-bench",
                )
            )
        for team in ("*", *(f"team-{number:02d}" for number in range(TEAMS))):
            limit = Decimal(10**9 if team == "*" else 10**8)
            await uow.budgets.put(
                Budget(team, BudgetPeriod.QUARTER, limit, DEFAULT_THRESHOLDS, None, "key-bench", now)
            )
        await uow.commit()


async def fill(store: Store, count: int, lots: random.Random) -> None:
    """Stores the reservations, a thousand a transaction."""
    sold = offers(lots)
    for first in range(0, count + RUNNING, 1000):
        async with store.unit_of_work(EVERY_TEAM) as uow:
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


async def asked(
    client: httpx.AsyncClient,
    clock: FakeClock,
    path: str,
    params: Params,
    times: int,
    *,
    write: Callable[[], Awaitable[None]] | None = None,
) -> Spent:
    """The first time, which compiles statements and reads what is settled, is not counted; ``write`` happens
    before each."""
    spent = Spent()
    for n in range(times + 1):
        clock.advance(seconds=TICK_S)
        if write is not None:
            await write()
        began, worked = time.perf_counter(), time.process_time()
        answer = await client.get(path, params=params, cookies={SESSION_COOKIE: ADMIN_KEY})
        assert answer.status_code == 200, answer.text
        if n:
            spent.wall.append(1000 * (time.perf_counter() - began))
            spent.cpu.append(1000 * (time.process_time() - worked))
        if path.startswith("/v1/spend/projection"):
            spent.total = answer.json()["total_usd"]
    return spent


async def touch_lease(store: Store) -> None:
    """Stores a running reservation again."""
    async with store.unit_of_work(EVERY_TEAM) as uow:
        (running, *_) = await uow.reservations.find_open()
        await uow.reservations.update(running)
        await uow.commit()


async def touch_roll_up(store: Store) -> None:
    """Counts the roll-up as written."""
    async with store.unit_of_work(EVERY_TEAM) as uow:
        await uow.rollups.next_generation()
        await uow.commit()


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
        await plan_ahead(product.store, lots, clock.now())
        await sell(product.store, lots, clock.now())
        console.print(f"stored {count + RUNNING} reservations in {time.process_time() - began:.0f} CPU s")
        began = time.process_time()
        rolled = await product.spend.roll_up()
        console.print(f"rolled up {rolled} bills in {time.process_time() - began:.0f} CPU s")
        transport = httpx.ASGITransport(app=app)
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        client = await stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://broker", headers=headers, timeout=600)
        )
        spare_collections()
        table = Table(title=f"{wish.charges} charges, {url.partition(':')[0]}")
        for name in ("question", "p50 ms", "p95 ms", "CPU p50 ms", "CPU p95 ms", "total USD"):
            table.add_column(name, justify="left" if name == "question" else "right")
        worst = 0.0
        answers = {
            name: await asked(client, clock, path, params, wish.times)
            for name, (path, params) in QUESTIONS.items()
        }
        for name, write in (("a lease", touch_lease), ("the roll-up", touch_roll_up)):
            answers[f"the Spend page after a write to {name}"] = await asked(
                client, clock, "/spend", {}, wish.times, write=partial(write, product.store)
            )
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
