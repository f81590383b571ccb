"""Looks beside two busy processes a core: of N tripled prices, how many lead to a proposal."""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from api.planning.workers import PlannerProcesses
from broker.services.moving.reoptimize import ReoptimizeRules
from broker.store import create_store
from tests.faults.busy import looks_after_a_tripled_price
from tests.postgres import PostgresServer

BUSY_PER_CORE = 2


def main() -> int:
    """Prints how many of the tries led to a proposal, and what the others came to."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.busy_looks", description=__doc__)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--idle", action="store_true", help="without the busy processes, to compare")
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL server of its own")
    wish = parser.parse_args()
    processes = 0 if wish.idle else BUSY_PER_CORE * (os.cpu_count() or 1)
    states: Counter[str] = Counter()
    longest_s = 0.0
    with PlannerProcesses() as executor, _server(wish.postgres) as server:
        for seed in range(wish.tries):
            began_s = time.monotonic()
            states[asyncio.run(_outcome(executor, server, seed, processes))] += 1
            longest_s = max(longest_s, time.monotonic() - began_s)
    proposed = states.pop("proposed", 0)
    others = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none otherwise"
    print(f"{proposed} of {wish.tries} tries led to a proposal beside {processes} busy processes; {others}")
    print(f"longest try, its first plan included: {longest_s:.1f} s")
    return 0


@contextmanager
def _server(wanted: bool) -> Iterator[PostgresServer | None]:
    server = PostgresServer() if wanted else None
    try:
        yield server
    finally:
        if server is not None:
            server.stop()


async def _outcome(executor: PlannerProcesses, server: PostgresServer | None, seed: int, beside: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'broker.db'}" if server is None else server.create_database()
        store = create_store(url)
        await store.migrate()
        try:
            looks = await looks_after_a_tripled_price(store, executor, seed, ReoptimizeRules(), beside)
        finally:
            await store.close()
    return str(looks[0].state) if looks else "no look"


if __name__ == "__main__":
    raise SystemExit(main())
