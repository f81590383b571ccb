from typing import Any

import httpx

from tests.sandbox.conftest import Bench

TEAM = "/hotaisle/teams/broker"
TOKEN = {"Authorization": "Token any-key"}


async def call(bench: Bench, method: str, path: str, body: Any = None) -> httpx.Response:
    return await bench.call(method, f"{TEAM}/{path}", body, headers=TOKEN)


async def kinds(bench: Bench, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await call(bench, "GET", f"{path}/available/")).json()
    return found


async def names(bench: Bench, path: str) -> list[str]:
    return [row["name"] for row in (await call(bench, "GET", f"{path}/")).json()]


async def test_prices_are_cents_and_quantities_are_counts(bench: Bench) -> None:
    await bench.stock("hotaisle", "Small MI300X VM 1x", 4)
    small, *more = await kinds(bench, "virtual_machines")
    assert (small["OnDemandPrice"], small["Quantity"], small["MinimumReservationMinutes"]) == (299, 4, 1)
    assert small["Specs"]["gpus"] == [{"count": 1, "manufacturer": "AMD", "model": "MI300X"}]
    assert {"MI999X"} <= {gpu["model"] for row in more for gpu in row["Specs"]["gpus"]}
    assert any(row["OnDemandPrice"] == 0 for row in more)
    assert any(row["Quantity"] == 0 for row in more)
    month, hourly = await kinds(bench, "bare_metal")
    assert (month["OnDemandPrice"], month["MinimumReservationMinutes"]) == (2712, 43200)
    assert isinstance(hourly["Specs"]["cpus"], list)


async def test_a_virtual_machine_is_described_after_the_order_and_owes_its_minimum(bench: Bench) -> None:
    await bench.stock("hotaisle", "Medium MI300X VM 2x", 1)
    specs = (await kinds(bench, "virtual_machines"))[1]["Specs"]
    made = (await call(bench, "POST", "virtual_machines/", specs)).json()
    path = f"virtual_machines/{made['name']}/"
    assert "description" not in made
    again = await call(bench, "POST", "virtual_machines/", specs)
    assert (again.status_code, again.json().partition(":")[0]) == (404, "Not Found")
    assert (await call(bench, "PATCH", path, {"description": "broker-1"})).status_code == 204
    assert (await call(bench, "GET", path)).json()["description"] == "broker-1"
    assert (await call(bench, "DELETE", path)).status_code == 400
    assert (await call(bench, "DELETE", f"{path}?force=true")).status_code == 204
    assert (await call(bench, "DELETE", f"{path}?force=true")).status_code == 404
    assert await names(bench, "virtual_machines") == []
    (entry,) = await bench.ledger(made["name"])
    assert (entry["tag"], entry["billed_usd"]) == ("broker-1", "5.980000")  # an hour, although it ran seconds


async def test_bare_metal_takes_its_description_in_the_order_and_installs(bench: Bench) -> None:
    specs = (await kinds(bench, "bare_metal"))[1]["Specs"]
    made = (await call(bench, "POST", "bare_metal/", {"specs": specs, "description": "broker-2"})).json()
    assert (made["description"], made["os_status"]["os_install_status"]) == ("broker-2", "shutting_down")
    await bench.advance(60)
    (row,) = (await call(bench, "GET", "bare_metal/")).json()
    assert row["os_status"]["os_install_status"] == "installed"
    assert await names(bench, "virtual_machines") == []


async def test_errors_are_json_strings(bench: Bench) -> None:
    bearer = await bench.call("GET", f"{TEAM}/virtual_machines/available/")
    assert (bearer.status_code, bearer.json()) == (401, "Unauthorized")
    odd = await call(bench, "POST", "virtual_machines/", {"cpu_cores": 8, "gpus": []})
    assert odd.status_code == 404
    assert (await call(bench, "POST", "bare_metal/", {"description": "x"})).status_code == 422
    assert (await call(bench, "POST", "bare_metal/", [])).status_code == 400
