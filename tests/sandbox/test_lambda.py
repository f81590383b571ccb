from typing import Any

import pytest

from tests.sandbox.conftest import Bench

API = "/lambda/api/v1"
SKU, REGION = "gpu_8x_h100_sxm5", "us-south-2"


def launch(name: str = "broker-1", **more: Any) -> dict[str, Any]:
    return {
        "region_name": REGION,
        "instance_type_name": SKU,
        "ssh_key_names": ["k"],
        "name": name,
    } | more


async def test_types_carry_recorded_cents_and_regions_with_stock(bench: Bench) -> None:
    data = (await bench.json("GET", f"{API}/instance-types"))["data"]
    assert data[SKU]["instance_type"]["price_cents_per_hour"] == 3192
    assert data[SKU]["instance_type"]["gpu_description"] == "H100 (80 GB SXM5)"
    assert REGION in [region["name"] for region in data[SKU]["regions_with_capacity_available"]]


async def test_types_that_are_sold_out_name_no_region(bench: Bench) -> None:
    data = (await bench.json("GET", f"{API}/instance-types"))["data"]
    sold_out = [name for name, row in data.items() if not row["regions_with_capacity_available"]]
    assert "gpu_8x_b200_sxm6" in sold_out
    assert len(sold_out) >= 3


async def test_a_launch_boots_bills_by_the_minute_and_ends(bench: Bench) -> None:
    answer = await bench.json("POST", f"{API}/instance-operations/launch", launch())
    (instance_id,) = answer["data"]["instance_ids"]
    row = (await bench.json("GET", f"{API}/instances/{instance_id}"))["data"]
    assert (row["status"], row["name"], "ip" in row) == ("booting", "broker-1", False)
    await bench.advance(90)
    row = (await bench.json("GET", f"{API}/instances"))["data"][0]
    assert (row["id"], row["status"]) == (instance_id, "active")
    body = {"instance_ids": [instance_id]}
    ended = await bench.json("POST", f"{API}/instance-operations/terminate", body)
    assert ended["data"]["terminated_instances"][0]["status"] == "terminating"
    await bench.advance(5)
    again = await bench.call("POST", f"{API}/instance-operations/terminate", body)
    assert (again.status_code, again.json()["error"]["code"]) == (404, "global/object-does-not-exist")
    (entry,) = await bench.ledger(instance_id)
    assert entry["released_at"] is not None
    assert entry["billed_usd"] == "1.064000"  # 2 minutes of 31.92
    assert (entry["tag"], entry["sku"], entry["region"], entry["nodes"]) == ("broker-1", SKU, REGION, 1)


async def test_stock_goes_down_to_refusal_and_comes_back(bench: Bench) -> None:
    await bench.stock("lambda", SKU, 1, REGION)
    first = (await bench.json("POST", f"{API}/instance-operations/launch", launch()))["data"]
    refused = await bench.call("POST", f"{API}/instance-operations/launch", launch("broker-2"))
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "instance-operations/launch/insufficient-capacity"
    regions = (await bench.json("GET", f"{API}/instance-types"))["data"][SKU]
    assert REGION not in [region["name"] for region in regions["regions_with_capacity_available"]]
    await bench.json("POST", f"{API}/instance-operations/terminate", first)
    await bench.json("POST", f"{API}/instance-operations/launch", launch("broker-3"))


@pytest.mark.parametrize(
    "change",
    [
        {"ssh_key_names": []},
        {"ssh_key_names": ["a", "b"]},
        {"instance_type_name": "gpu_9x"},
        {"region_name": "moon-1"},
        {"name": "n" * 65},
        {"quantity": 2},
    ],
)
async def test_a_bad_launch_is_refused_and_buys_nothing(bench: Bench, change: dict[str, Any]) -> None:
    answer = await bench.call("POST", f"{API}/instance-operations/launch", launch(**change))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "global/invalid-parameters")
    assert await bench.ledger() == []


async def test_calls_without_a_key_are_refused(bench: Bench) -> None:
    none = await bench.client.get(f"{API}/instances", headers={"Authorization": ""})
    assert (none.status_code, none.json()["error"]["code"]) == (401, "global/invalid-api-key")


async def test_instances_say_which_actions_are_open(bench: Bench) -> None:
    """Clients that are generated from the OpenAPI file require them."""
    made = await bench.json("POST", f"{API}/instance-operations/launch", launch())
    path = f"{API}/instances/{made['data']['instance_ids'][0]}"
    booting = (await bench.json("GET", path))["data"]["actions"]
    assert set(booting) == {"migrate", "rebuild", "restart", "cold_reboot", "terminate"}
    assert booting["terminate"] == {"available": True}
    assert booting["restart"]["reason_code"] == "vm-has-not-launched"
    await bench.advance(3600)
    active = (await bench.json("GET", path))["data"]["actions"]
    assert all(action == {"available": True} for action in active.values())
