"""What was bought survives a kill; ledger arithmetic."""

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.basics.errors import Conflict
from providers.sandbox import create_sandbox, start_in_background
from providers.sandbox.ledger import Entry, Ledger, Tariff
from providers.sandbox.server import listen
from providers.sandbox.store import Store
from tests.depth import examples

START = datetime(2026, 11, 23, tzinfo=UTC)
SERVE = """
import sys
from pathlib import Path
from providers.sandbox import run
run(int(sys.argv[1]), 3, Path(sys.argv[2]))
"""


def free_port() -> int:
    with listen(0) as bound:
        return int(bound.getsockname()[1])


def serve(port: int, state: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", SERVE, str(port), str(state)])
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            httpx.get(f"http://127.0.0.1:{port}/_sandbox/clock", timeout=1)
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return process
    process.kill()
    process.wait()
    raise AssertionError("the sandbox did not start")


def test_everything_survives_sigkill(tmp_path: Path) -> None:
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    headers = {"Authorization": "Bearer k"}
    body = {
        "region_name": "us-south-2",
        "instance_type_name": "gpu_8x_h100_sxm5",
        "ssh_key_names": ["k"],
        "name": "broker-x",
    }
    process = serve(port, tmp_path)
    try:
        httpx.post(f"{base}/_sandbox/clock", json={"advance_s": 86400})
        market = {"provider": "lambda", "sku": "gpu_8x_h100_sxm5", "price_usd": "9.99"}
        httpx.post(f"{base}/_sandbox/market", json=market)
        fault = {"provider": "lambda", "operation": "create", "kind": "http_500"}
        launch = f"{base}/lambda/api/v1/instance-operations/launch"
        made = httpx.post(launch, json=body, headers=headers)
        httpx.post(f"{base}/_sandbox/faults", json=fault)
        before = httpx.get(f"{base}/_sandbox/ledger").json()
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    process = serve(port, tmp_path)
    try:
        after = httpx.get(f"{base}/_sandbox/ledger").json()
        (entry,) = after["instances"]
        assert [entry["instance_id"]] == made.json()["data"]["instance_ids"]
        assert entry["tag"] == "broker-x"
        assert after["now"] >= before["now"]
        types = httpx.get(f"{base}/lambda/api/v1/instance-types", headers=headers).json()["data"]
        assert types["gpu_8x_h100_sxm5"]["instance_type"]["price_cents_per_hour"] == 999
        assert httpx.post(launch, json=body, headers=headers).status_code == 500
        again = httpx.post(launch, json=body, headers=headers).json()["data"]["instance_ids"]
        assert again != [entry["instance_id"]]
    finally:
        process.kill()
        process.wait()


def test_a_state_of_another_seed_and_a_taken_port_are_refused(tmp_path: Path) -> None:
    create_sandbox(1, tmp_path).close()
    with pytest.raises(Conflict, match="seed 1, not 2"):
        create_sandbox(2, tmp_path)
    with listen(0) as taken:
        taken.listen()
        with pytest.raises(Conflict, match="cannot listen"):
            start_in_background(taken.getsockname()[1], 1)


def test_ids_of_two_sandboxes_differ() -> None:
    first, second = create_sandbox(1), create_sandbox(1)
    assert first.state.new_id("i", 16) != second.state.new_id("i", 16)
    first.close()
    second.close()


def entry(**more: object) -> Entry:
    values: dict[str, object] = {
        "provider": "p",
        "instance_id": "i",
        "tag": "t",
        "sku": "s",
        "region": "r",
        "zone": "",
        "tier": "on_demand",
        "nodes": 2,
        "units": 2,
        "stock_key": "k",
        "created_at": START,
        "starts_at": START,
        "tariff": Tariff(Decimal("3.60"), 60),
    }
    return Entry(**(values | more))  # type: ignore[arg-type]


def test_an_increment_begun_is_owed_whole() -> None:
    held = entry(released_at=START + timedelta(seconds=61))
    assert held.billed_usd(START + timedelta(days=1)) == Decimal("0.12")
    assert entry(failed_at=START + timedelta(seconds=2)).billed_usd(START + timedelta(days=1)) == 0


def test_an_upfront_fee_is_owed_before_the_start_and_not_the_hours() -> None:
    later = START + timedelta(days=3)
    block = entry(starts_at=later, ends_at=later + timedelta(days=1), tariff=Tariff(upfront_usd=Decimal(100)))
    assert block.billed_usd(START) == block.billed_usd(later + timedelta(days=9)) == 100
    waiting = entry(starts_at=later, tariff=Tariff(Decimal(5), 60, minimum_s=60))
    assert waiting.billed_usd(START) == 0


@settings(max_examples=examples(25), derandomize=True, deadline=None)
@given(
    usd=st.decimals(0, 500, places=4),
    increment_s=st.sampled_from([1, 60, 600, 3600]),
    minimum_s=st.sampled_from([0, 60]),
    held_s=st.integers(0, 10**6),
    more_s=st.integers(0, 10**5),
)
def test_bills_grow_with_time_and_never_fall_short(
    usd: Decimal, increment_s: int, minimum_s: int, held_s: int, more_s: int
) -> None:
    tariff = Tariff(usd, increment_s, minimum_s)
    billed = tariff.billed_usd(timedelta(seconds=held_s))
    assert billed <= tariff.billed_usd(timedelta(seconds=held_s + more_s))
    assert billed >= (usd * held_s / 3600).quantize(Decimal("0.000001")) - Decimal("0.000001")
    most = usd * (max(held_s, minimum_s) + increment_s) / 3600
    assert billed <= most + Decimal("0.000001")


@settings(max_examples=examples(20), derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 100), st.integers(1, 100)), max_size=8))
def test_stock_held_is_what_is_live(lives: list[tuple[int, int, int]]) -> None:
    store = Store(None)
    ledger = Ledger(store)
    for number, (units, start_s, length_s) in enumerate(lives):
        at = START + timedelta(seconds=start_s)
        ends = at + timedelta(seconds=length_s)
        made = entry(instance_id=str(number), units=units, created_at=at, starts_at=at, ends_at=ends)
        assert ledger.write(made) == ledger.find("p", str(number))
    now = START + timedelta(seconds=50)
    live = sum(units for units, start_s, length_s in lives if start_s + length_s > 50)
    assert ledger.held_units("p", now)["k"] == live
    assert [made.instance_id for made in ledger.entries()] == [str(i) for i in range(len(lives))]
    store.close()
