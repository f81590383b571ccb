"""Vast's adapter against a market that shows 64 rows a search and 25 instances a page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import httpx
import pytest

from broker.domain.holding.reservation import Order
from broker.domain.market.offer import Tier
from providers.registry import build_adapters, configured
from providers.spec import ProviderAdapter
from tests.fakes.market_control import control, hasty


@pytest.fixture
async def vast(sandbox: str) -> AsyncIterator[ProviderAdapter]:
    adapter = build_adapters({"vast": configured({}, sandbox)["vast"]}, hasty)["vast"]
    assert isinstance(adapter, ProviderAdapter)
    yield adapter
    await adapter.aclose()


async def test_whatever_can_be_bought_is_offered(vast: ProviderAdapter, sandbox: str) -> None:
    batch = await vast.list_offers(datetime.now(UTC))
    assert {offer.reference["ask_id"] for offer in batch.offers} == _to_be_bought(sandbox)
    assert {offer.tier for offer in batch.offers} == {Tier.ON_DEMAND, Tier.SPOT}


def _to_be_bought(sandbox: str) -> set[str]:
    """Ids of what can be bought, by searches that each match fewer rows than an answer shows."""
    found = []
    for sizes in ((0, 24_000), (24_000, 46_000), (46_000, 90_000), (90_000, 10**6)):
        wish = {"gpu_ram": {"gte": sizes[0], "lt": sizes[1]}}
        rows = httpx.post(f"{sandbox}/vast/api/v0/bundles/", json=wish, timeout=30).json()["offers"]
        assert len(rows) < 64
        found += rows
    return {
        str(row["id"])
        for row in found
        if row["rentable"] and row["verified"] and row["gpu_name"] not in {"Q9000 XT", None}
        if row["cuda_max_good"] >= 12.8 and row["direct_port_count"] > 0
    }


async def test_an_offer_is_quoted_by_its_id(vast: ProviderAdapter, sandbox: str) -> None:
    offers = (await vast.list_offers(datetime.now(UTC))).offers
    control(sandbox, "market", provider="vast", sku=offers[0].reference["ask_id"], price_usd="7.25")
    quoted = await vast.quote(offers[0], datetime.now(UTC))
    assert quoted is not None
    assert float(quoted.native.amount) == pytest.approx(7.25, abs=0.02)


async def test_every_instance_of_the_ledger_is_listed(vast: ProviderAdapter, sandbox: str) -> None:
    offers = [o for o in (await vast.list_offers(datetime.now(UTC))).offers if o.tier is Tier.ON_DEMAND]
    alone = {offer.reference["machine_id"]: offer for offer in offers}
    made = [await vast.reserve(Order(f"broker-t-{n}-0-0", o, 1)) for n, o in enumerate(alone.values())]
    assert len(made) > 25
    owned = {
        row["instance_id"]
        for row in control(sandbox, "ledger")["instances"]
        if row["provider"] == "vast" and row["released_at"] is None
    }
    listed = [lease.reference for lease in await vast.list_leases()]
    assert sorted(listed) == sorted(owned)
    for lease in made:
        await vast.release(lease)
