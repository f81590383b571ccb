"""The market: offers now, the price of one over time, and the health of feeds."""

from __future__ import annotations

from datetime import timedelta

from fastapi import Request
from fastapi.responses import Response

from api.dependencies import product_of
from api.pages import market_view
from api.pages.rendering import page_router, show
from api.pages.session import AnyVisitor
from api.pages.tables import Address, paged, wished_sorting
from broker.domain.window import Window

PAGE_SIZE = 50
SPANS_DAYS = (7, 30, 90)

router = page_router()


@router.get("/market")
async def market_page(
    request: Request,
    caller: AnyVisitor,
    gpu: str = "",
    provider: str = "",
    region: str = "",
    tier: str = "",
    sort: str = "",
    page: int = 1,
) -> Response:
    """Offers now, narrowed and sorted, and feeds."""
    product = product_of(request)
    wanted = {"gpu": gpu, "provider": provider, "region": region, "tier": tier}
    address = Address("/market", {**wanted, "sort": sort})
    sorting = wished_sorting(sort, tuple(market_view.SORTS), address, "offers")
    offers = await product.offers.find_offers()
    found = market_view.matching_offers(offers, wanted)
    found.sort(key=market_view.SORTS[sorting.by], reverse=sorting.descending)
    shown, paging = paged(found, page, PAGE_SIZE, address)
    feeds = await product.offers.find_feeds()
    return show(
        request,
        "market.html",
        "Market",
        feeds=feeds,
        rejected=[await product.offers.find_rejected(feed.provider) for feed in feeds if feed.rejected],
        quarantine=await product.offers.find_quarantine(),
        offers=shown,
        cards=market_view.market_cards(found),
        count=len(found),
        first=(paging.page - 1) * PAGE_SIZE + 1,
        sorting=sorting,
        paging=paging,
        filters=market_view.market_filters(offers, wanted),
        narrowed=any(wanted.values()),
        as_of=await product.offers.find_as_of(),
    )


@router.get("/market/offers/{offer_id:path}")
async def offer_page(request: Request, caller: AnyVisitor, offer_id: str, days: int = 30) -> Response:
    """One offer: its price over time, and everything that its seller said."""
    product = product_of(request)
    offer = await product.offers.find_offer(offer_id)
    span = days if days in SPANS_DAYS else SPANS_DAYS[1]
    now = product.clock.now()
    window = Window(now - timedelta(days=span), now)
    points = await product.offers.find_prices(offer_id, window)
    by_day = market_view.price_days(points, window)
    return show(
        request,
        "offer.html",
        f"{offer.sku.gpu} at {offer.provider}",
        o=offer,
        days=by_day,
        cards=market_view.price_cards(offer, by_day),
        charts=market_view.price_charts(points, window, "price of a node-hour"),
        span=span,
        spans=SPANS_DAYS,
        as_of=await product.offers.find_as_of(),
    )
