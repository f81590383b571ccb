"""Training plans and later starts end to end: the adapter against the sandbox market, whose ledger judges."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import httpx
import pytest

from broker.domain.basics.errors import (
    InsufficientCapacity,
    OutcomeUnknown,
    ProviderUnavailable,
    RateLimited,
    ReleaseRefused,
)
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import Offer, Tier
from providers.registry import SPECS
from providers.spec import ProviderAdapter, settings_from_environment
from tests.fakes.market_control import control, hasty, ledger

SANDBOX_SEED = 7

DAY = timedelta(days=1)


@pytest.fixture
async def aws(sandbox: str) -> AsyncIterator[ProviderAdapter]:
    settings = settings_from_environment(SPECS["aws"], {}, sandbox)
    assert settings is not None
    built = SPECS["aws"].build(settings, hasty)
    assert isinstance(built, ProviderAdapter)
    yield built
    await built.aclose()


def now(url: str) -> datetime:
    return datetime.fromisoformat(control(url, "clock")["now"])


def advance_to(url: str, instant: datetime) -> None:
    control(url, "clock", advance_s=max(0.0, (instant - now(url)).total_seconds()) + 1)


async def on_sale(aws: ProviderAdapter, url: str, start: str) -> Offer:
    batch = await aws.list_offers(now(url))
    return next(o for o in batch.offers if o.offer_id.startswith(start) and "/now/" not in o.offer_id)


async def found(aws: ProviderAdapter, lease: Lease) -> Lease:
    return await aws.find_lease(lease.reference, lease.region)


async def test_a_training_plan_is_made_once_found_and_never_cancelled(
    aws: ProviderAdapter, sandbox: str
) -> None:
    offer = await on_sale(aws, sandbox, "aws/plan/")
    assert offer.window is not None
    order = Order("broker-t-plan", offer, 2)
    lease = await aws.reserve(order)
    again = await aws.reserve(order)
    assert again.reference == lease.reference
    (row,) = ledger(sandbox, "broker-t-plan")
    assert (row["instance_id"], row["nodes"], row["sku"]) == (lease.reference, 2, offer.sku.name)
    assert float(row["billed_usd"]) == pytest.approx(
        float(offer.upfront_usd or 0) / offer.window.segments[0].nodes * 2
    )
    control(sandbox, "clock", advance_s=5)
    assert (await found(aws, lease)).state is LeaseState.SCHEDULED
    assert [each.reference for each in await aws.list_leases() if each.tag == "broker-t-plan"] == [
        lease.reference
    ]
    with pytest.raises(ReleaseRefused) as refused:
        await aws.release(lease)
    assert refused.value.forever
    advance_to(sandbox, offer.window.segments[0].start)
    assert (await found(aws, lease)).state is LeaseState.ACTIVE
    advance_to(sandbox, offer.window.segments[0].end + 90 * DAY)
    assert (await found(aws, lease)).state is LeaseState.ENDED
    await aws.release(lease)


@pytest.mark.parametrize("kind", ["timeout_after", "timeout_before"])
async def test_a_plan_whose_answer_was_lost_is_found_by_its_name(
    aws: ProviderAdapter, sandbox: str, kind: str
) -> None:
    offer, tag = await on_sale(aws, sandbox, "aws/plan/"), f"broker-t-{kind.replace('_', '-')}"
    control(sandbox, "faults", provider="aws", operation="create", kind=kind, count=1, seconds=0.1)
    with pytest.raises(OutcomeUnknown):
        await aws.reserve(Order(tag, offer, 1))
    listed = [lease.reference for lease in await aws.list_leases() if lease.tag == tag]
    assert listed == [row["instance_id"] for row in ledger(sandbox, tag)]
    assert len(listed) == (kind == "timeout_after")


@pytest.mark.parametrize(
    ("kind", "error"),
    [("out_of_capacity", InsufficientCapacity), ("rate_limited", RateLimited), ("http_500", OutcomeUnknown)],
)
async def test_a_plan_that_is_refused_holds_nothing(
    aws: ProviderAdapter, sandbox: str, kind: str, error: type[Exception]
) -> None:
    offer, tag = await on_sale(aws, sandbox, "aws/plan/"), f"broker-t-{kind.replace('_', '-')}"
    control(sandbox, "faults", provider="aws", operation="create", kind=kind, count=1)
    with pytest.raises(error):
        await aws.reserve(Order(tag, offer, 1))
    assert ledger(sandbox, tag) == []


def fortnight(offer: Offer) -> Window:
    assert offer.window is not None
    start = offer.window.segments[0].start
    return Window(start, start + 14 * DAY)


async def test_a_later_start_is_held_until_its_commitment_is_over(aws: ProviderAdapter, sandbox: str) -> None:
    offer = await on_sale(aws, sandbox, "aws/future/us-east-2/g7e.12xlarge")
    assert offer.tier is Tier.WINDOW
    order = Order("broker-t-later", offer, 1, fortnight(offer))
    lease = await aws.reserve(order)
    assert (await aws.reserve(order)).reference == lease.reference
    assert (lease.state, lease.window) == (LeaseState.PROVISIONING, order.window)
    control(sandbox, "clock", advance_s=5)
    assert (await found(aws, lease)).state is LeaseState.SCHEDULED
    with pytest.raises(ReleaseRefused) as refused:
        await aws.release(lease)
    assert not refused.value.forever
    window = fortnight(offer)
    advance_to(sandbox, window.start)
    assert (await found(aws, lease)).state is LeaseState.ACTIVE
    advance_to(sandbox, window.end)
    await aws.release(lease)
    await aws.release(lease)
    (row,) = ledger(sandbox, "broker-t-later")
    owed = float(offer.price_usd_per_node_hour) * 14 * 24
    assert owed <= float(row["billed_usd"]) < owed * 1.001


async def test_a_later_start_is_left_for_free_while_it_is_assessed_and_fails_without_room(
    aws: ProviderAdapter, sandbox: str
) -> None:
    offer = await on_sale(aws, sandbox, "aws/future/us-east-1/g5.48xlarge")
    early = await aws.reserve(Order("broker-t-early", offer, 1, fortnight(offer)))
    await aws.release(early)
    assert (await found(aws, early)).state is LeaseState.ENDED
    (row,) = ledger(sandbox, "broker-t-early")
    assert float(row["billed_usd"]) == 0
    many = await aws.reserve(Order("broker-t-many", offer, 900, fortnight(offer)))
    control(sandbox, "clock", advance_s=5)
    assert (await found(aws, many)).state is LeaseState.FAILED


async def test_a_price_that_changes_is_seen_at_the_next_poll(aws: ProviderAdapter, sandbox: str) -> None:
    start = "aws/on_demand/us-east-1/g6.xlarge"
    before = await on_sale(aws, sandbox, start)
    control(sandbox, "clock", advance_s=1)
    same = await on_sale(aws, sandbox, start)
    assert same.price_usd_per_node_hour == before.price_usd_per_node_hour
    assert same.observed_at > before.observed_at
    control(sandbox, "market", provider="aws", sku="g6.xlarge", region="us-east-1", price_factor=1.1)
    after = await on_sale(aws, sandbox, start)
    assert float(after.price_usd_per_node_hour / before.price_usd_per_node_hour) == pytest.approx(1.1)


async def test_a_poll_outlives_short_faults_of_any_service(aws: ProviderAdapter, sandbox: str) -> None:
    for kind in ("http_500", "connection_reset", "rate_limited"):
        control(sandbox, "faults", provider="aws", operation="list", kind=kind, count=1)
        assert (await aws.list_offers(now(sandbox))).offers
    control(sandbox, "faults", provider="aws", operation="list", kind="http_500", count=200)
    with pytest.raises(ProviderUnavailable):
        await aws.list_offers(now(sandbox))
    with httpx.Client(base_url=sandbox, trust_env=False) as client:
        client.delete("/_sandbox/faults")
