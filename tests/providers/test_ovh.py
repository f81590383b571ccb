"""OVH's signature, its catalogue in other currencies, and capacity that is lost after the order."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal

import httpx
import pytest

from broker.domain.holding.reservation import LeaseState, Order
from providers.http import ProviderHttp
from providers.ovh import SPEC
from providers.ovh.adapter import Ovh, signature
from providers.ovh.offers import parse_offers
from providers.spec import settings_from_environment
from tests.contract.exchanges import FIXTURES, OBSERVED_AT

SANDBOX_SEED = 7


def test_the_signature_is_that_of_the_documented_text() -> None:
    """SHA-1 of ``secret+consumer+GET+https://eu.api.ovh.com/v1/me++1764000000``, by sha1sum."""
    found = signature(("secret", "consumer"), "GET", "https://eu.api.ovh.com/v1/me", "", "1764000000")
    assert found == "$1$e68e7a363397260cabf42a960967f4e9ce6cad13"


def test_dollars_need_no_rate_and_the_memory_of_all_gpus_fits_too() -> None:
    catalogue = json.loads((FIXTURES / "ovh" / "catalog.json").read_text())
    catalogue["locale"]["currencyCode"] = "USD"
    offers = parse_offers(json.dumps(catalogue).encode(), None, OBSERVED_AT).offers
    (h200,) = [offer for offer in offers if offer.sku.name == "h200-1920"]
    assert (h200.price_usd_per_node_hour, h200.source) == (Decimal(42), "GET /order/catalog/public/cloud")
    assert (h200.region, h200.reference["flavor_id"]) == ("any", "")


@pytest.fixture
async def adapter(sandbox: str) -> AsyncIterator[Ovh]:
    settings = settings_from_environment(SPEC, {}, sandbox)
    assert settings is not None
    built = Ovh(settings, ProviderHttp)
    yield built
    await built.aclose()


async def test_capacity_that_is_lost_after_the_order_shows_as_failed(adapter: Ovh, sandbox: str) -> None:
    offer = (await adapter.list_offers(datetime.now(UTC))).offers[0]
    fault = {"provider": "ovh", "operation": "create", "kind": "async_out_of_capacity", "count": 1}
    httpx.post(f"{sandbox}/_sandbox/faults", json=fault, trust_env=False).raise_for_status()
    lease = await adapter.reserve(Order("broker-async", offer, 1))
    wait = {"advance_s": 60}
    httpx.post(f"{sandbox}/_sandbox/clock", json=wait, trust_env=False).raise_for_status()
    found = await adapter.find_lease(lease.reference, lease.region)
    assert (found.state, found.detail) == (LeaseState.FAILED, "ERROR")
    await adapter.release(lease)
