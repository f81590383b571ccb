from datetime import datetime, timedelta
from typing import Any

from providers.sandbox.sellers.mithril.market import type_fid
from tests.sandbox.conftest import START, Bench

API = "/mithril/v2"
REGION = "us-central2-a"
SKU = "h100-80gb.sxm.8x"
FID = type_fid(SKU, REGION)
SPEC: dict[str, list[str]] = {"volumes": [], "ssh_keys": []}
ORDER: dict[str, Any] = {
    "project": "proj_1",
    "region": REGION,
    "instance_type": FID,
    "instance_quantity": 1,
    "name": "broker-1",
    "launch_specification": SPEC,
}
PLACE = f"project=proj_1&instance_type={FID}&region={REGION}"


def zulu(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def window(start: datetime, hours: float, **more: Any) -> dict[str, Any]:
    times = {"start_time": zulu(start), "end_time": zulu(start + timedelta(hours=hours))}
    return {**ORDER, **times, **more}


async def set_stock(bench: Bench, tier: str, stock: int) -> None:
    body = {"provider": "mithril", "sku": SKU, "region": REGION, "tier": tier, "stock": stock}
    await bench.json("POST", "/_sandbox/market", body)


async def test_auctions_have_dollar_strings_and_types_a_fid_for_each_region(bench: Bench) -> None:
    types = await bench.json("GET", f"{API}/instance-types")
    assert len({row["fid"] for row in types if row["name"] == SKU}) > 3
    auctions = await bench.json("GET", f"{API}/spot/availability")
    found = {(row["instance_type"], row["region"]): row for row in auctions}[FID, REGION]
    assert found["last_instance_price"] == "$8.00"  # the recorded lowest bid
    prices = await bench.json("GET", f"{API}/pricing/current?instance_type={FID}&region={REGION}")
    assert prices["reserved_price_cents"] == 2400


async def test_a_bid_is_allocated_after_a_while_and_can_be_cancelled_once(bench: Bench) -> None:
    await set_stock(bench, "spot", 1)
    made = await bench.call("POST", f"{API}/spot/bids", {**ORDER, "limit_price": "$9.00"})
    assert (made.status_code, made.json()["status"]) == (201, "Open")
    fid = made.json()["fid"]
    await bench.advance(3600)
    assert (await bench.json("GET", f"{API}/spot/bids/{fid}"))["status"] == "Allocated"
    assert (await bench.call("DELETE", f"{API}/spot/bids/{fid}")).status_code == 204
    assert (await bench.call("DELETE", f"{API}/spot/bids/{fid}")).status_code == 404
    (entry,) = await bench.ledger(fid)
    assert 8 <= float(entry["billed_usd"]) < 8.01


async def test_a_bid_below_the_price_stays_open_and_free_of_charge(bench: Bench) -> None:
    await set_stock(bench, "spot", 1)
    made = await bench.json("POST", f"{API}/spot/bids", {**ORDER, "limit_price": "$7.99"})
    await bench.advance(3600)
    assert (await bench.json("GET", f"{API}/spot/bids/{made['fid']}"))["status"] == "Open"
    assert (await bench.ledger(made["fid"]))[0]["billed_usd"] == "0.000000"


async def test_a_reservation_takes_its_nodes_out_of_the_slots(bench: Bench) -> None:
    await set_stock(bench, "window", 4)
    start = START + timedelta(days=2)
    made = await bench.call("POST", f"{API}/reservation", window(start, 24, instance_quantity=3))
    row = made.json()
    assert (made.status_code, row["status"], row["total_price"]) == (201, "Pending", "$1728.00")
    week = f"earliest_start_time={zulu(START)}&latest_end_time={zulu(START + timedelta(days=7))}"
    asked = f"{PLACE}&mode=slots&{week}"
    slots = await bench.json("GET", f"{API}/reservation/availability?{asked}")
    assert [slot["quantity"] for slot in slots] == [4, 1, 4]
    assert slots[1]["start_time"] == row["start_time"]
    refused = await bench.call("POST", f"{API}/reservation", window(start, 24, instance_quantity=2))
    assert (refused.status_code, "apacity" in refused.json()["detail"]) == (400, True)
    await bench.advance(2 * 86400 + 60)
    listed = await bench.json("GET", f"{API}/reservation?project=proj_1")
    assert [held["status"] for held in listed["data"]] == ["Active"]
    await bench.advance(86400)
    (entry,) = await bench.ledger(row["fid"])
    assert (entry["nodes"], entry["billed_usd"]) == (3, "1728.000000")
    assert entry["released_at"] is not None


async def test_what_is_wrong_is_named_as_fastapi_does(bench: Bench) -> None:
    short = await bench.call("POST", f"{API}/reservation", window(START + timedelta(days=1), 2))
    assert (short.status_code, short.json()["detail"][0]["loc"]) == (422, ["body", "end_time"])
    priceless = await bench.call("POST", f"{API}/spot/bids", {**ORDER, "limit_price": "8.00"})
    assert (priceless.status_code, priceless.json()["detail"][0]["loc"]) == (422, ["body", "limit_price"])
    keyless = await bench.client.get(f"{API}/instance-types", headers={"Authorization": ""})
    assert (keyless.status_code, keyless.json()) == (401, {"detail": "Not authenticated"})


async def test_lists_of_bids_have_pages(bench: Bench) -> None:
    for number in range(3):
        body = {**ORDER, "limit_price": "$1.00", "name": f"broker-{number}"}
        await bench.json("POST", f"{API}/spot/bids", body)
    first = await bench.json("GET", f"{API}/spot/bids?limit=2")
    second = await bench.json("GET", f"{API}/spot/bids?limit=2&next_cursor={first['next_cursor']}")
    names = [row["name"] for row in first["data"] + second["data"]]
    assert (names, second["next_cursor"]) == (["broker-0", "broker-1", "broker-2"], None)
