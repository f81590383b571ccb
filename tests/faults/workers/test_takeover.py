"""When a process of two stops or dies: the other leads, finishes what was begun, and nothing is done twice.

These tests end the servers that the others of this folder share, so they come last.
"""

from __future__ import annotations

import signal
import threading
import time

import httpx
import psycopg
import pytest

from tests.e2e.processes import wait_for
from tests.faults.profile import NIGHTLY
from tests.faults.workers.conftest import HEADERS, Pair

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("several"),
    pytest.mark.skipif(not NIGHTLY, reason="minutes of two servers: TEST_PROFILE=nightly"),
]

PROVIDER = "cudo"


def test_a_stopped_leader_loses_its_seat_and_wakes_up_a_follower(pair: Pair) -> None:
    epoch, old = pair.leader()
    new = 1 - old
    process = pair.servers[old].process
    process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        wait_for("another leader", 60, lambda: pair.leader() == (epoch + 1, new) or None)
        seconds = time.monotonic() - began
    finally:
        process.send_signal(signal.SIGCONT)
    with pair.client(old) as client:
        wait_for("the old leader answers", 30, lambda: client.get("/readyz").status_code == 200 or None)
        wait_for("it follows", 30, lambda: "broker_leading 0.0" in client.get("/metrics").text or None)
    time.sleep(1)
    assert pair.leader() == (epoch + 1, new)
    print(f"a stopped leader was followed after {seconds:.1f} s, epoch {epoch} -> {epoch + 1}; it woke up")


def test_what_a_dead_process_had_begun_under_a_key_is_taken_over_not_repeated(pair: Pair) -> None:
    """The leader dies with an order at the provider, whose answer nobody will hear."""
    epoch, dying = pair.leader()
    heir = 1 - dying
    with pair.client(heir) as client:
        offers = client.get("/v1/offers", params={"provider": PROVIDER, "limit": 200}).json()["items"]
        offer = next(o for o in offers if (o["stock"]["nodes"] or 0) >= 2 and o["tier"] == "on_demand")
    held_before = len(pair.ledger(PROVIDER))
    fault = {"provider": PROVIDER, "operation": "create", "kind": "slow", "count": 1, "seconds": 6}
    pair.control("/_sandbox/faults", **fault)
    wish, key = {"offer_id": offer["offer_id"], "nodes": 1}, {"Idempotency-Key": "k-died"}

    def ask_the_dying() -> None:
        try:
            httpx.post(
                pair.servers[dying].url + "/v1/reservations", json=wish, headers=HEADERS | key, timeout=60
            )
        except httpx.TransportError:
            return

    asking = threading.Thread(target=ask_the_dying)
    asking.start()

    def ordered() -> str | None:
        with psycopg.connect(pair.database_url) as connection:
            row = connection.execute(
                "SELECT u.reservation_id FROM reservation_units u JOIN reservations USING (reservation_id) "
                "WHERE u.state = 'ordering' AND offer_id = %s",
                (offer["offer_id"],),
            ).fetchone()
        return None if row is None else str(row[0])

    reservation_id = wait_for("the order", 30, ordered)
    pair.servers[dying].kill()
    died = time.monotonic()
    asking.join()

    with pair.client(heir, **key) as client:
        early = client.post("/v1/reservations", json=wish)
        assert (early.status_code, early.json()["code"]) == (409, "still-at-work")
        wait_for("another leader", 30, lambda: pair.leader() == (epoch + 1, heir) or None)
        led_after = time.monotonic() - died

        def answered() -> httpx.Response | None:
            answer = client.post("/v1/reservations", json=wish)
            return answer if answer.status_code == 202 else None

        answer = wait_for("the key is taken over", 60, answered)
        taken_after = time.monotonic() - died
        assert answer.json()["reservation_id"] == reservation_id

        pair.control("/_sandbox/clock", advance_s=300)

        def active() -> bool | None:
            row = client.get(f"/v1/reservations/{reservation_id}").json()
            assert row["state"] != "failed", row
            return True if row["state"] == "active" else None

        wait_for("the reservation active", 60, active)
        again = client.post("/v1/reservations", json=wish)
        assert again.headers["Idempotency-Replayed"] == "true"
        assert again.json() == answer.json()
    assert len(pair.ledger(PROVIDER)) == held_before + 1
    print(
        f"a killed leader was followed after {led_after:.1f} s, its key taken over after {taken_after:.1f}: "
        f"1 reservation, {len(pair.ledger(PROVIDER)) - held_before} instance"
    )
