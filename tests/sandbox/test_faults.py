from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from providers.sandbox import SandboxHandle
from tests.sandbox.conftest import Bench

LAUNCH = "/lambda/api/v1/instance-operations/launch"
BODY = {
    "region_name": "us-south-2",
    "instance_type_name": "gpu_8x_h100_sxm5",
    "ssh_key_names": ["k"],
    "name": "n",
}


SANDBOX_SEED = 5


@pytest.fixture
def web(sandbox: SandboxHandle) -> Iterator[httpx.Client]:
    headers = {"Authorization": "Bearer k"}
    with httpx.Client(base_url=sandbox.url, headers=headers, timeout=60) as client:
        yield client
        client.delete("/_sandbox/faults")


def arm(web: httpx.Client, kind: str, operation: str = "create", **more: Any) -> None:
    body = {"provider": "lambda", "operation": operation, "kind": kind, **more}
    assert web.post("/_sandbox/faults", json=body).status_code == 201


def held(web: httpx.Client) -> int:
    return len(web.get("/_sandbox/ledger").json()["instances"])


@pytest.mark.parametrize(
    ("kind", "when", "bought"),
    [
        ("timeout_before", "before", 0),
        ("timeout_after", "before", 1),
        ("connection_reset", "before", 0),
        ("connection_reset", "after", 1),
    ],
)
def test_lost_answers_with_and_without_effect(web: httpx.Client, kind: str, when: str, bought: int) -> None:
    before = held(web)
    arm(web, kind, when=when)
    lost = httpx.ReadTimeout if kind.startswith("timeout") else (httpx.ReadError, httpx.RemoteProtocolError)
    with pytest.raises(lost):
        web.post(LAUNCH, json=BODY, timeout=0.6)
    assert held(web) == before + bought
    assert web.post(LAUNCH, json=BODY).status_code == 200


def test_a_bounded_hang_ends_the_connection(web: httpx.Client) -> None:
    arm(web, "timeout_before", "list", seconds=0.05)
    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        web.get("/lambda/api/v1/instance-types")


def test_slow_answers_come_late_but_right(web: httpx.Client) -> None:
    arm(web, "slow", "list", seconds=0.1)
    answer = web.get("/lambda/api/v1/instance-types")
    assert answer.elapsed.total_seconds() >= 0.1
    assert answer.status_code == 200


def test_half_a_body(web: httpx.Client) -> None:
    before = held(web)
    arm(web, "malformed")
    answer = web.post(LAUNCH, json=BODY)
    assert answer.status_code == 200
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        answer.json()
    assert held(web) == before + 1


async def test_a_count_hits_that_many_calls_and_a_span_that_long(bench: Bench) -> None:
    path = "/lambda/api/v1/instance-types"
    fault = {"provider": "lambda", "operation": "list", "kind": "http_500"}
    await bench.json("POST", "/_sandbox/faults", fault | {"count": 2})
    assert [(await bench.call("GET", path)).status_code for _ in range(3)] == [500, 500, 200]
    await bench.json("POST", "/_sandbox/faults", fault | {"seconds": 60})
    assert [(await bench.call("GET", path)).status_code for _ in range(3)] == [500, 500, 500]
    await bench.advance(61)
    assert (await bench.call("GET", path)).status_code == 200
    assert (await bench.json("GET", "/_sandbox/faults"))["faults"] == []


LISTS = {
    "lambda": ("GET", "/lambda/api/v1/instance-types"),
    "runpod": ("GET", "/runpod/v2/catalog/gpus"),
    "vast": ("POST", "/vast/api/v0/bundles/"),
    "verda": ("GET", "/verda/v1/instance-types"),
    "sfcompute": ("GET", "/sfcompute/v0/zones"),
}


@pytest.mark.parametrize("provider", [*LISTS, "aws"])
async def test_refusals_are_in_the_provider_s_own_form(bench: Bench, provider: str) -> None:
    async def listed(kind: str) -> httpx.Response:
        fault = {"provider": provider, "operation": "list", "kind": kind}
        await bench.json("POST", "/_sandbox/faults", fault)
        if provider == "aws":
            return await bench.ec2("DescribeSpotPriceHistory")
        return await bench.call(*LISTS[provider], {})

    limited, broken = await listed("rate_limited"), await listed("http_500")
    assert limited.status_code == (503 if provider == "aws" else 429)
    assert broken.status_code == 500
    if provider in {"lambda", "vast"}:
        assert limited.headers["content-type"].startswith("text/plain")
    if provider == "runpod":
        assert limited.headers["retry-after"] == "12"
    if provider == "aws":
        assert "RequestLimitExceeded" in limited.text


CREATES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "lambda": ("POST", LAUNCH, BODY),
    "runpod": ("POST", "/runpod/v2/pods", {"image": "i", "gpu": {"id": "NVIDIA A100 80GB PCIe", "count": 1}}),
    "vast": ("PUT", "/vast/api/v0/asks/48285735/", {"image": "i"}),
    "verda": (
        "POST",
        "/verda/v1/instances",
        {
            "instance_type": "1H100.80S.32V",
            "image": "u",
            "hostname": "h",
            "description": "d",
            "location_code": "FIN-02",
        },
    ),
}
REFUSED = {"lambda": 400, "runpod": 400, "vast": 400, "verda": 503}
LOST = {"lambda": "terminated", "runpod": "ERROR", "vast": "exited", "verda": "no_capacity"}
SHOWN = {
    "lambda": "/lambda/api/v1/instances/{}",
    "runpod": "/runpod/v2/pods/{}",
    "vast": "/vast/api/v0/instances/{}/",
    "verda": "/verda/v1/instances/{}",
}


@pytest.mark.parametrize("provider", list(CREATES))
async def test_capacity_is_refused_at_once_or_lost_afterwards(bench: Bench, provider: str) -> None:
    fault = {"provider": provider, "operation": "create"}
    await bench.json("POST", "/_sandbox/faults", fault | {"kind": "out_of_capacity"})
    refused = await bench.call(*CREATES[provider])
    assert refused.status_code == REFUSED[provider]
    assert await bench.ledger() == []
    await bench.json("POST", "/_sandbox/faults", fault | {"kind": "async_out_of_capacity"})
    taken = await bench.call(*CREATES[provider])
    assert taken.is_success
    await bench.advance(5)
    (entry,) = await bench.ledger()
    assert (entry["failed"], entry["billed_usd"]) == (True, "0")
    assert LOST[provider] in (await bench.call("GET", SHOWN[provider].format(entry["instance_id"]))).text


async def test_graphql_refuses_capacity_with_status_200(bench: Bench) -> None:
    fault = {"provider": "runpod", "operation": "create", "kind": "out_of_capacity"}
    await bench.json("POST", "/_sandbox/faults", fault)
    query = 'mutation { podFindAndDeployOnDemand(input: {gpuTypeId: "NVIDIA H200", imageName: "i"}) { id } }'
    answer = await bench.json("POST", "/runpod/graphql", {"query": query})
    assert "no longer any instances" in answer["errors"][0]["message"]


async def test_aws_and_sfcompute_lose_capacity_afterwards(bench: Bench) -> None:
    for provider in ("aws", "sfcompute"):
        fault = {"provider": provider, "operation": "create", "kind": "async_out_of_capacity"}
        await bench.json("POST", "/_sandbox/faults", fault)
    await bench.stock("aws", "p5.48xlarge", 4)
    made = await bench.ec2(
        "CreateCapacityReservation",
        InstanceType="p5.48xlarge",
        InstancePlatform="Linux/UNIX",
        InstanceCount="1",
        AvailabilityZone="us-east-1a",
    )
    assert made.status_code == 200
    order = {
        "side": "buy",
        "instance_type": "h100i",
        "quantity": 1,
        "start_at": "2026-11-25T00:00:00Z",
        "end_at": "2026-11-26T00:00:00Z",
        "price": 99999,
    }
    placed = (await bench.json("POST", "/sfcompute/v0/orders", order))["id"]
    await bench.advance(5)
    shown = await bench.json("GET", f"/sfcompute/v0/orders/{placed}")
    assert (shown["status"], shown["rejected_reason"]) == ("rejected", "no_availability")
    assert "<state>failed</state>" in (await bench.ec2("DescribeCapacityReservations")).text
