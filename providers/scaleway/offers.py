"""Scaleway's types and stock, and the offers in them (facts of the wire: the package's docstring)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any

from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.market.offer import NativePrice, Offer, OfferBatch, Stock, StockLevel, Tier
from broker.domain.market.sku import Form, Sku, SoldAmount
from broker.provider_facts import ProviderFacts, infer_intra_node, load_provider_facts
from providers.payload import (
    Amount,
    GpuCount,
    PayloadModel,
    RowRejected,
    as_dict,
    as_payload,
    canonical_gpu,
    collect,
    decode_json,
    join_batches,
    nominal_memory_gb,
    require_gpus,
    require_price,
    sold_amount,
    source_with_rate,
    usd_of,
    with_address,
    with_disk,
)
from providers.schema import Rows, Words
from providers.spec import NamedPayload

NAME = "scaleway"
CURRENCY = "EUR"
ANY_ZONE = "any"
BYTES_PER_GIB = 2**30

_ZONE = re.compile(r"[a-z]{2}-[a-z]{3}-\d")
_LEVELS: Mapping[str, StockLevel] = {
    "available": StockLevel.HIGH,
    "scarce": StockLevel.LOW,
    "shortage": StockLevel.NONE,
}


class _GpuInfo(PayloadModel):
    gpu_name: str = ""
    gpu_memory: int | None = None


class _ServerType(PayloadModel):
    """A value of ``GET …/products/servers``; its key is the commercial type."""

    ncpus: Amount | None = None
    ram: int | None = None
    gpu: GpuCount | None = None
    gpu_info: _GpuInfo | None = None
    mig_profile: str | None = None
    hourly_price: Decimal | None = None
    end_of_service: bool = False


class _Availability(PayloadModel):
    availability: Annotated[str, Words(lambda: _LEVELS)]


@dataclass(frozen=True, slots=True)
class ZoneFeed:
    """One zone's answers: pages of types and, where requested, pages of their stock."""

    zone: str
    types: tuple[bytes, ...]
    stock: tuple[bytes, ...] | None


def region_of(zone: str) -> str:
    """``fr-par`` of ``fr-par-2``."""
    return zone.rpartition("-")[0] if _ZONE.fullmatch(zone) else zone


def parse_offers(feed: ZoneFeed, observed_at: datetime) -> OfferBatch:
    """Offers of one zone: types joined with their stock, which is unknown where the answer has none."""
    facts = load_provider_facts(NAME)
    stock = _stock(feed.stock) if feed.stock is not None else {}
    rows = [item for body in feed.types for item in _servers(body).items()]
    named = ((f"{feed.zone} {name}", (name, row)) for name, row in rows)
    return collect(named, lambda pair: _offers_of(pair, feed.zone, stock, facts, observed_at))


def _servers(body: bytes) -> dict[str, Any]:
    envelope = as_dict(NAME, decode_json(NAME, body), "the answer")
    return as_dict(NAME, envelope.get("servers"), "servers")


def count_of(body: bytes) -> int:
    """The number of rows of a page of either list."""
    return len(_servers(body))


def _is_stock(body: bytes) -> bool:
    first = next(iter(_servers(body).values()), None)
    return isinstance(first, dict) and "availability" in first


def _stock(pages: Iterable[bytes]) -> Mapping[str, str]:
    return {
        name: as_payload(NAME, row, _Availability).availability
        for body in pages
        for name, row in _servers(body).items()
    }


def _offers_of(
    pair: tuple[str, Any],
    zone: str,
    stock: Mapping[str, str],
    facts: ProviderFacts,
    observed_at: datetime,
) -> Iterator[Offer]:
    name, row = pair
    if not 0 < len(name) <= 100:
        raise RowRejected("no usable name")
    kind = _ServerType.model_validate(row)
    sku = _sku(name, kind, facts)
    if kind.end_of_service:
        raise RowRejected("at its end of service")
    euros = require_price(kind.hourly_price, "hourly_price")
    level = _LEVELS.get(stock.get(name, ""), StockLevel.UNKNOWN)
    if level is StockLevel.NONE:
        raise RowRejected(f"sold out ({stock[name]})")
    dollars, exchange = usd_of(euros, CURRENCY, observed_at.date(), is_billed=True)
    region = region_of(zone)
    offer = Offer(
        offer_id=f"{NAME}/{zone}/{name}/{Tier.ON_DEMAND}",
        provider=NAME,
        sku=sku,
        region=region,
        zone=None if zone == ANY_ZONE else zone,
        country=facts.country_of(region),
        tier=Tier.ON_DEMAND,
        price_usd_per_node_hour=dollars,
        observed_at=observed_at,
        source=source_with_rate(f"GET /instance/v1/zones/{zone}/products/servers", CURRENCY, exchange),
        native=NativePrice(euros, CURRENCY, "Instance-hour", exchange),
        billing_increment_s=facts.billed.increment_of(name),
        stock=Stock(level),
        compliance=facts.compliance,
        reference={"commercial_type": name, "zone": "" if zone == ANY_ZONE else zone},
    )
    yield with_address(with_disk(offer, _root_volume(facts, observed_at.date())), facts)


def _root_volume(facts: ProviderFacts, day: date) -> SoldAmount:
    euros = Decimal(facts.search["disk_eur_per_gb_hour"])
    usd, _ = usd_of(euros, CURRENCY, day)
    return sold_amount(facts.search["disk_gb"], usd, most=facts.search["most_disk_gb"])


def _sku(name: str, kind: _ServerType, facts: ProviderFacts) -> Sku:
    count = require_gpus(kind.gpu)
    if kind.mig_profile:
        raise RowRejected(f"a slice of a card ({kind.mig_profile[:60]})")
    info = kind.gpu_info or _GpuInfo()
    gpu = canonical_gpu(facts, info.gpu_name, _gib_of(info.gpu_memory))
    return Sku(
        name=name,
        gpu=gpu,
        gpus_per_node=count,
        gpu_memory_gb=nominal_memory_gb(gpu),
        vcpus=kind.ncpus,
        memory_gb=None if kind.ram is None else round(_sane(kind.ram) / 1e9, 1),
        form=Form.VM,
        intra_node=infer_intra_node(gpu, count),
    )


def _gib_of(count: int | None) -> float | None:
    """GiB of bytes: a card's nominal 80 GB are reported as 80 x 2³⁰ bytes."""
    return None if count is None else _sane(count) / BYTES_PER_GIB


def _sane(count: int) -> int:
    if not 0 <= count < 2**60:
        raise RowRejected("a memory size is too large")
    return count


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Offers of recorded answers: the file's name has the zone, the rows tell which list it is."""
    types: dict[str, list[bytes]] = {}
    stock: dict[str, list[bytes]] = {}
    for name, body in payloads:
        found = _ZONE.search(name)
        kept = stock if "availab" in name or _is_stock(body) else types
        kept.setdefault(found.group() if found else ANY_ZONE, []).append(body)
    if not types:
        raise PayloadUnreadable(NAME, "no list of types among the files")
    feeds = (
        ZoneFeed(zone, tuple(pages), tuple(stock[zone]) if zone in stock else None)
        for zone, pages in types.items()
    )
    return join_batches(parse_offers(feed, observed_at) for feed in feeds)


ROWS = (
    Rows("GET /instance/v1/zones/{zone}/products/servers", "servers.*", _ServerType),
    Rows("GET …/products/servers/availability", "servers.*", _Availability),
)
