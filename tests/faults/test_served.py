"""A whole server, `broker serve`, is killed at a point, started again, and left alone."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker.crash_points import VARIABLE
from tests.e2e import processes
from tests.faults.profile import NIGHTLY

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("e2e")]

KEY = "broker_live_faults_0123456789abcdef0123456789abcdef"
POINTS = ["call.order.after"]
if NIGHTLY:
    POINTS += ["offer.intend.after", "reservation.order.after", "reservation.held.before"]


def ledger(market_url: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = httpx.get(f"{market_url}/_sandbox/ledger").json()["instances"]
    return [row for row in rows if row["released_at"] is None]


@pytest.mark.parametrize("point", POINTS)
def test_a_server_that_dies_forgets_and_doubles_nothing(tmp_path: Path, point: str) -> None:
    market = processes.start_sandbox(tmp_path)
    database = f"sqlite:///{tmp_path / 'broker.db'}"
    headers = {"Authorization": f"Bearer {KEY}"}
    try:
        doomed = processes.start_server(tmp_path, market.url, database, KEY, **{VARIABLE: point})
        try:
            with httpx.Client(base_url=doomed.url, headers=headers, timeout=60) as client:
                wanted: dict[str, str | int] = {"tier": "on_demand", "provider": "lambda", "limit": 1}
                (offer,) = client.get("/v1/offers", params=wanted).json()["items"]
                with pytest.raises(httpx.TransportError):
                    client.post("/v1/reservations", json={"offer_id": offer["offer_id"], "nodes": 1})
            assert doomed.process.wait(60) == -signal.SIGKILL
        finally:
            doomed.stop()
        server = processes.start_server(tmp_path, market.url, database, KEY)
        try:
            httpx.post(f"{market.url}/_sandbox/clock", json={"advance_s": 600}).raise_for_status()
            with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:

                def active() -> dict[str, Any] | None:
                    (row,) = client.get("/v1/reservations").json()["items"]
                    return row if row["state"] == "active" else None

                row = processes.wait_for("the reservation to be finished", 90, active)
                live = ledger(market.url)
                assert [found["instance_id"] for found in live] == row["provider_references"]
                assert len(live) == 1
        finally:
            server.stop()
    finally:
        market.stop()
