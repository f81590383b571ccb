"""A server that is told to stop ends as a program that is done, and has nothing to tell."""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import (
    ROOT,
    clean_environment,
    free_port,
    start,
    start_sandbox,
    start_server,
    wait_for,
)

KEY = "a-key-of-forty-characters-for-this-test-"
EXAMPLE = ROOT / "fixtures" / "examples" / "pretrain-then-serve.yaml"


def test_a_server_at_work_ends_cleanly(tmp_path: Path) -> None:
    """It polls, reconciles, plans in a process of its own, and a reader follows the plan."""
    market = start_sandbox(tmp_path)
    database = f"sqlite:///{tmp_path / 'broker.db'}"
    every = {"BROKER_POLL_SECONDS": "1", "BROKER_RECONCILE_SECONDS": "1", "BROKER_SOLVER_EXECUTOR": "process"}
    server = start_server(tmp_path, market.url, database, KEY, **every)
    heard: list[str] = []
    try:
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/yaml"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
            plan_id = client.post("/v1/plans", content=EXAMPLE.read_bytes()).json()["plan_id"]

            def follow() -> None:
                with client.stream("GET", f"/v1/plans/{plan_id}/events") as stream:
                    heard.extend(stream.iter_lines())

            reader = threading.Thread(target=follow)
            reader.start()
            wait_for("the first line of its progress", 60, lambda: heard or None)
            time.sleep(1.0)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(150) == 0
            reader.join(10)
            assert not reader.is_alive(), "the stream ended with the server"
    finally:
        server.stop()
        market.stop()
    lines = server.log.read_text().splitlines()
    assert [line for line in lines if not line.startswith("serving on")] == []


def test_who_balances_the_load_sees_the_end_before_anybody_is_refused(tmp_path: Path) -> None:
    """SIGTERM: not ready any more, but served; a second signal does not wait."""
    market = start_sandbox(tmp_path)
    database = f"sqlite:///{tmp_path / 'broker.db'}"
    server = start_server(tmp_path, market.url, database, KEY, BROKER_DRAIN_SECONDS="600")
    try:
        server.process.send_signal(signal.SIGTERM)
        wait_for("readiness to end", 60, lambda: httpx.get(server.url + "/readyz").status_code == 503 or None)
        ready = httpx.get(server.url + "/readyz").json()
        assert [name for name, holds in ready.items() if not holds] == ["serving"]
        assert httpx.get(server.url + "/v1/offers", headers={"Authorization": f"Bearer {KEY}"}).is_success
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(150) == 0
    finally:
        server.stop()
        market.stop()


def test_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    market = start_sandbox(tmp_path)
    database = f"sqlite:///{tmp_path / 'broker.db'}"
    server = start_server(tmp_path, market.url, database, KEY, BROKER_DRAIN_SECONDS="600")
    try:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(150) == 0
    finally:
        server.stop()
        market.stop()


@pytest.mark.parametrize("start_number", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 6))])
def test_a_server_that_still_derives_the_api_document_ends_cleanly(tmp_path: Path, start_number: int) -> None:
    """A thread that is cut off within native code hangs or aborts the process in about every second start."""
    port = free_port()
    environment = clean_environment(
        BROKER_DATABASE_URL=f"sqlite:///{tmp_path / 'broker.db'}",
        BROKER_ADMIN_KEY=KEY,
        BROKER_PORT=str(port),
        PYTHONPATH=str(ROOT),
    )
    program = (sys.executable, "-m", "tests.logs.slow_document")
    log = tmp_path / "server.log"
    server = start(["serve"], f"http://127.0.0.1:{port}", "/healthz", log, environment, program=program)
    try:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(150) == 0
    finally:
        server.stop()
    assert [line for line in log.read_text().splitlines() if not line.startswith("serving on")] == []
