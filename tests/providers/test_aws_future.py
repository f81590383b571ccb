"""Capacity reservations that start later: what is offered, what is sent, and what botocore makes of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import botocore.session
import httpx
import pytest
import respx
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.basics.errors import OrderRejected
from broker.domain.basics.window import Segment, Window
from broker.domain.holding.holding_orders import Intent, ends_by_itself
from broker.domain.holding.reservation import LeaseState, Order
from broker.domain.holding.window_orders import find_order_problems
from broker.domain.market.billing import holding_cost_usd
from broker.domain.market.offer import Offer, Tier, WindowKind
from providers.aws import SPEC
from providers.aws.adapter import AwsAdapter
from providers.aws.future import LEAD_DAYS, LEAST_COMMITMENT_DAYS, MOST_AHEAD_DAYS, terms
from providers.aws.query import parse_xml
from providers.aws.reservations import parse_reservations
from providers.http import ProviderHttp
from providers.spec import ProviderSettings, Secret
from tests.depth import examples

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
DAY = timedelta(days=1)
FIXTURES = Path(__file__).parents[2] / "fixtures/providers/aws"
BASE = "http://aws.test"
TAG = "broker-test-01jc-0-0"


def offers() -> list[Offer]:
    return list(SPEC.parse([("p.csv", (FIXTURES / "index-us-east-1.csv").read_bytes())], AT).offers)


def later_starts() -> dict[str, Offer]:
    return {o.sku.name: o for o in offers() if o.tier is Tier.WINDOW}


def test_g_types_of_enough_cores_are_sold_ahead_at_their_on_demand_price() -> None:
    now = {o.sku.name: o for o in offers() if o.tier is Tier.ON_DEMAND}
    found = later_starts()
    assert {"g6e.48xlarge", "g5.8xlarge", "g4dn.metal", "g7e.8xlarge"} <= set(found)
    assert not {"gr6.8xlarge", "p5.48xlarge", "p4d.24xlarge"} & set(found)
    for name, offer in found.items():
        assert offer.price_usd_per_node_hour == now[name].price_usd_per_node_hour
        assert (offer.upfront_usd, offer.stock.nodes) == (None, None)
        assert offer.window is not None
        assert offer.window.kind is WindowKind.REQUEST
        assert not ends_by_itself(offer)


def test_small_nodes_are_sold_ahead_from_32_vcpus_in_all() -> None:
    """EC2's own example: eight m5.xlarge of four vCPUs are 32."""
    found = {name: offer.window for name, offer in later_starts().items()}
    least = {name: window.least_sold(1) for name, window in found.items() if window is not None}
    assert least["g6.xlarge"] == 8
    assert (least["g6.4xlarge"], least["g5.8xlarge"], least["g6e.48xlarge"]) == (2, 1, 1)
    assert found["g6.xlarge"] is not None
    assert found["g6.xlarge"].sells(8)
    assert not found["g6.xlarge"].sells(7)


@settings(max_examples=examples(40), derandomize=True, deadline=None)
@given(
    seen=st.integers(0, 400 * 24 * 60).map(lambda minutes: AT + timedelta(minutes=minutes)),
    start_days=st.integers(0, 140),
    days=st.integers(1, 150),
)
def test_every_window_that_the_terms_allow_is_one_that_ec2_takes(
    seen: datetime, start_days: int, days: int
) -> None:
    window = terms(seen)
    (free,) = window.segments
    start = seen.replace(hour=0, minute=0, second=0, microsecond=0) + start_days * DAY
    wish = Window(start, start + days * DAY)
    is_inside = free.start <= wish.start and wish.end <= free.end
    if is_inside and window.durations_hours is not None and wish.hours in window.durations_hours:
        assert LEAD_DAYS * DAY <= wish.start - seen <= MOST_AHEAD_DAYS * DAY
        assert wish.duration >= LEAST_COMMITMENT_DAYS * DAY


def test_an_order_off_the_terms_is_named_before_anything_is_sent() -> None:
    offer = later_starts()["g6e.48xlarge"]
    good = datetime(2026, 12, 1, tzinfo=UTC)

    def problems(start: datetime, days: float) -> tuple[Any, ...]:
        intent = Intent(offer, 2, start, start + days * DAY)
        return find_order_problems(intent, AT, timedelta(minutes=5))

    assert problems(good, 14) == ()
    assert problems(good, 13)
    assert problems(good + timedelta(hours=5), 14)
    assert problems(AT + 3 * DAY, 14)
    assert problems(good + 120 * DAY, 14)


def test_a_short_holding_costs_the_least_commitment() -> None:
    offer = later_starts()["g6e.48xlarge"]
    start = datetime(2026, 12, 1, tzinfo=UTC)
    fortnight = offer.price_usd_per_node_hour * 14 * 24
    assert holding_cost_usd(offer, [Segment(start, start + DAY, 1)]) == fortnight
    assert holding_cost_usd(offer, [Segment(start, start + 14 * DAY, 2)]) == 2 * fortnight


def build() -> AwsAdapter:
    keys = {"access_key_id": Secret("AKID"), "secret_access_key": Secret("hush")}
    settings_ = ProviderSettings("aws", BASE, keys, SPEC.options, min_interval_s=0.0)
    adapter = SPEC.build(settings_, ProviderHttp)
    assert isinstance(adapter, AwsAdapter)
    return adapter


@respx.mock
async def test_what_is_sent_is_what_the_model_takes() -> None:
    route = respx.post(f"{BASE}/").respond(content=(FIXTURES / "answers/create-later.xml").read_bytes())
    start = datetime(2026, 12, 1, tzinfo=UTC)
    window, adapter = Window(start, start + 14 * DAY), build()
    lease = await adapter.reserve(Order(TAG, later_starts()["g6e.48xlarge"], 2, window))
    await adapter.aclose()
    sent = dict(parse_qsl(route.calls[0].request.content.decode()))
    model = (
        botocore.session.get_session().get_service_model("ec2").operation_model("CreateCapacityReservation")
    )
    known = set(model.input_shape.members) | {"Action", "Version"}
    assert {name.partition(".")[0] for name in sent} <= known
    wanted = {
        "ClientToken": f"{TAG}-us-east-1a",
        "InstanceCount": "2",
        "InstanceMatchCriteria": "targeted",
        "StartDate": "2026-12-01T00:00:00Z",
        "CommitmentDuration": str(14 * 86400),
        "DeliveryPreference": "incremental",
        "EndDateType": "limited",
        "EndDate": "2026-12-15T01:00:00Z",
        "TagSpecifications.1.Tag.1.Value": TAG,
    }
    assert {name: sent.get(name) for name in wanted} == wanted
    assert (lease.state, lease.window) == (LeaseState.PROVISIONING, window)


@respx.mock
async def test_the_next_zone_is_tried_when_one_does_not_have_the_type() -> None:
    refusal = "<Response><Errors><Error><Code>Unsupported</Code></Error></Errors></Response>"
    made = (FIXTURES / "answers/create-later.xml").read_bytes()
    route = respx.post(f"{BASE}/").mock(
        side_effect=[httpx.Response(400, text=refusal), httpx.Response(200, content=made)]
    )
    start = datetime(2026, 12, 1, tzinfo=UTC)
    adapter = build()
    window = Window(start, start + 14 * DAY)
    await adapter.reserve(Order(TAG, later_starts()["g6e.48xlarge"], 2, window))
    await adapter.aclose()
    sent = [dict(parse_qsl(call.request.content.decode())) for call in route.calls]
    assert [params["AvailabilityZone"] for params in sent] == ["us-east-1a", "us-east-1b"]
    assert len({params["ClientToken"] for params in sent}) == 2


async def test_a_later_start_without_a_window_is_refused() -> None:
    adapter = build()
    with pytest.raises(OrderRejected, match="sold for a window"):
        await adapter.reserve(Order(TAG, later_starts()["g6e.48xlarge"], 1))
    await adapter.aclose()


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("assessing", LeaseState.PROVISIONING),
        ("scheduled", LeaseState.SCHEDULED),
        ("delayed", LeaseState.SCHEDULED),
        ("active", LeaseState.ACTIVE),
        ("cancelling", LeaseState.ENDING),
        ("unsupported", LeaseState.FAILED),
        ("unavailable", LeaseState.UNKNOWN),
        ("a word of tomorrow", LeaseState.UNKNOWN),
    ],
)
def test_states(word: str, state: LeaseState) -> None:
    text = (FIXTURES / "answers/reservation-assessing.xml").read_text().replace("assessing", word)
    (found,) = parse_reservations([parse_xml(text)], "us-east-1")
    assert found.lease.state is state
    assert not found.is_block
    start = datetime(2026, 12, 1, tzinfo=UTC)
    assert found.lease.window == Window(start, start + 14 * DAY)
