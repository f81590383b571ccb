"""Verda's types and stock, and the offers in them (facts of the wire: the package's docstring)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from broker.domain.market.offer import NativePrice, Offer, OfferBatch, RejectedRow, Stock, StockLevel, Tier
from broker.domain.market.sku import Form, IntraNode, Sku, SoldAmount
from broker.provider_facts import ProviderFacts, infer_intra_node, load_provider_facts
from providers.payload import (
    Amount,
    GpuCount,
    Name,
    PayloadModel,
    RowRejected,
    as_list,
    as_payload,
    canonical_gpu,
    collect,
    decode_json,
    nominal_memory_gb,
    require_gpus,
    require_price,
    sold_amount,
    with_disk,
)
from providers.rows import row_name
from providers.schema import Rows
from providers.spec import NamedPayload

NAME = "verda"
ANY_REGION = "any"

OS_VOLUME = "NVMe"
"""The type of system volumes."""
DISK_GB = 100
HOURS_PER_MONTH = 730
"""Verda's month: its own client turns monthly prices of volumes into hourly ones by it."""
_FORMS = {"V": Form.VM, "M": Form.BARE_METAL}


class _Cpu(PayloadModel):
    number_of_cores: Amount | None = None


class _Gpu(PayloadModel):
    description: str = ""
    number_of_gpus: GpuCount = 0


class _Memory(PayloadModel):
    size_in_gigabytes: Amount | None = None


class _InstanceType(PayloadModel):
    """A row of ``GET /v1/instance-types``."""

    instance_type: Name
    name: str | None = None
    cpu: _Cpu = _Cpu()
    gpu: _Gpu
    gpu_memory: _Memory = _Memory()
    memory: _Memory = _Memory()
    p2p: str | None = None
    price_per_hour: Decimal | None = None
    spot_price: Decimal | None = None
    currency: str = "usd"


class _VolumePrice(PayloadModel):
    price_per_month_per_gb: Decimal | None = None
    currency: str = "usd"


class _VolumeType(PayloadModel):
    """A row of ``GET /v1/volume-types``."""

    type: Name
    price: _VolumePrice = _VolumePrice()


class _Availability(PayloadModel):
    """A row of ``GET /v1/instance-availability``."""

    location_code: Name
    availabilities: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AvailabilityFeed:
    """One answer of ``instance-availability``, with the tier that was requested."""

    payload: bytes
    is_spot: bool


_Places = Mapping[Tier, Mapping[str, tuple[str, ...]]]


def parse_offers(
    types: Sequence[bytes],
    availability: Sequence[AvailabilityFeed],
    volumes: Sequence[bytes],
    observed_at: datetime,
    disk_gb: float = DISK_GB,
) -> OfferBatch:
    """Types joined with the locations that have them now, on demand and spot, and their system volume.

    Without availability, prices only: region ``any``, stock unknown, not orderable. Without a price of
    volumes the disk is fixed at ``disk_gb``, which is what an order then asks for.
    """
    facts = load_provider_facts(NAME)
    places = _places(availability) if availability else None
    rows = [row for body in types for row in as_list(NAME, decode_json(NAME, body), "instance types")]
    named = ((row_name(row, "instance_type"), row) for row in rows)
    batch = collect(named, lambda row: _offers_of(row, places, facts, observed_at))
    disk = _system_disk(volumes, disk_gb)
    if disk is None:
        fixed = (replace(offer, sku=replace(offer.sku, disk_gb=disk_gb)) for offer in batch.offers)
        return replace(batch, offers=tuple(fixed))
    return replace(batch, offers=tuple(with_disk(offer, disk) for offer in batch.offers))


def _system_disk(volumes: Sequence[bytes], disk_gb: float) -> SoldAmount | None:
    """The system volume at its price in dollars; None where the answers tell none."""
    for body in volumes:
        for row in as_list(NAME, decode_json(NAME, body), "volume types"):
            kind = as_payload(NAME, row, _VolumeType)
            monthly = kind.price.price_per_month_per_gb
            if kind.type == OS_VOLUME and kind.price.currency.lower() == "usd" and monthly:
                return sold_amount(disk_gb, monthly / HOURS_PER_MONTH)
    return None


def _places(feeds: Sequence[AvailabilityFeed]) -> _Places:
    """Locations by tier and instance type."""
    found: dict[Tier, dict[str, tuple[str, ...]]] = {
        Tier.ON_DEMAND: defaultdict(tuple),
        Tier.SPOT: defaultdict(tuple),
    }
    for feed in feeds:
        tier = Tier.SPOT if feed.is_spot else Tier.ON_DEMAND
        for row in as_list(NAME, decode_json(NAME, feed.payload), "availability"):
            place = as_payload(NAME, row, _Availability)
            for kind in place.availabilities:
                if place.location_code not in found[tier][kind]:
                    found[tier][kind] = (*found[tier][kind], place.location_code)
    return found


def _offers_of(
    row: Any, places: _Places | None, facts: ProviderFacts, observed_at: datetime
) -> Iterator[Offer | RejectedRow]:
    kind = _InstanceType.model_validate(row)
    sku = _sku(kind, facts)
    if kind.currency.lower() != "usd":
        raise RowRejected(f"price in {kind.currency[:8]!r}, not in dollars")
    quotes = {
        Tier.ON_DEMAND: ("price_per_hour", kind.price_per_hour),
        Tier.SPOT: ("spot_price", kind.spot_price),
    }
    for tier, (name, value) in quotes.items():
        try:
            price = require_price(value, name)
            regions = _regions(places, tier, kind.instance_type)
        except RowRejected as error:
            yield RejectedRow(f"{kind.instance_type} {tier}", str(error))
            continue
        for region in regions:
            yield _offer(kind, sku, tier, price, region, facts, observed_at)


def _regions(places: _Places | None, tier: Tier, kind: str) -> tuple[str, ...]:
    if places is None:
        return (ANY_REGION,)
    found = places[tier].get(kind, ())
    if not found:
        raise RowRejected("sold out everywhere")
    return found


def _offer(
    kind: _InstanceType,
    sku: Sku,
    tier: Tier,
    price: Decimal,
    region: str,
    facts: ProviderFacts,
    observed_at: datetime,
) -> Offer:
    return Offer(
        offer_id=f"{NAME}/{region}/{kind.instance_type}/{tier}",
        provider=NAME,
        sku=sku,
        region=region,
        country=facts.country_of(region),
        tier=tier,
        price_usd_per_node_hour=price,
        observed_at=observed_at,
        source="GET /v1/instance-types, /v1/volume-types, /v1/instance-availability",
        native=NativePrice(price, "USD", "instance-hour"),
        billing_increment_s=facts.billed.increment_s,
        stock=Stock(StockLevel.UNKNOWN if region == ANY_REGION else StockLevel.SOME),
        compliance=facts.compliance,
        reference={
            "instance_type": kind.instance_type,
            "location_code": "" if region == ANY_REGION else region,
            "is_spot": "true" if tier is Tier.SPOT else "false",
        },
    )


def _sku(kind: _InstanceType, facts: ProviderFacts) -> Sku:
    count = require_gpus(kind.gpu.number_of_gpus)
    total = kind.gpu_memory.size_in_gigabytes
    gpu = canonical_gpu(facts, _gpu_word(kind), None if total is None else total / count)
    return Sku(
        name=kind.instance_type,
        gpu=gpu,
        gpus_per_node=count,
        gpu_memory_gb=nominal_memory_gb(gpu),
        vcpus=kind.cpu.number_of_cores,
        memory_gb=kind.memory.size_in_gigabytes,
        form=_FORMS.get(kind.instance_type[-1]),
        intra_node=_intra_node(kind.p2p, gpu, count),
    )


def _gpu_word(kind: _InstanceType) -> str:
    """The GPU's description without the leading count."""
    return re.sub(r"^\d{1,3}x ", "", kind.gpu.description)


def _intra_node(p2p: str | None, gpu: str, count: int) -> IntraNode | None:
    """The link that the GPU's form implies, at the rate of ``p2p`` if it states one."""
    inferred = infer_intra_node(gpu, count)
    stated = re.match(r"\s*(\d{1,5}(?:\.\d{1,3})?)\s*GB/s", p2p or "")
    if inferred is None or stated is None:
        return inferred
    return IntraNode(inferred.kind, float(stated.group(1)))


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Offers of recorded answers: rows tell which list they are of, a word in the file's name tells spot."""
    types: list[bytes] = []
    volumes: list[bytes] = []
    availability: list[AvailabilityFeed] = []
    for name, body in payloads:
        rows = as_list(NAME, decode_json(NAME, body), name)
        first = rows[0] if rows and isinstance(rows[0], dict) else {}
        if "availab" in name or "availabilities" in first:
            availability.append(AvailabilityFeed(body, "spot" in name))
        else:
            (volumes if "type" in first else types).append(body)
    return parse_offers(types, availability, volumes, observed_at)


ROWS = (
    Rows("GET /v1/instance-types", "[]", _InstanceType),
    Rows("GET /v1/volume-types", "[]", _VolumeType),
    Rows("GET /v1/instance-availability", "[]", _Availability),
)
