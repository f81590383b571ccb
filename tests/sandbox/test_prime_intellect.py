from typing import Any

from tests.sandbox.conftest import Bench

API = "/prime_intellect/api/v1"
SPOT = "datacrunch 8H100.80S.176V"


async def rows(bench: Bench, which: str, **alike: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        asked = {"page": len(found) // 50 + 1, "page_size": 50}
        answer = await bench.json("GET", f"{API}/availability/{which}", params=asked)
        found += answer["items"]
        if not answer["items"] or len(found) >= answer["totalCount"]:
            return [row for row in found if all(row[name] == value for name, value in alike.items())]


def order(row: dict[str, Any], **more: Any) -> dict[str, Any]:
    copied = ("cloudId", "gpuType", "socket", "gpuCount", "country", "security")
    pod = {"name": "broker-1", "dataCenterId": row["dataCenter"], **{name: row[name] for name in copied}}
    return {"pod": {**pod, **more}, "provider": {"type": row["provider"]}}


async def test_lists_come_in_pages_with_odd_rows_among_them(bench: Bench) -> None:
    single = await rows(bench, "gpus")
    assert len(single) > 100
    assert {row["gpuCount"] for row in single} >= {1, 8, 10}
    assert {row["prices"]["currency"] for row in single} == {"USD", "EUR"}
    assert any(row["gpuType"] == "CPU_NODE" for row in single)
    assert any(row["prices"]["onDemand"] == 0 for row in single)
    assert any(row["prepaidTime"] == 24 for row in single)
    (euros,) = [row["prices"]["onDemand"] for row in single if row["prices"]["currency"] == "EUR"]
    assert euros == 2.73
    too_large = await bench.call("GET", f"{API}/availability/gpus?page_size=101")
    assert (too_large.status_code, too_large.json()["errors"][0]["param"]) == (422, "page_size")


async def test_a_cluster_is_bought_whole(bench: Bench) -> None:
    await bench.stock("prime_intellect", "hyperstack n3-H100-SXM5x8 2-nodes", 2)
    (row,) = [r for r in await rows(bench, "multi-node", cloudId="n3-H100-SXM5x8") if r["gpuCount"] == 16]
    assert (row["prices"]["onDemand"], row["interconnect"], row["stockStatus"]) == (38.4, 3200, "Low")
    pod = await bench.json("POST", f"{API}/pods/", order(row))
    assert (pod["gpuCount"], pod["status"]) == (16, "PROVISIONING")
    refused = await bench.call("POST", f"{API}/pods/", order(row))
    assert (refused.status_code, "capacity" in refused.json()["detail"]) == (400, True)
    await bench.advance(5)
    found = await bench.json("GET", f"{API}/pods/{pod['id']}")
    assert (found["status"], found["installationStatus"], len(found["ip"])) == ("ACTIVE", "FINISHED", 2)
    (entry,) = await bench.ledger(pod["id"])
    assert (entry["nodes"], entry["billed_usd"]) == (2, "38.400000")


async def test_a_pod_goes_through_its_states_and_is_billed_at_least_what_was_prepaid(bench: Bench) -> None:
    (row,) = await rows(bench, "gpus", cloudId="8xB200-prepaid")
    pod_id = (await bench.json("POST", f"{API}/pods/", order(row)))["id"]
    await bench.advance(1)
    status = await bench.json("GET", f"{API}/pods/{pod_id}")
    assert (status["status"], status["installationStatus"]) == ("ACTIVE", "PENDING")
    listed = await bench.json("GET", f"{API}/pods/?offset=0&limit=1")
    assert (listed["total_count"], listed["data"][0]["name"]) == (1, "broker-1")
    assert (await bench.json("DELETE", f"{API}/pods/{pod_id}")) == {"status": "TERMINATED"}
    await bench.advance(2)
    for method in ("GET", "DELETE"):
        gone = await bench.call(method, f"{API}/pods/{pod_id}")
        assert (gone.status_code, gone.json()) == (404, {"detail": "Pod not found"})
    (entry,) = await bench.ledger(pod_id)
    assert entry["billed_usd"] == "864.000000"  # 24 hours at 36


async def test_the_most_price_tells_spot_from_on_demand(bench: Bench) -> None:
    await bench.stock("prime_intellect", SPOT, 5)
    found = [row for row in await rows(bench, "gpus", cloudId="8H100.80S.176V", dataCenter="ICE-01")]
    prices = {row["isSpot"]: row["prices"]["onDemand"] for row in found}
    assert prices == {True: 6.84, False: 15.77}
    for is_spot in (True, False):
        pod = await bench.json("POST", f"{API}/pods/", order(found[0], maxPrice=prices[is_spot]))
        assert (pod["isSpot"], pod["priceHr"]) == (is_spot, prices[is_spot])
    refused = await bench.call("POST", f"{API}/pods/", order(found[0], maxPrice=1.0))
    assert (refused.status_code, refused.json()) == (400, {"detail": "The price exceeds maxPrice"})


async def test_bad_orders_and_missing_keys_are_refused_in_words(bench: Bench) -> None:
    (row,) = await rows(bench, "gpus", cloudId="8xB200-prepaid")
    for change in ({"gpuCount": None}, {"cloudId": "9xB200"}, {"dataCenterId": "moon-1"}):
        answer = await bench.call("POST", f"{API}/pods/", order(row, **change))
        assert (answer.status_code, len(answer.json()["errors"])) == (422, 1)
    bare = await bench.call("GET", f"{API}/pods/", headers={"Authorization": ""})
    assert (bare.status_code, bare.json()) == (401, {"detail": "Authorization failed"})


async def test_capacity_lost_after_the_order_shows_as_error(bench: Bench) -> None:
    (row,) = await rows(bench, "gpus", cloudId="8xB200-prepaid")
    fault = {"provider": "prime_intellect", "operation": "create", "kind": "async_out_of_capacity"}
    await bench.json("POST", "/_sandbox/faults", fault)
    pod_id = (await bench.json("POST", f"{API}/pods/", order(row)))["id"]
    await bench.advance(5)
    found = await bench.json("GET", f"{API}/pods/{pod_id}")
    assert (found["status"], found["installationStatus"]) == ("ERROR", "ERROR")
    (entry,) = await bench.ledger(pod_id)
    assert (entry["failed"], entry["billed_usd"]) == (True, "0")
