"""Every seller's orders keep the buyer's limit: what became dearer after the poll is refused before it is
bought, windows too."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest
import respx

from broker.domain.basics.errors import Conflict, InsufficientCapacity, PriceAboveLimit
from broker.domain.basics.window import Segment
from broker.domain.holding.reservation import Reservation
from broker.domain.market.billing import holding_cost_usd
from broker.domain.market.offer import Offer
from broker.services.holding.reservations import ReservationsService, ReservingRules
from providers.registry import SPECS
from providers.spec import Capability, ProviderAdapter, settings_from_environment
from tests.contract.journey import HOST, START, Market, by_kind, order_of
from tests.fakes.buying import a_buyer
from tests.fakes.clock import FakeClock
from tests.fakes.examples import ALICE
from tests.fakes.market_control import hasty
from tests.fakes.notifier import RecordingNotifier
from tests.fakes.store import Tables

PRICED_BY_CONFIGURATION = {"crusoe", "together"}
"""Their APIs name no price, so none can be asked: their published lists are in ``config/providers``."""
NAMES = tuple(
    name
    for name, spec in SPECS.items()
    if Capability.RESERVE in spec.capabilities and name not in PRICED_BY_CONFIGURATION
)
ABOVE, WITHIN = "1.5", "1.01"
"""Of the polled price; the price tolerance is 2 %."""
HELD_HOURS = 5


@dataclass
class Shop:
    """A broker with one real adapter, and the sandbox market that it buys from."""

    name: str
    market: Market
    service: ReservationsService
    clock: FakeClock
    kinds: Sequence[Sequence[Offer]]

    async def ask(self, path: str, **body: Any) -> Any:
        """What the market's control answers."""
        url = f"{HOST}/_sandbox/{path}"
        sent = httpx.Request("POST", url, json=body) if body else httpx.Request("GET", url)
        answer = json.loads((await self.market.answer(sent)).content)
        assert "problems" not in answer, answer
        return answer

    async def ledger(self) -> list[dict[str, Any]]:
        """What the market sold."""
        rows: list[dict[str, Any]] = (await self.ask("ledger"))["instances"]
        return rows

    async def set_prices(self, factor: str) -> None:
        """Everything costs ``factor`` times its recorded price."""
        cells = (await self.ask(f"market?provider={self.name}"))["cells"]
        for sku in sorted({cell["sku"] for cell in cells}):
            await self.ask("market", provider=self.name, sku=sku, price_factor=factor)

    async def pass_time(self, hours: float) -> None:
        """Lets the time of market and broker pass."""
        await self.market.advance(hours * 3600)
        self.clock.advance(hours=hours)

    async def order(self, offer: Offer, limit: Decimal | None = None) -> Reservation:
        """Orders one node, for the window that is sold, else until it is released."""
        window = order_of("", offer).window
        start, end = (None, None) if window is None else (window.start, window.end)
        return await self.service.reserve_offer(
            ALICE, offer.offer_id, 1, start, end, most_usd_per_node_hour=limit
        )


@pytest.fixture(params=NAMES)
async def shop(request: pytest.FixtureRequest) -> AsyncIterator[Shop]:
    name = request.param
    market, tables, clock = Market(), Tables(), FakeClock(START)
    settings = settings_from_environment(SPECS[name], {}, HOST)
    assert settings is not None
    adapter = SPECS[name].build(settings, hasty)
    assert isinstance(adapter, ProviderAdapter)
    try:
        with respx.mock(assert_all_called=False) as router:
            router.route(host="127.0.0.1").mock(side_effect=market.answer)
            kinds = by_kind((await adapter.list_offers(START)).offers)
            tables.put_offers(*(offer for alike in kinds for offer in alike))
            units = tables.unit_of_work
            buying = a_buyer(units, {name: adapter}, clock)
            service = ReservationsService(units, buying, clock, RecordingNotifier(), rules=ReservingRules())
            yield Shop(name, market, service, clock, kinds)
    finally:
        await adapter.aclose()
        market.close()


async def test_what_became_dearer_than_the_limit_is_not_bought(shop: Shop) -> None:
    await shop.set_prices(ABOVE)
    for alike in shop.kinds:
        with pytest.raises(PriceAboveLimit, match=r"per node-hour.*; the limit was .*Nothing was bought"):
            await shop.order(alike[0])
    assert await shop.ledger() == []


async def test_what_became_a_little_dearer_is_bought_and_costs_at_most_the_limit(shop: Shop) -> None:
    await shop.set_prices(WITHIN)
    rows = [await _first_bought(shop, alike) for alike in shop.kinds]
    await shop.pass_time(HELD_HOURS)
    sold = {one["instance_id"]: Decimal(one["billed_usd"]) for one in await shop.ledger()}
    for row in rows:
        limit = row.limit_usd_per_node_hour
        assert limit is not None
        assert limit > row.offer.price_usd_per_node_hour
        billed = sum(sold[reference] for reference in row.provider_references)
        assert billed <= _most_usd(row, limit)


async def _first_bought(shop: Shop, alike: Sequence[Offer]) -> Reservation:
    """The first of the offers that can be had; what lists of prices hold may be sold out."""
    for offer in alike:
        try:
            return await shop.order(offer)
        except (InsufficientCapacity, Conflict) as error:
            said = error
    raise AssertionError(f"none of {len(alike)} offers like {alike[0].offer_id} could be bought: {said}")


def _most_usd(row: Reservation, limit: Decimal) -> Decimal:
    """What the holding costs by its offer's terms at the price of the limit."""
    end = row.end or row.start + timedelta(hours=HELD_HOURS)
    cost = holding_cost_usd(row.offer, (Segment(row.start, end, 1),))
    return cost * limit / row.offer.price_usd_per_node_hour
