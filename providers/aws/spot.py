"""Spot prices from DescribeSpotPriceHistory: one row per instance type and Availability Zone.

Units: decimal string, USD per instance-hour, without the public address. When the present instant is
requested, the answer holds the prices in force. It does not tell stock or interruption rates.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

from broker.domain.market.offer import NativePrice, Offer, OfferBatch, RejectedRow, Tier
from broker.provider_facts import load_provider_facts
from providers.aws.nodes import (
    PROVIDER,
    billing,
    compliance,
    country_of,
    parse_usd,
    region_of,
    sku_of,
)
from providers.aws.query import Node, Params, listed
from providers.payload import RowRejected, with_address
from providers.rows import time_text
from providers.schema import Rows

ACTION = "DescribeSpotPriceHistory"
PLATFORM = "Linux/UNIX"


def spot_query(instance_types: Iterable[str], at: datetime) -> Params:
    """Parameters that ask for the prices in force at ``at``."""
    return {
        "StartTime": time_text(at),
        "EndTime": time_text(at),
        **listed("InstanceType", instance_types),
        **listed("ProductDescription", [PLATFORM]),
    }


def parse_spot(pages: Iterable[Node], observed_at: datetime) -> OfferBatch:
    """Offers from all pages of an answer; of several rows for one type and zone, the newest is kept."""
    newest: dict[str, tuple[datetime, Offer]] = {}
    rejected: list[RejectedRow] = []
    for page in pages:
        for item in page.items("spotPriceHistorySet"):
            try:
                at, offer = _offer(item, observed_at)
            except RowRejected as error:
                row = f"{item.text('instanceType')} {item.text('availabilityZone')}"
                rejected.append(RejectedRow(row, str(error)))
                continue
            before = newest.get(offer.offer_id)
            if before is None or _age_and_price(before) < _age_and_price((at, offer)):
                newest[offer.offer_id] = (at, offer)
    return OfferBatch(tuple(newest[key][1] for key in sorted(newest)), tuple(rejected))


def _age_and_price(seen: tuple[datetime, Offer]) -> tuple[datetime, Decimal]:
    """Sort key: the newest row wins; among equally new ones, the more expensive."""
    return seen[0], seen[1].price_usd_per_node_hour


def _offer(item: Node, observed_at: datetime) -> tuple[datetime, Offer]:
    instance_type, zone = item.need("instanceType"), item.need("availabilityZone")
    platform = item.text("productDescription")
    if platform not in (PLATFORM, f"{PLATFORM} (Amazon VPC)", None):
        raise RowRejected(f"price of {platform}, not of {PLATFORM}")
    sku, region = sku_of(instance_type), region_of(zone)
    if sku.disk_gb is None:
        raise RowRejected("no local disk: a spot instance boots from its image's small volume alone")
    usd_per_hour: Decimal = parse_usd(item.need("spotPrice"), None)
    offer = Offer(
        offer_id=f"aws/spot/{zone}/{instance_type}",
        provider=PROVIDER,
        sku=sku,
        region=region,
        zone=zone,
        tier=Tier.SPOT,
        price_usd_per_node_hour=usd_per_hour,
        observed_at=observed_at,
        source=ACTION,
        native=NativePrice(usd_per_hour, "USD", "instance-hour"),
        country=country_of(region),
        min_hours=billing().min_hours,
        billing_increment_s=billing().increment_s,
        compliance=compliance(),
    )
    return item.instant("timestamp"), with_address(offer, load_provider_facts(PROVIDER))


ROWS = Rows(ACTION, "", ("instanceType", "availabilityZone", "productDescription", "spotPrice", "timestamp"))
