"""RunPod's two catalogues, and the offers in them (facts of the wire: the package's docstring)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.market.offer import (
    HostKind,
    NativePrice,
    Offer,
    OfferBatch,
    RejectedRow,
    Stock,
    StockLevel,
    Tier,
)
from broker.domain.market.sku import Form, Sku
from broker.provider_facts import ProviderFacts, load_provider_facts
from providers.payload import (
    Amount,
    GpuCount,
    Name,
    PayloadModel,
    RowRejected,
    as_dict,
    as_list,
    canonical_gpu,
    collect,
    decode_json,
    join_batches,
    require_price,
    slug,
    sold_amount,
    with_disk,
)
from providers.rows import gpu_node, row_name, rows_under
from providers.schema import Rows, Words
from providers.spec import NamedPayload

NAME = "runpod"
COUNTS = (1, 2, 4, 8)
ANY_REGION = "any"
DISK_GB = 50
DISK_USD_PER_GB_HOUR = (Decimal("0.10") / 730).quantize(Decimal("1e-12"))
"""A container disk costs 0.10 USD per GB and month of a running pod, beside the price of its GPUs
(docs.runpod.io/pods/storage, read 2026-11)."""

_LEVELS: Mapping[str, StockLevel] = {
    "none": StockLevel.NONE,
    "low": StockLevel.LOW,
    "medium": StockLevel.MEDIUM,
    "high": StockLevel.HIGH,
}


class _Prices(PayloadModel):
    secure: Decimal | None = None


class _Ceiling(PayloadModel):
    secure: GpuCount | None = None


class _DataCenter(PayloadModel):
    id: Name
    availability: Annotated[str | None, Words(lambda: _LEVELS, str.lower)] = None


class _Gpu(PayloadModel):
    """A row of ``GET /v2/catalog/gpus``."""

    id: Name
    name: Name
    memory: Amount | None = None
    price: _Prices
    maxCount: _Ceiling = _Ceiling()
    dataCenters: tuple[_DataCenter, ...] = ()


class _Lowest(PayloadModel):
    minimumBidPrice: Decimal | None = None
    uninterruptablePrice: Decimal | None = None
    minVcpu: Amount | None = None
    minMemory: Amount | None = None
    stockStatus: Annotated[str | None, Words(lambda: _LEVELS, str.lower)] = None


class _GpuType(PayloadModel):
    """A row of GraphQL ``gpuTypes``: the fields that the query names."""

    id: Name
    displayName: Name
    memoryInGb: Amount | None = None
    lowestPrice: _Lowest | None = None
    securePrice: Decimal | None = None
    secureSpotPrice: Decimal | None = None


@dataclass(frozen=True, slots=True)
class _Pod:
    """One GPU type at one count, as both catalogues describe it."""

    gpu_type: str
    word: str
    memory_gb: float | None
    count: int
    vcpus: float | None = None
    host_memory_gb: float | None = None

    @property
    def name(self) -> str:
        """Our name of this kind of pod."""
        return f"{self.gpu_type} x{self.count}"

    def sku(self, facts: ProviderFacts) -> Sku:
        """The node."""
        gpu = canonical_gpu(facts, self.word, self.memory_gb)
        return gpu_node(
            self.name, gpu, self.count, Form.CONTAINER, vcpus=self.vcpus, memory_gb=self.host_memory_gb
        )


def _offer(
    pod: _Pod, tier: Tier, price: Decimal, region: str, level: StockLevel, source: str, observed_at: datetime
) -> Offer:
    facts = load_provider_facts(NAME)
    offer = Offer(
        offer_id=f"{NAME}/{region}/{slug(pod.gpu_type)}/x{pod.count}/{tier}",
        provider=NAME,
        sku=pod.sku(facts),
        region=region,
        country=facts.country_of(region),
        tier=tier,
        price_usd_per_node_hour=price * pod.count,
        observed_at=observed_at,
        source=source,
        native=NativePrice(price, "USD", "GPU-hour"),
        billing_increment_s=facts.billed.increment_s,
        stock=Stock(level),
        compliance=facts.compliance,
        reference={
            "gpu_type_id": pod.gpu_type,
            "gpu_count": str(pod.count),
            "data_center_id": "" if region == ANY_REGION else region,
        },
        host=HostKind.DATACENTER,
    )
    return with_disk(offer, sold_amount(DISK_GB, DISK_USD_PER_GB_HOUR, least=1.0))


def with_default_disk(batch: OfferBatch, disk_gb: float) -> OfferBatch:
    """The offers with another container disk by default."""
    return replace(batch, offers=tuple(_with_default_disk(offer, disk_gb) for offer in batch.offers))


def _with_default_disk(offer: Offer, disk_gb: float) -> Offer:
    if offer.disk is None or offer.disk.default_gb == disk_gb:
        return offer
    sized = offer.sized(disk_gb, None)
    return replace(sized, disk=replace(offer.disk, default_gb=disk_gb))


def _level(word: str | None) -> StockLevel:
    if word is None:
        return StockLevel.NONE
    return _LEVELS.get(word.lower(), StockLevel.UNKNOWN)


def parse_offers(payload: bytes, asked_count: int | None, observed_at: datetime) -> OfferBatch:
    """On-demand offers of ``GET /v2/catalog/gpus?include=AVAILABILITY&product=POD``, by data centre.

    ``asked_count``: the ``count`` of the call. None: the API's default of one; larger pods are then offered
    with unknown stock.
    """
    rows = rows_under(NAME, payload, "gpus")
    counts = COUNTS if asked_count is None else (asked_count,)
    asked = asked_count or 1
    named = ((f"{row_name(row)} x{count}", (row, count)) for count in counts for row in rows)
    return collect(named, lambda item: _catalogue_offers(item[0], item[1], asked, observed_at))


def _catalogue_offers(row: Any, count: int, asked_count: int, observed_at: datetime) -> Iterator[Offer]:
    gpu = _Gpu.model_validate(row)
    pod = _Pod(gpu.id, gpu.name, gpu.memory, count)
    pod.sku(load_provider_facts(NAME))
    price = require_price(gpu.price.secure, "price.secure")
    ceiling = gpu.maxCount.secure
    if ceiling is not None and count > ceiling:
        raise RowRejected(f"at most {ceiling} GPUs in a pod")
    if not gpu.dataCenters:
        raise RowRejected("sold out everywhere")
    for center in gpu.dataCenters:
        level = _level(center.availability) if count == asked_count else StockLevel.UNKNOWN
        source = f"GET /v2/catalog/gpus?count={asked_count}"
        yield _offer(pod, Tier.ON_DEMAND, price, center.id, level, source, observed_at)


def parse_gpu_types(payload: bytes, asked_count: int | None, observed_at: datetime) -> OfferBatch:
    """On-demand and interruptible offers of GraphQL ``gpuTypes``, in region ``any``.

    ``lowestPrice`` has price and stock of the count that was requested. Without it, an answer has list
    prices of the secure cloud with unknown stock. A field that the query did not name is unknown.
    """
    count = asked_count or 1
    envelope = as_dict(NAME, decode_json(NAME, payload), "the answer")
    if envelope.get("errors"):
        raise PayloadUnreadable(NAME, graphql_message(envelope))
    data = as_dict(NAME, envelope.get("data"), "data")
    rows = as_list(NAME, data.get("gpuTypes"), "data.gpuTypes")
    named = ((f"{row_name(row)} x{count}", row) for row in rows)
    return collect(named, lambda row: _gpu_type_offers(row, count, observed_at))


def _gpu_type_offers(row: Any, count: int, observed_at: datetime) -> Iterator[Offer | RejectedRow]:
    kind = _GpuType.model_validate(row)
    lowest = kind.lowestPrice or _Lowest()
    pod = _Pod(kind.id, kind.displayName, kind.memoryInGb, count, lowest.minVcpu, lowest.minMemory)
    pod.sku(load_provider_facts(NAME))
    level = _level(lowest.stockStatus) if "stockStatus" in lowest.model_fields_set else StockLevel.UNKNOWN
    if level is StockLevel.NONE:
        raise RowRejected("sold out everywhere")
    on_demand = ("lowestPrice.uninterruptablePrice", lowest.uninterruptablePrice)
    spot = ("lowestPrice.minimumBidPrice", lowest.minimumBidPrice)
    prices = {
        Tier.ON_DEMAND: on_demand if kind.lowestPrice else ("securePrice", kind.securePrice),
        Tier.SPOT: spot if kind.lowestPrice else ("secureSpotPrice", kind.secureSpotPrice),
    }
    for tier, (name, value) in prices.items():
        try:
            price = require_price(value, name)
        except RowRejected as error:
            yield RejectedRow(f"{pod.name} {tier}", str(error))
            continue
        yield _offer(pod, tier, price, ANY_REGION, level, "POST /graphql gpuTypes", observed_at)


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Recorded answers of the v2 catalogue and of GraphQL, told apart by their form."""
    catalogue: list[tuple[int | None, bytes]] = []
    graphql: list[tuple[int | None, bytes]] = []
    for name, body in payloads:
        envelope = as_dict(NAME, decode_json(NAME, body), name)
        (catalogue if "gpus" in envelope else graphql).append((_count_in(name), body))
    return joined(
        [parse_offers(body, count, observed_at) for count, body in catalogue],
        [parse_gpu_types(body, count, observed_at) for count, body in graphql],
    )


def _count_in(file_name: str) -> int | None:
    found = re.search(r"count[_=-]?(\d{1,2})", file_name)
    return int(found.group(1)) if found else None


def joined(catalogue: Sequence[OfferBatch], graphql: Sequence[OfferBatch]) -> OfferBatch:
    """Offers with data centres from the v2 catalogue in place of GraphQL's on-demand offers without one."""
    if not catalogue:
        return join_batches(graphql)
    spot = [
        OfferBatch(tuple(offer for offer in batch.offers if offer.tier is Tier.SPOT), batch.rejected)
        for batch in graphql
    ]
    return join_batches((*catalogue, *spot))


def graphql_message(envelope: Mapping[str, Any]) -> str:
    """The text of the first GraphQL error."""
    errors = envelope.get("errors")
    first = errors[0] if isinstance(errors, list) and errors else {}
    return str(first.get("message", "error without message")) if isinstance(first, dict) else str(first)


ROWS = (
    Rows("GET /v2/catalog/gpus", "gpus[]", _Gpu),
    Rows("POST /graphql: gpuTypes", "data.gpuTypes[]", _GpuType, at_times=("securePrice", "secureSpotPrice")),
)
