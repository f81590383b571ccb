"""The client of Mithril: market data read as offers, bids and reservations read as leases."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from broker.domain.basics.errors import (
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    PayloadUnreadable,
    PriceAboveLimit,
    ProviderError,
    QuotaExceeded,
    ReleaseRefused,
)
from broker.domain.basics.machines import Access
from broker.domain.basics.money import price_words
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import Offer, OfferBatch
from broker.provider_facts import load_provider_facts
from broker.together import all_or_none
from providers.client import (
    AccountKey,
    Entry,
    KeyRegister,
    Query,
    all_pages,
    bearer,
    key_line,
    ordered,
    tells_all_or_fails,
)
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.mithril.offers import (
    HOUR,
    LONGEST_HOURS,
    NAME,
    SHORTEST_HOURS,
    Market,
    WindowAnswers,
    dollars,
    most_priced,
    parse_offers,
    reservable,
)
from providers.payload import Name, PayloadModel, RowRejected
from providers.rows import access_at, as_utc, time_text, window_between
from providers.schema import Words
from providers.spec import ProviderSettings, refuse_long_tag, refuse_unless_single

Read = TypeVar("Read")
PAGE, MOST_PAGES = 100, 100
CALLS_PER_PAIR = 3
OFFER_KEY = "standard"
USER = "ubuntu"
CENT = Decimal("0.01")
POLICY = HttpPolicy(concurrency=4)
"""No limits are published; 429 and 5xx are to be tried again."""

_NO_CAPACITY = re.compile(
    r"capacity|out of stock|sold out|not (currently )?available|unavailable|no (free )?slot", re.IGNORECASE
)
_QUOTA = re.compile(r"quota|insufficient (funds|balance|credit)|payment method", re.IGNORECASE)
_PRICE = re.compile(r"price", re.IGNORECASE)


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
    instances: tuple[str, ...] = ()
    start_time: datetime | None = None
    end_time: datetime | None = None
    deactivated_at: datetime | None = None
    total_price: str | None = None


class _Page(PayloadModel):
    data: tuple[_Held, ...]
    next_cursor: str | int | None = None


class _Instance(PayloadModel):
    """One machine of a bid or a reservation."""

    fid: Name
    ssh_destination: str | None = None
    private_ip: str | None = None

    @property
    def access(self) -> Access | None:
        """How it is entered, once it says so."""
        found = access_at(self.ssh_destination or "", USER)
        return None if found is None else replace(found, private_host=self.private_ip)


class _InstancePage(PayloadModel):
    data: tuple[_Instance, ...]


class _Key(PayloadModel):
    fid: Name
    name: Name
    public_key: str


class _Created(PayloadModel):
    fid: Name
    total_price: str | None = None


class _QuotedOffer(PayloadModel):
    key: Name
    unit_price: str


class _Quote(PayloadModel):
    """``GET /v2/reservation/quote``: a price per instance and hour for one window and quantity."""

    offers: tuple[_QuotedOffer, ...]


class _Event(PayloadModel):
    return_credit_cents: Decimal | None = None


class _History(PayloadModel):
    events: tuple[_Event, ...]


class _Terminated(PayloadModel):
    """The answer 207: the instances that were ended, of those that were to end."""

    terminated_instances: tuple[str, ...] = ()


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
    ended_at = None if row.deactivated_at is None else as_utc(row.deactivated_at)
    return replace(_lease(row, _reservation_state(row)), ended_at=ended_at)


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


class Mithril(KeyRegister):
    """Client of one project's bids and reservations."""

    provider = NAME
    longest_tag = 64
    entry = Entry.KEYS
    takes_script = True

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
        """Free slots, and the reserved prices of one instance and of as many as are free at once.

        A type that cannot be reserved becomes a rejected row.
        """
        place = {"instance_type": instance_type, "region": region}
        until = observed_at + timedelta(days=int(self._search["days_ahead"]))
        try:
            one = await self._price(place, 1)
            slots = await self._read(
                "/v2/reservation/availability",
                **place,
                project=self._project,
                mode="slots",
                earliest_start_time=time_text(observed_at),
                latest_end_time=time_text(until),
            )
            most = most_priced(slots)
            several = b"" if most == 1 else await self._price(place, most)
        except PayloadUnreadable as error:
            return WindowAnswers(instance_type, region, problem=f"not reservable: {error}")
        return WindowAnswers(instance_type, region, one, slots, several)

    async def _price(self, place: Query, quantity: int) -> bytes:
        return await self._read("/v2/pricing/current", **place, instance_quantity=str(quantity))

    def nodes_per_order(self, offer: Offer) -> int | None:
        """Any number in a reservation; one in a bid, because a bid for several might be filled in part."""
        return 1 if offer.window is None else None

    def holds_limit(self, offer: Offer) -> bool:
        """A reservation above its ``max_unit_price`` fails; a bid below the market's price would stand."""
        return offer.window is not None

    async def reserve(self, order: Order) -> Lease:
        """Bids for one instance, or reserves a window; the tag is the name."""
        ids = await self.registered(order.keys) or [self._ssh_key] * bool(self._ssh_key)
        start = {"startup_script": order.script} if order.script else {}
        body = {**self._order_body(order), "launch_specification": {"volumes": [], "ssh_keys": ids, **start}}
        if order.offer.window is None:
            refuse_unless_single(order, NAME, self.longest_tag)
            bid = {**body, "limit_price": _limit_price(order)}
            made = (await self._order("/v2/spot/bids", bid)).read(_Created)
            state, billed = LeaseState.PROVISIONING, None
        else:
            made = await self._reserve_window(order, body)
            state, billed = LeaseState.SCHEDULED, _amount(made.total_price)
        lease = ordered(order, made.fid, state, order.window)
        return replace(lease, sku=order.offer.reference["instance_type"], billed_usd=billed)

    async def _reserve_window(self, order: Order, body: Mapping[str, Any]) -> _Created:
        try:
            return (await self._order("/v2/reservation", {**body, **_window_terms(order)})).read(_Created)
        except OrderRejected as error:
            if _PRICE.search(str(error)):
                await self._refuse_dearer(order)
            raise

    async def _refuse_dearer(self, order: Order) -> None:
        """PriceAboveLimit if the window's price is above the limit now."""
        limit = order.limit_usd_per_node_hour
        try:
            price = await self._window_price(order)
        except (ProviderError, RowRejected):
            return
        if limit is not None and price is not None and price > limit:
            words = f"asks {price_words(price)} per node-hour; the limit was {price_words(limit)}"
            raise PriceAboveLimit(NAME, words, asks_usd_per_node_hour=price)

    async def _window_price(self, order: Order) -> Decimal | None:
        """USD per instance and hour of exactly this window and quantity; None if it is not sold."""
        window = order.window
        assert window is not None
        query = {
            "project": self._project,
            **{name: order.offer.reference[name] for name in ("instance_type", "region")},
            "start_time": time_text(window.start),
            "end_time": time_text(window.end),
            "quantity": str(order.nodes),
        }
        found = (await self._on_sale("/v2/reservation/quote", query)).read(_Quote).offers
        return next((dollars(one.unit_price, "unit_price") for one in found if one.key == OFFER_KEY), None)

    def _order_body(self, order: Order) -> dict[str, Any]:
        return {
            "project": self._project,
            "region": order.offer.reference["region"],
            "instance_type": order.offer.reference["instance_type"],
            "instance_quantity": order.nodes,
            "name": order.tag,
        }

    async def account_keys(self) -> Sequence[AccountKey]:
        """The keys of the project; the list has one page."""
        reply = await self._held("/v2/ssh-keys", {"project": self._project})
        return [AccountKey(key.fid, key.name, key_line(key.public_key)) for key in reply.rows("keys", _Key)]

    async def _register_key(self, name: str, line: str) -> str:
        body = {"project": self._project, "name": name, "public_key": line}
        return (await self._key_call("POST", "/v2/ssh-keys", body)).read(_Key).fid

    async def _unregister_key(self, key: AccountKey) -> None:
        await self._key_call("DELETE", f"/v2/ssh-keys/{key.key_id}")

    async def find_lease(self, reference: str, region: str) -> Lease:
        """A bid by its FID, or a reservation from their list, because the API has no call for one.

        LeasesUnreadable where that list cannot be read: the reservation may be in force.
        """
        found = None if reference.startswith("res_") else await self._find_bid(reference)
        if found is not None:
            return found
        row = await self._find_reservation(reference)
        lease = _reservation_lease(row)
        ended_early = lease.ended_at and lease.window and lease.ended_at < lease.window.end
        return await self._with_credit(lease) if ended_early else lease

    async def _find_reservation(self, reference: str) -> _Held:
        rows = await self._all("/v2/reservation", _itself)
        found = next((row for row in rows if row.fid == reference), None)
        if found is None:
            raise LeaseNotFound(NAME, f"neither a bid nor a reservation {reference[:60]}")
        return found

    async def _with_credit(self, lease: Lease) -> Lease:
        """``lease`` with what its early end gave back, where its history can be read."""
        with contextlib.suppress(ProviderError):
            history = (await self._held(f"/v2/reservation/{lease.reference}/history")).read(_History)
            cents = [e.return_credit_cents for e in history.events if e.return_credit_cents is not None]
            return replace(lease, credit_usd=sum(cents, Decimal(0)) / 100 if cents else None)
        return lease

    async def _find_bid(self, reference: str) -> Lease | None:
        try:
            reply = await self._held(f"/v2/spot/bids/{reference}")
        except LeaseNotFound:
            return None
        return _bid_lease(reply.read(_Held))

    async def list_leases(self) -> Sequence[Lease]:
        """Every bid and every reservation of the project, with the machines of those that run.

        Where the list of machines cannot be read, the leases stand without.
        """
        bids, reservations = [await self._all(path, _itself) for path in ("/v2/spot/bids", "/v2/reservation")]
        leases = (*map(_bid_lease, bids), *map(_reservation_lease, reservations))
        if not any(lease.state is LeaseState.ACTIVE for lease in leases):
            return leases
        ways: Mapping[str, Access | None] = {}
        with contextlib.suppress(ProviderError):
            ways = await self._ways()
        rows = zip((*bids, *reservations), leases, strict=True)
        return tuple(replace(lease, machines=_machines(row, ways)) for row, lease in rows)

    async def _ways(self) -> Mapping[str, Access | None]:
        """How each running machine of the project is entered, by its FID."""
        first = {"project": self._project, "limit": str(PAGE), "status_in": "STATUS_RUNNING"}
        pages = await all_pages(partial(self._held, "/v2/instances"), _next_page, first, MOST_PAGES)
        return {row.fid: row.access for page in pages for row in page.read(_InstancePage).data}

    @tells_all_or_fails
    async def _all(self, path: str, read: Callable[[_Held], Read]) -> tuple[Read, ...]:
        first = {"project": self._project, "limit": str(PAGE)}

        pages = await all_pages(partial(self._held, path), _next_page, first, MOST_PAGES)
        return tuple(read(row) for page in pages for row in page.read(_Page).data)

    async def _give_back(self, lease: Lease) -> None:
        """Cancels a bid; returns the instances of a reservation, for which the seller gives credit."""
        is_bid = not lease.reference.startswith("res_")
        bid = await self._find_bid(lease.reference) if is_bid else None
        if bid is None:
            await self._return_instances(await self._find_reservation(lease.reference))
        elif bid.state not in {LeaseState.ENDED, LeaseState.FAILED}:
            await self._end("DELETE", f"/v2/spot/bids/{lease.reference}")

    async def _return_instances(self, row: _Held) -> None:
        """Ends every instance of a reservation, which is how it ends early."""
        if _reservation_state(row) in {LeaseState.ENDED, LeaseState.FAILED}:
            return
        if not row.instances:
            raise ReleaseRefused(NAME, "it has no instances to return before it starts", forever=False)
        body = {"instances": list(row.instances), "reduce_capacity": True}
        try:
            path = f"/v2/reservation/{row.fid}/terminate-instances"
            reply = await self._end("POST", path, body)
        except OrderRejected as error:
            if error.status == HTTPStatus.BAD_REQUEST:
                return
            raise
        if reply.status == HTTPStatus.MULTI_STATUS:
            ended = len(reply.read(_Terminated).terminated_instances)
            words = f"{ended} of {len(row.instances)} instances are ended"
            raise ReleaseRefused(NAME, words, forever=False)


def _itself(row: _Held) -> _Held:
    return row


def _next_page(reply: Reply, _: int) -> Query | None:
    cursor = reply.read(_Page).next_cursor
    return {"next_cursor": str(cursor)} if cursor else None


def _machines(row: _Held, ways: Mapping[str, Access | None]) -> tuple[Access, ...]:
    """The machines of a bid or a reservation in its order, once each of them says how it is entered."""
    found = [ways.get(fid) for fid in row.instances]
    known = tuple(one for one in found if one is not None)
    return known if len(known) == len(found) else ()


def _limit_price(order: Order) -> str:
    """The market's price is what is paid, so the bid is the limit."""
    if order.limit_usd_per_node_hour is None:
        return f"${order.bid_usd_per_node_hour.quantize(CENT, rounding=ROUND_CEILING)}"
    return f"${order.limit_usd_per_node_hour.quantize(CENT, rounding=ROUND_FLOOR)}"


def _window_terms(order: Order) -> dict[str, Any]:
    """The times of a reservation, and the most that it may cost."""
    window = order.window
    if window is None:
        raise OrderRejected(NAME, "a reservation needs an end")
    whole = window.start.minute == window.start.second == window.start.microsecond == 0
    if not whole or window.duration % HOUR or not SHORTEST_HOURS <= window.hours <= LONGEST_HOURS:
        sold = f"{SHORTEST_HOURS} to {LONGEST_HOURS} whole hours from a whole hour are sold"
        raise OrderRejected(NAME, f"{sold}, not {time_text(window.start)} to {time_text(window.end)}")
    refuse_long_tag(order, NAME, Mithril.longest_tag)
    times: dict[str, Any] = {"start_time": time_text(window.start), "end_time": time_text(window.end)}
    if order.limit_usd_per_node_hour is None:
        return times
    cents = int((order.limit_usd_per_node_hour * 100).to_integral_value(ROUND_FLOOR))
    limit = {"offer_key": OFFER_KEY, "max_unit_price": cents}
    return {**times, "price_specification": limit}
