from decimal import Decimal
from typing import Any

from tests.sandbox.conftest import Bench

API = "/cudo/v1"
VM, VMS = f"{API}/projects/broker/vm", f"{API}/projects/broker/vms"
TYPE, PLACE = "sapphire-rapids-h100", "no-kristiansand-1"


def order(vm: str, gpus: int = 8, **more: Any) -> dict[str, Any]:
    return {
        "vmId": vm,
        "machineType": TYPE,
        "dataCenterId": PLACE,
        "bootDiskImageId": "ubuntu-nvidia-docker",
        "gpus": gpus,
        "vcpus": 8 * gpus,
        "memoryGib": 16 * gpus,
        "bootDisk": {"storageClass": "STORAGE_CLASS_NETWORK", "sizeGib": 100},
        "metadata": {"a": "b"},
    } | more


async def rows(bench: Bench) -> dict[tuple[str, str], dict[str, Any]]:
    found = await bench.json("GET", f"{API}/vms/machine-types-2", headers={"Authorization": ""})
    return {(row["machineType"], row["dataCenterId"]): row for row in found["machineTypes"]}


def usd(row: dict[str, Any], name: str) -> Decimal:
    return Decimal(row[name]["value"])


async def test_parts_add_up_to_the_recorded_sizes(bench: Bench) -> None:
    await bench.stock("cudo", TYPE, 21, PLACE)
    found = await rows(bench)
    row = found[TYPE, PLACE]
    eight = 8 * usd(row, "gpuPriceHr") + 64 * usd(row, "vcpuPriceHr") + 128 * usd(row, "memoryGibPriceHr")
    assert eight == Decimal("15.3248")
    assert (row["maxGpuFree"], row["totalGpuFree"]) == (8, 21)
    assert found["epyc-milan", "gb-bournemouth-1"]["gpuModel"] == ""
    assert found["epyc-genoa-l40s-compute", "us-carlsbad-1"]["gpuPriceHr"] == {"value": "0"}
    assert found[TYPE, "us-santaclara-1"]["maxGpuFree"] == 0
    assert usd(found[TYPE, "ca-montreal-3"], "gpuPriceHr") == Decimal("2.5")


async def test_a_machine_has_the_id_it_was_given_and_lives_once(bench: Bench) -> None:
    await bench.stock("cudo", TYPE, 10, PLACE)
    made = await bench.json("POST", VM, order("broker-1"))
    assert (made["id"], made["vm"]["state"], made["vm"]["shortState"]) == ("broker-1", "PENDING", "init")
    again = await bench.call("POST", VM, order("broker-1"))
    assert (again.status_code, again.json()["code"]) == (409, 6)
    full = await bench.call("POST", VM, order("broker-2", 4))
    assert (full.status_code, full.json()["code"]) == (400, 9)
    assert (await rows(bench))[TYPE, PLACE]["totalGpuFree"] == 2
    await bench.advance(1)
    early = await bench.call("POST", f"{VMS}/broker-1/terminate")
    assert "boot" in early.json()["message"]
    await bench.advance(3599)
    (seen,) = (await bench.json("GET", VMS))["VMs"]
    assert (seen["state"], seen["gpuQuantity"], seen["metadata"]) == ("ACTIVE", 8, {"a": "b"})
    await bench.json("POST", f"{VMS}/broker-1/terminate")
    assert (await bench.json("GET", f"{VMS}/broker-1"))["VM"]["state"] == "DELETING"
    await bench.advance(2)
    for method, path in (("GET", f"{VMS}/broker-1"), ("POST", f"{VMS}/broker-1/terminate")):
        gone = await bench.call(method, path)
        assert (gone.status_code, gone.json()["code"]) == (404, 5)
    (entry,) = await bench.ledger("broker-1")
    assert entry["tag"] == "broker-1"
    assert Decimal("15.34") < Decimal(entry["billed_usd"]) < Decimal("15.36")  # an hour with disk and address


async def test_capacity_that_is_lost_and_sizes_that_are_wrong(bench: Bench) -> None:
    await bench.stock("cudo", TYPE, 10, PLACE)
    wish = {"provider": "cudo", "operation": "create", "kind": "async_out_of_capacity"}
    await bench.json("POST", "/_sandbox/faults", wish)
    await bench.json("POST", VM, order("broker-1"))
    await bench.advance(60)
    assert (await bench.json("GET", f"{VMS}/broker-1"))["VM"]["state"] == "FAILED"
    wrong: tuple[dict[str, Any], ...] = (
        {"vcpus": 400},
        {"memoryGib": 2000},
        {"machineType": "nope"},
        {"bootDiskImageId": ""},
        {"gpus": "many"},
    )
    for each in wrong:
        answer = await bench.call("POST", VM, order("broker-2", **each))
        assert (answer.status_code, answer.json()["code"]) == (400, 3)
    unsigned = await bench.call("GET", VMS, headers={"Authorization": ""})
    assert (unsigned.status_code, unsigned.json()["code"]) == (401, 16)
