"""The page of one offer: its prices, its forecast, what its seller states, and an order of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from fastapi import Request
from fastapi.responses import Response

from api.bootstrap import Product
from api.http.dependencies import product_of
from api.http.errors import kind_of
from api.pages.market import order_view, price_view
from api.pages.market.order_view import TypedOrder
from api.pages.parts.forms import act_once, new_once, proof_of, read_form
from api.pages.parts.rendering import page_router, show
from api.pages.parts.session import AnyVisitor, PlanVisitor
from api.pages.parts.words import seller
from broker.domain.basics.account import Caller
from broker.domain.basics.errors import BrokerError, Conflict, InputError, OverBudget, ProviderError
from broker.domain.basics.window import Window
from broker.domain.market.offer import Offer
from broker.domain.market.offer_pages import OfferFilter
from broker.domain.market.offer_words import OfferTraits, WantedOffers
from broker.domain.spend.order_quote import OrderQuote

SPANS_DAYS = (7, 30, 90, 365)
USUAL_DAYS = 30
REFUSALS = (InputError, Conflict, OverBudget, ProviderError)
"""What an order comes back with, to the page where it was typed."""

router = page_router()


@dataclass(frozen=True, slots=True)
class _Order:
    """An order on its way: what was typed, its quote or what refused it, and other offers."""

    typed: TypedOrder
    quote: OrderQuote | None = None
    error: BrokerError | None = None
    others: tuple[Offer, ...] = ()

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong with each field, in words."""
        found = self.error.problems if isinstance(self.error, InputError) else ()
        return {one.pointer.removeprefix("/"): f"found {one.found}, expected {one.expected}" for one in found}


@router.get("/market/offers/{offer_id:path}")
async def offer_page(request: Request, caller: AnyVisitor, offer_id: str, days: int = USUAL_DAYS) -> Response:
    """One offer; with ``nodes`` and times, what an order of them would buy and cost."""
    product = product_of(request)
    offer = await product.offers.find_offer(offer_id)
    typed = TypedOrder.of(request.query_params)
    order = _Order(typed)
    if typed.nodes and not _why_not(product, caller, offer):
        try:
            asked = order_view.read_order(typed, offer)
            order = _Order(typed, await product.reservations.quote_offer(caller, asked))
        except REFUSALS as error:
            order = await _refused(product, offer, typed, error)
    return await _shown(request, caller, offer, order, days)


@router.post("/market/offers/{offer_id:path}/reserve")
async def reserve(request: Request, caller: PlanVisitor, offer_id: str) -> Response:
    """Places the order that the page showed, at most at the price that it showed."""
    product, form = product_of(request), await read_form(request)
    offer = await product.offers.find_offer(offer_id)
    typed = TypedOrder.of(form.fields)

    async def act(named: Caller) -> str:
        asked = order_view.read_order(
            typed, offer, order_view.read_price(form.text("seen_usd_per_node_hour"))
        )
        row = await product.reservations.reserve_order(named, asked)
        return f"/reservations/{row.reservation_id}?done=ordered"

    try:
        return await act_once(request, caller, form, act, lambda stored: f"/reservations/{stored[0]}")
    except REFUSALS as error:
        order = await _refused(product, offer, typed, error)
        return await _shown(request, caller, offer, order, USUAL_DAYS)


async def _refused(product: Product, offer: Offer, typed: TypedOrder, error: BrokerError) -> _Order:
    names = OfferFilter(gpu=offer.sku.gpu)
    alike = OfferTraits(gpus_per_node=(offer.sku.gpus_per_node,), orderable=True)
    found = await product.offers.find_wanted(WantedOffers(names, alike))
    return _Order(typed, error=error, others=order_view.others_of(offer, typed.nodes, found))


def _why_not(product: Product, caller: Caller, offer: Offer) -> str:
    missing = product.missing.get(offer.provider, ())
    return order_view.why_not(
        offer,
        caller,
        takes_orders=product.offers.takes_orders(offer),
        missing=[name for one in missing for name in one.variables],
    )


async def _shown(request: Request, caller: Caller, offer: Offer, order: _Order, days: int) -> Response:
    product = product_of(request)
    span = days if days in SPANS_DAYS else USUAL_DAYS
    now = product.clock.now()
    window = Window(now - timedelta(days=span), now)
    by_day = await product.prices.find_days(offer.offer_id, window)
    forecast = await product.prices.forecast(offer.offer_id)
    ahead = price_view.forecast_rows(forecast)
    return show(
        request,
        "offer.html",
        f"{offer.sku.gpu} at {seller(offer.provider)}",
        200 if order.error is None else kind_of(order.error).status,
        o=offer,
        order=order,
        refused=None if order.error is None else kind_of(order.error).title,
        why_not=_why_not(product, caller, offer),
        windows=order_view.windows_of(offer),
        window_hint=order_view.window_hint(offer.window),
        address_of=order.typed.address_of,
        proof=proof_of(request),
        once=new_once(),
        days=by_day,
        ahead=ahead,
        grounds=price_view.grounds_words(forecast),
        cards=price_view.offer_cards(offer, by_day, ahead),
        charts=price_view.offer_charts(by_day, ahead, offer, window),
        span=span,
        spans=SPANS_DAYS,
        as_of=await product.offers.find_as_of(),
    )
