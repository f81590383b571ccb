from typing import Any

from tests.sandbox.conftest import Bench

API = "/vast/api/v0"
MINE = "/vast/api/v1/instances/"
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
    cheap, dear = ({"dph_total": {rule: 0.5}} for rule in ("lt", "gte"))
    everything = [
        row for part in (cheap, dear) for row in (await bench.json("POST", f"{API}/bundles/", part))["offers"]
    ]
    assert len(everything) > 64
    assert any(offer["num_gpus"] == 0 and offer["gpu_name"] is None for offer in everything)
    assert any(offer["dph_base"] == 0 for offer in everything)
    assert any(offer["rented"] for offer in everything)
    assert any(offer["cpu_cores"] is None for offer in everything)
    assert any(offer["cuda_max_good"] < 12.8 for offer in everything)
    assert any(offer["direct_port_count"] == 0 for offer in everything)


async def test_a_search_shows_64_rows_whatever_is_asked(bench: Bench) -> None:
    answer = await bench.json("POST", f"{API}/bundles/", {"limit": 3000, "order": [["dph_total", "asc"]]})
    assert len(answer["offers"]) == 64


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
    stranger = await rent(bench, 1)
    assert (stranger.status_code, stranger.json()["error"]) == (404, "invalid_args")
    assert "no_such_ask" in stranger.json()["msg"]
    contract = made["new_contract"]
    assert (await bench.json("GET", f"{API}/instances/{contract}/"))["instances"]["actual_status"] is None
    await bench.advance(30)
    shown = await bench.json("GET", MINE)
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
    by_query = await bench.client.get(f"{MINE}?api_key=k", headers=bare)
    assert by_query.status_code == 200


async def test_the_list_in_v0_is_retired(bench: Bench) -> None:
    retired = await bench.call("GET", f"{API}/instances/")
    assert (retired.status_code, retired.json()["error"]) == (410, "deprecated_endpoint")


async def test_own_instances_come_in_pages_of_25_at_most(bench: Bench) -> None:
    singles = (await search(bench, num_gpus={"eq": 1}))[:27]
    made = [(await rent(bench, row["id"])).json()["new_contract"] for row in singles]
    usual = await bench.json("GET", MINE)
    assert (len(usual["instances"]), usual["total_instances"]) == (5, 27)
    first = await bench.json("GET", MINE, params={"limit": "1000"})
    assert (len(first["instances"]), first["instances_found"]) == (25, 25)
    rest = await bench.json("GET", MINE, params={"limit": "25", "after_token": first["next_token"]})
    assert rest["next_token"] is None
    assert [row["id"] for row in (*first["instances"], *rest["instances"])] == sorted(made)
    one = await bench.json("GET", MINE, params={"select_filters": f'{{"id": {{"eq": {made[3]}}}}}'})
    assert [row["id"] for row in one["instances"]] == [made[3]]
    for wrong in ({"after_token": "x"}, {"limit": "many"}, {"select_filters": "[]"}):
        assert (await bench.call("GET", MINE, params=wrong)).status_code == 400


async def test_hosts_offer_their_machines_anew(bench: Bench) -> None:
    (before,) = [row for row in await search(bench) if row["id"] == 48285735]
    await bench.advance(91 * 86400)
    (after,) = [row for row in await search(bench) if row["id"] == 48285735]
    assert after["end_date"] - before["end_date"] == 90 * 86400
    assert 0 < after["duration"] < before["duration"]
