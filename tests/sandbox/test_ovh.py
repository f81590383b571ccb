"""OVH's sandbox, by its own rules and by OVH's official client over a real socket."""

from typing import Any

import ovh
import ovh.client
import ovh.exceptions
import pytest

from providers.sandbox import SandboxHandle
from tests.sandbox.conftest import Bench

API = "/ovh/v1"
PROJECT = f"{API}/cloud/project/p1"
CATALOGUE = f"{API}/order/catalog/public/cloud?ovhSubsidiary=FR"
SIGNED = {
    "X-Ovh-Application": "k",
    "X-Ovh-Consumer": "c",
    "X-Ovh-Timestamp": "1764000000",
    "X-Ovh-Signature": "$1$" + "0" * 40,
}


SANDBOX_SEED = 5


def client(sandbox: SandboxHandle, monkeypatch: pytest.MonkeyPatch, secret: str = "sandbox") -> Any:
    """The client knows endpoints by name only, in a table of its module: one more name is put there."""
    monkeypatch.setitem(ovh.client.ENDPOINTS, "sandbox", f"{sandbox.url}/ovh/1.0")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return ovh.Client(
        endpoint="sandbox", application_key="sandbox", application_secret=secret, consumer_key="sandbox"
    )


def test_the_official_client_lists_creates_and_deletes(
    sandbox: SandboxHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = client(sandbox, monkeypatch)
    catalogue = api.get("/order/catalog/public/cloud", _need_auth=False, ovhSubsidiary="FR")
    plans = {addon["planCode"]: addon for addon in catalogue["addons"]}
    assert plans["h100-380.consumption"]["pricings"][0]["price"] == 280_000_000  # 2.80 EUR
    flavors = api.get("/cloud/project/p1/flavor", region="GRA11")
    flavor = next(row for row in flavors if row["available"])
    image = api.get("/cloud/project/p1/image", region="GRA11", osType="linux")[0]
    wish = {"flavorId": flavor["id"], "imageId": image["id"], "name": "sdk-1", "region": "GRA11"}
    made = api.post("/cloud/project/p1/instance", **wish)
    assert (made["status"], made["name"], made["flavor"]["name"]) == ("BUILD", "sdk-1", flavor["name"])
    assert [row["id"] for row in api.get("/cloud/project/p1/instance")] == [made["id"]]
    assert api.get(f"/v1/cloud/project/p1/instance/{made['id']}")["name"] == "sdk-1"
    assert api.delete(f"/cloud/project/p1/instance/{made['id']}") is None


def test_the_official_client_understands_the_refusals(
    sandbox: SandboxHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = client(sandbox, monkeypatch)
    with pytest.raises(ovh.exceptions.ResourceNotFoundError, match="does not exist"):
        api.get("/cloud/project/p1/instance/nothing")
    with pytest.raises(ovh.exceptions.BadParametersError, match="Missing argument"):
        api.post("/cloud/project/p1/instance", name="x")
    with pytest.raises(ovh.exceptions.BadParametersError, match="Invalid signature"):
        client(sandbox, monkeypatch, secret="another").get("/cloud/project/p1/instance")


async def answer(bench: Bench, method: str, path: str, body: Any = None) -> Any:
    found = await bench.call(method, path, body, headers=SIGNED)
    assert found.is_success, found.text
    return found.json()


async def order(bench: Bench, name: str = "h100-380", region: str = "GRA11") -> dict[str, Any]:
    rows = await answer(bench, "GET", f"{PROJECT}/flavor?region={region}")
    flavor = next(row for row in rows if row["name"] == name)
    image = (await answer(bench, "GET", f"{PROJECT}/image?region={region}"))[0]
    return {"flavorId": flavor["id"], "imageId": image["id"], "name": "broker-1", "region": region}


async def test_the_catalogue_is_open_and_in_hundred_millionths_of_a_euro(bench: Bench) -> None:
    found = (await bench.client.get(CATALOGUE, headers={"Authorization": ""})).json()
    assert found["locale"]["currencyCode"] == "EUR"
    prices = {addon["planCode"]: addon.get("pricings") for addon in found["addons"]}
    assert prices["h200-1920.consumption"][0]["price"] == 4_200_000_000
    assert prices["h100-380.monthly.postpaid"][0]["intervalUnit"] == "month"
    assert prices["l4-free.consumption"][0]["price"] == 0
    assert prices["volume.classic.consumption"] is None
    body = {"provider": "ovh", "sku": "h200-1920", "price_factor": 2}
    await bench.json("POST", "/_sandbox/market", body)
    dearer = {row["planCode"]: row for row in (await bench.json("GET", CATALOGUE))["addons"]}
    assert dearer["h200-1920.consumption"]["pricings"][0]["price"] == 8_400_000_000


async def test_an_instance_is_built_and_billed_by_begun_hours(bench: Bench) -> None:
    await bench.stock("ovh", "h100-380", 1, "GRA11")
    made = await answer(bench, "POST", f"{PROJECT}/instance", await order(bench))
    rows = await answer(bench, "GET", f"{PROJECT}/flavor?region=GRA11")
    assert not next(row for row in rows if row["name"] == "h100-380")["available"]
    await bench.advance(3601)
    assert (await answer(bench, "GET", f"{PROJECT}/instance/{made['id']}"))["status"] == "ACTIVE"
    assert await answer(bench, "DELETE", f"{PROJECT}/instance/{made['id']}") is None
    assert (await answer(bench, "GET", f"{PROJECT}/instance/{made['id']}"))["status"] == "DELETING"
    await bench.advance(2)
    gone = await bench.call("DELETE", f"{PROJECT}/instance/{made['id']}", headers=SIGNED)
    assert (gone.status_code, gone.json()["class"]) == (404, "Client::NotFound")
    (entry,) = await bench.ledger(made["id"])
    assert (entry["tag"], entry["billed_usd"]) == ("broker-1", "6.520080")  # two hours at 3.26004


async def test_without_stock_the_order_is_taken_and_turns_to_error(bench: Bench) -> None:
    await bench.stock("ovh", "h100-380", 0, "GRA11")
    made = await answer(bench, "POST", f"{PROJECT}/instance", await order(bench))
    assert made["status"] == "BUILD"
    await bench.advance(3)
    (row,) = await answer(bench, "GET", f"{PROJECT}/instance")
    assert row["status"] == "ERROR"
    (entry,) = await bench.ledger(made["id"])
    assert (entry["failed"], entry["billed_usd"]) == (True, "0")


async def test_calls_without_a_signature_are_refused(bench: Bench) -> None:
    plain = await bench.call("GET", f"{PROJECT}/instance")
    assert (plain.status_code, plain.json()["errorCode"]) == (403, "NOT_CREDENTIAL")
    forged = await bench.call("GET", f"{PROJECT}/instance", headers=SIGNED | {"X-Ovh-Application": "sandbox"})
    assert (forged.status_code, forged.json()["errorCode"]) == (400, "INVALID_SIGNATURE")
    assert isinstance((await bench.client.get(f"{API}/auth/time")).json(), int)
