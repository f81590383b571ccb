"""Training plans: what is asked and sent, what botocore reads in the same answers, how they are bought."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import botocore.auth
import botocore.parsers
import botocore.session
import httpx
import pytest
import respx
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.validate import ParamValidator
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.basics.errors import InsufficientCapacity, OrderRejected, OutcomeUnknown
from broker.domain.basics.window import Segment
from broker.domain.holding.reservation import LeaseState, Order
from broker.domain.market.billing import holding_cost_usd
from broker.domain.market.offer import Offer, RejectedRow
from broker.provider_facts import load_provider_facts
from providers.aws import SPEC
from providers.aws.adapter import AwsAdapter
from providers.aws.plans import PlanOffering, PlanSearch, menu, parse_offerings, parse_plans
from providers.aws.sagemaker import instant_of
from providers.aws.signing import AwsKeys, Scope, signed_headers
from providers.http import ProviderHttp
from providers.payload import RowRejected
from providers.spec import ProviderSettings, Secret
from tests.depth import examples

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
FIXTURES = Path(__file__).parents[2] / "fixtures/providers/aws"
PLANS = json.loads((FIXTURES / "plans-us-east-2.json").read_text())
BASE = "http://aws.test"
TAG = "broker-test-01jc-0-0"
ARN = f"arn:aws:sagemaker:us-east-2:123456789012:training-plan/{TAG}"
TYPE = "ml.p5.48xlarge"
START = datetime(2026, 12, 1, 11, 30, tzinfo=UTC)
MODEL = botocore.session.get_session().get_service_model("sagemaker")


def build(training_plans: str = "hyperpod-cluster") -> AwsAdapter:
    keys = {"access_key_id": Secret("AKID"), "secret_access_key": Secret("hush")}
    options = {**SPEC.options, "regions": "us-east-2", "training_plans": training_plans}
    settings_ = ProviderSettings("aws", BASE, keys, options, min_interval_s=0.0)
    adapter = SPEC.build(settings_, ProviderHttp)
    assert isinstance(adapter, AwsAdapter)
    return adapter


def offers() -> dict[str, Offer]:
    batch = parse_plans(parse_offerings(PLANS), AT)
    return {offer.offer_id: offer for offer in batch.offers}


def of_three_days() -> Offer:
    return offers()[f"aws/plan/us-east-2a/{TYPE}/20261201T1130Z/20261204T1130Z"]


def capacity(start: datetime, hours: float, count: int = 2, zone: str = "us-east-2a") -> dict[str, Any]:
    end = start + timedelta(hours=hours)
    return {
        "InstanceType": TYPE,
        "InstanceCount": count,
        "AvailabilityZone": zone,
        "StartTime": start.timestamp(),
        "EndTime": end.timestamp(),
    }


def offering(fee: str, *capacities: dict[str, Any], offering_id: str = "tpo-1") -> dict[str, Any]:
    return {
        "TrainingPlanOfferingId": offering_id,
        "TargetResources": ["hyperpod-cluster"],
        "UpfrontFee": fee,
        "CurrencyCode": "USD",
        "ReservedCapacityOfferings": list(capacities),
    }


class Sagemaker:
    """Answers by operation, and what was sent."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.sent: list[tuple[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        action = request.headers["x-amz-target"].removeprefix("SageMaker.")
        self.sent.append((action, json.loads(request.content)))
        answer = self._answers[action]
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)


@pytest.fixture
def router() -> Iterator[respx.MockRouter]:
    with respx.mock(assert_all_called=False) as mocked:
        yield mocked


def serve(router: respx.MockRouter, **answers: Any) -> Sagemaker:
    service = Sagemaker(**answers)
    router.post(f"{BASE}/").mock(side_effect=service)
    return service


def checked(action: str, wish: Any) -> str:
    """What botocore's own validation says against the model; empty when nothing."""
    shape = MODEL.operation_model(action).input_shape
    times = {name for name, member in shape.members.items() if member.type_name == "timestamp"}
    wish = {k: datetime.fromtimestamp(v, UTC) if k in times else v for k, v in wish.items()}
    return str(ParamValidator().validate(wish, shape).generate_report())


def test_botocore_reads_the_same_offerings() -> None:
    shape = MODEL.operation_model("SearchTrainingPlanOfferings").output_shape
    answer = {
        "body": (FIXTURES / "plans-us-east-2.json").read_bytes(),
        "headers": {},
        "status_code": 200,
    }
    theirs = {
        row["TrainingPlanOfferingId"]: row
        for row in botocore.parsers.JSONParser().parse(answer, shape)["TrainingPlanOfferings"]
    }
    ours = [found for found in parse_offerings(PLANS) if isinstance(found, PlanOffering)]
    assert len(ours) == 4
    for found in ours:
        row = theirs[found.offering_id]
        parts = row["ReservedCapacityOfferings"]
        assert found.upfront_usd == Decimal(row["UpfrontFee"])
        assert [(s.start, s.end, s.nodes) for s in found.segments] == [
            (part["StartTime"], part["EndTime"], part["InstanceCount"]) for part in parts
        ]
        assert found.hours * 60 == row["DurationHours"] * 60 + row["DurationMinutes"]
        assert {found.zone} == {part["AvailabilityZone"] for part in parts}


def test_what_is_asked_is_what_the_model_takes() -> None:
    searches = menu(load_provider_facts("aws").search, ["us-east-1", "us-east-2", "us-west-2"])
    assert searches
    members = MODEL.operation_model("SearchTrainingPlanOfferings").input_shape.members
    for search in searches:
        wish = search.wish("hyperpod-cluster", (AT, AT + timedelta(days=7)))
        assert checked("SearchTrainingPlanOfferings", wish) == ""
        assert search.instance_type in members["InstanceType"].enum
    targets = members["TargetResources"].member.enum
    assert SPEC.options["training_plans"] in targets


def test_a_plan_in_two_parts_costs_its_whole_fee_for_the_part_that_is_sold() -> None:
    offer = offers()["aws/plan/us-east-2b/ml.p5en.48xlarge/20261207T1130Z/20261211T1130Z"]
    assert offer.window is not None
    (segment,) = offer.window.segments
    assert segment.hours == 96
    assert holding_cost_usd(offer, [segment]) == Decimal("84884.352")
    half = Segment(segment.start, segment.end, 4)
    assert holding_cost_usd(offer, [half]) == Decimal("42442.176")


async def test_one_poll_asks_every_search_and_names_what_is_refused(router: respx.MockRouter) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if "x-amz-target" not in request.headers:
            action = httpx.QueryParams(request.content.decode())["Action"]
            names = {"DescribeSpotPriceHistory": "spotPriceHistorySet"}
            inner = names.get(action, "capacityBlockOfferingSet")
            return httpx.Response(200, text=f"<{action}Response><{inner}/></{action}Response>")
        if json.loads(request.content)["InstanceType"] == "ml.p6-b200.48xlarge":
            body = {"__type": "AccessDeniedException", "Message": "not allowed here"}
            return httpx.Response(400, json=body)
        return httpx.Response(200, json=PLANS)

    route = router.post(f"{BASE}/").mock(side_effect=answer)
    router.get(url__startswith=f"{BASE}/offers/").respond(
        content=(FIXTURES / "index-us-east-1.csv").read_bytes()
    )
    adapter = build()
    batch = await adapter.list_offers(AT)
    await adapter.aclose()
    without_zone = f"aws/plan/us-east-2/{TYPE}/20261201T1130Z/20261204T1130Z"
    assert {o.offer_id for o in batch.offers if "/plan/" in o.offer_id} == {*offers(), without_zone}
    refused = [row for row in batch.rejected if "AccessDenied" in row.reason]
    assert [row.row for row in refused] == ["us-east-2 8 x ml.p6-b200.48xlarge for 168 h"]
    asked = [call for call in route.calls if "x-amz-target" in call.request.headers]
    assert len(asked) == len(menu(load_provider_facts("aws").search, ["us-east-2"]))


async def test_an_account_without_sagemaker_asks_it_nothing(router: respx.MockRouter) -> None:
    router.post(f"{BASE}/").mock(
        side_effect=lambda request: httpx.Response(
            200, text="<DescribeInstancesResponse/>" if b"Instances" in request.content else RESERVATIONS
        )
    )
    adapter = build("none")
    assert await adapter.list_leases() == ()
    await adapter.aclose()
    assert all("x-amz-target" not in call.request.headers for call in router.calls)


RESERVATIONS = "<DescribeCapacityReservationsResponse/>"


async def test_an_order_searches_just_its_window_and_is_what_the_model_takes(
    router: respx.MockRouter,
) -> None:
    found = {"TrainingPlanOfferings": [offering("6877.008", capacity(START, 72))]}
    service = serve(router, SearchTrainingPlanOfferings=found, CreateTrainingPlan={"TrainingPlanArn": ARN})
    adapter = build()
    lease = await adapter.reserve(Order(TAG, of_three_days(), 2))
    await adapter.aclose()
    (searched, wish), (made, order) = service.sent
    assert (searched, made) == ("SearchTrainingPlanOfferings", "CreateTrainingPlan")
    assert checked(searched, wish) == checked(made, order) == ""
    assert (wish["InstanceCount"], wish["DurationHours"]) == (2, 72)
    assert wish["StartTimeAfter"] < START.timestamp() < wish["EndTimeBefore"] - 72 * 3600
    assert order == {
        "TrainingPlanName": TAG,
        "TrainingPlanOfferingId": "tpo-1",
        "Tags": [{"Key": "broker-key", "Value": TAG}],
    }
    assert (lease.reference, lease.tag, lease.state) == (ARN, TAG, LeaseState.PROVISIONING)


async def test_the_cheapest_of_the_same_window_is_taken(router: respx.MockRouter) -> None:
    rows = [
        offering("6900.00", capacity(START, 72), offering_id="tpo-dear"),
        offering("6800.00", capacity(START, 72), offering_id="tpo-cheap"),
        offering("10.00", capacity(START, 48), offering_id="tpo-short"),
        offering("10.00", capacity(START, 72, zone="us-east-2b"), offering_id="tpo-elsewhere"),
        offering("10.00", capacity(START, 72, count=4), offering_id="tpo-large"),
        offering("10.00", capacity(START + timedelta(hours=1), 71), offering_id="tpo-late"),
    ]
    service = serve(
        router,
        SearchTrainingPlanOfferings={"TrainingPlanOfferings": rows},
        CreateTrainingPlan={"TrainingPlanArn": ARN},
    )
    adapter = build()
    await adapter.reserve(Order(TAG, of_three_days(), 2))
    await adapter.aclose()
    assert service.sent[-1][1]["TrainingPlanOfferingId"] == "tpo-cheap"


@pytest.mark.parametrize("tag", ["x" * 65, "under_score", "-leads", "trails-", "a b"])
async def test_a_tag_that_cannot_be_a_name_buys_nothing(router: respx.MockRouter, tag: str) -> None:
    found = {"TrainingPlanOfferings": [offering("6877.008", capacity(START, 72))]}
    service = serve(router, SearchTrainingPlanOfferings=found)
    adapter = build()
    with pytest.raises(OrderRejected, match="name of a training plan"):
        await adapter.reserve(Order(tag, of_three_days(), 2))
    await adapter.aclose()
    assert [action for action, _ in service.sent] == ["SearchTrainingPlanOfferings"]


@pytest.mark.parametrize(
    ("minutes", "bought"), [(-5, False), (0, True), (15, True), (16, False)], ids=lambda value: str(value)
)
async def test_a_plan_that_starts_at_once_may_have_moved_on_a_little(
    router: respx.MockRouter, minutes: int, bought: bool
) -> None:
    offer = offers()[f"aws/plan/us-east-2a/{TYPE}/now/20261124T1130Z"]
    assert offer.window is not None
    segment = offer.window.segments[0]
    start = segment.start + timedelta(minutes=minutes)
    hours = (segment.end - start) / timedelta(hours=1)
    found = {"TrainingPlanOfferings": [offering("3394.00", capacity(start, hours, count=1))]}
    serve(router, SearchTrainingPlanOfferings=found, CreateTrainingPlan={"TrainingPlanArn": ARN})
    adapter = build()
    if bought:
        assert (await adapter.reserve(Order(TAG, offer, 1))).reference == ARN
    else:
        with pytest.raises(InsufficientCapacity):
            await adapter.reserve(Order(TAG, offer, 1))
    await adapter.aclose()


async def test_an_answer_that_names_no_plan_leaves_the_outcome_open(router: respx.MockRouter) -> None:
    found = {"TrainingPlanOfferings": [offering("6877.008", capacity(START, 72))]}
    for answer in ({}, {"TrainingPlanArn": "cr-1"}, httpx.Response(200, text="[]")):
        serve(router, SearchTrainingPlanOfferings=found, CreateTrainingPlan=answer)
        adapter = build()
        with pytest.raises(OutcomeUnknown):
            await adapter.reserve(Order(TAG, of_three_days(), 2))
        await adapter.aclose()


def test_botocore_signs_a_call_to_sagemaker_alike() -> None:
    url, body = "https://api.sagemaker.us-east-2.amazonaws.com/", b'{"MaxResults": 100}'
    headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": "SageMaker.ListTrainingPlans"}
    request = AWSRequest(method="POST", url=url, data=body, headers=headers)
    with patch.object(botocore.auth, "get_current_datetime", return_value=AT.replace(tzinfo=None)):
        botocore.auth.SigV4Auth(Credentials("AKID", "hush"), "sagemaker", "us-east-2").add_auth(request)
    scope = Scope("us-east-2", "sagemaker")
    ours = signed_headers("POST", url, headers, body, AwsKeys("AKID", "hush"), scope, AT)
    assert ours["authorization"] == request.headers["Authorization"]


@settings(max_examples=examples(40), derandomize=True, deadline=None)
@given(
    change=st.dictionaries(
        st.sampled_from(["InstanceType", "InstanceCount", "AvailabilityZone", "StartTime", "EndTime"]),
        st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.floats(allow_nan=False),
        max_size=3,
    ),
    fee=st.text(max_size=8) | st.sampled_from(["1e400", "-1", "NaN", "0.000001", "12.5"]),
)
def test_whatever_stands_in_a_row_it_is_a_plan_or_named(change: dict[str, Any], fee: str) -> None:
    row = offering(fee, {**capacity(START, 72), **change})
    raw = json.loads(json.dumps({"TrainingPlanOfferings": [row]}), parse_float=Decimal)
    (found,) = parse_offerings(raw, "us-east-2")
    assert isinstance(found, RejectedRow) or found.upfront_usd > 0
    batch = parse_plans([found], AT)
    assert all(offer.price_usd_per_node_hour > 0 for offer in batch.offers)


@pytest.mark.parametrize("value", [None, True, "1796124600", 10**12, Decimal("1e300"), []])
def test_what_is_no_time_is_refused(value: object) -> None:
    with pytest.raises(RowRejected, match="StartTime"):
        instant_of(value, "StartTime")


def test_a_search_says_what_it_asks() -> None:
    search = PlanSearch("us-east-2", TYPE, 4, 72)
    assert str(search) == "us-east-2 4 x ml.p5.48xlarge for 72 h"
    assert "StartTimeAfter" not in search.wish("training-job")
