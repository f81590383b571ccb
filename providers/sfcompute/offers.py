"""Parses zones and quotes into offers; pure functions.

Zones list free capacity as rectangles over time, in nodes of 8 GPUs and Unix seconds. A price exists only
for a window: a quote's ``price`` is the TOTAL in US cents of all its nodes over all its hours. Each of the
coming days is quoted separately. One offer is the whole zone at the highest of its quotes, for any day, so
that a plan never counts on less than the market asked. Further offers cover the cheaper days: all days up
to a round price, at the highest quote among them. All offers of a zone share its nodes, which are their
pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from itertools import pairwise
from typing import Any

from pydantic import Field

from broker.domain.basics.money import MICRO
from broker.domain.basics.window import Segment, Window
from broker.domain.market.billing import days
from broker.domain.market.offer import (
    CancelRule,
    GpuPool,
    NativePrice,
    Offer,
    OfferBatch,
    Stock,
    StockLevel,
    Tier,
    WindowKind,
    WindowTerms,
)
from broker.domain.market.sku import Fabric, Form, Sku
from broker.provider_facts import NodeFacts, ProviderFacts, load_provider_facts
from providers.payload import (
    Name,
    PayloadModel,
    RowRejected,
    as_list,
    canonical_gpu,
    collect,
    decode_json,
    decode_model,
    require_price,
    slug,
)
from providers.rows import gpu_node
from providers.schema import Rows

PROVIDER = "sfcompute"
NOW = "NOW"
MOST_NODES = 1024
MOST_CENTS = 10**12
LEAD_HOURS = 1 / 60
"""Hours before the start: an order must start in the future, at the next minute or a whole hour."""
FORMS = {"VM": Form.VM, "K8s": Form.CONTAINER}
"""Delivery over Kubernetes means pods for containers, whatever hardware runs them."""
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
_LATEST = datetime(2100, 1, 1, tzinfo=UTC)


class _Rectangle(PayloadModel):
    start_timestamp: int = Field(ge=0, le=4_000_000_000)
    end_timestamp: int = Field(ge=0, le=4_000_000_000)
    quantity: int = Field(ge=0, le=1_000_000)


class Zone(PayloadModel):
    """One availability zone."""

    name: Name
    region: Name
    hardware_type: Name
    interconnect_type: str | None = None
    delivery_type: str | None = None
    available_capacity: tuple[_Rectangle, ...] = ()


class Quote(PayloadModel):
    """The market's price for one block.

    ``price``: cents for all of it.
    """

    price: Decimal = Field(gt=0, le=MOST_CENTS)
    quantity: int = Field(ge=1, le=MOST_NODES)
    start_at: str
    end_at: str
    instance_type: Name
    zone: str | None = None


class QuoteAnswer(PayloadModel):
    """A quote, or the reason why there is none."""

    quote: Quote | None = None
    no_quote_reason: str | None = None


@dataclass(frozen=True, slots=True)
class QuoteRequest:
    """One quote request for a zone."""

    zone: str
    instance_type: str
    nodes: int
    start: datetime
    hours: int

    def query(self) -> dict[str, str | int | float | bool]:
        """Query of ``GET /v0/quote``."""
        start = time_text(self.start)
        return {
            "side": "buy",
            "instance_type": self.instance_type,
            "quantity": self.nodes,
            "min_start_date": start,
            "max_start_date": start,
            "duration": self.hours * 3600,
            "cluster": self.zone,
        }


def time_text(at: datetime) -> str:
    """ISO 8601 in UTC with milliseconds, as the API writes it."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.000Z"


def next_hour(at: datetime) -> datetime:
    """``at`` if it is a whole hour, else the next whole hour."""
    floor = at.replace(minute=0, second=0, microsecond=0)
    return floor if floor == at else floor + HOUR


def read_zones(payload: bytes) -> tuple[tuple[str, Any], ...]:
    """Name and raw row of every zone; PayloadUnreadable when it is not a list of zones."""
    decoded = decode_json(PROVIDER, payload)
    rows = as_list(PROVIDER, decoded.get("data") if isinstance(decoded, dict) else decoded, "data")
    return tuple((str(row.get("name") if isinstance(row, dict) else row)[:80], row) for row in rows)


def read_quote(payload: bytes) -> QuoteAnswer:
    """The answer to a quote request; PayloadUnreadable for other answers."""
    return decode_model(PROVIDER, payload, QuoteAnswer)


def free_segments(zone: Zone, observed_at: datetime) -> tuple[Segment, ...]:
    """Free capacity on whole hours from ``observed_at`` on; RowRejected when there is none."""
    found = tuple(sorted(_segments(zone.available_capacity, observed_at + timedelta(hours=LEAD_HOURS))))
    for before, after in pairwise(found):
        if after.start < before.end:
            raise RowRejected(f"capacity intervals overlap at {time_text(after.start)}")
    if not found:
        raise RowRejected("no capacity")
    return found


def _segments(rectangles: Iterable[_Rectangle], earliest: datetime) -> Iterator[Segment]:
    for rectangle in rectangles:
        start = next_hour(max(datetime.fromtimestamp(rectangle.start_timestamp, UTC), earliest))
        end = datetime.fromtimestamp(rectangle.end_timestamp, UTC).replace(minute=0, second=0, microsecond=0)
        if rectangle.quantity and start < end:
            yield Segment(start, end, rectangle.quantity)


def instance_types(facts: ProviderFacts, zone: Zone) -> Sequence[str]:
    """Instance types that a zone may sell, the most likely first; RowRejected when none is known."""
    canonical_gpu(facts, zone.hardware_type)
    known = facts.search["instance_types"].get(f"{zone.hardware_type} {zone.delivery_type}", ())
    if not known:
        raise RowRejected(f"no instance type of {zone.hardware_type} delivered as {zone.delivery_type}")
    return tuple(known)


def reference_windows(
    search: Mapping[str, Any], segments: Sequence[Segment]
) -> tuple[tuple[datetime, int, int], ...]:
    """(start, hours, nodes) of the quotes to request: each coming day, then each reference duration early
    and late.

    A day's window is its longest stretch of one node count. A duration that fits nowhere is shortened to
    such a stretch.
    """
    nodes = int(search["nodes"])
    asked: dict[tuple[datetime, int, int], None] = {}
    for stretch in _longest_of_days(segments, int(search["days"])):
        asked[(stretch.start, int(stretch.hours), min(nodes, stretch.nodes, MOST_NODES))] = None
    for hours in search["durations_hours"]:
        fitting = [segment for segment in segments if segment.hours >= hours]
        if not fitting:
            fitting = [max(segments, key=lambda segment: segment.hours)]
        early, late = fitting[0], fitting[-1]
        length = min(int(hours), int(early.hours))
        slack_hours = int(late.hours) - length
        for segment, start in ((early, early.start), (late, late.start + slack_hours // 2 * HOUR)):
            asked[(start, length, min(nodes, segment.nodes, MOST_NODES))] = None
    return tuple(asked)


def _longest_of_days(segments: Sequence[Segment], most_days: int) -> Iterator[Segment]:
    """The longest free stretch of each UTC day, for ``most_days`` days from the first free one."""
    by_day: dict[datetime, Segment] = {}
    first = min(segment.start for segment in segments)
    for segment in segments:
        for day in days(segment.window):
            midnight = day.start.replace(hour=0, minute=0, second=0, microsecond=0)
            stretch = Segment(day.start, day.end, segment.nodes)
            if day.start < first + most_days * DAY and (
                midnight not in by_day or stretch.hours > by_day[midnight].hours
            ):
                by_day[midnight] = stretch
    yield from by_day.values()


def parse_offers(
    zones: bytes, quotes: Mapping[str, Sequence[QuoteAnswer]], observed_at: datetime
) -> OfferBatch:
    """Offers of the zones that have capacity and a quote; other zones are rejected with the reason."""
    facts = load_provider_facts(PROVIDER)

    step = Decimal(str(facts.search["price_step_usd"]))

    def build(row: Any) -> Iterator[Offer]:
        zone = Zone.model_validate(row)
        segments = free_segments(zone, observed_at)
        instance_types(facts, zone)
        priced = _priced(quotes.get(zone.name, ()), observed_at)
        dearest = max(priced, key=lambda one: one.usd_per_node_hour)
        whole, highest = _offer(facts, zone, segments, dearest, observed_at), dearest.level(step)
        yield whole
        by_day = [one for one in priced if one.window.duration <= DAY]
        for level in sorted({one.level(step) for one in by_day if one.level(step) < highest}):
            below = [one for one in by_day if one.level(step) <= level]
            above = [one.window for one in by_day if one.level(step) > level]
            cheaper = tuple(_within(segments, [one.window for one in below], above))
            if cheaper:
                dearest = max(below, key=lambda one: one.usd_per_node_hour)
                offer = _offer(facts, zone, cheaper, dearest, observed_at)
                yield replace(offer, offer_id=f"{whole.offer_id}/to-{level:f}", stock=whole.stock)

    return collect(read_zones(zones), build)


@dataclass(frozen=True, slots=True)
class _Priced:
    """A valid quote, with its window."""

    quote: Quote
    window: Window
    usd_per_node_hour: Decimal

    def level(self, step: Decimal) -> Decimal:
        """The lowest multiple of ``step`` that is at least as high."""
        return (self.usd_per_node_hour / step).to_integral_value(ROUND_CEILING) * step


def _within(
    segments: Sequence[Segment], inside: Sequence[Window], outside: Sequence[Window]
) -> Iterator[Segment]:
    """The parts of ``segments`` inside one of the windows ``inside`` and outside all of ``outside``.

    Touching parts with equal node counts are merged.
    """
    edges = sorted({edge for window in (*inside, *outside) for edge in (window.start, window.end)})
    last: Segment | None = None
    for segment in segments:
        cuts = sorted({segment.start, segment.end, *(e for e in edges if segment.start < e < segment.end)})
        for start, end in pairwise(cuts):
            if not any(w.contains(start) for w in inside) or any(w.contains(start) for w in outside):
                continue
            if last is not None and (last.end, last.nodes) == (start, segment.nodes):
                last = Segment(last.start, end, last.nodes)
                continue
            if last is not None:
                yield last
            last = Segment(start, end, segment.nodes)
    if last is not None:
        yield last


def _priced(answers: Sequence[QuoteAnswer], observed_at: datetime) -> list[_Priced]:
    priced = [
        _Priced(
            answer.quote,
            Window(*quote_window(answer.quote, observed_at)),
            usd_per_node_hour(answer.quote, observed_at),
        )
        for answer in answers
        if answer.quote is not None
    ]
    if not priced:
        reasons = dict.fromkeys(answer.no_quote_reason or "no reason given" for answer in answers)
        raise RowRejected(f"no quote: {', '.join(reasons) or 'not asked'}")
    return priced


def quote_window(quote: Quote, observed_at: datetime) -> tuple[datetime, datetime]:
    """Start and end of a quote; "NOW" is the next minute.

    RowRejected for an empty or reversed window.
    """
    try:
        start = _instant(quote.start_at) if quote.start_at != NOW else _next_minute(observed_at)
        end = _instant(quote.end_at)
    except (ValueError, OverflowError):
        raise RowRejected(f"quote from {quote.start_at[:40]!r} to {quote.end_at[:40]!r}") from None
    if not start < end <= _LATEST:
        raise RowRejected(f"quote ends {time_text(end)}, it starts {time_text(start)}")
    return start, end


def usd_per_node_hour(quote: Quote, observed_at: datetime) -> Decimal:
    """Dollars per node-hour from a quote's total cents, to the micro-dollar."""
    start, end = quote_window(quote, observed_at)
    node_seconds = Decimal((end - start) // timedelta(seconds=1)) * quote.quantity
    if node_seconds <= 0:
        raise RowRejected("the quote has no duration")
    return require_price((quote.price * 36 / node_seconds).quantize(MICRO))


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError("no time zone")
    return instant.astimezone(UTC)


def _next_minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0) + timedelta(minutes=1)


def _sku(facts: ProviderFacts, zone: Zone, instance_type: str) -> Sku:
    node = facts.nodes.get(instance_type, NodeFacts())
    if node.gpu is None or node.gpus_per_node is None:
        raise RowRejected(f"unknown instance type {instance_type!r}")
    gpu = canonical_gpu(facts, zone.hardware_type)
    if gpu != node.gpu:
        raise RowRejected(f"instance type {instance_type!r} is not {zone.hardware_type}")
    has_fabric = (zone.interconnect_type or "").lower() == "infiniband"
    return gpu_node(
        instance_type,
        gpu,
        node.gpus_per_node,
        FORMS.get(zone.delivery_type or ""),
        vcpus=node.vcpus,
        memory_gb=node.memory_gb,
        disk_gb=node.disk_gb,
        fabric=_fabric(node.fabric, zone.name) if has_fabric else None,
    )


def _fabric(fabric: Fabric | None, zone: str) -> Fabric | None:
    if fabric is None:
        return None
    return Fabric(fabric.kind, fabric.gbit_s_per_node, fabric.max_nodes, zone)


def _offer(
    facts: ProviderFacts,
    zone: Zone,
    segments: tuple[Segment, ...],
    priced: _Priced,
    observed_at: datetime,
) -> Offer:
    quote, nodes = priced.quote, max(segment.nodes for segment in segments)
    sku = _sku(facts, zone, quote.instance_type)
    hours = round(priced.window.hours, 2)
    return Offer(
        offer_id=f"sfcompute/{slug(zone.name)}/{slug(quote.instance_type)}",
        provider=PROVIDER,
        sku=sku,
        region=zone.region,
        zone=zone.name,
        tier=Tier.WINDOW,
        price_usd_per_node_hour=priced.usd_per_node_hour,
        observed_at=observed_at,
        source="GET /v0/zones, GET /v0/quote",
        native=NativePrice(quote.price, "USD", f"cents for {quote.quantity} nodes over {hours:g} h"),
        country=facts.country_of(zone.region),
        min_hours=1.0,
        billing_increment_s=facts.billed.increment_s,
        window=WindowTerms(
            kind=WindowKind.ORDERBOOK,
            segments=segments,
            step_hours=1.0,
            lead_hours=LEAD_HOURS,
            cancel=CancelRule.RESELL,
            billed=facts.billed.window_billed("block"),
        ),
        stock=Stock(
            StockLevel.UNKNOWN,
            nodes,
            GpuPool(f"{PROVIDER}/{slug(zone.name)}/{slug(quote.instance_type)}", nodes * sku.gpus_per_node),
        ),
        compliance=facts.compliance,
        reference={"zone": zone.name, "instance_type": quote.instance_type},
    )


ROWS = (Rows("GET /v0/zones", "data[]", Zone), Rows("GET /v0/quote", "quote", Quote))
