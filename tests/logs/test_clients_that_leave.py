"""Clients that go away are no exceptions: nothing in the log, 499 in the figures, health answers."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx

from tests.bench.aborted_clients import ADMIN_KEY, storm
from tests.e2e.processes import BROKER, clean_environment, free_port, start, wait_for

COUNT = 1000
BATCH = 100
FAST = 1e6


def left_in(client: httpx.Client) -> float:
    """How many requests the figures say that nobody waited for."""
    figures = client.get("/metrics").text.splitlines()
    left = [line for line in figures if 'status="499"' in line and "_requests_total" in line]
    return sum(float(line.rpartition(" ")[2]) for line in left)


def test_half_requests_of_a_crowd_take_no_file_from_others(tmp_path: Path) -> None:
    """With 256 files, four times as many connections that say half a request."""
    port = free_port()
    environment = clean_environment(
        BROKER_DATABASE_URL=f"sqlite:///{tmp_path / 'broker.db'}",
        BROKER_ADMIN_KEY=ADMIN_KEY,
        BROKER_PORT=str(port),
    )
    few = ("bash", "-c", 'ulimit -n 256; exec "$@"', "bash", str(BROKER))
    log = tmp_path / "server.log"
    server = start(["serve"], f"http://127.0.0.1:{port}", "/healthz", log, environment, program=few)
    try:
        key = {"Authorization": f"Bearer {ADMIN_KEY}"}
        with httpx.Client(base_url=server.url, timeout=240, headers=key) as client, ExitStack() as crowd:
            assert client.get("/v1/plans").status_code == 200
            for _ in range(1024):
                link = crowd.enter_context(socket.create_connection(("127.0.0.1", port), timeout=240))
                with suppress(ConnectionError):
                    link.sendall(b"GET / HTTP/1.1\r\n")
            assert client.get("/v1/plans").status_code == 200
            assert "broker_http_connections_cut_off_total 0.0" not in client.get("/metrics").text
    finally:
        server.stop()
    assert [line for line in log.read_text().splitlines() if not line.startswith("serving on")] == []


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
