"""Clients that go away are no exceptions: nothing in the log, 499 in the figures, health answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from tests.bench.aborted_clients import ADMIN_KEY, storm
from tests.e2e.processes import clean_environment, free_port, start, wait_for

COUNT = 1000
BATCH = 100
FAST = 1e6


def left_in(client: httpx.Client) -> float:
    """How many requests the figures say that nobody waited for."""
    figures = client.get("/metrics").text.splitlines()
    left = [line for line in figures if 'status="499"' in line and "_requests_total" in line]
    return sum(float(line.rpartition(" ")[2]) for line in left)


def test_a_thousand_uploads_broken_off_and_a_thousand_readers_that_leave(tmp_path: Path) -> None:
    port = free_port()
    environment = clean_environment(
        BROKER_DATABASE_URL=f"sqlite:///{tmp_path / 'broker.db'}",
        BROKER_ADMIN_KEY=ADMIN_KEY,
        BROKER_PORT=str(port),
    )
    server = start(["serve"], f"http://127.0.0.1:{port}", "/healthz", tmp_path / "server.log", environment)
    try:
        with httpx.Client(base_url=server.url, timeout=240) as client:
            for kind in ("uploads", "readers"):
                for _ in range(COUNT // BATCH):
                    asyncio.run(storm(port, kind, BATCH, FAST))
                    assert client.get("/healthz").status_code == 200
            wait_for("every upload that was broken off", 60, lambda: left_in(client) >= COUNT or None)
    finally:
        server.stop()
    lines = server.log.read_text().splitlines()
    assert [line for line in lines if not line.startswith("serving on")] == []
