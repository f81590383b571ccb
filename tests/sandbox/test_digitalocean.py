from typing import Any

from tests.sandbox.conftest import Bench

API = "/digitalocean/v2"
SKU, REGION = "gpu-h100x8-640gb", "tor1"


def order(**more: Any) -> dict[str, Any]:
    body = {"name": "broker-1", "region": REGION, "size": SKU, "image": "gpu-h100x8-base", "tags": ["t"]}
    return body | more


async def sizes(bench: Bench) -> dict[str, Any]:
    return {row["slug"]: row for row in (await bench.json("GET", f"{API}/sizes?per_page=200"))["sizes"]}


async def test_sizes_have_one_price_and_total_memory(bench: Bench) -> None:
    rows = await sizes(bench)
    assert (rows[SKU]["price_hourly"], rows[SKU]["memory"]) == (35.28, 1966080)
    assert rows[SKU]["gpu_info"] == {
        "count": 8,
        "vram": {"amount": 640, "unit": "gib"},
        "model": "nvidia_h100",
    }
    assert rows["gpu-b300x8-2304gb-spot"]["regions"] == []


async def test_pages_name_their_neighbours(bench: Bench) -> None:
    found: list[str] = []
    number = 1
    while True:
        page = await bench.json("GET", f"{API}/sizes?per_page=4&page={number}")
        found += [row["slug"] for row in page["sizes"]]
        pages = page["links"]["pages"]
        if "next" not in pages:
            break
        assert pages["next"].endswith(f"page={number + 1}&per_page=4")
        number += 1
    assert len(found) == page["meta"]["total"] == len(await sizes(bench))


async def test_a_droplet_is_new_then_active_and_hidden_but_for_gpus(bench: Bench) -> None:
    await bench.stock("digitalocean", SKU, 1, REGION)
    answer = await bench.call("POST", f"{API}/droplets", order())
    assert answer.status_code == 202
    made = answer.json()["droplet"]
    assert (made["status"], made["tags"]) == ("new", ["t"])
    assert (await bench.json("GET", f"{API}/droplets"))["droplets"] == []
    listed = await bench.json("GET", f"{API}/droplets?type=gpus")
    assert [row["id"] for row in listed["droplets"]] == [made["id"]]
    assert REGION not in (await sizes(bench))[SKU]["regions"]
    full = await bench.call("POST", f"{API}/droplets", order())
    assert (full.status_code, full.json()["message"]) == (422, "Size is not available in this region.")
    early = await bench.call("DELETE", f"{API}/droplets/{made['id']}")
    assert early.json()["message"] == "Droplet already has a pending event."
    await bench.advance(3)
    assert (await bench.json("GET", f"{API}/droplets/{made['id']}"))["droplet"]["status"] == "active"
    assert (await bench.call("DELETE", f"{API}/droplets/{made['id']}")).status_code == 204
    assert (await bench.call("DELETE", f"{API}/droplets/{made['id']}")).status_code == 404
    (entry,) = await bench.ledger(str(made["id"]))
    assert (entry["tag"], entry["billed_usd"]) == ("broker-1", "0.588000")


async def test_a_create_that_loses_its_capacity_stays_new_with_an_errored_action(bench: Bench) -> None:
    fault = {"provider": "digitalocean", "operation": "create", "kind": "async_out_of_capacity", "count": 1}
    await bench.json("POST", "/_sandbox/faults", fault)
    made = (await bench.json("POST", f"{API}/droplets", order()))["droplet"]
    await bench.advance(3)
    (action,) = (await bench.json("GET", f"{API}/droplets/{made['id']}/actions"))["actions"]
    assert (action["status"], action["type"]) == ("errored", "create")
    assert (await bench.json("GET", f"{API}/droplets/{made['id']}"))["droplet"]["status"] == "new"
    (entry,) = await bench.ledger(str(made["id"]))
    assert (entry["failed"], entry["billed_usd"]) == (True, "0")


async def test_refusals_are_422_and_name_the_field(bench: Bench) -> None:
    for body, word in (
        (order(size="x"), "size"),
        (order(region="moon"), "region"),
        (order(image=""), "image"),
        (order(name=""), "Name"),
        (order(region="fra1"), "Size is not available in this region."),
    ):
        answer = await bench.call("POST", f"{API}/droplets", body)
        assert answer.status_code == 422
        assert word in answer.json()["message"]
    nobody = await bench.client.get(f"{API}/sizes", headers={"Authorization": ""})
    assert (nobody.status_code, nobody.json()["id"]) == (401, "unauthorized")
