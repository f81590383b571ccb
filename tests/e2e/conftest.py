"""A sandbox market and a broker server of their own for each database, shared by a module's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e import processes

SECRET = "swordfish-of-the-dataset-4711"
"""The value of the installation's secret ``DATASET``."""
ADMIN_KEY = "broker_live_e2e_0123456789abcdef0123456789abcdef"


@dataclass
class World:
    """One running product: market, server, and a client with all scopes."""

    sandbox: processes.Running
    server: processes.Running
    client: httpx.Client

    def ledger(self) -> list[dict[str, Any]]:
        """The market's own truth: every instance that ever was."""
        found: list[dict[str, Any]] = httpx.get(self.sandbox.url + "/_sandbox/ledger").json()["instances"]
        return found

    def open_instances(self) -> list[dict[str, Any]]:
        """Instances that the market has not ended."""
        return [row for row in self.ledger() if row["released_at"] is None]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def world(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_url_factory: Callable[[], str],
) -> Iterator[World]:
    """Real processes on a real database."""
    folder: Path = tmp_path_factory.mktemp(f"world-{request.param}")
    if request.param == "sqlite":
        database_url = f"sqlite:///{folder / 'broker.db'}"
    else:
        database_url = postgres_url_factory()
    sandbox = processes.start_sandbox(folder)
    try:
        secret = {"BROKER_SECRET_DATASET": SECRET}
        server = processes.start_server(folder, sandbox.url, database_url, ADMIN_KEY, **secret)
        try:
            headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
            with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
                yield World(sandbox, server, client)
        finally:
            server.stop()
    finally:
        sandbox.stop()
