"""The client of Mithril: market data read as offers, bids and reservations read as leases."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from functools import partial
from typing import Annotated, Any

from broker.catalogue import load_provider_facts
from broker.domain.basics.errors import (
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    PayloadUnreadable,
    ProviderError,
    QuotaExceeded,
    ReleaseRefused,
)
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import Offer, OfferBatch
from broker.together import all_or_none
from providers.client import Query, SellerClient, all_pages, bearer, ordered, tells_all_or_fails
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.mithril.offers import (
    HOUR,
    LONGEST_HOURS,
    NAME,
    SHORTEST_HOURS,
    Market,
    WindowAnswers,
    dollars,
    parse_offers,
    reservable,
)
from providers.payload import Name, PayloadModel, RowRejected
from providers.rows import as_utc, window_between
from providers.schema import Words
from providers.spec import ProviderSettings, refuse_long_tag, refuse_unless_single

PAGE, MOST_PAGES = 100, 100
CALLS_PER_PAIR = 2
POLICY = HttpPolicy(concurrency=4)
"""No limits are published; 429 and 5xx are to be tried again."""

_NO_CAPACITY = re.compile(
    r"capacity|out of stock|sold out|not (currently )?available|unavailable|no (free )?slot", re.IGNORECASE
)
_QUOTA = re.compile(r"quota|insufficient (funds|balance|credit)|payment method", re.IGNORECASE)


def classify(reply: Reply) -> ProviderError:
    """The typed error of FastAPI's ``detail``: a sentence, or a list of wrong fields.

    Capacity and quota errors are only recognizable by their words.
    """
    text = _detail(reply)
    if reply.operation is Operation.ORDER and 400 <= reply.status < 500 and reply.status not in {401, 429}:
        if _QUOTA.search(text):
            return QuotaExceeded(NAME, text)
        if _NO_CAPACITY.search(text):
            return InsufficientCapacity(NAME, text)
    return classify_by_status(reply, text)


def _detail(reply: Reply) -> str:
    body = reply.json_or_none()
    detail = body.get("detail", body.get("message")) if isinstance(body, dict) else None
    if isinstance(detail, list):
        found = [each for each in detail if isinstance(each, dict)]
        return "; ".join(f"{_place(each.get('loc'))}: {each.get('msg')}" for each in found)[:300]
    return detail[:300] if isinstance(detail, str) else ""


def _place(place: object) -> str:
    return ".".join(str(part) for part in place) if isinstance(place, list) else str(place)


def _word(status: str) -> str:
    """The state without its prefix: ``Allocated`` equals the older ``STATUS_ALLOCATED``."""
    return status.lower().removeprefix("status_")


class _Held(PayloadModel):
    """A bid or a reservation."""

    fid: Name
    name: str | None = None
    status: Annotated[str, Words(lambda: {"canceled", *_BID_STATES, *_RESERVATION_STATES}, _word)] = ""
    region: str | None = None
    instance_type: str = ""
    instance_quantity: int = 1
    start_time: datetime | None = None
    end_time: datetime | None = None
    deactivated_at: datetime | None = None
    total_price: str | None = None


class _Page(PayloadModel):
    data: tuple[_Held, ...]
    next_cursor: str | int | None = None


class _Created(PayloadModel):
    fid: Name


_BID_STATES: Mapping[str, LeaseState] = {
    "new": LeaseState.PROVISIONING,
    "open": LeaseState.PROVISIONING,
    "allocated": LeaseState.ACTIVE,
    "preempting": LeaseState.ENDING,
    "paused": LeaseState.PROVISIONING,
    "relocating": LeaseState.PROVISIONING,
    "terminated": LeaseState.ENDED,
}
_RESERVATION_STATES: Mapping[str, LeaseState] = {
    "pending": LeaseState.SCHEDULED,
    "active": LeaseState.ACTIVE,
    "paused": LeaseState.ACTIVE,
    "ended": LeaseState.ENDED,
}


def _bid_lease(bid: _Held) -> Lease:
    return _lease(bid, _BID_STATES.get(_word(bid.status), LeaseState.UNKNOWN))


def _reservation_lease(row: _Held) -> Lease:
    return _lease(row, _reservation_state(row))


def _reservation_state(row: _Held) -> LeaseState:
    """The state of a reservation: cancelled before its start, it failed; cancelled later, it ended."""
    if _word(row.status) != "canceled":
        return _RESERVATION_STATES.get(_word(row.status), LeaseState.UNKNOWN)
    began = row.deactivated_at and row.start_time and as_utc(row.deactivated_at) > as_utc(row.start_time)
    return LeaseState.ENDED if began else LeaseState.FAILED


def _lease(row: _Held, state: LeaseState) -> Lease:
    return Lease(
        provider=NAME,
        reference=row.fid,
        state=state,
        tag=row.name,
        nodes=row.instance_quantity,
        sku=row.instance_type,
        region=row.region or "",
        window=window_between(row.start_time, row.end_time),
        detail=row.status,
        billed_usd=_amount(row.total_price),
    )


def _amount(text: str | None) -> Decimal | None:
    try:
        return None if text is None else dollars(text, "total_price")
    except RowRejected:
        return None


def time_text(at: datetime) -> str:
    """ISO 8601 in UTC with whole seconds, as the API writes it."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


class Mithril(SellerClient):
    """Client of one project's bids and reservations."""

    provider = NAME
    longest_tag = 64

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        super().__init__(settings, http_factory, classify, POLICY, bearer(settings, "api_key"))
        self._project, self._ssh_key = settings.secret("project"), settings.options["ssh_key"]
        self._search = load_provider_facts(NAME).search

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Offers from auctions, and from the reservable windows of the same types."""
        types = await self._read("/v2/instance-types")
        auctions = await self._read("/v2/spot/availability")
        pairs = reservable(types, auctions)
        most = int(self._search["max_calls"]) // CALLS_PER_PAIR
        asked = await all_or_none(self._windows(*pair, observed_at) for pair in pairs[:most])
        left = [WindowAnswers(*pair, problem="not asked: too many windows") for pair in pairs[most:]]
        return parse_offers(Market(types, auctions, (*asked, *left)), observed_at)

    async def _read(self, path: str, **params: str) -> bytes:
        return (await self._on_sale(path, params)).body

    async def _windows(self, instance_type: str, region: str, observed_at: datetime) -> WindowAnswers:
        """Reserved price and free slots; a type that cannot be reserved becomes a rejected row."""
        place = {"instance_type": instance_type, "region": region}
        until = observed_at + timedelta(days=int(self._search["days_ahead"]))
        try:
            prices = await self._read("/v2/pricing/current", **place)
            slots = await self._read(
                "/v2/reservation/availability",
                **place,
                project=self._project,
                mode="slots",
                earliest_start_time=time_text(observed_at),
                latest_end_time=time_text(until),
            )
        except PayloadUnreadable as error:
            return WindowAnswers(instance_type, region, problem=f"not reservable: {error}")
        return WindowAnswers(instance_type, region, prices, slots)

    def nodes_per_order(self, offer: Offer) -> int | None:
        """Any number in a reservation; one in a bid, because a bid for several might be filled in part."""
        return 1 if offer.window is None else None

    async def reserve(self, order: Order) -> Lease:
        """Bids for one instance, or reserves a window; the tag is the name."""
        if order.offer.window is None:
            refuse_unless_single(order, NAME, self.longest_tag)
            path, body, state = "/v2/spot/bids", self._bid(order), LeaseState.PROVISIONING
        else:
            path, body, state = "/v2/reservation", self._reservation(order), LeaseState.SCHEDULED
        fid = (await self._order(path, body)).read(_Created).fid
        return replace(ordered(order, fid, state, order.window), sku=order.offer.reference["instance_type"])

    def _bid(self, order: Order) -> dict[str, Any]:
        limit = order.offer.price_usd_per_node_hour * Decimal(self._search["bid_headroom"])
        cents = limit.quantize(Decimal("0.01"), rounding=ROUND_CEILING)
        return {**self._order_body(order), "limit_price": f"${cents}"}

    def _reservation(self, order: Order) -> dict[str, Any]:
        window = order.window
        if window is None:
            raise OrderRejected(NAME, "a reservation needs an end")
        whole = window.start.minute == window.start.second == window.start.microsecond == 0
        if not whole or window.duration % HOUR or not SHORTEST_HOURS <= window.hours <= LONGEST_HOURS:
            sold = f"{SHORTEST_HOURS} to {LONGEST_HOURS} whole hours from a whole hour are sold"
            raise OrderRejected(NAME, f"{sold}, not {time_text(window.start)} to {time_text(window.end)}")
        refuse_long_tag(order, NAME, self.longest_tag)
        times = {"start_time": time_text(window.start), "end_time": time_text(window.end)}
        return {**self._order_body(order), **times}

    def _order_body(self, order: Order) -> dict[str, Any]:
        return {
            "project": self._project,
            "region": order.offer.reference["region"],
            "instance_type": order.offer.reference["instance_type"],
            "instance_quantity": order.nodes,
            "name": order.tag,
            "launch_specification": {
                "volumes": [],
                "ssh_keys": [self._ssh_key] if self._ssh_key else [],
            },
        }

    async def find_lease(self, reference: str, region: str) -> Lease:
        """A bid by its FID, or a reservation from their list, because the API has no call for one.

        LeasesUnreadable where that list cannot be read: the reservation may be in force.
        """
        found = None if reference.startswith("res_") else await self._find_bid(reference)
        if found is None:
            rows = await self._all("/v2/reservation", _reservation_lease)
            found = next((lease for lease in rows if lease.reference == reference), None)
        if found is None:
            raise LeaseNotFound(NAME, f"neither a bid nor a reservation {reference[:60]}")
        return found

    async def _find_bid(self, reference: str) -> Lease | None:
        try:
            reply = await self._held(f"/v2/spot/bids/{reference}")
        except LeaseNotFound:
            return None
        return _bid_lease(reply.read(_Held))

    async def list_leases(self) -> Sequence[Lease]:
        """Every bid and every reservation of the project."""
        bids = await self._all("/v2/spot/bids", _bid_lease)
        return (*bids, *await self._all("/v2/reservation", _reservation_lease))

    @tells_all_or_fails
    async def _all(self, path: str, read: Callable[[_Held], Lease]) -> tuple[Lease, ...]:
        first = {"project": self._project, "limit": str(PAGE)}

        pages = await all_pages(partial(self._held, path), _next_page, first, MOST_PAGES)
        return tuple(read(row) for page in pages for row in page.read(_Page).data)

    async def _give_back(self, lease: Lease) -> None:
        """Cancels a bid; a reservation ends by itself and stays paid."""
        found = await self.find_lease(lease.reference, lease.region)
        if found.state in {LeaseState.ENDED, LeaseState.FAILED}:
            return
        if found.window is not None:
            raise ReleaseRefused(NAME, "a reservation ends by itself and stays paid", forever=True)
        await self._end("DELETE", f"/v2/spot/bids/{lease.reference}")


def _next_page(reply: Reply, _: int) -> Query | None:
    cursor = reply.read(_Page).next_cursor
    return {"next_cursor": str(cursor)} if cursor else None
