"""Reads and pages of a month that was lived: ``python -m tests.bench.month_reads [--times 40]``.

The month of two teams of ``tests/faults/test_a_month.py`` is played on the sandbox and kept. Then the main
reads and pages are asked for, as finance (all teams) would. The clock goes on between two questions, so that
what still runs is reckoned anew. Printed: what is stored, and milliseconds of each question (median and 95th
percentile, by the clock and by the processor) without the network. Nothing passes or fails.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from api.cli.installation.listening import spare_collections
from api.http.dependencies import SESSION_COOKIE
from tests.faults import haste
from tests.faults.auditor import Auditor
from tests.faults.broker_life import standing_market
from tests.faults.month import ADMIN_KEY, Books, Office
from tests.faults.test_a_month import Month

TICK_S = 10.0
PROJECTION = "/v1/spend/projection"
QUESTIONS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "page Overview": ("/", {}),
    "page Plans": ("/plans", {}),
    "page Plan": ("/plans/{plan}", {}),
    "page Reservations": ("/reservations", {}),
    "page Spend": ("/spend", {}),
    "page Market": ("/market", {}),
    "page Proposals": ("/proposals", {}),
    "page Approvals": ("/approvals", {}),
    "plans": ("/v1/plans", {}),
    "plan": ("/v1/plans/{plan}", {}),
    "reservations": ("/v1/reservations", {}),
    "shortfalls": ("/v1/reservations/shortfalls", {}),
    "offers": ("/v1/offers", {"limit": "50"}),
    "re-optimizations": ("/v1/reoptimizations", {}),
    "budgets": ("/v1/budgets", {}),
    "projection by month and team": (PROJECTION, {"interval": "month", "group_by": "team"}),
    "projection by day and seller, cash": (
        PROJECTION,
        {"interval": "day", "group_by": "provider", "view": "cash"},
    ),
    "FOCUS rows": ("/v1/spend/focus.csv", {}),
    "history": ("/v1/audit", {}),
}


async def asked(office: Office, plan_id: str, times: int, console: Console) -> None:
    """Asks everything and prints a row for each question; the first time of each is not counted."""
    spare_collections()
    table = Table("question", "p50 ms", "p95 ms", "CPU p50 ms", "CPU p95 ms", "bytes")
    async with httpx.AsyncClient(
        transport=office.transport,
        base_url="http://broker",
        headers={"Authorization": f"Bearer {ADMIN_KEY}"},
        cookies={SESSION_COOKIE: ADMIN_KEY},
    ) as client:
        for name, (path, params) in QUESTIONS.items():
            wall: list[float] = []
            cpu: list[float] = []
            for n in range(times + 1):
                await office.pass_seconds(TICK_S)
                began, worked = time.perf_counter(), time.process_time()
                answer = await client.get(path.format(plan=plan_id), params=dict(params))
                assert answer.status_code == 200, f"{path}: {answer.text[:300]}"
                if n:
                    wall.append(1000 * (time.perf_counter() - began))
                    cpu.append(1000 * (time.process_time() - worked))
            figures = [of for one in (wall, cpu) for of in (statistics.median(one), _p95(one))]
            table.add_row(name, *(f"{figure:.0f}" for figure in figures), str(len(answer.content)))
    console.print(table)


def _p95(of: list[float]) -> float:
    return statistics.quantiles(of, n=20)[18]


async def lived(month: Month, times: int, console: Console) -> None:
    """The month, then the questions."""
    await month.live()
    async with month.books.opened() as office:
        rows = await office.rows()
        console.print(
            f"{len(month.books.auditor.lines)} leases, {len(rows)} reservations, "
            f"{len(await office.every('admin', '/v1/offers'))} offers, "
            f"{len(await office.every('admin', '/v1/plans'))} plans, "
            f"{len(await office.every('admin', '/v1/audit'))} entries of history"
        )
        await asked(office, month.plans["held"], times, console)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.month_reads", description=__doc__)
    parser.add_argument("--times", type=int, default=40)
    wish = parser.parse_args()
    market = standing_market(seed=11)
    try:
        with (
            httpx.Client(base_url=market.url, trust_env=False, timeout=20) as control,
            tempfile.TemporaryDirectory() as folder,
        ):
            books = Books(market, Path(folder) / "broker.db", control, Auditor(control))
            haste.run(lived(Month(books), wish.times, Console()))
    finally:
        market.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
