from typing import Any

from tests.sandbox.conftest import Bench

API = "/latitude"
SKU = "g3-h100-small"


def order(**more: Any) -> dict[str, Any]:
    attributes = {
        "project": "broker",
        "plan": SKU,
        "site": "NYC",
        "operating_system": "ubuntu_24_04_x64_lts",
        "hostname": "broker-1",
    }
    return {"data": {"type": "servers", "attributes": attributes | more}}


async def create(bench: Bench, **more: Any) -> str:
    return str((await bench.json("POST", f"{API}/servers", order(**more)))["data"]["id"])


async def test_plans_have_prices_by_region_and_stock_by_site(bench: Bench) -> None:
    answer = await bench.call("GET", f"{API}/plans?filter[gpu]=true")
    assert answer.headers["content-type"] == "application/vnd.api+json"
    plans = {row["attributes"]["slug"]: row["attributes"] for row in answer.json()["data"]}
    assert "c2-small-x86" not in plans
    (b300,) = plans["g4-b300-large"]["regions"]
    assert b300["pricing"]["USD"] == {"hour": 128.0, "month": 46720.0, "year": None}
    assert (b300["stock_level"], b300["locations"]["in_stock"]) == ("unavailable", [])
    britain = next(r for r in plans["g4-rtx6kpro-large"]["regions"] if r["name"] == "United Kingdom")
    assert britain["pricing"]["USD"]["hour"] is None
    home = next(r for r in plans[SKU]["regions"] if r["name"] == "United States")
    assert home["pricing"]["USD"]["month"] == 1230.0
    assert set(home["locations"]["in_stock"]) == set(home["locations"]["in_stock_count"])
    every = await bench.json("GET", f"{API}/plans")
    assert {"c2-small-x86", "g3-q9000-large"} <= {row["attributes"]["slug"] for row in every["data"]}


async def test_a_server_deploys_runs_and_is_gone_once_deleted(bench: Bench) -> None:
    await bench.stock("latitude", SKU, 1, "NYC")
    server = await create(bench)
    full = await bench.call("POST", f"{API}/servers", order(hostname="broker-2"))
    assert (full.status_code, full.json()["errors"][0]["code"]) == (422, "SERVERS_OUT_OF_STOCK")
    seen = (await bench.json("GET", f"{API}/servers/{server}"))["data"]["attributes"]
    assert (seen["status"], seen["plan"]["billing"]) == ("starting_deploy", "hourly")
    await bench.advance(3601)
    (row,) = (await bench.json("GET", f"{API}/servers"))["data"]
    assert (row["id"], row["attributes"]["status"]) == (server, "on")
    assert (await bench.call("DELETE", f"{API}/servers/{server}")).status_code == 204
    for method in ("GET", "DELETE"):
        gone = await bench.call(method, f"{API}/servers/{server}")
        assert (gone.status_code, gone.json()["errors"][0]["code"]) == (404, "not_found")
    (entry,) = await bench.ledger(server)
    assert (entry["tag"], entry["billed_usd"]) == ("broker-1", "6.740000")  # two hours begun at 3.37


async def test_a_month_is_owed_whole_and_ends_by_schedule(bench: Bench) -> None:
    await bench.stock("latitude", SKU, 1, "NYC")
    server = await create(bench, billing="monthly")
    refused = await bench.call("DELETE", f"{API}/servers/{server}")
    assert refused.status_code == 422
    await bench.json("POST", f"{API}/servers/{server}/schedule_deletion")
    seen = (await bench.json("GET", f"{API}/servers/{server}"))["data"]["attributes"]
    assert seen["scheduled_deletion_at"] == "2026-12-23T19:00:00Z"  # 730 hours after the start
    await bench.advance(730 * 3600)
    assert (await bench.call("GET", f"{API}/servers/{server}")).status_code == 404
    assert (await bench.ledger(server))[0]["billed_usd"] == "1230.000000"


async def test_servers_come_in_pages(bench: Bench) -> None:
    await bench.stock("latitude", SKU, 3, "NYC")
    made = [await create(bench, hostname=f"broker-{n}") for n in range(3)]
    pages = [
        (await bench.json("GET", f"{API}/servers?page[size]=2&page[number]={n}"))["data"] for n in (1, 2, 3)
    ]
    assert [[row["id"] for row in page] for page in pages] == [made[:2], made[2:], []]


async def test_capacity_that_is_lost_and_bodies_that_are_wrong(bench: Bench) -> None:
    wish = {"provider": "latitude", "operation": "create", "kind": "async_out_of_capacity"}
    await bench.json("POST", "/_sandbox/faults", wish)
    await bench.stock("latitude", SKU, 2, "NYC")
    server = await create(bench)
    await bench.advance(60)
    seen = (await bench.json("GET", f"{API}/servers/{server}"))["data"]["attributes"]
    assert seen["status"] == "failed_deployment"
    for wrong in ({"plan": "nope"}, {"site": "NOWHERE"}, {"hostname": ""}, {"billing": "yearly"}):
        answer = await bench.call("POST", f"{API}/servers", order(**wrong))
        assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, "VALIDATION_ERROR")
    unsigned = await bench.call("GET", f"{API}/plans", headers={"Authorization": ""})
    assert unsigned.status_code == 401
