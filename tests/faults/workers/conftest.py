"""Two broker processes on one PostgreSQL database and one sandbox market, shared by this folder's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.e2e import processes

ADMIN_KEY = "broker_live_faults_0123456789abcdef0123456789abcdef"
HEADERS = {"Authorization": f"Bearer {ADMIN_KEY}"}
RACED = {"provider": "crusoe", "sku": "a100-80gb.1x", "region": "us-east1-a"}
STOCK = 50
DOUBTED = {"provider": "lambda", "sku": "gpu_8x_h100_sxm5", "price_factor": "0.02"}
"""A price far below every peer's, so that the first poll puts an offer into quarantine."""


@dataclass
class Pair:
    """A running installation: its market, its database, and two servers that know nothing of each other."""

    sandbox: processes.Running
    database_url: str
    servers: list[processes.Running]

    def client(self, number: int, **headers: str) -> httpx.Client:
        """A client of one server with all scopes."""
        return httpx.Client(base_url=self.servers[number].url, headers=HEADERS | headers, timeout=60)

    def ledger(self, provider: str) -> list[dict[str, Any]]:
        """What the market holds for us at ``provider`` now."""
        rows: list[dict[str, Any]] = httpx.get(self.sandbox.url + "/_sandbox/ledger").json()["instances"]
        return [row for row in rows if row["provider"] == provider and row["released_at"] is None]

    def writes(self) -> int:
        """Creates and deletes that any provider was ever asked for."""
        requests = httpx.get(self.sandbox.url + "/_sandbox/requests").json()["requests"]
        return sum(counts.get("create", 0) + counts.get("delete", 0) for counts in requests.values())

    def control(self, path: str, **body: Any) -> None:
        """One call of the tester's side of the market."""
        httpx.post(self.sandbox.url + path, json=body).raise_for_status()

    def leader(self) -> tuple[int, int]:
        """The epoch, and which server leads."""
        with psycopg.connect(self.database_url) as connection:
            row = connection.execute("SELECT epoch, worker_id FROM leaders").fetchone()
        assert row is not None
        pid = int(str(row[1]).rsplit("-", 2)[1])
        return int(row[0]), next(n for n, s in enumerate(self.servers) if s.process.pid == pid)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory, postgres_url_factory: Callable[[], str]) -> Iterator[Pair]:
    """Two servers that were started at once; they poll once and then leave the market alone."""
    folder: Path = tmp_path_factory.mktemp("pair")
    url = postgres_url_factory()
    sandbox = processes.start_sandbox(folder)
    try:
        for change in ({**RACED, "stock": STOCK}, DOUBTED):
            httpx.post(sandbox.url + "/_sandbox/market", json=change).raise_for_status()

        def start(number: int) -> processes.Running:
            own = folder / f"server-{number}"
            own.mkdir()
            settings = {
                "BROKER_POLL_SECONDS": "3600",
                "BROKER_REOPTIMIZE_SECONDS": "3600",
                "BROKER_WEBHOOK_ALLOW_LOOPBACK": "true",
            }
            return processes.start_server(own, sandbox.url, url, ADMIN_KEY, **settings)

        with ThreadPoolExecutor(2) as pool:
            servers = list(pool.map(start, range(2)))
        try:
            yield Pair(sandbox, url, servers)
        finally:
            for server in servers:
                server.stop()
    finally:
        sandbox.stop()
