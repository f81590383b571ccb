"""azure-mgmt-compute as an independent client of the sandbox: it asks, polls and reads by its own model."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.core.pipeline import PipelineRequest
from azure.core.pipeline.policies import SansIOHTTPPolicy
from azure.core.pipeline.transport import RequestsTransport
from azure.mgmt.compute import ComputeManagementClient

from providers.sandbox import SandboxHandle

GROUP = "research"
SIZE = "Standard_ND96isr_H100_v5"
CARD = "Standard_NC96ads_A100_v4"
REGION = "eastus"


class Login(SansIOHTTPPolicy[Any, Any]):
    """A new token for every call; the client's own bearer policy refuses plain HTTP."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url

    def on_request(self, request: PipelineRequest[Any]) -> None:
        form = {"grant_type": "client_credentials", "client_id": "i", "client_secret": "s", "scope": "x"}
        answer = httpx.post(f"{self._url}/azure/tenant-1/oauth2/v2.0/token", data=form, trust_env=False)
        request.http_request.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"


class Nobody:
    def get_token(self, *scopes: str, **more: Any) -> AccessToken:
        raise AssertionError("the policy brings the token")


@pytest.fixture(scope="module")
def azure(sandbox: SandboxHandle) -> Iterator[Any]:
    client: Any = ComputeManagementClient(
        Nobody(),
        "00000000-0000-0000-0000-000000000001",
        base_url=f"{sandbox.url}/azure",
        authentication_policy=Login(sandbox.url),
        transport=RequestsTransport(use_env_settings=False),
        polling_interval=0.1,
        retry_total=0,
    )
    yield client
    client.close()


def advance(sandbox: SandboxHandle, seconds: float) -> None:
    url = f"{sandbox.url}/_sandbox/clock"
    httpx.post(url, json={"advance_s": seconds}, trust_env=False).raise_for_status()


def set_stock(sandbox: SandboxHandle, sku: str, count: int) -> None:
    body = {"provider": "azure", "sku": sku, "region": REGION, "stock": count}
    httpx.post(f"{sandbox.url}/_sandbox/market", json=body, trust_env=False).raise_for_status()


def ledger(sandbox: SandboxHandle, tag: str) -> Any:
    rows = httpx.get(f"{sandbox.url}/_sandbox/ledger", trust_env=False).json()["instances"]
    (found,) = [row for row in rows if row["tag"] == tag]
    return found


def now(sandbox: SandboxHandle) -> datetime:
    return datetime.fromisoformat(httpx.get(f"{sandbox.url}/_sandbox/clock", trust_env=False).json()["now"])


def make_group(azure: Any, name: str, kind: str) -> Any:
    body = {"location": REGION, "properties": {"reservationType": kind}}
    return azure.capacity_reservation_groups.create_or_update(GROUP, name, body)


def ordered(azure: Any, group: str, name: str, size: str, count: int, **schedule: Any) -> Any:
    body = {
        "location": REGION,
        "tags": {"team": "research"},
        "sku": {"name": size, "capacity": count},
        "properties": {"scheduleProfile": schedule} if schedule else {},
    }
    return azure.capacity_reservations.begin_create_or_update(GROUP, group, name, body)


def test_sizes_and_what_can_be_reserved(azure: Any) -> None:
    found = list(azure.resource_skus.list(filter=f"location eq '{REGION}'"))
    facts = {row.name: {c.name: c.value for c in row.capabilities} for row in found}
    assert facts[SIZE]["SupportedCapacityReservationTypes"] == "Block"
    assert facts[CARD]["SupportedCapacityReservationTypes"] == "Targeted"
    assert facts[CARD]["GPUs"] == "4"
    assert len(list(azure.resource_skus.list())) == 190


def test_a_targeted_reservation_from_order_to_deletion(sandbox: SandboxHandle, azure: Any) -> None:
    set_stock(sandbox, CARD, 3)
    assert make_group(azure, "grp-1", "Targeted").properties.reservation_type == "Targeted"
    poller = ordered(azure, "grp-1", "now-1", CARD, 2)
    assert poller.status() == "InProgress"
    advance(sandbox, 3)
    made = poller.result(timeout=120)
    assert (made.properties.provisioning_state, made.sku.capacity) == ("Succeeded", 2)
    view = azure.capacity_reservations.get(GROUP, "grp-1", "now-1", expand="instanceView")
    assert view.properties.instance_view.utilization_info.current_capacity == 2
    (listed,) = azure.capacity_reservations.list_by_capacity_reservation_group(GROUP, "grp-1")
    assert (listed.name, listed.tags) == ("now-1", {"team": "research"})
    (group,) = [
        g for g in azure.capacity_reservation_groups.list_by_resource_group(GROUP) if g.name == "grp-1"
    ]
    assert [member.id for member in group.properties.capacity_reservations] == [listed.id]
    with pytest.raises(HttpResponseError, match="nested resources"):
        azure.capacity_reservation_groups.begin_delete(GROUP, "grp-1")

    advance(sandbox, 3600)
    deletion = azure.capacity_reservations.begin_delete(GROUP, "grp-1", "now-1")
    advance(sandbox, 2)
    deletion.result(timeout=120)
    with pytest.raises(ResourceNotFoundError):
        azure.capacity_reservations.get(GROUP, "grp-1", "now-1")
    azure.capacity_reservation_groups.begin_delete(GROUP, "grp-1").result(timeout=120)
    entry = ledger(sandbox, "now-1")
    assert (entry["nodes"], entry["released_at"] is not None) == (2, True)
    assert 2 * 14.692 <= float(entry["billed_usd"]) < 2 * 14.692 * 1.05


def test_a_block_from_order_to_its_end(sandbox: SandboxHandle, azure: Any) -> None:
    set_stock(sandbox, SIZE, 16)
    start = now(sandbox).date() + timedelta(days=2)
    schedule = {"start": start.isoformat(), "end": (start + timedelta(days=3)).isoformat()}
    make_group(azure, "blocks", "Block")
    poller = ordered(azure, "blocks", "block-1", SIZE, 4, **schedule)
    advance(sandbox, 3)
    profile = poller.result(timeout=120).properties.schedule_profile
    assert profile.start == f"{start}T12:00:00Z"
    assert profile.end == f"{start + timedelta(days=3)}T11:30:00Z"
    with pytest.raises(HttpResponseError) as kept:
        azure.capacity_reservations.begin_delete(GROUP, "blocks", "block-1")
    assert "(OperationNotAllowed)" in str(kept.value)
    assert Decimal(ledger(sandbox, "block-1")["billed_usd"]) == Decimal("98.32") * 4 * 72
    advance(sandbox, 6 * 86400)
    deletion = azure.capacity_reservations.begin_delete(GROUP, "blocks", "block-1")
    advance(sandbox, 2)
    deletion.result(timeout=120)
    assert list(azure.capacity_reservations.list_by_capacity_reservation_group(GROUP, "blocks")) == []
    assert Decimal(ledger(sandbox, "block-1")["billed_usd"]) == Decimal("98.32") * 4 * 72


def test_a_future_reservation_is_locked_while_committed(sandbox: SandboxHandle, azure: Any) -> None:
    start = now(sandbox).date() + timedelta(days=70)
    make_group(azure, "later", "Targeted")
    poller = ordered(azure, "later", "future-1", CARD, 1, start=start.isoformat(), minimumCommitmentDays=5)
    advance(sandbox, 3)
    profile = poller.result(timeout=120).properties.schedule_profile
    assert profile.minimum_commitment_days == 5
    assert profile.modifiable_until.date() == start - timedelta(days=56)
    states = []
    for days in (0, 20, 60):
        advance(sandbox, days * 86400)
        row = azure.capacity_reservations.get(GROUP, "later", "future-1", expand="instanceView")
        states.append(row.properties.instance_view.reservation_state_info.reservation_state)
    assert states == ["Approved", "Committed", "Live"]
    advance(sandbox, 86400)
    azure.capacity_reservations.begin_delete(GROUP, "later", "future-1")


def test_capacity_that_is_not_there_fails_the_operation(sandbox: SandboxHandle, azure: Any) -> None:
    set_stock(sandbox, CARD, 1)
    make_group(azure, "grp-2", "Targeted")
    poller = ordered(azure, "grp-2", "short-1", CARD, 2)
    advance(sandbox, 3)
    with pytest.raises(HttpResponseError) as failed:
        poller.result(timeout=120)
    assert "(AllocationFailed)" in str(failed.value)
    view = azure.capacity_reservations.get(GROUP, "grp-2", "short-1", expand="instanceView")
    assert view.properties.provisioning_state == "Failed"
    assert ledger(sandbox, "short-1")["billed_usd"] == "0"


def test_a_spot_scale_set(sandbox: SandboxHandle, azure: Any) -> None:
    group = "/subscriptions/s/resourceGroups/research/providers/Microsoft.Network"
    subnet = f"{group}/virtualNetworks/broker/subnets/default"
    address = {"name": "p", "properties": {"primary": True, "subnet": {"id": subnet}}}
    interface = {"name": "p", "properties": {"primary": True, "ipConfigurations": [address]}}
    image = {"publisher": "microsoft-dsvm", "offer": "ubuntu-hpc", "sku": "2204", "version": "latest"}
    body = {
        "location": REGION,
        "sku": {"name": SIZE, "tier": "Standard", "capacity": 1},
        "properties": {
            "singlePlacementGroup": True,
            "virtualMachineProfile": {
                "storageProfile": {"imageReference": image, "osDisk": {"createOption": "FromImage"}},
                "osProfile": {"computerNamePrefix": "n", "adminUsername": "azureuser"},
                "networkProfile": {"networkInterfaceConfigurations": [interface]},
                "priority": "Spot",
                "evictionPolicy": "Delete",
            },
        },
    }
    poller = azure.virtual_machine_scale_sets.begin_create_or_update(GROUP, "spot-1", body)
    advance(sandbox, 3)
    assert poller.result(timeout=120).properties.provisioning_state == "Succeeded"
    assert [row.name for row in azure.virtual_machine_scale_sets.list(GROUP)] == ["spot-1"]
    deletion = azure.virtual_machine_scale_sets.begin_delete(GROUP, "spot-1")
    advance(sandbox, 2)
    deletion.result(timeout=120)
    assert list(azure.virtual_machine_scale_sets.list(GROUP)) == []
