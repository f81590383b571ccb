import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from tests.sandbox.conftest import Bench

API = "/crusoe/v1alpha5"
VMS = f"{API}/projects/p1/compute/vms"
NET = f"{API}/projects/p1/networking"
AT = "2026-11-23T09:00:00+00:00"
SECRET = base64.urlsafe_b64decode("sandbox=")
SKU = "h100-80gb-sxm-ib.8x"
ORDER: dict[str, Any] = {
    "name": "broker-1",
    "type": SKU,
    "location": "us-east1-a",
    "image": "ubuntu22.04:latest",
    "ssh_public_key": "ssh-ed25519 A",
}


def headers(method: str, path: str, query: str = "", secret: bytes = SECRET) -> Mapping[str, str]:
    text = f"{path.removeprefix('/crusoe')}\n{query}\n{method}\n{AT}\n"
    digest = hmac.new(secret, text.encode(), hashlib.sha256).digest()
    signature = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    return {"X-Crusoe-Timestamp": AT, "Authorization": f"Bearer 1.0:sandbox:{signature}"}


async def call(bench: Bench, method: str, path: str, body: Any = None) -> Any:
    return await bench.call(method, path, body, headers=headers(method, path))


async def answer(bench: Bench, method: str, path: str, body: Any = None) -> Any:
    found = await call(bench, method, path, body)
    assert found.is_success, found.text
    return found.json()


async def create(bench: Bench, **more: Any) -> tuple[str, str]:
    """Ids of the operation and of the machine."""
    made = (await answer(bench, "POST", f"{VMS}/instances", ORDER | more))["operation"]
    assert (made["state"], made["result"]) == ("IN_PROGRESS", None)
    return made["operation_id"], made["metadata"]["id"]


async def test_calls_are_signed_over_path_query_method_and_time(bench: Bench) -> None:
    path, query = f"{API}/capacities", f"location=us-northcentral1-a&product_name={SKU}"
    url = f"{path}?product_name={SKU}&location=us-northcentral1-a"
    good = headers("GET", path, query)
    assert (await bench.call("GET", url, headers=good)).status_code == 200
    for wrong in (
        headers("POST", path, query),
        headers("GET", path),
        headers("GET", path, query, b"another secret"),
        {**good, "X-Crusoe-Timestamp": "2026-11-23T09:00:01+00:00"},
        {"Authorization": "Bearer k"},
    ):
        refused = await bench.call("GET", url, headers=wrong)
        assert (refused.status_code, refused.json()["code"]) == (401, "bad_credential")


async def test_capacities_count_and_repeat_a_pair(bench: Bench) -> None:
    await bench.stock("crusoe", SKU, 7, "us-east1-a")
    items = (await answer(bench, "GET", f"{API}/capacities"))["items"]
    assert next(i for i in items if (i["type"], i["location"]) == (SKU, "us-east1-a"))["quantity"] == 7
    pairs = [(item["type"], item["location"]) for item in items]
    assert len(pairs) == len(set(pairs)) + 1
    networks = (await answer(bench, "GET", f"{NET}/ib-networks"))["items"]
    assert {"slice_type": SKU, "quantity": 7} in networks[0]["capacities"]
    types = {row["product_name"]: row for row in (await answer(bench, "GET", f"{VMS}/types"))["items"]}
    assert types["c1a.16x"]["num_gpu"] == 0
    assert "price" not in str(types).lower()


async def test_a_machine_is_created_and_deleted_by_operations(bench: Bench) -> None:
    await bench.stock("crusoe", SKU, 1, "us-east1-a")
    network = (await answer(bench, "GET", f"{NET}/ib-networks"))["items"][0]["id"]
    part = await answer(bench, "POST", f"{NET}/ib-partitions", {"name": "b", "ib_network_id": network})
    operation, machine = await create(bench, host_channel_adapters=[{"ib_partition_id": part["id"]}])
    assert (await answer(bench, "GET", f"{VMS}/instances/{machine}"))["state"] == "STATE_CREATING"
    await bench.advance(3600)
    done = await answer(bench, "GET", f"{VMS}/instances/operations/{operation}")
    assert (done["state"], done["result"]) == ("SUCCEEDED", {"id": machine})
    assert (await answer(bench, "GET", f"{VMS}/instances/{machine}"))["state"] == "STATE_RUNNING"
    await answer(bench, "DELETE", f"{VMS}/instances/{machine}")
    assert (await answer(bench, "GET", f"{VMS}/instances/{machine}"))["state"] == "STATE_DELETING"
    await bench.advance(2)
    assert (await call(bench, "DELETE", f"{VMS}/instances/{machine}")).status_code == 404
    assert (await answer(bench, "GET", f"{VMS}/instances"))["items"] == []
    (entry,) = await bench.ledger(machine)
    assert (entry["tag"], 31.2 <= float(entry["billed_usd"]) < 31.3) == ("broker-1", True)


async def test_want_of_capacity_is_found_out_by_the_operation(bench: Bench) -> None:
    await bench.stock("crusoe", SKU, 0, "us-east1-a")
    operation, machine = await create(bench)
    await bench.advance(3)
    failed = await answer(bench, "GET", f"{VMS}/instances/operations/{operation}")
    assert (failed["state"], failed["result"]["code"]) == ("FAILED", "out_of_stock")
    assert (await call(bench, "GET", f"{VMS}/instances/{machine}")).status_code == 404
    (entry,) = await bench.ledger(machine)
    assert (entry["failed"], entry["billed_usd"]) == (True, "0")


async def test_what_is_wrong_is_said_flat(bench: Bench) -> None:
    nameless = await call(bench, "POST", f"{VMS}/instances", {"type": SKU})
    assert (nameless.status_code, nameless.json()["code"]) == (400, "bad_request")
    lost = {**ORDER, "host_channel_adapters": [{"ib_partition_id": "nowhere"}]}
    assert (await call(bench, "POST", f"{VMS}/instances", lost)).status_code == 404
    elsewhere = f"{API}/projects/p2/compute/vms/instances"
    _, machine = await create(bench)
    assert (await call(bench, "GET", f"{elsewhere}/{machine}")).status_code == 404
