"""SageMaker's protocol on the wire: signatures, errors in its form, and whatever a client sends."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.sandbox import create_sandbox
from tests.depth import examples
from tests.sandbox.conftest import SIGNED, START, Bench

OPERATIONS = (
    "SearchTrainingPlanOfferings",
    "CreateTrainingPlan",
    "DescribeTrainingPlan",
    "ListTrainingPlans",
    "Fly",
)
ORDER = '{"TrainingPlanName": "NAME", "TrainingPlanOfferingId": "x"}'
GOOD = SIGNED.format(region="us-east-1").replace("/ec2/", "/sagemaker/")


def headers(operation: str, authorization: str = GOOD) -> dict[str, str]:
    return {
        "Authorization": authorization,
        "X-Amz-Target": f"SageMaker.{operation}",
        "Content-Type": "application/x-amz-json-1.1",
    }


async def post(bench: Bench, operation: str, body: str, authorization: str = GOOD) -> httpx.Response:
    return await bench.client.post("/aws/", content=body, headers=headers(operation, authorization))


async def test_a_call_must_be_signed_for_sagemaker(bench: Bench) -> None:
    cases = {
        "": (403, "MissingAuthenticationTokenException"),
        "Bearer key": (403, "MissingAuthenticationTokenException"),
        SIGNED.format(region="us-east-1"): (403, "InvalidSignatureException"),
        GOOD: (200, ""),
    }
    for authorization, (status, code) in cases.items():
        answer = await post(bench, "ListTrainingPlans", "{}", authorization)
        assert (answer.status_code, answer.json().get("__type", "")) == (status, code)


@pytest.mark.parametrize(
    ("operation", "body", "code"),
    [
        ("Fly", "{}", "UnknownOperationException"),
        ("ListTrainingPlans", "no json", "SerializationException"),
        ("ListTrainingPlans", "[]", "SerializationException"),
        ("ListTrainingPlans", '{"MaxResults": 101}', "ValidationException"),
        ("CreateTrainingPlan", ORDER.replace("NAME", "a_b"), "ValidationException"),
        ("CreateTrainingPlan", ORDER.replace("NAME", "ab"), "ResourceNotFound"),
        ("DescribeTrainingPlan", "{}", "ValidationException"),
    ],
)  # fmt: skip
async def test_errors_are_json_with_their_type(bench: Bench, operation: str, body: str, code: str) -> None:
    answer = await post(bench, operation, body)
    assert answer.status_code == 400
    assert answer.json()["__type"] == answer.headers["x-amzn-errortype"] == code
    assert answer.headers["content-type"] == "application/x-amz-json-1.1"


async def test_plans_are_not_among_ec2s_types_and_say_that_their_price_is_not_recorded(bench: Bench) -> None:
    shown = await bench.ec2("DescribeInstanceTypeOfferings")
    assert "ml." not in shown.text
    cells = (await bench.json("GET", "/_sandbox/market"))["cells"]
    plans = [cell for cell in cells if cell["sku"].startswith("ml.")]
    assert plans
    assert {cell["source"] for cell in plans} == {"illustrative, not recorded"}


async def test_the_price_list_has_a_version_that_changes_with_a_price(bench: Bench) -> None:
    path = "/aws/offers/v1.0/aws/AmazonEC2/current/us-east-1/index.csv"
    version = (await bench.client.get(path)).headers["etag"]
    again = await bench.client.get(path, headers={"If-None-Match": version})
    assert (again.status_code, again.content) == (304, b"")
    change = {"provider": "aws", "sku": "g6.xlarge", "region": "us-east-1", "price_factor": 1.5}
    await bench.json("POST", "/_sandbox/market", change)
    newer = await bench.client.get(path, headers={"If-None-Match": version})
    assert newer.status_code == 200
    assert newer.headers["etag"] != version


NAMES = [
    "InstanceType",
    "InstanceCount",
    "DurationHours",
    "StartTimeAfter",
    "EndTimeBefore",
    "TargetResources",
    "TrainingPlanName",
    "TrainingPlanOfferingId",
    "Tags",
    "MaxResults",
    "NextToken",
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["ml.p5.48xlarge", "hyperpod-cluster", "x", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=5,
)
SOUND = {
    "InstanceType": "ml.p5.48xlarge",
    "InstanceCount": 2,
    "DurationHours": 96,
    "TargetResources": ["hyperpod-cluster"],
    "TrainingPlanName": "p",
}
EC2_NAMES = (
    "StartDate EndDate CommitmentDuration DeliveryPreference InstanceMatchCriteria EndDateType ClientToken"
)


async def send(body: Any, params: dict[str, str]) -> list[int]:
    app = create_sandbox(7, clock_start=START)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://sandbox") as client:
        found = [
            await client.post("/aws/", content=json.dumps(body), headers=headers(operation))
            for operation in OPERATIONS
        ]
        data = {"Action": "CreateCapacityReservation", "Version": "2016-11-15", **params}
        signed = {"Authorization": SIGNED.format(region="us-east-1")}
        found.append(await client.post("/aws/", data=data, headers=signed))
    app.close()
    return [answer.status_code for answer in found]


@settings(max_examples=examples(15), derandomize=True, deadline=None)
@given(
    body=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6).map(lambda change: {**SOUND, **change})
    | VALUES,
    params=st.dictionaries(
        st.sampled_from(EC2_NAMES.split(" ")),
        st.sampled_from(
            ["2026-12-10T00:00:00Z", "9999-12-31T23:59:59Z", "targeted", "incremental", "limited"]
        )
        | st.integers(-1, 3 * 10**8).map(str),
        max_size=6,
    ).map(
        lambda change: {
            "InstanceType": "g6e.48xlarge",
            "InstanceCount": "1",
            "InstancePlatform": "Linux/UNIX",
            "AvailabilityZone": "us-east-1a",
            **change,
        }
    ),
)
def test_any_body_is_answered(body: Any, params: dict[str, str]) -> None:
    assert max(asyncio.run(send(body, params))) < 500
