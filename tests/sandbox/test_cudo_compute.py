"""CUDO's own client as an independent client of the sandbox: it sends and parses by CUDO's models.

Its wrapper ``cudo_api`` names the real host in its code; the generated API classes below it take any.
"""

from collections.abc import Iterator
from typing import Any

import cudo_compute
import httpx
import pytest
from cudo_compute.rest import ApiException

from providers.sandbox import SandboxHandle, start_in_background

TYPE, PLACE, PROJECT = "sapphire-rapids-h100", "no-kristiansand-1", "broker"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[SandboxHandle]:
    handle = start_in_background(0, 11)
    stock = {"provider": "cudo", "sku": TYPE, "region": PLACE, "stock": 8}
    httpx.post(f"{handle.url}/_sandbox/market", json=stock).raise_for_status()
    yield handle
    handle.stop()


@pytest.fixture
def machines(sandbox: SandboxHandle) -> Iterator[Any]:
    configuration = cudo_compute.Configuration()
    configuration.host = f"{sandbox.url}/cudo"
    configuration.api_key["Authorization"] = "any-key"
    configuration.api_key_prefix["Authorization"] = "Bearer"
    client = cudo_compute.ApiClient(configuration)
    yield cudo_compute.VirtualMachinesApi(client)
    client.rest_client.pool_manager.clear()


def wish(machine: str) -> Any:
    return cudo_compute.CreateVMBody(
        vm_id=machine,
        machine_type=TYPE,
        data_center_id=PLACE,
        boot_disk_image_id="ubuntu-nvidia-docker",
        boot_disk=cudo_compute.Disk(storage_class="STORAGE_CLASS_NETWORK", size_gib=100, id="disk-1"),
        gpus=8,
        vcpus=64,
        memory_gib=128,
        ssh_key_source="SSH_KEY_SOURCE_PROJECT",
        metadata={"team": "a"},
    )


def test_machine_types_are_read(machines: Any) -> None:
    rows = machines.list_vm_machine_types2().machine_types
    (row,) = [row for row in rows if (row.machine_type, row.data_center_id) == (TYPE, PLACE)]
    assert (row.gpu_model, row.gpu_price_hr.value, row.total_gpu_free) == ("H100 SXM", "1.79", 8)


def test_a_machine_is_made_listed_and_terminated(sandbox: SandboxHandle, machines: Any) -> None:
    assert machines.create_vm(PROJECT, wish("broker-sdk")).id == "broker-sdk"
    with pytest.raises(ApiException, match="already exists"):
        machines.create_vm(PROJECT, wish("broker-sdk"))
    with pytest.raises(ApiException, match="no suitable host"):
        machines.create_vm(PROJECT, wish("broker-sdk-2"))
    httpx.post(f"{sandbox.url}/_sandbox/clock", json={"advance_s": 60}).raise_for_status()
    (seen,) = machines.list_vms(PROJECT).vms
    assert (seen.id, seen.gpu_quantity, seen.short_state, seen.metadata) == (
        "broker-sdk",
        8,
        "runn",
        {"team": "a"},
    )
    assert machines.get_vm(PROJECT, "broker-sdk").vm.datacenter_id == PLACE
    machines.terminate_vm(PROJECT, "broker-sdk")
    httpx.post(f"{sandbox.url}/_sandbox/clock", json={"advance_s": 60}).raise_for_status()
    assert machines.list_vms(PROJECT).vms == []
    with pytest.raises(ApiException) as refused:
        machines.get_vm(PROJECT, "broker-sdk")
    assert refused.value.status == 404
