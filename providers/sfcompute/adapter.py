"""The SF Compute adapter: quotes read as offers, orders read as leases.

Prices come from ``GET /v0/quote`` and not from the preview order book. A quote prices one zone, node count
and window in the unit of an order's limit (total cents of the block), and it is not a preview. An order
that is not filled does not say why. So the block is quoted once more: it is too expensive, or sold out.
``release`` cancels an open order. A filled order cannot be cancelled: its contract is sold back at the
market, at the price that buyers pay; as long as nobody buys, release raises ReleaseRefused (try again
later).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from broker.domain.basics.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    OrderRejected,
    PriceAboveLimit,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
    ReleaseRefused,
)
from broker.domain.basics.money import price_words
from broker.domain.holding.reservation import Idempotency, Lease, LeaseState, Order
from broker.domain.market.offer import Offer, OfferBatch
from broker.provider_facts import load_provider_facts
from broker.together import all_or_none, one_error
from providers.client import Entry, SellerClient, bearer, ordered, tells_all_or_fails
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.payload import RowRejected
from providers.sfcompute import orders
from providers.sfcompute.offers import (
    HOUR,
    PROVIDER,
    QuoteAnswer,
    QuoteRequest,
    Zone,
    free_segments,
    instance_types,
    parse_offers,
    read_quote,
    read_zones,
    reference_windows,
    usd_per_node_hour,
)
from providers.spec import ProviderSettings

Page = TypeVar("Page", orders.OrderList, orders.ContractList)

POLICY = HttpPolicy(interval_s={Operation.OFFERS: 0.2}, concurrency=4, read_s=90.0)
"""No limits are published, although 429 is; a quote takes long, because the market computes it."""
PAGE = 100
MOST_PAGES = 100
QUOTE_SECONDS = 90.0
"""The market's own clients wait up to 600 s for a quote, a poll does not."""
FILL_WAITS_S = (0.3, 0.7, 1.5)
QUOTES_HOLD = timedelta(minutes=5)
"""How long a quote is reused, since a poll needs about a hundred."""
GONE_STATES = frozenset({LeaseState.ENDED, LeaseState.FAILED})
WRONG_TYPE_REASON = "no_matching_clusters"

_BY_TYPE: dict[str, type[ProviderError]] = {
    "authentication_error": CredentialsRejected,
    "payment_required": QuotaExceeded,
    "api_error": ProviderUnavailable,
    "service_unavailable": ProviderUnavailable,
    "request_timed_out": ProviderUnavailable,
    "idempotency_error": ProviderUnavailable,
    "internal_server": ProviderUnavailable,
    "not_authenticated": CredentialsRejected,
}
"""``idempotency_error``: the token was used with another body, so an order of ours may exist."""
NO_CAPACITY = "no_availability"
"""The seller's word where it says why it has no quote, and why it rejected an order."""


def classify(reply: Reply) -> ProviderError:
    """The typed error of an answer, by its ``type``; with or without the ``error`` wrapper."""
    decoded = reply.json_or_none()
    body = decoded.get("error", decoded) if isinstance(decoded, dict) else None
    if not isinstance(body, dict):
        return classify_by_status(reply)
    kind, message = str(body.get("type") or body.get("code") or ""), str(body.get("message") or "")
    text = f"{kind}: {message}"[:300]
    if reply.status == 429:
        return RateLimited(PROVIDER, text, reply.retry_after_s)
    if kind == "forbidden" and "credit" in message.lower():
        return QuotaExceeded(PROVIDER, text)
    if message == NO_CAPACITY:
        return InsufficientCapacity(PROVIDER, "the market has no such block now")
    if kind in _BY_TYPE:
        return _BY_TYPE[kind](PROVIDER, text)
    return classify_by_status(reply, text)


class SfCompute(SellerClient):
    """One account."""

    provider = PROVIDER
    idempotency = Idempotency.TOKEN
    entry = Entry.OWN

    def __init__(
        self,
        settings: ProviderSettings,
        http_factory: HttpFactory,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(settings, http_factory, classify, POLICY, bearer(settings, "api_key"))
        self._sleep = sleep
        self._known: dict[QuoteRequest, tuple[datetime, QuoteAnswer]] = {}
        self._facts = load_provider_facts(PROVIDER)

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Offers of every zone that has capacity and a price."""
        reply = await self._on_sale("/v0/zones")
        self._known = {
            request: (at, answer)
            for request, (at, answer) in self._known.items()
            if timedelta() <= observed_at - at < QUOTES_HOLD
        }
        left = [int(self._facts.search["max_calls"])]
        asked = await all_or_none(self._quotes(row, observed_at, left) for _, row in read_zones(reply.body))
        quotes = {name: answers for name, answers in asked if answers}
        return parse_offers(reply.body, quotes, observed_at)

    async def _quotes(
        self, row: Any, observed_at: datetime, left: list[int]
    ) -> tuple[str, tuple[QuoteAnswer, ...]]:
        """Quotes for one zone; none for a zone that ``parse_offers`` will reject anyway."""
        try:
            zone = Zone.model_validate(row)
            windows = reference_windows(self._facts.search, free_segments(zone, observed_at))
            types = instance_types(self._facts, zone)
        except (RowRejected, ValueError):
            return "", ()
        requests = [QuoteRequest(zone.name, types[0], nodes, start, hours) for start, hours, nodes in windows]
        first = await self._quote(requests[0], types[1:], left, observed_at)
        if first is not None and first.quote is not None:
            types = (first.quote.instance_type,)
        rest = await all_or_none(
            self._quote(replace(each, instance_type=types[0]), types[1:], left, observed_at)
            for each in requests[1:]
        )
        return zone.name, tuple(answer for answer in (first, *rest) if answer is not None)

    async def _quote(
        self, request: QuoteRequest, other_types: Sequence[str], left: list[int], observed_at: datetime
    ) -> QuoteAnswer | None:
        """A quote; if the zone does not know an instance type, the next one is tried."""
        answer: QuoteAnswer | None = None
        for instance_type in (request.instance_type, *other_types):
            wanted = replace(request, instance_type=instance_type)
            if wanted in self._known:
                answer = self._known[wanted][1]
            elif left[0] <= 0:
                return answer or QuoteAnswer(no_quote_reason="not asked: too many quotes")
            else:
                left[0] -= 1
                answer = await self._ask(wanted)
                self._known[wanted] = observed_at, answer
            if answer.quote is not None or answer.no_quote_reason != WRONG_TYPE_REASON:
                return answer
        return answer

    async def _ask(self, request: QuoteRequest) -> QuoteAnswer:
        reply = await self._http.request(
            "GET", "/v0/quote", operation=Operation.OFFERS, params=request.query(), total_s=QUOTE_SECONDS
        )
        return read_quote(reply.body)

    def holds_limit(self, offer: Offer) -> bool:
        """An order is filled at once at its limit or below, or cancelled."""
        return True

    def nodes_per_order(self, offer: Offer) -> int | None:
        """Any number: an order is filled completely, in one zone, or not at all."""
        return None

    async def reserve(self, order: Order) -> Lease:
        """Sends an immediate-or-cancel order with the tag as idempotency token, and waits briefly for its
        outcome."""
        body, key = orders.buy_body(order), {"Idempotency-Key": order.tag}
        reply = await self._call("POST", "/v0/orders", Operation.ORDER, json=body, headers=key)
        created = reply.read(orders.CreatedOrder)
        placed = await self._watch(created)
        if placed is not None and placed.status == "rejected":
            if placed.rejected_reason == NO_CAPACITY:
                raise InsufficientCapacity(PROVIDER, "the market has no such block now")
            raise OrderRejected(PROVIDER, placed.rejected_reason or "the market rejected the order")
        if placed is not None and placed.status in ("cancelled", "expired"):
            raise await self._why_unfilled(order)
        is_filled = placed is not None and placed.is_filled
        state = LeaseState.SCHEDULED if is_filled else LeaseState.PROVISIONING
        paid = placed.execution_price / 100 if placed and placed.execution_price else None
        return replace(ordered(order, created.id, state, order.window), billed_usd=paid)

    async def _why_unfilled(self, order: Order) -> ProviderError:
        """The reason for an unfilled order: the block's price now, or that it is sold out."""
        assert order.window is not None
        limit, note = orders.limit_usd_per_node_hour(order), order.offer.reference
        hours = -(-(order.window.end - order.window.start) // HOUR)
        request = QuoteRequest(note["zone"], note["instance_type"], order.nodes, order.window.start, hours)
        self._known.clear()
        block = f"{order.window.start:%d %b %H:%M} to {order.window.end:%d %b %H:%M} UTC"
        try:
            quote = (await self._ask(request)).quote
            rate = None if quote is None else usd_per_node_hour(quote, order.offer.observed_at)
        except (ProviderError, RowRejected):
            return InsufficientCapacity(
                PROVIDER, f"nobody sells {block} at {price_words(limit)} per node-hour"
            )
        if rate is None or rate <= limit:
            return InsufficientCapacity(PROVIDER, f"{order.nodes} nodes are not free from {block}")
        words = f"asks {price_words(rate)} per node-hour for {block}; the limit was {price_words(limit)}"
        return PriceAboveLimit(PROVIDER, words, asks_usd_per_node_hour=rate)

    async def _watch(self, created: orders.CreatedOrder) -> orders.PlacedOrder | None:
        """The order once it is decided, or its latest state; None when it cannot be read now (it stands)."""
        placed: orders.PlacedOrder | None = None
        for wait_s in FILL_WAITS_S:
            await self._sleep(wait_s)
            try:
                placed, _ = await self._placed(created.id)
            except ProviderError:
                return None
            if placed.status not in ("pending", "open"):
                return placed
        return placed

    async def _placed(self, order_id: str) -> tuple[orders.PlacedOrder, datetime]:
        """An order, and the seller's time in the answer."""
        reply = await self._held(f"/v0/orders/{order_id}")
        return reply.read(orders.PlacedOrder), reply.answered_at

    async def find_lease(self, reference: str, region: str) -> Lease:
        """An order (``ordr_…``), or a contract (``cont_…``) without a known order.

        LeasesUnreadable where the contracts of a filled order cannot be read: the block may be in force.
        """
        return (await self._holding(reference)).lease

    async def _holding(self, reference: str) -> orders.Holding:
        if reference.startswith("cont_"):
            contract = (await self._held(f"/v0/contracts/{reference}")).read(orders.Contract)
            return orders.Holding(orders.contract_lease(contract), contract)
        placed, at = await self._placed(reference)
        if not placed.is_filled:
            return orders.holdings([placed], [], at)[0]
        for holding in await self._holdings():
            if holding.lease.reference == reference:
                return holding
        return orders.holdings([placed], *await self._contracts())[0]

    async def list_leases(self) -> Sequence[Lease]:
        """Every buy order with its contract, and every contract without an order.

        The API stores no name on an order: ``tag`` is only set where its answer repeats the idempotency
        token.
        """
        return tuple(holding.lease for holding in await self._holdings())

    @tells_all_or_fails
    async def _holdings(self) -> tuple[orders.Holding, ...]:
        async with one_error() as group:
            placed = group.create_task(self._orders())
            contracts = group.create_task(self._contracts())
        return orders.holdings(placed.result(), *contracts.result())

    async def _orders(self) -> tuple[orders.PlacedOrder, ...]:
        pages = await self._pages("/v0/orders", orders.OrderList, {"limit": PAGE, "offset": 0})
        return tuple(placed for _, page in pages for placed in page.data)

    @tells_all_or_fails
    async def _contracts(self) -> tuple[tuple[orders.Contract, ...], datetime]:
        """All contracts, and the seller's time in the answer, which tells whether an order without a
        contract has ended."""
        pages = await self._pages("/v0/contracts", orders.ContractList)
        return tuple(contract for _, page in pages for contract in page.data), pages[0][0].answered_at

    async def _pages(
        self, path: str, model: type[Page], params: Mapping[str, int] | None = None
    ) -> list[tuple[Reply, Page]]:
        """Every page of a list, each with the answer that contained it.

        ``params``: query of the first page.
        """
        pages: list[tuple[Reply, Page]] = []
        rows = 0
        while True:
            reply = await self._held(path, params)
            page = reply.read(model)
            pages.append((reply, page))
            rows += len(page.data)
            if not page.has_more or not page.data:
                return pages
            if len(pages) == MOST_PAGES:
                raise reply.unreadable(f"a list of more than {rows} rows")
            params = {"limit": PAGE, "offset": rows}

    async def _give_back(self, lease: Lease) -> None:
        """Cancels an open order, or sells its contract back."""
        holding = await self._holding(lease.reference)
        if holding.lease.state in GONE_STATES:
            return
        if holding.contract is not None:
            await self._sell(holding.contract)
        elif holding.lease.detail in ("order pending", "order open"):
            await self._cancel(lease.reference)
        else:
            raise ReleaseRefused(PROVIDER, f"{holding.lease.detail}: nothing to sell yet", forever=False)

    async def _cancel(self, order_id: str) -> None:
        try:
            await self._call("DELETE", f"/v0/orders/{order_id}", Operation.RELEASE)
        except OrderRejected as error:
            if "already cancelled" not in str(error).lower():
                raise ReleaseRefused(PROVIDER, str(error), forever=False) from error

    async def _sell(self, contract: orders.Contract) -> None:
        """Sends a sell order in each of the two documented forms, of which at most one is accepted."""
        try:
            created = await self._place_sell(orders.sell_body(contract, names_contract=True))
        except OrderRejected:
            created = await self._place_sell(orders.sell_body(contract, names_contract=False))
        placed = await self._watch(created)
        if placed is None or not placed.is_filled:
            raise ReleaseRefused(PROVIDER, "nobody buys the block back now", forever=False)

    async def _place_sell(self, body: dict[str, Any]) -> orders.CreatedOrder:
        reply = await self._call("POST", "/v0/orders", Operation.RELEASE, json=body)
        return reply.read(orders.CreatedOrder)
