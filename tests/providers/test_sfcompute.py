"""SF Compute: rectangles to segments, quotes to prices, orders to leases and back."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.basics.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    LeasesUnreadable,
    OrderRejected,
    PayloadUnreadable,
    PriceAboveLimit,
    ProviderError,
)
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import LeaseState, Order
from broker.domain.market.offer import CancelRule, Offer, WindowKind
from broker.domain.market.sku import Form
from broker.provider_facts import load_provider_facts
from providers.payload import RowRejected
from providers.sfcompute import SPEC
from providers.sfcompute.adapter import SfCompute
from providers.sfcompute.offers import (
    Quote,
    QuoteAnswer,
    Zone,
    free_segments,
    parse_offers,
    reference_windows,
    usd_per_node_hour,
)
from providers.sfcompute.orders import Contract, PlacedOrder, buy_body, holdings, sell_body
from providers.spec import ProviderSettings, Secret
from tests.contract.exchanges import one_attempt
from tests.depth import examples

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
DAY = timedelta(days=1)
FIXTURES = Path(__file__).parents[2] / "fixtures/providers/sfcompute"
BASE = "http://sfc.test"
TAG = "broker-test-01jc-0-0"


def offers() -> dict[str, Offer]:
    payloads = [(path.name, path.read_bytes()) for path in sorted(FIXTURES.glob("*.json"))]
    wanted = [(name, raw) for name, raw in payloads if name.startswith(("zones", "quote"))]
    return {offer.offer_id: offer for offer in SPEC.parse(wanted, AT).offers}


def zone(*rectangles: tuple[datetime, datetime, int], **change: object) -> Zone:
    row = {
        "name": "hayesvalley",
        "region": "NorthAmerica",
        "hardware_type": "H100",
        "interconnect_type": "Infiniband",
        "delivery_type": "K8s",
        "available_capacity": [
            {"start_timestamp": int(a.timestamp()), "end_timestamp": int(b.timestamp()), "quantity": n}
            for a, b, n in rectangles
        ],
        **change,
    }
    return Zone.model_validate(row)


def quote(**change: object) -> Quote:
    row = {
        "price": 133440,
        "quantity": 2,
        "start_at": "2026-12-01T00:00:00.000Z",
        "end_at": "2026-12-03T00:00:00.000Z",
        "instance_type": "h100i",
        "zone": "hayesvalley",
        **change,
    }
    return Quote.model_validate(row)


def test_a_zone_is_an_order_book_window_that_can_be_sold_back() -> None:
    offer = offers()["sfcompute/hayesvalley/h100i"]
    terms = offer.window
    assert terms is not None
    assert (terms.kind, terms.cancel) == (WindowKind.ORDERBOOK, CancelRule.RESELL)
    assert (terms.anchor_utc, terms.step_hours, terms.durations_hours) == (None, 1.0, None)
    assert [segment.nodes for segment in terms.segments] == [6, 32]
    assert offer.sku.fabric is not None
    assert offer.sku.fabric.domain == "hayesvalley"
    assert offer.sku.form is Form.CONTAINER


def test_cents_of_a_whole_order_are_dollars_per_node_hour() -> None:
    assert usd_per_node_hour(quote(), AT) == Decimal("13.90")


def test_now_means_the_next_minute() -> None:
    starts_now = quote(start_at="NOW", end_at="2026-11-21T13:00:00Z", price=1600, quantity=1)
    assert usd_per_node_hour(starts_now, AT.replace(second=20)) == Decimal("16.271186")


@pytest.mark.parametrize(
    "change",
    [
        {"end_at": "2026-12-01T00:00:00Z"},
        {"end_at": "later"},
        {"end_at": "2026-12-03T00:00:00"},
        {"start_at": "now"},
        {"price": 10**12},
    ],
)
def test_a_quote_that_makes_no_price_is_rejected(change: dict[str, Any]) -> None:
    with pytest.raises(RowRejected):
        usd_per_node_hour(quote(**change), AT)


def test_the_dearest_of_several_quotes_is_the_price() -> None:
    payload = json.dumps({"data": [zone((AT, AT + 20 * DAY, 8)).model_dump()]}).encode()
    answers = [QuoteAnswer(quote=quote()), QuoteAnswer(quote=quote(price=144000)), QuoteAnswer()]
    (offer,) = parse_offers(payload, {"hayesvalley": answers}, AT).offers
    assert offer.price_usd_per_node_hour == Decimal(15)
    assert offer.native.amount == 144000


def day_quote(number: int, usd: str) -> QuoteAnswer:
    """A day of two nodes at ``usd`` per node-hour; the first is the day after the observation."""
    start = datetime(2026, 11, 22, tzinfo=UTC) + number * DAY
    cents = int(Decimal(usd) * 100 * 2 * 24)
    return QuoteAnswer(quote=quote(price=cents, start_at=start.isoformat(), end_at=(start + DAY).isoformat()))


@given(st.lists(st.integers(1000, 2000), min_size=1, max_size=14), st.data())
def test_a_block_costs_at_most_what_its_offer_says(cents: list[int], data: st.DataObject) -> None:
    prices = [Decimal(found) / 100 for found in cents]
    payload = json.dumps({"data": [zone((AT, AT + 20 * DAY, 8)).model_dump()]}).encode()
    answers = [day_quote(number, str(price)) for number, price in enumerate(prices)]
    found = parse_offers(payload, {"hayesvalley": answers}, AT).offers
    first = datetime(2026, 11, 22, tzinfo=UTC)
    assert found[0].price_usd_per_node_hour == max(prices)
    assert len({offer.offer_id for offer in found}) == len(found)
    for offer in found[1:]:
        assert offer.window is not None
        assert offer.price_usd_per_node_hour < found[0].price_usd_per_node_hour
        assert offer.stock.pool == found[0].stock.pool
        segment = data.draw(st.sampled_from(offer.window.segments))
        asked = prices[(segment.start - first) // DAY : (segment.end - first) // DAY]
        assert asked
        assert max(asked) <= offer.price_usd_per_node_hour


def test_the_cheapest_day_is_offered_at_its_own_price() -> None:
    payload = json.dumps({"data": [zone((AT, AT + 20 * DAY, 8)).model_dump()]}).encode()
    answers = [day_quote(0, "14.00"), day_quote(1, "13.00"), day_quote(2, "15.00"), day_quote(3, "13.95")]
    whole, cheapest, middle = parse_offers(payload, {"hayesvalley": answers}, AT).offers
    day = datetime(2026, 11, 22, tzinfo=UTC)
    assert (whole.offer_id, whole.price_usd_per_node_hour) == ("sfcompute/hayesvalley/h100i", Decimal(15))
    assert (cheapest.offer_id, cheapest.price_usd_per_node_hour) == (
        f"{whole.offer_id}/to-13.00",
        Decimal(13),
    )
    assert middle.price_usd_per_node_hour == Decimal("14.00")
    assert cheapest.window is not None
    assert middle.window is not None
    assert [(s.start, s.end) for s in cheapest.window.segments] == [(day + DAY, day + 2 * DAY)]
    spans = [(s.start, s.end) for s in middle.window.segments]
    assert spans == [(day, day + 2 * DAY), (day + 3 * DAY, day + 4 * DAY)]


def test_free_capacity_starts_on_the_next_whole_hour() -> None:
    now = AT + timedelta(minutes=20)
    (segment,) = free_segments(zone((AT - DAY, AT + DAY + timedelta(minutes=59), 3)), now)
    assert (segment.start, segment.end, segment.nodes) == (AT + timedelta(hours=1), AT + DAY, 3)


@pytest.mark.parametrize(
    ("rectangles", "reason"),
    [
        ([], "no capacity"),
        ([(AT - DAY, AT, 5)], "no capacity"),
        ([(AT, AT + DAY, 0)], "no capacity"),
        ([(AT, AT + DAY, 2), (AT + timedelta(hours=5), AT + 2 * DAY, 2)], "overlap at"),
    ],
)
def test_capacity_that_cannot_be_bought(rectangles: Any, reason: str) -> None:
    with pytest.raises(RowRejected, match=reason):
        free_segments(zone(*rectangles), AT)


@settings(max_examples=examples(25), derandomize=True, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-50, 900), st.integers(-10, 300), st.integers(0, 64)).map(
            lambda r: (AT + timedelta(minutes=r[0] * 7), AT + timedelta(minutes=(r[0] + r[1]) * 7), r[2])
        ),
        max_size=4,
    )
)
def test_segments_are_ordered_whole_hours_ahead(rectangles: list[tuple[datetime, datetime, int]]) -> None:
    try:
        segments = free_segments(zone(*rectangles), AT)
    except RowRejected:
        return
    end = AT
    for segment in segments:
        assert segment.start >= end
        assert segment.start > AT
        assert (segment.start.minute, segment.end.minute) == (0, 0)
        end = segment.end
    asked = reference_windows(load_provider_facts("sfcompute").search, segments)
    assert 1 <= len(asked) <= 16
    for start, hours, nodes in asked:
        holder = next(segment for segment in segments if segment.window.contains(start))
        assert start + hours * timedelta(hours=1) <= holder.end
        assert hours >= 1
        assert 1 <= nodes <= holder.nodes


def order(start: datetime, end: datetime, nodes: int = 2) -> Order:
    return Order(TAG, offers()["sfcompute/hayesvalley/h100i"], nodes, Window(start, end))


def test_the_limit_is_the_offered_total_and_two_percent() -> None:
    body = buy_body(order(AT + DAY, AT + 3 * DAY))
    assert body["price"] == 136109
    assert body["flags"]["ioc"] is True


def test_the_same_order_has_the_same_body() -> None:
    assert buy_body(order(AT + DAY, AT + 3 * DAY)) == buy_body(order(AT + DAY, AT + 3 * DAY))


@pytest.mark.parametrize(
    ("start", "sent"),
    [
        (AT + timedelta(hours=1), "2026-11-21T13:00:00.000Z"),
        (AT, "NOW"),
        (AT - timedelta(minutes=5), "NOW"),
        (AT + timedelta(minutes=10), "NOW"),
    ],
)
def test_starts_are_whole_hours_ahead_or_now(start: datetime, sent: str) -> None:
    assert buy_body(order(start, AT + DAY))["start_at"] == sent


def test_a_start_between_hours_is_refused() -> None:
    with pytest.raises(OrderRejected, match="whole hour"):
        buy_body(order(AT + timedelta(minutes=90), AT + DAY))


def placed(order_id: str, **change: Any) -> PlacedOrder:
    row = {
        "id": order_id,
        "side": "buy",
        "status": "filled",
        "instance_type": "h100i",
        "quantity": 2,
        "start_at": "2026-12-01T00:00:00Z",
        "end_at": "2026-12-03T00:00:00Z",
        **change,
    }
    return PlacedOrder.model_validate(row)


def contract(contract_id: str, state: str = "Active", **change: Any) -> Contract:
    shape = {"intervals": ["2026-12-01T00:00:00Z", "2026-12-03T00:00:00Z"], "quantities": [2, 0]}
    row = {"id": contract_id, "state": state, "instance_type": "h100i", "shape": shape, **change}
    return Contract.model_validate(row)


def test_two_equal_orders_take_two_contracts_and_a_sale_ends_the_one_left_over() -> None:
    orders = [placed("ordr_1"), placed("ordr_2"), placed("ordr_3"), placed("ordr_s", side="sell")]
    found = holdings(orders, [contract("cont_1"), contract("cont_2", "Upcoming")], AT)
    assert [(h.lease.reference, h.lease.state) for h in found] == [
        ("ordr_1", LeaseState.ACTIVE),
        ("ordr_2", LeaseState.SCHEDULED),
        ("ordr_3", LeaseState.ENDED),
    ]


def at_hour(hour: int) -> str:
    return f"2026-11-20T{hour:02}:00:00Z"


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("contracts", [[], [contract("cont_2")]])
def test_a_block_that_is_bought_again_was_not_sold_back(
    newest_first: bool, contracts: list[Contract]
) -> None:
    orders = [
        placed("ordr_1", created_at=at_hour(1)),
        placed("ordr_s", side="sell", created_at=at_hour(2), execution_price="700"),
        placed("ordr_2", created_at=at_hour(3)),
    ]
    found = holdings(orders[::-1] if newest_first else orders, contracts, AT)
    leases = {holding.lease.reference: holding.lease for holding in found}
    assert leases["ordr_1"].state is LeaseState.ENDED
    assert leases["ordr_1"].credit_usd == 7
    assert leases["ordr_2"].state is (LeaseState.ACTIVE if contracts else LeaseState.PROVISIONING)
    assert leases["ordr_2"].credit_usd is None


def test_each_sale_pays_for_the_block_that_was_held_then() -> None:
    orders = [
        placed("ordr_2", created_at=at_hour(3)),
        placed("s2", side="sell", created_at=at_hour(4), execution_price="900"),
        placed("ordr_1", created_at=at_hour(1)),
        placed("s1", side="sell", created_at=at_hour(2), execution_price="700"),
    ]
    found = {holding.lease.reference: holding.lease for holding in holdings(orders, [], AT)}
    assert [found[name].credit_usd for name in ("ordr_1", "ordr_2")] == [7, 9]


def test_a_filled_order_without_contract_ends_with_its_time() -> None:
    late = datetime(2026, 12, 3, tzinfo=UTC)
    assert holdings([placed("o")], [], AT)[0].lease.state is LeaseState.PROVISIONING
    assert holdings([placed("o")], [], late)[0].lease.state is LeaseState.ENDED


def test_a_contract_of_nothing_is_no_lease() -> None:
    sold = contract("c", shape={"intervals": ["2026-12-01T00:00:00Z"], "quantities": [0]})
    assert holdings([], [sold], AT) == ()


@settings(max_examples=examples(25), derandomize=True, deadline=None)
@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))
def test_no_lease_is_lost_or_shown_twice(buys: int, contracts: int, sells: int) -> None:
    orders = [placed(f"b{n}") for n in range(buys)] + [placed(f"s{n}", side="sell") for n in range(sells)]
    found = holdings(orders, [contract(f"c{n}") for n in range(contracts)], AT)
    references = [h.lease.reference for h in found]
    assert len(set(references)) == len(references) == max(buys, contracts)
    assert sum(h.lease.state is LeaseState.ACTIVE for h in found) == contracts


def test_a_running_contract_is_sold_from_now_and_a_coming_one_from_its_start() -> None:
    assert sell_body(contract("c"), names_contract=True)["start_at"] == "NOW"
    coming = sell_body(contract("c", "Upcoming"), names_contract=False)
    assert coming["start_at"] == "2026-12-01T00:00:00.000Z"
    assert coming["colocate_with"] == ["c"]
    assert "contract_id" not in coming


@pytest.fixture
def router() -> Iterator[respx.MockRouter]:
    with respx.mock(assert_all_called=False) as mocked:
        yield mocked


def adapter() -> SfCompute:
    settings_ = ProviderSettings("sfcompute", BASE, {"api_key": Secret("hush")}, {}, min_interval_s=0.0)
    built = SPEC.build(settings_, one_attempt)
    assert isinstance(built, SfCompute)
    return built


async def test_quotes_of_a_poll_are_bounded(router: respx.MockRouter) -> None:
    rows = [zone((AT, AT + 20 * DAY, 8), name=f"zone{n}").model_dump() for n in range(40)]
    router.get(f"{BASE}/v0/zones").respond(json={"object": "list", "data": rows})
    asked = router.get(url__startswith=f"{BASE}/v0/quote").respond(
        json={"object": "quote", "side": "buy", "quote": None, "no_quote_reason": "no_availability"}
    )
    batch = await adapter().list_offers(AT)
    assert asked.call_count == load_provider_facts("sfcompute").search["max_calls"]
    assert len(batch.rejected) == 40
    assert any("too many quotes" in row.reason for row in batch.rejected)
    query = asked.calls[0].request.url.params
    assert (query["side"], query["quantity"], query["duration"]) == ("buy", "4", "39600")
    assert query["min_start_date"] == query["max_start_date"] == "2026-11-21T13:00:00.000Z"
    assert asked.calls[0].request.headers["authorization"] == "Bearer hush"


async def test_the_tag_is_the_idempotency_key(router: respx.MockRouter) -> None:
    created = {"object": "order", "status": "pending", "id": "ordr_1", "idempotency_key": TAG}
    buys = router.post(f"{BASE}/v0/orders").respond(201, json=created)
    router.get(f"{BASE}/v0/orders/ordr_1").respond(json={"id": "ordr_1", "status": "filled"})
    built = adapter()
    first = await built.reserve(order(AT + DAY, AT + 3 * DAY))
    again = await built.reserve(order(AT + DAY, AT + 3 * DAY))
    assert first.reference == again.reference == "ordr_1"
    assert [call.request.headers["idempotency-key"] for call in buys.calls] == [TAG, TAG]
    assert buys.calls[0].request.content == buys.calls[1].request.content


async def test_a_block_that_the_market_does_not_have_is_a_lack_of_capacity(router: respx.MockRouter) -> None:
    """Both forms in which an order is turned down: at once, and after it was taken."""
    refusal = {"error": {"type": "unprocessable_entity", "message": "no_availability"}}
    router.post(f"{BASE}/v0/orders").respond(422, json=refusal)
    with pytest.raises(InsufficientCapacity, match="no such block"):
        await adapter().reserve(order(AT + DAY, AT + 3 * DAY))
    created = {"object": "order", "status": "pending", "id": "ordr_1", "idempotency_key": TAG}
    router.post(f"{BASE}/v0/orders").respond(201, json=created)
    rejected = {"id": "ordr_1", "status": "rejected", "rejected_reason": "no_availability"}
    router.get(f"{BASE}/v0/orders/ordr_1").respond(json=rejected)
    with pytest.raises(InsufficientCapacity, match="no such block"):
        await adapter().reserve(order(AT + DAY, AT + 3 * DAY))


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (
            {"quote": quote(price=142752, quantity=2).model_dump(mode="json")},
            PriceAboveLimit,
            "asks $14.87 per node-hour for 22 Nov 12:00 to 24 Nov 12:00 UTC; the limit was $14.52",
        ),
        ({"quote": None, "no_quote_reason": "no_availability"}, InsufficientCapacity, "2 nodes are not free"),
    ],
)
async def test_an_unfilled_order_says_what_the_block_costs_now(
    router: respx.MockRouter, answer: dict[str, Any], error: type[ProviderError], words: str
) -> None:
    created = {"object": "order", "status": "pending", "id": "ordr_1", "idempotency_key": TAG}
    router.post(f"{BASE}/v0/orders").respond(201, json=created)
    router.get(f"{BASE}/v0/orders/ordr_1").respond(json={"id": "ordr_1", "status": "cancelled"})
    asked = router.get(url__startswith=f"{BASE}/v0/quote").respond(json={"object": "quote", **answer})
    limited = replace(order(AT + DAY, AT + 3 * DAY), limit_usd_per_node_hour=Decimal("14.52"))
    with pytest.raises(error, match=re.escape(words)):
        await adapter().reserve(limited)
    query = asked.calls[0].request.url.params
    assert (query["cluster"], query["quantity"], query["duration"]) == ("hayesvalley", "2", "172800")


def test_an_order_is_limited_by_what_its_reservation_allows() -> None:
    limited = replace(order(AT + DAY, AT + 3 * DAY), limit_usd_per_node_hour=Decimal("14.52"))
    assert buy_body(limited)["price"] == 14_52 * 2 * 48


async def test_all_pages_of_orders_are_read(router: respx.MockRouter) -> None:
    def page(request: httpx.Request) -> httpx.Response:
        start = int(request.url.params["offset"])
        rows = [placed(f"o{n}").model_dump(mode="json") for n in range(start, min(start + 100, 150))]
        return httpx.Response(200, json={"object": "list", "data": rows, "has_more": start < 100})

    router.get(url__startswith=f"{BASE}/v0/orders").mock(side_effect=page)
    router.get(f"{BASE}/v0/contracts").respond(json={"object": "list", "data": []})
    assert len(await adapter().list_leases()) == 150


async def test_a_list_that_fails_ends_the_call_for_the_other(router: respx.MockRouter) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def silence(_: httpx.Request) -> httpx.Response:
        asked.set()
        try:
            return await asyncio.Future()
        finally:
            ended.set()

    async def refusal(_: httpx.Request) -> httpx.Response:
        await asked.wait()
        return httpx.Response(401, json={})

    router.get(url__startswith=f"{BASE}/v0/orders").mock(side_effect=refusal)
    router.get(f"{BASE}/v0/contracts").mock(side_effect=silence)
    with pytest.raises(CredentialsRejected):
        await adapter().list_leases()
    assert ended.is_set()


async def test_a_list_that_is_none_is_unreadable(router: respx.MockRouter) -> None:
    router.get(url__startswith=f"{BASE}/v0/orders").respond(json={"object": "list", "data": None})
    router.get(f"{BASE}/v0/contracts").respond(json={"object": "list", "data": []})
    with pytest.raises(LeasesUnreadable, match=r"GET .*/v0/orders answered"):
        await adapter().list_leases()


def test_quotes_alone_are_no_market() -> None:
    raw = (FIXTURES / "quote-yerba-168h.json").read_bytes()
    with pytest.raises(PayloadUnreadable, match="no list of zones"):
        SPEC.parse([("quote-yerba-168h.json", raw)], AT)
