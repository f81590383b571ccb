from typing import Any

from tests.sandbox.conftest import Bench

API = "/vast/api/v0"
RENTABLE = {"rentable": {"eq": True}, "rented": {"eq": False}}


async def search(bench: Bench, **filters: Any) -> list[dict[str, Any]]:
    answer = await bench.json("POST", f"{API}/bundles/", {**RENTABLE, **filters})
    offers: list[dict[str, Any]] = answer["offers"]
    return offers


async def rent(bench: Bench, offer_id: int, **more: Any) -> Any:
    body = {"image": "img", "disk": 16, "label": "broker-1", **more}
    return await bench.call("PUT", f"{API}/asks/{offer_id}/", body)


async def test_filters_order_and_limit(bench: Bench) -> None:
    found = await search(
        bench, num_gpus={"gte": 8}, gpu_name={"in": ["H100 SXM"]}, order=[["dph_total", "asc"]], limit=5
    )
    assert [offer["dph_base"] for offer in found] == [16.0]
    assert found[0]["gpu_ram"] == 81559
    assert found[0]["bw_nvlink"] > 0
    refused = await bench.call("POST", f"{API}/bundles/", {"num_gpus": {"about": 8}})
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_args")


async def test_odd_rows_are_there(bench: Bench) -> None:
    everything = (await bench.json("POST", f"{API}/bundles/", {}))["offers"]
    assert any(offer["num_gpus"] == 0 and offer["gpu_name"] is None for offer in everything)
    assert any(offer["dph_base"] == 0 for offer in everything)
    assert any(offer["rented"] for offer in everything)
    assert any(offer["cpu_cores"] is None for offer in everything)


async def test_disk_is_in_the_total_and_bids_are_their_own_list(bench: Bench) -> None:
    (plain,) = [offer for offer in await search(bench, allocated_storage=720) if offer["id"] == 48285735]
    assert round(plain["dph_total"] - plain["dph_base"], 6) == 0.15
    (bid,) = [offer for offer in await search(bench, type="bid") if offer["id"] == 48285735]
    assert (bid["dph_base"], bid["min_bid"], bid["is_bid"]) == (0.4, 0.4, True)


async def test_renting_a_slice_takes_its_machine(bench: Bench) -> None:
    slices = [o for o in await search(bench) if o["gpu_name"] == "H200" and "FR" in o["geolocation"]]
    assert sorted(offer["num_gpus"] for offer in slices) == [1, 2, 4, 8]
    assert len({offer["machine_id"] for offer in slices}) == 1
    whole = next(offer for offer in slices if offer["num_gpus"] == 8)
    made = (await rent(bench, whole["id"])).json()
    left = {offer["id"] for offer in await search(bench)}
    assert left.isdisjoint(offer["id"] for offer in slices)
    again = await rent(bench, whole["id"])
    assert (again.status_code, again.json()["error"]) == (410, "no_such_ask")
    assert (await rent(bench, 1)).status_code == 404
    contract = made["new_contract"]
    assert (await bench.json("GET", f"{API}/instances/{contract}/"))["instances"]["actual_status"] is None
    await bench.advance(30)
    shown = await bench.json("GET", f"{API}/instances/")
    assert [(i["id"], i["label"], i["actual_status"]) for i in shown["instances"]] == [
        (contract, "broker-1", "running")
    ]
    assert await bench.json("DELETE", f"{API}/instances/{contract}/") == {"success": True}
    gone = await bench.call("DELETE", f"{API}/instances/{contract}/")
    assert (gone.status_code, gone.json()["error"]) == (404, "no_such_instance")
    assert {offer["id"] for offer in await search(bench)} >= {offer["id"] for offer in slices}
    (entry,) = await bench.ledger(str(contract))
    assert entry["sku"] == "8x H200"


async def test_a_low_bid_fails_and_still_creates(bench: Bench) -> None:
    answer = await rent(bench, 48285735, price=0.01)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_price")
    contract = answer.json()["new_contract"]
    assert (await bench.ledger(str(contract)))[0]["released_at"] is None
    await bench.json("DELETE", f"{API}/instances/{contract}/")


async def test_search_needs_no_key_but_renting_does(bench: Bench) -> None:
    bare = {"Authorization": ""}
    assert (await bench.client.post(f"{API}/bundles/", json={}, headers=bare)).status_code == 200
    refused = await bench.client.put(f"{API}/asks/1/", json={"image": "i"}, headers=bare)
    assert (refused.status_code, refused.json()["error"]) == (401, "auth_error")
    by_query = await bench.client.get(f"{API}/instances/?api_key=k", headers=bare)
    assert by_query.status_code == 200
