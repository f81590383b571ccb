"""Scaleway's own Python SDK as an independent client of the sandbox."""

from typing import Any

import httpx
import pytest
from scaleway import Client
from scaleway.block.v1 import BlockV1API, VolumeStatus
from scaleway.instance.v1 import ServerAction, ServerState, ServerTypesAvailability
from scaleway.instance.v1.custom_api import InstanceUtilsV1API
from scaleway_core.api import ScalewayException

from providers.sandbox import SandboxHandle

ZONE, SKU = "fr-par-2", "H100-1-80G"


@pytest.fixture
def client(sandbox: SandboxHandle) -> Client:
    return Client(
        access_key="SCWXXXXXXXXXXXXXXXXX",
        secret_key="11111111-1111-4111-8111-111111111111",
        api_url=f"{sandbox.url}/scaleway",
        default_project_id="22222222-2222-4222-8222-222222222222",
        default_zone=ZONE,
    )


@pytest.fixture
def api(client: Client) -> InstanceUtilsV1API:
    return InstanceUtilsV1API(client)


def control(sandbox: SandboxHandle, name: str, **body: Any) -> None:
    httpx.post(f"{sandbox.url}/_sandbox/{name}", json=body).raise_for_status()


def test_types_and_their_stock_are_read(api: InstanceUtilsV1API, sandbox: SandboxHandle) -> None:
    types = api.list_servers_types(per_page=100)
    assert int(types.total_count) == len(types.servers)
    found = types.servers[SKU]
    assert (found.hourly_price, found.gpu, found.ram) == (2.8665, 1, 240 * 2**30)
    assert found.gpu_info is not None
    assert (found.gpu_info.gpu_name, found.gpu_info.gpu_memory) == ("H100-PCIe", 80 * 2**30)
    control(sandbox, "market", provider="scaleway", sku=SKU, stock=1)
    stock = api.get_server_types_availability(per_page=100).servers
    assert stock[SKU].availability == ServerTypesAvailability.SCARCE


def test_a_server_is_made_started_listed_and_terminated(
    api: InstanceUtilsV1API, client: Client, sandbox: SandboxHandle
) -> None:
    control(sandbox, "market", provider="scaleway", sku=SKU, stock=2)
    made = api.create_server(commercial_type=SKU, name="by-sdk", image="ubuntu", tags=["sdk"]).server
    assert made is not None
    assert made.state == ServerState.STOPPED
    assert made.project == client.default_project_id
    api.server_action(server_id=made.id, action=ServerAction.POWERON)
    control(sandbox, "clock", advance_s=60)
    running = api.wait_instance_server(server_id=made.id, zone=ZONE).server
    assert running is not None
    assert (running.state, running.allowed_actions) == (ServerState.RUNNING, [ServerAction.TERMINATE])
    assert [server.id for server in api.list_servers_all(tags=["sdk"])] == [made.id]
    api.server_action(server_id=made.id, action=ServerAction.TERMINATE)
    control(sandbox, "clock", advance_s=60)
    assert api.list_servers_all() == []
    block = BlockV1API(client)
    (left,) = block.list_volumes_all(include_deleted=False)
    assert (left.id, left.status) == (made.volumes["0"].id, VolumeStatus.AVAILABLE)
    block.update_volume(volume_id=left.id, tags=["ended"])
    assert [one.id for one in block.list_volumes_all(include_deleted=False, tags=["ended"])] == [left.id]
    block.delete_volume(volume_id=left.id)
    assert block.list_volumes_all(include_deleted=False) == []


def test_a_stopped_server_is_deleted(api: InstanceUtilsV1API, sandbox: SandboxHandle) -> None:
    control(sandbox, "market", provider="scaleway", sku=SKU, stock=2)
    made = api.create_server(commercial_type=SKU, image="ubuntu").server
    assert made is not None
    api.delete_server(server_id=made.id)
    with pytest.raises(ScalewayException, match="unknown_resource") as caught:
        api.get_server(server_id=made.id)
    assert caught.value.status_code == 404


def test_errors_arrive_with_their_type(api: InstanceUtilsV1API, sandbox: SandboxHandle) -> None:
    control(sandbox, "market", provider="scaleway", sku=SKU, stock=0)
    with pytest.raises(ScalewayException, match="out_of_stock") as caught:
        api.create_server(commercial_type=SKU, image="ubuntu")
    assert caught.value.status_code == 412
