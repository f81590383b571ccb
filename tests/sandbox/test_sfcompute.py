from decimal import Decimal
from itertools import pairwise
from typing import Any

from tests.sandbox.conftest import Bench

DAYS = {"min_start_date": "2026-11-25T00:00:00Z", "max_start_date": "2026-11-28T00:00:00Z"}


async def quote(bench: Bench, **more: Any) -> Any:
    params = {"side": "buy", "instance_type": "h100i", "quantity": 2, "duration": 172800, **DAYS, **more}
    return await bench.json("GET", "/sfcompute/v0/quote", params=params)


async def buy(bench: Bench, key: str = "broker-1", **more: Any) -> Any:
    found = (await quote(bench))["quote"]
    body = {"side": "buy", "flags": {"ioc": True}, "cluster": found["zone"]}
    body |= {name: found[name] for name in ("instance_type", "quantity", "start_at", "end_at", "price")}
    return await bench.call("POST", "/sfcompute/v0/orders", body | more, headers={"Idempotency-Key": key})


async def test_zones_are_rectangles_of_nodes_over_time(bench: Bench) -> None:
    zones = {zone["name"]: zone for zone in (await bench.json("GET", "/sfcompute/v0/zones"))["data"]}
    assert zones["landsend"]["available_capacity"] == []
    steps = zones["richmond"]["available_capacity"]
    assert all(step["quantity"] > 0 and step["start_timestamp"] < step["end_timestamp"] for step in steps)
    assert all(a["end_timestamp"] <= b["start_timestamp"] for a, b in pairwise(steps))


async def test_a_quote_is_total_cents_or_a_reason(bench: Bench) -> None:
    found = (await quote(bench))["quote"]
    hourly = Decimal(found["price"]) / 100 / 2 / 48
    assert Decimal("13.0") < hourly < Decimal("15.9")
    assert (await quote(bench, quantity=900))["no_quote_reason"] == "no_availability"
    assert (await quote(bench, cluster="landsend"))["no_quote_reason"] == "no_matching_clusters"
    now = await quote(bench, min_start_date="NOW", max_start_date="NOW", duration=3600, quantity=1)
    assert now["quote"]["start_at"].startswith("2026-11-23T09:01")
    assert now["quote"]["end_at"].startswith("2026-11-23T11:00:00")


async def test_an_order_fills_once_per_key_and_takes_the_nodes(bench: Bench) -> None:
    first, again = await buy(bench), await buy(bench)
    assert (first.status_code, first.json()["status"]) == (201, "pending")
    order_id = first.json()["id"]
    assert again.json()["id"] == order_id
    assert (await bench.json("GET", f"/sfcompute/v0/orders/{order_id}"))["status"] == "open"
    await bench.advance(3)
    order = await bench.json("GET", f"/sfcompute/v0/orders/{order_id}")
    assert (order["status"], order["executed"], order["idempotency_key"]) == ("filled", True, "broker-1")
    (contract,) = (await bench.json("GET", "/sfcompute/v0/contracts"))["data"]
    assert (contract["state"], contract["shape"]["quantities"]) == ("Upcoming", [2])
    (entry,) = await bench.ledger(order_id)
    assert (entry["tag"], entry["nodes"], entry["also_known_as"]) == ("broker-1", 2, [contract["id"]])
    assert Decimal(entry["billed_usd"]) == Decimal(order["execution_price"]) / 100
    other = await buy(bench, quantity=1)
    assert (other.status_code, other.json()["error"]["type"]) == (409, "idempotency_error")
    filled = await bench.call("DELETE", f"/sfcompute/v0/orders/{order_id}")
    assert filled.status_code == 400


async def test_a_low_limit_cancels_at_once_or_stands_until_the_price_falls(bench: Bench) -> None:
    ioc = (await buy(bench, "a", price=1)).json()["id"]
    assert (await bench.json("GET", f"/sfcompute/v0/orders/{ioc}"))["status"] == "cancelled"
    found = (await quote(bench))["quote"]
    standing = (await buy(bench, "b", price=found["price"] // 2, flags={"ioc": False})).json()["id"]
    await bench.advance(3)
    assert (await bench.json("GET", f"/sfcompute/v0/orders/{standing}"))["status"] == "open"
    assert await bench.ledger() == []
    cheaper = {"provider": "sfcompute", "sku": "h100i", "price_factor": "0.4"}
    await bench.json("POST", "/_sandbox/market", cheaper)
    assert (await bench.json("GET", f"/sfcompute/v0/orders/{standing}"))["status"] == "filled"
    third = (await buy(bench, "c", price=1, flags={})).json()["id"]
    path = f"/sfcompute/v0/orders/{third}"
    assert await bench.json("DELETE", path) == {"object": "pending"}
    assert (await bench.call("DELETE", path)).json()["error"]["message"] == "Order already cancelled"


async def test_a_contract_is_left_by_selling_it_back(bench: Bench) -> None:
    order_id = (await buy(bench)).json()["id"]
    (contract,) = (await bench.json("GET", "/sfcompute/v0/contracts"))["data"]
    paid = Decimal((await bench.ledger(order_id))[0]["billed_usd"])
    sell = {
        "side": "sell",
        "contract_id": contract["id"],
        "quantity": 2,
        "price": 1,
        "flags": {"market": True},
    }
    await bench.json("POST", "/sfcompute/v0/orders", sell, headers={"Idempotency-Key": "s"})
    (entry,) = await bench.ledger(order_id)
    assert entry["released_at"] is not None
    assert Decimal(0) < Decimal(entry["billed_usd"]) < paid / 4
    assert (await bench.json("GET", "/_sandbox/requests"))["requests"]["sfcompute"]["delete"] == 1


async def test_calls_without_a_key_are_refused(bench: Bench) -> None:
    bare = await bench.client.get("/sfcompute/v0/zones", headers={"Authorization": ""})
    assert (bare.status_code, bare.json()["error"]["type"]) == (401, "authentication_error")


async def test_bad_orders_name_what_is_wrong(bench: Bench) -> None:
    for change in (
        {"start_at": "2026-11-25T00:30:00Z"},
        {"end_at": "x"},
        {"quantity": 0},
        {"instance_type": "q"},
    ):
        answer = await buy(bench, "k", **change)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert await bench.ledger() == []
