"""Azure's windows: what is offered of time, and their life against the market server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal

import httpx
import pytest

from broker.domain.basics.errors import OrderRejected, ReleaseRefused
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import CancelRule, Offer, WindowKind
from providers.azure.windows import block_terms
from providers.http import ProviderHttp
from providers.registry import SPECS
from providers.spec import ProviderAdapter, settings_from_environment
from tests.fakes.market_control import control, market_now

SANDBOX_SEED = 7

DAY = timedelta(days=1)
GROUPS = (
    "/azure/subscriptions/sandbox/resourceGroups/broker/providers/Microsoft.Compute/capacityReservationGroups"
)


@pytest.mark.parametrize(
    ("clock", "first"),
    [("2026-11-21T11:29:59+00:00", "2026-11-21"), ("2026-11-21T11:30:00+00:00", "2026-11-22")],
)
def test_a_block_can_start_today_until_half_past_eleven(clock: str, first: str) -> None:
    terms = block_terms(datetime.fromisoformat(clock))
    (free,) = terms.segments
    assert free.start == datetime.fromisoformat(f"{first}T12:00:00+00:00")
    assert free.nodes == 64
    assert (terms.kind, terms.anchor_utc, terms.step_hours) == (WindowKind.REQUEST, time(12, 0), 24.0)
    assert (terms.lead_hours, terms.teardown_s, terms.cancel) == (0.5, 1800, CancelRule.NEVER)
    durations = terms.durations_hours or ()
    assert durations[:14] == tuple(24.0 * days for days in range(1, 15))
    assert durations[14:] == tuple(168.0 * weeks for weeks in range(3, 27))


@pytest.fixture
async def azure(sandbox: str) -> AsyncIterator[ProviderAdapter]:
    settings = settings_from_environment(SPECS["azure"], {}, sandbox)
    assert settings is not None
    built = SPECS["azure"].build(settings, ProviderHttp)
    assert isinstance(built, ProviderAdapter)
    yield built
    await built.aclose()


async def offer_of(azure: ProviderAdapter, url: str, kind: str) -> Offer:
    batch = await azure.list_offers(market_now(url))
    return next(o for o in batch.offers if o.reference["hold"] == kind and o.region == "eastus")


def days_from(url: str, ahead: int, days: int) -> Window:
    start = datetime.combine(market_now(url).date() + ahead * DAY, time(12), UTC)
    return Window(start, start + days * DAY)


async def at(azure: ProviderAdapter, url: str, lease: Lease, instant: datetime) -> Lease:
    seconds = max(0.0, (instant - market_now(url)).total_seconds())
    control(url, "/_sandbox/clock", advance_s=seconds + 5)
    return await azure.find_lease(lease.reference, lease.region)


async def test_a_block_runs_from_noon_until_half_past_eleven(azure: ProviderAdapter, sandbox: str) -> None:
    offer = await offer_of(azure, sandbox, "block")
    window = days_from(sandbox, 3, 2)
    lease = await azure.reserve(Order("broker-block-1", offer, 4, window))
    found = await at(azure, sandbox, lease, market_now(sandbox))
    assert (found.state, found.nodes) == (LeaseState.SCHEDULED, 4)
    assert found.window == Window(window.start, window.end - timedelta(minutes=30))
    with pytest.raises(ReleaseRefused) as caught:
        await azure.release(lease)
    assert caught.value.forever
    assert (await at(azure, sandbox, lease, window.start)).state is LeaseState.ACTIVE
    assert (await at(azure, sandbox, lease, window.end - timedelta(minutes=30))).state is LeaseState.ENDED
    await azure.release(lease)
    (row,) = [r for r in control(sandbox, "/_sandbox/ledger")["instances"] if r["tag"] == "broker-block-1"]
    assert Decimal(row["billed_usd"]) == offer.price_usd_per_node_hour * 4 * 48


async def test_a_future_reservation_is_found_in_its_own_words(azure: ProviderAdapter, sandbox: str) -> None:
    offer = await offer_of(azure, sandbox, "future")
    window = days_from(sandbox, 10, 3)
    lease = await azure.reserve(Order("broker-future-1", offer, 1, window))
    found = await at(azure, sandbox, lease, market_now(sandbox))
    assert (found.state, found.detail) == (LeaseState.SCHEDULED, "Succeeded Committed")
    (listed,) = [one for one in await azure.list_leases() if one.tag == "broker-future-1"]
    assert listed == found
    with pytest.raises(ReleaseRefused) as caught:
        await azure.release(lease)
    assert not caught.value.forever
    assert (await at(azure, sandbox, lease, window.start)).state is LeaseState.ACTIVE
    assert (await at(azure, sandbox, lease, window.end)).state is LeaseState.ACTIVE
    await azure.release(lease)


async def test_what_azure_alone_knows_is_refused_by_azure_and_leaves_nothing(
    azure: ProviderAdapter, sandbox: str
) -> None:
    offer = await offer_of(azure, sandbox, "block")
    with pytest.raises(OrderRejected, match="within 56 days"):
        await azure.reserve(Order("broker-far-1", offer, 1, days_from(sandbox, 60, 1)))
    answer = httpx.get(
        f"{sandbox}{GROUPS}?api-version=2026-04-01", headers={"Authorization": "Bearer x"}, trust_env=False
    )
    assert "broker-far-1" not in answer.text


async def test_a_group_goes_with_its_reservation(azure: ProviderAdapter, sandbox: str) -> None:
    offer = await offer_of(azure, sandbox, "targeted")
    lease = await azure.reserve(Order("broker-group-1", offer, 1))
    await at(azure, sandbox, lease, market_now(sandbox))
    await azure.release(lease)
    control(sandbox, "/_sandbox/clock", advance_s=5)
    await azure.release(lease)
    answer = httpx.get(
        f"{sandbox}{GROUPS}/broker-group-1?api-version=2026-04-01",
        headers={"Authorization": "Bearer x"},
        trust_env=False,
    )
    assert answer.status_code == 404


async def test_capacity_that_is_lost_after_the_order_shows_as_failed(
    azure: ProviderAdapter, sandbox: str
) -> None:
    for kind in ("targeted", "scale_set"):
        offer, tag = await offer_of(azure, sandbox, kind), f"broker-lost-{kind.replace('_', '-')}"
        wish = {"provider": "azure", "operation": "create", "kind": "async_out_of_capacity", "count": 1}
        control(sandbox, "/_sandbox/faults", **wish)
        lease = await azure.reserve(Order(tag, offer, 1))
        found = await at(azure, sandbox, lease, market_now(sandbox))
        assert found.state is LeaseState.FAILED
        await azure.release(lease)
