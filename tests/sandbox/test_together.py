"""Together's sandbox, by its own rules and by Together's official client over a real socket."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
import together

from providers.sandbox import SandboxHandle
from tests.sandbox.conftest import START, Bench

API = "/together/v1/compute"
ORDER: dict[str, Any] = {
    "cluster_name": "broker-1",
    "region": "us-central-8",
    "gpu_type": "H100_SXM",
    "num_gpus": 16,
    "billing_type": "ON_DEMAND",
}


SANDBOX_SEED = 5


@pytest.fixture
def client(sandbox: SandboxHandle) -> Iterator[together.Together]:
    transport = httpx.Client(trust_env=False)
    url = f"{sandbox.url}/together/v1"
    with together.Together(api_key="k", base_url=url, http_client=transport, max_retries=0) as built:
        yield built


def scheduled(start_days: float, days: float) -> dict[str, Any]:
    start = START + timedelta(days=start_days)
    return {
        **ORDER,
        "billing_type": "SCHEDULED_CAPACITY",
        "reservation_start_time": start.isoformat(),
        "reservation_end_time": (start + timedelta(days=days)).isoformat(),
    }


async def phases(bench: Bench, cluster_id: str) -> tuple[str, list[str]]:
    row = await bench.json("GET", f"{API}/clusters/{cluster_id}")
    passed = [each["phase"].removeprefix("CLUSTER_PHASE_") for each in row["phase_transitions"]]
    return row["status"], passed


def test_the_official_client_lists_creates_and_deletes(client: together.Together) -> None:
    regions = {region.name: region for region in client.beta.clusters.list_regions().regions}
    home = regions["us-central-8"]
    assert "H100_SXM" in home.supported_instance_types
    made = client.beta.clusters.create(
        cluster_name="sdk-1",
        region=home.name,
        gpu_type="H100_SXM",
        num_gpus=16,
        billing_type="ON_DEMAND",
        cluster_type="SLURM",
        slurm_shm_size_gib=64,
        nvidia_version_id=home.driver_versions[0].id,
    )
    assert (made.cluster_name, made.num_gpus, made.cluster_type) == ("sdk-1", 16, "SLURM")
    seen = client.beta.clusters.retrieve(made.cluster_id)
    assert (seen.status, seen.phase_transitions[0].phase) == (
        "WaitingForControlPlaneNodes",
        "CLUSTER_PHASE_QUEUED",
    )
    assert made.cluster_id in [each.cluster_id for each in client.beta.clusters.list().clusters]
    assert client.beta.clusters.delete(made.cluster_id).cluster_id == made.cluster_id


def test_the_official_client_schedules_a_window(client: together.Together, sandbox: SandboxHandle) -> None:
    with httpx.Client(trust_env=False) as web:
        now = web.get(f"{sandbox.url}/_sandbox/clock").json()["now"]
    made = client.beta.clusters.create(
        cluster_name="sdk-2",
        region="us-central-8",
        gpu_type="H100_SXM",
        num_gpus=8,
        billing_type="SCHEDULED_CAPACITY",
        reservation_start_time=now.replace("2026", "2027", 1),
        reservation_end_time=now.replace("2026", "2028", 1),
    )
    assert made.reservation_start_time is not None
    assert made.phase_transitions[-1].phase == "CLUSTER_PHASE_SCHEDULED"


def test_the_official_client_understands_the_refusals(client: together.Together) -> None:
    with pytest.raises(together.BadRequestError, match="multiple of 8"):
        client.beta.clusters.create(**{**ORDER, "num_gpus": 12})
    with pytest.raises(together.BadRequestError, match="Not enough capacity"):
        client.beta.clusters.create(**{**ORDER, "num_gpus": 80_000})
    with pytest.raises(together.NotFoundError, match="not found"):
        client.beta.clusters.retrieve("nothing")


async def test_a_cluster_walks_through_its_phases_and_is_billed_by_the_hour(bench: Bench) -> None:
    made = await bench.json("POST", f"{API}/clusters", ORDER)
    await bench.advance(1.2)
    assert (await phases(bench, made["cluster_id"]))[0] == "InstallingDrivers"
    await bench.advance(3600)
    status, passed = await phases(bench, made["cluster_id"])
    assert (status, passed[0], passed[-1]) == ("Ready", "QUEUED", "READY")
    assert (await bench.call("DELETE", f"{API}/clusters/{made['cluster_id']}")).status_code == 200
    assert (await phases(bench, made["cluster_id"]))[0] == "Deleting"
    await bench.advance(2)
    assert (await bench.call("GET", f"{API}/clusters/{made['cluster_id']}")).status_code == 404
    (entry,) = await bench.ledger(made["cluster_id"])
    assert entry["nodes"] == 2
    assert 63.84 <= float(entry["billed_usd"]) < 64  # two nodes at the recorded 31.92


@pytest.mark.parametrize(("days", "usd"), [(7, "29.52"), (31, "27.6"), (100, "25.52"), (2, "29.52")])
async def test_a_scheduled_cluster_is_paid_upfront_by_its_length(bench: Bench, days: int, usd: str) -> None:
    made = await bench.json("POST", f"{API}/clusters", scheduled(1, days))
    (entry,) = await bench.ledger(made["cluster_id"])
    assert float(entry["billed_usd"]) == pytest.approx(float(usd) * 2 * 24 * days)
    assert (await phases(bench, made["cluster_id"]))[1] == ["QUEUED", "SCHEDULED"]
    await bench.advance(86400 + 10)
    assert (await phases(bench, made["cluster_id"]))[0] == "Ready"
    await bench.advance(days * 86400)
    assert (await bench.call("GET", f"{API}/clusters/{made['cluster_id']}")).status_code == 404
    (entry,) = await bench.ledger(made["cluster_id"])
    assert entry["released_at"] is not None


async def test_capacity_lost_afterwards_shows_as_failed_tests(bench: Bench) -> None:
    fault = {"provider": "together", "operation": "create", "kind": "async_out_of_capacity"}
    await bench.json("POST", "/_sandbox/faults", fault)
    made = await bench.json("POST", f"{API}/clusters", ORDER)
    await bench.advance(10)
    assert (await phases(bench, made["cluster_id"]))[1][-1] == "ACCEPTANCE_TESTS_FAILED"
    assert (await bench.ledger(made["cluster_id"]))[0]["failed"]
