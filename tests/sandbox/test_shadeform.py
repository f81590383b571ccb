from typing import Any

from tests.sandbox.conftest import Bench

API = "/shadeform/v1"
KEY = {"X-API-KEY": "any-key"}
SKU, REGION = "lambdalabs_H100-sxm5x8", "saltlakecity-usa-1"


async def read(bench: Bench, path: str) -> Any:
    return await bench.json("GET", f"{API}{path}", headers=KEY)


async def create(bench: Bench, **more: Any) -> Any:
    cloud, _, shade_type = SKU.partition("_")
    body = {
        "cloud": cloud,
        "region": REGION,
        "shade_instance_type": shade_type,
        "shade_cloud": True,
        "name": "by-hand",
        "tags": ["broker-1"],
    }
    return await bench.call("POST", f"{API}/instances/create", body | more, headers=KEY)


async def test_types_have_cents_of_the_instance_and_say_where_they_are(bench: Bench) -> None:
    await bench.stock("shadeform", SKU, 0)
    await bench.stock("shadeform", SKU, 1, REGION)
    rows = (await read(bench, "/instances/types"))["instance_types"]
    (row,) = [row for row in rows if f"{row['cloud']}_{row['shade_instance_type']}" == SKU]
    assert (row["hourly_price"], row["configuration"]["interconnect"]) == (3192, "sxm5")
    assert [place["region"] for place in row["availability"] if place["available"]] == [REGION]


async def test_an_instance_comes_up_and_goes(bench: Bench) -> None:
    await bench.stock("shadeform", SKU, 1)
    instance_id = (await create(bench)).json()["id"]
    sold_out = await create(bench)
    assert (sold_out.status_code, sold_out.json()["error_code"]) == (409, "OUT_OF_STOCK")
    info = f"/instances/{instance_id}/info"
    assert (await read(bench, info))["status"] in {"creating", "pending_provider", "pending"}
    await bench.advance(5)
    assert (await read(bench, info))["status"] == "active"
    (listed,) = (await read(bench, "/instances"))["instances"]
    assert (listed["tags"], listed["hourly_price"]) == (["broker-1"], 3192)
    gone = await bench.call("POST", f"{API}/instances/{instance_id}/delete", headers=KEY)
    assert (gone.status_code, gone.content) == (200, b"")
    assert (await read(bench, info))["status"] == "deleting"
    await bench.advance(2)
    assert (await read(bench, "/instances"))["instances"] == []
    for method, path in (("GET", info), ("POST", f"/instances/{instance_id}/delete")):
        assert (await bench.call(method, f"{API}{path}", headers=KEY)).status_code == 404
    (entry,) = await bench.ledger(instance_id)
    assert (entry["tag"], entry["billed_usd"]) == ("broker-1", "31.920000")


async def test_bad_orders_and_missing_keys_are_refused_in_words(bench: Bench) -> None:
    for change in ({"name": ""}, {"shade_instance_type": "H900"}, {"region": "paris-france-1"}):
        answer = await create(bench, **change)
        assert (answer.status_code, answer.json()["error_code"]) == (400, "INVALID_REQUEST")
    bare = await bench.call("GET", f"{API}/instances")
    assert (bare.status_code, bare.json()["error_code"]) == (401, "UNAUTHORIZED")


async def test_capacity_lost_after_the_order_shows_as_error(bench: Bench) -> None:
    await bench.stock("shadeform", SKU, 1)
    fault = {"provider": "shadeform", "operation": "create", "kind": "async_out_of_capacity"}
    await bench.json("POST", "/_sandbox/faults", fault)
    instance_id = (await create(bench)).json()["id"]
    await bench.advance(5)
    found = await read(bench, f"/instances/{instance_id}/info")
    assert (found["status"], bool(found["status_details"])) == ("error", True)
    (entry,) = await bench.ledger(instance_id)
    assert (entry["failed"], entry["billed_usd"]) == (True, "0")
