"""The AWS adapter's calls: what is sent, how often, and what botocore reads in the same answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import botocore.parsers
import botocore.session
import httpx
import pytest
import respx

from broker.domain.basics.errors import PayloadUnreadable, PriceAboveLimit
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Order
from broker.domain.market.offer import Offer, Tier
from broker.provider_facts import load_provider_facts
from providers.aws import SPEC
from providers.aws.adapter import AwsAdapter
from providers.aws.reservations import client_token
from providers.spec import ProviderSettings, Secret
from tests.contract.exchanges import one_attempt

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
FIXTURES = Path(__file__).parents[2] / "fixtures/providers/aws"
BASE = "http://aws.test"
TAG = "broker-test-01jc-0-0"
SEARCH = "SageMaker.SearchTrainingPlanOfferings"
NO_PLANS: dict[str, Any] = {"TrainingPlanOfferings": []}
LATER_STARTS = 37
"""G types of 32 vCPUs and more in the price list's fixture."""
EMPTY = {
    "DescribeSpotPriceHistory": "spotPriceHistorySet",
    "DescribeCapacityBlockOfferings": "capacityBlockOfferingSet",
}


def build(base_url: str = BASE, **options: str) -> AwsAdapter:
    settings = ProviderSettings(
        "aws",
        base_url,
        {
            "access_key_id": Secret("AKID"),
            "secret_access_key": Secret("hush"),
            "session_token": Secret("tok"),
        },
        {**SPEC.options, "regions": "us-east-1,us-east-2", **options},
        min_interval_s=0.0,
    )
    adapter = SPEC.build(settings, one_attempt)
    assert isinstance(adapter, AwsAdapter)
    return adapter


def form(request: httpx.Request) -> dict[str, str]:
    return dict(parse_qsl(request.content.decode(), keep_blank_values=True))


def xml(action: str, inner: str) -> httpx.Response:
    return httpx.Response(200, text=f'<{action}Response xmlns="http://ec2/">{inner}</{action}Response>')


def empty(action: str) -> httpx.Response:
    return xml(action, f"<{EMPTY[action]}/><nextToken/>")


@pytest.fixture
def router() -> Iterator[respx.MockRouter]:
    with respx.mock(assert_all_called=False) as mocked:
        price_list = (FIXTURES / "index-us-east-1.csv").read_bytes()
        mocked.get(url__regex=rf"^{BASE}/offers/.*us-east-1/index\.csv$").respond(content=price_list)
        mocked.get(url__regex=rf"^{BASE}/offers/.*us-east-2/index\.csv$").respond(content=price_list)
        yield mocked


def answer_with(router: respx.MockRouter, answer: Callable[[dict[str, str]], httpx.Response]) -> respx.Route:
    """Answers EC2's calls; SageMaker has nothing on sale."""
    router.post(f"{BASE}/", headers__contains={"x-amz-target": SEARCH}).respond(json=NO_PLANS)
    return router.post(f"{BASE}/").mock(side_effect=lambda request: answer(form(request)))


async def test_one_poll_reads_all_three_markets(router: respx.MockRouter) -> None:
    def answer(params: dict[str, str]) -> httpx.Response:
        if params["Action"] == "DescribeSpotPriceHistory":
            return httpx.Response(200, content=(FIXTURES / "spot-us-east-2.xml").read_bytes())
        if params["InstanceType"] == "p5.48xlarge" and params["InstanceCount"] == "16":
            return httpx.Response(200, content=(FIXTURES / "blocks-us-east-2.xml").read_bytes())
        return empty(params["Action"])

    answer_with(router, answer)
    batch = await build().list_offers(AT)
    tiers = Counter(offer.tier for offer in batch.offers)
    assert tiers[Tier.ON_DEMAND] == 49
    assert tiers[Tier.WINDOW] == 6 + LATER_STARTS
    assert tiers[Tier.SPOT] > 20
    assert len({offer.offer_id for offer in batch.offers}) == len(batch.offers)


async def test_calls_are_signed_for_their_region(router: respx.MockRouter) -> None:
    route = answer_with(router, lambda params: empty(params["Action"]))
    await build().list_offers(AT)
    scopes = Counter(call.request.headers["authorization"].split("/")[2] for call in route.calls)
    assert set(scopes) == {"us-east-1", "us-east-2"}
    first = route.calls[0].request
    assert first.headers["x-amz-security-token"] == "tok"
    assert first.headers["content-type"].startswith("application/x-www-form-urlencoded")
    assert form(first)["Version"] == "2016-11-15"


async def test_real_hosts_are_those_of_the_regions() -> None:
    with respx.mock(assert_all_called=False) as router:
        lists = router.get(url__startswith="https://pricing.us-east-1.amazonaws.com/offers/").respond(
            content=(FIXTURES / "index-us-east-1.csv").read_bytes()
        )
        ec2 = router.post(url__regex=r"^https://ec2\.us-east-[12]\.amazonaws\.com/$").mock(
            side_effect=lambda request: empty(form(request)["Action"])
        )
        plans = router.post(url__regex=r"^https://api\.sagemaker\.us-east-[12]\.amazonaws\.com/$").respond(
            json=NO_PLANS
        )
        adapter = build(SPEC.base_url)
        await adapter.list_offers(AT)
        await adapter.list_offers(AT + timedelta(hours=1))
        await adapter.list_offers(AT + timedelta(hours=7))
    assert lists.call_count == 4
    assert {call.request.url.host for call in ec2.calls} == {
        "ec2.us-east-1.amazonaws.com",
        "ec2.us-east-2.amazonaws.com",
    }
    assert {call.request.url.host for call in plans.calls} == {
        "api.sagemaker.us-east-1.amazonaws.com",
        "api.sagemaker.us-east-2.amazonaws.com",
    }


async def test_pages_are_followed_and_calls_bounded(router: respx.MockRouter) -> None:
    def answer(params: dict[str, str]) -> httpx.Response:
        if params["Action"] == "DescribeSpotPriceHistory":
            return empty(params["Action"])
        page = int(params.get("NextToken", "0")) + 1
        return xml(params["Action"], f"<capacityBlockOfferingSet/><nextToken>{page}</nextToken>")

    route = answer_with(router, answer)
    batch = await build().list_offers(AT)
    most = load_provider_facts("aws").search["blocks"]["max_calls"]
    searches = [call for call in route.calls if b"CapacityBlock" in call.request.content]
    assert len(searches) == most
    assert any("call limit" in row.reason for row in batch.rejected)


async def test_pages_without_end_are_given_up(router: respx.MockRouter) -> None:
    calls = 0

    def page(params: dict[str, str]) -> httpx.Response:
        nonlocal calls
        calls += 1
        return xml(params["Action"], f"<spotPriceHistorySet/><nextToken>{calls}</nextToken>")

    answer_with(router, page)
    with pytest.raises(PayloadUnreadable, match="does not end"):
        await build(regions="us-east-1").list_offers(AT)
    assert calls == 100


async def test_pages_in_a_circle_end(router: respx.MockRouter) -> None:
    answer_with(
        router,
        lambda params: xml(params["Action"], "<spotPriceHistorySet/><nextToken>again</nextToken>"),
    )
    with pytest.raises(PayloadUnreadable, match="repeats a page"):
        await build().list_offers(AT)


async def test_a_search_that_a_region_refuses_is_named_and_the_rest_stays(router: respx.MockRouter) -> None:
    refusal = (
        "<Response><Errors><Error><Code>Unsupported</Code><Message>no</Message></Error></Errors></Response>"
    )

    def answer(params: dict[str, str]) -> httpx.Response:
        if params.get("InstanceType") == "p6-b300.48xlarge":
            return httpx.Response(400, text=refusal)
        return empty(params["Action"])

    answer_with(router, answer)
    batch = await build().list_offers(AT)
    assert len(batch.offers) == 49 + LATER_STARTS
    assert [row.reason for row in batch.rejected if "x p6-b300" in row.row] == ["aws: Unsupported: no"]


def block_offer() -> Offer:
    payloads = [("b.xml", (FIXTURES / "blocks-us-east-2.xml").read_bytes())]
    offers = {offer.offer_id: offer for offer in SPEC.parse(payloads, AT).offers}
    return offers["aws/block/us-east-2b/p5.48xlarge/now/20261126T1130Z"]


def search_of(start: str, fee: str = "2606.736250") -> str:
    return (
        "<capacityBlockOfferingSet><item><capacityBlockOfferingId>cb-7</capacityBlockOfferingId>"
        "<instanceType>p5.48xlarge</instanceType><availabilityZone>us-east-2b</availabilityZone>"
        f"<instanceCount>1</instanceCount><startDate>{start}</startDate><endDate>2026-11-26T11:30:00Z</endDate>"
        f"<upfrontFee>{fee}</upfrontFee><currencyCode>USD</currencyCode></item></capacityBlockOfferingSet>"
    )


async def test_a_block_that_starts_at_once_may_have_moved_on_a_little(router: respx.MockRouter) -> None:
    sent: list[dict[str, str]] = []

    def answer(params: dict[str, str]) -> httpx.Response:
        sent.append(params)
        if params["Action"] == "DescribeCapacityBlockOfferings":
            return xml(params["Action"], search_of("2026-11-24T05:05:00Z"))
        return httpx.Response(200, content=(FIXTURES / "answers/purchase.xml").read_bytes())

    answer_with(router, answer)
    await build().reserve(Order(TAG, block_offer(), 1))
    search, purchase = sent
    assert (search["CapacityDurationHours"], search["InstanceCount"]) == ("48", "1")
    assert "StartDateRange" not in search
    assert purchase["CapacityBlockOfferingId"] == "cb-7"
    assert purchase["InstancePlatform"] == "Linux/UNIX"
    assert (purchase["TagSpecification.1.Tag.1.Key"], purchase["TagSpecification.1.Tag.1.Value"]) == (
        "broker-key",
        TAG,
    )


@pytest.mark.parametrize(("rise", "bought"), [("1.00", True), ("1.02", True), ("1.03", False)])
async def test_a_block_is_not_bought_over_two_percent_dearer(
    router: respx.MockRouter, rise: str, bought: bool
) -> None:
    fee = Decimal("2606.736250") * Decimal(rise)
    actions: list[str] = []

    def answer(params: dict[str, str]) -> httpx.Response:
        actions.append(params["Action"])
        if params["Action"] == "DescribeCapacityBlockOfferings":
            return xml(params["Action"], search_of("2026-11-24T04:55:00Z", f"{fee:f}"))
        return httpx.Response(200, content=(FIXTURES / "answers/purchase.xml").read_bytes())

    answer_with(router, answer)
    adapter = build()
    if bought:
        await adapter.reserve(Order(TAG, block_offer(), 1))
    else:
        with pytest.raises(PriceAboveLimit, match="the limit was"):
            await adapter.reserve(Order(TAG, block_offer(), 1))
    assert ("PurchaseCapacityBlock" in actions) is bought


async def test_a_reservation_says_everything_that_limits_it(router: respx.MockRouter) -> None:
    sent: list[dict[str, str]] = []

    def answer(params: dict[str, str]) -> httpx.Response:
        sent.append(params)
        return httpx.Response(200, content=(FIXTURES / "answers/create.xml").read_bytes())

    answer_with(router, answer)
    payloads = [("p.csv", (FIXTURES / "index-us-east-1.csv").read_bytes())]
    offers = {offer.offer_id: offer for offer in SPEC.parse(payloads, AT).offers}
    window = Window(AT, AT + timedelta(hours=30))
    await build().reserve(Order(TAG, offers["aws/on_demand/us-east-1/p5.48xlarge"], 3, window))
    wanted = {
        "ClientToken": f"{TAG}-us-east-1a",
        "InstanceType": "p5.48xlarge",
        "InstancePlatform": "Linux/UNIX",
        "InstanceCount": "3",
        "AvailabilityZone": "us-east-1a",
        "EndDateType": "limited",
        "EndDate": "2026-11-22T18:00:00Z",
        "InstanceMatchCriteria": "targeted",
        "TagSpecifications.1.ResourceType": "capacity-reservation",
        "TagSpecifications.1.Tag.1.Value": TAG,
    }
    assert {key: sent[0].get(key) for key in wanted} == wanted


def test_client_tokens_are_short_and_repeatable() -> None:
    assert client_token("t") == "t"
    long = "broker-" + "x" * 80
    assert client_token(long) == client_token(long)
    assert len(client_token(long)) == len(client_token(long, "us-east-1a")) == 64
    assert client_token(long, "us-east-1a") != client_token(long, "us-east-1b")


ANSWERS = {
    "DescribeCapacityBlockOfferings": [
        "blocks-us-east-2.xml",
        "answers/search.xml",
        "answers/search-empty.xml",
    ],
    "DescribeSpotPriceHistory": ["spot-us-east-1.xml", "spot-us-east-2.xml"],
    "PurchaseCapacityBlock": ["answers/purchase.xml"],
    "CreateCapacityReservation": ["answers/create.xml"],
    "DescribeCapacityReservations": ["answers/reservations.xml"],
    "DescribeInstances": ["answers/instances.xml"],
    "RunInstances": ["answers/run.xml"],
    "TerminateInstances": ["answers/terminate.xml"],
    "CancelCapacityReservation": ["answers/cancel.xml"],
}


def by_botocore(action: str, name: str) -> dict[str, Any]:
    model = botocore.session.get_session().get_service_model("ec2").operation_model(action)
    answer = {"body": (FIXTURES / name).read_bytes(), "headers": {}, "status_code": 200}
    parsed: dict[str, Any] = botocore.parsers.EC2QueryParser().parse(answer, model.output_shape)
    return parsed


@pytest.mark.parametrize(("action", "name"), [(a, n) for a, names in ANSWERS.items() for n in names])
def test_botocore_reads_the_recorded_answers(action: str, name: str) -> None:
    assert by_botocore(action, name)["ResponseMetadata"]["RequestId"]


def test_botocore_sees_the_same_blocks_and_prices() -> None:
    theirs = by_botocore("DescribeCapacityBlockOfferings", "blocks-us-east-2.xml")["CapacityBlockOfferings"]
    fees = {Decimal(block["UpfrontFee"]) for block in theirs}
    ours = SPEC.parse([("b.xml", (FIXTURES / "blocks-us-east-2.xml").read_bytes())], AT).offers
    assert {offer.upfront_usd for offer in ours} <= fees
    prices = by_botocore("DescribeSpotPriceHistory", "spot-us-east-1.xml")["SpotPriceHistory"]
    spot = SPEC.parse([("s.xml", (FIXTURES / "spot-us-east-1.xml").read_bytes())], AT).offers
    assert {(p["AvailabilityZone"], p["InstanceType"], Decimal(p["SpotPrice"])) for p in prices} == {
        (offer.zone, offer.sku.name, offer.native.amount) for offer in spot
    }
