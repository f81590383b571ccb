from typing import Any

from tests.sandbox.conftest import Bench

API = "/hyperstack/v1"
KEY = {"api_key": "any-key"}
FLAVOR, REGION = "n3-H100x4", "CANADA-1"
MACHINES = f"{API}/core/virtual-machines"


async def read(bench: Bench, path: str) -> Any:
    return await bench.json("GET", f"{API}{path}", headers=KEY)


async def create(bench: Bench, **more: Any) -> Any:
    body = {
        "name": "broker-1",
        "environment_name": f"default-{REGION}",
        "flavor_name": FLAVOR,
        "image_name": "Ubuntu",
        "key_name": "broker",
        "count": 1,
    }
    return await bench.call("POST", MACHINES, body | more, headers=KEY)


async def sizes(bench: Bench, word: str) -> dict[str, int]:
    stocks = (await read(bench, "/core/stocks"))["stocks"]
    (models,) = [row["models"] for row in stocks if row["region"] == REGION]
    (found,) = [model["configurations"] for model in models if model["model"] == word]
    return dict(found)


async def test_three_lists_fit_together(bench: Bench) -> None:
    await bench.stock("hyperstack", "n3-H100x8", 1, REGION)
    prices = {row["name"]: row["value"] for row in await read(bench, "/pricebook")}
    assert (prices["H100-80G-PCIe"], prices["H100-80G-PCIe-NVLink"], prices["CPU"]) == (1.9, 1.95, 0)
    assert await sizes(bench, "H100-80G-PCIe") == {"1x": 8, "2x": 4, "4x": 2, "8x": 1, "10x": 0}
    groups = [g for g in (await read(bench, "/core/flavors"))["data"] if g["region_name"] == REGION]
    flavors = {flavor["name"]: flavor for group in groups for flavor in group["flavors"]}
    assert flavors["n3-H100x8"]["stock_available"] is True
    assert flavors["n3-RTX-A6000x1-spot"]["gpu"] == "RTX-A6000-spot"


async def test_a_word_with_one_flavor_is_counted_in_machines(bench: Bench) -> None:
    await bench.stock("hyperstack", "n3-H100x8-NVLink", 2, REGION)
    assert (await sizes(bench, "H100-80G-PCIe-NVLink"))["8x"] == 2
    machine = (await create(bench, flavor_name="n3-H100x8-NVLink")).json()["instances"][0]
    assert (await sizes(bench, "H100-80G-PCIe-NVLink"))["8x"] == 1
    await bench.advance(59)
    (entry,) = await bench.ledger(str(machine["id"]))
    assert entry["billed_usd"] == "0.260000"  # a minute at 15.60


async def test_a_machine_goes_through_its_states(bench: Bench) -> None:
    await bench.stock("hyperstack", FLAVOR, 1, REGION)
    made = (await create(bench, labels=["broker-1"])).json()
    (machine,) = made["instances"]
    assert (made["status"], machine["status"], machine["environment"]["region"]) == (True, "CREATING", REGION)
    sold_out = await create(bench, name="broker-2")
    assert (sold_out.status_code, sold_out.json()["status"]) == (400, False)
    await bench.advance(1)
    assert (await read(bench, f"/core/virtual-machines/{machine['id']}"))["instance"]["status"] == "BUILD"
    await bench.advance(5)
    page = await read(bench, "/core/virtual-machines?page=1&pageSize=1")
    assert (page["count"], page["instances"][0]["status"]) == (1, "ACTIVE")
    taken = await create(bench)
    assert (taken.status_code, taken.json()["error_reason"]) == (409, "conflict")
    path = f"{MACHINES}/{machine['id']}"
    assert (await bench.call("DELETE", path, headers=KEY)).json()["status"] is True
    await bench.advance(2)
    for method in ("GET", "DELETE"):
        assert (await bench.call(method, path, headers=KEY)).status_code == 404
    assert (await sizes(bench, "H100-80G-PCIe"))["4x"] == 1
    (entry,) = await bench.ledger(str(machine["id"]))
    assert (entry["tag"], entry["released_at"] is not None) == ("broker-1", True)


async def test_bad_orders_and_missing_keys_are_refused_in_words(bench: Bench) -> None:
    for change, status in (
        ({"key_name": ""}, 400),
        ({"key_name": "of-nobody"}, 404),
        ({"count": 0}, 400),
        ({"environment_name": "default-MOON-1"}, 404),
        ({"flavor_name": "n3-H900x1"}, 404),
    ):
        answer = await create(bench, **change)
        assert (answer.status_code, answer.json()["status"]) == (status, False)
    bare = await bench.call("GET", f"{API}/pricebook")
    assert (bare.status_code, bare.json()["error_reason"]) == (401, "unauthorized")


async def test_capacity_lost_after_the_order_shows_as_error_and_costs_nothing(bench: Bench) -> None:
    await bench.stock("hyperstack", FLAVOR, 1, REGION)
    fault = {"provider": "hyperstack", "operation": "create", "kind": "async_out_of_capacity"}
    await bench.json("POST", "/_sandbox/faults", fault)
    machine = (await create(bench)).json()["instances"][0]
    await bench.advance(5)
    found = await read(bench, f"/core/virtual-machines/{machine['id']}")
    assert found["instance"]["status"] == "ERROR"
    (entry,) = await bench.ledger(str(machine["id"]))
    assert (entry["failed"], entry["billed_usd"]) == (True, "0")
