from typing import Any

from tests.sandbox.conftest import Bench

API = "/verda/v1"
SKU = "1H100.80S.32V"


def order(**more: Any) -> dict[str, Any]:
    return {
        "instance_type": SKU,
        "image": "ubuntu-24.04",
        "hostname": "broker-1",
        "description": "d",
        "location_code": "FIN-02",
    } | more


async def create(bench: Bench, **more: Any) -> str:
    answer = await bench.call("POST", f"{API}/instances", order(**more))
    assert answer.headers["content-type"].startswith("text/plain")
    return answer.text


async def discontinue(bench: Bench, *ids: str) -> Any:
    return await bench.call("PUT", f"{API}/instances", {"id": list(ids), "action": "delete"})


async def test_types_have_string_prices_and_total_memory(bench: Bench) -> None:
    rows = {
        row["instance_type"]: row for row in await bench.json("GET", f"{API}/instance-types?currency=usd")
    }
    assert (rows[SKU]["price_per_hour"], rows[SKU]["spot_price"]) == ("2.29", "0.8015")
    assert rows["2H200.141S.88V"]["gpu_memory"]["size_in_gigabytes"] == 282
    assert rows["8B200.240V"]["price_per_hour"] == "39.12"  # 8 x the recorded single GPU


async def test_availability_is_by_location(bench: Bench) -> None:
    await bench.stock("verda", SKU, 3, "FIN-02")
    rows = await bench.json("GET", f"{API}/instance-availability?is_spot=false")
    assert SKU in next(row for row in rows if row["location_code"] == "FIN-02")["availabilities"]
    await bench.stock("verda", SKU, 0)
    rows = await bench.json("GET", f"{API}/instance-availability?is_spot=true")
    assert not any(SKU in row["availabilities"] for row in rows)


async def test_an_instance_boots_refuses_deletion_until_it_runs_and_ends(bench: Bench) -> None:
    await bench.stock("verda", SKU, 1)
    instance_id = await create(bench)
    early = await discontinue(bench, instance_id)
    assert early.json()["message"] == "Can't discontinue a provisioning instance"
    await bench.advance(601)
    assert (await bench.json("GET", f"{API}/instances/{instance_id}"))["status"] == "running"
    assert (await discontinue(bench, "nope")).json()["message"] == "Invalid instance id"
    assert (await discontinue(bench, instance_id)).status_code == 204
    await bench.advance(2)
    assert (await bench.json("GET", f"{API}/instances/{instance_id}"))["status"] == "discontinued"
    late = await discontinue(bench, instance_id)
    assert (late.status_code, late.json()["message"]) == (400, "Can't discontinue a discontinued instance")
    (entry,) = await bench.ledger(instance_id)
    assert entry["billed_usd"] == "0.767900"  # two slices of ten minutes at 2.29 and 50 GB x 0.2 / 730


async def test_a_system_volume_that_a_deletion_does_not_name_is_billed_on(bench: Bench) -> None:
    await bench.stock("verda", SKU, 2)
    disk = {"name": "root", "size": 730}
    kept, gone = await create(bench, os_volume=disk), await create(bench, os_volume=disk)
    await bench.advance(601)
    row = await bench.json("GET", f"{API}/instances/{gone}")
    wish = {"id": gone, "action": "delete", "volume_ids": [row["os_volume_id"]], "delete_permanently": True}
    await bench.call("PUT", f"{API}/instances", wish)
    await discontinue(bench, kept)
    (left,) = await bench.json("GET", f"{API}/volumes")
    assert (left["status"], left["base_hourly_cost"]) == ("detached", 0.2)  # 730 GB x 0.2 / 730
    await bench.advance(7200)
    await bench.call("DELETE", f"{API}/volumes/{left['id']}", {"is_permanent": True})
    await bench.advance(7200)
    assert await bench.json("GET", f"{API}/volumes") == []
    (entry,) = await bench.ledger(left["id"])
    assert 0.4 <= float(entry["billed_usd"]) < 0.401  # two hours; nothing once it is deleted


async def test_without_stock_the_order_is_taken_and_fails_afterwards(bench: Bench) -> None:
    await bench.stock("verda", SKU, 0)
    instance_id = await create(bench)
    assert (await bench.json("GET", f"{API}/instances/{instance_id}"))["status"] == "ordered"
    await bench.advance(3)
    (row,) = await bench.json("GET", f"{API}/instances")
    assert row["status"] == "no_capacity"
    (entry,) = await bench.ledger(instance_id)
    assert (entry["failed"], entry["billed_usd"]) == (True, "0")


async def test_tokens_expire_by_the_sandbox_clock(bench: Bench) -> None:
    wanted = {"grant_type": "client_credentials", "client_id": "i", "client_secret": "s"}
    token = await bench.json("POST", f"{API}/oauth2/token", wanted)
    bearer = {"Authorization": f"Bearer {token['access_token']}"}
    assert (await bench.client.get(f"{API}/instances", headers=bearer)).status_code == 200
    await bench.advance(token["expires_in"] + 1)
    refused = await bench.client.get(f"{API}/instances", headers=bearer)
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized_request")
    bad = await bench.call("POST", f"{API}/oauth2/token", wanted | {"client_secret": ""})
    assert bad.status_code == 401
