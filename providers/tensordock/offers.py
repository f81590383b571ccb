"""TensorDock's hosts, and the sizes of them on sale (facts of the wire: the package's docstring)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field

from broker.domain.market.offer import GpuPool, NativePrice, Offer, OfferBatch, Stock, StockLevel, Tier
from broker.domain.market.sku import Form
from broker.provider_facts import ProviderFacts, load_provider_facts
from providers.payload import (
    GpuCount,
    Name,
    PayloadModel,
    RowRejected,
    as_dict,
    as_list,
    canonical_gpu,
    collect,
    decode_json,
    require_price,
    slug,
    sold_amount,
)
from providers.rows import gpu_node, page_by_page
from providers.schema import Rows

NAME = "tensordock"

_Units = Annotated[int, Field(ge=0, le=10_000_000)]


class _Gpu(PayloadModel):
    v0Name: Name
    availableCount: GpuCount = 0
    price_per_hr: Decimal | None = None


class _Resources(PayloadModel):
    vcpu_count: _Units | None = None
    ram_gb: _Units | None = None
    storage_gb: _Units | None = None
    max_vcpus_per_gpu: _Units | None = None
    max_ram_per_gpu: _Units | None = None
    available_ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = ()
    has_public_ip_available: bool = False


class _Pricing(PayloadModel):
    per_vcpu_hr: Decimal | None = None
    per_gb_ram_hr: Decimal | None = None
    per_gb_storage_hr: Decimal | None = None


class _Location(PayloadModel):
    uuid: str = ""
    city: str = ""
    country: str = ""
    organizationName: str | None = None


class _Host(PayloadModel):
    """A row of ``hostnodes``, without its GPUs."""

    id: Name
    uptime_percentage: Annotated[float, Field(ge=0, le=100)] | None = None
    available_resources: _Resources
    pricing: _Pricing = _Pricing()
    location: _Location = _Location()


@dataclass(frozen=True, slots=True)
class _Size:
    gpus: int
    vcpus: int
    ram_gb: int


def parse_offers(payload: bytes, observed_at: datetime) -> OfferBatch:
    """Offers of ``GET /hostnodes``: one per host, type of GPU and size that fits it now."""
    facts = load_provider_facts(NAME)
    data = as_dict(NAME, as_dict(NAME, decode_json(NAME, payload), "the answer").get("data"), "data")
    rows = [pair for host in as_list(NAME, data.get("hostnodes"), "hostnodes") for pair in _pairs(host)]
    return collect(rows, lambda row: _offers_of(row, facts, observed_at))


def _pairs(host: Any) -> Iterator[tuple[str, Any]]:
    """A row for each GPU type of a host, or one for a host without GPUs."""
    name = str(host.get("id", "host without id")) if isinstance(host, dict) else "host that is no object"
    resources = host.get("available_resources") if isinstance(host, dict) else None
    gpus = resources.get("gpus") if isinstance(resources, dict) else None
    if not isinstance(gpus, list) or not gpus:
        yield name, (host, None)
        return
    for gpu in gpus:
        word = gpu.get("v0Name", "GPU without a name") if isinstance(gpu, dict) else "GPU that is no object"
        yield f"{name} {word}", (host, gpu)


def _offers_of(row: Any, facts: ProviderFacts, observed_at: datetime) -> Iterator[Offer]:
    host = _Host.model_validate(row[0])
    if row[1] is None:
        raise RowRejected("no GPU")
    gpu = _Gpu.model_validate(row[1])
    name = canonical_gpu(facts, gpu.v0Name, _stated_memory_gb(gpu.v0Name))
    require_price(gpu.price_per_hr, "price_per_hr")
    if gpu.availableCount == 0:
        raise RowRejected("sold out")
    if not (host.available_resources.has_public_ip_available or host.available_resources.available_ports):
        raise RowRejected("neither a public address nor an open port")
    sizes = [size for n in facts.search["gpus"] if n <= gpu.availableCount if (size := _size(host, n, facts))]
    if not sizes:
        raise RowRejected("too little memory, disk or too few cores beside the GPUs")
    for size in sizes:
        yield _offer(host, gpu, name, size, facts, observed_at)


def _stated_memory_gb(word: str) -> float | None:
    found = re.search(r"-(\d{1,4})gb$", word)
    return float(found.group(1)) if found else None


def _least(*amounts: int | None) -> int:
    return min(amount for amount in amounts if amount is not None)


def _size(host: _Host, gpus: int, facts: ProviderFacts) -> _Size | None:
    """The configured size for ``gpus``, reduced to what the host has; None when that is too little."""
    there, search = host.available_resources, facts.search
    per_gpu = (there.max_vcpus_per_gpu, there.max_ram_per_gpu)
    most_vcpus, most_ram = (None if each is None else each * gpus for each in per_gpu)
    vcpus = _least(search["vcpus_per_gpu"] * gpus, there.vcpu_count, most_vcpus) // 2 * 2
    ram = _least(search["ram_gb_per_gpu"] * gpus, there.ram_gb, most_ram)
    steps = [step for step in search["ram_steps_gb"] if step <= ram]
    if vcpus < 2 or not steps or _least(search["storage_gb"], there.storage_gb) < search["storage_gb"]:
        return None
    return _Size(gpus, vcpus, max(steps))


def _nodes(host: _Host, gpu: _Gpu, size: _Size, facts: ProviderFacts) -> int:
    """How many nodes of ``size`` fit on the host at once."""
    there = host.available_resources
    counts = [gpu.availableCount // size.gpus]
    for free, wanted in (
        (there.vcpu_count, size.vcpus),
        (there.ram_gb, size.ram_gb),
        (there.storage_gb, facts.search["storage_gb"]),
    ):
        if free is not None:
            counts.append(free // wanted)
    return min(counts)


def _price(host: _Host, gpu: _Gpu, size: _Size, facts: ProviderFacts) -> Decimal:
    parts = {
        "price_per_hr": (gpu.price_per_hr, size.gpus),
        "per_vcpu_hr": (host.pricing.per_vcpu_hr, size.vcpus),
        "per_gb_ram_hr": (host.pricing.per_gb_ram_hr, size.ram_gb),
        "per_gb_storage_hr": (host.pricing.per_gb_storage_hr, facts.search["storage_gb"]),
    }
    total = Decimal(0)
    for name, (price, units) in parts.items():
        if price is None:
            raise RowRejected(f"{name} is null")
        if price < 0:
            raise RowRejected(f"{name} is not a usable amount")
        total += price * units
    return require_price(total, "the sum of the parts")


def _offer(
    host: _Host, gpu: _Gpu, name: str, size: _Size, facts: ProviderFacts, observed_at: datetime
) -> Offer:
    sku = f"{gpu.v0Name}_{size.gpus}x{size.vcpus}v{size.ram_gb}gb"
    price, place, there = _price(host, gpu, size, facts), host.location, host.available_resources
    region = slug(place.city) or slug(place.uuid) or "unknown"
    return Offer(
        offer_id=f"{NAME}/{region}/{slug(host.id)}/{slug(sku)}/{Tier.ON_DEMAND}",
        provider=NAME,
        sku=gpu_node(
            sku,
            name,
            size.gpus,
            Form.VM,
            vcpus=size.vcpus,
            memory_gb=size.ram_gb,
        ),
        region=region,
        zone=host.id,
        country=facts.countries.get(place.country),
        seller=place.organizationName or None,
        tier=Tier.ON_DEMAND,
        price_usd_per_node_hour=price,
        observed_at=observed_at,
        source="GET /hostnodes",
        native=NativePrice(price, "USD", "machine-hour, the sum of its parts"),
        billing_increment_s=facts.billed.increment_s,
        stock=Stock(
            StockLevel.UNKNOWN,
            _nodes(host, gpu, size, facts),
            GpuPool(f"{NAME}/{slug(host.id)}/{slug(gpu.v0Name)}", gpu.availableCount),
        ),
        compliance=facts.compliance,
        reference={
            "hostnode_id": host.id,
            "gpu": gpu.v0Name,
            "gpus": str(size.gpus),
            "vcpu_count": str(size.vcpus),
            "ram_gb": str(size.ram_gb),
            "port": "" if there.has_public_ip_available else str(there.available_ports[0]),
        },
        reliability=None if host.uptime_percentage is None else round(host.uptime_percentage / 100, 6),
        disk=sold_amount(
            facts.search["storage_gb"], host.pricing.per_gb_storage_hr or Decimal(0), most=there.storage_gb
        ),
    )


parse = page_by_page(parse_offers)
"""Recorded answers of ``hostnodes``."""


ROWS = (
    Rows("GET /hostnodes", "data.hostnodes[]", _Host),
    Rows("GET /hostnodes", "data.hostnodes[].available_resources.gpus[]", _Gpu),
)
