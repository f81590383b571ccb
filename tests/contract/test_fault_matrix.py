"""Every seller under five faults: nothing is lost, nothing is bought twice, and the fault is told.

The faults are made on the way from a sandbox market, whose ledger is the judge: what it sold stays listed or
the list is told as unreadable, and what it did not sell is refused with the seller's own words. A fault is
laid on kinds of calls, so that no seller's paths stand here.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from broker.domain.basics.errors import InsufficientCapacity, LeasesUnreadable, OrderRejected
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import Offer, StockLevel
from providers.http import Exchange, Operation, ProviderHttp, Reply
from providers.registry import SPECS, configured
from providers.sandbox import SandboxHandle
from providers.spec import Capability, ProviderAdapter
from tests.fakes.market_control import control, ledger

SELLERS = tuple(name for name, spec in SPECS.items() if Capability.RESERVE in spec.capabilities)
ODD = "wombat"
PAGE_SIZES = frozenset({"limit", "per_page", "pageSize", "maxResults", "page[size]"})
SMALL = 1
ONE_PAGE = frozenset(
    {"lambda", "runpod", "verda", "shadeform", "hotaisle", "together", "cudo", "ovh", "tensordock"}
)
"""Sellers whose list of leases has one page, as their documents say: none can be short."""
OWN_SIZE = frozenset({"aws", "azure", "crusoe", "oci"})
"""Sellers that choose how long a page is, and say where the next begins."""

Change = Callable[[Reply], Reply]


@dataclass
class Way:
    """The way to a market. ``change`` alters what is answered to questions for leases."""

    change: Change | None = None
    is_short: bool = False
    refuses: bool = False
    shortened: int = 0

    def hear(self, exchange: Exchange) -> Reply:
        reply = exchange.reply
        is_list = reply.operation is Operation.LEASES
        return self.change(reply) if is_list and self.change is not None else reply


class Http(ProviderHttp):
    """A client whose calls go the way of a test."""

    def __init__(self, way: Way, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more, hears=way.hear)
        self._way = way

    async def request(self, method: str, path: str, **more: Any) -> Reply:
        operation = more["operation"]
        if operation is Operation.ORDER and self._way.refuses:
            body = json.dumps({"error": {"code": "odd", "message": f"The {ODD} declined."}, "message": ODD})
            raise self.error(Reply(self._provider, operation, 400, {}, body.encode(), repeatable=False))
        params = more.get("params") or {}
        if operation is Operation.LEASES and self._way.is_short and PAGE_SIZES & set(params):
            self._way.shortened += 1
            more["params"] = {name: SMALL if name in PAGE_SIZES else each for name, each in params.items()}
        return await super().request(method, path, **more)


def seller(name: str, url: str, way: Way) -> ProviderAdapter:
    adapter = SPECS[name].build(configured({}, url)[name], partial(Http, way))
    assert isinstance(adapter, ProviderAdapter)
    return adapter


def window_of(offer: Offer) -> Window | None:
    """A day of what is sold by the window, from a whole hour on."""
    if offer.window is None:
        return None
    free = offer.window.segments[-1]
    start = free.start.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    return Window(start, start + timedelta(days=1))


async def bought(adapter: ProviderAdapter, tag: str, count: int) -> list[Lease]:
    """So many leases of what is on sale by the hour, or by the window where nothing is."""
    offers = (await adapter.list_offers(datetime.now(UTC))).offers
    found: list[Lease] = []
    tags = (f"{tag}-{number}" for number in itertools.count())
    for offer in sorted(offers, key=lambda offer: offer.window is not None):
        while offer.stock.level is not StockLevel.NONE and len(found) < count:
            try:
                order = Order(next(tags), offer, 1, window_of(offer))
                found.append(await adapter.reserve(order))
            except (InsufficientCapacity, OrderRejected):
                break
    assert len(found) == count
    return found


async def listed(adapter: ProviderAdapter, wanted: list[Lease]) -> list[Lease]:
    """Of what is held, that."""
    references = {lease.reference for lease in wanted}
    return [lease for lease in await adapter.list_leases() if lease.reference in references]


def retired(reply: Reply) -> Reply:
    return replace(reply, status=410, body=b'{"message": "use the next version"}')


def with_values(change: Callable[[Any], Any], words: frozenset[str]) -> Change:
    """Answers whose values that are one of ``words`` are other ones; of XML its texts."""

    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: changed(each) for name, each in value.items()}
        if isinstance(value, list):
            return [changed(each) for each in value]
        is_word = not isinstance(value, bool) and str(value).lower() in words
        return change(value) if is_word else value

    def in_xml(text: str) -> str:
        other = changed(text)
        if isinstance(other, dict):
            return "".join(f"<{name}>{each}</{name}>" for name, each in other.items())
        return str(other)

    def of(reply: Reply) -> Reply:
        text = reply.body.decode()
        if text.lstrip().startswith("<"):
            body = re.sub(r">([^<>]+)<", lambda m: f">{in_xml(m[1])}<", text)
        else:
            body = json.dumps(changed(json.loads(text)))
        return replace(reply, body=body.encode())

    return of


def moved(value: Any) -> Any:
    """A value that has become an object (in XML an element)."""
    return {"value": value}


def words_of(leases: list[Lease]) -> frozenset[str]:
    """The words in which a seller tells the state of leases, as adapters keep them."""
    details = [lease.detail.lower() for lease in leases]
    return frozenset(word for detail in details for word in (detail, *detail.split()) if word)


def ids_of(leases: list[Lease]) -> frozenset[str]:
    """The names under which a seller lists leases; some references are paths that end in them."""
    references = [lease.reference.lower() for lease in leases]
    return frozenset(part for reference in references for part in (reference, reference.split("/")[-1]))


def sold(url: str, leases: list[Lease]) -> dict[str, Any]:
    """What the market sold under the tags of leases, and when it was given back."""
    rows = [row for lease in leases for row in ledger(url, lease.tag or "")]
    return {row["instance_id"]: row["released_at"] for row in rows}


async def retired_endpoint(adapter: ProviderAdapter, way: Way, held: list[Lease]) -> None:
    way.change = retired
    with pytest.raises(LeasesUnreadable, match="410") as told:
        await adapter.list_leases()
    assert told.value.provider == adapter.provider


async def short_pages(adapter: ProviderAdapter, way: Way, held: list[Lease]) -> None:
    way.is_short = True
    shown = await listed(adapter, held)
    assert {lease.reference for lease in shown} == {lease.reference for lease in held}
    assert bool(way.shortened) == (adapter.provider not in ONE_PAGE | OWN_SIZE)


async def changed_type(adapter: ProviderAdapter, way: Way, held: list[Lease]) -> None:
    way.change = with_values(moved, ids_of(held))
    with pytest.raises(LeasesUnreadable):
        await adapter.list_leases()


async def unknown_state(adapter: ProviderAdapter, way: Way, held: list[Lease]) -> None:
    way.change = with_values(lambda _: ODD, words_of(held))
    shown = await listed(adapter, held)
    assert len(shown) == len(held)
    assert {lease.state for lease in shown} == {LeaseState.UNKNOWN}
    assert all(ODD in lease.detail for lease in shown)


async def unknown_refusal(adapter: ProviderAdapter, way: Way, held: list[Lease]) -> None:
    way.refuses = True
    offers = (await adapter.list_offers(datetime.now(UTC))).offers
    offer = min(offers, key=lambda offer: offer.window is not None)
    tag = f"broker-refused-{adapter.provider.replace('_', '-')}"[:30]
    with pytest.raises(OrderRejected, match=ODD):
        await adapter.reserve(Order(tag, offer, 1, window_of(offer)))
    assert tag not in {lease.tag for lease in await adapter.list_leases()}


FAULTS = (retired_endpoint, short_pages, changed_type, unknown_state, unknown_refusal)


@pytest.mark.parametrize("name", SELLERS)
async def test_a_seller_under_five_faults(sandbox_market: SandboxHandle, name: str) -> None:
    url, way = sandbox_market.url, Way()
    adapter = seller(name, url, way)
    try:
        bought_now = await bought(adapter, f"broker-matrix-{name.replace('_', '-')}"[:28], 2)
        control(url, "clock", advance_s=3600)
        held = await listed(adapter, bought_now)
        rows = sold(url, bought_now)
        assert len(held) == len(rows) == 2
        for fault in FAULTS:
            await fault(adapter, way, held)
            way.change, way.is_short, way.refuses = None, False, False
        assert sold(url, bought_now) == rows
        assert len(await listed(adapter, held)) == 2
    finally:
        await adapter.aclose()
