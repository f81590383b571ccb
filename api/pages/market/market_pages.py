"""The market: offers now, the price of one over time, and the health of feeds."""

from __future__ import annotations

from datetime import datetime, timedelta

from fastapi import Request
from fastapi.responses import Response

from api.http.dependencies import product_of
from api.offer_filters import known_names
from api.pages.market import market_view, price_view
from api.pages.market.offer_pages import SPANS_DAYS, USUAL_DAYS
from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import AnyVisitor
from api.pages.parts.table_links import Address, page_at, wished_sorting
from api.pages.parts.words import seller
from broker.domain.basics.errors import NotFound
from broker.domain.basics.window import Window
from broker.domain.market.cheapest import CheapestOfGpu, cheapest_by_gpu
from broker.domain.market.offer import Offer, Tier
from broker.domain.market.offer_pages import OfferFilter, matching, most_offered
from broker.domain.market.offer_words import ANY_TRAITS, read_offer_words
from broker.domain.market.sku import Form

PAGE_SIZE = 50

router = page_router()


@router.get("/market")
async def market_page(
    request: Request,
    caller: AnyVisitor,
    gpu: str = "",
    provider: str = "",
    region: str = "",
    tier: str = "",
    country: str = "",
    form: str = "",
    gpus_per_node: str = "",
    orderable: bool = False,
    view: str = "",
    sort: str = "",
    page: int = 1,
) -> Response:
    """What can be had now of each GPU, or the current offers, if a name or a sorting is asked; the feeds."""
    product = product_of(request)
    named = {"gpu": gpu, "provider": provider, "region": region, "tier": tier}
    traits = {"country": country, "form": form, "gpus_per_node": gpus_per_node}
    as_list = view == "offers" or (view != "gpus" and bool(any(named.values()) or sort or page > 1))
    asked = {**named, **traits, "orderable": "true" if orderable else "", "view": view}
    address = Address("/market", {**asked, "sort": sort})
    sorting = wished_sorting(sort, tuple(market_view.SORTS), address, "offers")
    counts = await product.offers.find_counts()
    words = {name: word or None for name, word in {**named, **traits}.items()}
    read, problems = read_offer_words(words, known_names(counts), orderable=orderable or not as_list)
    wrong = {one.pointer.removeprefix("/"): one for one in problems}
    chosen = read.names
    rows: tuple[CheapestOfGpu, ...] = ()
    listed: tuple[Offer, ...] | None = None
    kinds = () if wrong else matching(counts, chosen)
    if not as_list and not wrong:
        had = await product.offers.find_wanted(read)
        rows = market_view.by_power(cheapest_by_gpu(had, product.clock.now()))
    elif read.traits != ANY_TRAITS and not wrong:
        listed = market_view.sorted_offers(await product.offers.find_wanted(read), sorting)
    count = sum(kind.offers for kind in kinds) if listed is None else len(listed)
    first, paging = page_at(count, page, PAGE_SIZE, address)
    if listed is not None:
        offers, prices = listed[first : first + PAGE_SIZE], market_view.price_range(listed)
    elif as_list and not wrong:
        parts, order = market_view.shown_slices(counts, chosen, sorting, first, PAGE_SIZE)
        offers = await product.offers.find_slices(parts, order, descending=sorting.descending)
        prices = await product.offers.find_price_range(chosen, count)
    else:
        offers, prices = (), None
    feeds = await product.offers.find_feeds()
    window, span = _back_from(product.clock.now(), USUAL_DAYS)
    most = most_offered(kinds) if as_list else None
    by_day = () if most is None else await product.prices.find_recent_sku_days(*most, window)
    return show(
        request,
        "market.html",
        "Market",
        422 if wrong else 200,
        feeds=feeds,
        as_list=as_list,
        rows=rows,
        wrong=wrong,
        traits=traits,
        forms=[str(one) for one in Form],
        orderable=orderable,
        unread=product.reconcile.unread_lists(),
        missing=product.missing,
        breakers=market_view.breakers(
            product.adapters, {feed.provider: product.offers.polling_of(feed) for feed in feeds}
        ),
        quarantine=await product.offers.find_quarantine(),
        offers=offers,
        cards=market_view.market_cards(kinds if listed is None else market_view.counts_of(listed), prices),
        count=count,
        first=first + 1,
        sorting=sorting,
        paging=paging,
        filters=market_view.market_filters(
            counts, {**named, "country": country}, chosen, await product.offers.find_places()
        ),
        narrowed=any({**named, **traits}.values()) or orderable,
        most_offered=most,
        span=span,
        days=by_day,
        charts=None if most is None else price_view.sku_charts(by_day, window, most[0]),
        as_of=await product.offers.find_as_of(),
    )


@router.get("/market/feeds/{provider}")
async def feed_page(request: Request, caller: AnyVisitor, provider: str) -> Response:
    """One provider's feed: its health, and the rows that were rejected."""
    product = product_of(request)
    feeds = {feed.provider: feed for feed in await product.offers.find_feeds()}
    if provider not in feeds:
        raise NotFound("provider", provider, "it is not configured")
    latest = await product.offers.find_rejected(provider)
    rejected = latest.rejected if latest is not None else ()
    return show(
        request,
        "feed.html",
        seller(provider),
        feed=feeds[provider],
        missing=product.missing.get(provider, ()),
        rejected=rejected,
        unread=product.reconcile.unread_lists().get(provider),
    )


@router.get("/market/gpus/{gpu}")
async def gpu_page(
    request: Request, caller: AnyVisitor, gpu: str, tier: Tier = Tier.ON_DEMAND, days: int = 30
) -> Response:
    """A GPU over all sellers: the price of an hour by day, and who sells it now."""
    product = product_of(request)
    window, span = _back_from(product.clock.now(), days)
    by_day = await product.prices.find_sku_days(gpu, str(tier), window)
    chosen = OfferFilter(gpu=gpu, tier=str(tier))
    kinds = matching(await product.offers.find_counts(), chosen)
    count = sum(kind.offers for kind in kinds)
    sellers = market_view.seller_rows(kinds, await product.offers.find_cheapest_of_sellers(chosen))
    cheapest = await product.offers.find_named([row.cheapest.offer_id for row in sellers])
    if not by_day and not sellers:
        raise NotFound("GPU", gpu, "none of that name is or was on sale in this tier")
    return show(
        request,
        "gpu.html",
        gpu,
        gpu=gpu,
        tier=str(tier),
        tiers=[str(one) for one in Tier],
        days=by_day,
        sellers=sellers,
        cheapest={offer.offer_id: offer for offer in cheapest},
        cards=market_view.market_cards(kinds, await product.offers.find_price_range(chosen, count)),
        charts=price_view.sku_charts(by_day, window, gpu),
        span=span,
        spans=SPANS_DAYS,
        as_of=await product.offers.find_as_of(),
    )


def _back_from(now: datetime, days: int) -> tuple[Window, int]:
    """The last ``days`` days; the default span if that is not one of the choices."""
    span = days if days in SPANS_DAYS else USUAL_DAYS
    return Window(now - timedelta(days=span), now), span
