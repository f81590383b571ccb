"""Together's windows end to end against the sandbox market."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest

from broker.domain.basics.window import Window
from broker.domain.holding.reservation import LeaseState, Order
from broker.domain.market.offer import Offer, Tier, WindowKind
from providers.http import ProviderHttp
from providers.spec import settings_from_environment
from providers.together import SPEC, Together
from tests.contract.exchanges import OBSERVED_AT, payloads
from tests.fakes.market_control import control

SANDBOX_SEED = 7


def test_each_published_term_is_an_offer_of_whole_days() -> None:
    offers = SPEC.parse(payloads("together"), OBSERVED_AT).offers
    terms = {
        offer.offer_id.rpartition("/")[2]: offer.window
        for offer in offers
        if offer.window is not None and offer.sku.name == "H100_SXM"
    }
    shown = {
        how: (each.durations_hours[0] / 24, each.durations_hours[-1] / 24)
        for how, each in terms.items()
        if each.durations_hours is not None
    }
    assert shown == {"days_7_30": (7, 30), "days_31_90": (31, 90), "days_91_180": (91, 180)}
    assert {(each.kind, each.segments) for each in terms.values()} == {(WindowKind.REQUEST, ())}


def test_a_published_price_says_its_day_and_its_source() -> None:
    offer = SPEC.parse(payloads("together"), OBSERVED_AT).offers[0]
    assert "price of 2026-08-22: Together's price page" in offer.source


@pytest.fixture
async def adapter(sandbox: str) -> AsyncIterator[Together]:
    settings = settings_from_environment(SPEC, {}, sandbox)
    assert settings is not None
    built = Together(settings, ProviderHttp)
    yield built
    await built.aclose()


def window_of(offer: Offer, now: datetime) -> Window:
    assert offer.window is not None
    assert offer.window.durations_hours is not None
    start = now.replace(minute=0, second=0, microsecond=0) + timedelta(days=2)
    return Window(start, start + timedelta(hours=offer.window.durations_hours[0]))


async def test_a_window_is_scheduled_becomes_active_and_is_deleted(adapter: Together, sandbox: str) -> None:
    now = datetime.fromisoformat(control(sandbox, "/_sandbox/clock")["now"])
    offers = (await adapter.list_offers(now)).offers
    offer = next(offer for offer in offers if offer.tier is Tier.WINDOW)
    order = Order("broker-window", offer, 2, window_of(offer, now))
    lease = await adapter.reserve(order)
    (found,) = [held for held in await adapter.list_leases() if held.tag == "broker-window"]
    assert (found.reference, found.state) == (lease.reference, LeaseState.SCHEDULED)
    assert (found.nodes, found.window) == (2, order.window)
    control(sandbox, "/_sandbox/clock", advance_s=2 * 86400 + 60)
    assert (await adapter.find_lease(lease.reference, "")).state is LeaseState.ACTIVE
    await adapter.release(lease)
    await adapter.release(lease)
    (row,) = [r for r in control(sandbox, "/_sandbox/ledger")["instances"] if r["tag"] == "broker-window"]
    assert (row["nodes"], row["released_at"] is not None) == (2, True)
