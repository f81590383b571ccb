"""What every adapter of the registry must do; a new provider adds payloads, not tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import respx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.catalogue import load_gpus, load_operators
from broker.domain.basics import errors
from broker.domain.market.offer import Offer, OfferBatch, Tier
from broker.domain.market.stock_pools import sited
from broker.provider_facts import load_provider_facts
from providers.registry import SPECS
from providers.spec import Capability, ProviderAdapter, ProviderSpec
from tests.contract.damage import damages
from tests.contract.exchanges import (
    FIXTURES,
    OBSERVED_AT,
    SECRET,
    build,
    exchanges,
    lease_facts,
    mount,
    offer_facts,
    payloads,
    play,
)
from tests.depth import examples

NAMES = tuple(SPECS)
EXCHANGES = [
    pytest.param(name, exchange, id=f"{name}: {exchange['case']}")
    for name in NAMES
    for exchange in exchanges(name)
]
NEEDED_OF_FEEDS = {
    ("list_offers", None),
    ("list_offers", "RateLimited"),
    ("list_offers", "ProviderUnavailable"),
    ("list_offers", "PayloadUnreadable"),
}
NEEDED_WITH_KEYS = {("list_offers", "CredentialsRejected")}
NEEDED_OF_SELLERS = {
    ("reserve", None),
    ("reserve", "InsufficientCapacity"),
    ("reserve", "OrderRejected"),
    ("reserve", "OutcomeUnknown"),
    ("find_lease", None),
    ("find_lease", "LeaseNotFound"),
    ("list_leases", None),
    ("release", None),
}


METHOD_OF = {
    Capability.OFFERS: "list_offers",
    Capability.RESERVE: "reserve",
    Capability.FIND_LEASE: "find_lease",
    Capability.LIST_LEASES: "list_leases",
    Capability.RELEASE: "release",
    Capability.DRY_RUN: "dry_run",
}
"""The method of each capability that is one.

The others show in offers (tier, stock, fabric, nodes per order), and ``lease_price`` in hourly leases.
"""


def parsed(spec: ProviderSpec) -> OfferBatch:
    return sited(spec.parse(payloads(spec.name), OBSERVED_AT), load_operators())


def expected(name: str) -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = json.loads((FIXTURES / name / "expected.json").read_text())
    return loaded


@pytest.fixture(params=NAMES)
def spec(request: pytest.FixtureRequest) -> ProviderSpec:
    return SPECS[request.param]


def test_payloads_give_the_offers_worked_out_by_hand(spec: ProviderSpec) -> None:
    wanted, batch = expected(spec.name), parsed(spec)
    by_id = {offer.offer_id: offer for offer in batch.offers}
    for offer in wanted["offers"]:
        assert offer_facts(by_id[offer["offer_id"]], offer) == offer
    assert len(batch.offers) == wanted["offer_count"]


def test_rows_that_cannot_be_sold_are_named_with_a_reason(spec: ProviderSpec) -> None:
    found = {(row.row, row.reason) for row in parsed(spec).rejected}
    wanted = {(row["row"], row["reason"]) for row in expected(spec.name)["rejected"]}
    assert wanted <= found
    assert expected(spec.name).get("rejected_count", len(wanted)) == len(parsed(spec).rejected)


def test_offers_obey_the_house(spec: ProviderSpec) -> None:
    offers = parsed(spec).offers
    assert len({offer.offer_id for offer in offers}) == len(offers)
    for offer in offers:
        assert offer.provider == spec.name
        assert offer.offer_id.startswith(f"{spec.name}/")
        assert " " not in offer.offer_id
        assert offer.sku.gpu in load_gpus()
        assert offer.price_usd_per_node_hour > 0
        assert offer.observed_at == OBSERVED_AT
        assert offer.source
        assert offer.country is None or (len(offer.country) == 2 and offer.country.isupper())
        assert (offer.window is not None) == (offer.tier is Tier.WINDOW)


def test_parsing_is_pure(spec: ProviderSpec) -> None:
    assert parsed(spec) == parsed(spec)


def test_capabilities_are_those_of_the_class(spec: ProviderSpec) -> None:
    for capability, method in METHOD_OF.items():
        assert callable(getattr(spec.adapter, method, None)) == (capability in spec.capabilities), capability


def test_capabilities_are_those_that_offers_show(spec: ProviderSpec) -> None:
    offers = parsed(spec).offers
    shown = {
        Capability.SPOT: any(offer.tier is Tier.SPOT for offer in offers),
        Capability.WINDOWS: any(offer.window is not None for offer in offers),
    }
    for capability, shows in shown.items():
        assert shows == (capability in spec.capabilities), capability


async def test_nodes_per_order_agrees_with_multi_node(spec: ProviderSpec) -> None:
    adapter = build(spec)
    if not isinstance(adapter, ProviderAdapter):
        assert Capability.MULTI_NODE not in spec.capabilities
        return
    try:
        several = any(adapter.nodes_per_order(offer) != 1 for offer in parsed(spec).offers)
    finally:
        await adapter.aclose()
    assert several == (Capability.MULTI_NODE in spec.capabilities)


async def test_leases_tell_their_price_where_the_spec_says_so(spec: ProviderSpec) -> None:
    tells = Capability.LEASE_PRICE in spec.capabilities
    shown = [
        lease
        for exchange in exchanges(spec.name)
        for lease in (exchange.get("leases") or [exchange.get("lease") or {}])
        if lease.get("price_usd_per_node_hour") is not None
    ]
    assert bool(shown) == tells
    if Capability.RESERVE in spec.capabilities:
        assert getattr(spec.adapter, "tells_price", None) is tells


async def test_adapter_says_who_it_is(spec: ProviderSpec) -> None:
    adapter = build(spec)
    try:
        assert (adapter.provider, getattr(adapter, "idempotency", None)) == (spec.name, spec.idempotency)
        assert isinstance(adapter, ProviderAdapter) == (Capability.RESERVE in spec.capabilities)
    finally:
        await adapter.aclose()


def test_facts_name_known_gpus_and_countries(spec: ProviderSpec) -> None:
    facts = load_provider_facts(spec.name)
    assert set(facts.silicon.values()) <= set(load_gpus())
    assert all(len(country) == 2 for country in facts.countries.values())


def test_exchanges_show_every_case_that_reconciling_needs(spec: ProviderSpec) -> None:
    played = exchanges(spec.name)
    shown = {(exchange["call"], exchange.get("raises")) for exchange in played}
    assert shown >= NEEDED_OF_FEEDS
    assert not spec.credentials or shown >= NEEDED_WITH_KEYS
    if Capability.RESERVE in spec.capabilities:
        assert shown >= NEEDED_OF_SELLERS
        assert len([exchange for exchange in played if exchange["call"] == "release"]) > 1


@pytest.mark.parametrize(("name", "exchange"), EXCHANGES)
async def test_exchange(name: str, exchange: Mapping[str, Any]) -> None:
    spec = SPECS[name]
    offers = {offer.offer_id: offer for offer in parsed(spec).offers}
    adapter = build(spec, keyless=exchange.get("keyless", False))
    try:
        with respx.mock(assert_all_called=False) as router:
            mount(router, name, exchange["answers"])
            if exchange.get("raises"):
                await _expect_error(adapter, exchange, offers)
            else:
                _expect_result(await play(adapter, exchange, offers), exchange)
            _expect_sent(router, exchange)
    finally:
        await adapter.aclose()


async def _expect_error(adapter: Any, exchange: Mapping[str, Any], offers: Mapping[str, Offer]) -> None:
    with pytest.raises(getattr(errors, exchange["raises"])) as caught:
        await play(adapter, exchange, offers)
    for name, value in exchange.get("error", {}).items():
        assert getattr(caught.value, name) == value
    assert caught.value.provider == adapter.provider
    assert SECRET not in _everything_said(caught.value)


def _everything_said(error: BaseException | None) -> str:
    said = ""
    while error is not None:
        said += f"{error!r} {error}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return said


def _expect_result(result: Any, exchange: Mapping[str, Any]) -> None:
    if "offers" in exchange:
        assert len(result.offers) == exchange["offers"]
    if "lease" in exchange:
        assert lease_facts(result, exchange["lease"]) == exchange["lease"]
    if "leases" in exchange:
        assert [lease_facts(lease, exchange["leases"][0]) for lease in result] == exchange["leases"]


def _expect_sent(router: respx.MockRouter, exchange: Mapping[str, Any]) -> None:
    if "sent" in exchange:
        body = json.loads(router.calls[-1].request.content)
        assert {key: body.get(key) for key in exchange["sent"]} == exchange["sent"]
    if "sent_calls" in exchange:
        assert [f"{call.request.method} {call.request.url.path}" for call in router.calls] == exchange[
            "sent_calls"
        ]


@pytest.mark.parametrize("name", NAMES)
@settings(
    max_examples=examples(20),
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(data=st.data())
def test_a_damaged_payload_gives_rejected_rows_or_payload_unreadable(name: str, data: st.DataObject) -> None:
    files = payloads(name)
    index = data.draw(st.integers(0, len(files) - 1))
    file_name, body = files[index]
    files[index] = (file_name, data.draw(damages(body)))
    batch = _parse_or_none(SPECS[name], files)
    if batch is not None:
        assert all(offer.price_usd_per_node_hour > 0 for offer in batch.offers)
        assert all(row.reason for row in batch.rejected)


def _parse_or_none(spec: ProviderSpec, files: list[tuple[str, bytes]]) -> OfferBatch | None:
    try:
        return spec.parse(files, OBSERVED_AT)
    except errors.PayloadUnreadable:
        return None
