from decimal import Decimal
from typing import Any

from tests.sandbox.conftest import Bench

API = "/tensordock"


async def host(bench: Bench) -> dict[str, Any]:
    """The first host, with four GPUs of its type free."""
    first = (await hosts(bench))[0]
    await bench.stock(
        "tensordock", first["available_resources"]["gpus"][0]["v0Name"], 4, first["location"]["city"]
    )
    return (await hosts(bench))[0]


async def hosts(bench: Bench) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await bench.json("GET", f"{API}/hostnodes"))["data"]["hostnodes"]
    return found


def order(on: dict[str, Any], gpus: int = 2, **more: Any) -> dict[str, Any]:
    word = on["available_resources"]["gpus"][0]["v0Name"]
    attributes = {
        "name": "broker-1",
        "type": "virtualmachine",
        "image": "ubuntu2404",
        "hostnode_id": on["id"],
        "useDedicatedIp": True,
        "ssh_key": "ssh-ed25519 A",
        "resources": {
            "vcpu_count": 8 * gpus,
            "ram_gb": 32 * gpus,
            "storage_gb": 100,
            "gpus": {word: {"count": gpus}},
        },
    }
    return {"data": {"type": "virtualmachine", "attributes": attributes | more}}


async def test_hosts_count_their_gpus(bench: Bench) -> None:
    one = await host(bench)
    assert one["available_resources"]["gpus"][0]["availableCount"] == 4
    rows = await hosts(bench)
    assert any(not row["available_resources"]["gpus"] for row in rows)
    assert any(gpu["price_per_hr"] == 0 for row in rows for gpu in row["available_resources"]["gpus"])


async def test_a_machine_runs_is_billed_by_the_second_and_goes(bench: Bench) -> None:
    one = await host(bench)
    made = (await bench.json("POST", f"{API}/instances", order(one)))["data"]
    assert made["status"] == "queued"
    full = await bench.call("POST", f"{API}/instances", order(one, 3, name="broker-2"))
    assert (full.status_code, full.json()) == (200, {"error": "Hostnode unavailable", "status": 400})
    await bench.advance(3600)
    (row,) = (await bench.json("GET", f"{API}/instances"))["data"]["instances"]
    assert (row["id"], row["name"], row["status"]) == (made["id"], "broker-1", "running")
    assert await bench.json("DELETE", f"{API}/instances/{made['id']}") == {"success": True}
    again = await bench.json("DELETE", f"{API}/instances/{made['id']}")
    assert again["error"] == "Instance already deleted"
    await bench.advance(2)
    assert (await bench.call("GET", f"{API}/instances/{made['id']}")).status_code == 404
    (entry,) = await bench.ledger(made["id"])
    rate = one["available_resources"]["gpus"][0]["price_per_hr"]
    hour = 2 * Decimal(str(rate)) + 16 * Decimal("0.003") + 64 * Decimal("0.002") + Decimal("0.005")
    assert abs(Decimal(entry["billed_usd"]) - hour) < Decimal("0.01")


async def test_wrong_orders_come_with_http_200(bench: Bench) -> None:
    one = await host(bench)
    wrong: tuple[dict[str, Any], ...] = (
        {"image": ""},
        {"ssh_key": ""},
        {"ssh_key_id": "key-1"},
        {"useDedicatedIp": False},
        {"hostnode_id": "nope"},
        {"resources": {"vcpu_count": 1, "ram_gb": 1, "storage_gb": 1, "gpus": {"x": {"count": 1}}}},
        {"resources": {"gpus": {}}},
    )
    for each in wrong:
        answer = await bench.call("POST", f"{API}/instances", order(one, 1, **each))
        assert (answer.status_code, answer.json()["status"]) == (200, 400), each
    unsigned = await bench.call("GET", f"{API}/instances", headers={"Authorization": ""})
    assert (unsigned.status_code, unsigned.text) == (401, "Unauthorized")


async def test_capacity_that_is_lost_shows_afterwards(bench: Bench) -> None:
    wish = {"provider": "tensordock", "operation": "create", "kind": "async_out_of_capacity"}
    await bench.json("POST", "/_sandbox/faults", wish)
    made = (await bench.json("POST", f"{API}/instances", order(await host(bench))))["data"]
    await bench.advance(60)
    assert (await bench.json("GET", f"{API}/instances/{made['id']}"))["data"]["status"] == "error"
