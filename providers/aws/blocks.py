"""Capacity Blocks: whole windows of GPU capacity, found by search and paid up front.

Units: ``upfrontFee`` is a decimal string, USD, for all instances of the whole window. The answer's own
start, end and duration count, not those asked for. A block ends at 11:30 UTC and starts then too, or
"at once" (its start then moves from search to search). It cannot be cancelled; AWS takes the instances
back 30 minutes before the end (60 for UltraServers, which are not read here).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from broker.domain.basics.money import MICRO
from broker.domain.basics.window import Segment
from broker.domain.market.offer import (
    CancelRule,
    NativePrice,
    Offer,
    OfferBatch,
    RejectedRow,
    Stock,
    StockLevel,
    Tier,
    WindowKind,
    WindowTerms,
)
from broker.provider_facts import load_provider_facts
from providers.aws.menu import asked
from providers.aws.nodes import BLOCK_ANCHOR_UTC, PROVIDER, billing, compliance, country_of, region_of, sku_of
from providers.aws.query import Node, Params
from providers.payload import RowRejected, require_price
from providers.rows import time_text
from providers.schema import Rows

ACTION = "DescribeCapacityBlockOfferings"
TEARDOWN_S = 30 * 60
LEAD_HOURS = 0.5
"""Until 30 minutes before its start, a block that starts at once can be bought (EC2 user guide)."""
STEP_HOURS = 24.0
MOST_NODES = 64
BOOKABLE_AHEAD = timedelta(weeks=8)
STARTS_AT_ONCE = "now"


@dataclass(frozen=True, slots=True)
class BlockSearch:
    """One search request: a number of instances of one type, for a duration, in one region."""

    region: str
    instance_type: str
    count: int
    duration_hours: int

    def __str__(self) -> str:
        return f"{self.region} {self.count} x {self.instance_type} for {self.duration_hours} h"

    def query(self, starts_after: datetime | None, ends_before: datetime) -> Params:
        """Search parameters for windows between two instants; ``starts_after`` None means from now on."""
        return {
            "InstanceType": self.instance_type,
            "InstanceCount": str(self.count),
            "CapacityDurationHours": str(self.duration_hours),
            **({"StartDateRange": time_text(starts_after)} if starts_after is not None else {}),
            "EndDateRange": time_text(ends_before),
        }

    def whole_query(self, at: datetime) -> Params:
        """Search parameters for every window that can be booked at ``at``."""
        return self.query(at, at + BOOKABLE_AHEAD + timedelta(hours=self.duration_hours))


@dataclass(frozen=True, slots=True)
class BlockOffering:
    """One item of a search's answer."""

    offering_id: str
    instance_type: str
    zone: str
    count: int
    segment: Segment
    upfront_usd: Decimal

    @property
    def usd_per_node(self) -> Decimal:
        """One instance's share of the fee for the whole window."""
        return self.upfront_usd / self.count

    @property
    def usd_per_node_hour(self) -> Decimal:
        """The fee spread over instances and hours."""
        seconds = (self.segment.end - self.segment.start) // timedelta(seconds=1)
        return self.upfront_usd * 3600 / (seconds * self.count)


def menu(search: Mapping[str, Any], regions: Iterable[str]) -> tuple[BlockSearch, ...]:
    """Every search of ``search.blocks.menu`` in ``config/providers/aws.toml``, in ``regions`` alone."""
    return tuple(BlockSearch(*each) for each in asked(search.get("blocks", {}), regions))


def most_calls(search: Mapping[str, Any]) -> int:
    """How many search calls one poll may make, further pages included."""
    return int(search.get("blocks", {}).get("max_calls", 0))


def parse_offerings(page: Node) -> Iterator[BlockOffering | RejectedRow]:
    """The items of one answer."""
    for item in page.items("capacityBlockOfferingSet"):
        try:
            yield _offering(item)
        except RowRejected as error:
            row = f"{item.text('capacityBlockOfferingId')} {item.text('instanceType')}"
            yield RejectedRow(row, str(error))


def parse_blocks(pages: Iterable[Node], observed_at: datetime) -> OfferBatch:
    """Offers from any number of answers; of one type, zone, start and end, only the largest count is kept."""
    largest: dict[str, BlockOffering] = {}
    rejected: list[RejectedRow] = []
    for page in pages:
        for found in parse_offerings(page):
            if isinstance(found, RejectedRow):
                rejected.append(found)
                continue
            key = offer_id(found)
            before = largest.get(key)
            if before is None or _rank(found) > _rank(before):
                largest[key] = found
    offers = tuple(_offer(key, largest[key], observed_at) for key in sorted(largest))
    return OfferBatch(offers, tuple(dict.fromkeys(rejected)))


def offer_id(offering: BlockOffering) -> str:
    """An id that stays the same while the window is on sale.

    The start of a block that starts at once is left out of it, since that moves with every search.
    """
    start = f"{offering.segment.start:%Y%m%dT%H%MZ}" if starts_on_anchor(offering.segment) else STARTS_AT_ONCE
    return f"aws/block/{offering.zone}/{offering.instance_type}/{start}/{offering.segment.end:%Y%m%dT%H%MZ}"


def starts_on_anchor(segment: Segment) -> bool:
    """Whether the window starts at 11:30 UTC, as opposed to "at once"."""
    return segment.start.time() == BLOCK_ANCHOR_UTC


def _sold_counts(found: int) -> tuple[int, ...]:
    """The node counts of the configuration up to the one found.

    That one is sold even if it is not configured.
    """
    menu = load_provider_facts(PROVIDER).search["blocks"]["node_counts"]
    return tuple(sorted({found, *(int(count) for count in menu if count <= found)}))


def _rank(offering: BlockOffering) -> tuple[int, Decimal, str]:
    return offering.count, -offering.upfront_usd, offering.offering_id


def _offering(item: Node) -> BlockOffering:
    if len(tuple(item.items("capacityBlockOfferingSegmentSet"))) > 1:
        raise RowRejected("composed of several segments, which one purchase call cannot split")
    offering_id, instance_type = item.need("capacityBlockOfferingId"), item.need("instanceType")
    zone, tenancy = item.need("availabilityZone"), item.text("tenancy")
    if tenancy not in ("default", None):
        raise RowRejected(f"tenancy is {tenancy}")
    sku_of(instance_type)
    region_of(zone)
    count = _count(item.need("instanceCount"))
    start, end = item.instant("startDate"), item.instant("endDate")
    if end - start <= timedelta(seconds=TEARDOWN_S):
        raise RowRejected(f"nothing usable between {time_text(start)} and {time_text(end)}")
    fee = _fee(item.need("upfrontFee"), item.text("currencyCode"))
    offering = BlockOffering(offering_id, instance_type, zone, count, Segment(start, end, count), fee)
    require_price(offering.usd_per_node_hour.quantize(MICRO), "the fee spread over the window")
    return offering


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:6]) <= MOST_NODES:
        raise RowRejected(f"instanceCount {text[:20]!r} is not between 1 and {MOST_NODES}")
    return int(text)


def _fee(text: str, currency: str | None) -> Decimal:
    if currency != "USD":
        raise RowRejected(f"currency is {currency}, not USD")
    try:
        fee = Decimal(text)
    except InvalidOperation:
        raise RowRejected(f"upfrontFee {text[:40]!r} is not a number") from None
    if not fee.is_finite() or not Decimal(0) < fee < Decimal(10) ** 9:
        raise RowRejected(f"upfrontFee {text[:40]!r} is not a fee")
    return fee


def _offer(key: str, offering: BlockOffering, observed_at: datetime) -> Offer:
    region, segment = region_of(offering.zone), offering.segment
    return Offer(
        offer_id=key,
        provider=PROVIDER,
        sku=sku_of(offering.instance_type),
        region=region,
        zone=offering.zone,
        tier=Tier.WINDOW,
        price_usd_per_node_hour=offering.usd_per_node_hour.quantize(MICRO),
        upfront_usd=offering.upfront_usd,
        observed_at=observed_at,
        source=ACTION,
        native=NativePrice(offering.upfront_usd, "USD", "window"),
        country=country_of(region),
        min_hours=segment.hours,
        window=WindowTerms(
            kind=WindowKind.LISTED,
            segments=(segment,),
            anchor_utc=BLOCK_ANCHOR_UTC,
            step_hours=STEP_HOURS,
            durations_hours=(segment.hours,),
            lead_hours=LEAD_HOURS,
            cancel=CancelRule.NEVER,
            teardown_s=TEARDOWN_S,
            billed=billing().window_billed("block"),
            node_counts=_sold_counts(offering.count),
        ),
        stock=Stock(StockLevel.UNKNOWN, offering.count),
        compliance=compliance(),
        reference={"offering_id": offering.offering_id},
    )


ROWS = Rows(
    ACTION,
    "",
    (
        "capacityBlockOfferingId",
        "instanceType",
        "availabilityZone",
        "instanceCount",
        "startDate",
        "endDate",
        "upfrontFee",
        "currencyCode",
        "tenancy",
        "capacityBlockOfferingSegmentSet",
    ),
    at_times=("capacityBlockOfferingSegmentSet",),
)
