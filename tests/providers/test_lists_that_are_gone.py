"""A lease that is found in a list alone is not gone because the list is.

Judge is the market's ledger: what it still sells is neither told as gone nor taken for given back.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx
import pytest

from broker.domain.basics.errors import LeaseNotFound, LeasesUnreadable
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Lease, Order
from providers.registry import build_adapters, configured, sellers
from providers.spec import ProviderAdapter
from tests.fakes.market_control import hasty, ledger
from tests.fakes.relay import relayed

LISTS = {"mithril": "/v2/reservation", "sfcompute": "/v0/contracts"}
"""Where a block of a seller is told that has no address of its own."""
BROKEN = {
    "retired": httpx.Response(410, json={"message": "use the next version"}),
    "missing": httpx.Response(404, json={"message": "no such route"}),
    "of another form": httpx.Response(200, json={"renamed": []}),
}


async def bought_block(name: str, sandbox: str, tag: str) -> tuple[ProviderAdapter, Lease]:
    adapter = sellers(build_adapters(configured({}, sandbox), hasty))[name]
    offers = (await adapter.list_offers(datetime.now(UTC))).offers
    for offer in offers:
        if offer.window is None:
            continue
        free = offer.window.segments[-1]
        start = free.start.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        hours = timedelta(hours=24)
        if start + hours <= free.end:
            return adapter, await adapter.reserve(Order(tag, offer, 1, Window(start, start + hours)))
    raise AssertionError(f"{name} sells no day")


@pytest.mark.parametrize("how", list(BROKEN))
@pytest.mark.parametrize("name", list(LISTS))
async def test_a_block_is_not_gone_with_its_list(sandbox: str, name: str, how: str) -> None:
    tag = f"broker-list-{name}-{list(BROKEN).index(how)}-0"
    adapter, lease = await bought_block(name, sandbox, tag)
    (held,) = ledger(sandbox, tag)

    def alter(request: httpx.Request, answer: httpx.Response) -> httpx.Response:
        return BROKEN[how] if request.url.path.endswith(LISTS[name]) else answer

    with relayed(alter):
        with pytest.raises(LeasesUnreadable) as found:
            await adapter.find_lease(lease.reference, lease.region)
        with pytest.raises(LeasesUnreadable):
            await adapter.release(lease)
    assert found.value.status == BROKEN[how].status_code
    assert LISTS[name] in str(found.value)
    assert ledger(sandbox, tag) == [held]
    assert held["released_at"] is None
    assert (await adapter.find_lease(lease.reference, lease.region)).reference == lease.reference
    await adapter.aclose()


async def test_a_reservation_that_its_list_does_not_have_is_gone(sandbox: str) -> None:
    adapter = sellers(build_adapters(configured({}, sandbox), hasty))["mithril"]
    with pytest.raises(LeaseNotFound):
        await adapter.find_lease("res_of_nobody", "")
    await adapter.aclose()
