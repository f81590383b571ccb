"""Several brokers under mixed load and faults: ``python -m tests.bench.mixed_load``.

Three brokers, a Dask scheduler with two workers and a sandbox market, each a process of its own, on one
PostgreSQL server. Clients read offers, spend and pages, ask for plans and cancel some, reserve under
idempotency keys and release. Meanwhile, a pause before each: the leader is killed, a Dask worker is killed,
the database is restarted, a broker is told to end (SIGTERM). What ended is started again. The load lasts
``--seconds`` and what recovering takes; it is given up after LOAD_LIMIT_S. Prints times and errors by kind
of call, what recovering took, and whether database and market agree with what clients were told; 1 where
something is lost or doubled, or does not recover.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from tests.bench.agreement import Stored, Unit, lost_or_doubled
from tests.bench.brokers import ADMIN_KEY, BROKERS, HEADERS, WORKERS, Ground, started
from tests.bench.clients import LOOK_S, ON_ITS_WAY, PLAN_LIMIT_S, PLANS_AT_ONCE, Load

SELLERS = ("crusoe", "digitalocean", "lambda")
PAUSES = 5
DATABASE_AWAY_S = 3.0
CALL_LIMIT_S, RECOVERY_LIMIT_S, SETTLING_LIMIT_S = 60.0, 120.0, 60.0
LOAD_LIMIT_S, LAST_CALLS_LIMIT_S = 330.0, 60.0
"""With the limits of a start and of settling, all of it ends within ten minutes whatever does not recover."""
STATES = """
SELECT 'reservations', state, count(*) FROM reservations GROUP BY state
UNION ALL SELECT 'plans', state, count(*) FROM plans GROUP BY state
"""
NEW_LEADER = "SELECT worker_id FROM leaders WHERE epoch > %s AND passed"


async def _until(what: str, look: Callable[[], Awaitable[Any]], began: float) -> float:
    """Seconds from ``began`` until ``look`` says something that is true; AssertionError at the limit."""
    while time.monotonic() - began < RECOVERY_LIMIT_S:
        if await look():
            return time.monotonic() - began
        await asyncio.sleep(LOOK_S)
    raise AssertionError(f"{what}: not seen in {RECOVERY_LIMIT_S:.0f} s")


async def faults(ground: Ground, load: Load, pause_s: float, took: dict[str, float]) -> None:
    """Each fault after a pause; notes the seconds that recovering took. AssertionError at a limit."""

    async def in_thread(act: Callable[..., Any], *given: Any) -> Any:
        return await asyncio.to_thread(act, *given)

    async def led(since: int) -> Any:
        return await in_thread(ground.query, NEW_LEADER, since)

    async def answered() -> bool:
        calls = (load.http.get(broker.url + "/v1/reservations") for broker in ground.brokers)
        said = await asyncio.gather(*calls, return_exceptions=True)
        return all(isinstance(answer, httpx.Response) and answer.is_success for answer in said)

    await asyncio.sleep(pause_s)
    epoch, leading = await in_thread(ground.leader)
    ground.brokers[leading].kill()
    what = "leader killed: the next had made its first pass"
    took[what] = await _until(what, lambda: led(epoch), time.monotonic())
    ground.brokers[leading] = await in_thread(ground.start_broker)

    await asyncio.sleep(pause_s)
    both = [await load.ask_for_plan(PLANS_AT_ONCE + WORKERS) for _ in range(WORKERS)]
    await asyncio.sleep(PLAN_LIMIT_S / 2)  # both workers are at work
    before = [*both, *(one for one, status in load.plans.items() if status in ON_ITS_WAY)]
    ground.workers[0].kill()
    began = time.monotonic()
    after = [await load.ask_for_plan(sys.maxsize)]
    (
        took["Dask worker killed: a plan asked for after it was made"],
        took["Dask worker killed: plans from before were"],
    ) = await asyncio.gather(
        *(_until("the plan", partial(load.are_made, ids), began) for ids in (after, before))
    )
    ground.workers[0] = await in_thread(ground.start_worker)

    await asyncio.sleep(pause_s)
    epoch, _ = await in_thread(ground.leader)
    load.restarting = True
    await in_thread(ground.postgres.pause)
    await asyncio.sleep(DATABASE_AWAY_S)
    await in_thread(ground.postgres.resume)
    began, what = time.monotonic(), "database restarted: calls to all brokers succeeded"
    took[what] = await _until(what, answered, began)
    load.restarting = False
    what = "database restarted: a leader had made its first pass"
    took[what] = await _until(what, lambda: led(epoch), began)

    await asyncio.sleep(pause_s)
    _, leading = await in_thread(ground.leader)
    other = (leading + 1) % BROKERS
    began = time.monotonic()
    await in_thread(ground.brokers[other].stop)
    took["broker told to end: it had ended"] = time.monotonic() - began
    ground.brokers[other] = await in_thread(ground.start_broker)
    took["broker told to end: another was ready"] = time.monotonic() - began
    await asyncio.sleep(pause_s)


async def run(
    ground: Ground, seconds: float, clients: int, seed: int
) -> tuple[Load, dict[str, float], float]:
    """The load with its faults; what was seen, what recovering took, and how long the load lasted."""
    limits = httpx.Limits(max_connections=4 * clients + 20)
    async with httpx.AsyncClient(headers=HEADERS, timeout=CALL_LIMIT_S, limits=limits) as http:
        first = ground.brokers[0].url
        await http.post(first + "/signin", data={"key": ADMIN_KEY})  # pages want its cookie
        load = Load(ground.brokers, http, await _offers(http, first), Random(seed))
        balancing = asyncio.create_task(load.balance())
        lives: list[asyncio.Task[None]] = []
        took: dict[str, float] = {}
        began = time.monotonic()
        try:
            async with asyncio.timeout(LOAD_LIMIT_S):
                first_plan = [await load.ask_for_plan()]  # workers load their tables
                await _until("the first plan", partial(load.are_made, first_plan), began)
                load.seconds.clear()
                began = time.monotonic()
                lives += [asyncio.create_task(load.live()) for _ in range(clients)]
                await faults(ground, load, seconds / PAUSES, took)
        except AssertionError as error:  # the figures up to then are worth more than none
            load.problems.append(f"no recovery: {error}")
        except TimeoutError:
            load.problems.append(f"not all faults came and were over in {LOAD_LIMIT_S:.0f} s")
        lasted_s = time.monotonic() - began
        load.over.set()
        if not await _all_end(lives, LAST_CALLS_LIMIT_S):
            load.problems.append(
                f"clients had no answer {LAST_CALLS_LIMIT_S:.0f} s after the end of the load"
            )
        balancing.cancel()
    return load, took, lasted_s


async def _all_end(tasks: Sequence[asyncio.Task[None]], limit_s: float) -> bool:
    """Whether all end in time; those that do not are cancelled."""
    late = (await asyncio.wait(tasks, timeout=limit_s))[1] if tasks else set()
    for task in late:
        task.cancel()
    return not late


async def _offers(http: httpx.AsyncClient, url: str) -> list[str]:
    """Offers whose sellers say that they have some, and sell them by the hour."""
    found = []
    for seller in SELLERS:
        params = {"provider": seller, "tier": "on_demand", "limit": "200"}
        items = (await http.get(url + "/v1/offers", params=params)).json()["items"]
        found += [one["offer_id"] for one in items if (one["stock"]["nodes"] or 0) >= 2]
    return sorted(found)


def settled(ground: Ground, load: Load) -> tuple[list[str], float]:
    """Differences that are left when all has settled, or at the limit, and the seconds that it took."""
    began = time.monotonic()
    while (left := _differences(ground, load)) and time.monotonic() - began < SETTLING_LIMIT_S:
        time.sleep(1)
    return left, time.monotonic() - began


def _differences(ground: Ground, load: Load) -> list[str]:
    reservations = ground.query("SELECT reservation_id, state, reason FROM reservations")
    # What a broker proposes when it looks again is no answer to a client.
    plans = ground.query("SELECT plan_id, state, problem FROM plans WHERE state <> 'proposed'")
    units = ground.query(
        "SELECT tag, reference, reservation_id, ordinal, nodes, state FROM reservation_units"
    )
    stored = Stored(
        {one: (state, why) for one, state, why in reservations},
        {one: (state, why) for one, state, why in plans},
        [Unit(*unit) for unit in units],
    )
    ledger = httpx.get(ground.sandbox.url + "/_sandbox/ledger", timeout=CALL_LIMIT_S).json()["instances"]
    return lost_or_doubled(load.kept, load.released, load.plans, stored, ledger)


def show(console: Console, load: Load, lasted_s: float) -> None:
    """Times and errors by kind of call."""
    table = Table(title=f"{lasted_s:.0f} s of load")
    for column in ("call", "count", "per s", "p50 ms", "p95 ms", "p99 ms"):
        table.add_column(column, justify="left" if column == "call" else "right")
    table.add_column("errors; (restart): while the database was away")
    for kind, seconds in sorted(load.seconds.items()):
        cuts = statistics.quantiles(seconds * 2, n=100)
        times = (f"{1000 * cuts[at - 1]:.0f}" for at in (50, 95, 99))
        errors = ", ".join(f"{count} × {said}" for said, count in load.errors[kind].most_common())
        table.add_row(kind, str(len(seconds)), f"{len(seconds) / lasted_s:.1f}", *times, errors)
    console.print(table)


def logged_errors(ground: Ground) -> Counter[str]:
    """Events that brokers logged as errors, and how often."""
    lines = (
        json.loads(line) for log in ground.logs() for line in log.read_text().splitlines() if line[:1] == "{"
    )
    return Counter(str(line["event"]) for line in lines if line.get("level") in {"error", "critical"})


def main() -> int:
    """Prints the figures; 1 where something is lost or doubled, or does not recover."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.mixed_load", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="pauses between faults, together")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=7, help="of all random draws")
    wish = parser.parse_args()
    console = Console(width=150)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what runs ends with us
    with started() as ground:
        load, took, lasted_s = asyncio.run(run(ground, wish.seconds, wish.clients, wish.seed))
        left, settling_s = settled(ground, load)
        logged = logged_errors(ground)
        states = ", ".join(f"{count} {what} {state}" for what, state, count in ground.query(STATES))
    show(console, load, lasted_s)
    for what, seconds in took.items():
        console.print(f"{what} after {seconds:.1f} s")
    for event, count in logged.most_common():
        console.print(f"logged as an error, {count} times: {event}", markup=False)
    told = f"{len(load.kept)} reservations kept, {len(load.released)} released, {len(load.plans)} plans"
    console.print(f"clients were told of {told}; stored: {states}; settled after {settling_s:.1f} s")
    for problem in (*load.problems, *left):
        console.print(problem, markup=False)
    console.print("nothing is lost or doubled" if not (left or load.problems) else "NOT AS TOLD")
    return 1 if left or load.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
