from typing import Any

import pytest

from tests.sandbox.conftest import Bench

API = "/scaleway/instance/v1/zones/fr-par-2"
SKU = "H100-1-80G"
KEY = {"X-Auth-Token": "key"}


async def ask(bench: Bench, method: str, path: str, body: Any = None) -> Any:
    return await bench.call(method, f"{API}{path}", body, headers=KEY)


async def create(bench: Bench, **more: Any) -> dict[str, Any]:
    body = {"name": "broker-1", "commercial_type": SKU, "image": "ubuntu", "tags": ["t"]} | more
    answer = await ask(bench, "POST", "/servers", body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()["server"]
    return made


async def state_of(bench: Bench, server_id: str) -> Any:
    return (await ask(bench, "GET", f"/servers/{server_id}")).json()["server"]["state"]


async def act(bench: Bench, server_id: str, action: str) -> Any:
    return await ask(bench, "POST", f"/servers/{server_id}/action", {"action": action})


async def test_types_are_priced_in_euros_and_counted_in_bytes(bench: Bench) -> None:
    answer = await ask(bench, "GET", "/products/servers?per_page=100")
    rows = answer.json()["servers"]
    assert rows[SKU]["hourly_price"] == 2.8665  # what was recorded, before it was turned into dollars
    assert (rows[SKU]["ram"], rows[SKU]["gpu_info"]["gpu_memory"]) == (240 * 2**30, 80 * 2**30)
    assert answer.headers["x-total-count"] == str(len(rows))


async def test_pages_are_counted_in_a_header(bench: Bench) -> None:
    names: list[str] = []
    for page in (1, 2, 3, 4, 5, 6):
        answer = await ask(bench, "GET", f"/products/servers?per_page=4&page={page}")
        names += answer.json()["servers"]
    assert len(names) == len(set(names)) == int(answer.headers["x-total-count"])


async def test_stock_is_a_word(bench: Bench) -> None:
    for stock, word in ((0, "shortage"), (1, "scarce"), (9, "available")):
        await bench.stock("scaleway", SKU, stock)
        answer = await ask(bench, "GET", "/products/servers/availability?per_page=100")
        assert answer.json()["servers"][SKU]["availability"] == word


async def test_a_server_is_created_stopped_powered_on_and_terminated(bench: Bench) -> None:
    await bench.stock("scaleway", SKU, 1)
    made = await create(bench)
    assert (made["state"], made["allowed_actions"], made["tags"]) == ("stopped", ["poweron"], ["t"])
    full = await ask(bench, "POST", "/servers", {"commercial_type": SKU, "image": "ubuntu"})
    assert (full.status_code, full.json()) == (412, {"type": "out_of_stock", "resource": SKU})
    await bench.advance(7200)
    assert (await act(bench, made["id"], "poweron")).json()["task"]["status"] == "pending"
    assert await state_of(bench, made["id"]) == "starting"
    early = await act(bench, made["id"], "terminate")
    assert (early.status_code, early.json()["current_state"]) == (409, "starting")
    await bench.advance(3)
    assert await state_of(bench, made["id"]) == "running"
    assert (await ask(bench, "DELETE", f"/servers/{made['id']}")).status_code == 409
    assert (await act(bench, made["id"], "terminate")).status_code == 202
    assert await state_of(bench, made["id"]) == "stopping"
    await bench.advance(2)
    assert (await ask(bench, "GET", f"/servers/{made['id']}")).status_code == 404
    (entry,) = await bench.ledger(made["id"])
    assert (
        entry["billed_usd"] == "0.055853"
    )  # one minute, from the moment it was powered on, with 100 GB of root volume
    volume = made["volumes"]["0"]["id"]
    assert (
        await bench.call("DELETE", f"/scaleway/block/v1/zones/fr-par-2/volumes/{volume}", headers=KEY)
    ).is_success


async def test_a_stopped_server_is_deleted_and_costs_nothing(bench: Bench) -> None:
    made = await create(bench)
    volume = f"/scaleway/block/v1/zones/fr-par-2/volumes/{made['volumes']['0']['id']}"
    assert (await bench.call("DELETE", volume, headers=KEY)).status_code == 412
    assert (await ask(bench, "DELETE", f"/servers/{made['id']}")).status_code == 204
    assert (await ask(bench, "DELETE", f"/servers/{made['id']}")).status_code == 404
    (entry,) = await bench.ledger(made["id"])
    assert entry["billed_usd"] == "0.000000"


async def test_capacity_that_is_lost_leaves_the_server_stopped(bench: Bench) -> None:
    fault = {"provider": "scaleway", "operation": "create", "kind": "async_out_of_capacity", "count": 1}
    await bench.json("POST", "/_sandbox/faults", fault)
    made = await create(bench)
    await act(bench, made["id"], "poweron")
    assert await state_of(bench, made["id"]) == "starting"
    await bench.advance(3)
    assert await state_of(bench, made["id"]) == "stopped"
    (entry,) = await bench.ledger(made["id"])
    assert (entry["failed"], entry["billed_usd"]) == (True, "0")


async def test_servers_are_of_a_zone_and_found_by_name(bench: Bench) -> None:
    made = await create(bench)
    await create(bench, name="other")
    found = await ask(bench, "GET", "/servers?name=broker-1")
    assert [row["id"] for row in found.json()["servers"]] == [made["id"]]
    elsewhere = "/scaleway/instance/v1/zones/pl-waw-2/servers"
    assert (await bench.call("GET", elsewhere, headers=KEY)).json()["servers"] == []
    assert (await bench.call("GET", f"{elsewhere}/{made['id']}", headers=KEY)).status_code == 404


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [("/servers", 401, "denied_authentication"), ("/nothing", 404, "unknown_resource")],
)
async def test_errors_carry_a_type(bench: Bench, path: str, status: int, kind: str) -> None:
    answer = await bench.client.get(f"{API}{path}", headers={"X-Auth-Token": ""})
    assert (answer.status_code, answer.json()["type"]) == (status, kind)
