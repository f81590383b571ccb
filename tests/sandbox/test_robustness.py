"""Whatever a client sends, the answer is the provider's own refusal, never a crash of the sandbox."""

import asyncio
from typing import Any

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.sandbox import Sandbox, create_sandbox
from tests.depth import examples
from tests.sandbox.conftest import SIGNED, START

PATHS = [
    ("POST", "/lambda/api/v1/instance-operations/launch"),
    ("POST", "/lambda/api/v1/instance-operations/terminate"),
    ("POST", "/runpod/graphql"),
    ("POST", "/runpod/v2/pods"),
    ("POST", "/vast/api/v0/bundles/"),
    ("PUT", "/vast/api/v0/search/asks/"),
    ("PUT", "/vast/api/v0/asks/48285735/"),
    ("POST", "/verda/v1/oauth2/token"),
    ("POST", "/verda/v1/instances"),
    ("PUT", "/verda/v1/instances"),
    ("POST", "/sfcompute/v0/orders"),
    ("POST", "/vultr/v2/instances"),
    ("POST", "/vultr/v2/bare-metals"),
    ("POST", "/digitalocean/v2/droplets"),
    ("POST", "/scaleway/instance/v1/zones/fr-par-2/servers"),
    ("POST", "/_sandbox/faults"),
    ("POST", "/_sandbox/market"),
    ("POST", "/_sandbox/clock"),
]
_WORDS = (
    "region_name instance_type_name ssh_key_names instance_ids name tags query variables gpu compute image"
    " gpuTypeId podCount dataCenterIds type order limit allocated_storage num_gpus price disk label"
    " grant_type instance_type hostname description location_code id action side quantity start_at"
    " end_at flags contract_id colocate_with provider sku stock price_factor"
    " plan os_id region size names commercial_type"
)
WORDS = _WORDS.split(" ")
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["h100i", "buy", "sell", "NOW", "gpu_8x_h100_sxm5", "us-south-2", "NVIDIA H200"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=8,
)
BODIES = st.dictionaries(st.sampled_from(WORDS), VALUES, max_size=10) | VALUES
ACTIONS = [
    "DescribeCapacityBlockOfferings",
    "PurchaseCapacityBlock",
    "CreateCapacityReservation",
    "DescribeCapacityReservations",
    "RunInstances",
    "TerminateInstances",
    "DescribeSpotPriceHistory",
]
NAMES = (
    "InstanceType InstanceCount CapacityDurationHours StartDateRange EndDateRange MaxResults NextToken"
    " EndDate InstanceId.1 MinCount MaxCount ImageId AvailabilityZone"
)
PARAMETERS = st.dictionaries(
    st.sampled_from(NAMES.split(" ")),
    st.sampled_from(["p5.48xlarge", "us-east-1a", "2026-12-01T00:00:00Z", "state"])
    | st.integers(-1, 10**5).map(str)
    | st.text(max_size=6),
    max_size=8,
)


async def send(app: Sandbox, requests: list[dict[str, Any]]) -> list[int]:
    headers = {"Authorization": "Bearer k", "X-Auth-Token": "k"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://sandbox", headers=headers) as client:
        found = []
        for request in requests:
            await client.delete("/_sandbox/faults")
            found.append((await client.request(**request)).status_code)
        return found


@settings(max_examples=examples(20), derandomize=True, deadline=None)
@given(BODIES)
def test_any_body_is_answered(body: Any) -> None:
    app = create_sandbox(7, clock_start=START)
    statuses = asyncio.run(send(app, [{"method": m, "url": u, "json": body} for m, u in PATHS]))
    app.close()
    assert max(statuses) < 500


@settings(max_examples=examples(20), derandomize=True, deadline=None)
@given(PARAMETERS)
def test_any_parameters_are_answered(parameters: dict[str, str]) -> None:
    app = create_sandbox(7, clock_start=START)
    headers = {"Authorization": SIGNED.format(region="us-east-1")}
    requests = [
        {"method": "POST", "url": "/aws/", "data": {"Action": action, **parameters}, "headers": headers}
        for action in ACTIONS
    ]
    statuses = asyncio.run(send(app, requests))
    app.close()
    assert max(statuses) < 500
